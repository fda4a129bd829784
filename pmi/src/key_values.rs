//! The key-value space of a job. Processes put entries into it. Until a fence, only processes of
//! the same host can get an entry; after the fence every process of the job can get it. A fence
//! transports the new entries of each host to all hosts, as bytes in a format that only this file
//! uses.

use std::collections::BTreeMap;

/// The longest name of a space in bytes. This limit and the next two are those of MPICH's own
/// launcher.
pub const MAX_NAME_LEN: usize = 256;
/// See [`MAX_NAME_LEN`].
pub const MAX_KEY_LEN: usize = 64;
/// See [`MAX_NAME_LEN`].
pub const MAX_VALUE_LEN: usize = 1024;
/// The largest number of bytes that all entries of a job occupy on each host.
pub const MAX_SPACE_BYTES: usize = 64 << 20;
/// The memory of an entry in addition to its key and its value: two strings in a map.
const ENTRY_OVERHEAD_LEN: usize = 128;

/// The reason why an entry is not put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The key is empty, or longer than [`MAX_KEY_LEN`].
    #[error("a key has 1 to {MAX_KEY_LEN} bytes")]
    Key,
    /// The value is longer than [`MAX_VALUE_LEN`].
    #[error("a value has at most {MAX_VALUE_LEN} bytes")]
    Value,
    /// The text contains a line end, which ends a message of version 1, or a NUL, which ends a
    /// string in C.
    #[error("keys and values contain neither line ends nor NUL")]
    Character,
    /// The key already has a value.
    #[error("the key has a value")]
    Duplicate,
    /// All entries together reach [`MAX_SPACE_BYTES`].
    #[error("the key-value space of a job has at most {MAX_SPACE_BYTES} bytes")]
    Full,
    /// The processes of the host have put as many bytes as a fence may transport.
    #[error("the processes of a host put at most {0} bytes between two fences")]
    FenceFull(usize),
}

/// The bytes of a fence are not entries, or there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed entries of the key-value space, or more than {MAX_SPACE_BYTES} bytes")]
pub struct MergeError;

/// See the [module](self).
#[derive(Debug)]
pub struct KeyValueSpace {
    entries: BTreeMap<String, String>,
    bytes: usize,
    /// The entries of this host that the next fence transports.
    new_entries: Vec<u8>,
    max_new_bytes: usize,
}

impl KeyValueSpace {
    /// A space without entries. A fence transports at most this many bytes from this host.
    pub fn new(max_new_bytes: usize) -> Self {
        Self { entries: BTreeMap::new(), bytes: 0, new_entries: Vec::new(), max_new_bytes }
    }

    /// Adds an entry of a process of this host.
    ///
    /// # Errors
    /// The reason why the entry is not added.
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), PutError> {
        check(key, value)?;
        if self.entries.contains_key(key) {
            return Err(PutError::Duplicate);
        }
        if self.new_entries.len() + entry_wire_len(key, value) > self.max_new_bytes {
            return Err(PutError::FenceFull(self.max_new_bytes));
        }
        self.insert(key, value)?;
        for text in [key, value] {
            // Both lengths fit, because `check` has limited them.
            self.new_entries.extend_from_slice(&(text.len() as u16).to_le_bytes());
            self.new_entries.extend_from_slice(text.as_bytes());
        }
        Ok(())
    }

    fn insert(&mut self, key: &str, value: &str) -> Result<(), PutError> {
        let earlier_len = self.get(key).map_or(0, |earlier| entry_len(key, earlier));
        let bytes = self.bytes - earlier_len + entry_len(key, value);
        if bytes > MAX_SPACE_BYTES {
            return Err(PutError::Full);
        }
        self.bytes = bytes;
        self.entries.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.get(key).map(String::as_str)
    }

    /// Takes the entries that the next fence has to transport.
    pub fn take_new_entries(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.new_entries)
    }

    /// Adds the entries of a fence. All hosts get the same bytes. The bytes may be split between
    /// entries. If several hosts have put the same key, all of them have the last value afterwards.
    ///
    /// # Errors
    /// If the bytes are not entries, or if there are too many. Entries before the error have been
    /// added.
    pub fn merge(&mut self, mut bytes: &[u8]) -> Result<(), MergeError> {
        while !bytes.is_empty() {
            let (key, rest) = split_text(bytes)?;
            let (value, rest) = split_text(rest)?;
            check(key, value).map_err(|_| MergeError)?;
            self.insert(key, value).map_err(|_| MergeError)?;
            bytes = rest;
        }
        Ok(())
    }
}

/// The number of bytes of an entry in a fence.
fn entry_wire_len(key: &str, value: &str) -> usize {
    2 * size_of::<u16>() + key.len() + value.len()
}

fn entry_len(key: &str, value: &str) -> usize {
    key.len() + value.len() + ENTRY_OVERHEAD_LEN
}

/// Checks an entry of the space, or an attribute of a node.
pub(crate) fn check(key: &str, value: &str) -> Result<(), PutError> {
    if key.is_empty() || key.len() > MAX_KEY_LEN {
        return Err(PutError::Key);
    }
    if value.len() > MAX_VALUE_LEN {
        return Err(PutError::Value);
    }
    let ends_field = |letter| matches!(letter, '\n' | '\r' | '\0');
    if key.contains(ends_field) || value.contains(ends_field) {
        return Err(PutError::Character);
    }
    Ok(())
}

fn split_text(bytes: &[u8]) -> Result<(&str, &[u8]), MergeError> {
    let (len, rest) = bytes.split_first_chunk().ok_or(MergeError)?;
    let (text, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into()).ok_or(MergeError)?;
    Ok((std::str::from_utf8(text).map_err(|_| MergeError)?, rest))
}

/// Parses hostile bytes as the entries of a fence.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut space = KeyValueSpace::new(usize::MAX);
    if space.merge(bytes).is_ok() {
        assert!(space.bytes <= bytes.len() + space.entries.len() * ENTRY_OVERHEAD_LEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_two_hosts_are_on_both_hosts_after_a_fence() {
        let mut hosts = [KeyValueSpace::new(usize::MAX), KeyValueSpace::new(usize::MAX)];
        hosts[0].put("a", "1").unwrap();
        hosts[1].put("b", "").unwrap();
        assert_eq!((hosts[0].get("a"), hosts[1].get("a")), (Some("1"), None));
        let entries: Vec<u8> = hosts.iter_mut().flat_map(KeyValueSpace::take_new_entries).collect();
        for host in &mut hosts {
            host.merge(&entries).unwrap();
            assert_eq!((host.get("a"), host.get("b")), (Some("1"), Some("")));
            assert_eq!(host.take_new_entries(), Vec::<u8>::new(), "nothing is sent twice");
            assert_eq!(host.bytes, 2 * ENTRY_OVERHEAD_LEN + 3);
        }
    }

    #[test]
    fn an_entry_is_refused_with_the_reason() {
        let mut space = KeyValueSpace::new(usize::MAX);
        let (key, value) = ("k".repeat(MAX_KEY_LEN), "v".repeat(MAX_VALUE_LEN));
        assert_eq!(space.put(&key, &value), Ok(()));
        assert_eq!(space.put(&key, "other"), Err(PutError::Duplicate));
        assert_eq!(space.put("", "x"), Err(PutError::Key));
        assert_eq!(space.put(&(key + "k"), "x"), Err(PutError::Key));
        assert_eq!(space.put("x", &(value + "v")), Err(PutError::Value));
        for text in ["a\rb", "a\nb", "a\0"] {
            assert_eq!(space.put(text, "x"), Err(PutError::Character));
            assert_eq!(space.put("x", text), Err(PutError::Character));
        }
    }

    #[test]
    fn the_bytes_of_a_space_are_bounded() {
        let mut space = KeyValueSpace::new(usize::MAX);
        let value = "v".repeat(MAX_VALUE_LEN);
        let added = (0..).take_while(|number| space.put(&format!("{number:08}"), &value).is_ok());
        assert_eq!(added.count(), MAX_SPACE_BYTES / (8 + MAX_VALUE_LEN + ENTRY_OVERHEAD_LEN));
        assert_eq!(space.put("one more", &value), Err(PutError::Full));
        let mut other = KeyValueSpace::new(usize::MAX);
        other.put("one more", &value).unwrap();
        assert_eq!(space.merge(&other.take_new_entries()), Err(MergeError));
    }

    #[test]
    fn malformed_entries_are_refused() {
        let long_key = [&[65, 0][..], &[b'k'; 65], &[0, 0]].concat();
        for bytes in
            [&[1][..], &[2, 0, b'a'], &[1, 0, b'a'], &[0, 0, 0, 0], &[1, 0, 0xff, 0, 0], &long_key]
        {
            assert_eq!(KeyValueSpace::new(usize::MAX).merge(bytes), Err(MergeError), "{bytes:?}");
        }
    }

    #[test]
    fn a_fence_transports_a_bounded_number_of_bytes() {
        let mut space = KeyValueSpace::new(2 * (4 + 3 + 10));
        assert_eq!(space.put("k-1", "0123456789"), Ok(()));
        assert_eq!(space.put("k-2", "0123456789+"), Err(PutError::FenceFull(34)));
        assert_eq!(space.get("k-2"), None);
        assert_eq!(space.put("k-2", "0123456789"), Ok(()));
        assert_eq!(space.put("k", ""), Err(PutError::FenceFull(34)));
        assert_eq!(space.take_new_entries().len(), 34);
        assert_eq!(space.put("k", ""), Ok(()));
    }
}
