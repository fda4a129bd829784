//! The MPIR interface of start_tool. A debugger that runs start_tool on any host finds the
//! processes of the job in MPIR_proctable. It can also request the start of its servers, as with
//! scrun.

use std::path::Path;

use score_mpir::{DebugState, TableBuilder};
use score_proto::message::{ConsoleRequest, OsBytes};
use score_proto::server_message::ListedProcesses;
use score_proto::tool_start::ScrunJob;

use crate::scored_client::QueryStream;
use crate::tool_client::{self, ToolError};

/// If a debugger has set the flag, fills the table, starts the debugger's servers, and shows the
/// table to the debugger. The debugger may then stop this process for an unlimited time.
///
/// # Errors
/// The reason why there is no table, or why there are no servers. In the second case the debugger
/// still gets the table.
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

/// Lists the processes of the job's running stage, or of the next stage, and the paths of its
/// programs.
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
