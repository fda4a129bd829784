//! Paths, arguments and other bytes of the operating system in messages.

use serde::{Deserialize, Serialize};

/// Bytes from the operating system: a path or an argument, not necessarily UTF-8.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OsBytes(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl std::fmt::Debug for OsBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_printed_as_text() {
        assert_eq!(format!("{:?}", OsBytes(b"two words\n".to_vec())), r#""two words\n""#);
    }
}
