//! Parses lines of GDB/MI, as gdb prints them.
//!
//! gdb reads programs and symbols of users, so its output is not trusted. A line is bounded in
//! bytes, in depth and in its number of values. Text that is not MI is an error.

use std::fmt;

use thiserror::Error;

/// Maximum length of a line in bytes.
pub const MAX_MI_LINE_LEN: usize = 1 << 20;

/// Maximum depth of nested lists and tuples.
const MAX_DEPTH: usize = 32;

/// Maximum number of values in a line.
const MAX_VALUES: usize = 1 << 16;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MiRecord {
    /// `^`: the result of a command.
    Result(MiOutcome),
    /// `*`: the process has stopped or runs.
    Exec(MiOutcome),
    /// `+` or `=`: progress, or a change that no command has requested.
    Notice(MiOutcome),
    /// `~` or `@`: text for users.
    Text(String),
    /// `&`: log messages of gdb, including errors.
    Log(String),
    /// gdb waits for a command.
    Prompt,
}

/// The contents of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MiOutcome {
    /// The number of the command.
    pub token: Option<u64>,
    /// The class of the record, such as `done` or `stopped`.
    pub class: String,
    /// The results, in order.
    pub results: Vec<(String, MiValue)>,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MiValue {
    /// A string.
    Text(String),
    /// Named values.
    Tuple(Vec<(String, MiValue)>),
    /// Values, each with a name or without.
    List(Vec<(Option<String>, MiValue)>),
}

/// The reason why a line is not MI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MiError {
    /// The text is not a record.
    #[error("column {0}: not GDB/MI")]
    Syntax(usize),
    /// The line is longer than [`MAX_MI_LINE_LEN`].
    #[error("a line of GDB/MI has more than {MAX_MI_LINE_LEN} bytes")]
    TooLong,
    /// The nesting is too deep, or there are too many values.
    #[error("a line of GDB/MI has more than {MAX_VALUES} values or {MAX_DEPTH} levels")]
    TooMuch,
}

impl MiOutcome {
    /// The value with this name.
    pub fn get(&self, name: &str) -> Option<&MiValue> {
        find(&self.results, name)
    }

    /// The string with this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text()
    }
}

impl MiValue {
    /// The string, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Tuple(_) | Self::List(_) => None,
        }
    }

    /// The value with this name in a tuple.
    pub fn get(&self, name: &str) -> Option<&MiValue> {
        match self {
            Self::Tuple(results) => find(results, name),
            Self::Text(_) | Self::List(_) => None,
        }
    }

    /// The string with this name in a tuple.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text()
    }

    /// The values of a list.
    pub fn items(&self) -> impl Iterator<Item = &MiValue> {
        let items = match self {
            Self::List(items) => items.as_slice(),
            Self::Text(_) | Self::Tuple(_) => &[],
        };
        items.iter().map(|(_, value)| value)
    }
}

fn find<'a>(results: &'a [(String, MiValue)], name: &str) -> Option<&'a MiValue> {
    results.iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// Parses one line, without its newline.
///
/// # Errors
/// See [`MiError`].
pub fn parse_line(line: &[u8]) -> Result<MiRecord, MiError> {
    if line.len() > MAX_MI_LINE_LEN {
        return Err(MiError::TooLong);
    }
    let mut parser = Parser { bytes: line, at: 0, values: 0 };
    if line.trim_ascii_end() == b"(gdb)" {
        return Ok(MiRecord::Prompt);
    }
    let token = parser.token()?;
    let sigil = parser.next()?;
    let record = match (sigil, token) {
        (b'^', _) => MiRecord::Result(parser.outcome(token)?),
        (b'*', _) => MiRecord::Exec(parser.outcome(token)?),
        (b'+' | b'=', _) => MiRecord::Notice(parser.outcome(token)?),
        (b'~' | b'@', None) => MiRecord::Text(parser.string()?),
        (b'&', None) => MiRecord::Log(parser.string()?),
        _ => return Err(MiError::Syntax(0)),
    };
    // Some systems end lines with a carriage return.
    match parser.rest() {
        [] | [b'\r'] => Ok(record),
        _ => Err(parser.error()),
    }
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    values: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    fn error(&self) -> MiError {
        MiError::Syntax(self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Result<u8, MiError> {
        let byte = self.peek().ok_or(self.error())?;
        self.at += 1;
        Ok(byte)
    }

    fn expect(&mut self, byte: u8) -> Result<(), MiError> {
        match self.peek() {
            Some(found) if found == byte => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.error()),
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.expect(byte).is_ok()
    }

    /// Takes the longest run of bytes that satisfy `is_part`. They must be ASCII.
    fn run(&mut self, is_part: impl Fn(u8) -> bool) -> String {
        let len = self.rest().iter().take_while(|byte| is_part(**byte)).count();
        let text = self.rest()[..len].iter().map(|byte| char::from(*byte)).collect();
        self.at += len;
        text
    }

    fn token(&mut self) -> Result<Option<u64>, MiError> {
        match self.run(|byte| byte.is_ascii_digit()).as_str() {
            "" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| MiError::Syntax(0)),
        }
    }

    /// The name of a class or of a value.
    fn name(&mut self) -> Result<String, MiError> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        match self.run(is_part) {
            name if name.is_empty() => Err(self.error()),
            name => Ok(name),
        }
    }

    fn outcome(&mut self, token: Option<u64>) -> Result<MiOutcome, MiError> {
        let class = self.name()?;
        let mut results = Vec::new();
        while self.take(b',') {
            results.push(self.result(0)?);
        }
        Ok(MiOutcome { token, class, results })
    }

    fn result(&mut self, depth: usize) -> Result<(String, MiValue), MiError> {
        let name = self.name()?;
        self.expect(b'=')?;
        Ok((name, self.value(depth)?))
    }

    fn value(&mut self, depth: usize) -> Result<MiValue, MiError> {
        self.values += 1;
        if self.values > MAX_VALUES || depth > MAX_DEPTH {
            return Err(MiError::TooMuch);
        }
        match self.peek() {
            Some(b'"') => Ok(MiValue::Text(self.string()?)),
            Some(b'{') => {
                self.at += 1;
                let mut results = Vec::new();
                while !self.take(b'}') {
                    if !results.is_empty() {
                        self.expect(b',')?;
                    }
                    results.push(self.result(depth + 1)?);
                }
                Ok(MiValue::Tuple(results))
            }
            Some(b'[') => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.take(b']') {
                    if !items.is_empty() {
                        self.expect(b',')?;
                    }
                    items.push(self.item(depth + 1)?);
                }
                Ok(MiValue::List(items))
            }
            _ => Err(self.error()),
        }
    }

    /// A value of a list, with or without a name.
    fn item(&mut self, depth: usize) -> Result<(Option<String>, MiValue), MiError> {
        match self.peek() {
            Some(b'"' | b'{' | b'[') => Ok((None, self.value(depth)?)),
            _ => self.result(depth).map(|(name, value)| (Some(name), value)),
        }
    }

    /// A string in the syntax of C. Bytes that are not UTF-8 are replaced.
    fn string(&mut self) -> Result<String, MiError> {
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => return Ok(String::from_utf8_lossy(&text).into_owned()),
                b'\\' => text.push(self.escape()?),
                byte => text.push(byte),
            }
        }
    }

    fn escape(&mut self) -> Result<u8, MiError> {
        Ok(match self.next()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'v' => 11,
            b'e' => 27,
            digit @ b'0'..=b'7' => {
                let mut code = u32::from(digit - b'0');
                for _ in 0..2 {
                    let Some(digit @ b'0'..=b'7') = self.peek() else { break };
                    self.at += 1;
                    code = code * 8 + u32::from(digit - b'0');
                }
                u8::try_from(code).map_err(|_| self.error())?
            }
            byte @ (b'"' | b'\\' | b'\'' | b'?') => byte,
            _ => return Err(self.error()),
        })
    }
}

/// A string in the syntax of MI, for commands and values.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            '\n' => quoted.push_str("\\n"),
            char if char.is_ascii_control() => {
                quoted.push_str(&format!("\\{:03o}", u32::from(char)));
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

fn write_results(f: &mut fmt::Formatter<'_>, results: &[(String, MiValue)]) -> fmt::Result {
    for (index, (name, value)) in results.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(f, "{comma}{name}={value}")?;
    }
    Ok(())
}

/// The syntax of MI.
impl fmt::Display for MiValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Tuple(results) => {
                f.write_str("{")?;
                write_results(f, results)?;
                f.write_str("}")
            }
            Self::List(items) => {
                f.write_str("[")?;
                for (index, (name, value)) in items.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    match name {
                        Some(name) => write!(f, "{comma}{name}={value}")?,
                        None => write!(f, "{comma}{value}")?,
                    }
                }
                f.write_str("]")
            }
        }
    }
}

/// Entry for fuzzing: any bytes as lines. Writes the values of each accepted line out and parses
/// the result.
///
/// # Panics
/// If the parsed result differs.
pub fn fuzz(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        let (sigil, outcome) = match parse_line(line) {
            Ok(MiRecord::Result(outcome)) => ('^', outcome),
            Ok(MiRecord::Exec(outcome)) => ('*', outcome),
            Ok(MiRecord::Notice(outcome)) => ('=', outcome),
            Ok(MiRecord::Text(_) | MiRecord::Log(_) | MiRecord::Prompt) | Err(_) => continue,
        };
        let token = outcome.token.map(|token| token.to_string()).unwrap_or_default();
        let mut written = format!("{token}{sigil}{}", outcome.class);
        for (name, value) in &outcome.results {
            written.push_str(&format!(",{name}={value}"));
        }
        // Escapes may make the line longer than it was.
        if written.len() <= MAX_MI_LINE_LEN {
            let again = match parse_line(written.as_bytes()) {
                Ok(MiRecord::Result(again) | MiRecord::Exec(again) | MiRecord::Notice(again)) => {
                    again
                }
                other => panic!("{other:?} of {written}"),
            };
            assert_eq!(again, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outcome(line: &str) -> MiOutcome {
        match parse_line(line.as_bytes()) {
            Ok(MiRecord::Result(outcome) | MiRecord::Exec(outcome) | MiRecord::Notice(outcome)) => {
                outcome
            }
            other => panic!("{other:?} of {line}"),
        }
    }

    #[test]
    fn lines_of_gdb_are_read() {
        let stopped = outcome(concat!(
            r#"*stopped,reason="breakpoint-hit",disp="del",bkptno="1",frame={addr="0x0000555","#,
            r#"func="main",args=[{name="argc",value="1"}],file="x.c",line="7"},thread-id="1""#,
        ));
        assert_eq!((stopped.class.as_str(), stopped.token), ("stopped", None));
        let frame = stopped.get("frame").unwrap();
        assert_eq!((frame.text("func"), frame.text("line")), (Some("main"), Some("7")));
        let argument = frame.get("args").unwrap().items().next().unwrap();
        assert_eq!(argument.text("name"), Some("argc"));
        let stack = outcome(r#"12^done,stack=[frame={level="0"},frame={level="1"}]"#);
        assert_eq!((stack.token, stack.get("stack").unwrap().items().count()), (Some(12), 2));
        let text = MiRecord::Text("a \"b\"\n\\ \u{e4}".to_owned());
        assert_eq!(parse_line(br#"~"a \"b\"\n\\ \303\244""#), Ok(text));
        assert_eq!(parse_line(b"(gdb) "), Ok(MiRecord::Prompt));
        assert_eq!(outcome("^running").results, []);
        assert_eq!(outcome("^done,a=[],b={}\r").results.len(), 2);
    }

    #[test]
    fn text_that_is_not_mi_is_refused() {
        let lines = [
            "",
            "hello",
            "^",
            "^done,",
            "^done,a",
            "^done,a=",
            "^done,a=\"",
            "^done,a={b}",
            "^done,a=[\"x\"",
            "^done,a=\"\\q\"",
            "^done,a=\"\\777\"",
            "^done x",
            "~text",
            "1~\"a\"",
            "99999999999999999999^done",
            "^done,a={,b=\"\"}",
            "^done,a=\"x\"y",
        ];
        for line in lines {
            assert!(matches!(parse_line(line.as_bytes()), Err(MiError::Syntax(_))), "{line:?}");
        }
        let deep = format!("^done,a={}", "[".repeat(100_000));
        assert_eq!(parse_line(deep.as_bytes()), Err(MiError::TooMuch));
        let many = format!("^done,a=[{}\"\"]", "\"\",".repeat(MAX_VALUES));
        assert_eq!(parse_line(many.as_bytes()), Err(MiError::TooMuch));
        let long = format!("~\"{}\"", "x".repeat(MAX_MI_LINE_LEN));
        assert_eq!(parse_line(long.as_bytes()), Err(MiError::TooLong));
    }

    proptest! {
        #[test]
        fn no_line_makes_the_parser_panic(
            line in r#"[0-9]{0,3}[\^*=~][a-c]{1,2}(,[a-c]=(["{}\[\],=\\a-c]|"[a-c]"){0,9}){0,3}"#,
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            fuzz(line.as_bytes());
            fuzz(&bytes);
        }

        #[test]
        fn a_quoted_text_reads_as_the_text(text in any::<String>()) {
            let line = format!("^done,value={}", quoted(&text));
            let outcome = outcome(&line);
            prop_assert_eq!(outcome.text("value"), Some(text.as_str()));
        }
    }
}
