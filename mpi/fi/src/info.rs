//! The capabilities of the provider, and whether they satisfy a program: fi_getinfo(3).

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use crate::abi::*;
use crate::properties::{INJECT_SIZE, MAX_ENDPOINTS, PROVIDER_NAME, PROVIDER_VERSION};
use crate::{failed, job, kernel_symbols, library};

/// All capabilities of endpoints.
const CAPABILITIES: u64 = FI_MSG
    | FI_TAGGED
    | FI_SEND
    | FI_RECV
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM
    | FI_FENCE
    | REMOTE_MEMORY
    | REMOTE_MEMORY_MODIFIERS;
/// Capabilities for memory of other nodes.
const REMOTE_MEMORY: u64 = FI_RMA | FI_ATOMIC;
/// The directions of [`REMOTE_MEMORY`].
const REMOTE_MEMORY_MODIFIERS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Capabilities that a program gets only if it requests them.
const PRIMARY_CAPABILITIES: u64 = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | REMOTE_MEMORY;
/// Capabilities that a sender cannot use. [`SEND_CAPABILITIES`] are the capabilities that a
/// receiver cannot use.
const RECEIVE_CAPABILITIES: u64 =
    FI_RECV | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const SEND_CAPABILITIES: u64 = FI_SEND | FI_READ | FI_WRITE | FI_FENCE;
/// The requirements on a program that registers memory: the memory exists when it is registered,
/// and the provider chooses the key. Addresses are offsets from the start of the region.
const MEMORY_MODE: c_int = FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// The order that the provider guarantees: for messages, and for atomic operations, which are
/// messages to the target.
const MESSAGE_ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;
/// Flags that may be the default for all sends or for all receives.
const OPERATION_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_MULTI_RECV;
/// The bytes of the data that a message carries.
const DATA_SIZE: usize = 8;
/// The longest message.
const MAX_MESSAGE_LEN: usize = isize::MAX as usize;
/// The program may use all bits of a tag.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// The number of pending operations that is reported. There is no real limit.
const QUEUE_SIZE: usize = 1 << 16;
/// The provider's own protocol: the highest bit, and "PM".
const PROTOCOL: u32 = 1 << 31 | 0x504d;
/// The most completion queues and counters of a domain.
const MAX_QUEUES: usize = 64;

/// Whether the provider satisfies the hints of a program.
fn is_offered(hints: &FiInfo) -> bool {
    // SAFETY: each pointer is NULL, or the program has filled in the attributes (fi_getinfo(3)).
    let (tx, rx, ep, domain) = unsafe {
        let FiInfo { tx_attr, rx_attr, ep_attr, domain_attr, .. } = hints;
        (tx_attr.as_ref(), rx_attr.as_ref(), ep_attr.as_ref(), domain_attr.as_ref())
    };
    let is_tx_offered = tx.is_none_or(|tx| {
        tx.caps & !CAPABILITIES == 0
            && tx.op_flags & !OPERATION_FLAGS == 0
            && tx.msg_order & !MESSAGE_ORDER == 0
            && tx.comp_order == 0
            && tx.inject_size <= INJECT_SIZE
            && tx.size <= QUEUE_SIZE
            && tx.iov_limit <= score_p2p::MAX_SEGMENTS
            && tx.rma_iov_limit <= 1
    });
    let is_rx_offered = rx.is_none_or(|rx| {
        rx.caps & !CAPABILITIES == 0
            && rx.op_flags & !OPERATION_FLAGS == 0
            && rx.msg_order & !MESSAGE_ORDER == 0
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
            && domain.mr_iov_limit <= score_p2p::MAX_SEGMENTS
            && (hints.caps & REMOTE_MEMORY == 0 || knows_memory_mode(domain))
            && is_named(domain.name)
    });
    hints.caps & !CAPABILITIES == 0
        && matches!(hints.addr_format, FI_FORMAT_UNSPEC)
        && is_tx_offered
        && is_rx_offered
        && is_ep_offered
        && is_domain_offered
}

/// Whether the program accepts the requirements of [`MEMORY_MODE`].
fn knows_memory_mode(domain: &FiDomainAttr) -> bool {
    domain.mr_mode & MEMORY_MODE == MEMORY_MODE
}

/// Whether a name is missing or is the name of the provider. Its fabric and its domain have the
/// same name.
fn is_named(name: *const c_char) -> bool {
    // SAFETY: the pointer is NULL or a C string.
    name.is_null() || unsafe { CStr::from_ptr(name) } == PROVIDER_NAME
}

/// fi_getinfo(3), called by libfabric.
///
/// # Safety
/// See fi_getinfo(3).
pub(crate) unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const FiInfo,
    result: *mut *mut FiInfo,
) -> c_int {
    kernel_symbols::show();
    if !job::is_available() {
        return failed(libc::ENODATA);
    }
    // SAFETY: the pointer is NULL or from the program.
    let hints = unsafe { hints.as_ref() };
    if hints.is_some_and(|hints| !is_offered(hints)) {
        return failed(libc::ENODATA);
    }
    let library = library::current();
    let Some(info) = library.and_then(library::Library::allocate_info) else {
        return failed(libc::ENOMEM);
    };
    // SAFETY: the library has made the info with all its attributes.
    let is_complete = unsafe { fill_in(&mut *info, hints) };
    if !is_complete {
        library.into_iter().for_each(|library| library.free_info(info));
        return failed(libc::ENOMEM);
    }
    // SAFETY: the caller promises that the address can be written.
    unsafe { *result = info };
    0
}

/// Allocates a string that libfabric frees.
fn c_string(text: &CStr) -> *mut c_char {
    // SAFETY: `text` is a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// The capabilities of an endpoint for a program that has requested `requested`. A program must
/// request primary capabilities (fi_getinfo(3)). If it requests none, it gets all that it can use.
fn offered(requested: u64, can_use_memory: bool) -> u64 {
    let capabilities = match requested {
        0 if can_use_memory => CAPABILITIES,
        0 => CAPABILITIES & !REMOTE_MEMORY,
        _ => CAPABILITIES & !(PRIMARY_CAPABILITIES & !requested),
    };
    match capabilities & REMOTE_MEMORY {
        0 => capabilities & !REMOTE_MEMORY_MODIFIERS,
        _ => capabilities,
    }
}

/// Fills in a new info. Returns false if there is no memory.
///
/// # Safety
/// The info has all its attributes.
unsafe fn fill_in(info: &mut FiInfo, hints: Option<&FiInfo>) -> bool {
    // SAFETY: see `is_offered`.
    let (domain_hints, tx_hints, rx_hints) = unsafe {
        (
            hints.and_then(|hints| hints.domain_attr.as_ref()),
            hints.and_then(|hints| hints.tx_attr.as_ref()),
            hints.and_then(|hints| hints.rx_attr.as_ref()),
        )
    };
    let can_use_memory = domain_hints.is_none_or(knows_memory_mode);
    info.caps = offered(hints.map_or(0, |hints| hints.caps), can_use_memory);
    info.addr_format = FI_FORMAT_UNSPEC;
    // SAFETY: the caller promises it.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            &mut *info.tx_attr,
            &mut *info.rx_attr,
            &mut *info.ep_attr,
            &mut *info.domain_attr,
            &mut *info.fabric_attr,
        )
    };
    tx.caps = info.caps & !RECEIVE_CAPABILITIES;
    tx.op_flags = tx_hints.map_or(0, |tx| tx.op_flags);
    tx.msg_order = MESSAGE_ORDER;
    tx.inject_size = INJECT_SIZE;
    tx.size = QUEUE_SIZE;
    tx.iov_limit = score_p2p::MAX_SEGMENTS;
    tx.rma_iov_limit = 1;
    rx.caps = info.caps & !SEND_CAPABILITIES;
    rx.op_flags = rx_hints.map_or(0, |rx| rx.op_flags);
    rx.msg_order = MESSAGE_ORDER;
    rx.size = QUEUE_SIZE;
    rx.iov_limit = score_p2p::MAX_SEGMENTS;
    ep.kind = FI_EP_RDM;
    ep.protocol = PROTOCOL;
    ep.protocol_version = 1;
    ep.max_msg_size = MAX_MESSAGE_LEN;
    // Only atomic operations are kept in order, and they are shorter than this.
    ep.max_order_raw_size = usize::MAX;
    ep.max_order_war_size = usize::MAX;
    ep.max_order_waw_size = usize::MAX;
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
    if info.caps & REMOTE_MEMORY != 0 {
        domain.mr_mode = MEMORY_MODE;
        domain.mr_key_size = size_of::<u64>();
        domain.mr_iov_limit = score_p2p::MAX_SEGMENTS;
    }
    domain.cq_data_size = DATA_SIZE;
    domain.cq_cnt = MAX_QUEUES;
    domain.ep_cnt = MAX_ENDPOINTS;
    domain.tx_ctx_cnt = MAX_ENDPOINTS;
    domain.rx_ctx_cnt = MAX_ENDPOINTS;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.cntr_cnt = MAX_QUEUES;
    domain.caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
    domain.name = c_string(PROVIDER_NAME);
    fabric.name = c_string(PROVIDER_NAME);
    fabric.prov_version = PROVIDER_VERSION;
    // libfabric adds the provider's name to the fabric's attributes.
    ![domain.name, fabric.name].contains(&null_mut())
}
