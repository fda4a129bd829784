//! Errors, with the problem, its location and the expected form.

use std::fmt;

/// An error in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The file.
    pub file: String,
    /// The line, from 1. 0 means the file as a whole.
    pub line: usize,
    /// The wrong word, or an empty string.
    pub word: String,
    /// The problem, and the expected form.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.word.is_empty() {
            write!(f, ": {}", printable(&self.word))?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ParseError {}

/// An error in an expression over hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpressionError {
    /// The byte offset in the expression at which the error begins.
    pub offset: usize,
    /// The wrong word, the problem, and the expected form.
    pub message: String,
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExpressionError {}

/// The longest word that a message quotes in full.
const MAX_QUOTED_CHARS: usize = 80;

/// Makes a word printable on one line of a terminal: replaces control characters and shortens it.
pub(crate) fn printable(word: &str) -> String {
    let clean = |letter: char| if letter.is_control() { '?' } else { letter };
    if word.chars().nth(MAX_QUOTED_CHARS).is_none() {
        return word.chars().map(clean).collect();
    }
    word.chars().take(MAX_QUOTED_CHARS - 3).map(clean).chain("...".chars()).collect()
}

/// The first names of a list, and the number of the remaining names.
pub(crate) fn join_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MAX_LISTED_NAMES: usize = 8;
    let mut names = names.into_iter();
    let mut text =
        names.by_ref().take(MAX_LISTED_NAMES).map(printable).collect::<Vec<_>>().join(", ");
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
    fn an_error_names_file_line_and_word_as_compilers_do() {
        let error = ParseError {
            file: "etc/db".into(),
            line: 7,
            word: "cors=8\u{1b}".into(),
            message: "unknown".into(),
        };
        assert_eq!(error.to_string(), "etc/db:7: cors=8?: unknown");
        let whole = ParseError { line: 0, word: String::new(), ..error };
        assert_eq!(whole.to_string(), "etc/db: unknown");
    }

    #[test]
    fn long_words_and_lists_are_cut() {
        assert_eq!(printable(&"x".repeat(80)).len(), 80);
        assert_eq!(printable(&"x".repeat(81)).len(), 80);
        assert_eq!(join_names(["a"; 10]), "a, a, a, a, a, a, a, a and 2 more");
    }
}
