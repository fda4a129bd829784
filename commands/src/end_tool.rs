//! `end_tool`: sends a signal to a tool that runs next to a job.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use nix::sys::signal::Signal;
use score_proto::job_control::Status;
use score_proto::tool_start::{SignalOutcome, ToolAction, ToolActionAnswer, ToolId};

use crate::args::Args;
use crate::job_address::JobAddress;
use crate::tool_client::{self, ToolError};

/// The text of `-help`.
pub const USAGE: &str = "\
usage: end_tool --id JOB | --pid SCRUN --tool N [--signal S] [--socket PATH]
  Sends SIGTERM to the processes of a tool that start_tool or scrun -tool has started, on all hosts.
  end_tool waits up to a second, and prints how the tool has ended, or that the tool still runs.
  --id JOB      the job, by its number (scps), from any host of the cluster; or PID@HOST
  --pid SCRUN   the job of the scrun with this process id on this host
  --tool N      the number of the tool
  --signal S    another signal: a number or a name, such as SIGKILL
  --socket PATH socket of the scored of this host; default: SCORED_SOCKET, else
                /run/scored/scored.sock
  -help         this text
";

const OPTION_NAMES: &[&str] = &["id", "pid", "tool", "signal", "socket", "help"];

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum EndTool {
    /// `-help`
    Help,
    /// Send a signal.
    Signal {
        /// The job.
        address: JobAddress,
        /// The tool.
        tool: ToolId,
        /// The signal.
        signal: i32,
        /// `--socket PATH`
        socket: Option<PathBuf>,
    },
}

impl EndTool {
    /// Parses the words after the command's name.
    ///
    /// # Errors
    /// One line that names the word at fault.
    pub fn parse(args: &[OsString]) -> Result<Self, String> {
        let (mut address, mut tool, mut signal, mut socket) = (None, None, libc::SIGTERM, None);
        let mut args = Args::new(args);
        while let Some(arg) = args.next() {
            match arg.option() {
                Some("help" | "h") => return Ok(Self::Help),
                Some(name @ ("id" | "pid")) => {
                    let is_id = name == "id";
                    let value = args.value(&arg)?;
                    let parse = if is_id { tool_client::parse_id } else { tool_client::parse_pid };
                    if address.replace(parse(value)?).is_some() {
                        return Err("--id or --pid is given more than once".to_owned());
                    }
                }
                Some("tool") => {
                    let text = args.value(&arg)?.to_string_lossy();
                    let number = text.parse().ok().filter(|number| *number > 0);
                    let number = number
                        .ok_or_else(|| format!("{} {text}: not a tool's number", arg.text()))?;
                    tool = Some(ToolId(number));
                }
                Some("signal") => {
                    let text = args.value(&arg)?.to_string_lossy();
                    signal = parse_signal(&text)
                        .ok_or_else(|| format!("{} {text}: not a signal", arg.text()))?;
                }
                Some("socket") => socket = Some(args.value(&arg)?.into()),
                Some(_) => return Err(arg.unknown(OPTION_NAMES)),
                None => return Err(format!("{}: unknown word", arg.text())),
            }
        }
        let address = address.ok_or("--id JOB or --pid SCRUN is missing")?;
        let tool = tool.ok_or("--tool N is missing")?;
        Ok(Self::Signal { address, tool, signal, socket })
    }

    /// Executes the command. Returns the text to print.
    ///
    /// # Errors
    /// The reason why the signal was not sent.
    pub fn execute(self) -> Result<String, ToolError> {
        let Self::Signal { address, tool, signal, socket } = self else {
            return Ok(USAGE.to_owned());
        };
        let action = ToolAction::Signal { tool, signal };
        let answer = tool_client::request(address.find()?, action, socket.as_deref())?;
        let ToolActionAnswer::Signaled(outcome) = answer else {
            return Err("scored has sent an unexpected answer".into());
        };
        Ok(describe(tool, signal, &outcome))
    }
}

/// The line for the user.
fn describe(tool: ToolId, signal: i32, outcome: &SignalOutcome) -> String {
    let on_hosts = |count: u32| match count {
        1 => "on 1 host".to_owned(),
        _ => format!("on {count} hosts"),
    };
    let status_text = |status: Status| match status {
        Status::Exited(code) => format!("exit code {code}"),
        Status::Signaled(signal) => format!("killed by {}", signal_name(signal)),
    };
    let ends = outcome.ended.iter().map(|(status, hosts)| (status_text(*status), *hosts));
    let lost = (outcome.lost > 0).then(|| ("connection lost".to_owned(), outcome.lost));
    let ends: Vec<(String, u32)> = ends.chain(lost).collect();
    let list = || {
        let ends = ends.iter().map(|(text, hosts)| format!("{text} {}", on_hosts(*hosts)));
        ends.collect::<Vec<_>>().join(", ")
    };
    match (outcome.running, &ends[..]) {
        (0, [(end, _)]) => format!("tool {tool} has ended: {end}\n"),
        (0, _) => format!("tool {tool} has ended: {}\n", list()),
        (running, ends) => {
            let has_ended = if ends.is_empty() {
                String::new()
            } else {
                format!(", and has ended: {}", list())
            };
            let (signal, running) = (signal_name(signal), on_hosts(running));
            format!("{signal} was sent to tool {tool}, which still runs {running}{has_ended}\n")
        }
    }
}

/// The name of a signal, for a message.
fn signal_name(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(name) => name.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}

/// Parses a signal number, or a signal name with or without `SIG`.
fn parse_signal(text: &str) -> Option<i32> {
    let by_name = |name: &str| Signal::from_str(name).ok().map(|signal| signal as i32);
    let number = text.parse().ok().filter(|number| (1..=64).contains(number));
    let upper = text.to_uppercase();
    number.or_else(|| by_name(&upper)).or_else(|| by_name(&format!("SIG{upper}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<EndTool, String> {
        EndTool::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    // Promise (tools): end_tool says how the tool has ended, or that it still runs.
    #[test]
    fn the_line_names_ended_and_running_hosts() {
        let (killed, exited) = (Status::Signaled(15), Status::Exited(3));
        for (signal, running, ended, lost, line) in [
            (15, 0, &[(killed, 1)][..], 0, "tool 2 has ended: killed by SIGTERM"),
            (15, 0, &[(exited, 4)], 0, "tool 2 has ended: exit code 3"),
            (
                15,
                0,
                &[(killed, 2), (exited, 1)],
                1,
                "tool 2 has ended: killed by SIGTERM on 2 hosts, exit code 3 on 1 host, connection \
                 lost on 1 host",
            ),
            (10, 1, &[], 0, "SIGUSR1 was sent to tool 2, which still runs on 1 host"),
            (
                40,
                3,
                &[(exited, 1)],
                0,
                "signal 40 was sent to tool 2, which still runs on 3 hosts, and has ended: exit \
                 code 3 on 1 host",
            ),
        ] {
            let outcome = SignalOutcome { running, ended: ended.to_vec(), lost };
            assert_eq!(describe(ToolId(2), signal, &outcome), format!("{line}\n"));
        }
    }

    #[test]
    fn every_error_names_the_faulty_word() {
        for (words, expected) in [
            (&["--tool", "1"][..], "--id JOB or --pid SCRUN is missing"),
            (&["--id", "7"], "--tool N is missing"),
            (&["--id", "7", "--tool", "0"], "--tool 0: not a tool's number"),
            (&["--id", "7", "--tool", "1", "--signal", "65"], "--signal 65: not a signal"),
            (&["--id", "7", "--tool", "1", "--sinal", "9"], "did you mean -signal?"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        for (text, number) in [("SIGKILL", 9), ("kill", 9), ("15", 15), ("64", 64)] {
            assert_eq!(parse_signal(text), Some(number), "{text}");
        }
        let default = parse(&["--pid", "7", "--tool", "2"]).unwrap();
        let (address, tool) = (JobAddress::Scrun(7), ToolId(2));
        assert_eq!(default, EndTool::Signal { address, tool, signal: 15, socket: None });
    }
}
