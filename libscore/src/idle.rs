//! The idle flag (manual 3.5.2). There is one for each thread. Figure 2.9 of the manual sets the
//! flag on EBUSY while another thread receives. Therefore one flag for the process could mark a
//! working process as idle.

use std::cell::Cell;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use score_proto::carea::{WaitingFor, board};
use score_proto::mpi_call::MpiCallRecord;

use crate::area::Area;
use crate::session::{self, Session};
use crate::sync::{AtomicBool, Ordering};

/// The state of a thread in the C-Area.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IdleSlot {
    /// The thread has not declared its state yet.
    Unknown,
    /// The thread's slot, and whether the thread is idle.
    Slot(usize, bool),
    /// There was no free slot: the thread counts as busy until it ends.
    Overflow,
}

struct ThreadIdleState(Cell<IdleSlot>);

thread_local! {
    static THREAD: ThreadIdleState = const { ThreadIdleState(Cell::new(IdleSlot::Unknown)) };
}

impl ThreadIdleState {
    /// Claims a slot if the thread has none. In a new slot the thread is busy.
    fn claim_slot(&self, area: &Area) -> IdleSlot {
        if self.0.get() == IdleSlot::Unknown {
            let tid = nix::unistd::gettid().as_raw().unsigned_abs();
            let slot = area.claim_slot(tid);
            self.0.set(slot.map_or(IdleSlot::Overflow, |number| IdleSlot::Slot(number, false)));
        }
        self.0.get()
    }

    fn become_idle(&self, session: &Session, waiting_for: WaitingFor) {
        let area = &session.area;
        match self.claim_slot(area) {
            IdleSlot::Slot(number, false) => {
                area.become_idle(number, waiting_for, job_time_ns(session));
                self.0.set(IdleSlot::Slot(number, true));
            }
            IdleSlot::Slot(number, true) => area.set_waiting_for(number, waiting_for),
            IdleSlot::Unknown | IdleSlot::Overflow => {}
        }
    }

    /// Returns whether the thread was idle.
    fn become_busy(&self, area: &Area) -> bool {
        let IdleSlot::Slot(number, true) = self.claim_slot(area) else { return false };
        area.become_busy(number);
        self.0.set(IdleSlot::Slot(number, false));
        true
    }
}

impl Drop for ThreadIdleState {
    fn drop(&mut self) {
        // A thread of a forked child has a copy of its parent's state, but the slot belongs to the
        // parent.
        let Some(session) = session::of_this_process() else { return };
        if self.0.get() == IdleSlot::Unknown {
            return;
        }
        self.become_busy(&session.area);
        match self.0.get() {
            IdleSlot::Slot(number, _) => session.area.release_slot(number),
            IdleSlot::Overflow => session.area.leave_overflow(),
            IdleSlot::Unknown => {}
        }
    }
}

/// The job's time in nanoseconds; it does not advance while the job is stopped.
fn job_time_ns(session: &Session) -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    let stopped = session.board.u64(board::STOPPED_NS).load(Ordering::Relaxed);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).saturating_sub(stopped)
}

/// Runs `action` with the calling thread and the session. Does nothing before score_initialize, in
/// local execution, in a forked child, or in a thread that is ending.
fn with_thread<T>(action: impl FnOnce(&ThreadIdleState, &Session) -> T) -> Option<T> {
    let session = session::of_this_process()?;
    THREAD.try_with(|thread| action(thread, session)).ok()
}

/// Declares that the calling thread only waits for a message.
pub fn become_idle() {
    wait_idle(WaitingFor::Message);
}

/// Like [`become_idle`], in a call of MPI that waits for other processes. Deadlock reports name the
/// call.
pub fn become_idle_in_mpi_call(record: &MpiCallRecord) {
    with_thread(|thread, session| {
        // The call is recorded before the thread becomes idle, so that a reader that finds the
        // thread idle also finds the call.
        if let IdleSlot::Slot(number, false) = thread.claim_slot(&session.area) {
            session.area.set_mpi_call(number, record);
        }
        thread.become_idle(session, WaitingFor::MpiCall);
    });
}

/// Declares that the calling thread has something to do. Call it before you release the message
/// that woke the thread (manual 2.3).
pub fn become_busy() {
    with_thread(|thread, session| thread.become_busy(&session.area));
}

/// Declares the calling thread idle, with the reason.
pub(crate) fn wait_idle(waiting_for: WaitingFor) {
    with_thread(|thread, session| thread.become_idle(session, waiting_for));
}

/// Runs `call`, during which the thread is idle, because it only waits. Afterwards the thread is
/// busy, whatever it was before, because a thread that has returned from a call runs.
pub(crate) fn while_idle<T>(waiting_for: WaitingFor, call: impl FnOnce() -> T) -> T {
    wait_idle(waiting_for);
    let result = call();
    become_busy();
    result
}

/// Runs `call`, during which the thread is busy, because the call returns after a bounded time. The
/// thread is also busy afterwards.
pub(crate) fn while_busy<T>(waiting_for: WaitingFor, call: impl FnOnce() -> T) -> T {
    let set_waiting_for = |waiting_for| {
        with_thread(|thread, session| {
            thread.become_busy(&session.area);
            if let IdleSlot::Slot(number, _) = thread.0.get() {
                session.area.set_waiting_for(number, waiting_for);
            }
        });
    };
    set_waiting_for(waiting_for);
    let result = call();
    set_waiting_for(WaitingFor::Nothing);
    result
}

/// PM calls this function in pmSend while a thread of the process is idle. If the sending thread is
/// marked as idle, the mark is wrong: a waiting process sends nothing (manual 3.5.1).
pub(crate) extern "C" fn on_idle_send() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let was_idle = with_thread(|thread, session| thread.become_busy(&session.area));
    if was_idle == Some(true) && !WARNED.swap(true, Ordering::Relaxed) {
        crate::stdio::print_line(format_args!(
            "score: node {}: a thread sent a message while it was idle; it counts as busy now. \
             Call score_become_busy() before pmSend() (reported once)",
            crate::self_node()
        ));
    }
}
