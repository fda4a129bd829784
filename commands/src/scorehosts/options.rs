//! The options of `scorehosts`.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::words::Words;

/// Which hosts of a set are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// Those in order, spares in the places of the others (`-r`).
    #[default]
    InOrder,
    /// All (`-i`).
    All,
    /// All, and their spares (`-s`).
    WithSpares,
    /// Those out of order (`-d`).
    Defects,
}

/// What stands on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The expression.
    pub group: Option<String>,
    /// `-i`, `-r`, `-s`, `-d`.
    pub which: Which,
    /// `-l`.
    pub lines: bool,
    /// `-q`.
    pub quiet: bool,
    /// `-json`.
    pub json: bool,
    /// `-check`.
    pub check: bool,
    /// `-help`.
    pub help: bool,
    /// `-file FILE`.
    pub file: Option<PathBuf>,
    /// `-defects FILE`.
    pub defects: Option<PathBuf>,
}

/// Those that have more than a letter.
const NAMES: &[&str] = &["group", "json", "check", "file", "defects", "help"];

impl Options {
    /// Reads the words behind the command's name.
    ///
    /// # Errors
    /// The word that is wrong, and what would be right.
    pub fn parse(words: &[OsString]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut which = None;
        let mut words = Words::new(words);
        while let Some(word) = words.next() {
            let mut value = || words.value(&word);
            match word.option() {
                None => options.set_group(word.text())?,
                Some(name @ ("i" | "r" | "s" | "d")) => {
                    if let Some(other) = which.replace(name.to_owned()).filter(|one| one != name) {
                        return Err(format!("-{other} and -{name} exclude each other"));
                    }
                    options.which = match name {
                        "i" => Which::All,
                        "s" => Which::WithSpares,
                        "d" => Which::Defects,
                        _ => Which::InOrder,
                    };
                }
                Some("l") => options.lines = true,
                Some("q") => options.quiet = true,
                Some("json") => options.json = true,
                Some("check") => options.check = true,
                Some("help" | "h") => options.help = true,
                Some("g" | "group") => options.set_group(&value()?.to_string_lossy())?,
                Some("file") => options.file = Some(value()?.into()),
                Some("defects") => options.defects = Some(value()?.into()),
                Some(_) => return Err(word.unknown(NAMES)),
            }
        }
        Ok(options)
    }

    fn set_group(&mut self, group: &str) -> Result<(), String> {
        match self.group.replace(group.to_owned()) {
            None => Ok(()),
            Some(other) => {
                Err(format!("{group}: {other} stands before it ({other}+{group} is both)"))
            }
        }
    }
}
