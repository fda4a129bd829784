//! Opens and closes domains: fi_domain(3). A process of an MPI program
//! joins its job when it opens the domain, which all nodes do together. fi_getinfo(3) does not
//! join, so that programs can query providers without taking part in the job.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::*;
use crate::core_state;
use crate::domain::Domain;
use crate::op_table::{UNSUPPORTED, only_close, op};
use crate::{address_vector, atomics, completion_queue, counter, endpoint_calls, memory_region};

/// The number of open domains.
static DOMAIN_COUNT: AtomicUsize = AtomicUsize::new(0);

static OPS: FiOps = only_close(op!(close as unsafe extern "C" fn(_) -> _));

static DOMAIN_OPS: FiOpsDomain = FiOpsDomain {
    size: size_of::<FiOpsDomain>(),
    av_open: op!(address_vector::open as unsafe extern "C" fn(_, _, _, _) -> _),
    cq_open: op!(completion_queue::open as unsafe extern "C" fn(_, _, _, _) -> _),
    endpoint: op!(endpoint_calls::open as unsafe extern "C" fn(_, _, _, _) -> _),
    scalable_ep: UNSUPPORTED,
    cntr_open: op!(counter::open as unsafe extern "C" fn(_, _, _, _) -> _),
    poll_open: UNSUPPORTED,
    stx_ctx: UNSUPPORTED,
    srx_ctx: UNSUPPORTED,
    query_atomic: op!(atomics::query as unsafe extern "C" fn(_, _, _, _, _) -> _),
};

/// fi_domain(3).
///
/// # Safety
/// See fi_domain(3).
pub(crate) unsafe extern "C" fn open(
    _fabric: *mut FidFabric,
    info: *const FiInfo,
    result: *mut *mut Domain,
    context: *mut c_void,
) -> c_int {
    let core = core_state::of_process();
    // SAFETY: the info is from `getinfo`, and the program may have changed it.
    let threading = unsafe { (*info).domain_attr.as_ref() }.map(|attr| attr.threading);
    // All domains share the state, but a program with several domains serializes only the calls of
    // each one.
    let is_only = DOMAIN_COUNT.fetch_add(1, Ordering::AcqRel) == 0;
    if threading != Some(FI_THREAD_DOMAIN) || !is_only {
        core.require_lock();
    }
    let fid = Fid { fclass: FI_CLASS_DOMAIN, context, ops: &OPS };
    let fid = FidDomain { fid, ops: &DOMAIN_OPS, mr: &memory_region::MEMORY_OPS };
    // SAFETY: the caller promises that the address can be written.
    unsafe { *result = Box::into_raw(Box::new(Domain { fid, core })) };
    0
}

unsafe extern "C" fn close(domain: *mut Domain) -> c_int {
    // SAFETY: `open` has made the domain, and the program does not use it any more (fi_domain(3)).
    drop(unsafe { Box::from_raw(domain) });
    DOMAIN_COUNT.fetch_sub(1, Ordering::AcqRel);
    0
}
