//! `scps`: the jobs of the cluster that the scored of this host serves.

mod shown;

use std::ffi::OsString;
use std::path::PathBuf;

use score_proto::listing::JobLine;
use score_proto::message::{Console, Up};

use crate::cluster::Answer;
use crate::words::Words;

/// The text of `-help`.
pub const USAGE: &str = "\
usage: scps [-json] [-own] [-socket PATH]
       scps -page [-socket PATH]
  The jobs of the cluster: your own in full, of others the number, the user and the hosts;
  operators see all in full.
  -own          your own jobs only
  -json         everything as JSON
  -page         the address of the cluster's page, for you alone: it holds your token
  -socket PATH  where the scored of this host listens, if neither SCORED_SOCKET nor
                /run/scored/scored.sock is right
  -help         this text
";

/// The answer could not be written.
pub const UNWRITTEN: u8 = 74;

const NAMES: &[&str] = &["json", "own", "page", "socket", "help"];

/// What stands on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-json`
    pub json: bool,
    /// `-own`
    pub own: bool,
    /// `-page`
    pub page: bool,
    /// `-help`
    pub help: bool,
    /// `-socket PATH`
    pub socket: Option<PathBuf>,
}

impl Options {
    /// Reads the words behind the command's name.
    ///
    /// # Errors
    /// The word that is wrong, and what would be right.
    pub fn parse(words: &[OsString]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = Words::new(words);
        while let Some(word) = words.next() {
            match word.option() {
                Some("json") => options.json = true,
                Some("own") => options.own = true,
                Some("page") => options.page = true,
                Some("help" | "h") => options.help = true,
                Some("socket") => options.socket = Some(words.value(&word)?.into()),
                Some(_) => return Err(word.unknown(NAMES)),
                None => return Err(format!("{}: unknown word", word.text())),
            }
        }
        if options.page && (options.json || options.own) {
            return Err("-page stands alone".to_owned());
        }
        Ok(options)
    }
}

/// Asks scored, and gives what is to be printed.
///
/// # Errors
/// One line.
pub fn answer(options: Options) -> Result<String, String> {
    if options.help {
        return Ok(USAGE.to_owned());
    }
    let question = if options.page { Console::Page } else { Console::List };
    let mut parts = Answer::to(question, options.socket)?;
    let mut jobs: Vec<JobLine> = Vec::new();
    let mut page = None;
    while let Some(part) = parts.next_part()? {
        match part {
            Up::Jobs(some) => jobs.extend(some),
            Up::Page { host, address } => page = Some(shown::page(&host, &address)),
            _ => {}
        }
    }
    if let Some(page) = page {
        return Ok(page);
    }
    if options.own {
        let uid = nix::unistd::getuid().as_raw();
        jobs.retain(|job| job.uid == uid);
    }
    Ok(if options.json { shown::json(&jobs) } else { shown::table(&jobs) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn every_fault_names_its_word() {
        for (words, part) in [
            (&["-jsn"][..], "-jsn: unknown option; did you mean -json?"),
            (&["7"], "7: unknown word"),
            (&["-socket"], "-socket: its value is missing"),
            (&["-page", "-json"], "-page stands alone"),
        ] {
            let fault = parse(words).unwrap_err();
            assert!(fault.contains(part), "{words:?}: {fault}");
        }
        let good = parse(&["--json", "-own", "-socket", "x"]).unwrap();
        assert_eq!((good.json, good.own, good.socket), (true, true, Some("x".into())));
    }
}
