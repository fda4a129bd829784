//! In which call of MPI a thread is. Calls nest: MPI runs functions of the program within its own
//! calls (attributes of communicators, error handlers), and these may call MPI again. The innermost
//! call counts.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

use score_proto::mpi_call::{MpiCall, MpiCallRecord};

/// What a thread does in a call.
pub(crate) enum CallKind {
    /// It waits for other processes.
    Waits(MpiCallRecord),
    /// It makes progress and returns: the program may have a loop around it.
    Returns,
}

impl CallKind {
    /// A call that waits. `arguments`: those that are recorded.
    #[inline(always)]
    pub(crate) fn waits<const N: usize>(call: MpiCall, arguments: [usize; N]) -> Self {
        let mut record = MpiCallRecord { call: call as u32, ..MpiCallRecord::default() };
        for (to, from) in record.arguments.iter_mut().zip(arguments) {
            // An int of C: the upper half of its register is undefined.
            *to = from as u32;
        }
        Self::Waits(record)
    }
}

/// A call that is under way, on the stack of its thread.
struct Frame {
    kind: CallKind,
    outer: *const Frame,
}

struct ThreadCalls {
    innermost: Cell<*const Frame>,
    /// The number of calls so far: it tells the innermost call from the one before.
    serial: Cell<u64>,
    /// To be called when the thread leaves the innermost call or enters another one.
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

/// The calling thread is in a call until this is dropped. It does not leave its thread.
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

/// Runs `function` as a call of MPI. Exceptions of C++ that leave it leave the call.
#[inline(always)]
pub(crate) fn run<T>(kind: CallKind, function: impl FnOnce() -> T) -> T {
    let mut frame = Frame { kind, outer: ptr::null() };
    let here = &raw const frame;
    // The thread-local variable has no destructor, so that it is always there.
    CALLS.with(|calls| {
        calls.notify_change();
        let outer = calls.innermost.get();
        // The stack grows downwards: a frame below this one was left by longjmp(3).
        frame.outer = if outer > here { outer } else { ptr::null() };
        calls.serial.set(calls.serial.get().wrapping_add(1));
        calls.innermost.set(&raw const frame);
        let _in_call = InCall { calls, frame: &frame, _not_send: PhantomData };
        function()
    })
}

/// The innermost call of the calling thread, if it waits for other processes.
pub(crate) struct WaitingCall {
    /// No other call of the process has the same one.
    pub(crate) identity: (usize, u64),
    pub(crate) record: MpiCallRecord,
}

/// The innermost call of the calling thread, if it waits for other processes.
pub(crate) fn innermost() -> Option<WaitingCall> {
    CALLS.with(|calls| {
        // SAFETY: NULL, or a frame of `run` on the stack of this thread, which has not returned:
        // `InCall` removes it.
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

/// Has `on_change` called when the calling thread leaves its innermost call or enters another one.
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
    fn the_innermost_call_counts() {
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
    fn a_panic_leaves_the_call() {
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
