//! The preprocessor of `scorehosts.db`, like cpp(1) (score_doc 5.6 to 7, scorehosts.db). It handles
//! comments, lines continued after a backslash, macros, conditions and included files. Its result
//! is words with their locations.
//!
//! It supports a subset of cpp: `#if` accepts numbers and `defined`. The operator `#` and
//! predefined macros are missing.

use crate::database_file::{MAX_DATABASE_LEN, ReadFile};
use crate::error::ParseError;
use crate::macros::{Macro, Macros, is_name};
use crate::name_suggestion::nearest;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A word of a file and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub text: String,
    /// The file that contains it.
    pub file: Rc<str>,
    /// The line in the file, from 1.
    pub line: usize,
}

impl Word {
    /// An error about this word or a part of it.
    pub fn error(&self, part: &str, what: impl Into<String>) -> ParseError {
        let (file, word) = (self.file.to_string(), part.to_owned());
        ParseError { file, line: self.line, word, message: what.into() }
    }
}

/// The largest depth of included files.
const MAX_INCLUDE_DEPTH: usize = 16;
/// The largest number of inclusions in one database.
const MAX_INCLUDES: usize = 1024;

const DIRECTIVES: &[&str] =
    &["define", "undef", "include", "ifdef", "ifndef", "if", "elif", "else", "endif", "error"];

/// Returns the words of each line.
///
/// # Errors
/// The first error in the file or in one that it includes.
pub fn lines(file: &str, bytes: &[u8], read: ReadFile<'_>) -> Result<Vec<Vec<Word>>, ParseError> {
    let mut state = State {
        macros: Macros::new(MAX_DATABASE_LEN as usize),
        lines: Vec::new(),
        include_count: 0,
        read,
    };
    state.process_file(Path::new(file), bytes, 0)?;
    Ok(state.lines)
}

struct State<'a> {
    macros: Macros,
    lines: Vec<Vec<Word>>,
    include_count: usize,
    read: ReadFile<'a>,
}

/// A line without comments, joined from continued lines.
struct LogicalLine {
    text: String,
    /// The byte offset at which the text of each line begins, and the line number.
    line_starts: Vec<(usize, usize)>,
}

impl LogicalLine {
    fn line_at(&self, offset: usize) -> usize {
        let before = self.line_starts.iter().take_while(|(start, _)| *start <= offset);
        before.last().map_or(0, |(_, line)| *line)
    }
}

/// One open `#if`.
struct Condition {
    line: usize,
    /// Whether the current lines are used.
    is_active: bool,
    /// Whether a branch was already used, or no branch may be used.
    is_decided: bool,
    /// Whether an `#else` was found.
    has_else: bool,
}

impl State<'_> {
    fn process_file(&mut self, path: &Path, bytes: &[u8], depth: usize) -> Result<(), ParseError> {
        let file: Rc<str> = path.to_string_lossy().into();
        let error_at = |line: usize, word: &str, what: String| ParseError {
            file: file.to_string(),
            line,
            word: word.to_owned(),
            message: what,
        };
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            error_at(line + 1, "", "not valid UTF-8 text".into())
        })?;
        let mut conditions: Vec<Condition> = Vec::new();
        for line in logical_lines(text).map_err(|(line, what)| error_at(line, "", what))? {
            let is_active = conditions.iter().all(|condition| condition.is_active);
            if let Some(directive) = line.text.trim_start().strip_prefix('#') {
                let number = line.line_starts.first().map_or(0, |(_, number)| *number);
                let (name, rest) = split_name(directive.trim());
                let parse_error = |what: String| error_at(number, &format!("#{name}"), what);
                if self
                    .on_conditional(name, rest, is_active, number, &mut conditions)
                    .map_err(parse_error)?
                {
                    continue;
                }
                if is_active {
                    if name == "include" {
                        self.include(path, rest, number, depth)?;
                    } else {
                        self.directive(name, rest).map_err(parse_error)?;
                    }
                }
            } else if is_active {
                let mut words: Vec<Word> = Vec::new();
                let result = self.macros.words(&line.text);
                for (text, offset) in result
                    .map_err(|(offset, name, what)| error_at(line.line_at(offset), &name, what))?
                {
                    words.push(Word { text, file: file.clone(), line: line.line_at(offset) });
                }
                if !words.is_empty() {
                    self.lines.push(words);
                }
            }
        }
        match conditions.last() {
            Some(open) => Err(error_at(open.line, "#if", "its #endif is missing".into())),
            None => Ok(()),
        }
    }

    /// Handles a conditional directive; returns whether it was one.
    fn on_conditional(
        &self,
        name: &str,
        rest: &str,
        is_active: bool,
        line: usize,
        conditions: &mut Vec<Condition>,
    ) -> Result<bool, String> {
        match name {
            "if" | "ifdef" | "ifndef" => {
                let holds = is_active && self.holds(name, rest)?;
                conditions.push(Condition {
                    line,
                    is_active: holds,
                    is_decided: holds || !is_active,
                    has_else: false,
                });
            }
            "elif" | "else" => {
                let missing = || "there is no #if before it".to_owned();
                let done = conditions.last().ok_or_else(missing)?.is_decided;
                let holds = !done && (name == "else" || self.holds("if", rest)?);
                let open = conditions.last_mut().ok_or_else(missing)?;
                if open.has_else {
                    return Err("it follows #else".into());
                }
                (open.is_active, open.is_decided, open.has_else) =
                    (holds, done || holds, name == "else");
            }
            "endif" => {
                conditions.pop().ok_or("there is no #if before it")?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn holds(&self, name: &str, rest: &str) -> Result<bool, String> {
        let rest = rest.trim();
        let defined = |name: &str| {
            let name = name.trim();
            if is_name(name) {
                Ok(self.macros.get(name).is_some())
            } else {
                Err(format!("'{}' is not a valid name of a macro", crate::error::printable(name)))
            }
        };
        match name {
            "ifdef" => return defined(rest),
            "ifndef" => return defined(rest).map(|known| !known),
            _ => {}
        }
        let (negated, term) = match rest.strip_prefix('!') {
            Some(term) => (true, term.trim()),
            None => (false, rest),
        };
        let value = if let Some(inside) = term.strip_prefix("defined") {
            let inside = inside.trim();
            let bare = inside.strip_prefix('(').and_then(|inside| inside.strip_suffix(')'));
            defined(bare.unwrap_or(inside))?
        } else {
            let text = match self.macros.get(term) {
                Some(known) => known.text(),
                None => term,
            };
            let number = text.trim().parse::<u64>();
            number.map_err(|_| "a number, defined(NAME) or !defined(NAME) is expected")? != 0
        };
        Ok(value != negated)
    }

    fn directive(&mut self, name: &str, rest: &str) -> Result<(), String> {
        match name {
            "define" => {
                let (name, parsed) = Macro::parse(rest)?;
                self.macros.define(name, parsed)
            }
            "undef" if is_name(rest.trim()) => {
                self.macros.undefine(rest.trim());
                Ok(())
            }
            "undef" => Err("the name of a macro is expected".into()),
            "error" => Err(crate::error::printable(rest.trim())),
            "" => Ok(()),
            _ => {
                let suggestion = nearest(name, DIRECTIVES.iter().copied());
                let hint = suggestion.map_or_else(
                    || "comments are written in /* */ or after //".to_owned(),
                    |near| format!("did you mean #{near}?"),
                );
                Err(format!("unknown directive; {hint}"))
            }
        }
    }

    fn include(
        &mut self,
        from: &Path,
        rest: &str,
        line: usize,
        depth: usize,
    ) -> Result<(), ParseError> {
        let rest = rest.trim();
        let parse_error = |what: String| ParseError {
            file: from.to_string_lossy().into_owned(),
            line,
            word: rest.to_owned(),
            message: what,
        };
        let quoted = rest.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let name = quoted
            .filter(|name| !name.is_empty())
            .ok_or_else(|| parse_error("#include \"FILE\" is expected".into()))?;
        self.include_count += 1;
        if depth >= MAX_INCLUDE_DEPTH || self.include_count > MAX_INCLUDES {
            return Err(parse_error("too many files include each other".into()));
        }
        let path: PathBuf = from.parent().unwrap_or(Path::new("")).join(name);
        let bytes = (self.read)(&path).map_err(|error| parse_error(error.to_string()))?;
        self.macros.charge_budget(bytes.len()).map_err(parse_error)?;
        self.process_file(&path, &bytes, depth + 1)
    }
}

fn split_name(directive: &str) -> (&str, &str) {
    let end = directive.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    directive.split_at(end.unwrap_or(directive.len()))
}

/// Joins continued lines and removes comments.
fn logical_lines(text: &str) -> Result<Vec<LogicalLine>, (usize, String)> {
    let mut lines = Vec::new();
    let mut line = LogicalLine { text: String::new(), line_starts: Vec::new() };
    let mut open_comment_line: Option<usize> = None;
    let mut rest_is_comment = false;
    for (number, raw) in (1..).zip(text.split('\n')) {
        let raw = raw.trim_end();
        if let Some(control) = raw.chars().find(|letter| letter.is_control() && *letter != '\t') {
            return Err((number, format!("control character {:#04x}", u32::from(control))));
        }
        let (content, is_continued) = match raw.strip_suffix('\\') {
            Some(content) => (content, true),
            None => (raw, false),
        };
        line.line_starts.push((line.text.len(), number));
        let mut rest = content;
        while !rest.is_empty() && !rest_is_comment {
            if open_comment_line.is_some() {
                let Some((_, after)) = rest.split_once("*/") else { break };
                (open_comment_line, rest) = (None, after);
                continue;
            }
            let Some(index) = rest.find("//").into_iter().chain(rest.find("/*")).min() else {
                line.text.push_str(rest);
                break;
            };
            line.text.push_str(&rest[..index]);
            line.text.push(' ');
            if rest[index..].starts_with("//") {
                rest_is_comment = true;
            } else {
                open_comment_line = Some(number);
                rest = &rest[index + 2..];
            }
        }
        if is_continued {
            continue;
        }
        rest_is_comment = false;
        if open_comment_line.is_none() {
            let next_line = LogicalLine { text: String::new(), line_starts: Vec::new() };
            lines.push(std::mem::replace(&mut line, next_line));
        }
    }
    if let Some(number) = open_comment_line {
        return Err((number, "a comment begins here and has no end (*/)".into()));
    }
    lines.push(line);
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(path: &Path) -> std::io::Result<Vec<u8>> {
        match path.to_str() {
            Some("etc/more") => Ok(b"#define SPEED speed=500\ninner SPEED\n".to_vec()),
            Some("etc/self") => Ok(b"#include \"self\"\n".to_vec()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    fn words(text: &str) -> Result<String, String> {
        let lines = lines("etc/db", text.as_bytes(), &files).map_err(|error| error.to_string())?;
        let line = |words: Vec<Word>| {
            let words = words.iter().map(|word| format!("{}@{}", word.text, word.line));
            words.collect::<Vec<_>>().join(" ")
        };
        Ok(lines.into_iter().map(line).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn comments_are_removed_and_lines_continue_after_a_backslash() {
        assert_eq!(words("a b=1 // c\nd\r\n").unwrap(), "a@1 b=1@1; d@2");
        assert_eq!(words("a /* x */ b=1\n/* y\n z */ c").unwrap(), "a@1 b=1@1; c@3");
        assert_eq!(words("a \\\n\tb=1 \\ \n c=2\nd").unwrap(), "a@1 b=1@2 c=2@3; d@4");
        assert_eq!(words("a // b \\\n c\nd").unwrap(), "a@1; d@3");
        assert_eq!(words("a/**/b").unwrap(), "a@1 b@1");
        assert_eq!(words("/*/ a */ b").unwrap(), "b@1");
        assert_eq!(words("").unwrap(), "");
    }

    #[test]
    fn conditional_directives_select_lines() {
        let text =
            "#define A\n#ifdef A\na\n#else\nb\n#endif\n#ifndef A\nc\n#endif\n#if 0\nd\n#endif";
        assert_eq!(words(text).unwrap(), "a@3");
        let text = "#if !defined(A)\na\n#elif 1\nb\n#else\nc\n#endif";
        assert_eq!(words(text).unwrap(), "a@2");
        let text = "#if 0\n#if 1\na\n#else\nb\n#endif\n#elif defined A\nc\n#else\nd\n#endif";
        assert_eq!(words(text).unwrap(), "d@10");
        let text = "#define ON 1\n#if ON\na\n#endif\n#undef ON\n#ifdef ON\nb\n#endif";
        assert_eq!(words(text).unwrap(), "a@3");
    }

    #[test]
    fn an_empty_directive_has_no_effect() {
        assert_eq!(words("#\na").unwrap(), "a@2");
    }

    #[test]
    fn included_files_share_macros_and_keep_their_names() {
        let found = lines("etc/db", b"#include \"more\"\nouter SPEED\n", &files).unwrap();
        assert_eq!(&*found[0][1].file, "etc/more");
        assert_eq!((found[1][1].text.as_str(), found[1][1].line), ("speed=500", 2));
    }

    #[test]
    fn the_number_of_included_files_is_bounded() {
        let include = |count: usize| {
            let text = "#include \"empty\"\n".repeat(count);
            lines("db", text.as_bytes(), &|_| Ok(Vec::new())).map_err(|error| error.to_string())
        };
        assert_eq!(include(MAX_INCLUDES), Ok(Vec::new()));
        let error = include(MAX_INCLUDES + 1).unwrap_err();
        assert_eq!(error, "db:1025: \"empty\": too many files include each other");
    }

    #[test]
    fn the_depth_of_included_files_is_bounded() {
        // Each file has its depth as its name, and includes the next file.
        let include_chain = |depth: usize| {
            let read = |path: &Path| {
                let level: usize = path.to_str().unwrap().parse().unwrap();
                let text = format!("#include \"{}\"\n", level + 1);
                Ok(if level < depth { text.into_bytes() } else { b"deepest\n".to_vec() })
            };
            lines("0", b"#include \"1\"\n", &read).map_err(|error| error.to_string())
        };
        assert_eq!(include_chain(MAX_INCLUDE_DEPTH).unwrap()[0][0].text, "deepest");
        let error = include_chain(MAX_INCLUDE_DEPTH + 1).unwrap_err();
        assert_eq!(error, "16:1: \"17\": too many files include each other");
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, expected) in [
            ("a\n#defin B", "etc/db:2: #defin: unknown directive; did you mean #define?"),
            ("# hosts", "etc/db:1: #hosts: unknown directive; comments are written in /* */"),
            ("a\n/* b\nc", "etc/db:2: a comment begins here and has no end"),
            ("#endif", "etc/db:1: #endif: there is no #if before it"),
            ("a\n#ifdef A\n", "etc/db:2: #if: its #endif is missing"),
            ("#if 1\n#else\n#else\n#endif", "etc/db:3: #else: it follows #else"),
            ("#if A > 2\n#endif", "etc/db:1: #if: a number, defined(NAME)"),
            ("#ifdef 2\n#endif", "etc/db:1: #ifdef: '2' is not a valid name of a macro"),
            ("#include <more>", "etc/db:1: <more>: #include \"FILE\" is expected"),
            ("#include \"gone\"", "etc/db:1: \"gone\": "),
            ("#include \"self\"", "etc/self:1: \"self\": too many files include each other"),
            ("#error not yet", "etc/db:1: #error: not yet"),
            ("a \u{1}", "etc/db:1: control character 0x01"),
            ("#undef", "etc/db:1: #undef: the name of a macro is expected"),
        ] {
            let error = words(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let error = lines("db", b"a\nb\xff", &files).unwrap_err();
        assert_eq!(error.to_string(), "db:2: not valid UTF-8 text");
    }
}
