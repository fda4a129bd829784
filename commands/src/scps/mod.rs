//! `scps`: lists the jobs of the cluster to which the scored of this host belongs.

mod format;

use std::ffi::OsString;
use std::path::PathBuf;

use score_proto::daemon_statistics::DaemonStatistics;
use score_proto::job_list::JobEntry;
use score_proto::message::ConsoleRequest;
use score_proto::server_message::{ListAnswer, PageAddress};

use crate::args::Args;
use crate::scored_client::QueryStream;

/// The text of `-help`.
pub const USAGE: &str = "\
usage: scps [-json] [-own] [-socket PATH]
       scps -page [-socket PATH]
  Lists the jobs of the cluster: your own in full, others with number, user and hosts only;
  operators see all jobs in full.
  -own          list only your own jobs
  -json         print the jobs as JSON
  -page         print the address of the cluster's page; keep it secret: it contains your token
  -socket PATH  socket of the scored of this host; default: SCORED_SOCKET, else
                /run/scored/scored.sock
  -help         this text
";

const OPTION_NAMES: &[&str] = &["json", "own", "page", "socket", "help"];

/// The parsed command line.
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
    /// Parses the words after the command's name.
    ///
    /// # Errors
    /// One line that names the word at fault.
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
            return Err("-page excludes other options".to_owned());
        }
        Ok(options)
    }
}

/// The remedy if there is no service.
const REMEDY: &str = "ask an operator to start one; ps -C scrun lists jobs without a service";

/// Sends the query to scored and returns the text to print.
///
/// # Errors
/// One line with the reason.
pub fn execute(options: ScpsOptions) -> Result<String, String> {
    if options.help {
        return Ok(USAGE.to_owned());
    }
    if options.page {
        let mut query = QueryStream::open(ConsoleRequest::Page, options.socket, REMEDY)?;
        let mut text = String::new();
        while let Some(PageAddress { host, url }) = query.next_reply()? {
            text = format::page(&host, &url);
        }
        return Ok(text);
    }
    let mut query = QueryStream::open(ConsoleRequest::List, options.socket, REMEDY)?;
    let mut jobs: Vec<JobEntry> = Vec::new();
    let mut statistics: Option<DaemonStatistics> = None;
    while let Some(answer) = query.next_reply()? {
        match answer {
            ListAnswer::Jobs(listed) => jobs.extend(listed),
            ListAnswer::Statistics(of_server) => statistics = Some(of_server),
        }
    }
    if options.own {
        let uid = nix::unistd::getuid().as_raw();
        jobs.retain(|job| job.uid == uid);
    }
    Ok(if options.json { format::json(&jobs, statistics.as_ref()) } else { format::table(&jobs) })
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
            (&["-page", "-json"], "-page excludes other options"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        let good = parse(&["--json", "-own", "-socket", "x"]).unwrap();
        assert_eq!((good.json, good.own, good.socket), (true, true, Some("x".into())));
    }
}
