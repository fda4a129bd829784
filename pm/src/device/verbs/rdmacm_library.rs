//! librdmacm, opened at run time, and declarations of the used part of rdma/rdma_cma.h with the
//! layouts of rdma-core 44. PM uses it only to connect. libibverbs creates queues and queue pairs,
//! and a connect request names a queue pair by its number.

// UNSAFETY: calls a library through addresses found by name, with layouts of its header.
#![expect(unsafe_code)]

use super::bindings::IbvContext;
use super::ibverbs_library::{Unavailable, load_function, load_library};
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

const NAME: &CStr = c"librdmacm.so.1";

pub(super) const EVENT_ADDR_RESOLVED: u32 = 0;
pub(super) const EVENT_ADDR_ERROR: u32 = 1;
pub(super) const EVENT_ROUTE_RESOLVED: u32 = 2;
pub(super) const EVENT_ROUTE_ERROR: u32 = 3;
pub(super) const EVENT_CONNECT_REQUEST: u32 = 4;
pub(super) const EVENT_CONNECT_ERROR: u32 = 6;
pub(super) const EVENT_UNREACHABLE: u32 = 7;
pub(super) const EVENT_REJECTED: u32 = 8;
pub(super) const EVENT_ESTABLISHED: u32 = 9;
pub(super) const EVENT_DISCONNECTED: u32 = 10;
pub(super) const EVENT_DEVICE_REMOVAL: u32 = 11;

/// RDMA_PS_TCP.
pub(super) const RDMA_PS_TCP: c_int = 0x106;

/// `struct rdma_event_channel`.
#[repr(C)]
pub(super) struct EventChannel {
    pub(super) fd: c_int,
}

/// `struct rdma_cm_id`, up to the last field that is used.
#[repr(C)]
pub(super) struct CmId {
    /// The library's own context of the adapter; null until the identifier is bound to one.
    pub(super) verbs: *mut IbvContext,
    channel: *mut EventChannel,
    /// The connection number.
    pub(super) context: *mut c_void,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConnParam {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

/// `struct rdma_cm_event`, with the part of its union that connections use.
#[repr(C)]
pub(super) struct CmEvent {
    pub(super) id: *mut CmId,
    listen_id: *mut CmId,
    pub(super) event: u32,
    pub(super) status: c_int,
    pub(super) conn: ConnParam,
}

/// The functions that are used.
pub(super) struct CmLibrary {
    pub(super) create_event_channel: unsafe extern "C" fn() -> *mut EventChannel,
    pub(super) destroy_event_channel: unsafe extern "C" fn(*mut EventChannel),
    pub(super) create_id:
        unsafe extern "C" fn(*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int,
    pub(super) destroy_id: unsafe extern "C" fn(*mut CmId) -> c_int,
    pub(super) bind_addr: unsafe extern "C" fn(*mut CmId, *const libc::sockaddr) -> c_int,
    pub(super) listen: unsafe extern "C" fn(*mut CmId, c_int) -> c_int,
    /// In network byte order.
    pub(super) get_src_port: unsafe extern "C" fn(*mut CmId) -> u16,
    pub(super) resolve_addr: ResolveAddr,
    pub(super) resolve_route: unsafe extern "C" fn(*mut CmId, c_int) -> c_int,
    pub(super) connect: unsafe extern "C" fn(*mut CmId, *mut ConnParam) -> c_int,
    pub(super) accept: unsafe extern "C" fn(*mut CmId, *mut ConnParam) -> c_int,
    pub(super) reject: unsafe extern "C" fn(*mut CmId, *const c_void, u8) -> c_int,
    pub(super) get_event: unsafe extern "C" fn(*mut EventChannel, *mut *mut CmEvent) -> c_int,
    pub(super) ack_event: unsafe extern "C" fn(*mut CmEvent) -> c_int,
}

type ResolveAddr =
    unsafe extern "C" fn(*mut CmId, *const libc::sockaddr, *const libc::sockaddr, c_int) -> c_int;

impl CmLibrary {
    /// The library of this process.
    pub(super) fn get() -> Result<&'static CmLibrary, Unavailable> {
        static LIBRARY: OnceLock<Result<CmLibrary, Unavailable>> = OnceLock::new();
        LIBRARY.get_or_init(|| CmLibrary::open(NAME)).as_ref().map_err(Clone::clone)
    }

    fn open(name: &CStr) -> Result<CmLibrary, Unavailable> {
        let no_library = |unavailable| match unavailable {
            Unavailable::Library(why) => Unavailable::ConnectionManager(why),
            other => other,
        };
        let handle = load_library(name).map_err(no_library)?;
        // SAFETY: the header declares each function with its field's type.
        let functions = unsafe { CmLibrary::functions(handle) };
        functions.map_err(no_library)
    }

    /// # Safety
    /// `handle` is a library that is never closed and has these functions with these types.
    unsafe fn functions(handle: *mut c_void) -> Result<CmLibrary, Unavailable> {
        // SAFETY: by the caller's promise.
        unsafe {
            Ok(CmLibrary {
                create_event_channel: load_function(handle, c"rdma_create_event_channel")?,
                destroy_event_channel: load_function(handle, c"rdma_destroy_event_channel")?,
                create_id: load_function(handle, c"rdma_create_id")?,
                destroy_id: load_function(handle, c"rdma_destroy_id")?,
                bind_addr: load_function(handle, c"rdma_bind_addr")?,
                listen: load_function(handle, c"rdma_listen")?,
                get_src_port: load_function(handle, c"rdma_get_src_port")?,
                resolve_addr: load_function(handle, c"rdma_resolve_addr")?,
                resolve_route: load_function(handle, c"rdma_resolve_route")?,
                connect: load_function(handle, c"rdma_connect")?,
                accept: load_function(handle, c"rdma_accept")?,
                reject: load_function(handle, c"rdma_reject")?,
                get_event: load_function(handle, c"rdma_get_cm_event")?,
                ack_event: load_function(handle, c"rdma_ack_cm_event")?,
            })
        }
    }
}

// Sizes and offsets that a C compiler computes from the header.
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(CmId, verbs) == 0 && offset_of!(CmId, context) == 16);
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, private_data_len) == 8);
    assert!(offset_of!(ConnParam, initiator_depth) == 10 && offset_of!(ConnParam, srq) == 14);
    assert!(offset_of!(ConnParam, retry_count) == 12 && offset_of!(ConnParam, qp_num) == 16);
    assert!(offset_of!(CmEvent, event) == 16 && offset_of!(CmEvent, status) == 20);
    assert!(offset_of!(CmEvent, conn) == 24 && offset_of!(EventChannel, fd) == 0);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_librdmacm_the_error_names_the_library() {
        for name in [c"librdmacm-nowhere.so.1", c"libc.so.6"] {
            let text = CmLibrary::open(name).map(drop).unwrap_err().to_string();
            assert!(text.starts_with("iWARP needs librdmacm (Debian: librdmacm1)"), "{text}");
        }
    }
}
