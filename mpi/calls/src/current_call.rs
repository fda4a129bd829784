//! The current MPI call of each thread. Calls nest: MPI runs functions of the program within its
//! own calls (attributes of communicators, error handlers), and these functions may call MPI again.
//! Only the innermost call is considered.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

use score_proto::mpi_call::{MpiCall, MpiCallRecord};

/// The behaviour of a call.
pub(crate) enum CallKind {
    /// The call waits for other processes.
    Waits(MpiCallRecord),
    /// The call makes progress and returns, so the program may call it in a loop.
    Returns,
}

impl CallKind {
    /// A call that waits, with its recorded arguments.
    #[inline(always)]
    pub(crate) fn waits<const N: usize>(call: MpiCall, arguments: [usize; N]) -> Self {
        let mut record = MpiCallRecord { call: call as u32, ..MpiCallRecord::default() };
        for (to, from) in record.arguments.iter_mut().zip(arguments) {
            // The argument is a C int, so the upper half of its register is undefined.
            *to = from as u32;
        }
        Self::Waits(record)
    }
}

/// A call in progress, on the stack of its thread.
struct Frame {
    kind: CallKind,
    outer: *const Frame,
}

struct ThreadCalls {
    innermost: Cell<*const Frame>,
    /// The number of calls so far, which distinguishes the innermost call from earlier ones.
    serial: Cell<u64>,
    /// Called when the thread leaves the innermost call or enters another one.
    on_change: Cell<Option<extern "C" fn()>>,
}

thread_local! {
    static CALLS: ThreadCalls = const {
        ThreadCalls {
            innermost: Cell::new(ptr::null()),
            serial: Cell::new(0),
            on_change: Cell::new(None),
        }
    };
}

impl ThreadCalls {
    #[inline(always)]
    fn notify_change(&self) {
        if let Some(on_change) = self.on_change.take() {
            on_change();
        }
    }
}

/// Marks the calling thread as being in a call, until dropped. Must be dropped by the same thread.
struct InCall<'a> {
    calls: &'a ThreadCalls,
    frame: &'a Frame,
    _not_send: PhantomData<*const ()>,
}

impl Drop for InCall<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.calls.notify_change();
        self.calls.innermost.set(self.frame.outer);
    }
}

/// Runs `function` as an MPI call. A C++ exception that leaves the function also leaves the call.
#[inline(always)]
pub(crate) fn run<T>(kind: CallKind, function: impl FnOnce() -> T) -> T {
    let mut frame = Frame { kind, outer: ptr::null() };
    let here = &raw const frame;
    // The thread-local variable has no destructor, so it is always accessible.
    CALLS.with(|calls| {
        calls.notify_change();
        let outer = calls.innermost.get();
        // The stack grows downwards. A frame below this one is a remnant of a longjmp(3).
        frame.outer = if outer > here { outer } else { ptr::null() };
        calls.serial.set(calls.serial.get().wrapping_add(1));
        calls.innermost.set(&raw const frame);
        let _in_call = InCall { calls, frame: &frame, _not_send: PhantomData };
        function()
    })
}

/// The innermost call of the calling thread, if it waits for other processes.
pub(crate) struct WaitingCall {
    /// The identity of the call, which no other call in the process has.
    pub(crate) identity: (usize, u64),
    pub(crate) record: MpiCallRecord,
}

/// The innermost call of the calling thread, if it waits for other processes.
pub(crate) fn innermost() -> Option<WaitingCall> {
    CALLS.with(|calls| {
        // SAFETY: the pointer is NULL, or points to a frame of `run` on the stack of this thread.
        // `run` has not returned, because `InCall` removes the frame.
        let frame = unsafe { calls.innermost.get().as_ref() }?;
        match frame.kind {
            CallKind::Waits(record) => {
                let thread = ptr::from_ref(calls).addr();
                Some(WaitingCall { identity: (thread, calls.serial.get()), record })
            }
            CallKind::Returns => None,
        }
    })
}

/// Calls `on_change` when the calling thread leaves its innermost call or enters another one.
pub(crate) fn notify_on_change(on_change: extern "C" fn()) {
    CALLS.with(|calls| calls.on_change.set(Some(on_change)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn waits() -> CallKind {
        CallKind::waits(MpiCall::MPI_Recv, [1, 2])
    }

    #[test]
    fn the_current_call_is_the_innermost_call() {
        assert!(innermost().is_none());
        run(waits(), || {
            let outer = innermost().unwrap();
            assert_eq!(outer.record.arguments, [1, 2, 0, 0]);
            run(CallKind::Returns, || assert!(innermost().is_none()));
            let later = innermost().unwrap();
            assert_ne!(later.identity, outer.identity, "it may have been left in between");
        });
        assert!(innermost().is_none());
    }

    #[test]
    fn a_panic_ends_the_current_call() {
        let result = std::panic::catch_unwind(|| run(waits(), || panic!("as an exception does")));
        assert!(result.is_err() && innermost().is_none());
    }

    #[test]
    fn a_change_of_the_call_is_notified_once() {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count() {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        run(waits(), || {
            notify_on_change(count);
            run(CallKind::Returns, || assert_eq!(COUNT.load(Ordering::Relaxed), 1));
            assert_eq!(COUNT.load(Ordering::Relaxed), 1);
            notify_on_change(count);
        });
        assert_eq!(COUNT.load(Ordering::Relaxed), 2);
    }
}
