//! Messages on the socket between a process and its launcher. A message of version 1 is a line of
//! `name=value` words: `cmd=put kvsname=k key=a value=b\n`. Only `spawn` has several lines. A
//! message of version 2 begins with six characters that give the length of the rest, and each field
//! ends with a semicolon: `    20cmd=kvs-put;key=a;...`. In a value, two semicolons represent one.
//! A client of version 2 sends its first message in version 1.

use std::fmt::Write;

/// The longest message in bytes. It has room for the longest key and value. `spawn`, which may be
/// longer, is not supported.
pub const MAX_MESSAGE_LEN: usize = 16 * 1024;
/// The number of characters of the length in a message of version 2.
const LENGTH_LEN: usize = 6;
/// The end of a message of several lines.
const SPAWN_END: &[u8] = b"endcmd\n";

/// The format of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireVersion {
    /// Lines of words.
    One,
    /// A length, and fields that end with semicolons.
    Two,
}

/// A message that cannot be parsed. The messages after it cannot be parsed either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message has more than [`MAX_MESSAGE_LEN`] bytes.
    #[error("a PMI message of more than {MAX_MESSAGE_LEN} bytes")]
    TooLong,
    /// The message does not begin like a message of any version.
    #[error("a PMI message that begins neither with 'cmd=' nor with its length")]
    NoCommand,
    /// A field has no name, or is not UTF-8.
    #[error("a PMI message with a malformed field")]
    Malformed,
}

/// A message: a command and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The format in which it was read.
    pub version: WireVersion,
    /// The value of the field `cmd` or `mcmd`.
    pub command: String,
    /// The other fields, in their order.
    pub fields: Vec<(String, String)>,
}

impl Message {
    /// The value of the first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Splits the bytes of a socket into messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// The bytes before this position belong to messages that were returned.
    start: usize,
}

impl Decoder {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, or None if it is not complete.
    ///
    /// # Errors
    /// If the bytes are not a message.
    pub fn next_message(&mut self) -> Result<Option<Message>, WireError> {
        let bytes = &self.buffer[self.start..];
        let Some(len) = message_len(bytes)? else { return Ok(None) };
        self.start += len;
        parse(&bytes[..len]).map(Some)
    }
}

/// The length of the message at the beginning, if it is complete.
fn message_len(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let is_begin = |word: &[u8]| bytes.starts_with(word) || word.starts_with(bytes);
    let len = if is_begin(b"cmd=") {
        find(bytes, b"\n")
    } else if is_begin(b"mcmd=") {
        find(bytes, SPAWN_END)
    } else {
        body_len(bytes)?.map(|body_len| LENGTH_LEN + body_len).filter(|len| bytes.len() >= *len)
    };
    match len.unwrap_or(bytes.len()) {
        ..=MAX_MESSAGE_LEN => Ok(len),
        _ => Err(WireError::TooLong),
    }
}

/// The offset at which the first occurrence of `needle` ends.
fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle).map(|at| at + needle.len())
}

/// The length field of a message of version 2, if it is complete.
fn body_len(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let digits = &bytes[..bytes.len().min(LENGTH_LEN)];
    let text = std::str::from_utf8(digits).map_err(|_| WireError::NoCommand)?.trim_start();
    if !text.trim_end().bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(WireError::NoCommand);
    }
    if bytes.len() < LENGTH_LEN {
        return Ok(None);
    }
    match text.trim_end().parse() {
        Ok(len) if len > MAX_MESSAGE_LEN => Err(WireError::TooLong),
        Ok(len) => Ok(Some(len)),
        Err(_) => Err(WireError::NoCommand),
    }
}

fn parse(bytes: &[u8]) -> Result<Message, WireError> {
    let text = std::str::from_utf8(bytes).map_err(|_| WireError::Malformed)?;
    let (version, mut fields) = if text.starts_with("mcmd=") {
        (
            WireVersion::One,
            fields_of(text.split_terminator('\n').take_while(|line| *line != "endcmd"))?,
        )
    } else if text.starts_with("cmd=") {
        (WireVersion::One, words_of(text.trim_end_matches('\n'))?)
    } else {
        let body = text.get(LENGTH_LEN..).ok_or(WireError::Malformed)?;
        let parts = parts_of(body.trim_end_matches('\n'));
        (WireVersion::Two, fields_of(parts.iter().map(String::as_str))?)
    };
    match fields.first() {
        Some((name, _)) if name == "cmd" || name == "mcmd" => {
            let (_, command) = fields.remove(0);
            Ok(Message { version, command, fields })
        }
        _ => Err(WireError::NoCommand),
    }
}

fn fields_of<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Vec<(String, String)>, WireError> {
    let named = |part: &str| match part.split_once('=').unwrap_or((part, "")) {
        ("", _) => Err(WireError::Malformed),
        (name, value) => Ok((name.to_owned(), value.to_owned())),
    };
    parts.map(named).collect()
}

/// The fields of a message of version 2. In a value, two semicolons represent one.
fn parts_of(body: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = body.chars().peekable();
    while let Some(letter) = letters.next() {
        match parts.last_mut() {
            Some(_) if letter == ';' && letters.next_if_eq(&';').is_none() => {
                parts.push(String::new());
            }
            Some(part) => part.push(letter),
            None => {}
        }
    }
    // The part after the last semicolon.
    parts.pop_if(|part| part.is_empty());
    parts
}

/// The words of a line. A backslash escapes the next character.
fn words_of(line: &str) -> Result<Vec<(String, String)>, WireError> {
    let mut words = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, words.last_mut()) {
            (' ', _) => words.push(String::new()),
            ('\\', Some(word)) => word.push(letters.next().unwrap_or('\\')),
            (_, Some(word)) => word.push(letter),
            (_, None) => {}
        }
    }
    fields_of(words.iter().filter(|word| !word.is_empty()).map(String::as_str))
}

/// The bytes of a message.
pub fn encode(version: WireVersion, command: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("cmd={command}");
    match version {
        WireVersion::One => {
            for (name, value) in fields {
                let _ = write!(text, " {name}={}", escaped(value));
            }
            text.push('\n');
            text.into_bytes()
        }
        WireVersion::Two => {
            text.push(';');
            for (name, value) in fields {
                let _ = write!(text, "{name}={};", value.replace(';', ";;"));
            }
            format!("{:>LENGTH_LEN$}{text}", text.len()).into_bytes()
        }
    }
}

/// A value as a word of version 1.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for letter in value.chars() {
        if letter == ' ' || letter == '\\' {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> Result<Vec<Message>, WireError> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        std::iter::from_fn(|| decoder.next_message().transpose()).collect()
    }

    #[test]
    fn messages_of_both_versions_are_read_from_one_socket() {
        let bytes = b"cmd=init pmi_version=2 pmi_subversion=0\n    20cmd=job-getid;a=b c;";
        let messages = all(bytes).unwrap();
        assert_eq!(messages.len(), 2);
        assert_eq!((messages[0].command.as_str(), messages[0].version), ("init", WireVersion::One));
        assert_eq!(messages[0].field("pmi_version"), Some("2"));
        assert_eq!(
            (messages[1].command.as_str(), messages[1].version),
            ("job-getid", WireVersion::Two)
        );
        assert_eq!(messages[1].field("a"), Some("b c"));
        assert_eq!(messages[1].field("thrid"), None);
    }

    #[test]
    fn a_message_that_arrives_byte_by_byte_is_read_when_it_is_complete() {
        for bytes in [
            &b"cmd=put key=a value=b\n"[..],
            b"    13cmd=finalize;",
            b"mcmd=spawn\nnprocs=2\nendcmd\n",
        ] {
            let mut decoder = Decoder::default();
            for byte in &bytes[..bytes.len() - 1] {
                decoder.push(&[*byte]);
                assert_eq!(decoder.next_message(), Ok(None));
            }
            decoder.push(&bytes[bytes.len() - 1..]);
            assert!(decoder.next_message().unwrap().is_some());
            assert_eq!(decoder.next_message(), Ok(None));
        }
    }

    #[test]
    fn a_malformed_pmi_message_is_refused() {
        use WireError::{Malformed, NoCommand, TooLong};
        let endless = [&b"cmd=put value="[..], &[b'x'; MAX_MESSAGE_LEN]].concat();
        for (bytes, error) in [
            (&b"hello\n"[..], NoCommand),
            (b"\x80", NoCommand),
            (b"      cmd=a;", NoCommand),
            (b"     4key=", NoCommand),
            (b"999999cmd=", TooLong),
            (&endless, TooLong),
            (b"cmd=put =x\n", Malformed),
            (b"cmd=\xff\n", Malformed),
        ] {
            assert_eq!(all(bytes), Err(error), "{bytes:?}");
        }
        assert_eq!(all(&endless[..100]), Ok(Vec::new()), "it may still end");
    }

    proptest! {
        #[test]
        fn an_encoded_message_decodes_to_the_same_message(
            one in any::<bool>(),
            command in "[a-z_-]{1,20}",
            fields in prop::collection::vec(("[a-z_]{1,9}", "[ -~]{0,40}"), 0..5),
        ) {
            let version = if one { WireVersion::One } else { WireVersion::Two };
            let borrowed: Vec<_> =
                fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let expected = Message { version, command: command.clone(), fields: fields.clone() };
            prop_assert_eq!(all(&encode(version, &command, &borrowed)), Ok(vec![expected]));
        }
    }
}
