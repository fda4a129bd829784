//! Remote memory, checkpoint and migration: optional functions that no device offers yet. They
//! check their context and answer ENOSYS.

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::ffi::{c_int, c_void};

use score_pm::{Context, Error};

use crate::answer;

/// `pmAddrHandle`: \[63:40\] slot and generation, \[39:0\] offset; offsets add.
pub type AddrHandle = u64;

/// `pmMmapInfo`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MmapInfo {
    /// Where the region begins.
    pub addr: *mut u8,
    /// Its length.
    pub len: usize,
    /// Where it begins in its file.
    pub offset: u64,
    /// Descriptor of the file, or -1.
    pub fd: c_int,
    /// PROT_ bits.
    pub prot: c_int,
}

/// EINVAL for what is no context, else ENOSYS.
///
/// # Safety
/// The rule of the crate.
unsafe fn not_offered(pmc: *mut Context) -> c_int {
    answer(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?;
        Err(Error::NoSys)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmMLock(
    pmc: *mut Context,
    _rmt_node: c_int,
    _addr: *mut u8,
    _len: usize,
    _hndlp: *mut AddrHandle,
) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmMUnlock(
    pmc: *mut Context,
    _rmt_node: c_int,
    _addr: *mut u8,
    _len: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmWrite(
    pmc: *mut Context,
    _rmt_node: c_int,
    _rmt_hndl: AddrHandle,
    _local_hndl: AddrHandle,
    _len: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmRead(
    pmc: *mut Context,
    _rmt_node: c_int,
    _rmt_hndl: AddrHandle,
    _local_hndl: AddrHandle,
    _len: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmIsWriteDone(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmIsReadDone(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmCheckpoint(
    pmc: *mut Context,
    _callback: Option<unsafe extern "C" fn(*mut c_void, c_int)>,
    _arg: *mut c_void,
) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmRestartUser(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmRestartSys(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmMigrateUser(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmMigrateSys(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { not_offered(pmc) }
}

#[unsafe(no_mangle)]
extern "C" fn pmGetMmapInfo(_mip: *mut MmapInfo, sizep: *mut c_int) -> c_int {
    answer(|| Err(if sizep.is_null() { Error::Invalid } else { Error::NoSys }))
}
