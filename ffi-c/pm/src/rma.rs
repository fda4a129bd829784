//! Remote memory access: pm(3). Also checkpoint and migration, which no device offers yet:
//! these functions check their context and return ENOSYS.

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::ffi::{c_int, c_void};

use score_pm::{Context, Error, LiveContext, PmResult};

use crate::{non_negative, out, to_errno};

/// `pmAddrHandle`: \[63:40\] slot and generation, \[39:0\] offset; offsets may be added.
pub type AddrHandle = u64;

/// `PM_NODE_ANY`.
const NODE_ANY: c_int = -1;

/// `pmMmapInfo`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MmapInfo {
    /// Start of the region.
    pub addr: *mut u8,
    /// Length of the region.
    pub len: usize,
    /// Start of the region in its file.
    pub offset: u64,
    /// Descriptor of the file, or -1.
    pub fd: c_int,
    /// PROT_ bits.
    pub prot: c_int,
}

/// `pmRemoteStatus`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RemoteStatus {
    /// The number of the operation that was started last.
    pub started: u64,
    /// The operations up to this number have ended.
    pub completed: u64,
}

/// Converts a node number from C. None: all nodes.
fn node_or_any(node: c_int) -> PmResult<Option<u32>> {
    if node == NODE_ANY { Ok(None) } else { non_negative(node).map(Some) }
}

fn handle(bits: AddrHandle) -> score_pm::AddrHandle {
    score_pm::AddrHandle::from_bits(bits)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmMLock(
    pmc: *mut Context,
    rmt_node: c_int,
    addr: *mut u8,
    len: usize,
    hndlp: *mut AddrHandle,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, hndlp) = unsafe { (Context::from_ptr(pmc)?, out(hndlp)?) };
        hndlp.write(pmc.lock_memory(node_or_any(rmt_node)?, addr.addr(), len)?.bits());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmMUnlock(
    pmc: *mut Context,
    rmt_node: c_int,
    addr: *mut u8,
    len: usize,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let pmc = unsafe { Context::from_ptr(pmc) }?;
        pmc.unlock_memory(node_or_any(rmt_node)?, addr.addr(), len)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmWrite(
    pmc: *mut Context,
    rmt_node: c_int,
    rmt_hndl: AddrHandle,
    local_hndl: AddrHandle,
    len: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    let Ok(pmc) = (unsafe { Context::live_from_ptr(pmc) }) else { return libc::EINVAL };
    // A negative number becomes larger than every node number.
    let node = rmt_node.cast_unsigned();
    let done = pmc.write_fast(node, [handle(rmt_hndl), handle(local_hndl)], len);
    if done { 0 } else { write(pmc, node, rmt_hndl, local_hndl, len) }
}

#[inline(never)]
extern "C" fn write(
    pmc: &LiveContext,
    node: u32,
    rmt_hndl: AddrHandle,
    local_hndl: AddrHandle,
    len: usize,
) -> c_int {
    to_errno(|| pmc.write(node, [handle(rmt_hndl), handle(local_hndl)], len))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmRead(
    pmc: *mut Context,
    rmt_node: c_int,
    rmt_hndl: AddrHandle,
    local_hndl: AddrHandle,
    len: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    let Ok(pmc) = (unsafe { Context::live_from_ptr(pmc) }) else { return libc::EINVAL };
    let node = rmt_node.cast_unsigned();
    let done = pmc.read_fast(node, [handle(rmt_hndl), handle(local_hndl)], len);
    if done { 0 } else { read(pmc, node, rmt_hndl, local_hndl, len) }
}

#[inline(never)]
extern "C" fn read(
    pmc: &LiveContext,
    node: u32,
    rmt_hndl: AddrHandle,
    local_hndl: AddrHandle,
    len: usize,
) -> c_int {
    to_errno(|| pmc.read(node, [handle(rmt_hndl), handle(local_hndl)], len))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmIsWriteDone(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    to_errno(|| unsafe { Context::from_ptr(pmc) }?.is_write_done())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmIsReadDone(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    to_errno(|| unsafe { Context::from_ptr(pmc) }?.is_read_done())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetRemoteStatus(
    pmc: *mut Context,
    rmt_node: c_int,
    statp: *mut RemoteStatus,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, statp) = unsafe { (Context::from_ptr(pmc)?, out(statp)?) };
        let score_pm::RemoteStatus { started, completed, has_failed } =
            pmc.remote_status(non_negative(rmt_node)?)?;
        statp.write(RemoteStatus { started, completed });
        if has_failed { Err(Error::Io) } else { Ok(()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmAlloc(pmc: *mut Context, len: usize, addrp: *mut *mut u8) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, addrp) = unsafe { (Context::from_ptr(pmc)?, out(addrp)?) };
        addrp.write(pmc.allocate_memory(len)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmFree(pmc: *mut Context, addr: *mut u8) -> c_int {
    // SAFETY: the rule of the crate.
    to_errno(|| unsafe { Context::from_ptr(pmc) }?.free_memory(addr))
}

/// Returns EINVAL if `pmc` is not a context, and otherwise ENOSYS.
///
/// # Safety
/// The rule of the crate.
unsafe fn not_offered(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?;
        Err(Error::NoSys)
    })
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
    to_errno(|| Err(if sizep.is_null() { Error::Invalid } else { Error::NoSys }))
}
