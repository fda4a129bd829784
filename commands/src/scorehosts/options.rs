//! The options of `scorehosts`.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::args::Args;

/// The hosts of a set that are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostFilter {
    /// Usable hosts, with spares for the others (`-r`).
    #[default]
    Usable,
    /// All hosts (`-i`).
    All,
    /// All hosts and their spares (`-s`).
    AllWithSpares,
    /// Hosts that are out of order (`-d`).
    Defective,
}

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ScorehostsOptions {
    /// The expression.
    pub group: Option<String>,
    /// `-i`, `-r`, `-s`, `-d`.
    pub filter: HostFilter,
    /// `-l`.
    pub one_per_line: bool,
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

/// Options with more than one letter.
const OPTION_NAMES: &[&str] = &["group", "json", "check", "file", "defects", "help"];

impl ScorehostsOptions {
    /// Parses the words after the command's name.
    ///
    /// # Errors
    /// One line that names the word at fault.
    pub fn parse(args: &[OsString]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut filter_option = None;
        let mut args = Args::new(args);
        while let Some(arg) = args.next() {
            let mut value = || args.value(&arg);
            match arg.option() {
                None => options.set_group(arg.text())?,
                Some(name @ ("i" | "r" | "s" | "d")) => {
                    if let Some(other) =
                        filter_option.replace(name.to_owned()).filter(|one| one != name)
                    {
                        return Err(format!("-{other} and -{name} exclude each other"));
                    }
                    options.filter = match name {
                        "i" => HostFilter::All,
                        "s" => HostFilter::AllWithSpares,
                        "d" => HostFilter::Defective,
                        _ => HostFilter::Usable,
                    };
                }
                Some("l") => options.one_per_line = true,
                Some("q") => options.quiet = true,
                Some("json") => options.json = true,
                Some("check") => options.check = true,
                Some("help" | "h") => options.help = true,
                Some("g" | "group") => options.set_group(&value()?.to_string_lossy())?,
                Some("file") => options.file = Some(value()?.into()),
                Some("defects") => options.defects = Some(value()?.into()),
                Some(_) => return Err(arg.unknown(OPTION_NAMES)),
            }
        }
        Ok(options)
    }

    fn set_group(&mut self, group: &str) -> Result<(), String> {
        match self.group.replace(group.to_owned()) {
            None => Ok(()),
            Some(other) => {
                Err(format!("{group}: {other} is already given ({other}+{group} is both)"))
            }
        }
    }
}
