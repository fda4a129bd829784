//! Finds processes in /proc by a marker in their environment. Every process that a job starts
//! inherits the marker, through setsid and double forks and into PID namespaces.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that holds the marker.
pub const MARKER_ENV: &str = "HARNESS_MARK";

/// A process.
#[derive(Debug, Clone)]
pub struct Process {
    /// The process id in this PID namespace.
    pub pid: i32,
    /// The parent's process id.
    pub parent: i32,
    /// The process id of the leader of the session.
    pub session: i32,
    /// The state letter in /proc/PID/stat.
    pub state: char,
    /// The arguments, joined by blanks.
    pub command: String,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain anything. The fields begin after the last
        // parenthesis.
        let fields = stat.rsplit_once(')')?.1;
        let mut fields = fields.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&arguments).replace('\0', " ").trim_end().to_string();
        Some(Self { pid, parent, session, state, command })
    }

    /// The name of the program file, without its directory.
    pub fn program(&self) -> String {
        let exe = fs::read_link(format!("/proc/{}/exe", self.pid)).unwrap_or_default();
        exe.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The name of the process (comm).
    fn name(&self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        name.trim_end().to_owned()
    }

    /// The resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    }

    /// Sends a signal. A process that has exited already is not an error.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid), signal);
    }

    /// Whether this is a process of scored that has set its name to `name`.
    pub fn has_name(&self, name: &str) -> bool {
        self.program() == "scored" && self.name() == name
    }

    /// Whether this is scored's shepherd.
    pub fn is_shepherd(&self) -> bool {
        self.program() == "scored" && self.name() == "scored-shepherd"
    }

    /// Whether this is scored itself.
    pub fn is_scored(&self) -> bool {
        self.program() == "scored" && self.name() == "scored"
    }

    /// Whether this is scrun.
    pub fn is_scrun(&self) -> bool {
        self.program() == "scrun"
    }
}

/// Returns all living processes with this marker, in ascending order of their ids.
pub fn with_marker(marker: &str) -> Vec<Process> {
    let marker_variable = format!("{MARKER_ENV}={marker}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        if environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == marker_variable.as_bytes())
        {
            found.extend(Process::read(pid).filter(|process| process.state != 'Z'));
        }
    }
    found.sort_by_key(|process| process.pid);
    found
}
