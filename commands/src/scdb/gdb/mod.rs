//! `scdb JOB gdb RANK`: a stub of gdb's remote serial protocol for one rank. It is a client of the
//! tool control service of the rank's host, so that no debugger's server has to be installed there,
//! and so that the rules of tools hold: no debugger sees the stops of the scheduler, and what one
//! that dies has done is undone.
//!
//! | file | what |
//! |---|---|
//! | `session.rs` | packets in and out |
//! | `target.rs` | what the protocol can ask |
//! | `run_control.rs` | steps, stops and signals |
//! | `debug_registers.rs` | watchpoints and hardware breakpoints of all threads |
//! | `registers.rs`, `signals.rs` | numbers and layouts |
//! | `files.rs` | program and libraries |
//! | `rank.rs` | messages to the tool control service |
//! | `listener.rs` | a socket for one debugger |

mod debug_registers;
mod files;
mod listener;
mod rank;
mod registers;
mod run_control;
mod session;
mod signals;
mod target;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use score_proto::message::{ConsoleRequest, ToolCall};
use score_proto::nodeset::NodeSet;
use score_proto::server_message::ToolAnswer;
use score_proto::tool_command::{EventBody, OTHER_RELEASE, ToolRequest, ToolResult};

use crate::job_address::JobAddress;
use crate::scored_client::{QueryStream, Reply};
use rank::Rank;
use run_control::is_exit;
use session::Debugger;
use target::RankTarget;

/// How long the host of the rank may take to say where its socket is.
const FIND_TIMEOUT: Duration = Duration::from_secs(10);
/// The answer comes this long after that time, at most.
const ANSWER_GRACE: Duration = Duration::from_secs(15);
/// How long to wait for a message before the time is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Where the debugger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebuggerPlace {
    /// It has started this process, and has its standard input and output.
    Pipe,
    /// It connects to a socket.
    Socket,
}

/// `scdb JOB gdb RANK`
#[derive(Debug, PartialEq, Eq)]
pub struct GdbOptions {
    /// The job.
    pub address: JobAddress,
    /// The rank.
    pub rank: u32,
    /// Where the debugger is.
    pub place: DebuggerPlace,
    /// The socket of the scored of this host.
    pub socket: Option<PathBuf>,
}

/// The tool control service of a rank.
#[derive(Debug)]
struct Service {
    job: u64,
    path: PathBuf,
    host: String,
}

/// Asks where the rank is. scored answers the owner of the job alone.
fn find(address: JobAddress, rank: u32, socket: Option<PathBuf>) -> Result<Service, String> {
    let target = address.find()?;
    let call = ToolCall {
        job: target.job,
        ranks: Some(NodeSet::one(rank)),
        wait_ms: u32::try_from(FIND_TIMEOUT.as_millis()).unwrap_or(u32::MAX),
        body: ToolRequest::Socket.encode(),
        session: None,
    };
    let mut query = QueryStream::open_at(target, ConsoleRequest::Tool(call), socket)?;
    let deadline = Instant::now() + FIND_TIMEOUT + ANSWER_GRACE;
    let mut found = Err(format!("rank {rank}: no answer in time"));
    loop {
        match query.next_reply_within::<ToolAnswer>(POLL_INTERVAL)? {
            Reply::Answer(ToolAnswer::Event { body, .. }) => {
                found = match (body.failure(), body) {
                    (None, EventBody::Answer(bytes)) => socket_of(&bytes),
                    (reason, _) => Err(reason.unwrap_or_default().to_owned()),
                }
                .map(|(path, host)| Service { job: target.job.0.into(), path, host })
                .map_err(|reason| format!("rank {rank}: {reason}"));
            }
            Reply::End => return found,
            _ if Instant::now() < deadline => {}
            _ => return Err("scored has not answered in time".to_owned()),
        }
    }
}

fn socket_of(answer: &[u8]) -> Result<(PathBuf, String), String> {
    match ToolResult::decode(answer) {
        Some(ToolResult::Socket { path, host }) => Ok((OsString::from_vec(path.0).into(), host)),
        Some(ToolResult::Failed(reason)) => Err(reason),
        _ => Err(OTHER_RELEASE.to_owned()),
    }
}

/// Serves a debugger until it leaves.
///
/// # Errors
/// One line.
pub fn run(options: GdbOptions) -> Result<(), String> {
    let GdbOptions { address, rank, place, socket } = options;
    if place == DebuggerPlace::Pipe && io::stdin().is_terminal() {
        // The rank would stand, and nobody would know why.
        return Err("standard input is a terminal, not a debugger: \
                    gdb -ex 'target remote | scdb ...' starts scdb itself; or use -listen"
            .to_owned());
    }
    let Service { job, path, host } = find(address, rank, socket)?;
    let attach = || Rank::attach(&path, job, rank, &host);
    let (attached, debugger) = match place {
        DebuggerPlace::Pipe => {
            // A ^C on the terminal is for the debugger, which sends it in the protocol.
            _ = SigSet::from(Signal::SIGINT).thread_block();
            let copy = |result: io::Result<_>| {
                result.map_err(|error| format!("standard input and output: {error}"))
            };
            let input = copy(io::stdin().as_fd().try_clone_to_owned())?;
            let output = copy(io::stdout().as_fd().try_clone_to_owned())?;
            (attach()?, Debugger::new(input, output))
        }
        DebuggerPlace::Socket => {
            // What can be refused is refused before anybody connects; the rank runs meanwhile.
            let attached = attach()?;
            (attached, listener::accept_one()?)
        }
    };
    let mut target = RankTarget::stop(attached).map_err(|error| match is_exit(&error) {
        true => format!("rank {rank} has ended"),
        false => format!("rank {rank}: {error}"),
    })?;
    session::serve(debugger, &mut target).map_err(|error| format!("rank {rank}: {error}"))?;
    Ok(())
}
