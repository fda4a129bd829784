//! The fabric, from which domains are opened, and event queues: fi_fabric(3), fi_eq(3).

use std::env;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::*;
use crate::op_table::{UNSUPPORTED, only_close, op};
use crate::{domain, failed, failed_call, waiting};

/// The environment variable of libscore. Only processes of a job of scrun have it.
const CONTROL_FD_ENV: &str = "SCORE_CONTROL_FD";

/// Whether this process has joined its job.
static HAS_JOINED: AtomicBool = AtomicBool::new(false);

/// Whether this process is in a job of scrun. In other processes the provider offers nothing, so
/// that programs choose another provider.
pub(crate) fn is_available() -> bool {
    HAS_JOINED.load(Ordering::Relaxed) || env::var_os(CONTROL_FD_ENV).is_some()
}

/// Notes that this process has joined its job.
pub(crate) fn note_joined() {
    HAS_JOINED.store(true, Ordering::Relaxed);
}

static OPS: FiOps = only_close(op!(close as unsafe extern "C" fn(_) -> _));

static FABRIC_OPS: FiOpsFabric = FiOpsFabric {
    size: size_of::<FiOpsFabric>(),
    domain: op!(domain::open as unsafe extern "C" fn(_, _, _, _) -> _),
    passive_ep: UNSUPPORTED,
    eq_open: op!(open_event_queue as unsafe extern "C" fn(_, _, _, _) -> _),
    wait_open: UNSUPPORTED,
    trywait: op!(waiting::try_wait as unsafe extern "C" fn(_, _, _) -> _),
};

/// fi_fabric(3), called by libfabric.
///
/// # Safety
/// See fi_fabric(3).
pub(crate) unsafe extern "C" fn open(
    _attr: *mut FiFabricAttr,
    result: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    let fid = Fid { fclass: FI_CLASS_FABRIC, context, ops: &OPS };
    let fabric = FidFabric { fid, ops: &FABRIC_OPS, api_version: 0 };
    // SAFETY: the caller promises that the address can be written.
    unsafe { *result = Box::into_raw(Box::new(fabric)) };
    0
}

unsafe extern "C" fn close(fabric: *mut FidFabric) -> c_int {
    // SAFETY: `open` has made the fabric, and the program does not use it any more (fi_fabric(3)).
    drop(unsafe { Box::from_raw(fabric) });
    0
}

static EVENT_QUEUE_FID_OPS: FiOps =
    only_close(op!(close_event_queue as unsafe extern "C" fn(_) -> _));

static EVENT_QUEUE_OPS: FiOpsEq = FiOpsEq {
    size: size_of::<FiOpsEq>(),
    read: op!(read_no_event as unsafe extern "C" fn() -> _),
    readerr: op!(read_no_event as unsafe extern "C" fn() -> _),
    write: UNSUPPORTED,
    sread: op!(read_no_event as unsafe extern "C" fn() -> _),
    strerror: UNSUPPORTED,
};

/// fi_eq_open(3). The provider reports no events.
unsafe extern "C" fn open_event_queue(
    _fabric: *mut FidFabric,
    _attr: *mut c_void,
    result: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    if result.is_null() {
        return failed(libc::EINVAL);
    }
    let fid = Fid { fclass: FI_CLASS_EQ, context, ops: &EVENT_QUEUE_FID_OPS };
    let event_queue = FidEq { fid, ops: &EVENT_QUEUE_OPS };
    // SAFETY: the caller promises that the address can be written.
    unsafe { *result = Box::into_raw(Box::new(event_queue)) };
    0
}

unsafe extern "C" fn close_event_queue(event_queue: *mut FidEq) -> c_int {
    if !event_queue.is_null() {
        // SAFETY: `open_event_queue` has made the queue, and the program does not use it any more.
        drop(unsafe { Box::from_raw(event_queue) });
    }
    0
}

unsafe extern "C" fn read_no_event() -> isize {
    failed_call(libc::EAGAIN)
}
