//! The fabric, from which domains are opened, event queues, and fi_trywait(3): fi_fabric(3),
//! fi_eq(3).

use std::ffi::{c_char, c_int, c_void};

use crate::abi::*;
use crate::completion_queue::CompletionQueue;
use crate::counter::Counter;
use crate::op_table::{UNSUPPORTED, only_close, op};
use crate::{domain_calls, failed, failed_call};

static OPS: FiOps = only_close(op!(close as unsafe extern "C" fn(_) -> _));

static FABRIC_OPS: FiOpsFabric = FiOpsFabric {
    size: size_of::<FiOpsFabric>(),
    domain: op!(domain_calls::open as unsafe extern "C" fn(_, _, _, _) -> _),
    passive_ep: UNSUPPORTED,
    eq_open: op!(open_event_queue as unsafe extern "C" fn(_, _, _, _) -> _),
    wait_open: UNSUPPORTED,
    trywait: op!(try_wait as unsafe extern "C" fn(_, _, _) -> _),
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
    strerror: op!(explain_no_event as unsafe extern "C" fn() -> _),
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

/// fi_eq_strerror(3), which returns a string and not an error number.
unsafe extern "C" fn explain_no_event() -> *const c_char {
    c"the provider reports no events".as_ptr()
}

/// fi_trywait(3): whether a program may wait on the descriptors of these queues and counters.
///
/// # Safety
/// See fi_trywait(3).
unsafe extern "C" fn try_wait(
    _fabric: *mut FidFabric,
    objects: *const *mut Fid,
    count: c_int,
) -> c_int {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the program passes `count` open objects of this provider.
        let object = unsafe { *objects.add(index) };
        // SAFETY: as above; the class says which type each object has.
        let may_wait = unsafe {
            match (*object).fclass {
                FI_CLASS_CQ => (*object.cast::<CompletionQueue>()).prepare_to_wait(),
                FI_CLASS_CNTR => (*object.cast::<Counter>()).prepare_to_wait(),
                // The provider reports no events.
                FI_CLASS_EQ => true,
                _ => return failed(libc::EINVAL),
            }
        };
        if !may_wait {
            return failed(libc::EAGAIN);
        }
    }
    0
}
