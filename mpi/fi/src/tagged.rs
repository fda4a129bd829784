//! Messages with tags: fi_tagged(3).

use std::ffi::c_void;

use score_p2p::UserBuffer;
use score_p2p::wire::Envelope;

use crate::abi::*;
use crate::endpoint::Endpoint;
use crate::failed_call;
use crate::messages::{Incoming, Outgoing, data_of, one_segment, segments};
use crate::op_table::op;

pub(crate) static OPS: FiOpsMsg = FiOpsMsg {
    size: size_of::<FiOpsMsg>(),
    recv: op!(recv as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _),
    recvv: op!(recvv as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _),
    recvmsg: op!(recvmsg as unsafe extern "C" fn(_, _, _) -> _),
    send: op!(send as unsafe extern "C" fn(_, _, _, _, _, _, _) -> _),
    sendv: op!(sendv as unsafe extern "C" fn(_, _, _, _, _, _, _) -> _),
    sendmsg: op!(sendmsg as unsafe extern "C" fn(_, _, _) -> _),
    inject: op!(inject as unsafe extern "C" fn(_, _, _, _, _) -> _),
    senddata: op!(senddata as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _),
    injectdata: op!(injectdata as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
};

/// What all receives of this file do.
///
/// # Safety
/// `endpoint` is open.
#[inline(always)]
unsafe fn receive(
    endpoint: *mut Endpoint,
    buffer: UserBuffer,
    address: u64,
    (tag, ignore): (u64, u64),
    context: *mut c_void,
) -> isize {
    // SAFETY: by the caller's promise.
    let endpoint = unsafe { &*endpoint };
    let flags = endpoint.receives.default_flags & !FI_MULTI_RECV;
    endpoint.post_receive(Incoming { buffer, address, tag: Some((tag, ignore)), flags, context })
}

unsafe extern "C" fn recv(
    endpoint: *mut Endpoint,
    start: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    address: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as fi_tagged(3), here and in all functions below.
    unsafe { receive(endpoint, one_segment(start, len), address, (tag, ignore), context) }
}

unsafe extern "C" fn recvv(
    endpoint: *mut Endpoint,
    list: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    address: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `recv`.
    let Some(buffer) = (unsafe { segments(list, count) }) else {
        return failed_call(libc::EINVAL);
    };
    // SAFETY: see `recv`.
    unsafe { receive(endpoint, buffer, address, (tag, ignore), context) }
}

unsafe extern "C" fn recvmsg(
    endpoint: *mut Endpoint,
    message: *const FiMsgTagged,
    flags: u64,
) -> isize {
    // SAFETY: see `recv`.
    let (endpoint, message) = unsafe { (&*endpoint, &*message) };
    // SAFETY: see `recv`.
    let Some(buffer) = (unsafe { segments(message.msg_iov, message.iov_count) }) else {
        return failed_call(libc::EINVAL);
    };
    let FiMsgTagged { addr: address, tag, ignore, context, .. } = *message;
    endpoint.post_receive(Incoming { buffer, address, tag: Some((tag, ignore)), flags, context })
}

/// What sends of this file with the endpoint's flags do.
///
/// # Safety
/// `endpoint` is open.
#[inline(always)]
unsafe fn send_with_defaults(
    endpoint: *mut Endpoint,
    buffer: UserBuffer,
    address: u64,
    envelope: Envelope,
    context: *mut c_void,
) -> isize {
    // SAFETY: by the caller's promise.
    let endpoint = unsafe { &*endpoint };
    let flags = endpoint.sends.default_flags;
    endpoint.post_send(Outgoing { buffer, address, envelope, flags, context }, true)
}

unsafe extern "C" fn send(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    _desc: *mut c_void,
    address: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let envelope = Envelope { tag: Some(tag), data: None };
    // SAFETY: see `recv`.
    unsafe { send_with_defaults(endpoint, one_segment(start, len), address, envelope, context) }
}

unsafe extern "C" fn sendv(
    endpoint: *mut Endpoint,
    list: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    address: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let envelope = Envelope { tag: Some(tag), data: None };
    // SAFETY: see `recv`.
    match unsafe { segments(list, count) } {
        // SAFETY: see `recv`.
        Some(buffer) => unsafe { send_with_defaults(endpoint, buffer, address, envelope, context) },
        None => failed_call(libc::EINVAL),
    }
}

unsafe extern "C" fn sendmsg(
    endpoint: *mut Endpoint,
    message: *const FiMsgTagged,
    flags: u64,
) -> isize {
    // SAFETY: see `recv`.
    let (endpoint, message) = unsafe { (&*endpoint, &*message) };
    // SAFETY: see `recv`.
    let Some(buffer) = (unsafe { segments(message.msg_iov, message.iov_count) }) else {
        return failed_call(libc::EINVAL);
    };
    let envelope = Envelope { tag: Some(message.tag), data: data_of(flags, message.data) };
    let FiMsgTagged { addr: address, context, .. } = *message;
    endpoint.post_send(Outgoing { buffer, address, envelope, flags, context }, true)
}

unsafe extern "C" fn inject(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    address: u64,
    tag: u64,
) -> isize {
    // SAFETY: see `recv`.
    let (endpoint, buffer) = unsafe { (&*endpoint, one_segment(start, len)) };
    let envelope = Envelope { tag: Some(tag), data: None };
    let (flags, context) = (FI_INJECT, std::ptr::null_mut());
    endpoint.post_send(Outgoing { buffer, address, envelope, flags, context }, false)
}

unsafe extern "C" fn senddata(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    address: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let envelope = Envelope { tag: Some(tag), data: Some(data) };
    // SAFETY: see `recv`.
    unsafe { send_with_defaults(endpoint, one_segment(start, len), address, envelope, context) }
}

unsafe extern "C" fn injectdata(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    data: u64,
    address: u64,
    tag: u64,
) -> isize {
    // SAFETY: see `recv`.
    let (endpoint, buffer) = unsafe { (&*endpoint, one_segment(start, len)) };
    let envelope = Envelope { tag: Some(tag), data: Some(data) };
    let (flags, context) = (FI_INJECT, std::ptr::null_mut());
    endpoint.post_send(Outgoing { buffer, address, envelope, flags, context }, false)
}
