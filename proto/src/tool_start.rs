//! Tools that run next to a job (docs/dev/tools.md): one process on each host, started by
//! start_tool or by scrun's option `tool`. The daemon of a host starts the process outside of the
//! job's PID namespace.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ids::{JobHostId, JobId};
use crate::job_control::Status;
use crate::message::{FileDigest, OsBytes};
use crate::nodeset::NodeSet;

/// Largest number of tools of a job that run at the same time.
pub const MAX_TOOLS: usize = 4;
/// Largest number of bytes of path and arguments of a tool together.
pub const MAX_TOOL_ARGUMENT_BYTES: usize = 64 << 10;
/// Largest number of arguments of a tool.
pub const MAX_TOOL_ARGUMENTS: usize = 4096;
/// Largest number of names of hosts in a request.
pub const MAX_TOOL_HOSTS: usize = 16 << 10;
/// Largest number of bytes of a tool's output in one message.
pub const MAX_TOOL_LINE: usize = 4096;

/// The version of the messages on the tool control sockets. `tools/protocol` contains it.
pub const TOOL_CONTROL_VERSION: u8 = 7;
/// The tool control socket of a host, in the job's directory.
pub const TOOL_SOCKET: &str = ".toolctl";
/// Environment variable of tools: the job's number.
pub const JOB_ID_ENV: &str = "BG_JOBID";
/// Environment variable of tools: the tool's number.
pub const TOOL_ID_ENV: &str = "BG_TOOLID";
/// Environment variable of tools: the path of the directory that describes the job to tools.
pub const TOOL_DIR_ENV: &str = "SCORE_TOOL_DIR";

/// Environment variable of tools: the path of the files that were given for the job's tools
/// (`scrun -tool-files`), or for this tool (`start_tool --files`).
pub const TOOL_FILES_ENV: &str = "SCORE_TOOL_FILES";
/// The placeholder for that path in the path and the arguments of a tool.
pub const TOOL_FILES_PLACEHOLDER: &str = "%{files}";
/// The directory of these files, in the job's directory.
pub const TOOL_FILES_DIR: &str = ".tool-files";

/// The directory for tools, relative to the job's directory.
pub fn directory_of(job: JobId) -> PathBuf {
    PathBuf::from(format!(".jobs/{job}"))
}

/// The job of a scrun process. scrun publishes it in the name of a memfd that it holds open. The
/// user and root find the name in /proc/PID/fd, even while ^Z or a debugger has stopped scrun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrunJob {
    /// The process id of the single-user scored. `None` means the scored of the host.
    pub daemon: Option<u32>,
    /// The job's number in that daemon, or in the cluster.
    pub job: JobId,
}

impl ScrunJob {
    const PREFIX: &str = "score-job-";

    /// The name of the memfd.
    pub fn memfd_name(&self) -> String {
        format!("{}{}-{}", Self::PREFIX, self.daemon.unwrap_or(0), self.job)
    }

    /// Parses the target of a link in /proc/PID/fd.
    pub fn from_link(target: &str) -> Option<Self> {
        let name = target.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
        let (daemon, job) = name.strip_prefix(Self::PREFIX)?.split_once('-')?;
        let daemon: u32 = daemon.parse().ok()?;
        Some(Self { daemon: (daemon != 0).then_some(daemon), job: JobId(job.parse().ok()?) })
    }
}

/// The number of a tool of a job, from 1. A job never uses a number twice.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct ToolId(pub u32);

impl std::fmt::Display for ToolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A tool's program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolProgram {
    /// The path of the program, which is the same on each host. If the path has no slash, each host
    /// searches the job's `PATH`.
    pub path: OsBytes,
    /// The arguments of the program, without the name of the program.
    pub arguments: Vec<OsBytes>,
}

impl ToolProgram {
    /// The same program, with [`TOOL_FILES_PLACEHOLDER`] replaced by this path.
    #[must_use]
    pub fn with_files(self, files: &[u8]) -> Self {
        let replace = |text: OsBytes| OsBytes(replace_placeholder(&text.0, files));
        let arguments = self.arguments.into_iter().map(replace).collect();
        Self { path: replace(self.path), arguments }
    }

    /// Checks a program that was received from another process.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn check(&self) -> Result<(), String> {
        let strings = || std::iter::once(&self.path).chain(&self.arguments);
        let bytes: usize = strings().map(|string| string.0.len() + 1).sum();
        match () {
            () if self.path.0.is_empty() => Err("the tool has no name".to_owned()),
            () if strings().any(|string| string.0.contains(&0)) => {
                Err("a word of the tool's command line holds a NUL byte".to_owned())
            }
            () if self.arguments.len() > MAX_TOOL_ARGUMENTS || bytes > MAX_TOOL_ARGUMENT_BYTES => {
                Err(format!(
                    "a tool has at most {MAX_TOOL_ARGUMENTS} arguments, and at most \
                     {MAX_TOOL_ARGUMENT_BYTES} bytes of path and arguments"
                ))
            }
            () => Ok(()),
        }
    }
}

/// A user's request about the tools of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolAction {
    /// Start a tool.
    Start {
        /// The program.
        program: ToolProgram,
        /// The names of the hosts. Empty: all hosts of the job.
        hosts: Vec<String>,
        /// The archive of a directory that these hosts get before the tool starts. Only a session
        /// of start_tool may send one ([`crate::tool_files`]).
        files: Option<FileDigest>,
    },
    /// Send a signal to the processes of a tool.
    Signal {
        /// The tool.
        tool: ToolId,
        /// The signal.
        signal: i32,
    },
}

/// The state of a tool after a signal, on the hosts to which the signal was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalOutcome {
    /// The number of hosts on which the tool still runs.
    pub running: u32,
    /// Each status with which the tool has ended, with the number of hosts.
    pub ended: Vec<(Status, u32)>,
    /// The number of hosts that were lost meanwhile.
    pub lost: u32,
}

impl SignalOutcome {
    /// The tool has ended on one more host.
    pub fn add_end(&mut self, status: Status) {
        match self.ended.iter_mut().find(|(other, _)| *other == status) {
            Some((_, hosts)) => *hosts += 1,
            None => self.ended.push((status, 1)),
        }
    }
}

/// The answer to a [`ToolAction`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolActionAnswer {
    /// The tool runs on all hosts.
    Started(ToolId),
    /// The signal was sent on all hosts.
    Signaled(SignalOutcome),
    /// The request had no effect, or all of its effects were undone.
    Refused {
        /// The exit code of the command.
        code: u8,
        /// The reason, in one line.
        reason: String,
    },
}

/// An order about a tool, to the hosts of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOrder {
    /// The tool.
    pub tool: ToolId,
    /// The hosts, by their index in the job.
    pub hosts: NodeSet,
    /// The order.
    pub kind: ToolOrderKind,
}

/// The order to the hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolOrderKind {
    /// Start the tool. Each host answers [`ToolEventKind::Started`] or
    /// [`ToolEventKind::NotStarted`].
    Start {
        /// The program.
        program: ToolProgram,
        /// Whether the hosts have files of this tool ([`crate::tool_files`]).
        has_files: bool,
    },
    /// Send this signal to the tool. Each host on which the tool runs answers
    /// [`ToolEventKind::Signaled`].
    Signal(i32),
}

/// A report about a tool, from a host of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolReport {
    /// The host.
    pub host: JobHostId,
    /// The tool.
    pub tool: ToolId,
    /// The event.
    pub kind: ToolEventKind,
}

/// An event of a tool on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolEventKind {
    /// The host has the files of the tool ([`crate::tool_files`]), and can start the tool.
    FilesReady,
    /// The program of the tool runs.
    Started,
    /// The tool could not be started.
    NotStarted {
        /// Exit code: 126, 127 or 1.
        code: u8,
        /// The reason, in one line.
        reason: String,
    },
    /// A signal was sent to the tool.
    Signaled,
    /// The tool has written this line, without newline.
    Output(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The tool has exited.
    Ended(Status),
}

/// From a daemon to the process that starts and watches a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorOrder {
    /// The first order: start the tool.
    Start(SupervisedTool),
    /// Send this signal to the tool.
    Signal(i32),
    /// The job has ended: send SIGTERM to the tool, and kill it when its time has passed.
    EndJob,
    /// Kill the tool at once.
    Kill,
}

/// A tool on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisedTool {
    /// The job.
    pub job: JobId,
    /// The number of the tool.
    pub tool: ToolId,
    /// The program of the tool.
    pub program: ToolProgram,
    /// NAME=VALUE strings.
    pub environment: Vec<OsBytes>,
    /// The working directory of the tool.
    pub directory: OsBytes,
    /// The job's directory.
    pub job_directory: OsBytes,
    /// The path of the files for this tool or for all tools of the job, if there are any.
    pub files: Option<OsBytes>,
    /// The file mode creation mask.
    pub umask: u32,
    /// After the end of the job: the longest time between two updates of the tool's status file, in
    /// milliseconds.
    pub silence_ms: u32,
    /// After the end of the job: the time after which the tool is killed, in milliseconds.
    pub cleanup_ms: u32,
}

fn replace_placeholder(text: &[u8], value: &[u8]) -> Vec<u8> {
    let mut result = Vec::new();
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        match rest.strip_prefix(TOOL_FILES_PLACEHOLDER.as_bytes()) {
            Some(behind) => {
                result.extend_from_slice(value);
                rest = behind;
            }
            None => {
                result.push(*first);
                rest = others;
            }
        }
    }
    result
}

/// Splits a text into words like a shell: at blanks, with single quotes, double quotes and
/// backslashes. Variables and patterns are not expanded.
///
/// # Errors
/// One line: a quote is not closed, a backslash is the last character, or there are too many words.
pub fn split_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\\' => {
                let escaped = characters.next().ok_or("nothing follows the last backslash")?;
                word.get_or_insert_default().push(escaped);
            }
            '\'' | '"' => quoted(character, &mut characters, word.get_or_insert_default())?,
            other => word.get_or_insert_default().push(other),
        }
        if words.len() > MAX_TOOL_ARGUMENTS {
            return Err(format!("more than {MAX_TOOL_ARGUMENTS} words"));
        }
    }
    words.extend(word);
    Ok(words)
}

/// Appends the text in quotes, up to the closing quote.
fn quoted(
    quote: char,
    characters: &mut std::str::Chars<'_>,
    word: &mut String,
) -> Result<(), String> {
    let unclosed = || format!("the quote {quote} is not closed");
    loop {
        match characters.next().ok_or_else(unclosed)? {
            character if character == quote => return Ok(()),
            '\\' if quote == '"' => match characters.next().ok_or_else(unclosed)? {
                escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                other => word.extend(['\\', other]),
            },
            character => word.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_placeholder_is_replaced_by_the_path_of_the_files() {
        let words = ["%{files}/bin/t", "-l=%{files}:%{files}", "%{file}", "%%{files", ""];
        let arguments = words[1..].iter().map(|word| OsBytes(word.as_bytes().to_vec())).collect();
        let program = ToolProgram { path: OsBytes(words[0].into()), arguments };
        let program = program.with_files(b"/j/%{files}");
        assert_eq!(program.path.0, b"/j/%{files}/bin/t");
        let expected = ["-l=/j/%{files}:/j/%{files}", "%{file}", "%%{files", ""];
        assert_eq!(program.arguments, expected.map(|word| OsBytes(word.into())));
    }

    #[test]
    fn words_are_split_as_a_shell_splits_them() {
        for (text, expected) in [
            ("", &[][..]),
            ("  a\tb  ", &["a", "b"]),
            ("a'b c'd", &["ab cd"]),
            ("'' \"\"", &["", ""]),
            (r#"'a\b' "a\b" a\b"#, &[r"a\b", r"a\b", "ab"]),
            (r"'a\'", &[r"a\"]),
            (r#""say \"x\" \\ \$HOME" $HOME *"#, &[r#"say "x" \ $HOME"#, "$HOME", "*"]),
            (r"a\ b", &["a b"]),
            ("'\"' \"'\"", &["\"", "'"]),
        ] {
            assert_eq!(split_words(text).unwrap(), expected, "{text}");
        }
        for text in ["'a", "\"a", "\"a\\", "\"a\\\"", "a\\"] {
            assert!(split_words(text).is_err(), "{text}");
        }
        assert!(split_words(&"a ".repeat(MAX_TOOL_ARGUMENTS)).is_ok());
        assert!(split_words(&"a ".repeat(MAX_TOOL_ARGUMENTS + 1)).is_err());
    }

    #[test]
    fn a_tool_beyond_the_limits_is_refused_with_the_reason() {
        let program = |path: &str, arguments| ToolProgram { path: OsBytes(path.into()), arguments };
        let argument = |len: usize| OsBytes(vec![b'a'; len]);
        // Each word counts one byte more than its length.
        let longest = MAX_TOOL_ARGUMENT_BYTES - "t".len() - 2;
        assert_eq!(program("t", vec![argument(longest)]).check(), Ok(()));
        assert_eq!(program("t", vec![argument(0); MAX_TOOL_ARGUMENTS]).check(), Ok(()));
        for (wrong, reason) in [
            (program("", vec![]), "has no name"),
            (program("t\0", vec![]), "NUL byte"),
            (program("t", vec![OsBytes(vec![0])]), "NUL byte"),
            (program("t", vec![argument(longest + 1)]), "65536 bytes"),
            (program("t", vec![argument(0); MAX_TOOL_ARGUMENTS + 1]), "4096 arguments"),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(MAX_TOOL_HOSTS, 1 << 14);
    }

    #[test]
    fn the_job_of_a_scrun_process_is_found_by_the_name_of_its_memfd() {
        for (daemon, name) in [(None, "score-job-0-7"), (Some(42), "score-job-42-7")] {
            let job = ScrunJob { daemon, job: JobId(7) };
            assert_eq!(job.memfd_name(), name);
            assert_eq!(ScrunJob::from_link(&format!("/memfd:{name} (deleted)")), Some(job));
            assert_eq!(ScrunJob::from_link(&format!("/memfd:{name}")), None);
        }
        assert_eq!(ScrunJob::from_link("/memfd:score-job-7 (deleted)"), None);
    }

    #[test]
    fn the_directory_for_tools_and_the_text_of_a_tool_contain_their_numbers() {
        assert_eq!(directory_of(JobId(7)), PathBuf::from(".jobs/7"));
        assert_eq!(ToolId(3).to_string(), "3");
    }

    #[test]
    fn hosts_with_the_same_status_are_counted_together() {
        let (success, failure) = (Status::Exited(0), Status::Exited(1));
        let mut outcome = SignalOutcome::default();
        for status in [success, failure, success, Status::Signaled(9)] {
            outcome.add_end(status);
        }
        assert_eq!(outcome.ended, [(success, 2), (failure, 1), (Status::Signaled(9), 1)]);
    }
}
