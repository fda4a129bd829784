//! Usage errors: one line that names the faulty word, and a caret under it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use score_proto::exit_code::EXIT_USAGE;

/// The position of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPosition {
    /// In this word of the command line (0 is the first after `scrun`), from this byte on.
    Argument(usize, usize),
    /// In the value of SCORE_OPTIONS, from this byte on.
    ScoreOptions(usize),
    /// No position.
    Unspecified,
}

/// An error that prevents the start of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// One line, without `scrun: ` and without newline.
    pub line: String,
    /// The position of the error.
    pub position: ErrorPosition,
    /// Exit code of scrun.
    pub code: u8,
}

impl StartError {
    /// A usage error at this position, with exit code 2.
    pub fn usage(position: ErrorPosition, line: impl Into<String>) -> Self {
        Self { line: line.into(), position, code: EXIT_USAGE }
    }

    /// An error without a position.
    pub fn plain(code: u8, line: impl Into<String>) -> Self {
        Self { line: line.into(), position: ErrorPosition::Unspecified, code }
    }

    /// The lines after the first one: the words around the error, and the caret. `words` is the
    /// command line without `scrun` itself, `environment` the value of SCORE_OPTIONS.
    pub fn context(&self, words: &[OsString], environment: &OsStr) -> Option<String> {
        match self.position {
            ErrorPosition::Unspecified => None,
            ErrorPosition::ScoreOptions(offset) => {
                let before = format!("SCORE_OPTIONS={}", printable(prefix(environment, offset)));
                let line = format!("SCORE_OPTIONS={}", printable(environment));
                Some(underlined(&line, width(&before)))
            }
            ErrorPosition::Argument(word, offset) => {
                let first = word.saturating_sub(CONTEXT_WORDS).min(words.len());
                let last = (word + CONTEXT_WORDS + 1).min(words.len());
                let mut line = String::from(if first > 0 { "scrun ..." } else { "scrun" });
                let mut column = 0;
                for (index, text) in words.iter().enumerate().take(last).skip(first) {
                    line.push(' ');
                    if index == word {
                        column = width(&line) + width(&printable(prefix(text, offset)));
                    }
                    line.push_str(&printable(text));
                }
                if word >= words.len() {
                    column = width(&line) + 1;
                } else if last < words.len() {
                    line.push_str(" ...");
                }
                Some(underlined(&line, column))
            }
        }
    }
}

/// Number of words that are shown on each side of the faulty one.
const CONTEXT_WORDS: usize = 6;

fn prefix(text: &OsStr, offset: usize) -> &OsStr {
    let bytes = text.as_bytes();
    OsStr::from_bytes(&bytes[..offset.min(bytes.len())])
}

/// Makes a word safe for a terminal. `?` replaces each character that is not printable, so that
/// each character has one column.
pub fn printable(text: &OsStr) -> String {
    text.to_string_lossy()
        .chars()
        .map(|c| if c.is_control() || c == char::REPLACEMENT_CHARACTER { '?' } else { c })
        .collect()
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn underlined(line: &str, column: usize) -> String {
    format!("  {line}\n  {}^", " ".repeat(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_caret_is_under_the_faulty_byte() {
        let error = StartError::usage(ErrorPosition::Argument(1, 2), "x");
        let text = error.context(&words("-a b=c d"), OsStr::new("")).unwrap();
        assert_eq!(text, "  scrun -a b=c d\n             ^");
    }

    #[test]
    fn a_position_after_the_last_word_is_shown_after_it() {
        let error = StartError::usage(ErrorPosition::Argument(1, 0), "x");
        let text = error.context(&words("=="), OsStr::new("")).unwrap();
        assert_eq!(text, "  scrun ==\n           ^");
    }

    #[test]
    fn distant_words_are_left_out() {
        let line = (0..30).map(|n| format!("w{n}")).collect::<Vec<_>>().join(" ");
        let error = StartError::usage(ErrorPosition::Argument(15, 0), "x");
        let text = error.context(&words(&line), OsStr::new("")).unwrap();
        assert!(text.starts_with("  scrun ... w9 w10 "), "{text}");
        assert!(text.contains(" w21 ...\n"), "{text}");
        let (first, second) = text.split_once('\n').unwrap();
        assert_eq!(first.find("w15").unwrap(), second.find('^').unwrap());
    }

    #[test]
    fn control_characters_and_bytes_that_are_no_text_do_not_reach_the_terminal() {
        let word = OsString::from("a\u{1b}[31m");
        let error = StartError::usage(ErrorPosition::Argument(0, 0), "x");
        let text = error.context(&[word], OsStr::new("")).unwrap();
        assert!(!text.contains('\u{1b}'));
    }
}
