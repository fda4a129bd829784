//! libibverbs, opened at run time, so that the project builds and its programs start without the
//! library. Symbols are looked up by name, with the types of `bindings`.

// UNSAFETY: calls a library through addresses found by name, with layouts of its header.
#![expect(unsafe_code)]

use super::bindings::{
    AsyncEvent, CompChannel, CompletionQueue, DeviceAttr, GID_ROCE_V2, GidEntry, IbvContext,
    IbvDevice, IbvMr, IbvQp, LINK_ETHERNET, PORT_ACTIVE, PortAttr, ProtectionDomain, QpAttr,
    QpInitAttr, SharedReceiveQueue, SrqInitAttr,
};
use super::port_selection::{AdapterInfo, Gid, Port};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::OnceLock;

const NAME: &CStr = c"libibverbs.so.1";
/// The most ports of an adapter. No adapter has as many.
const MAX_PORTS: u8 = 16;
/// The most addresses of an adapter and partitions of a port that are read.
const MAX_GIDS: usize = 256;
const MAX_PARTITIONS: u16 = 128;

/// Why there is no device.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Unavailable {
    Library(String),
    Kernel,
    Adapter,
    /// There is an adapter, but a query fails.
    QueryFailed(String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Library(why) => {
                write!(formatter, "no RDMA library (Debian: libibverbs1, ibverbs-providers): {why}")
            }
            Unavailable::Kernel => {
                formatter.write_str("this kernel has no RDMA support (module ib_uverbs)")
            }
            Unavailable::Adapter => {
                formatter.write_str("no RDMA adapter, or no provider library for it")
            }
            Unavailable::QueryFailed(why) => formatter.write_str(why),
        }
    }
}

/// The functions of the library that the device calls.
pub(super) struct Library {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut IbvDevice,
    free_device_list: unsafe extern "C" fn(*mut *mut IbvDevice),
    get_device_name: unsafe extern "C" fn(*mut IbvDevice) -> *const c_char,
    open_device: unsafe extern "C" fn(*mut IbvDevice) -> *mut IbvContext,
    pub(super) close_device: unsafe extern "C" fn(*mut IbvContext) -> c_int,
    query_port: unsafe extern "C" fn(*mut IbvContext, u8, *mut PortAttr) -> c_int,
    query_pkey: unsafe extern "C" fn(*mut IbvContext, u8, c_int, *mut u16) -> c_int,
    query_gid_table:
        unsafe extern "C" fn(*mut IbvContext, *mut GidEntry, usize, u32, usize) -> isize,
    pub(super) query_device: unsafe extern "C" fn(*mut IbvContext, *mut DeviceAttr) -> c_int,
    pub(super) alloc_pd: unsafe extern "C" fn(*mut IbvContext) -> *mut ProtectionDomain,
    pub(super) dealloc_pd: unsafe extern "C" fn(*mut ProtectionDomain) -> c_int,
    pub(super) create_channel: unsafe extern "C" fn(*mut IbvContext) -> *mut CompChannel,
    pub(super) destroy_channel: unsafe extern "C" fn(*mut CompChannel) -> c_int,
    pub(super) create_cq: CreateQueue,
    pub(super) destroy_cq: unsafe extern "C" fn(*mut CompletionQueue) -> c_int,
    pub(super) get_cq_event: unsafe extern "C" fn(
        *mut CompChannel,
        *mut *mut CompletionQueue,
        *mut *mut c_void,
    ) -> c_int,
    pub(super) ack_cq_events: unsafe extern "C" fn(*mut CompletionQueue, c_uint),
    pub(super) create_srq:
        unsafe extern "C" fn(*mut ProtectionDomain, *mut SrqInitAttr) -> *mut SharedReceiveQueue,
    pub(super) destroy_srq: unsafe extern "C" fn(*mut SharedReceiveQueue) -> c_int,
    pub(super) create_qp:
        unsafe extern "C" fn(*mut ProtectionDomain, *mut QpInitAttr) -> *mut IbvQp,
    pub(super) modify_qp: unsafe extern "C" fn(*mut IbvQp, *mut QpAttr, c_int) -> c_int,
    pub(super) destroy_qp: unsafe extern "C" fn(*mut IbvQp) -> c_int,
    pub(super) reg_mr:
        unsafe extern "C" fn(*mut ProtectionDomain, *mut c_void, usize, c_int) -> *mut IbvMr,
    pub(super) dereg_mr: unsafe extern "C" fn(*mut IbvMr) -> c_int,
    pub(super) get_async_event: unsafe extern "C" fn(*mut IbvContext, *mut AsyncEvent) -> c_int,
    pub(super) ack_async_event: unsafe extern "C" fn(*mut AsyncEvent),
}

type CreateQueue = unsafe extern "C" fn(
    *mut IbvContext,
    c_int,
    *mut c_void,
    *mut CompChannel,
    c_int,
) -> *mut CompletionQueue;

impl Library {
    /// The library of this process.
    pub(super) fn get() -> Result<&'static Library, Unavailable> {
        static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
        LIBRARY.get_or_init(|| Library::open(NAME)).as_ref().map_err(Clone::clone)
    }

    fn open(name: &CStr) -> Result<Library, Unavailable> {
        let handle = load_library(name)?;
        // SAFETY: the header declares each function with its field's type.
        unsafe {
            Ok(Library {
                get_device_list: load_function(handle, c"ibv_get_device_list")?,
                free_device_list: load_function(handle, c"ibv_free_device_list")?,
                get_device_name: load_function(handle, c"ibv_get_device_name")?,
                open_device: load_function(handle, c"ibv_open_device")?,
                close_device: load_function(handle, c"ibv_close_device")?,
                query_port: load_function(handle, c"ibv_query_port")?,
                query_pkey: load_function(handle, c"ibv_query_pkey")?,
                query_gid_table: load_function(handle, c"_ibv_query_gid_table")?,
                query_device: load_function(handle, c"ibv_query_device")?,
                alloc_pd: load_function(handle, c"ibv_alloc_pd")?,
                dealloc_pd: load_function(handle, c"ibv_dealloc_pd")?,
                create_channel: load_function(handle, c"ibv_create_comp_channel")?,
                destroy_channel: load_function(handle, c"ibv_destroy_comp_channel")?,
                create_cq: load_function(handle, c"ibv_create_cq")?,
                destroy_cq: load_function(handle, c"ibv_destroy_cq")?,
                get_cq_event: load_function(handle, c"ibv_get_cq_event")?,
                ack_cq_events: load_function(handle, c"ibv_ack_cq_events")?,
                create_srq: load_function(handle, c"ibv_create_srq")?,
                destroy_srq: load_function(handle, c"ibv_destroy_srq")?,
                create_qp: load_function(handle, c"ibv_create_qp")?,
                modify_qp: load_function(handle, c"ibv_modify_qp")?,
                destroy_qp: load_function(handle, c"ibv_destroy_qp")?,
                reg_mr: load_function(handle, c"ibv_reg_mr")?,
                dereg_mr: load_function(handle, c"ibv_dereg_mr")?,
                get_async_event: load_function(handle, c"ibv_get_async_event")?,
                ack_async_event: load_function(handle, c"ibv_ack_async_event")?,
            })
        }
    }

    /// Opens the adapter of this name. `close_device` closes it.
    pub(super) fn open_adapter(&self, wanted_name: &str) -> Result<NonNull<IbvContext>, String> {
        let mut count = 0;
        // SAFETY: a local variable receives the count.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(format!("RDMA adapters cannot be listed: {}", io::Error::last_os_error()));
        }
        let mut context_result = Err(format!("RDMA adapter {wanted_name} no longer exists"));
        for number in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has that many devices, alive until it is freed below.
            let device = unsafe { *list.add(number) };
            // SAFETY: the library's own text, which lives as long as the device.
            let name = unsafe { CStr::from_ptr((self.get_device_name)(device)) };
            if name.to_bytes() == wanted_name.as_bytes() {
                // SAFETY: the device is alive; opening it keeps it alive.
                let context = NonNull::new(unsafe { (self.open_device)(device) });
                context_result = context.ok_or_else(|| {
                    // SAFETY: alive as above.
                    let reason = unsafe { open_error(device) };
                    format!("RDMA adapter {wanted_name} cannot be opened: {reason}")
                });
                break;
            }
        }
        // SAFETY: obtained above, and nothing keeps a part of it.
        unsafe { (self.free_device_list)(list) };
        context_result
    }

    /// The sysfs directory of the adapter that was opened as `context`, if the kernel lists it.
    ///
    /// # Safety
    /// `context` is open.
    pub(super) unsafe fn sysfs_path_of(&self, context: NonNull<IbvContext>) -> Option<PathBuf> {
        // SAFETY: by the caller's promise; the path is the library's own terminated text.
        let path = unsafe { CStr::from_ptr((*context.as_ref().device).dev_path.as_ptr()) };
        Some(PathBuf::from(path.to_str().ok()?)).filter(|path| path.is_absolute() && path.exists())
    }

    /// All adapters that can be opened.
    pub(super) fn adapters(&self) -> Result<Vec<AdapterInfo>, Unavailable> {
        let mut count = 0;
        // SAFETY: a local variable receives the count.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::ENOSYS) => Unavailable::Kernel,
                _ => Unavailable::QueryFailed(format!("RDMA adapters cannot be listed: {error}")),
            });
        }
        let mut adapters = Vec::new();
        let mut unavailable = Unavailable::Adapter;
        for number in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has that many devices, alive until it is freed below.
            match unsafe { self.adapter(*list.add(number)) } {
                Ok(adapter) => adapters.push(adapter),
                Err(why) => unavailable = Unavailable::QueryFailed(why),
            }
        }
        // SAFETY: obtained above, and nothing keeps a part of it.
        unsafe { (self.free_device_list)(list) };
        if adapters.is_empty() { Err(unavailable) } else { Ok(adapters) }
    }

    /// # Safety
    /// `device` is in a list that is not freed yet.
    unsafe fn adapter(&self, device: *mut IbvDevice) -> Result<AdapterInfo, String> {
        // SAFETY: the library's own text, which lives as long as the device.
        let name = unsafe { CStr::from_ptr((self.get_device_name)(device)) };
        let name = name.to_string_lossy().into_owned();
        // SAFETY: the device is alive.
        let (transport, context) =
            unsafe { ((*device).transport_type, (self.open_device)(device)) };
        if context.is_null() {
            // SAFETY: alive as above.
            let reason = unsafe { open_error(device) };
            return Err(format!("RDMA adapter {name} cannot be opened: {reason}"));
        }
        // SAFETY: open until it is closed below.
        let ports = (1..=MAX_PORTS).map_while(|number| unsafe { self.port(context, number) });
        let ports = ports.collect();
        // SAFETY: opened above, and nothing keeps a part of it.
        unsafe { (self.close_device)(context) };
        Ok(AdapterInfo { name, transport, ports })
    }

    /// Queries a port. None: there is no such port.
    ///
    /// # Safety
    /// `context` is open.
    unsafe fn port(&self, context: *mut IbvContext, number: u8) -> Option<Port> {
        let mut attr = PortAttr::default();
        // SAFETY: the library writes at most the header's structure.
        if unsafe { (self.query_port)(context, number, &raw mut attr) } != 0 {
            return None;
        }
        let mut entries = [GidEntry::default(); MAX_GIDS];
        let (first_entry, size) = (entries.as_mut_ptr(), size_of::<GidEntry>());
        // SAFETY: that many entries of that size.
        let count = unsafe { (self.query_gid_table)(context, first_entry, MAX_GIDS, 0, size) };
        let entries = &entries[..usize::try_from(count).unwrap_or(0).min(MAX_GIDS)];
        let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(number));
        let gids = of_port.map(|entry| Gid {
            index: entry.gid_index,
            bytes: entry.gid,
            is_roce_v2: entry.gid_type == GID_ROCE_V2,
        });
        let partitions = (0..attr.pkey_tbl_len.min(MAX_PARTITIONS)).map_while(|index| {
            let mut key = 0u16;
            // SAFETY: a local variable receives the key.
            let result = unsafe { (self.query_pkey)(context, number, index.into(), &raw mut key) };
            (result == 0).then_some(u16::from_be(key))
        });
        Some(Port {
            number,
            is_active: attr.state == PORT_ACTIVE,
            is_ethernet: attr.link_layer == LINK_ETHERNET,
            mtu: 128 << attr.active_mtu.min(5),
            lid: attr.lid,
            gids: gids.collect(),
            partitions: partitions.collect(),
        })
    }
}

/// Opens a library, for as long as the process lives.
fn load_library(name: &CStr) -> Result<*mut c_void, Unavailable> {
    // SAFETY: a terminated text. The library's initialisation is the same as in any program that
    // uses it.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(Unavailable::Library(loader_error(name))) } else { Ok(handle) }
}

/// The reason why a device could not be opened. The library tries to open the device's file in
/// several ways, and errno is only the error of the last one.
///
/// # Safety
/// `device` is in a list that is not freed yet.
unsafe fn open_error(device: *const IbvDevice) -> io::Error {
    let last_error = io::Error::last_os_error();
    // SAFETY: the library's own text, which lives as long as the device.
    let name = unsafe { CStr::from_ptr((*device).names[1].as_ptr()) };
    let path = Path::new("/dev/infiniband").join(name.to_string_lossy().as_ref());
    match File::options().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
        _ => last_error,
    }
}

/// A function of a library that was opened and is never closed.
///
/// # Safety
/// `T` is the type of the function of this name.
unsafe fn load_function<T: Copy>(library: *mut c_void, name: &CStr) -> Result<T, Unavailable> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: a terminated text.
    let addr = unsafe { libc::dlsym(library, name.as_ptr()) };
    if addr.is_null() {
        return Err(Unavailable::Library(loader_error(name)));
    }
    // SAFETY: both are one address; the caller guarantees its type.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, T>(&addr) })
}

/// The error of the dynamic loader.
fn loader_error(name: &CStr) -> String {
    // SAFETY: a text of the loader for this thread, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{} is missing", name.to_string_lossy());
    }
    // SAFETY: as above; the text is terminated.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise of `the_device_opens_if_there_is_an_adapter_and_reports_the_reason_otherwise`.
    #[test]
    fn without_libibverbs_the_error_names_the_library() {
        let unavailable = Library::open(c"libibverbs-nowhere.so.1").map(drop).unwrap_err();
        let text = unavailable.to_string();
        assert!(text.starts_with("no RDMA library"), "{text}");
        assert!(text.contains("libibverbs-nowhere.so.1"), "{text}");
    }

    #[test]
    fn a_library_that_is_not_libibverbs_is_refused_by_the_function_it_lacks() {
        let unavailable = Library::open(c"libc.so.6").map(drop).unwrap_err();
        assert!(unavailable.to_string().contains("ibv_get_device_list"), "{unavailable}");
    }
}
