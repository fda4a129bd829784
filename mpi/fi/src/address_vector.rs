//! Addresses: fi_av(3). Programs exchange addresses that consist of a node number and an endpoint
//! number. They send to an index into a table of these addresses.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::*;
use crate::addresses::{Addresses, NodeAddress, store_name};
use crate::core_state::CoreState;
use crate::domain::Domain;
use crate::failed;
use crate::op_table::{SUCCEEDS, UNSUPPORTED, op};
use crate::serialized::Serialized;

#[repr(C)]
pub(crate) struct AddressVector {
    fid: FidAv,
    core: &'static Serialized<CoreState>,
    pub(crate) number: usize,
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
/// See fi_av_open(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut Domain,
    attr: *const FiAvAttr,
    result: *mut *mut AddressVector,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is NULL or valid.
    if unsafe { attr.as_ref() }.is_some_and(|attr| !attr.name.is_null()) {
        // Tables that processes share are not supported.
        return failed(libc::ENOSYS);
    }
    // SAFETY: the program passes an open domain.
    let core = unsafe { (*domain).core };
    let fid = Fid { fclass: FI_CLASS_AV, context, ops: &OPS };
    let number = core.with(|core| {
        core.vectors.push(Some(Addresses::default()));
        core.vectors.len() - 1
    });
    let vector = AddressVector { fid: FidAv { fid, ops: &VECTOR_OPS }, core, number };
    // SAFETY: the caller promises that the address can be written.
    unsafe { *result = Box::into_raw(Box::new(vector)) };
    0
}

unsafe extern "C" fn close(vector: *mut AddressVector) -> c_int {
    // SAFETY: `open` has made the vector, and the program does not use it any more (fi_av(3)).
    let vector = unsafe { Box::from_raw(vector) };
    vector.core.with(|core| core.vectors[vector.number] = None);
    0
}

impl AddressVector {
    /// Calls `use_addresses` with the addresses and the number of nodes.
    fn with<R>(&self, use_addresses: impl FnOnce(&mut Addresses, u32) -> R) -> Option<R> {
        self.core.with(|core| {
            let nodes = core.nodes;
            core.vectors[self.number].as_mut().map(|addresses| use_addresses(addresses, nodes))
        })
    }
}

/// fi_av_insert(3). Returns the number of addresses that were inserted.
unsafe extern "C" fn insert(
    vector: *mut AddressVector,
    addresses: *const NodeAddress,
    count: usize,
    results: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes an open address vector.
    let vector = unsafe { &*vector };
    let inserted = vector.with(|table, nodes| {
        let mut inserted = 0;
        for index in 0..count {
            // SAFETY: the program passes `count` addresses, at any alignment.
            let address = unsafe { addresses.add(index).read_unaligned() };
            let result = table.insert(address, nodes);
            inserted += c_int::from(result.is_some());
            if !results.is_null() {
                // SAFETY: the program passes room for `count` results.
                unsafe { *results.add(index) = result.unwrap_or(FI_ADDR_NOTAVAIL) };
            }
        }
        inserted
    });
    inserted.unwrap_or(0)
}

/// fi_av_remove(3).
unsafe extern "C" fn remove(
    vector: *mut AddressVector,
    addresses: *const u64,
    count: usize,
    _flags: u64,
) -> c_int {
    // SAFETY: the program passes an open address vector.
    let vector = unsafe { &*vector };
    let are_removed = vector.with(|table, _| {
        // SAFETY: the program passes `count` addresses.
        (0..count).all(|index| table.remove(unsafe { *addresses.add(index) }))
    });
    if are_removed == Some(true) { 0 } else { failed(libc::EINVAL) }
}

/// fi_av_lookup(3).
unsafe extern "C" fn lookup(
    vector: *mut AddressVector,
    address: u64,
    result: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the program passes an open address vector.
    let vector = unsafe { &*vector };
    match vector.with(|table, _| table.peer_at(address)).flatten() {
        None => failed(libc::EINVAL),
        // SAFETY: the program passes room for `*len` bytes.
        Some(peer) => unsafe { store_name(peer, result, len, 0) },
    }
}

/// fi_av_straddr(3).
unsafe extern "C" fn straddr(
    _vector: *mut AddressVector,
    address: *const NodeAddress,
    buffer: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: the program passes an address, at any alignment.
    let address = unsafe { address.read_unaligned() };
    let text = format!("pm://{}/{}\0", address.node, address.endpoint);
    // SAFETY: the program passes room for `*len` bytes at `buffer`.
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
