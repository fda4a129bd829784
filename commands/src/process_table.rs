//! start_tool as a starter of MPIR: a debugger that runs it on any host finds the processes of the
//! job in its table, and has servers started as by scrun.

use std::path::Path;

use score_mpir::{DebugState, TableBuilder};
use score_proto::message::{ConsoleRequest, OsBytes};
use score_proto::server_message::ListedProcesses;
use score_proto::tool_start::ScrunJob;

use crate::scored_client::QueryStream;
use crate::tool_client::{self, ToolError};

/// If a debugger has set the flag: fills the table, starts the debugger's servers, and shows the
/// debugger that all is there. It may stop this process for as long as it likes.
///
/// # Errors
/// Why there is no table, or why there are no servers. The table is shown in the second case.
pub fn show(target: ScrunJob, id: String, socket: Option<&Path>) -> Result<(), ToolError> {
    if !score_mpir::is_being_debugged() {
        return Ok(());
    }
    score_mpir::set_job_id(id);
    let (builder, programs) = list(target, socket)?;
    let table = builder.finish().ok_or("MPIR_proctable: the job has not listed all processes")?;
    let servers = score_mpir::requested_start(&table).map_err(ToolError::from);
    score_mpir::publish_table(table, programs.into_iter().map(|path| path.0));
    let started = servers.and_then(|start| match start {
        None => Ok(()),
        Some(action) => tool_client::request(target, action, socket).map(|_| ()),
    });
    score_mpir::call_breakpoint(DebugState::Spawned);
    started
}

/// The processes of the job's running stage, or of the next one, and the paths of its programs.
fn list(target: ScrunJob, socket: Option<&Path>) -> Result<(TableBuilder, Vec<OsBytes>), String> {
    let request = ConsoleRequest::Processes(target.job);
    let mut query = QueryStream::open_at(target, request, socket.map(Path::to_owned))?;
    let mut list = (TableBuilder::new(0, 0, 0), Vec::new());
    while let Some(part) = query.next_reply()? {
        match part {
            ListedProcesses::Stage { stage, programs, nodes } => {
                list = (TableBuilder::new(stage, programs.len(), nodes as usize), programs);
            }
            ListedProcesses::Block { host_name, block } => list.0.add(&host_name, &block),
        }
    }
    Ok(list)
}
