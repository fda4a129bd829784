//! Reads and writes of memory of other nodes: fi_rma(3). A write completes when its bytes have
//! arrived, regardless of the completion level that the program requests.

use std::ffi::c_void;

use score_p2p::{ReadOperation, RemoteAddress, Retention, UserBuffer, WriteOperation};

use crate::abi::*;
use crate::endpoint::Endpoint;
use crate::failed_call;
use crate::messages::{data_of, one_segment, segments, send_result};
use crate::op_table::op;
use crate::properties::INJECT_SIZE;

pub(crate) static OPS: FiOpsRma = FiOpsRma {
    size: size_of::<FiOpsRma>(),
    read: op!(read as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _),
    readv: op!(readv as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _),
    readmsg: op!(readmsg as unsafe extern "C" fn(_, _, _) -> _),
    write: op!(write as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _),
    writev: op!(writev as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _),
    writemsg: op!(writemsg as unsafe extern "C" fn(_, _, _) -> _),
    inject: op!(inject as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
    writedata: op!(writedata as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _) -> _),
    injectdata: op!(injectdata as unsafe extern "C" fn(_, _, _, _, _, _, _) -> _),
};

/// A transfer between the program's memory and that of another node.
struct Transfer {
    /// The program's memory. None: there are too many pieces.
    buffer: Option<UserBuffer>,
    address: u64,
    target: RemoteAddress,
    /// The flags of the call. None: the flags of the endpoint apply.
    flags: Option<u64>,
    context: *mut c_void,
}

impl Transfer {
    /// The transfer of an fi_readmsg or fi_writemsg call. The lengths on both sides must be equal.
    ///
    /// # Safety
    /// See fi_rma(3).
    unsafe fn of_message(message: *const FiMsgRma, flags: u64) -> Self {
        // SAFETY: the caller promises it.
        let FiMsgRma { msg_iov, iov_count, addr, rma_iov, rma_iov_count, context, .. } =
            unsafe { *message };
        let flags = Some(flags);
        if rma_iov_count != 1 {
            let target = RemoteAddress { key: 0, offset: 0 };
            return Self { buffer: None, address: addr, target, flags, context };
        }
        // SAFETY: the message has exactly one part of remote memory.
        let FiRmaIov { addr: offset, len, key } = unsafe { *rma_iov };
        // SAFETY: the caller promises it.
        let buffer = unsafe { segments(msg_iov, iov_count) }.filter(|buffer| buffer.len() == len);
        let target = RemoteAddress { key, offset };
        Self { buffer, address: addr, target, flags, context }
    }
}

/// Reads, or starts to read.
///
/// # Safety
/// `endpoint` is open.
unsafe fn start_read(endpoint: *mut Endpoint, transfer: Transfer) -> isize {
    // SAFETY: the caller promises it.
    let endpoint = unsafe { &*endpoint };
    let Transfer { buffer, address, target, flags, context } = transfer;
    let Some(buffer) = buffer else { return failed_call(libc::EINVAL) };
    let flags = flags.unwrap_or(endpoint.sends.default_flags);
    let request = endpoint.sends.request(context, flags);
    endpoint.core.with(|core| {
        let Some(node) = core.node_at(endpoint.number, address) else {
            return failed_call(libc::EINVAL);
        };
        if core.is_fenced(endpoint.number, node, flags) {
            return failed_call(libc::EAGAIN);
        }
        let engine = &mut core.endpoints[endpoint.number].engine;
        engine.read(&ReadOperation { node, target, buffer, request });
        0
    })
}

/// Writes, or starts to write. If `is_reported` is false, a success is not reported.
///
/// # Safety
/// `endpoint` is open.
unsafe fn start_write(
    endpoint: *mut Endpoint,
    transfer: Transfer,
    data: Option<u64>,
    is_reported: bool,
) -> isize {
    // SAFETY: the caller promises it.
    let endpoint = unsafe { &*endpoint };
    let Transfer { buffer, address, target, flags, context } = transfer;
    let Some(buffer) = buffer else { return failed_call(libc::EINVAL) };
    let flags = flags.unwrap_or(endpoint.sends.default_flags);
    let is_volatile = flags & FI_INJECT != 0;
    if is_volatile && buffer.len() > INJECT_SIZE {
        return failed_call(libc::EMSGSIZE);
    }
    let retention = if is_volatile { Retention::Volatile } else { Retention::Stays };
    let mut request = endpoint.sends.request(context, flags);
    request.is_reported &= is_reported;
    endpoint.core.with(|core| {
        let Some(node) = core.node_at(endpoint.number, address) else {
            return failed_call(libc::EINVAL);
        };
        if core.is_fenced(endpoint.number, node, flags) {
            return failed_call(libc::EAGAIN);
        }
        let write = WriteOperation { node, target, buffer, retention, data, request };
        send_result(core.endpoints[endpoint.number].engine.write(&write))
    })
}

unsafe extern "C" fn read(
    endpoint: *mut Endpoint,
    start: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    address: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = RemoteAddress { key, offset };
    // SAFETY: the program keeps the rules of fi_rma(3), here and in all functions below.
    unsafe {
        let buffer = Some(one_segment(start, len));
        start_read(endpoint, Transfer { buffer, address, target, flags: None, context })
    }
}

unsafe extern "C" fn readv(
    endpoint: *mut Endpoint,
    list: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    address: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = RemoteAddress { key, offset };
    // SAFETY: see `read`.
    unsafe {
        let buffer = segments(list, count);
        start_read(endpoint, Transfer { buffer, address, target, flags: None, context })
    }
}

unsafe extern "C" fn readmsg(
    endpoint: *mut Endpoint,
    message: *const FiMsgRma,
    flags: u64,
) -> isize {
    // SAFETY: see `read`.
    unsafe { start_read(endpoint, Transfer::of_message(message, flags)) }
}

unsafe extern "C" fn write(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    _desc: *mut c_void,
    address: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = RemoteAddress { key, offset };
    // SAFETY: see `read`.
    unsafe {
        let buffer = Some(one_segment(start, len));
        let transfer = Transfer { buffer, address, target, flags: None, context };
        start_write(endpoint, transfer, None, true)
    }
}

unsafe extern "C" fn writev(
    endpoint: *mut Endpoint,
    list: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    address: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = RemoteAddress { key, offset };
    // SAFETY: see `read`.
    unsafe {
        let buffer = segments(list, count);
        let transfer = Transfer { buffer, address, target, flags: None, context };
        start_write(endpoint, transfer, None, true)
    }
}

unsafe extern "C" fn writemsg(
    endpoint: *mut Endpoint,
    message: *const FiMsgRma,
    flags: u64,
) -> isize {
    // SAFETY: see `read`.
    unsafe {
        let data = data_of(flags, (*message).data);
        start_write(endpoint, Transfer::of_message(message, flags), data, true)
    }
}

unsafe extern "C" fn inject(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    address: u64,
    offset: u64,
    key: u64,
) -> isize {
    // SAFETY: see `read`.
    unsafe {
        let transfer = injected(start, len, address, RemoteAddress { key, offset });
        start_write(endpoint, transfer, None, false)
    }
}

unsafe extern "C" fn writedata(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    address: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = RemoteAddress { key, offset };
    // SAFETY: see `read`.
    unsafe {
        let buffer = Some(one_segment(start, len));
        let transfer = Transfer { buffer, address, target, flags: None, context };
        start_write(endpoint, transfer, Some(data), true)
    }
}

unsafe extern "C" fn injectdata(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    data: u64,
    address: u64,
    offset: u64,
    key: u64,
) -> isize {
    // SAFETY: see `read`.
    unsafe {
        let transfer = injected(start, len, address, RemoteAddress { key, offset });
        start_write(endpoint, transfer, Some(data), false)
    }
}

/// A transfer of bytes that may change as soon as the call returns.
///
/// # Safety
/// See fi_rma(3).
unsafe fn injected(
    start: *const c_void,
    len: usize,
    address: u64,
    target: RemoteAddress,
) -> Transfer {
    // SAFETY: the caller promises it.
    let buffer = Some(unsafe { one_segment(start, len) });
    let (flags, context) = (Some(FI_INJECT), std::ptr::null_mut());
    Transfer { buffer, address, target, flags, context }
}
