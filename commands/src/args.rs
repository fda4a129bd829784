//! Reads the words of a command line: `-name`, `-name VALUE` and other words. An option may begin
//! with one or two minus signs.

use std::borrow::Cow;
use std::ffi::OsString;
use std::slice::Iter;

use score_hosts::name_suggestion::nearest;

/// The words after a command's name.
#[derive(Debug)]
pub struct Args<'a>(Iter<'a, OsString>);

/// One word of the command line.
#[derive(Debug)]
pub struct Arg<'a>(Cow<'a, str>);

impl<'a> Args<'a> {
    /// Reads all words of `args`.
    pub fn new(args: &'a [OsString]) -> Self {
        Self(args.iter())
    }

    /// The value of the option that has just been read.
    ///
    /// # Errors
    /// Returns an error if the command line ends here.
    pub fn value(&mut self, option: &Arg<'_>) -> Result<&'a OsString, String> {
        self.0.next().ok_or_else(|| format!("{}: its value is missing", option.0))
    }
}

impl<'a> Iterator for Args<'a> {
    type Item = Arg<'a>;

    fn next(&mut self) -> Option<Arg<'a>> {
        self.0.next().map(|arg| Arg(arg.to_string_lossy()))
    }
}

impl Arg<'_> {
    /// The word as the user has given it.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The name of the option, if the word is one.
    pub fn option(&self) -> Option<&str> {
        let name = self.0.strip_prefix('-')?;
        Some(name.strip_prefix('-').unwrap_or(name))
    }

    /// The message for an unknown option. It suggests the most similar one of `names`.
    pub fn unknown(&self, names: &[&'static str]) -> String {
        let suggestion = self.option().and_then(|name| nearest(name, names.iter().copied()));
        let hint = suggestion
            .map(|suggestion| format!("; did you mean -{suggestion}?"))
            .unwrap_or_default();
        format!("{}: unknown option{hint}", self.0)
    }
}
