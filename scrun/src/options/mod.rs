//! The options of scrun: `-key=value,key,...` words before the program, then the options of
//! SCORE_OPTIONS. The leftmost of equal keys takes effect (manual, scrun(1), GENERAL FORMAT).
//!
//! The parser is total: no input makes it panic, and it rejects invalid input with a position.

pub use score_hosts::name_suggestion;
pub mod table;
pub mod value;

use crate::usage::{ErrorPosition, StartError};
use score_proto::message::{Level, OsBytes};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use table::{Support, ValueArity};

/// One option of the command line or SCORE_OPTIONS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionArg {
    /// The name of the option.
    pub key: String,
    /// The value of the option, if there was a `=`.
    pub value: Option<String>,
    /// The position of the option, for error messages.
    pub position: ErrorPosition,
}

/// All given options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScrunOptions {
    /// The leftmost option comes first. The options of SCORE_OPTIONS come last.
    pub given: Vec<OptionArg>,
}

impl OptionArg {
    /// The position of a byte of the value.
    pub fn in_value(&self, offset: usize) -> ErrorPosition {
        let key_len_and_offset = self.key.len() + 1 + offset;
        match self.position {
            ErrorPosition::Argument(word, start) => {
                ErrorPosition::Argument(word, start + key_len_and_offset)
            }
            ErrorPosition::ScoreOptions(start) => {
                ErrorPosition::ScoreOptions(start + key_len_and_offset)
            }
            ErrorPosition::Unspecified => ErrorPosition::Unspecified,
        }
    }
}

/// The amount of statistics that `stat` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistics {
    /// No statistics.
    Off,
    /// A summary.
    Summary,
    /// The summary and a line for every node.
    Detail,
}

impl ScrunOptions {
    /// Parses the options in front of the program, and the value of SCORE_OPTIONS. Also returns
    /// the number of words in front of the program.
    ///
    /// # Errors
    /// The first invalid option, with its position.
    pub fn parse(words: &[OsString], environment: &OsStr) -> Result<(Self, usize), StartError> {
        let mut options = Self::default();
        let mut word_count = 0;
        while let Some(word) = words.get(word_count) {
            let Some(list) = word.as_bytes().strip_prefix(b"-") else { break };
            let index = word_count;
            if let Some(name) = word_option(list) {
                word_count += options.add_word_option(name, &words[index..], index)?;
                continue;
            }
            options.add(list, "-", |at| ErrorPosition::Argument(index, at + 1))?;
            word_count += 1;
        }
        options.add_environment(environment)?;
        Ok((options, word_count))
    }

    /// Adds an option that occupies words of its own, and its value. Returns the number of words.
    fn add_word_option(
        &mut self,
        name: &'static str,
        words: &[OsString],
        index: usize,
    ) -> Result<usize, StartError> {
        let word = words[0].as_bytes();
        let (value, word_count, value_at) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (Some(&word[at + 1..]), 1, (index, at + 1)),
            None => (words.get(1).map(|next| next.as_bytes()), 2, (index + 1, 0)),
        };
        let name_at = ErrorPosition::Argument(index, 0);
        let refuse = |at, line: String| Err(StartError::usage(at, format!("-{line}")));
        let value = match value.map(std::str::from_utf8) {
            Some(Ok(value)) => Some(value),
            Some(Err(_)) => return refuse(name_at, format!("{name}: the value is not UTF-8 text")),
            None => None,
        };
        if let Err((_, line)) = check(name, value) {
            let at = match value {
                Some(_) => ErrorPosition::Argument(value_at.0, value_at.1),
                None => name_at,
            };
            return refuse(at, line);
        }
        let value = value.map(str::to_owned);
        self.given.push(OptionArg { key: name.to_owned(), value, position: name_at });
        Ok(word_count)
    }

    fn add_environment(&mut self, environment: &OsStr) -> Result<(), StartError> {
        let list = environment.as_bytes();
        if list.is_empty() {
            return Ok(());
        }
        if let Some(index) = list.iter().position(u8::is_ascii_whitespace) {
            let line = "SCORE_OPTIONS: contains a blank";
            return Err(StartError::usage(ErrorPosition::ScoreOptions(index), line));
        }
        if list[0] == b'-' {
            let line = "SCORE_OPTIONS: options here begin without a minus";
            return Err(StartError::usage(ErrorPosition::ScoreOptions(0), line));
        }
        self.add(list, "SCORE_OPTIONS: ", ErrorPosition::ScoreOptions)
    }

    /// Adds a comma-separated list. Error messages put `prefix` in front of a name. `position`
    /// gives the position of a byte of the list.
    fn add(
        &mut self,
        list: &[u8],
        prefix: &str,
        position: impl Fn(usize) -> ErrorPosition,
    ) -> Result<(), StartError> {
        let mut item_start = 0;
        for item in list.split(|byte| *byte == b',') {
            let refuse = |offset: usize, line: String| {
                let is_named = prefix != "-" || !matches!(item.first(), None | Some(b'='));
                let prefix = if is_named { prefix } else { "" };
                Err(StartError::usage(position(item_start + offset), format!("{prefix}{line}")))
            };
            let Ok(text) = std::str::from_utf8(item) else {
                return refuse(0, "...: an option is not UTF-8 text".into());
            };
            let (key, value) = match text.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (text, None),
            };
            if let Err((offset, line)) = check(key, value) {
                return refuse(offset, line);
            }
            let value = value.map(str::to_owned);
            self.given.push(OptionArg { key: key.into(), value, position: position(item_start) });
            item_start += item.len() + 1;
        }
        Ok(())
    }

    /// The variables of the processes of the job (`-x`), leftmost first.
    pub fn rank_environment(&self) -> Vec<OsBytes> {
        let given = self.given.iter().filter(|given| given.key == "x");
        given.filter_map(|given| Some(OsBytes(given.value.clone()?.into_bytes()))).collect()
    }

    /// The leftmost option with this name.
    pub fn get(&self, key: &str) -> Option<&OptionArg> {
        self.given.iter().find(|given| given.key == key)
    }

    fn either(&self, one: &str, other: &str) -> Option<&OptionArg> {
        self.given.iter().find(|given| given.key == one || given.key == other)
    }

    /// Whether the command line chooses the hosts of the job. A scout session is then not used.
    pub fn chooses_hosts(&self) -> bool {
        let chooses =
            |given: &&OptionArg| ["group", "file", "scored"].contains(&given.key.as_str());
        self.given
            .iter()
            .filter(chooses)
            .any(|given| matches!(given.position, ErrorPosition::Argument(..)))
    }

    /// Whether the option with this name is given.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The arguments for scored, from the options that scrun forwards to it.
    pub fn scored_args(&self) -> Vec<String> {
        let given = table::FORWARDED_TO_SCORED.iter().filter_map(|name| self.get(name));
        let words =
            given.filter_map(|option| Some([format!("-{}", option.key), option.value.clone()?]));
        words.flatten().collect()
    }

    /// The lowest level of messages that the option `message` permits.
    pub fn level(&self) -> Level {
        match self.get("message").and_then(|given| given.value.as_deref()) {
            Some("concise") => Level::Warning,
            Some("quiet") => Level::Error,
            _ => Level::Info,
        }
    }

    /// The amount of statistics that `stat` or `statistics` requests.
    pub fn statistics(&self) -> Statistics {
        match self.either("stat", "statistics") {
            None => Statistics::Off,
            Some(OptionArg { value: None, .. }) => Statistics::Summary,
            Some(_) => Statistics::Detail,
        }
    }

    /// The leftmost of the options `nodes` and `hosts`.
    pub fn nodes(&self) -> Option<&OptionArg> {
        self.either("nodes", "hosts")
    }

    /// The option that permits hosts of different kinds, with its position.
    pub fn hetero(&self) -> Option<&OptionArg> {
        self.either("hetero", "heterogeneous")
    }

    /// The given options that are known but have no effect in this version, each once.
    pub fn without_effect(&self, is_multi_user: bool) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for given in &self.given {
            let spec = table::find(&given.key);
            let is_ineffective = |support| {
                support == Support::NotImplemented
                    || support == Support::MultiUserOnly && !is_multi_user
            };
            if spec.is_some_and(|spec| is_ineffective(spec.support)) && !names.contains(&given.key)
            {
                names.push(given.key.clone());
            }
        }
        names
    }

    /// All options in the form in which the job contains them, for `score_get_opt`.
    pub fn pairs(&self) -> Vec<(String, Option<String>)> {
        self.given.iter().map(|given| (given.key.clone(), given.value.clone())).collect()
    }
}

/// The option of [`table::WORD_OPTIONS`] with which a word begins. `list` is the word without its
/// first minus.
fn word_option(list: &[u8]) -> Option<&'static str> {
    let list = list.strip_prefix(b"-").unwrap_or(list);
    let key = list.split(|byte| *byte == b'=').next()?;
    table::WORD_OPTIONS.iter().find(|name| name.as_bytes() == key).copied()
}

/// Options with which other launchers take the number of processes. scrun rejects them, because it
/// would take the number in the next word for the program.
const PROCESS_COUNT_OPTIONS: [&str; 3] = ["n", "np", "ntasks"];

/// Checks one option. An error has the offset of the byte at fault, and the message.
fn check(key: &str, value: Option<&str>) -> Result<(), (usize, String)> {
    if key.is_empty() {
        return Err((0, "the name of an option is empty (-key=value,key,... is expected)".into()));
    }
    if let Some(index) = key.find(|c: char| c.is_control() || c.is_whitespace()) {
        return Err((index, format!("{key}: the name contains a blank or control character")));
    }
    if value.is_some_and(|text| text.contains('\0')) {
        return Err((0, format!("{key}: the value contains a NUL byte")));
    }
    let Some(spec) = table::find(key) else {
        let stripped = key.trim_start_matches('-');
        if PROCESS_COUNT_OPTIONS.contains(&stripped) {
            return Err((0, format!("{key}: unknown option; did you mean '-nodes=N'?")));
        }
        return match name_suggestion::nearest(stripped, table::OPTIONS.iter().map(|spec| spec.name))
        {
            Some(suggestion) => {
                Err((0, format!("{key}: unknown option; did you mean '-{suggestion}'?")))
            }
            None if stripped.len() < key.len() => {
                Err((0, format!("{key}: options begin with one minus, as in -nodes=4")))
            }
            None => Ok(()),
        };
    };
    match (spec.arity, value) {
        (ValueArity::NoValue, Some(_)) => {
            Err((key.len(), format!("{key}: this option takes no value")))
        }
        (ValueArity::Required, None) => Err((
            key.len(),
            format!("{key}: the value is missing ({key}{} is expected)", spec.value_syntax),
        )),
        (ValueArity::Required | ValueArity::Optional, Some("")) => {
            Err((key.len() + 1, format!("{key}=: the value is empty")))
        }
        (_, Some(text)) => {
            (spec.check)(text).map_err(|line| (key.len() + 1, format!("{key}={text}: {line}")))
        }
        (_, None) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
