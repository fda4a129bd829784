//! Stops and resumes the job on this host in a separate thread. Among busy processes, the
//! shepherd's main loop would not run in time. See docs/dev/time-sharing.md.
//!
//! Most jobs are never stopped, and starting a thread takes a noticeable part of a short job's
//! time. If realtime scheduling can also be obtained later, the thread is therefore started only
//! when it is needed.
//!
//! | file | content |
//! |---|---|
//! | `handle.rs` | the socket, until the switch thread is started |
//! | `run_gate.rs` | state that thread and loop share: whether the job is stopped |
//! | `processes.rs` | the processes of the job, and their stops |
//! | `thread.rs` | the switch thread |
//! | `idle_poll.rs` | when the thread polls next whether all processes are idle |

mod handle;
mod idle_poll;
mod processes;
mod run_gate;
mod thread;

use std::io;
use std::sync::Arc;

use score_client::FramedSocket;
use score_proto::job_control::SwitchOrder;

use super::inspection::ProcessInspector;
use crate::sys::realtime;
pub use handle::SwitchHandle;
pub use run_gate::RunGate;

/// Stack size of the thread.
const STACK: usize = 256 * 1024;

/// Starts the switch thread. The thread executes the order in `received`, then receives further
/// orders on its own socket and replies with `SwitchReport::Stopped`. Between orders it polls
/// `inspector`. It inherits the scheduling class of the caller, and the caller returns to the
/// normal class.
///
/// # Errors
/// The errors of pthread_create(3).
fn start(
    received: (FramedSocket, Option<SwitchOrder>),
    run_gate: &Arc<RunGate>,
    inspector: ProcessInspector,
) -> io::Result<()> {
    let thread_gate = Arc::clone(run_gate);
    let spawned = std::thread::Builder::new()
        .name("switch".to_owned())
        .stack_size(STACK)
        .spawn(move || thread::run(received, &thread_gate, inspector));
    realtime::leave();
    spawned.map(drop)
}
