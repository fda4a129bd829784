//! `scdb JOB gdb RANK`: a stub of gdb's remote serial protocol for one rank.
//!
//! The stub is a client of the tool control service of the rank's host. Therefore that host needs
//! no debugger server. The rules of tools also apply: the service does not report stops of the
//! scheduler to the debugger, and if the debugger dies, the service undoes its changes. The daemons
//! relay the messages, so the rank may be on any host.
//!
//! | file | contents |
//! |---|---|
//! | `session.rs` | packets from and to the debugger |
//! | `target.rs` | the requests of the protocol |
//! | `run_control.rs` | steps, stops and signals |
//! | `debug_registers.rs` | watchpoints and hardware breakpoints of all threads |
//! | `thread_local.rs` | addresses of thread-local variables |
//! | `registers.rs`, `signals.rs` | numbers and layouts |
//! | `files.rs` | program and libraries |
//! | `rank.rs` | messages to the tool control service |
//! | `service.rs` | the connection to this service |
//! | `listener.rs` | a socket for one debugger |

mod debug_registers;
mod files;
mod listener;
mod rank;
mod registers;
mod run_control;
mod service;
mod session;
mod signals;
mod target;
mod thread_local;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigSet, Signal};

use crate::job_address::JobAddress;
pub use files::program_here;
use listener::DebuggerSocket;
use rank::{Rank, RankResult};
use run_control::is_exit;
pub use service::RankService;
use session::{Debugger, is_of_debugger};
use target::RankTarget;

/// How the debugger is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebuggerPlace {
    /// The debugger has started this process and uses its standard input and output.
    Pipe,
    /// The debugger connects to a socket.
    Socket,
}

/// `scdb JOB gdb RANK`
#[derive(Debug, PartialEq, Eq)]
pub struct GdbOptions {
    /// The job.
    pub address: JobAddress,
    /// The rank.
    pub rank: u32,
    /// How the debugger is connected.
    pub place: DebuggerPlace,
    /// The socket of the scored of this host.
    pub socket: Option<PathBuf>,
}

/// Serves a debugger until it detaches or disconnects.
///
/// # Errors
/// One line with the reason.
pub fn run(options: GdbOptions) -> Result<(), String> {
    let GdbOptions { address, rank, place, socket } = options;
    if place == DebuggerPlace::Pipe && io::stdin().is_terminal() {
        // Otherwise the rank would stop and nothing would continue it.
        return Err("standard input is a terminal, not a debugger; let the debugger start scdb \
                    (gdb -ex 'target remote | scdb ...'), or use -listen"
            .to_owned());
    }
    let named = |reason: String| format!("rank {rank}: {reason}");
    let link = RankService::new(address.find()?, rank, socket).connect()?;
    let attach = || Rank::control(link).map_err(named);
    let (attached, debugger) = match place {
        DebuggerPlace::Pipe => {
            // A ^C on the terminal is for the debugger, which sends it by the protocol.
            _ = SigSet::from(Signal::SIGINT).thread_block();
            let copy = |result: io::Result<_>| {
                result.map_err(|error| format!("standard input and output: {error}"))
            };
            let input = copy(io::stdin().as_fd().try_clone_to_owned())?;
            let output = copy(io::stdout().as_fd().try_clone_to_owned())?;
            (attach()?, Debugger::new(input, output))
        }
        DebuggerPlace::Socket => {
            // Attach before a debugger connects, so that an error is reported at once. The rank
            // runs meanwhile.
            let attached = attach()?;
            (attached, listener::accept_one()?)
        }
    };
    serve(debugger, RankTarget::stop(attached)).map_err(named)
}

fn serve(debugger: Debugger, target: RankResult<RankTarget>) -> Result<(), String> {
    let mut target = target.map_err(|error| match is_exit(&error) {
        true => "it has ended".to_owned(),
        false => error.to_string(),
    })?;
    session::serve(debugger, &mut target)
}

/// A rank that a debugger only inspects. The caller makes sure that the rank is stopped while the
/// debugger reads its state. The service refuses each change, because the debugger has no control
/// authority.
#[derive(Debug)]
pub struct RankView {
    rank: Rank,
    socket: DebuggerSocket,
}

impl RankView {
    /// Attaches to a rank.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn open(service: RankService) -> Result<Self, String> {
        let rank = Rank::attach(service.connect()?)?;
        Ok(Self { rank, socket: DebuggerSocket::new()? })
    }

    /// Serves the debugger that connects to the path, until `look` returns. If a debugger has
    /// connected, `look` must end the debugger or make it detach.
    ///
    /// # Errors
    /// The error of the rank, if there is one, or the error of `look`.
    pub fn serve<T>(self, look: impl FnOnce(&Path) -> Result<T, String>) -> Result<T, String> {
        let Self { rank, socket } = self;
        std::thread::scope(|scope| {
            let stub = scope.spawn(|| serve(socket.accept()?, RankTarget::look(rank)));
            let result = look(socket.path());
            socket.give_up();
            match (result, stub.join()) {
                (Err(_), Ok(Err(reason))) if !is_of_debugger(&reason) => Err(reason),
                (result, _) => result,
            }
        })
    }
}
