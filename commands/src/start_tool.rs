//! `start_tool`: starts a tool next to a running job.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use score_proto::message::OsBytes;
use score_proto::tool_start::{
    TOOL_FILES_PLACEHOLDER, ToolAction, ToolActionAnswer, ToolProgram, split_words,
};

use crate::args::Args;
use crate::job_address::JobAddress;
use crate::process_table;
use crate::tool_client::{self, ToolError};
use crate::tool_files::ToolFiles;

/// The text of `-help`.
pub const USAGE: &str = "\
usage: start_tool --id JOB | --pid SCRUN --tool PATH [--args \"WORD WORD...\"] [--hosts H,H...]
                  [--files DIR] [--socket PATH]
  Starts a tool for your running job, one process on each host. start_tool returns when the tool
  runs on all of these hosts.
  --id JOB      the job, by its number (scps), from any host of the cluster; or PID@HOST
  --pid SCRUN   the job of the scrun with this process id on this host
  --tool PATH   the tool, with the same path on each host; a name without a slash is searched in
                $PATH
  --args WORDS  arguments of the tool: blanks, quotes and backslashes as in a shell
  --hosts H,H   only on these hosts of the job
  --files DIR   copy this directory to the hosts before the tool starts, and remove it there when
                the tool has ended; %{files} in PATH and WORDS is the path of the copy
  --socket PATH socket of the scored of this host; default: SCORED_SOCKET, else
                /run/scored/scored.sock
  -help         this text
";

const OPTION_NAMES: &[&str] = &["id", "pid", "tool", "args", "hosts", "files", "socket", "help"];

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum StartTool {
    /// `-help`
    Help,
    /// Start a tool.
    Start {
        /// The job.
        address: JobAddress,
        /// The tool.
        program: ToolProgram,
        /// The hosts. Empty means all hosts of the job.
        hosts: Vec<String>,
        /// `--files DIR`
        files: Option<PathBuf>,
        /// `--socket PATH`
        socket: Option<PathBuf>,
    },
}

impl StartTool {
    /// Parses the words after the command's name.
    ///
    /// # Errors
    /// One line that names the word at fault.
    pub fn parse(args: &[OsString]) -> Result<Self, String> {
        let (mut address, mut tool, mut arguments) = (None, None, Vec::new());
        let (mut hosts, mut files, mut socket) = (Vec::new(), None, None);
        let mut args = Args::new(args);
        while let Some(arg) = args.next() {
            match arg.option() {
                Some("help" | "h") => return Ok(Self::Help),
                Some("id") => set(&mut address, tool_client::parse_id(args.value(&arg)?)?)?,
                Some("pid") => set(&mut address, tool_client::parse_pid(args.value(&arg)?)?)?,
                Some("tool") => tool = Some(args.value(&arg)?.clone()),
                Some("args") => {
                    let text = args.value(&arg)?.to_str();
                    let text = text.ok_or_else(|| format!("{}: not UTF-8 text", arg.text()))?;
                    arguments = split_words(text)
                        .map_err(|line| format!("{} {text}: {line}", arg.text()))?;
                }
                Some("hosts") => {
                    let text = args.value(&arg)?.to_string_lossy();
                    hosts = text.split(',').map(str::to_owned).collect();
                    if hosts.iter().any(String::is_empty) {
                        return Err(format!("{} {text}: an empty name", arg.text()));
                    }
                }
                Some("files") => files = Some(args.value(&arg)?.into()),
                Some("socket") => socket = Some(args.value(&arg)?.into()),
                Some(_) => return Err(arg.unknown(OPTION_NAMES)),
                None => return Err(format!("{}: unknown word", arg.text())),
            }
        }
        let address = address.ok_or("--id JOB or --pid SCRUN is missing")?;
        let tool = tool.ok_or("--tool PATH is missing")?;
        let path = OsBytes(absolute(tool)?.into_vec());
        let arguments = arguments.into_iter().map(|word| OsBytes(word.into_bytes())).collect();
        let program = ToolProgram { path, arguments };
        program.check()?;
        Ok(Self::Start { address, program, hosts, files, socket })
    }

    /// Executes the command. Returns the text to print.
    ///
    /// # Errors
    /// The reason why the tool was not started.
    pub fn execute(self) -> Result<String, ToolError> {
        let Self::Start { address, program, hosts, files, socket } = self else {
            return Ok(USAGE.to_owned());
        };
        score_mpir::begin();
        let path = String::from_utf8_lossy(&program.path.0).into_owned();
        let target = address.find()?;
        let files = files.as_deref().map(ToolFiles::open).transpose()?;
        let digest = files.as_ref().map(ToolFiles::digest);
        let action = ToolAction::Start { program, hosts, files: digest };
        let answer = match files {
            None => tool_client::request(target, action, socket.as_deref())?,
            Some(files) => {
                tool_client::accepted(files.start(target, action, socket.as_deref())?)?
            }
        };
        let ToolActionAnswer::Started(tool) = answer else {
            return Err("scored has sent an unexpected answer".into());
        };
        process_table::show(target, address.to_string(), socket.as_deref()).map_err(|error| {
            let reason = format!("tool {tool} ({path}) has been started, but {}", error.reason);
            ToolError { reason, ..error }
        })?;
        Ok(format!("tool {path} has been started with ID {tool}.\n"))
    }
}

fn set(slot: &mut Option<JobAddress>, address: JobAddress) -> Result<(), String> {
    match slot.replace(address) {
        None => Ok(()),
        Some(_) => Err("--id or --pid is given more than once".to_owned()),
    }
}

/// Makes a path with a slash absolute, because the tool does not start in the directory of this
/// command. A path in the job's tool files is not changed, because its directory differs between
/// hosts.
fn absolute(tool: OsString) -> Result<OsString, String> {
    let is_in_files = tool.as_bytes().starts_with(TOOL_FILES_PLACEHOLDER.as_bytes());
    if is_in_files || !tool.as_bytes().contains(&b'/') {
        return Ok(tool);
    }
    let path = std::path::absolute(&tool);
    path.map(PathBuf::into_os_string).map_err(|error| format!("the working directory: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::JobId;

    fn parse(words: &[&str]) -> Result<StartTool, String> {
        StartTool::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn every_error_names_the_faulty_word() {
        for (words, expected) in [
            (&["--tol", "x"][..], "did you mean -tool?"),
            (&["--tool", "x"], "--id JOB or --pid SCRUN is missing"),
            (&["--id", "7"], "--tool PATH is missing"),
            (&["--id", "x", "--tool", "t"], "--id x: neither the number of a job"),
            (&["--pid", "0", "--tool", "t"], "--pid 0: not a process id"),
            (&["--id", "1@no such host", "--tool", "t"], "run the command on host no such host"),
            (&["--id", "7", "--pid", "8", "--tool", "t"], "more than once"),
            (&["--id", "7", "--tool", "t", "--args", "'a"], "the quote ' is not closed"),
            (&["--id", "7", "--tool", "t", "--hosts", "a,"], "an empty name"),
            (&["--id", "7", "--tool", ""], "the tool has no name"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        let host = score_sys::host_name::system_host_name();
        let id = format!("12@{host}");
        for (id, address) in [("7", JobAddress::Cluster(JobId(7))), (&id, JobAddress::Scrun(12))] {
            let words = ["-id", id, "-tool", "/t", "-args", "a 'b c'", "-hosts", "h,i"];
            let words = [&words[..], &["-files", "d/e"]].concat();
            let StartTool::Start { address: found, program, hosts, files, socket } =
                parse(&words).unwrap()
            else {
                panic!("{id}")
            };
            assert_eq!((found, socket), (address, None));
            assert_eq!(files, Some(PathBuf::from("d/e")));
            assert_eq!(program.path.0, b"/t");
            assert_eq!(program.arguments, ["a", "b c"].map(|word| OsBytes(word.into())));
            assert_eq!(hosts, ["h", "i"]);
        }
        // A relative path is relative to this directory, except in the job's tool files.
        let here = std::env::current_dir().unwrap().join("b/t");
        for (tool, path) in [("%{files}/b/t", "%{files}/b/t"), ("b/t", here.to_str().unwrap())] {
            let parsed = parse(&["-id", "7", "-tool", tool]).unwrap();
            let StartTool::Start { program, .. } = parsed else { panic!("{tool}") };
            assert_eq!(program.path, OsBytes(path.into()));
        }
    }
}
