//! The list of jobs, which scps requests.

use std::path::Path;

use score_benches::client::{log_in, receive_answer};
use score_proto::client_session::SESSION_JOB;
use score_proto::message::{ConsoleRequest, UserRequest};
use score_proto::server_message::{ConsoleReply, ListAnswer};

use crate::BenchResult;

/// One request for the list of jobs by the user of this process.
pub fn list_jobs(socket: &Path) -> BenchResult<()> {
    let mut client = log_in(socket, nix::unistd::getuid().as_raw())?;
    client.send(SESSION_JOB, &UserRequest::Console(ConsoleRequest::List))?;
    loop {
        match receive_answer::<ConsoleReply<ListAnswer>>(&mut client)? {
            ConsoleReply::Finished { .. } => return Ok(()),
            ConsoleReply::Answer(_) => {}
        }
    }
}
