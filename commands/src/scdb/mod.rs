//! `scdb`: looks into the processes of a running job.

mod gdb;
mod stacks;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use score_proto::nodeset::NodeSet;
use score_proto::tool_command::MAX_ANSWER_TIMEOUT;

use crate::args::Args;
use crate::job_address::JobAddress;
use gdb::{DebuggerPlace, GdbOptions};
pub use stacks::Form;

/// The text of `-help`.
pub const USAGE: &str = "\
usage: scdb JOB stacks [-ranks SET] [-lines] [-dot | -json] [-wait SECONDS] [-socket PATH]
       scdb JOB gdb RANK [-listen] [-socket PATH]
  stacks shows what the processes of your job are doing: one tree of the stacks of all threads, with
  the ranks that share each frame. Each process stands still only while its stacks are copied.
  gdb gives a debugger one rank of your job, on the host of this rank, by gdb's remote protocol:
      gdb -ex 'target remote | scdb 7 gdb 0'
  The rank stands while the debugger wants it, and goes on when the debugger leaves or is killed.
  JOB           number of a job of the cluster (scps); without a cluster PROCESS@HOST, where
                PROCESS is the scrun of the job
  -ranks SET    only these ranks, such as 0-3,8; programs of a pipeline have ranks one after the
                other, from left to right
  -lines        frames with source lines; stacks that differ in a line only are kept apart
  -dot          print the tree for Graphviz: scdb 7 stacks -dot | dot -Tsvg > stacks.svg
  -json         print the tree as JSON
  -wait SECONDS wait so long for answers (10 if not given)
  -listen       print the path of a socket, and serve the debugger that connects to it:
                gdb -ex 'target remote PATH', lldb -o 'process connect unix-connect://PATH'
  -socket PATH  socket of the scored of this host; default: SCORED_SOCKET, else
                /run/scored/scored.sock
  -help         this text
  Exit code: 0, or 1 if there is no such job or a process could not be looked at, or 2 for a wrong
  word.
";

const OPTION_NAMES: &[&str] =
    &["ranks", "lines", "dot", "json", "wait", "listen", "socket", "help"];
/// The commands, for the lines of errors.
const COMMANDS: &str = "stacks, gdb";

/// How long to wait for answers without `-wait`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum ScdbOptions {
    /// `-help`
    Help,
    /// `stacks`
    Stacks(StacksOptions),
    /// `gdb`
    Gdb(GdbOptions),
}

/// `scdb JOB stacks`
#[derive(Debug, PartialEq, Eq)]
pub struct StacksOptions {
    address: JobAddress,
    ranks: Option<NodeSet>,
    lines: bool,
    form: Form,
    timeout: Duration,
    socket: Option<PathBuf>,
}

/// What has been found out.
#[derive(Debug, Default)]
pub struct Outcome {
    /// For standard output.
    pub text: String,
    /// Processes that could not be looked at: a line for each reason.
    pub problems: Vec<String>,
}

impl ScdbOptions {
    /// Parses the words after the command's name.
    ///
    /// # Errors
    /// The faulty word, with the valid ones.
    pub fn parse(args: &[OsString]) -> Result<Self, String> {
        let mut words = Vec::new();
        let (mut ranks, mut lines, mut form) = (None, false, Form::Text);
        let (mut timeout, mut place, mut socket) = (DEFAULT_TIMEOUT, DebuggerPlace::Pipe, None);
        // The last option that only this command has.
        let (mut of_stacks, mut of_gdb) = (None, None);
        let mut args = Args::new(args);
        while let Some(arg) = args.next() {
            match arg.option() {
                Some("help" | "h") => return Ok(Self::Help),
                Some("socket") => {
                    socket = Some(args.value(&arg)?.into());
                    continue;
                }
                Some("listen") => {
                    place = DebuggerPlace::Socket;
                    of_gdb = Some(arg.text().to_owned());
                    continue;
                }
                Some("lines") => lines = true,
                Some("dot") if form != Form::Json => form = Form::Dot,
                Some("json") if form != Form::Dot => form = Form::Json,
                Some("dot" | "json") => return Err("-dot excludes -json".to_owned()),
                Some("ranks") => {
                    ranks = Some(parse_ranks(&args.value(&arg)?.to_string_lossy())?);
                }
                Some("wait") => {
                    let value = args.value(&arg)?.to_string_lossy().into_owned();
                    timeout = parse_timeout(&value)?;
                }
                Some(_) => return Err(arg.unknown(OPTION_NAMES)),
                None => {
                    words.push(arg.text().to_owned());
                    continue;
                }
            }
            of_stacks = Some(arg.text().to_owned());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let refuse = |option: Option<String>, command| match option {
            Some(option) => Err(format!("{option}: {command} has no such option")),
            None => Ok(()),
        };
        match words[..] {
            [job, "stacks"] => {
                refuse(of_gdb, "stacks")?;
                let address = JobAddress::parse(job)?;
                Ok(Self::Stacks(StacksOptions { address, ranks, lines, form, timeout, socket }))
            }
            [job, "gdb", rank] => {
                refuse(of_stacks, "gdb")?;
                let address = JobAddress::parse(job)?;
                Ok(Self::Gdb(GdbOptions { address, rank: parse_rank(rank)?, place, socket }))
            }
            [_, "gdb"] => Err("the rank is missing".to_owned()),
            [_, "stacks", word, ..] | [_, "gdb", _, word, ..] => {
                Err(format!("{word}: unknown word"))
            }
            [_, command, ..] => Err(format!("{command}: unknown command; there are: {COMMANDS}")),
            [] => Err("the job is missing".to_owned()),
            [_] => Err(format!("the command is missing; there are: {COMMANDS}")),
        }
    }
}

/// Parses seconds.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let valid = seconds.filter(|time| !time.is_zero() && *time <= MAX_ANSWER_TIMEOUT);
    valid.ok_or_else(|| {
        format!("-wait: {text}: 1 to {} seconds are valid", MAX_ANSWER_TIMEOUT.as_secs())
    })
}

/// Parses the number of a rank.
fn parse_rank(text: &str) -> Result<u32, String> {
    let rank = text.parse().ok().filter(|rank| *rank < score_proto::MAX_NODES);
    rank.ok_or_else(|| format!("{text}: not a rank"))
}

/// Parses a set of ranks, such as `0-3,8`.
fn parse_ranks(text: &str) -> Result<NodeSet, String> {
    let wrong = || format!("-ranks: {text}: not a set of ranks such as 0-3,8");
    let mut ranks = NodeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().map_err(|_| wrong())?;
        let last: u32 = last.parse().map_err(|_| wrong())?;
        if first > last || last >= score_proto::MAX_NODES {
            return Err(wrong());
        }
        ranks.insert_range(first..last + 1);
    }
    Ok(ranks)
}

/// Carries the command out.
///
/// # Errors
/// One line with the reason.
pub fn execute(options: ScdbOptions) -> Result<Outcome, String> {
    match options {
        ScdbOptions::Help => Ok(Outcome { text: USAGE.to_owned(), ..Outcome::default() }),
        ScdbOptions::Stacks(options) => stacks::run(options),
        ScdbOptions::Gdb(options) => gdb::run(options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::JobId;

    fn parse(words: &[&str]) -> Result<ScdbOptions, String> {
        ScdbOptions::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn every_error_names_the_faulty_word() {
        for (words, expected) in [
            (&[][..], "the job is missing"),
            (&["7"], "the command is missing"),
            (&["7", "stack"], "stack: unknown command"),
            (&["7", "stacks", "all"], "all: unknown word"),
            (&["7", "stacks", "-rank", "1"], "-rank: unknown option; did you mean -ranks?"),
            (&["7", "stacks", "-ranks", "3-1"], "3-1: not a set of ranks"),
            (&["7", "stacks", "-ranks", "0-4294967295"], "not a set of ranks"),
            (&["7", "stacks", "-wait", "0"], "1 to 600 seconds"),
            (&["7", "stacks", "-dot", "-json"], "-dot excludes -json"),
            (&["7", "gdb"], "the rank is missing"),
            (&["7", "gdb", "x"], "x: not a rank"),
            (&["7", "gdb", "-1"], "-1: unknown option"),
            (&["7", "gdb", "0", "1"], "1: unknown word"),
            (&["7", "gdb", "0", "-lines"], "-lines: gdb has no such option"),
            (&["7", "stacks", "-listen"], "-listen: stacks has no such option"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        let good = parse(&["7", "stacks", "-ranks", "0-3,8", "--lines", "-wait", "3"]).unwrap();
        let ranks = [0, 1, 2, 3, 8].into_iter().collect();
        assert_eq!(
            good,
            ScdbOptions::Stacks(StacksOptions {
                address: JobAddress::Cluster(JobId(7)),
                ranks: Some(ranks),
                lines: true,
                form: Form::Text,
                timeout: Duration::from_secs(3),
                socket: None,
            })
        );
        assert_eq!(
            parse(&["7", "gdb", "3", "-listen"]),
            Ok(ScdbOptions::Gdb(GdbOptions {
                address: JobAddress::Cluster(JobId(7)),
                rank: 3,
                place: DebuggerPlace::Socket,
                socket: None,
            }))
        );
    }
}
