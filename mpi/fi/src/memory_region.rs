//! Memory that is open to other nodes: fi_mr(3). A key is the pmAddrHandle of the region's first
//! byte (manual 3.6.4). An address is an offset from there, and is added to the key. Some regions
//! have a number as their key, and are accessed by messages: regions that PM cannot lock, regions
//! in several pieces, and regions that are not open for both reading and writing.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use score_p2p::{RegionAccess, UserBuffer};

use crate::abi::*;
use crate::core_state::CoreState;
use crate::domain::Domain;
use crate::failed;
use crate::messages::{one_segment, segments};
use crate::op_table::{UNSUPPORTED, op};
use crate::serialized::Serialized;

/// How long the close of a region waits for PM's reads into it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(300);

#[repr(C)]
struct MemoryRegion {
    fid: FidMr,
    core: &'static Serialized<CoreState>,
}

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close: op!(close as unsafe extern "C" fn(_) -> _),
    bind: op!(bind as unsafe extern "C" fn(_, _, _) -> _),
    control: op!(control as unsafe extern "C" fn(_, _, _) -> _),
    ops_open: UNSUPPORTED,
};

pub(crate) static MEMORY_OPS: FiOpsMr = FiOpsMr {
    size: size_of::<FiOpsMr>(),
    reg: op!(register as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _) -> _),
    regv: op!(register_segments as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _) -> _),
    regattr: op!(register_attr as unsafe extern "C" fn(_, _, _, _) -> _),
};

/// Opens a region. `buffer` is None if the program passed too many pieces.
///
/// # Safety
/// `domain` is open, and `result` has room for the address of a region.
unsafe fn open(
    domain: *mut Domain,
    buffer: Option<UserBuffer>,
    access: u64,
    result: *mut *mut MemoryRegion,
    context: *mut c_void,
) -> c_int {
    let Some(buffer) = buffer else { return failed(libc::EINVAL) };
    // SAFETY: the caller promises it.
    let core = unsafe { (*domain).core };
    let access = RegionAccess {
        may_read: access & FI_REMOTE_READ != 0,
        may_write: access & FI_REMOTE_WRITE != 0,
    };
    let key = core.with(|core| core.endpoints[0].engine.register(buffer, access));
    let fid = Fid { fclass: FI_CLASS_MR, context, ops: &OPS };
    let fid = FidMr { fid, mem_desc: std::ptr::null_mut(), key };
    // SAFETY: the caller promises it.
    unsafe { *result = Box::into_raw(Box::new(MemoryRegion { fid, core })) };
    0
}

/// fi_mr_reg(3). The provider chooses the key (`FI_MR_PROV_KEY`).
unsafe extern "C" fn register(
    domain: *mut Domain,
    start: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    _flags: u64,
    result: *mut *mut MemoryRegion,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the domain is open. The memory remains valid until the program closes the region
    // (fi_mr(3)).
    unsafe { open(domain, Some(one_segment(start, len)), access, result, context) }
}

/// fi_mr_regv(3).
unsafe extern "C" fn register_segments(
    domain: *mut Domain,
    list: *const libc::iovec,
    count: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    _flags: u64,
    result: *mut *mut MemoryRegion,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see `register`.
    unsafe { open(domain, segments(list, count), access, result, context) }
}

/// fi_mr_regattr(3).
unsafe extern "C" fn register_attr(
    domain: *mut Domain,
    attr: *const FiMrAttr,
    flags: u64,
    result: *mut *mut MemoryRegion,
) -> c_int {
    if flags & FI_MR_DMABUF != 0 {
        return failed(libc::ENOSYS);
    }
    // SAFETY: see `register`.
    unsafe {
        let FiMrAttr { mr_iov, iov_count, access, context, .. } = *attr;
        open(domain, segments(mr_iov, iov_count), access, result, context)
    }
}

/// Closes a region. After success, nothing reads or writes its memory.
unsafe extern "C" fn close(region: *mut MemoryRegion) -> c_int {
    // SAFETY: `open` has made the region, and the program does not use it any more (fi_mr(3)).
    let region = unsafe { Box::from_raw(region) };
    let key = region.fid.key;
    region.core.with(|core| {
        // All engines share the regions.
        if core.endpoints[0].engine.unregister(key) {
            core.endpoints.iter_mut().for_each(|endpoint| endpoint.engine.forget_region(key));
        }
    });
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    while region.core.with(|core| {
        let is_in_use = core.endpoints.iter().any(|one| one.engine.is_region_in_use(key));
        if is_in_use {
            core.progress();
        }
        is_in_use
    }) {
        if Instant::now() > deadline {
            return failed(libc::EBUSY);
        }
        std::thread::yield_now();
    }
    0
}

/// fi_mr_bind(3). A region belongs to the domain, so a bind to an endpoint needs no action. A
/// counter is refused, because PM does not notify the target of remote writes, so the counter would
/// miss them.
unsafe extern "C" fn bind(_region: *mut MemoryRegion, object: *mut Fid, _flags: u64) -> c_int {
    // SAFETY: the program passes an object of this provider.
    match unsafe { (*object).fclass } {
        FI_CLASS_EP => 0,
        _ => failed(libc::ENOSYS),
    }
}

/// fi_mr_enable(3). A region is enabled from the start.
unsafe extern "C" fn control(
    _region: *mut MemoryRegion,
    command: c_int,
    _argument: *mut c_void,
) -> c_int {
    match command {
        FI_ENABLE => 0,
        _ => failed(libc::ENOSYS),
    }
}
