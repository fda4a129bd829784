//! The words of a command line: `-name`, `-name VALUE` and others; two minuses do as well as one.

use std::borrow::Cow;
use std::ffi::OsString;
use std::slice::Iter;

use score_hosts::near::nearest;

/// What stands behind a command's name.
#[derive(Debug)]
pub struct Words<'a>(Iter<'a, OsString>);

/// One of them.
#[derive(Debug)]
pub struct Word<'a>(Cow<'a, str>);

impl<'a> Words<'a> {
    /// All of them.
    pub fn new(words: &'a [OsString]) -> Self {
        Self(words.iter())
    }

    /// The value of the option that has just been read.
    ///
    /// # Errors
    /// There is none.
    pub fn value(&mut self, option: &Word<'_>) -> Result<&'a OsString, String> {
        self.0.next().ok_or_else(|| format!("{}: its value is missing", option.0))
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        self.0.next().map(|word| Word(word.to_string_lossy()))
    }
}

impl Word<'_> {
    /// As it stands there.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The option's name, if it is one.
    pub fn option(&self) -> Option<&str> {
        let name = self.0.strip_prefix('-')?;
        Some(name.strip_prefix('-').unwrap_or(name))
    }

    /// Says that there is no such option, and which of `names` may be meant.
    pub fn unknown(&self, names: &[&'static str]) -> String {
        let near = self.option().and_then(|name| nearest(name, names.iter().copied()));
        let hint = near.map(|near| format!("; did you mean -{near}?")).unwrap_or_default();
        format!("{}: unknown option{hint}", self.0)
    }
}
