//! Idle flags of threads that wait in an MPI call (manual 3.5.2). SCore detects deadlocks by these
//! flags (docs/dev/deadlock.md).
//!
//! The provider marks a thread idle under three conditions:
//!
//! - The thread has polled without success for a while in the same MPI call.
//! - Only a message can end that call.
//! - The process has nothing to send.
//!
//! `libscore-mpi.so` records the current MPI call. Without that library no thread is marked. The
//! thread becomes busy again before it releases a message, before it sends one, and before it
//! leaves the call. While no thread is idle, this costs a store and a load for each message.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::pm_h::{score_become_busy, score_become_idle_in_mpi_call};

/// A thread checks its current call once in this many empty polls.
const POLLS_PER_LOOK: u32 = 128;
/// A thread becomes idle after at least this many empty polls in one call.
const POLLS_BEFORE_IDLE: u32 = 1000;

/// The empty polls of all threads since the last message was received or sent. Threads use the
/// network one at a time.
static EMPTY_POLLS: AtomicU32 = AtomicU32::new(0);
/// The number of threads that are marked idle.
static IDLE_THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static IS_IDLE: Cell<bool> = const { Cell::new(false) };
}

/// The call in which a thread polls, and the value of [`EMPTY_POLLS`] when the thread was first
/// found in that call.
#[derive(Debug, Default)]
pub(crate) struct PollingCall {
    identity: (usize, u64),
    polls_at_start: u32,
}

/// The answer of `libscore-mpi.so` (`mpi/calls/src/queries.rs`).
#[repr(C)]
struct WaitingCall {
    identity: (usize, u64),
    call: c_uint,
    arguments: [c_uint; 4],
}

type QueryCall = unsafe extern "C" fn(*mut WaitingCall) -> c_int;
type NotifyOnChange = extern "C" fn(extern "C" fn());

/// The functions of `libscore-mpi.so`.
#[derive(Clone, Copy)]
struct CallNotes {
    waiting_call: QueryCall,
    notify_on_change: NotifyOnChange,
}

impl CallNotes {
    /// Looks the functions up. Returns None if the library is not preloaded.
    fn get() -> Option<Self> {
        static NOTES: OnceLock<Option<CallNotes>> = OnceLock::new();
        *NOTES.get_or_init(|| {
            // SAFETY: the arguments are C strings.
            let find =
                |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            let waiting_call = find(c"score_mpi_waiting_call");
            let notify_on_change = find(c"score_mpi_notify_on_change");
            if waiting_call.is_null() || notify_on_change.is_null() {
                return None;
            }
            // SAFETY: the functions have these types; the library is built with this one.
            Some(unsafe {
                CallNotes {
                    waiting_call: std::mem::transmute::<*mut c_void, QueryCall>(waiting_call),
                    notify_on_change: std::mem::transmute::<*mut c_void, NotifyOnChange>(
                        notify_on_change,
                    ),
                }
            })
        })
    }

    /// The call in which the calling thread waits for messages only.
    fn waiting_call(self) -> Option<WaitingCall> {
        let mut call = WaitingCall { identity: (0, 0), call: 0, arguments: [0; 4] };
        // SAFETY: `call` has room for a call.
        let waits = unsafe { (self.waiting_call)(&mut call) };
        (waits != 0).then_some(call)
    }
}

/// Marks the calling thread busy. Called after a message was received and before it is released,
/// and before a message is sent or a read or write of remote memory starts.
#[inline(always)]
pub(crate) fn become_busy() {
    EMPTY_POLLS.store(0, Ordering::Relaxed);
    if IDLE_THREADS.load(Ordering::Relaxed) != 0 {
        unmark();
    }
}

/// Marks the calling thread busy. `libscore-mpi.so` also calls it when the thread leaves the call.
#[cold]
extern "C" fn unmark() {
    if IS_IDLE.replace(false) {
        // SAFETY: the function has no arguments.
        unsafe { score_become_busy() };
        IDLE_THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PollingCall {
    /// Notes that the calling thread has polled without success. `is_quiet` returns whether there
    /// is nothing to send.
    #[inline(always)]
    pub(crate) fn count_empty_poll(&mut self, is_quiet: impl FnOnce() -> bool) {
        let polls = EMPTY_POLLS.load(Ordering::Relaxed).wrapping_add(1);
        EMPTY_POLLS.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(POLLS_PER_LOOK) && is_quiet() {
            self.look(polls);
        }
    }

    #[cold]
    fn look(&mut self, polls: u32) {
        if IS_IDLE.get() {
            return;
        }
        let Some(notes) = CallNotes::get() else { return };
        let Some(call) = notes.waiting_call() else { return };
        if call.identity != self.identity || polls < self.polls_at_start {
            *self = Self { identity: call.identity, polls_at_start: polls };
        } else if polls - self.polls_at_start >= POLLS_BEFORE_IDLE {
            (notes.notify_on_change)(unmark);
            IS_IDLE.set(true);
            IDLE_THREADS.fetch_add(1, Ordering::Relaxed);
            // SAFETY: `arguments` has four numbers.
            unsafe { score_become_idle_in_mpi_call(call.call, &call.arguments) };
        }
    }
}
