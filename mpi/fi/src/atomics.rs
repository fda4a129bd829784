//! Atomic operations on memory of other nodes: fi_atomic(3). The target executes them when it makes
//! progress. An operation completes when the target has executed it.

use std::ffi::{c_int, c_void};

use score_p2p::{AtomicOperation, Datatype, MAX_ATOMIC_LEN, Operator, RemoteAddress, UserBuffer};

use crate::abi::*;
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::messages::{one_segment, send_result};
use crate::op_table::op;
use crate::{failed, failed_call};

pub(crate) static OPS: FiOpsAtomic = FiOpsAtomic {
    size: size_of::<FiOpsAtomic>(),
    write: op!(write as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _, _) -> _),
    writev: op!(writev as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _, _) -> _),
    writemsg: op!(writemsg as unsafe extern "C" fn(_, _, _) -> _),
    inject: op!(inject as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _),
    readwrite: op!(readwrite as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _, _, _, _) -> _),
    readwritev: op!(readwritev as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _, _, _, _, _) -> _),
    readwritemsg: op!(readwritemsg as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
    compwrite: op!(compwrite as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _, _, _, _, _, _) -> _),
    compwritev: op!(
        compwritev as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _) -> _
    ),
    compwritemsg: op!(compwritemsg as unsafe extern "C" fn(_, _, _, _, _, _, _, _, _) -> _),
    writevalid: op!(writevalid as unsafe extern "C" fn(_, _, _, _) -> _),
    readwritevalid: op!(readwritevalid as unsafe extern "C" fn(_, _, _, _) -> _),
    compwritevalid: op!(compwritevalid as unsafe extern "C" fn(_, _, _, _) -> _),
};

/// The classes of calls (fi_atomic(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// The call has no result.
    Base,
    /// The call fetches the former values.
    Fetch,
    /// The call fetches the former values, and the operator compares.
    Compare,
}

/// The type and the operator of a call. Returns None if the combination is not supported.
fn types_of(class: Class, datatype: c_int, operator: c_int) -> Option<(Datatype, Operator)> {
    let datatype = Datatype::of_libfabric(datatype)?;
    let operator = Operator::of_number(u8::try_from(operator).ok()?)?;
    let is_of_class = match class {
        Class::Base => !operator.compares() && operator != Operator::Read,
        Class::Fetch => !operator.compares(),
        Class::Compare => operator.compares(),
    };
    (is_of_class && operator.takes(datatype)).then_some((datatype, operator))
}

/// An array of the program: parts, each with a number of elements.
#[derive(Clone, Copy)]
enum Elements {
    One(*const c_void, usize),
    Parts(*const FiIoc, usize),
}

const NO_ELEMENTS: Elements = Elements::One(std::ptr::null(), 0);

impl Elements {
    /// The buffer of the array. Returns None if it has too many parts or is too long.
    ///
    /// # Safety
    /// See fi_atomic(3).
    unsafe fn buffer(self, size: usize) -> Option<UserBuffer> {
        match self {
            // SAFETY: the caller promises it.
            Elements::One(start, count) => unsafe {
                Some(one_segment(start, count.checked_mul(size)?))
            },
            Elements::Parts(_, 0) => Some(UserBuffer::empty()),
            Elements::Parts(list, count) => {
                // SAFETY: the program's list has `count` entries.
                let list = unsafe { std::slice::from_raw_parts(list, count) };
                if list.iter().any(|part| part.count > MAX_ATOMIC_LEN) {
                    return None;
                }
                let parts = list.iter().map(|part| (part.addr.cast(), part.count * size));
                // SAFETY: the caller promises it.
                unsafe { UserBuffer::of_segments(parts) }
            }
        }
    }
}

/// The arguments of a call.
struct Call {
    class: Class,
    operands: Elements,
    compared: Elements,
    result: Elements,
    address: u64,
    target: RemoteAddress,
    datatype: c_int,
    operator: c_int,
    /// The flags of the call. None: the flags of the endpoint apply.
    flags: Option<u64>,
    context: *mut c_void,
    is_reported: bool,
}

impl Call {
    /// The call of a message, without the arrays for values to compare with and for results.
    /// Returns None if the message does not have exactly one part of remote memory.
    ///
    /// # Safety
    /// See fi_atomic(3).
    unsafe fn of_message(class: Class, message: *const FiMsgAtomic, flags: u64) -> Option<Self> {
        // SAFETY: the caller promises it.
        let FiMsgAtomic { msg_iov, iov_count, addr, rma_iov, rma_iov_count, .. } =
            unsafe { *message };
        if rma_iov_count != 1 {
            return None;
        }
        // SAFETY: the caller promises it.
        let (FiMsgAtomic { datatype, op, context, .. }, remote) = unsafe { (*message, *rma_iov) };
        Some(Self {
            class,
            operands: Elements::Parts(msg_iov, iov_count),
            compared: NO_ELEMENTS,
            result: NO_ELEMENTS,
            address: addr,
            target: RemoteAddress { key: remote.key, offset: remote.addr },
            datatype,
            operator: op,
            flags: Some(flags),
            context,
            is_reported: true,
        })
    }

    /// The operation of the call. Returns None if its arrays are too long, have too many parts, or
    /// differ in length.
    ///
    /// # Safety
    /// See fi_atomic(3).
    unsafe fn operation(
        &self,
        endpoint: &Endpoint,
        (datatype, operator): (Datatype, Operator),
        node: u32,
        flags: u64,
    ) -> Option<AtomicOperation> {
        let size = datatype.size();
        // SAFETY: the caller promises it. `FI_ATOMIC_READ` ignores the operands.
        let [operands, compared, result] = unsafe {
            let operands = if operator.has_operands() { self.operands } else { NO_ELEMENTS };
            [operands.buffer(size)?, self.compared.buffer(size)?, self.result.buffer(size)?]
        };
        let is_fetched = self.class != Class::Base;
        let len = if is_fetched { result.len() } else { operands.len() };
        let has_len = |needed: bool, buffer: &UserBuffer| !needed || buffer.len() == len;
        if len == 0
            || len > MAX_ATOMIC_LEN
            || !has_len(operator.has_operands(), &operands)
            || !has_len(operator.compares(), &compared)
        {
            return None;
        }
        let mut request = endpoint.sends.request(self.context, flags);
        request.is_reported &= self.is_reported;
        Some(AtomicOperation {
            node,
            target: self.target,
            operator,
            datatype,
            count: len / size,
            operands,
            compared,
            result: is_fetched.then_some(result),
            request,
        })
    }
}

/// Starts an operation.
///
/// # Safety
/// `endpoint` is open, and the arrays are valid as fi_atomic(3) requires.
unsafe fn start(endpoint: *mut Endpoint, call: Option<Call>) -> isize {
    // SAFETY: the caller promises it.
    let endpoint = unsafe { &*endpoint };
    let Some(call) = call else { return failed_call(libc::EINVAL) };
    let Some(types) = types_of(call.class, call.datatype, call.operator) else {
        return failed_call(libc::EOPNOTSUPP);
    };
    let flags = call.flags.unwrap_or(endpoint.sends.default_flags);
    endpoint.core.with(|core| {
        let Some(node) = core.node_at(endpoint.number, call.address) else {
            return failed_call(libc::EINVAL);
        };
        // SAFETY: the caller promises it.
        let Some(operation) = (unsafe { call.operation(endpoint, types, node, flags) }) else {
            return failed_call(libc::EINVAL);
        };
        if core.is_fenced(endpoint.number, node, flags) {
            return failed_call(libc::EAGAIN);
        }
        send_result(core.endpoints[endpoint.number].engine.atomic(&operation))
    })
}

unsafe extern "C" fn write(
    endpoint: *mut Endpoint,
    start_of_operands: *const c_void,
    count: usize,
    _desc: *mut c_void,
    address: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    operator: c_int,
    context: *mut c_void,
) -> isize {
    let call = Call {
        class: Class::Base,
        operands: Elements::One(start_of_operands, count),
        compared: NO_ELEMENTS,
        result: NO_ELEMENTS,
        address,
        target: RemoteAddress { key, offset },
        datatype,
        operator,
        flags: None,
        context,
        is_reported: true,
    };
    // SAFETY: the program keeps the rules of fi_atomic(3), here and in all functions below.
    unsafe { start(endpoint, Some(call)) }
}

unsafe extern "C" fn writev(
    endpoint: *mut Endpoint,
    list: *const FiIoc,
    _desc: *mut *mut c_void,
    count: usize,
    address: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    operator: c_int,
    context: *mut c_void,
) -> isize {
    let call = Call {
        class: Class::Base,
        operands: Elements::Parts(list, count),
        compared: NO_ELEMENTS,
        result: NO_ELEMENTS,
        address,
        target: RemoteAddress { key, offset },
        datatype,
        operator,
        flags: None,
        context,
        is_reported: true,
    };
    // SAFETY: see `write`.
    unsafe { start(endpoint, Some(call)) }
}

unsafe extern "C" fn writemsg(
    endpoint: *mut Endpoint,
    message: *const FiMsgAtomic,
    flags: u64,
) -> isize {
    // SAFETY: see `write`.
    unsafe { start(endpoint, Call::of_message(Class::Base, message, flags)) }
}

unsafe extern "C" fn inject(
    endpoint: *mut Endpoint,
    start_of_operands: *const c_void,
    count: usize,
    address: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    operator: c_int,
) -> isize {
    let call = Call {
        class: Class::Base,
        operands: Elements::One(start_of_operands, count),
        compared: NO_ELEMENTS,
        result: NO_ELEMENTS,
        address,
        target: RemoteAddress { key, offset },
        datatype,
        operator,
        flags: Some(FI_INJECT),
        context: std::ptr::null_mut(),
        is_reported: false,
    };
    // SAFETY: see `write`.
    unsafe { start(endpoint, Some(call)) }
}

unsafe extern "C" fn readwrite(
    endpoint: *mut Endpoint,
    start_of_operands: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    address: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    operator: c_int,
    context: *mut c_void,
) -> isize {
    let call = Call {
        class: Class::Fetch,
        operands: Elements::One(start_of_operands, count),
        compared: NO_ELEMENTS,
        result: Elements::One(result, count),
        address,
        target: RemoteAddress { key, offset },
        datatype,
        operator,
        flags: None,
        context,
        is_reported: true,
    };
    // SAFETY: see `write`.
    unsafe { start(endpoint, Some(call)) }
}

unsafe extern "C" fn readwritev(
    endpoint: *mut Endpoint,
    list: *const FiIoc,
    _desc: *mut *mut c_void,
    count: usize,
    results: *mut FiIoc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    address: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    operator: c_int,
    context: *mut c_void,
) -> isize {
    let call = Call {
        class: Class::Fetch,
        operands: Elements::Parts(list, count),
        compared: NO_ELEMENTS,
        result: Elements::Parts(results, result_count),
        address,
        target: RemoteAddress { key, offset },
        datatype,
        operator,
        flags: None,
        context,
        is_reported: true,
    };
    // SAFETY: see `write`.
    unsafe { start(endpoint, Some(call)) }
}

unsafe extern "C" fn readwritemsg(
    endpoint: *mut Endpoint,
    message: *const FiMsgAtomic,
    results: *mut FiIoc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: see `write`.
    unsafe {
        let call = Call::of_message(Class::Fetch, message, flags);
        let result = Elements::Parts(results, result_count);
        start(endpoint, call.map(|call| Call { result, ..call }))
    }
}

unsafe extern "C" fn compwrite(
    endpoint: *mut Endpoint,
    start_of_operands: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compared: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    address: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    operator: c_int,
    context: *mut c_void,
) -> isize {
    let call = Call {
        class: Class::Compare,
        operands: Elements::One(start_of_operands, count),
        compared: Elements::One(compared, count),
        result: Elements::One(result, count),
        address,
        target: RemoteAddress { key, offset },
        datatype,
        operator,
        flags: None,
        context,
        is_reported: true,
    };
    // SAFETY: see `write`.
    unsafe { start(endpoint, Some(call)) }
}

unsafe extern "C" fn compwritev(
    endpoint: *mut Endpoint,
    list: *const FiIoc,
    _desc: *mut *mut c_void,
    count: usize,
    compared: *const FiIoc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut FiIoc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    address: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    operator: c_int,
    context: *mut c_void,
) -> isize {
    let call = Call {
        class: Class::Compare,
        operands: Elements::Parts(list, count),
        compared: Elements::Parts(compared, compare_count),
        result: Elements::Parts(results, result_count),
        address,
        target: RemoteAddress { key, offset },
        datatype,
        operator,
        flags: None,
        context,
        is_reported: true,
    };
    // SAFETY: see `write`.
    unsafe { start(endpoint, Some(call)) }
}

unsafe extern "C" fn compwritemsg(
    endpoint: *mut Endpoint,
    message: *const FiMsgAtomic,
    compared: *const FiIoc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut FiIoc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: see `write`.
    unsafe {
        let call = Call::of_message(Class::Compare, message, flags);
        let compared = Elements::Parts(compared, compare_count);
        let result = Elements::Parts(results, result_count);
        start(endpoint, call.map(|call| Call { compared, result, ..call }))
    }
}

/// Stores the most elements that a call of this class may have.
///
/// # Safety
/// `count` has room for a number.
unsafe fn is_valid(class: Class, datatype: c_int, operator: c_int, count: *mut usize) -> c_int {
    let Some((datatype, _)) = types_of(class, datatype, operator) else {
        return failed(libc::EOPNOTSUPP);
    };
    // SAFETY: the caller promises it.
    unsafe { *count = MAX_ATOMIC_LEN / datatype.size() };
    0
}

unsafe extern "C" fn writevalid(
    _endpoint: *mut Endpoint,
    datatype: c_int,
    operator: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: the program keeps the rules of fi_atomicvalid(3).
    unsafe { is_valid(Class::Base, datatype, operator, count) }
}

unsafe extern "C" fn readwritevalid(
    _endpoint: *mut Endpoint,
    datatype: c_int,
    operator: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: the program keeps the rules of fi_fetch_atomicvalid(3).
    unsafe { is_valid(Class::Fetch, datatype, operator, count) }
}

unsafe extern "C" fn compwritevalid(
    _endpoint: *mut Endpoint,
    datatype: c_int,
    operator: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: the program keeps the rules of fi_compare_atomicvalid(3).
    unsafe { is_valid(Class::Compare, datatype, operator, count) }
}

/// fi_query_atomic(3).
///
/// # Safety
/// See fi_query_atomic(3).
pub(crate) unsafe extern "C" fn query(
    _domain: *mut Domain,
    datatype: c_int,
    operator: c_int,
    attr: *mut FiAtomicAttr,
    flags: u64,
) -> c_int {
    let class = match flags {
        0 => Class::Base,
        FI_FETCH_ATOMIC => Class::Fetch,
        FI_COMPARE_ATOMIC => Class::Compare,
        _ => return failed(libc::EOPNOTSUPP),
    };
    let Some((datatype, _)) = types_of(class, datatype, operator) else {
        return failed(libc::EOPNOTSUPP);
    };
    let size = datatype.size();
    // SAFETY: the caller promises it.
    unsafe { *attr = FiAtomicAttr { count: MAX_ATOMIC_LEN / size, size } };
    0
}
