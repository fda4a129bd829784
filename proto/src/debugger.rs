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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debuggers_outside_the_limits_are_refused_with_the_reason() {
        let spec = |max_count, kind| DebuggerSpec { max_count, kind };
        for max_count in [1, MAX_DEBUGGERS] {
            assert_eq!(spec(max_count, DebuggerKind::Xterm).check(), Ok(()));
        }
        for max_count in [0, MAX_DEBUGGERS + 1] {
            let reason = format!("{max_count} debuggers: 1 to 10 are valid");
            assert_eq!(spec(max_count, DebuggerKind::Xterm).check(), Err(reason));
        }
    }

    #[test]
    fn a_script_whose_name_has_a_nul_byte_is_refused() {
        let check = |path: Option<&str>| {
            let path = path.map(|path| OsBytes(path.into()));
            let kind = DebuggerKind::Script(path);
            DebuggerSpec { max_count: DEFAULT_DEBUGGERS, kind }.check()
        };
        assert_eq!((check(None), check(Some("/commands"))), (Ok(()), Ok(())));
        let error = check(Some("a\0b")).unwrap_err();
        assert!(error.contains("NUL byte"), "{error}");
    }
}
