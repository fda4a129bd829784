//! Counters: fi_cntr(3). The value of a counter is a sum: the operations that the engine has
//! counted for the endpoints bound to it, and the values that the program has added. Reading a
//! counter makes progress.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::core_state::CoreState;
use crate::core_state::counters::CounterState;
use crate::domain::Domain;
use crate::op_table::{UNSUPPORTED, op};
use crate::serialized::Serialized;
use crate::waiting::left_ms;
use crate::{failed, waiting};

/// How often a waiting thread polls before it yields the processor or sleeps.
const POLLS_BEFORE_YIELD: u32 = 1000;

#[repr(C)]
pub(crate) struct Counter {
    fid: FidCntr,
    core: &'static Serialized<CoreState>,
    pub(crate) number: usize,
    wait_obj: c_int,
}

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close: op!(close as unsafe extern "C" fn(_) -> _),
    bind: UNSUPPORTED,
    control: op!(control as unsafe extern "C" fn(_, _, _) -> _),
    ops_open: UNSUPPORTED,
};

static COUNTER_OPS: FiOpsCntr = FiOpsCntr {
    size: size_of::<FiOpsCntr>(),
    read: op!(read as unsafe extern "C" fn(_) -> _),
    readerr: op!(readerr as unsafe extern "C" fn(_) -> _),
    add: op!(add as unsafe extern "C" fn(_, _) -> _),
    set: op!(set as unsafe extern "C" fn(_, _) -> _),
    wait: op!(wait as unsafe extern "C" fn(_, _, _) -> _),
    adderr: op!(adderr as unsafe extern "C" fn(_, _) -> _),
    seterr: op!(seterr as unsafe extern "C" fn(_, _) -> _),
};

/// fi_cntr_open(3).
///
/// # Safety
/// See fi_cntr_open(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut Domain,
    attr: *const FiCntrAttr,
    result: *mut *mut Counter,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is NULL or valid.
    let (events, wait_obj) = unsafe { attr.as_ref() }
        .map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_NONE), |attr| (attr.events, attr.wait_obj));
    if events != FI_CNTR_EVENTS_COMP {
        return failed(libc::ENOSYS);
    }
    // SAFETY: the program passes an open domain.
    let core = unsafe { (*domain).core };
    if !matches!(wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD) {
        return failed(libc::ENOSYS);
    }
    let number = core.with(|core| {
        core.counters.push(Some(CounterState::default()));
        core.counters.len() - 1
    });
    let fid = Fid { fclass: FI_CLASS_CNTR, context, ops: &OPS };
    let fid = FidCntr { fid, ops: &COUNTER_OPS };
    // SAFETY: the caller promises that the address can be written.
    unsafe { *result = Box::into_raw(Box::new(Counter { fid, core, number, wait_obj })) };
    0
}

unsafe extern "C" fn close(counter: *mut Counter) -> c_int {
    // SAFETY: `open` has made the counter, and the program does not use it any more (fi_cntr(3)).
    let counter = unsafe { Box::from_raw(counter) };
    counter.core.with(|core| core.counters[counter.number] = None);
    0
}

/// fi_control(3).
unsafe extern "C" fn control(
    counter: *mut Counter,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the counter is open, and the program passes a valid argument.
    unsafe {
        let Counter { core, wait_obj, .. } = &*counter;
        let opened = (*wait_obj == FI_WAIT_FD)
            .then(|| core.with(CoreState::open_wait_descriptors))
            .flatten();
        waiting::store_descriptor(opened.map(|(descriptor, _)| descriptor), command, argument)
    }
}

impl Counter {
    fn change(&self, change: impl FnOnce((u64, u64)) -> (u64, u64)) -> c_int {
        self.core.with(|core| core.change_counter(self.number, change));
        0
    }

    /// Prepares to wait on the descriptor. Returns false if there is work to do or the counter has
    /// changed.
    pub(crate) fn prepare_to_wait(&self) -> bool {
        self.core.with(|core| {
            let before = core.counter(self.number);
            core.prepare_to_wait(|core| core.counter(self.number) != before)
        })
    }

    /// Makes progress. Returns the value and the errors.
    fn look(&self) -> (u64, u64) {
        self.core.with(|core| {
            core.progress();
            core.counter(self.number)
        })
    }
}

unsafe extern "C" fn read(counter: *mut Counter) -> u64 {
    // SAFETY: the program passes an open counter, here and in all functions below.
    unsafe { &*counter }.look().0
}

unsafe extern "C" fn readerr(counter: *mut Counter) -> u64 {
    // SAFETY: see `read`.
    unsafe { &*counter }.look().1
}

unsafe extern "C" fn add(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: see `read`.
    unsafe { &*counter }.change(|(old, errors)| (old.wrapping_add(value), errors))
}

unsafe extern "C" fn set(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: see `read`.
    unsafe { &*counter }.change(|(_, errors)| (value, errors))
}

unsafe extern "C" fn adderr(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: see `read`.
    unsafe { &*counter }.change(|(old, errors)| (old, errors.wrapping_add(value)))
}

unsafe extern "C" fn seterr(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: see `read`.
    unsafe { &*counter }.change(|(old, _)| (old, value))
}

/// fi_cntr_wait(3): waits at most `timeout` ms, or without limit if `timeout` is negative. The wait
/// ends early if an operation fails.
unsafe extern "C" fn wait(counter: *mut Counter, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: see `read`.
    let counter = unsafe { &*counter };
    let wait = u64::try_from(timeout).ok().map(Duration::from_millis);
    let deadline = wait.map(|wait| Instant::now() + wait);
    let (_, errors) = counter.look();
    let mut polls: u32 = 0;
    loop {
        let (value, errors_now) = counter.look();
        if value >= threshold {
            return 0;
        }
        if errors_now != errors {
            return failed(FI_EAVAIL);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return failed(libc::ETIMEDOUT);
        }
        polls += 1;
        if polls < POLLS_BEFORE_YIELD {
            continue;
        }
        polls = 0;
        match counter.wait_obj {
            FI_WAIT_NONE | FI_WAIT_YIELD => std::thread::yield_now(),
            _ => waiting::wait(counter.core, left_ms(deadline), |core| {
                core.counter(counter.number) != (value, errors_now)
            }),
        }
    }
}
