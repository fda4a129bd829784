//! Stopping and continuing the job on this host, in a thread that does nothing else: among busy
//! processes the shepherd's own loop would be late. See docs/time-sharing.md.
//!
//! | file | what |
//! |---|---|
//! | `gate.rs` | what thread and loop share: whether the job is stopped |
//! | `members.rs` | which processes there are, and their stops |
//! | `thread.rs` | the thread |
//! | `turn.rs` | when it looks next whether all processes are idle |

mod gate;
mod members;
mod thread;
mod turn;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mio::{Registry, Token, Waker};

use super::sight::Sight;
use crate::sys::{prompt, stop};
pub use gate::Gate;

/// Stack of the thread.
const STACK: usize = 256 * 1024;

/// Starts the thread, which hears `Order::Stop` and `Order::Run` on a socket of its own and answers
/// with `Report::Stopped`. In between it looks at `sight`. It keeps the scheduling class of its
/// caller, who becomes normal again. `token`: as what the loop is woken that has asked for it by
/// [`Gate::wake_me`].
///
/// # Errors
/// As pthread_create(3), timer_create(2).
pub fn start(
    socket: OwnedFd,
    registry: &Registry,
    token: Token,
    sight: Sight,
) -> io::Result<Arc<Gate>> {
    stop::ignore_stops_of_children()?;
    let gate = Arc::new(Gate::new(Waker::new(registry, token)?));
    let theirs = Arc::clone(&gate);
    let made = std::thread::Builder::new()
        .name("switch".to_owned())
        .stack_size(STACK)
        .spawn(move || thread::run(socket, &theirs, sight));
    prompt::leave();
    made.map(|_| gate)
}
