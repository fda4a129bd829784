//! Addresses: fi_av(3). What programs exchange is a node's number; what they send to is an index
//! into a table of nodes.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::*;
use crate::core_state::CoreState;
use crate::domain::Domain;
use crate::failed;
use crate::op_table::{SUCCEEDS, UNSUPPORTED, op};
use crate::serialized::Serialized;

/// An address as programs exchange it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeAddress {
    mark: [u8; 4],
    node: u32,
}

impl NodeAddress {
    const MARK: [u8; 4] = *b"PMfi";

    pub(crate) fn new(node: u32) -> Self {
        Self { mark: Self::MARK, node }
    }
}

/// An address vector.
#[repr(C)]
pub(crate) struct AddressVector {
    fid: FidAv,
    core: &'static Serialized<CoreState>,
}

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close: op!(close as unsafe extern "C" fn(_) -> _),
    bind: SUCCEEDS,
    control: UNSUPPORTED,
    ops_open: UNSUPPORTED,
};

static VECTOR_OPS: FiOpsAv = FiOpsAv {
    size: size_of::<FiOpsAv>(),
    insert: op!(insert as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
    insertsvc: UNSUPPORTED,
    insertsym: UNSUPPORTED,
    remove: op!(remove as unsafe extern "C" fn(_, _, _, _) -> _),
    lookup: op!(lookup as unsafe extern "C" fn(_, _, _, _) -> _),
    straddr: op!(straddr as unsafe extern "C" fn(_, _, _, _) -> _),
};

/// fi_av_open(3).
///
/// # Safety
/// As fi_av_open(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut Domain,
    attr: *const FiAvAttr,
    result: *mut *mut AddressVector,
    context: *mut c_void,
) -> c_int {
    // SAFETY: NULL, or the program's.
    if unsafe { attr.as_ref() }.is_some_and(|attr| !attr.name.is_null()) {
        // A table that processes share.
        return failed(libc::ENOSYS);
    }
    // SAFETY: an open domain.
    let core = unsafe { (*domain).core };
    let fid = Fid { fclass: FI_CLASS_AV, context, ops: &OPS };
    let vector = AddressVector { fid: FidAv { fid, ops: &VECTOR_OPS }, core };
    // SAFETY: the caller's.
    unsafe { *result = Box::into_raw(Box::new(vector)) };
    0
}

unsafe extern "C" fn close(vector: *mut AddressVector) -> c_int {
    // SAFETY: made by `open`, and not used any more (fi_av(3)).
    let vector = unsafe { Box::from_raw(vector) };
    vector.core.with(|core| {
        core.addresses.clear();
        core.address_of_node.fill(None);
    });
    0
}

impl CoreState {
    /// Adds a node. Its address, or None: there is no such node.
    fn insert_address(&mut self, address: NodeAddress) -> Option<u64> {
        if address.mark != NodeAddress::MARK || address.node >= self.nodes {
            return None;
        }
        let index = self.addresses.len() as u64;
        self.addresses.push(Some(address.node));
        self.address_of_node[address.node as usize] = Some(index);
        Some(index)
    }
}

/// fi_av_insert(3). Returns how many were inserted.
unsafe extern "C" fn insert(
    vector: *mut AddressVector,
    addresses: *const NodeAddress,
    count: usize,
    results: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: an open address vector.
    let core = unsafe { (*vector).core };
    core.with(|core| {
        let mut inserted = 0;
        for index in 0..count {
            // SAFETY: the program has `count` addresses, at any alignment.
            let address = unsafe { addresses.add(index).read_unaligned() };
            let result = core.insert_address(address);
            inserted += c_int::from(result.is_some());
            if !results.is_null() {
                // SAFETY: the program has as many results.
                unsafe { *results.add(index) = result.unwrap_or(FI_ADDR_NOTAVAIL) };
            }
        }
        inserted
    })
}

/// fi_av_remove(3).
unsafe extern "C" fn remove(
    vector: *mut AddressVector,
    addresses: *const u64,
    count: usize,
    _flags: u64,
) -> c_int {
    // SAFETY: an open address vector.
    let core = unsafe { (*vector).core };
    core.with(|core| {
        for index in 0..count {
            // SAFETY: the program has `count` addresses.
            let address = unsafe { *addresses.add(index) };
            let Some(node) = core.node_at(address) else { return failed(libc::EINVAL) };
            core.addresses[address as usize] = None;
            if core.address_of_node[node as usize] == Some(address) {
                let other = core.addresses.iter().position(|one| *one == Some(node));
                core.address_of_node[node as usize] = other.map(|index| index as u64);
            }
        }
        0
    })
}

/// fi_av_lookup(3).
unsafe extern "C" fn lookup(
    vector: *mut AddressVector,
    address: u64,
    result: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: an open address vector.
    let core = unsafe { (*vector).core };
    match core.with(|core| core.node_at(address)) {
        None => failed(libc::EINVAL),
        // SAFETY: the program has `*len` bytes there.
        Some(node) => unsafe { store_name(node, result, len, 0) },
    }
}

/// Stores a node's address, as much as fits, and its length. If it does not fit, returns
/// `too_short`.
///
/// # Safety
/// `*len` bytes can be written at `result`.
pub(crate) unsafe fn store_name(
    node: u32,
    result: *mut c_void,
    len: *mut usize,
    too_short: c_int,
) -> c_int {
    let name = NodeAddress::new(node);
    // SAFETY: by the caller's promise.
    unsafe {
        let room = (*len).min(size_of::<NodeAddress>());
        std::ptr::copy_nonoverlapping((&raw const name).cast::<u8>(), result.cast(), room);
        *len = size_of::<NodeAddress>();
        if room < size_of::<NodeAddress>() { too_short } else { 0 }
    }
}

/// fi_av_straddr(3).
unsafe extern "C" fn straddr(
    _vector: *mut AddressVector,
    address: *const NodeAddress,
    buffer: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: an address of the program, at any alignment.
    let address = unsafe { address.read_unaligned() };
    let text = format!("pm://{}\0", address.node);
    // SAFETY: the program has `*len` bytes at `buffer`.
    unsafe {
        let room = (*len).min(text.len());
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), room);
        if room > 0 {
            *buffer.add(room - 1) = 0;
        }
        *len = text.len();
    }
    buffer
}
