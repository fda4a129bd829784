//! libibverbs, opened at run time: the project builds, and its programs start, where there is none.
//! The declarations are those of infiniband/verbs.h of rdma-core 44; the library keeps its ABI
//! (libibverbs.so.1 since 2005), and symbols are asked for by name.

// UNSAFETY: calls a library through addresses found by name, with layouts of its header.
#![expect(unsafe_code)]

use super::choice::{Adapter, Gid, Port};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::sync::OnceLock;

const NAME: &CStr = c"libibverbs.so.1";
/// More ports than any adapter has.
const MAX_PORTS: u8 = 16;
/// More addresses and partitions of a port than are looked at.
const MAX_GIDS: usize = 256;
const MAX_PARTITIONS: u16 = 128;

const PORT_ACTIVE: u32 = 4;
const LINK_ETHERNET: u8 = 2;
const TRANSPORT_IWARP: u32 = 1;
const GID_ROCE_V2: u32 = 2;

/// Why there is no device.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lack {
    Library(String),
    Kernel,
    Adapter,
    /// One is there, and does not answer.
    Trouble(String),
}

impl fmt::Display for Lack {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::Library(why) => {
                write!(out, "no RDMA library (Debian: libibverbs1, ibverbs-providers): {why}")
            }
            Lack::Kernel => out.write_str("this kernel has no RDMA support (module ib_uverbs)"),
            Lack::Adapter => out.write_str("no RDMA adapter, or no provider library for it"),
            Lack::Trouble(why) => out.write_str(why),
        }
    }
}

/// `struct ibv_device`, up to what is read of it.
#[repr(C)]
struct Device {
    ops: [*mut c_void; 2],
    node_type: u32,
    transport_type: u32,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Default)]
struct PortAttr {
    state: u32,
    max_mtu: u32,
    active_mtu: u32,
    gid_tbl_len: i32,
    port_cap_flags: u32,
    max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct GidEntry {
    gid: [u8; 16],
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
}

// What a C compiler says of the header.
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Device, node_type) == 16 && offset_of!(Device, transport_type) == 20);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, gid_tbl_len) == 12);
    assert!(offset_of!(PortAttr, pkey_tbl_len) == 32 && offset_of!(PortAttr, lid) == 34);
    assert!(offset_of!(PortAttr, phys_state) == 45 && offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<GidEntry>() == 32 && offset_of!(GidEntry, gid_index) == 16);
    assert!(offset_of!(GidEntry, gid_type) == 24);
};

type Context = c_void;

/// The functions that are used.
pub(super) struct Library {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut Device,
    free_device_list: unsafe extern "C" fn(*mut *mut Device),
    get_device_name: unsafe extern "C" fn(*mut Device) -> *const c_char,
    open_device: unsafe extern "C" fn(*mut Device) -> *mut Context,
    close_device: unsafe extern "C" fn(*mut Context) -> c_int,
    query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int,
    query_pkey: unsafe extern "C" fn(*mut Context, u8, c_int, *mut u16) -> c_int,
    query_gid_table: unsafe extern "C" fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize,
}

impl Library {
    /// The library of this process.
    pub(super) fn get() -> Result<&'static Library, Lack> {
        static LIBRARY: OnceLock<Result<Library, Lack>> = OnceLock::new();
        LIBRARY.get_or_init(|| Library::open(NAME)).as_ref().map_err(Clone::clone)
    }

    fn open(name: &CStr) -> Result<Library, Lack> {
        // SAFETY: a text that ends. The library's own start-up is that of any program that uses it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Lack::Library(last_error(name)));
        }
        // SAFETY: the header declares each function with its field's type.
        unsafe {
            Ok(Library {
                get_device_list: function(handle, c"ibv_get_device_list")?,
                free_device_list: function(handle, c"ibv_free_device_list")?,
                get_device_name: function(handle, c"ibv_get_device_name")?,
                open_device: function(handle, c"ibv_open_device")?,
                close_device: function(handle, c"ibv_close_device")?,
                query_port: function(handle, c"ibv_query_port")?,
                query_pkey: function(handle, c"ibv_query_pkey")?,
                query_gid_table: function(handle, c"_ibv_query_gid_table")?,
            })
        }
    }

    /// All adapters that can be opened.
    pub(super) fn adapters(&self) -> Result<Vec<Adapter>, Lack> {
        let mut count = 0;
        // SAFETY: the count is ours.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::ENOSYS) => Lack::Kernel,
                _ => Lack::Trouble(format!("RDMA adapters cannot be listed: {error}")),
            });
        }
        let mut adapters = Vec::new();
        let mut trouble = Lack::Adapter;
        for number in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has that many devices, alive until it is freed below.
            match unsafe { self.adapter(*list.add(number)) } {
                Ok(adapter) => adapters.push(adapter),
                Err(why) => trouble = Lack::Trouble(why),
            }
        }
        // SAFETY: got above, and nothing of it is kept.
        unsafe { (self.free_device_list)(list) };
        if adapters.is_empty() { Err(trouble) } else { Ok(adapters) }
    }

    /// # Safety
    /// A device of a list that is not freed yet.
    unsafe fn adapter(&self, device: *mut Device) -> Result<Adapter, String> {
        // SAFETY: the library's own text, alive as the device is.
        let name = unsafe { CStr::from_ptr((self.get_device_name)(device)) };
        let name = name.to_string_lossy().into_owned();
        // SAFETY: the device is alive.
        let (transport, context) =
            unsafe { ((*device).transport_type, (self.open_device)(device)) };
        if context.is_null() {
            let error = io::Error::last_os_error();
            return Err(format!("RDMA adapter {name} cannot be opened: {error}"));
        }
        // SAFETY: open until it is closed below.
        let ports = (1..=MAX_PORTS).map_while(|number| unsafe { self.port(context, number) });
        let ports = ports.collect();
        // SAFETY: opened above, and nothing of it is kept.
        unsafe { (self.close_device)(context) };
        Ok(Adapter { name, iwarp: transport == TRANSPORT_IWARP, ports })
    }

    /// None: there is no such port.
    ///
    /// # Safety
    /// An open context.
    unsafe fn port(&self, context: *mut Context, number: u8) -> Option<Port> {
        let mut attr = PortAttr::default();
        // SAFETY: the library writes at most the header's structure.
        if unsafe { (self.query_port)(context, number, &raw mut attr) } != 0 {
            return None;
        }
        let mut entries = [GidEntry::default(); MAX_GIDS];
        let (at, size) = (entries.as_mut_ptr(), size_of::<GidEntry>());
        // SAFETY: that many entries of that size.
        let count = unsafe { (self.query_gid_table)(context, at, MAX_GIDS, 0, size) };
        let entries = &entries[..usize::try_from(count).unwrap_or(0).min(MAX_GIDS)];
        let own = entries.iter().filter(|entry| entry.port_num == u32::from(number));
        let gids = own.map(|entry| Gid {
            index: entry.gid_index,
            bytes: entry.gid,
            second: entry.gid_type == GID_ROCE_V2,
        });
        let partitions = (0..attr.pkey_tbl_len.min(MAX_PARTITIONS)).map_while(|index| {
            let mut key = 0u16;
            // SAFETY: the key is ours.
            let result = unsafe { (self.query_pkey)(context, number, index.into(), &raw mut key) };
            (result == 0).then_some(u16::from_be(key))
        });
        Some(Port {
            number,
            active: attr.state == PORT_ACTIVE,
            ethernet: attr.link_layer == LINK_ETHERNET,
            mtu: 128 << attr.active_mtu.min(5),
            lid: attr.lid,
            gids: gids.collect(),
            partitions: partitions.collect(),
        })
    }
}

/// A function of a library that was opened and is never closed.
///
/// # Safety
/// `T` is the type of the function of this name.
unsafe fn function<T: Copy>(library: *mut c_void, name: &CStr) -> Result<T, Lack> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: a text that ends.
    let at = unsafe { libc::dlsym(library, name.as_ptr()) };
    if at.is_null() {
        return Err(Lack::Library(last_error(name)));
    }
    // SAFETY: both are one address; the caller answers for what is there.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, T>(&at) })
}

/// What the loader says.
fn last_error(name: &CStr) -> String {
    // SAFETY: a text of the loader for this thread, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{} is not there", name.to_string_lossy());
    }
    // SAFETY: as above; it ends.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_is_told_which_it_is() {
        let lack = Library::open(c"libibverbs-nowhere.so.1").map(drop).unwrap_err();
        let text = lack.to_string();
        assert!(text.starts_with("no RDMA library"), "{text}");
        assert!(text.contains("libibverbs-nowhere.so.1"), "{text}");
    }

    #[test]
    fn a_library_that_is_not_libibverbs_is_refused_by_the_function_it_lacks() {
        let lack = Library::open(c"libc.so.6").map(drop).unwrap_err();
        assert!(lack.to_string().contains("ibv_get_device_list"), "{lack}");
    }
}
