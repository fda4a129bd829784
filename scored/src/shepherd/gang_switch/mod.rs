//! Stopping and continuing the job on this host, in a thread that does nothing else: among busy
//! processes the shepherd's own loop would be late. See docs/time-sharing.md.
//!
//! Most jobs are never stopped, and a thread costs a tenth of a short one: where it can have its
//! right to be prompt later, too, it is started when there is something for it to do.
//!
//! | file | what |
//! |---|---|
//! | `handle.rs` | the socket, as long as there is no thread |
//! | `run_gate.rs` | what thread and loop share: whether the job is stopped |
//! | `processes.rs` | which processes there are, and their stops |
//! | `thread.rs` | the thread |
//! | `idle_poll.rs` | when it looks next whether all processes are idle |

mod handle;
mod idle_poll;
mod processes;
mod run_gate;
mod thread;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use score_proto::frame::Decoder;
use score_proto::job_control::Order;

use super::inspection::ProcessInspector;
use crate::sys::realtime;
pub use handle::SwitchHandle;
pub use run_gate::RunGate;

/// Stack of the thread.
const STACK: usize = 256 * 1024;

/// Starts the thread, which hears `Order::Stop` and `Order::Run` on a socket of its own, after
/// `first`, and answers with `Report::Stopped`. In between it looks at `inspector`. It keeps the
/// scheduling class of its caller, who becomes normal again.
///
/// # Errors
/// As pthread_create(3).
fn start(
    received: (UnixStream, Decoder, Option<Order>),
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
