//! The options that scatter and gather share: `-node N` and `-file NAME`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use thiserror::Error;

/// The parsed command line.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct NodeOptions {
    /// `-node N`.
    pub node: Option<u32>,
    /// `-file NAME`.
    pub file: Option<OsString>,
    /// `-help`.
    pub help: bool,
}

/// An error in the command line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    /// An unknown option.
    #[error("{0:?}: unknown option (valid: -node N, -file NAME, -help)")]
    Unknown(OsString),
    /// The option's value is missing.
    #[error("{0} needs a value: {1}")]
    NoValue(&'static str, &'static str),
    /// The same option is given twice.
    #[error("option {0} given more than once")]
    Twice(&'static str),
    /// The value is not a number.
    #[error("-node {0:?}: not a node number")]
    NotANode(OsString),
    /// There is no node with this number.
    #[error("-node {0}: this parallel process has the nodes 0 to {1}")]
    NoSuchNode(u32, u32),
    /// Neither a base name nor an absolute path.
    #[error("-file {0:?}: {1}")]
    BadFile(OsString, &'static str),
}

impl NodeOptions {
    /// Parses the arguments, without the program's own name.
    ///
    /// # Errors
    /// See [`OptionError`].
    pub fn parse(
        args: impl IntoIterator<Item = OsString>,
        nodes: u32,
    ) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let mut args = args.into_iter();
        while let Some(word) = args.next() {
            match word.as_bytes() {
                b"-help" | b"--help" => options.help = true,
                b"-node" | b"--node" => {
                    let value = args.next();
                    let value = value.ok_or(OptionError::NoValue("-node", "a node number"))?;
                    options.set_node(value, nodes)?;
                }
                b"-file" | b"--file" => {
                    let value = args.next();
                    let value = value.ok_or(OptionError::NoValue("-file", "a file name"))?;
                    options.set_file(value)?;
                }
                _ => return Err(OptionError::Unknown(word)),
            }
        }
        Ok(options)
    }

    fn set_node(&mut self, value: OsString, nodes: u32) -> Result<(), OptionError> {
        let number = value.to_str().and_then(|text| text.parse().ok());
        let number = number.ok_or(OptionError::NotANode(value))?;
        if number >= nodes {
            return Err(OptionError::NoSuchNode(number, nodes.saturating_sub(1)));
        }
        match self.node.replace(number) {
            None => Ok(()),
            Some(_) => Err(OptionError::Twice("-node")),
        }
    }

    /// Sets the file name, by the rule for compute hosts (manual, scrun(1), INPUT/OUTPUT
    /// REDIRECTION). A base name is in the job's directory, and any other name is an absolute path.
    fn set_file(&mut self, value: OsString) -> Result<(), OptionError> {
        let bytes = value.as_bytes();
        let reason = match bytes {
            b"" => Some("the file name is empty"),
            b"." | b".." => Some("that is a directory"),
            [b'/', ..] => None,
            _ if bytes.contains(&b'/') => {
                Some("neither a base name (in the job's directory) nor an absolute path")
            }
            _ => None,
        };
        if let Some(reason) = reason {
            return Err(OptionError::BadFile(value, reason));
        }
        match self.file.replace(value) {
            None => Ok(()),
            Some(_) => Err(OptionError::Twice("-file")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<NodeOptions, OptionError> {
        NodeOptions::parse(words.iter().map(OsString::from), 4)
    }

    #[test]
    fn both_options_are_read() {
        let options = parse(&["-node", "3", "-file", "/tmp/x"]).unwrap();
        assert_eq!((options.node, options.file), (Some(3), Some("/tmp/x".into())));
        assert!(parse(&["-help"]).unwrap().help);
    }

    #[test]
    fn every_error_names_the_faulty_word() {
        for (words, expected) in [
            (&["-nodes"][..], "\"-nodes\""),
            (&["-node"], "-node needs"),
            (&["-node", "4"], "0 to 3"),
            (&["-node", "-1"], "\"-1\""),
            (&["-node", "1", "-node", "1"], "-node given more than once"),
            (&["-file", "a/b"], "\"a/b\""),
            (&["-file", ""], "empty"),
            (&["-file", "a", "-file", "b"], "-file given more than once"),
            (&["extra"], "\"extra\""),
        ] {
            let message = parse(words).unwrap_err().to_string();
            assert!(message.contains(expected), "{words:?}: {message}");
        }
    }
}
