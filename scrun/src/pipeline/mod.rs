//! The parallel job: programs joined by `==` (pipe) and `::` (sequence), with redirects `:=`
//! (standard input), `=:` (standard output), `=::` and `:=:` (append). Manual 1.6.3 and
//! scrun(1), INPUT/OUTPUT REDIRECTION and PARALLEL JOB; where they differ both are accepted.
//!
//! A word that is an operator behind one or more backslashes loses one of them and is literal.
//! Total and pure: no input makes it panic.

use crate::usage::{Place, Refusal};
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

/// A word that is no operator, without its escape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// Its bytes.
    pub text: Vec<u8>,
    /// Its number on the command line.
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

/// The stages of a job, each a pipeline; neither list is ever empty.
pub type Stages = Vec<Vec<Element>>;

/// Takes one backslash from a word that is an escaped operator.
pub fn unescape(word: &[u8]) -> &[u8] {
    let slashes = word.iter().take_while(|byte| **byte == b'\\').count();
    if slashes > 0 && Operator::from_word(&word[slashes..]).is_some() { &word[1..] } else { word }
}

/// The opposite of [`unescape`]: how a literal word has to be written.
pub fn escape(word: &[u8]) -> Vec<u8> {
    let slashes = word.iter().take_while(|byte| **byte == b'\\').count();
    let operator = Operator::from_word(&word[slashes..]).is_some();
    let lead: &[u8] = if operator { b"\\" } else { b"" };
    [lead, word].concat()
}

/// What is being read, and where its operators stand.
#[derive(Default)]
struct Open {
    words: Vec<Word>,
    input: Option<(FileName, usize)>,
    output: Option<(FileName, bool, usize)>,
}

struct Parser<'a> {
    words: &'a [OsString],
    next: usize,
    stages: Stages,
    stage: Vec<Element>,
    open: Open,
}

/// Reads `words[first..]` as a job.
///
/// # Errors
/// What the user has to mend, with its place in `words`.
pub fn parse(words: &[OsString], first: usize) -> Result<Stages, Refusal> {
    let mut parser =
        Parser { words, next: first, stages: vec![], stage: vec![], open: Open::default() };
    if first >= words.len() {
        let line = "no program is named (scrun [-options] program [arguments])";
        return Err(Refusal::usage(Place::Word(first, 0), line));
    }
    while let Some(word) = parser.words.get(parser.next) {
        parser.word(word)?;
        parser.next += 1;
    }
    parser.end_element(None)?;
    parser.end_stage();
    Ok(parser.stages)
}

impl Parser<'_> {
    fn word(&mut self, word: &OsStr) -> Result<(), Refusal> {
        let bytes = word.as_bytes();
        match Operator::from_word(bytes) {
            None => self.literal(bytes),
            Some(Operator::Pipe) => self.end_element(Some("==")),
            Some(Operator::Sequence) => {
                self.end_element(Some("::"))?;
                self.end_stage();
                Ok(())
            }
            Some(redirect) => self.redirect(redirect),
        }
    }

    fn literal(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        if bytes.is_empty() && self.open.words.is_empty() {
            return Err(self.here("the name of a program is empty"));
        }
        let text = unescape(bytes).to_vec();
        self.open.words.push(Word { text, index: self.next });
        Ok(())
    }

    fn here(&self, line: impl Into<String>) -> Refusal {
        Refusal::usage(Place::Word(self.next, 0), line)
    }

    /// The operator at hand, as typed.
    fn name(&self, index: usize) -> String {
        self.words.get(index).map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn redirect(&mut self, operator: Operator) -> Result<(), Refusal> {
        let name = self.name(self.next);
        if self.open.words.is_empty() {
            return Err(self.here(format!("'{name}': no program stands before it")));
        }
        if operator == Operator::Input && !self.stage.is_empty() {
            let why = "only the first program of a pipeline can read from a file";
            return Err(self.here(format!("'{name}': {why}")));
        }
        let earlier = match operator {
            Operator::Input => self.open.input.as_ref().map(|(_, index)| *index),
            _ => self.open.output.as_ref().map(|(_, _, index)| *index),
        };
        if let Some(earlier) = earlier {
            let earlier = self.name(earlier);
            return Err(self.here(format!("'{name}': the program has {earlier} already")));
        }
        let file = self.file_name(&name)?;
        let index = self.next;
        self.next += 1;
        match operator {
            Operator::Input => self.open.input = Some((file, index)),
            _ => self.open.output = Some((file, operator == Operator::Append, index)),
        }
        Ok(())
    }

    /// The word after the redirect at hand.
    fn file_name(&self, operator: &str) -> Result<FileName, Refusal> {
        let word = self.words.get(self.next + 1).map(|word| word.as_bytes());
        let Some(word) = word.filter(|word| Operator::from_word(word).is_none()) else {
            return Err(self.here(format!("'{operator}': the file name is missing")));
        };
        let file = FileName(OsBytes(unescape(word).to_vec()));
        if let Some(fault) = file.fault() {
            let line =
                format!("'{operator} {}': {fault}", crate::usage::shown(OsStr::from_bytes(word)));
            return Err(Refusal::usage(Place::Word(self.next + 1, 0), line));
        }
        Ok(file)
    }

    /// Ends the program at hand at the operator `by`, or at the end of the line.
    fn end_element(&mut self, by: Option<&str>) -> Result<(), Refusal> {
        if self.open.words.is_empty() {
            return Err(match by {
                Some(operator) => self.here(format!("'{operator}': no program stands before it")),
                None => {
                    let last = self.next.saturating_sub(1);
                    let line = format!("'{}': no program stands after it", self.name(last));
                    Refusal::usage(Place::Word(last, 0), line)
                }
            });
        }
        let open = std::mem::take(&mut self.open);
        if let (Some("=="), Some((_, _, index))) = (by, &open.output) {
            let name = self.name(*index);
            let why = "only the last program of a pipeline can write to a file";
            return Err(Refusal::usage(Place::Word(*index, 0), format!("'{name}': {why}")));
        }
        self.stage.push(Element {
            words: open.words,
            input: open.input.map_or(Input::Default, |(file, _)| Input::File(file)),
            output: open
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
