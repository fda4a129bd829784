//! What cpp(1) does to a `scorehosts.db` (score_doc 5.6 to 7, scorehosts.db): comments, lines that
//! go on behind a backslash, macros, conditions and included files. Gives words with their places.
//!
//! Not all of cpp: `#if` knows numbers and `defined`, `#` and macros of the compiler are not there.

use crate::fault::Fault;
use crate::macros::{Macro, Macros};
use crate::near::nearest;
use crate::source::{LARGEST, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A word of a file and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub text: String,
    /// Its file.
    pub file: Rc<str>,
    /// Its line, from 1.
    pub line: usize,
}

impl Word {
    /// This word, or a part of it, is wrong.
    pub fn fault(&self, part: &str, what: impl Into<String>) -> Fault {
        let (file, word) = (self.file.to_string(), part.to_owned());
        Fault { file, line: self.line, word, what: what.into() }
    }
}

/// Files that are included, and included by those.
const DEEPEST: usize = 16;
/// Inclusions in all.
const MOST_FILES: usize = 1024;

const DIRECTIVES: &[&str] =
    &["define", "undef", "include", "ifdef", "ifndef", "if", "elif", "else", "endif", "error"];

/// The words of each line.
///
/// # Errors
/// What is wrong in the file or in one that it includes.
pub fn lines(file: &str, bytes: &[u8], read: Read<'_>) -> Result<Vec<Vec<Word>>, Fault> {
    let mut state =
        State { macros: Macros::new(LARGEST as usize), out: Vec::new(), files: 0, read };
    state.file(Path::new(file), bytes, 0)?;
    Ok(state.out)
}

struct State<'a> {
    macros: Macros,
    out: Vec<Vec<Word>>,
    files: usize,
    read: Read<'a>,
}

/// A line without comments, put together from lines that go on.
struct Logical {
    text: String,
    /// From this byte on it stands in this line.
    starts: Vec<(usize, usize)>,
}

impl Logical {
    fn line_at(&self, offset: usize) -> usize {
        let before = self.starts.iter().take_while(|(start, _)| *start <= offset);
        before.last().map_or(0, |(_, line)| *line)
    }
}

/// One `#if` that is open.
struct Condition {
    line: usize,
    /// Whether the lines now count.
    on: bool,
    /// Whether a branch has counted already, or none may.
    done: bool,
    /// Whether `#else` has been seen.
    last: bool,
}

impl State<'_> {
    fn file(&mut self, path: &Path, bytes: &[u8], depth: usize) -> Result<(), Fault> {
        let file: Rc<str> = path.to_string_lossy().into();
        let at = |line: usize, word: &str, what: String| Fault {
            file: file.to_string(),
            line,
            word: word.to_owned(),
            what,
        };
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            at(line + 1, "", "this is no text (UTF-8 is expected)".into())
        })?;
        let mut conditions: Vec<Condition> = Vec::new();
        for line in logical(text).map_err(|(line, what)| at(line, "", what))? {
            let on = conditions.iter().all(|condition| condition.on);
            if let Some(directive) = line.text.trim_start().strip_prefix('#') {
                let number = line.starts.first().map_or(0, |(_, number)| *number);
                let (name, rest) = split_name(directive.trim());
                let fault = |what: String| at(number, &format!("#{name}"), what);
                if self.conditional(name, rest, on, number, &mut conditions).map_err(fault)? {
                    continue;
                }
                if on {
                    if name == "include" {
                        self.include(path, rest, number, depth)?;
                    } else {
                        self.directive(name, rest).map_err(fault)?;
                    }
                }
            } else if on {
                let mut words: Vec<Word> = Vec::new();
                let found = self.macros.words(&line.text);
                for (text, offset) in
                    found.map_err(|(offset, name, what)| at(line.line_at(offset), &name, what))?
                {
                    words.push(Word { text, file: file.clone(), line: line.line_at(offset) });
                }
                if !words.is_empty() {
                    self.out.push(words);
                }
            }
        }
        match conditions.last() {
            Some(open) => Err(at(open.line, "#if", "its #endif is missing".into())),
            None => Ok(()),
        }
    }

    /// Takes a directive of conditions; whether it was one.
    fn conditional(
        &self,
        name: &str,
        rest: &str,
        on: bool,
        line: usize,
        conditions: &mut Vec<Condition>,
    ) -> Result<bool, String> {
        match name {
            "if" | "ifdef" | "ifndef" => {
                let holds = on && self.holds(name, rest)?;
                conditions.push(Condition { line, on: holds, done: holds || !on, last: false });
            }
            "elif" | "else" => {
                let missing = || "there is no #if before it".to_owned();
                let done = conditions.last().ok_or_else(missing)?.done;
                let holds = !done && (name == "else" || self.holds("if", rest)?);
                let open = conditions.last_mut().ok_or_else(missing)?;
                if open.last {
                    return Err("it stands behind #else".into());
                }
                (open.on, open.done, open.last) = (holds, done || holds, name == "else");
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
                Err(format!("'{}' is no name of a macro", crate::fault::shown(name)))
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
                self.macros.forget(rest.trim());
                Ok(())
            }
            "undef" => Err("the name of a macro is expected".into()),
            "error" => Err(crate::fault::shown(rest.trim())),
            "" => Ok(()),
            _ => {
                let near = nearest(name, DIRECTIVES.iter().copied());
                let hint = near.map_or_else(
                    || "comments stand in /* */ or behind //".to_owned(),
                    |near| format!("did you mean #{near}?"),
                );
                Err(format!("unknown directive; {hint}"))
            }
        }
    }

    fn include(&mut self, from: &Path, rest: &str, line: usize, depth: usize) -> Result<(), Fault> {
        let rest = rest.trim();
        let fault = |what: String| Fault {
            file: from.to_string_lossy().into_owned(),
            line,
            word: rest.to_owned(),
            what,
        };
        let quoted = rest.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let name = quoted
            .filter(|name| !name.is_empty())
            .ok_or_else(|| fault("#include \"FILE\" is expected".into()))?;
        self.files += 1;
        if depth >= DEEPEST || self.files > MOST_FILES {
            return Err(fault("too many files include each other".into()));
        }
        let path: PathBuf = from.parent().unwrap_or(Path::new("")).join(name);
        let bytes = (self.read)(&path).map_err(|error| fault(error.to_string()))?;
        self.macros.spend(bytes.len()).map_err(fault)?;
        self.file(&path, &bytes, depth + 1)
    }
}

fn split_name(directive: &str) -> (&str, &str) {
    let end = directive.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    directive.split_at(end.unwrap_or(directive.len()))
}

/// Whether a word can name a macro.
pub(crate) fn is_name(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Joins lines, drops comments.
fn logical(text: &str) -> Result<Vec<Logical>, (usize, String)> {
    let mut lines = Vec::new();
    let mut line = Logical { text: String::new(), starts: Vec::new() };
    let mut block: Option<usize> = None;
    let mut rest_is_comment = false;
    for (number, raw) in (1..).zip(text.split('\n')) {
        let raw = raw.trim_end();
        if let Some(odd) = raw.chars().find(|letter| letter.is_control() && *letter != '\t') {
            return Err((number, format!("control character {:#04x}", u32::from(odd))));
        }
        let (content, goes_on) = match raw.strip_suffix('\\') {
            Some(content) => (content, true),
            None => (raw, false),
        };
        line.starts.push((line.text.len(), number));
        let mut rest = content;
        while !rest.is_empty() && !rest_is_comment {
            if block.is_some() {
                let Some((_, behind)) = rest.split_once("*/") else { break };
                (block, rest) = (None, behind);
                continue;
            }
            let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() else {
                line.text.push_str(rest);
                break;
            };
            line.text.push_str(&rest[..at]);
            line.text.push(' ');
            if rest[at..].starts_with("//") {
                rest_is_comment = true;
            } else {
                block = Some(number);
                rest = &rest[at + 2..];
            }
        }
        if goes_on {
            continue;
        }
        rest_is_comment = false;
        if block.is_none() {
            let whole = Logical { text: String::new(), starts: Vec::new() };
            lines.push(std::mem::replace(&mut line, whole));
        }
    }
    if let Some(number) = block {
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
        let lines = lines("etc/db", text.as_bytes(), &files).map_err(|fault| fault.to_string())?;
        let line = |words: Vec<Word>| {
            let words = words.iter().map(|word| format!("{}@{}", word.text, word.line));
            words.collect::<Vec<_>>().join(" ")
        };
        Ok(lines.into_iter().map(line).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn comments_vanish_and_lines_go_on_behind_a_backslash() {
        assert_eq!(words("a b=1 // c\nd\r\n").unwrap(), "a@1 b=1@1; d@2");
        assert_eq!(words("a /* x */ b=1\n/* y\n z */ c").unwrap(), "a@1 b=1@1; c@3");
        assert_eq!(words("a \\\n\tb=1 \\ \n c=2\nd").unwrap(), "a@1 b=1@2 c=2@3; d@4");
        assert_eq!(words("a // b \\\n c\nd").unwrap(), "a@1; d@3");
        assert_eq!(words("a/**/b").unwrap(), "a@1 b@1");
        assert_eq!(words("").unwrap(), "");
    }

    #[test]
    fn conditions_choose_lines() {
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
    fn included_files_share_macros_and_keep_their_names() {
        let found = lines("etc/db", b"#include \"more\"\nouter SPEED\n", &files).unwrap();
        assert_eq!(&*found[0][1].file, "etc/more");
        assert_eq!((found[1][1].text.as_str(), found[1][1].line), ("speed=500", 2));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, expected) in [
            ("a\n#defin B", "etc/db:2: #defin: unknown directive; did you mean #define?"),
            ("# hosts", "etc/db:1: #hosts: unknown directive; comments stand in /* */"),
            ("a\n/* b\nc", "etc/db:2: a comment begins here and has no end"),
            ("#endif", "etc/db:1: #endif: there is no #if before it"),
            ("a\n#ifdef A\n", "etc/db:2: #if: its #endif is missing"),
            ("#if 1\n#else\n#else\n#endif", "etc/db:3: #else: it stands behind #else"),
            ("#if A > 2\n#endif", "etc/db:1: #if: a number, defined(NAME)"),
            ("#ifdef 2\n#endif", "etc/db:1: #ifdef: '2' is no name of a macro"),
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
        assert_eq!(error.to_string(), "db:2: this is no text (UTF-8 is expected)");
    }
}
