//! The parallel job: programs joined by `==` (pipe) and `::` (sequence), with redirects `:=`
//! (standard input), `=:` (standard output), `=::` and `:=:` (append). Manual 1.6.3 and scrun(1),
//! INPUT/OUTPUT REDIRECTION and PARALLEL JOB. If these sections differ, both forms are accepted.
//!
//! If a word consists of backslashes and an operator, the parser removes one backslash and the word
//! is literal. The parser is total and pure: no input makes it panic.

use crate::usage::{ErrorPosition, StartError};
use score_proto::message::{FileName, Input, OsBytes, Output};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// One operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Pipe,
    /// `::`
    Sequence,
    /// `:=`
    Input,
    /// `=:`
    Output,
    /// `=::` or `:=:`
    Append,
}

impl Operator {
    /// Reads a word that is exactly an operator.
    pub fn from_word(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"==" => Self::Pipe,
            b"::" => Self::Sequence,
            b":=" => Self::Input,
            b"=:" => Self::Output,
            b"=::" | b":=:" => Self::Append,
            _ => return None,
        })
    }
}

/// A word that is not an operator, without its escape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The bytes of the word.
    pub text: Vec<u8>,
    /// The number of the word on the command line.
    pub index: usize,
}

/// One program with its redirects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The program and its arguments; at least one word.
    pub words: Vec<Word>,
    /// Standard input.
    pub input: Input,
    /// Standard output.
    pub output: Output,
}

/// The stages of a job, each a pipeline. Neither list is ever empty.
pub type Stages = Vec<Vec<Element>>;

/// Removes one backslash from a word that is an escaped operator.
pub fn unescape(word: &[u8]) -> &[u8] {
    let slashes = word.iter().take_while(|byte| **byte == b'\\').count();
    if slashes > 0 && Operator::from_word(&word[slashes..]).is_some() { &word[1..] } else { word }
}

/// The inverse of [`unescape`]: a literal word as the user must type it.
pub fn escape(word: &[u8]) -> Vec<u8> {
    let slashes = word.iter().take_while(|byte| **byte == b'\\').count();
    let operator = Operator::from_word(&word[slashes..]).is_some();
    let prefix: &[u8] = if operator { b"\\" } else { b"" };
    [prefix, word].concat()
}

/// The element that is being parsed, and the positions of its operators.
#[derive(Default)]
struct PartialElement {
    words: Vec<Word>,
    input: Option<(FileName, usize)>,
    output: Option<(FileName, bool, usize)>,
}

struct Parser<'a> {
    words: &'a [OsString],
    cursor: usize,
    stages: Stages,
    stage: Vec<Element>,
    partial: PartialElement,
}

/// Parses `words[first..]` as a job.
///
/// # Errors
/// The first error, with its position in `words`.
pub fn parse(words: &[OsString], first: usize) -> Result<Stages, StartError> {
    let mut parser = Parser {
        words,
        cursor: first,
        stages: vec![],
        stage: vec![],
        partial: PartialElement::default(),
    };
    if first >= words.len() {
        let line = "no program is named (scrun [-options] program [arguments])";
        return Err(StartError::usage(ErrorPosition::Argument(first, 0), line));
    }
    while let Some(word) = parser.words.get(parser.cursor) {
        parser.parse_word(word)?;
        parser.cursor += 1;
    }
    parser.end_element(None)?;
    parser.end_stage();
    Ok(parser.stages)
}

impl Parser<'_> {
    fn parse_word(&mut self, word: &OsStr) -> Result<(), StartError> {
        let bytes = word.as_bytes();
        match Operator::from_word(bytes) {
            None => self.push_word(bytes),
            Some(Operator::Pipe) => self.end_element(Some("==")),
            Some(Operator::Sequence) => {
                self.end_element(Some("::"))?;
                self.end_stage();
                Ok(())
            }
            Some(redirect) => self.redirect(redirect),
        }
    }

    fn push_word(&mut self, bytes: &[u8]) -> Result<(), StartError> {
        if bytes.is_empty() && self.partial.words.is_empty() {
            return Err(self.error_at_cursor("the name of a program is empty"));
        }
        let text = unescape(bytes).to_vec();
        self.partial.words.push(Word { text, index: self.cursor });
        Ok(())
    }

    fn error_at_cursor(&self, line: impl Into<String>) -> StartError {
        StartError::usage(ErrorPosition::Argument(self.cursor, 0), line)
    }

    /// The word with this index, as typed.
    fn word_at(&self, index: usize) -> String {
        self.words.get(index).map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn redirect(&mut self, operator: Operator) -> Result<(), StartError> {
        let name = self.word_at(self.cursor);
        if self.partial.words.is_empty() {
            return Err(self.error_at_cursor(format!("'{name}': no program in front of it")));
        }
        if operator == Operator::Input && !self.stage.is_empty() {
            let reason = "only the first program of a pipeline can read from a file";
            return Err(self.error_at_cursor(format!("'{name}': {reason}")));
        }
        let earlier = match operator {
            Operator::Input => self.partial.input.as_ref().map(|(_, index)| *index),
            _ => self.partial.output.as_ref().map(|(_, _, index)| *index),
        };
        if let Some(earlier) = earlier {
            let earlier = self.word_at(earlier);
            return Err(
                self.error_at_cursor(format!("'{name}': the program has {earlier} already"))
            );
        }
        let file = self.file_name(&name)?;
        let index = self.cursor;
        self.cursor += 1;
        match operator {
            Operator::Input => self.partial.input = Some((file, index)),
            _ => self.partial.output = Some((file, operator == Operator::Append, index)),
        }
        Ok(())
    }

    /// The word after the current redirect.
    fn file_name(&self, operator: &str) -> Result<FileName, StartError> {
        let word = self.words.get(self.cursor + 1).map(|word| word.as_bytes());
        let Some(word) = word.filter(|word| Operator::from_word(word).is_none()) else {
            return Err(self.error_at_cursor(format!("'{operator}': the file name is missing")));
        };
        let file = FileName(OsBytes(unescape(word).to_vec()));
        if let Some(reason) = file.invalid_reason() {
            let line = format!(
                "'{operator} {}': {reason}",
                crate::usage::printable(OsStr::from_bytes(word))
            );
            return Err(StartError::usage(ErrorPosition::Argument(self.cursor + 1, 0), line));
        }
        Ok(file)
    }

    /// Ends the current program at the operator `terminator`, or at the end of the line.
    fn end_element(&mut self, terminator: Option<&str>) -> Result<(), StartError> {
        if self.partial.words.is_empty() {
            return Err(match terminator {
                Some(operator) => {
                    self.error_at_cursor(format!("'{operator}': no program in front of it"))
                }
                None => {
                    let last = self.cursor.saturating_sub(1);
                    let line = format!("'{}': no program after it", self.word_at(last));
                    StartError::usage(ErrorPosition::Argument(last, 0), line)
                }
            });
        }
        let partial = std::mem::take(&mut self.partial);
        if let (Some("=="), Some((_, _, index))) = (terminator, &partial.output) {
            let name = self.word_at(*index);
            let reason = "only the last program of a pipeline can write to a file";
            return Err(StartError::usage(
                ErrorPosition::Argument(*index, 0),
                format!("'{name}': {reason}"),
            ));
        }
        self.stage.push(Element {
            words: partial.words,
            input: partial.input.map_or(Input::Default, |(file, _)| Input::File(file)),
            output: partial
                .output
                .map_or(Output::Default, |(name, append, _)| Output::File { name, append }),
        });
        Ok(())
    }

    fn end_stage(&mut self) {
        self.stages.push(std::mem::take(&mut self.stage));
    }
}

#[cfg(test)]
mod tests;
