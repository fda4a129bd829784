//! The list of jobs, which scps requests.

use std::path::Path;

use score_benches::client::Client;
use score_proto::client_session::SESSION_JOB;
use score_proto::message::{ConsoleRequest, UserRequest};
use score_proto::server_message::{ConsoleReply, ListAnswer};

use crate::BenchResult;

/// One request for the list of jobs by the user of this process.
pub fn list_jobs(socket: &Path) -> BenchResult<()> {
    let mut client = Client::log_in(socket, nix::unistd::getuid().as_raw())?;
    client.send(SESSION_JOB, &UserRequest::Console(ConsoleRequest::List))?;
    loop {
        match client.receive_answer::<ConsoleReply<ListAnswer>>()? {
            ConsoleReply::Finished { .. } => return Ok(()),
            ConsoleReply::Answer(_) => {}
        }
    }
}
