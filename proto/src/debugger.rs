//! Debuggers for processes that have faulted, or have called sc_inspectme (manual 2.4.4, scrun(1),
//! `debug`).

use serde::{Deserialize, Serialize};

use crate::message::OsBytes;

/// The largest number of debuggers of a job at the same time (manual, scrun(1)).
pub const MAX_DEBUGGERS: u8 = 10;
/// The number of debuggers if the user specifies no number.
pub const DEFAULT_DEBUGGERS: u8 = 4;

/// The value of the option `debug`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebuggerSpec {
    /// Largest number of debuggers at the same time, from 1 to [`MAX_DEBUGGERS`].
    pub max_count: u8,
    /// The kind of debugger.
    pub kind: DebuggerKind,
}

/// How a process is debugged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DebuggerKind {
    /// gdb in an xterm, on the display of the job's environment.
    Xterm,
    /// gdb that carries out the commands of this file. Without a file it prints the back-trace.
    Script(Option<OsBytes>),
    /// gdb on the terminal of scrun, one at a time, for processes on scrun's host.
    Terminal,
    /// DDT.
    Ddt,
}

impl DebuggerSpec {
    /// Checks a value that was received from another program.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=MAX_DEBUGGERS).contains(&self.max_count) {
            return Err(format!("{} debuggers: 1 to {MAX_DEBUGGERS} are valid", self.max_count));
        }
        match &self.kind {
            DebuggerKind::Script(Some(path)) if path.0.contains(&0) => {
                Err("the name of the debugger's script holds a NUL byte".to_owned())
            }
            _ => Ok(()),
        }
    }
}
