//! Counters: fi_cntr(3). They count operations on remote memory, which the provider does not offer
//! yet, so that they change by the program's calls only.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::*;
use crate::domain::Domain;
use crate::failed;
use crate::op_table::{only_close, op};

/// A counter.
#[repr(C)]
pub(crate) struct Counter {
    fid: FidCntr,
    value: AtomicU64,
    errors: AtomicU64,
}

static OPS: FiOps = only_close(op!(close as unsafe extern "C" fn(_) -> _));

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
/// As fi_cntr_open(3).
pub(crate) unsafe extern "C" fn open(
    _domain: *mut Domain,
    _attr: *const c_void,
    result: *mut *mut Counter,
    context: *mut c_void,
) -> c_int {
    let fid = Fid { fclass: FI_CLASS_CNTR, context, ops: &OPS };
    let fid = FidCntr { fid, ops: &COUNTER_OPS };
    let counter = Counter { fid, value: AtomicU64::new(0), errors: AtomicU64::new(0) };
    // SAFETY: the caller's.
    unsafe { *result = Box::into_raw(Box::new(counter)) };
    0
}

unsafe extern "C" fn close(counter: *mut Counter) -> c_int {
    // SAFETY: made by `open`, and not used any more (fi_cntr(3)).
    drop(unsafe { Box::from_raw(counter) });
    0
}

unsafe extern "C" fn read(counter: *mut Counter) -> u64 {
    // SAFETY: an open counter, as in all functions below.
    unsafe { &*counter }.value.load(Ordering::Acquire)
}

unsafe extern "C" fn readerr(counter: *mut Counter) -> u64 {
    // SAFETY: see `read`.
    unsafe { &*counter }.errors.load(Ordering::Acquire)
}

unsafe extern "C" fn add(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: see `read`.
    unsafe { &*counter }.value.fetch_add(value, Ordering::AcqRel);
    0
}

unsafe extern "C" fn set(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: see `read`.
    unsafe { &*counter }.value.store(value, Ordering::Release);
    0
}

unsafe extern "C" fn adderr(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: see `read`.
    unsafe { &*counter }.errors.fetch_add(value, Ordering::AcqRel);
    0
}

unsafe extern "C" fn seterr(counter: *mut Counter, value: u64) -> c_int {
    // SAFETY: see `read`.
    unsafe { &*counter }.errors.store(value, Ordering::Release);
    0
}

/// fi_cntr_wait(3). Nothing but another thread of the program could change the counter.
unsafe extern "C" fn wait(counter: *mut Counter, threshold: u64, _timeout: c_int) -> c_int {
    // SAFETY: see `read`.
    match unsafe { &*counter }.value.load(Ordering::Acquire) >= threshold {
        true => 0,
        false => failed(libc::ENOSYS),
    }
}
