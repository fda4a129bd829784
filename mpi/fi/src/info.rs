//! What the provider offers, and whether that is what a program asks for: fi_getinfo(3).

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use crate::abi::*;
use crate::library::{self, PROVIDER_NAME, PROVIDER_VERSION};
use crate::{fabric, failed};

/// Everything that endpoints can do.
const CAPABILITIES: u64 = FI_MSG
    | FI_TAGGED
    | FI_SEND
    | FI_RECV
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM;
/// Those that a program has only if it asks for them.
const PRIMARY_CAPABILITIES: u64 = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV;
/// Flags that may be in force for all sends, or for all receives.
const OPERATION_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_MULTI_RECV;
/// The longest message whose memory may change at once. Such a message is copied anyway, if its
/// receiver has room for it; otherwise its copy waits here.
pub(crate) const INJECT_SIZE: usize = 4096;
/// Bytes of a number that a message carries.
const DATA_SIZE: usize = 8;
/// The longest message.
const MAX_MESSAGE_LEN: usize = isize::MAX as usize;
/// All bits of a tag are the program's.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Operations that may wait; there is no limit.
const QUEUE_SIZE: usize = 1 << 16;
/// A protocol of the provider's own: the highest bit, and "PM".
const PROTOCOL: u32 = 1 << 31 | 0x504d;
/// Completion queues and counters of a domain.
const MAX_QUEUES: usize = 64;

/// Whether the provider can do what a program asks for; `None` in an argument asks for nothing.
fn is_offered(hints: &FiInfo) -> bool {
    // SAFETY: NULL, or attributes that the program has filled in (fi_getinfo(3)).
    let (tx, rx, ep, domain) = unsafe {
        let FiInfo { tx_attr, rx_attr, ep_attr, domain_attr, .. } = hints;
        (tx_attr.as_ref(), rx_attr.as_ref(), ep_attr.as_ref(), domain_attr.as_ref())
    };
    let is_tx_offered = tx.is_none_or(|tx| {
        tx.caps & !CAPABILITIES == 0
            && tx.op_flags & !OPERATION_FLAGS == 0
            && tx.msg_order & !FI_ORDER_SAS == 0
            && tx.comp_order == 0
            && tx.inject_size <= INJECT_SIZE
            && tx.size <= QUEUE_SIZE
            && tx.iov_limit <= score_p2p::MAX_SEGMENTS
    });
    let is_rx_offered = rx.is_none_or(|rx| {
        rx.caps & !CAPABILITIES == 0
            && rx.op_flags & !OPERATION_FLAGS == 0
            && rx.msg_order & !FI_ORDER_SAS == 0
            && rx.size <= QUEUE_SIZE
            && rx.iov_limit <= score_p2p::MAX_SEGMENTS
    });
    let is_ep_offered = ep.is_none_or(|ep| {
        matches!(ep.kind, FI_EP_UNSPEC | FI_EP_RDM)
            && (ep.protocol == 0 || ep.protocol == PROTOCOL)
            && ep.max_msg_size <= MAX_MESSAGE_LEN
            && ep.tx_ctx_cnt <= 1
            && ep.rx_ctx_cnt <= 1
    });
    let is_progress_offered =
        |progress: c_int| matches!(progress, FI_PROGRESS_UNSPEC | FI_PROGRESS_MANUAL);
    let is_domain_offered = domain.is_none_or(|domain| {
        is_progress_offered(domain.data_progress)
            && is_progress_offered(domain.control_progress)
            && domain.cq_data_size <= DATA_SIZE
            && domain.caps & !(FI_LOCAL_COMM | FI_REMOTE_COMM) == 0
            && is_named(domain.name)
    });
    hints.caps & !CAPABILITIES == 0
        && matches!(hints.addr_format, FI_FORMAT_UNSPEC)
        && is_tx_offered
        && is_rx_offered
        && is_ep_offered
        && is_domain_offered
}

/// Whether a name is missing or the provider's, which its fabric and its domain have, too.
fn is_named(name: *const c_char) -> bool {
    // SAFETY: NULL, or a string.
    name.is_null() || unsafe { CStr::from_ptr(name) } == PROVIDER_NAME
}

/// fi_getinfo(3), as libfabric calls it.
///
/// # Safety
/// As fi_getinfo(3).
pub(crate) unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const FiInfo,
    result: *mut *mut FiInfo,
) -> c_int {
    if !fabric::is_available() {
        return failed(libc::ENODATA);
    }
    // SAFETY: NULL, or a program's.
    let hints = unsafe { hints.as_ref() };
    if hints.is_some_and(|hints| !is_offered(hints)) {
        return failed(libc::ENODATA);
    }
    let library = library::current();
    let Some(info) = library.and_then(library::Library::allocate_info) else {
        return failed(libc::ENOMEM);
    };
    // SAFETY: a new info of the library, with all attributes.
    let is_complete = unsafe { fill_in(&mut *info, hints) };
    if !is_complete {
        library.into_iter().for_each(|library| library.free_info(info));
        return failed(libc::ENOMEM);
    }
    // SAFETY: the caller's.
    unsafe { *result = info };
    0
}

/// A string that libfabric frees.
fn c_string(text: &CStr) -> *mut c_char {
    // SAFETY: a string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// The capabilities of an endpoint for a program that asks for these. Primary ones have to be asked
/// for (fi_getinfo(3)); none at all asks for all.
fn offered(requested: u64) -> u64 {
    match requested {
        0 => CAPABILITIES,
        _ => CAPABILITIES & !(PRIMARY_CAPABILITIES & !requested),
    }
}

/// Fills in a new info. False: there is no memory.
///
/// # Safety
/// The info has all its attributes.
unsafe fn fill_in(info: &mut FiInfo, hints: Option<&FiInfo>) -> bool {
    // SAFETY: as in `is_offered`.
    let (domain_hints, tx_hints, rx_hints) = unsafe {
        (
            hints.and_then(|hints| hints.domain_attr.as_ref()),
            hints.and_then(|hints| hints.tx_attr.as_ref()),
            hints.and_then(|hints| hints.rx_attr.as_ref()),
        )
    };
    info.caps = offered(hints.map_or(0, |hints| hints.caps));
    info.addr_format = FI_FORMAT_UNSPEC;
    // SAFETY: by the caller's promise.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            &mut *info.tx_attr,
            &mut *info.rx_attr,
            &mut *info.ep_attr,
            &mut *info.domain_attr,
            &mut *info.fabric_attr,
        )
    };
    tx.caps = info.caps & !(FI_RECV | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE);
    tx.op_flags = tx_hints.map_or(0, |tx| tx.op_flags);
    tx.msg_order = FI_ORDER_SAS;
    tx.inject_size = INJECT_SIZE;
    tx.size = QUEUE_SIZE;
    tx.iov_limit = score_p2p::MAX_SEGMENTS;
    rx.caps = info.caps & !FI_SEND;
    rx.op_flags = rx_hints.map_or(0, |rx| rx.op_flags);
    rx.msg_order = FI_ORDER_SAS;
    rx.size = QUEUE_SIZE;
    rx.iov_limit = score_p2p::MAX_SEGMENTS;
    ep.kind = FI_EP_RDM;
    ep.protocol = PROTOCOL;
    ep.protocol_version = 1;
    ep.max_msg_size = MAX_MESSAGE_LEN;
    ep.mem_tag_format = TAG_FORMAT;
    ep.tx_ctx_cnt = 1;
    ep.rx_ctx_cnt = 1;
    let threading = domain_hints.map_or(FI_THREAD_UNSPEC, |hints| hints.threading);
    domain.threading = if threading == FI_THREAD_UNSPEC { FI_THREAD_SAFE } else { threading };
    domain.control_progress = FI_PROGRESS_MANUAL;
    domain.data_progress = FI_PROGRESS_MANUAL;
    domain.resource_mgmt = FI_RM_ENABLED;
    let av_type = domain_hints.map_or(FI_AV_UNSPEC, |hints| hints.av_type);
    domain.av_type = if av_type == FI_AV_UNSPEC { FI_AV_TABLE } else { av_type };
    domain.cq_data_size = DATA_SIZE;
    domain.cq_cnt = MAX_QUEUES;
    domain.ep_cnt = 1;
    domain.tx_ctx_cnt = 1;
    domain.rx_ctx_cnt = 1;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.cntr_cnt = MAX_QUEUES;
    domain.caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
    domain.name = c_string(PROVIDER_NAME);
    fabric.name = c_string(PROVIDER_NAME);
    fabric.prov_version = PROVIDER_VERSION;
    // libfabric adds the provider's name.
    ![domain.name, fabric.name].contains(&null_mut())
}
