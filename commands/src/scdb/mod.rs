//! `scdb`: shows what the processes of a running job do, holds them and continues them.
//!
//! | file | contents |
//! |---|---|
//! | `command.rs` | the commands of a user |
//! | `session.rs` | sends commands to the job, and keeps the session that ends with scdb |
//! | `console.rs` | executes commands of a command line, a file or a terminal |
//! | `render.rs`, `stacks.rs`, `outcome.rs` | answers as text and JSON |
//! | `gdb/` | a debugger for one rank |
//! | `print/` | values of an expression, by gdb |

pub(crate) mod command;
mod console;
mod gdb;
mod outcome;
mod print;
mod render;
pub(crate) mod session;
mod stacks;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use score_proto::exit_code::EXIT_FAILED;
use score_proto::tool_command::MAX_ANSWER_TIMEOUT;

use crate::args::Args;
use crate::job_address::JobAddress;
use command::{COMMANDS, Command};
use console::{Console, ExitCode};
use gdb::{DebuggerPlace, GdbOptions};
use session::Session;

/// The text of `-help`, before and after the list of commands.
const USAGE: [&str; 2] = [
    "\
usage: scdb JOB [COMMAND | -batch FILE] [-json] [-wait SECONDS] [-socket PATH]
       scdb JOB gdb RANK [-listen] [-socket PATH]
  Shows what the processes of your job are doing, holds and continues them. Without COMMAND, scdb is
  a console. Holds and breakpoints last until scdb ends; then the ranks continue.
  gdb gives a debugger one rank of your job, on any host, by gdb's remote protocol:
      gdb -ex 'target remote | scdb 7 gdb 0'
  The rank is stopped while the debugger requires it. It continues when the debugger detaches or is
  killed.
  JOB           number of a job of the cluster (scps); without a cluster PID@HOST, where PID is
                the process id of the scrun of the job
commands:
",
    "\
  Programs of a pipeline have ranks one after the other, from left to right.
options:
  -batch FILE   the commands of this file, or of standard input (-), until one fails
  -json         a line of JSON for each command
  -wait SECONDS time limit for answers and, without a terminal, for stops; default 10
  -listen       print the path of a socket, and serve the debugger that connects to it:
                gdb -ex 'target remote PATH', lldb -o 'process connect unix-connect://PATH'
  -socket PATH  socket of the scored of this host; default: SCORED_SOCKET, else
                /run/scored/scored.sock
  -help         this text
  Exit code: 0, or 1 if a command failed for a rank, or 2 for an invalid word.
",
];

/// Options of scdb itself, without those of commands.
const OPTION_NAMES: &[&str] = &["batch", "json", "wait", "socket", "help"];

/// Time limit for answers without `-wait`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum ScdbOptions {
    /// `-help`
    Help,
    /// `scdb JOB`, with commands from one source.
    Job(JobOptions),
    /// `gdb`: a debugger for one rank.
    Gdb(GdbOptions),
}

/// A job, and the source of the commands.
#[derive(Debug, PartialEq, Eq)]
pub struct JobOptions {
    /// The job as the user has named it.
    name: String,
    address: JobAddress,
    input: Input,
    is_json: bool,
    timeout: Duration,
    socket: Option<PathBuf>,
}

/// The source of the commands.
#[derive(Debug, PartialEq, Eq)]
enum Input {
    /// The command line: its text, and the parsed command.
    Command(String, Command),
    /// A file, or standard input.
    Batch(Option<PathBuf>),
    /// The terminal if there is one, or standard input.
    Console,
}

impl ScdbOptions {
    /// Parses the words after the command's name.
    ///
    /// # Errors
    /// One line that names the word at fault.
    pub fn parse(args: &[OsString]) -> Result<Self, String> {
        let mut words: Vec<String> = Vec::new();
        let (mut is_json, mut batch) = (false, None);
        let (mut timeout, mut socket) = (DEFAULT_TIMEOUT, None);
        let mut args = Args::new(args);
        while let Some(arg) = args.next() {
            match arg.option() {
                Some("help" | "h") => return Ok(Self::Help),
                Some("json") => is_json = true,
                Some("batch") => batch = Some(args.value(&arg)?.clone()),
                Some("wait") => {
                    let value = args.value(&arg)?.to_string_lossy().into_owned();
                    timeout = parse_timeout(&value)?;
                }
                Some("socket") => socket = Some(args.value(&arg)?.into()),
                // The option belongs to the command.
                Some(_) if words.len() > 1 => words.push(arg.text().to_owned()),
                Some(_) => return Err(arg.unknown(OPTION_NAMES)),
                None => words.push(arg.text().to_owned()),
            }
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let Some((name, command)) = words.split_first() else {
            return Err("the job is missing".to_owned());
        };
        let address = JobAddress::parse(name)?;
        if let ["gdb", command @ ..] = command {
            if is_json || batch.is_some() || timeout != DEFAULT_TIMEOUT {
                return Err("gdb: the only options are -listen and -socket".to_owned());
            }
            let (rank, place) = parse_gdb(command)?;
            return Ok(Self::Gdb(GdbOptions { address, rank, place, socket }));
        }
        let input = match (batch, command) {
            (None, []) => Input::Console,
            (None, command) => {
                let parsed = Command::parse(command)?;
                if parsed.needs_console() {
                    return Err(format!(
                        "{}: its effect ends with scdb: use it in the console (scdb {name}) or \
                         with -batch",
                        command[0]
                    ));
                }
                if is_json && matches!(parsed, Command::Stacks { dot: true, .. }) {
                    return Err("-dot excludes -json".to_owned());
                }
                Input::Command(command.join(" "), parsed)
            }
            (Some(file), []) if file == "-" => Input::Batch(None),
            (Some(file), []) => Input::Batch(Some(file.into())),
            (Some(_), [word, ..]) => return Err(format!("{word}: -batch has its own commands")),
        };
        let name = (*name).to_owned();
        Ok(Self::Job(JobOptions { name, address, input, is_json, timeout, socket }))
    }
}

/// Parses the words after `gdb`: the rank, and how the debugger connects.
fn parse_gdb(words: &[&str]) -> Result<(u32, DebuggerPlace), String> {
    let (mut rank, mut place) = (None, DebuggerPlace::Pipe);
    for word in words {
        match (*word, rank) {
            ("-listen" | "--listen", _) => place = DebuggerPlace::Socket,
            (option, _) if option.starts_with('-') => {
                return Err(format!("{option}: gdb has no such option"));
            }
            (text, None) => {
                let number = text.parse().ok().filter(|rank| *rank < score_proto::MAX_NODES);
                rank = Some(number.ok_or_else(|| format!("{text}: not a rank"))?);
            }
            (word, Some(_)) => return Err(format!("{word}: unknown word")),
        }
    }
    Ok((rank.ok_or("the rank is missing")?, place))
}

/// Parses a number of seconds.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let valid = seconds.filter(|time| !time.is_zero() && *time <= MAX_ANSWER_TIMEOUT);
    valid.ok_or_else(|| {
        format!("-wait: {text}: 1 to {} seconds are valid", MAX_ANSWER_TIMEOUT.as_secs())
    })
}

/// Executes the commands. Returns the exit code.
pub fn execute(options: ScdbOptions) -> u8 {
    let options = match options {
        ScdbOptions::Help => {
            return console::print_help(&[USAGE[0], COMMANDS, USAGE[1]].concat()).0;
        }
        ScdbOptions::Job(options) => options,
        ScdbOptions::Gdb(options) => {
            return match gdb::run(options) {
                Ok(()) => 0,
                Err(message) => {
                    eprintln!("scdb: {message}");
                    EXIT_FAILED
                }
            };
        }
    };
    let JobOptions { name, address, input, is_json, timeout, socket } = options;
    let session = match Session::open(address, socket, timeout) {
        Ok(session) => session,
        Err(message) => {
            eprintln!("scdb: {message}");
            return EXIT_FAILED;
        }
    };
    let console = Console::new(session, is_json);
    let ExitCode(code) = match input {
        Input::Command(line, command) => console::run_one(console, &line, command),
        Input::Batch(path) => console::run_batch(console, path.as_deref()),
        Input::Console if console::is_at_terminal() => {
            console::run_terminal(console, &format!("(scdb {name}) "))
        }
        Input::Console => console::run_batch(console, None),
    };
    code
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
            (&["7", "stack"], "stack: unknown command"),
            (&["7", "stacks", "nine"], "nine: not a set of ranks"),
            (&["7", "stacks", "-rank", "1"], "-rank: unknown option; did you mean -ranks?"),
            (&["7", "-bach", "x"], "-bach: unknown option; did you mean -batch?"),
            (&["7", "stacks", "-ranks", "3-1"], "3-1: not a set of ranks"),
            (&["7", "stacks", "-wait", "0"], "1 to 600 seconds"),
            (&["7", "stacks", "-dot", "-json"], "-dot excludes -json"),
            (&["7", "hold", "0"], "hold: its effect ends with scdb"),
            (&["7", "where", "-batch", "x"], "where: -batch has its own commands"),
            (&["7", "gdb"], "the rank is missing"),
            (&["7", "gdb", "x"], "x: not a rank"),
            (&["7", "gdb", "-1"], "-1: gdb has no such option"),
            (&["7", "gdb", "0", "1"], "1: unknown word"),
            (&["7", "gdb", "0", "-lines"], "-lines: gdb has no such option"),
            (&["7", "gdb", "0", "-json"], "the only options are -listen and -socket"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
    }

    #[test]
    fn options_of_scdb_and_of_its_command_can_be_mixed() {
        let words = ["7", "stacks", "-ranks", "0-3,8", "--lines", "-wait", "3", "-json"];
        let ScdbOptions::Job(options) = parse(&words).unwrap() else { panic!("no help") };
        let ranks = Some([0, 1, 2, 3, 8].into_iter().collect());
        assert_eq!(options.address, JobAddress::Cluster(JobId(7)));
        assert_eq!((options.timeout, options.is_json), (Duration::from_secs(3), true));
        let line = "stacks -ranks 0-3,8 --lines".to_owned();
        let command = Command::Stacks { ranks, lines: true, dot: false };
        assert_eq!(options.input, Input::Command(line, command));
        for (words, input) in [
            (&["7"][..], Input::Console),
            (&["7", "-batch", "-"], Input::Batch(None)),
            (&["-batch", "a", "7"], Input::Batch(Some("a".into()))),
        ] {
            let ScdbOptions::Job(options) = parse(words).unwrap() else { panic!("no help") };
            assert_eq!(options.input, input);
        }
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
