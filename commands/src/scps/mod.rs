//! `scps`: the jobs of the cluster that the scored of this host serves.

mod format;

use std::ffi::OsString;
use std::path::PathBuf;

use score_proto::job_list::JobEntry;
use score_proto::message::{ConsoleRequest, ServerMessage};

use crate::args::Args;
use crate::scored_client::QueryStream;

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
pub const EXIT_IO_ERROR: u8 = 74;

const OPTION_NAMES: &[&str] = &["json", "own", "page", "socket", "help"];

/// What stands on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ScpsOptions {
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

impl ScpsOptions {
    /// Reads the words behind the command's name.
    ///
    /// # Errors
    /// The word that is wrong, and what would be right.
    pub fn parse(args: &[OsString]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = Args::new(args);
        while let Some(arg) = args.next() {
            match arg.option() {
                Some("json") => options.json = true,
                Some("own") => options.own = true,
                Some("page") => options.page = true,
                Some("help" | "h") => options.help = true,
                Some("socket") => options.socket = Some(args.value(&arg)?.into()),
                Some(_) => return Err(arg.unknown(OPTION_NAMES)),
                None => return Err(format!("{}: unknown word", arg.text())),
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
pub fn execute(options: ScpsOptions) -> Result<String, String> {
    if options.help {
        return Ok(USAGE.to_owned());
    }
    let request = if options.page { ConsoleRequest::Page } else { ConsoleRequest::List };
    let mut query = QueryStream::open(request, options.socket)?;
    let mut jobs: Vec<JobEntry> = Vec::new();
    let mut page = None;
    while let Some(reply) = query.next_reply()? {
        match reply {
            ServerMessage::Jobs(listed) => jobs.extend(listed),
            ServerMessage::Page { host, url: address } => {
                page = Some(format::page(&host, &address))
            }
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
    Ok(if options.json { format::json(&jobs) } else { format::table(&jobs) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<ScpsOptions, String> {
        ScpsOptions::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn every_error_names_the_faulty_word() {
        for (words, expected) in [
            (&["-jsn"][..], "-jsn: unknown option; did you mean -json?"),
            (&["7"], "7: unknown word"),
            (&["-socket"], "-socket: its value is missing"),
            (&["-page", "-json"], "-page stands alone"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        let good = parse(&["--json", "-own", "-socket", "x"]).unwrap();
        assert_eq!((good.json, good.own, good.socket), (true, true, Some("x".into())));
    }
}
