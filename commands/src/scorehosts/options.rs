//! The options of `scorehosts`.

use std::ffi::OsString;
use std::path::PathBuf;

use score_hosts::near::nearest;

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

const NAMES: &[&str] =
    &["i", "r", "s", "d", "l", "q", "g", "group", "json", "check", "file", "defects", "help"];

impl Options {
    /// Reads the words behind the command's name; two minuses do as well as one.
    ///
    /// # Errors
    /// The word that is wrong, and what would be right.
    pub fn parse(words: &[OsString]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut which = None;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let Some(name) = text.strip_prefix('-') else {
                options.set_group(&text)?;
                continue;
            };
            let name = name.strip_prefix('-').unwrap_or(name);
            let mut value = || words.next().ok_or_else(|| format!("{text}: its value is missing"));
            match name {
                "i" | "r" | "s" | "d" => {
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
                "l" => options.lines = true,
                "q" => options.quiet = true,
                "json" => options.json = true,
                "check" => options.check = true,
                "help" | "h" => options.help = true,
                "g" | "group" => {
                    let group = value()?.to_string_lossy().into_owned();
                    options.set_group(&group)?;
                }
                "file" => options.file = Some(value()?.into()),
                "defects" => options.defects = Some(value()?.into()),
                _ => {
                    let near = nearest(name, NAMES.iter().copied().filter(|name| name.len() > 1));
                    let hint = near.map(|near| format!("; did you mean -{near}?"));
                    return Err(format!("{text}: unknown option{}", hint.unwrap_or_default()));
                }
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
