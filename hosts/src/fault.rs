//! Errors: what is wrong, where it stands, and what would be right.

use std::fmt;

/// Something wrong in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 when the file as a whole is meant.
    pub line: usize,
    /// The word at fault; empty when there is none.
    pub word: String,
    /// What is wrong with it, and what would be right.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.word.is_empty() {
            write!(f, ": {}", shown(&self.word))?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Fault {}

/// Something wrong in an expression over hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpressionFault {
    /// The byte of the expression from which on it is wrong.
    pub at: usize,
    /// The word at fault, what is wrong with it, and what would be right.
    pub what: String,
}

impl fmt::Display for ExpressionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for ExpressionFault {}

/// The longest word that a message repeats whole.
const LONGEST: usize = 80;

/// A word fit for a terminal and a line: nothing unprintable, not too long.
pub(crate) fn shown(word: &str) -> String {
    let clean = |letter: char| if letter.is_control() { '?' } else { letter };
    if word.chars().nth(LONGEST).is_none() {
        return word.chars().map(clean).collect();
    }
    word.chars().take(LONGEST - 3).map(clean).chain("...".chars()).collect()
}

/// The names, as many as fit in a line.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MOST: usize = 8;
    let mut names = names.into_iter();
    let mut text = names.by_ref().take(MOST).map(shown).collect::<Vec<_>>().join(", ");
    let more = names.count();
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_file_line_and_word_as_compilers_do() {
        let fault = Fault {
            file: "etc/db".into(),
            line: 7,
            word: "cors=8\u{1b}".into(),
            what: "unknown".into(),
        };
        assert_eq!(fault.to_string(), "etc/db:7: cors=8?: unknown");
        let whole = Fault { line: 0, word: String::new(), ..fault };
        assert_eq!(whole.to_string(), "etc/db: unknown");
    }

    #[test]
    fn long_words_and_lists_are_cut() {
        assert_eq!(shown(&"x".repeat(80)).len(), 80);
        assert_eq!(shown(&"x".repeat(81)).len(), 80);
        assert_eq!(listed(["a"; 10]), "a, a, a, a, a, a, a, a and 2 more");
    }
}
