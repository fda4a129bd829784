//! Messages without tags: fi_msg(3).

use std::ffi::c_void;

use score_p2p::wire::Envelope;

use crate::abi::*;
use crate::endpoint::Endpoint;
use crate::messages::{self, data_of, segments};
use crate::op_table::op;

pub(crate) static OPS: FiOpsMsg = FiOpsMsg {
    size: size_of::<FiOpsMsg>(),
    recv: op!(recv as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
    recvv: op!(recvv as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
    recvmsg: op!(recvmsg as unsafe extern "C" fn(_, _, _) -> _),
    send: op!(send as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
    sendv: op!(sendv as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
    sendmsg: op!(sendmsg as unsafe extern "C" fn(_, _, _) -> _),
    inject: op!(inject as unsafe extern "C" fn(_, _, _, _) -> _),
    senddata: op!(senddata as unsafe extern "C" fn(_, _, _, _, _, _, _) -> _),
    injectdata: op!(injectdata as unsafe extern "C" fn(_, _, _, _, _) -> _),
};

unsafe extern "C" fn recv(
    endpoint: *mut Endpoint,
    start: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    address: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program keeps the rules of fi_msg(3), here and in all functions below.
    unsafe { messages::receive_segment(endpoint, (start, len), address, None, context) }
}

unsafe extern "C" fn recvv(
    endpoint: *mut Endpoint,
    list: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    address: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `recv`.
    unsafe {
        let buffer = segments(list, count);
        messages::receive(endpoint, buffer, address, None, None, context)
    }
}

unsafe extern "C" fn recvmsg(endpoint: *mut Endpoint, message: *const FiMsg, flags: u64) -> isize {
    // SAFETY: see `recv`.
    unsafe {
        let FiMsg { msg_iov, iov_count, addr, context, .. } = *message;
        let buffer = segments(msg_iov, iov_count);
        messages::receive(endpoint, buffer, addr, None, Some(flags), context)
    }
}

unsafe extern "C" fn send(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    _desc: *mut c_void,
    address: u64,
    context: *mut c_void,
) -> isize {
    let envelope = Envelope { tag: None, data: None };
    // SAFETY: see `recv`.
    unsafe { messages::send_segment(endpoint, (start, len), address, envelope, context) }
}

unsafe extern "C" fn sendv(
    endpoint: *mut Endpoint,
    list: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    address: u64,
    context: *mut c_void,
) -> isize {
    let envelope = Envelope { tag: None, data: None };
    // SAFETY: see `recv`.
    unsafe {
        let buffer = segments(list, count);
        messages::send(endpoint, buffer, address, envelope, None, context)
    }
}

unsafe extern "C" fn sendmsg(endpoint: *mut Endpoint, message: *const FiMsg, flags: u64) -> isize {
    // SAFETY: see `recv`.
    unsafe {
        let FiMsg { msg_iov, iov_count, addr, context, data, .. } = *message;
        let envelope = Envelope { tag: None, data: data_of(flags, data) };
        let buffer = segments(msg_iov, iov_count);
        messages::send(endpoint, buffer, addr, envelope, Some(flags), context)
    }
}

unsafe extern "C" fn inject(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    address: u64,
) -> isize {
    let envelope = Envelope { tag: None, data: None };
    // SAFETY: see `recv`.
    unsafe { messages::inject(endpoint, (start, len), address, envelope) }
}

unsafe extern "C" fn senddata(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    address: u64,
    context: *mut c_void,
) -> isize {
    let envelope = Envelope { tag: None, data: Some(data) };
    // SAFETY: see `recv`.
    unsafe { messages::send_segment(endpoint, (start, len), address, envelope, context) }
}

unsafe extern "C" fn injectdata(
    endpoint: *mut Endpoint,
    start: *const c_void,
    len: usize,
    data: u64,
    address: u64,
) -> isize {
    let envelope = Envelope { tag: None, data: Some(data) };
    // SAFETY: see `recv`.
    unsafe { messages::inject(endpoint, (start, len), address, envelope) }
}
