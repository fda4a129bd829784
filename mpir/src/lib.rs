//! MPIR: the interface of a starter of parallel jobs for debuggers without knowledge of SCore (CDTI
//! 2.1 and 2.2, docs/dev/tools.md). Starters are scrun and start_tool.
//!
//! An executable exports the symbols only if its build script says so:
//! `cargo:rustc-link-arg-bin=NAME=-Wl,--export-dynamic-symbol=MPIR_*`. The table of dynamic symbols
//! then holds them, and `strip` keeps that table.
//!
//! | file | contents |
//! |---|---|
//! | `symbols` | the variables and the function that a debugger looks for |
//! | `process_table` | the table of processes, built from the lists of the job's hosts |
//! | `servers` | the debugger's servers that the starter starts |
//! | `subset` | the ranks for which the starter starts servers |

mod process_table;
mod servers;
mod subset;
mod symbols;

use std::ffi::CString;

pub use process_table::{CompleteTable, TableBuilder};
pub use servers::requested_start;
pub use symbols::{
    DebugState, Row, call_breakpoint, is_being_debugged, remove_stale_breakpoints,
    reset_being_debugged,
};

/// Shows a debugger that this process has started and has not yet submitted a request. The debugger
/// may set its variables now.
pub fn begin() {
    symbols::tolerate_stale_breakpoints();
    call_breakpoint(DebugState::Begun);
}

/// Publishes the identifier of the job (`MPIR_job_id`).
pub fn set_job_id(id: String) {
    symbols::set_job_id(c_string(id));
}

/// Publishes the table of processes (`MPIR_proctable`). `programs` are the paths of the elements.
pub fn publish_table(table: CompleteTable, programs: impl IntoIterator<Item = Vec<u8>>) {
    let hosts = table.hosts.into_iter().map(c_string).collect();
    symbols::publish_table(hosts, programs.into_iter().map(c_string).collect(), &table.rows);
}

fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}
