//! Messages: pm(3). The entry points of messaging (docs/dev/messages.md).
//!
//! The four functions that every message uses try the fast path first. The slow path is a tail
//! call, so that these functions need no stack frame.

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;

use score_pm::{Context, Error, FastReceive, LiveContext, PmResult};

use crate::{int, non_negative, out, to_errno};

/// `pmMessageQueueStatus` (manual, figure 3.7).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MessageQueueStatus {
    /// Messages received here that pmReceive has not returned yet.
    pub receive: c_int,
    /// Messages sent from here that may not be in their receiver's queue yet.
    pub send: c_int,
    /// Outstanding remote reads.
    pub read: c_int,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetSendBuffer(
    pmc: *mut Context,
    dest: c_int,
    bufp: *mut *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    let (Ok(pmc), Ok(bufp)) = (unsafe { (Context::live_from_ptr(pmc), out(bufp)) }) else {
        return libc::EINVAL;
    };
    // A negative number becomes larger than every node number.
    let node = dest.cast_unsigned();
    let Some(buffer) = pmc.get_send_buffer_fast(node, len) else {
        return get(pmc, node, bufp, len);
    };
    bufp.write(buffer);
    0
}

#[inline(never)]
extern "C" fn get(
    pmc: &LiveContext,
    node: u32,
    bufp: &mut MaybeUninit<*mut u8>,
    len: usize,
) -> c_int {
    to_errno(|| {
        bufp.write(pmc.get_send_buffer(node, len)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetMulticastBuffer(
    pmc: *mut Context,
    dest: *const c_int,
    ndest: c_int,
    bufp: *mut *mut u8,
    len: usize,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, bufp) = unsafe { (Context::live_from_ptr(pmc)?, out(bufp)?) };
        // SAFETY: the rule of the crate.
        let nodes = unsafe { destinations(dest, ndest) }?;
        bufp.write(pmc.get_multicast_buffer(nodes, len)?);
        Ok(())
    })
}

/// The destinations in the caller's array: at least one, none below 0.
///
/// # Safety
/// The rule of the crate.
unsafe fn destinations<'a>(dest: *const c_int, ndest: c_int) -> PmResult<&'a [u32]> {
    let count = non_negative(ndest)? as usize;
    if dest.is_null() || count == 0 || count > score_pm::MAX_NODE {
        return Err(Error::Invalid);
    }
    // SAFETY: by the rule there are `ndest` entries.
    let nodes = unsafe { std::slice::from_raw_parts(dest, count) };
    if nodes.iter().any(|node| *node < 0) {
        return Err(Error::Invalid);
    }
    // SAFETY: int and u32 have the same size and alignment, and any bits are valid.
    Ok(unsafe { std::slice::from_raw_parts(dest.cast(), count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmTruncateBuffer(pmc: *mut Context, len: usize) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::live_from_ptr(pmc) }?.truncate(len)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmSend(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    let Ok(pmc) = (unsafe { Context::live_from_ptr(pmc) }) else { return libc::EINVAL };
    if pmc.send_fast() { 0 } else { send(pmc) }
}

#[inline(never)]
extern "C" fn send(pmc: &LiveContext) -> c_int {
    to_errno(|| pmc.send())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmReceive(pmc: *mut Context, bufp: *mut *mut u8, lenp: *mut usize) -> c_int {
    // SAFETY: the rule of the crate.
    let (Ok(pmc), Ok(bufp), Ok(lenp)) =
        (unsafe { (Context::live_from_ptr(pmc), out(bufp), out(lenp)) })
    else {
        return libc::EINVAL;
    };
    match pmc.receive_fast() {
        FastReceive::Message(message, len) => {
            bufp.write(message);
            lenp.write(len);
            0
        }
        FastReceive::Empty => libc::ENOBUFS,
        FastReceive::CheckOthers => pm_receive_slow(pmc, bufp, lenp),
        FastReceive::SlowPath => pm_receive(pmc, bufp, lenp),
    }
}

#[inline(never)]
extern "C" fn pm_receive_slow(
    pmc: &LiveContext,
    bufp: &mut MaybeUninit<*mut u8>,
    lenp: &mut MaybeUninit<usize>,
) -> c_int {
    if pmc.finish_poll_if_others_empty() { libc::ENOBUFS } else { pm_receive(pmc, bufp, lenp) }
}

/// pmReceive ends with a jump to this function, so users see its name in the stacks of their
/// programs.
#[inline(never)]
extern "C" fn pm_receive(
    pmc: &LiveContext,
    bufp: &mut MaybeUninit<*mut u8>,
    lenp: &mut MaybeUninit<usize>,
) -> c_int {
    to_errno(|| {
        let (message, len) = pmc.receive()?;
        bufp.write(message);
        lenp.write(len);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmReleaseReceiveBuffer(pmc: *mut Context) -> c_int {
    // SAFETY: the rule of the crate.
    let Ok(pmc) = (unsafe { Context::live_from_ptr(pmc) }) else { return libc::EINVAL };
    if pmc.release_fast() { 0 } else { release(pmc) }
}

#[inline(never)]
extern "C" fn release(pmc: &LiveContext) -> c_int {
    to_errno(|| pmc.release_receive_buffer())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmIsSendDone(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.is_send_done()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetMessageQueueStatus(
    pmc: *mut Context,
    statp: *mut MessageQueueStatus,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, statp) = unsafe { (Context::from_ptr(pmc)?, out(statp)?) };
        let found = pmc.queue_status()?;
        statp.write(MessageQueueStatus {
            receive: int(found.receive),
            send: int(found.send),
            read: int(found.read),
        });
        Ok(())
    })
}
