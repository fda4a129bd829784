//! How a command of scdb gets to its job.

use std::fs;
use std::path::PathBuf;

use score_proto::ids::JobId;
use score_proto::message::{ConsoleRequest, ToolCall};

use crate::job_address::JobAddress;
use crate::scored_client::QueryStream;

/// Sends a command to a job. `call.job` is set here.
///
/// # Errors
/// One line.
pub fn send(
    address: JobAddress,
    call: ToolCall,
    socket: Option<PathBuf>,
) -> Result<QueryStream, String> {
    match address {
        JobAddress::Cluster(job) => {
            QueryStream::open(ConsoleRequest::Tool(ToolCall { job, ..call }), socket)
        }
        JobAddress::Scrun(pid) => {
            // The only job.
            let call = ToolCall { job: JobId(0), ..call };
            QueryStream::open_tool(scored_of(pid)?, &call)
        }
    }
}

/// The scored that a scrun or scout has started: in single-user mode it is a child of it.
fn scored_of(pid: u32) -> Result<u32, String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(&path).map_err(|_| {
        format!("process {pid}: there is none on this host; ps -C scrun lists them")
    })?;
    let is_scored = |child: &u32| {
        fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "scored")
    };
    let mut children = children.split_ascii_whitespace().filter_map(|word| word.parse().ok());
    children.find(is_scored).ok_or_else(|| {
        format!(
            "process {pid} is no scrun with a scored of its own; for a job of a cluster give its \
             number, which scps shows"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_started_no_scored_is_named() {
        let error = scored_of(std::process::id()).unwrap_err();
        assert!(error.contains("no scrun"), "{error}");
        let error = scored_of(u32::MAX).unwrap_err();
        assert!(error.contains("process 4294967295: there is none"), "{error}");
    }
}
