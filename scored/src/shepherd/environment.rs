//! The environment variables of a program.

use score_proto::message::OsBytes;

/// The value of a variable, if it is set.
pub fn environment_value<'a>(environment: &'a [OsBytes], name: &str) -> Option<&'a [u8]> {
    environment
        .iter()
        .find_map(|variable| variable.0.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}
