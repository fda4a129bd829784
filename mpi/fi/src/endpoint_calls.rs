//! Endpoints and their options: fi_endpoint(3).

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use score_p2p::{Channel, Counted};

use crate::abi::*;
use crate::address_vector::AddressVector;
use crate::addresses::{NodeAddress, store_name};
use crate::completion_queue::CompletionQueue;
use crate::core_state::{CoreState, EndpointQueues};
use crate::counter::Counter;
use crate::domain::Domain;
use crate::endpoint::{Direction, Endpoint};
use crate::idle_mark;
use crate::op_table::{SUCCEEDS, UNSUPPORTED, op};
use crate::serialized::Serialized;
use crate::{atomics, failed, failed_call, remote_memory, tagged, untagged};

/// The default of `FI_OPT_MIN_MULTI_RECV`: a buffer for several messages is released when less is
/// free.
const MIN_MULTI_RECV: usize = 16 << 10;

/// How long fi_close waits until the receivers have the endpoint's messages.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(300);

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close: op!(close as unsafe extern "C" fn(_) -> _),
    bind: op!(bind as unsafe extern "C" fn(_, _, _) -> _),
    control: op!(control as unsafe extern "C" fn(_, _, _) -> _),
    ops_open: UNSUPPORTED,
};

static ENDPOINT_OPS: FiOpsEp = FiOpsEp {
    size: size_of::<FiOpsEp>(),
    cancel: op!(cancel as unsafe extern "C" fn(_, _) -> _),
    getopt: op!(getopt as unsafe extern "C" fn(_, _, _, _, _) -> _),
    setopt: op!(setopt as unsafe extern "C" fn(_, _, _, _, _) -> _),
    tx_ctx: UNSUPPORTED,
    rx_ctx: UNSUPPORTED,
    rx_size_left: UNSUPPORTED,
    tx_size_left: UNSUPPORTED,
};

static NAME_OPS: FiOpsCm = FiOpsCm {
    size: size_of::<FiOpsCm>(),
    setname: UNSUPPORTED,
    getname: op!(getname as unsafe extern "C" fn(_, _, _) -> _),
    getpeer: UNSUPPORTED,
    connect: UNSUPPORTED,
    listen: UNSUPPORTED,
    accept: UNSUPPORTED,
    reject: UNSUPPORTED,
    shutdown: SUCCEEDS,
    join: UNSUPPORTED,
};

/// fi_endpoint(3).
///
/// # Safety
/// See fi_endpoint(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut Domain,
    info: *const FiInfo,
    result: *mut *mut Endpoint,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes an open domain.
    let core = unsafe { (*domain).core };
    let Some(number) = core.with(CoreState::open_endpoint) else { return failed(libc::EBUSY) };
    // SAFETY: the info is from `getinfo`, and the program may have changed it. Its attributes may
    // be NULL.
    let (tx_flags, rx_flags, caps) = unsafe {
        let (tx, rx) = ((*info).tx_attr.as_ref(), (*info).rx_attr.as_ref());
        (tx.map_or(0, |tx| tx.op_flags), rx.map_or(0, |rx| rx.op_flags), (*info).caps)
    };
    let fid = Fid { fclass: FI_CLASS_EP, context, ops: &OPS };
    let fid = FidEp {
        fid,
        ops: &ENDPOINT_OPS,
        cm: &NAME_OPS,
        msg: &untagged::OPS,
        rma: &remote_memory::OPS,
        tagged: &tagged::OPS,
        atomic: &atomics::OPS,
    };
    let endpoint = Endpoint {
        fid,
        core,
        number,
        sends: Direction { default_flags: tx_flags, is_selective: false },
        receives: Direction { default_flags: rx_flags, is_selective: false },
        min_multi_recv: MIN_MULTI_RECV,
        is_directed: caps & FI_DIRECTED_RECV != 0,
        queues: EndpointQueues::default(),
    };
    // SAFETY: the caller promises that the address can be written.
    unsafe { *result = Box::into_raw(Box::new(endpoint)) };
    0
}

unsafe extern "C" fn close(endpoint: *mut Endpoint) -> c_int {
    // SAFETY: `open` has made the endpoint, and the program does not use it any more
    // (fi_endpoint(3)).
    let endpoint = unsafe { Box::from_raw(endpoint) };
    flush(endpoint.core, endpoint.number);
    endpoint.core.with(|core| core.close_endpoint(endpoint.number));
    0
}

/// Waits until other nodes have received the messages that the program considers sent. MPICH closes
/// its endpoint without waiting for them.
fn flush(core: &Serialized<CoreState>, number: usize) {
    // The wait has a deadline, so it must not count as idle.
    idle_mark::become_busy();
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    loop {
        let is_flushed = core.with(|core| {
            core.progress();
            core.endpoints[number].engine.is_flushed()
        });
        if is_flushed {
            return;
        }
        if Instant::now() > deadline {
            let (seconds, node) = (CLOSE_TIMEOUT.as_secs(), core.with(|core| core.self_node));
            eprintln!(
                "libpm-fi: node {node}: other nodes have not received its last messages within \
                 {seconds} s; the messages are dropped"
            );
            return;
        }
        std::thread::yield_now();
    }
}

/// fi_ep_bind(3).
unsafe extern "C" fn bind(endpoint: *mut Endpoint, object: *mut Fid, flags: u64) -> c_int {
    // SAFETY: the endpoint is open, and the program serializes such calls (fi_endpoint(3)).
    let endpoint = unsafe { &mut *endpoint };
    // SAFETY: the program passes an object of this provider.
    match unsafe { (*object).fclass } {
        FI_CLASS_CQ => {
            // SAFETY: the class says which type the object has.
            let number = unsafe { (*object.cast::<CompletionQueue>()).number };
            let is_selective = flags & FI_SELECTIVE_COMPLETION != 0;
            if flags & FI_SEND != 0 {
                endpoint.queues.sends = Some(number);
                endpoint.sends.is_selective = is_selective;
            }
            if flags & FI_RECV != 0 {
                endpoint.queues.receives = Some(number);
                endpoint.receives.is_selective = is_selective;
            }
            0
        }
        FI_CLASS_AV => {
            // SAFETY: the class says which type the object has.
            let vector = unsafe { (*object.cast::<AddressVector>()).number };
            endpoint.core.with(|core| core.endpoints[endpoint.number].vector = Some(vector));
            0
        }
        FI_CLASS_EQ => 0,
        FI_CLASS_CNTR if flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) == 0 => {
            // SAFETY: the class says which type the object has.
            let number = unsafe { (*object.cast::<Counter>()).number };
            let kinds = [
                (FI_SEND, Counted::Sends),
                (FI_RECV, Counted::Receives),
                (FI_READ, Counted::Reads),
                (FI_WRITE, Counted::Writes),
            ];
            let bound = kinds.into_iter().filter(|(flag, _)| flags & flag != 0);
            let bound: Vec<_> = bound.map(|(_, counted)| (endpoint.number, counted)).collect();
            endpoint.core.with(|core| core.bind_counter(number, &bound));
            0
        }
        _ => failed(libc::ENOSYS),
    }
}

/// fi_control(3).
unsafe extern "C" fn control(
    endpoint: *mut Endpoint,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the program passes an open endpoint.
    let endpoint = unsafe { &*endpoint };
    match command {
        FI_ENABLE => {
            let number = endpoint.number;
            endpoint.core.with(|core| core.endpoints[number].queues = Some(endpoint.queues));
            0
        }
        FI_GETOPSFLAG => {
            let flags = argument.cast::<u64>();
            // SAFETY: the program passes the flags of one direction at this address.
            unsafe {
                *flags = match *flags & FI_SEND != 0 {
                    true => endpoint.sends.default_flags,
                    false => endpoint.receives.default_flags,
                };
            }
            0
        }
        _ => failed(libc::ENOSYS),
    }
}

/// fi_cancel(3).
unsafe extern "C" fn cancel(endpoint: *mut Endpoint, context: *mut c_void) -> isize {
    // SAFETY: the program passes an open endpoint.
    let endpoint = unsafe { &*endpoint };
    let is_cancelled = endpoint.core.with(|core| {
        let engine = &mut core.endpoints[endpoint.number].engine;
        [Channel::Tagged, Channel::Untagged]
            .into_iter()
            .any(|channel| engine.cancel(channel, context.addr()))
    });
    if is_cancelled { 0 } else { failed_call(libc::ENOENT) }
}

/// fi_getopt(3).
unsafe extern "C" fn getopt(
    endpoint: *mut Endpoint,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
        return failed(libc::ENOPROTOOPT);
    }
    // SAFETY: the endpoint is open, and the program has `*len` bytes.
    unsafe {
        if *len < size_of::<usize>() {
            return failed(libc::EINVAL);
        }
        value.cast::<usize>().write_unaligned((*endpoint).min_multi_recv);
        *len = size_of::<usize>();
    }
    0
}

/// fi_setopt(3).
unsafe extern "C" fn setopt(
    endpoint: *mut Endpoint,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
        return failed(libc::ENOPROTOOPT);
    }
    if len != size_of::<usize>() {
        return failed(libc::EINVAL);
    }
    // SAFETY: the endpoint is open, and the program passes a value of this length.
    unsafe { (*endpoint).min_multi_recv = value.cast::<usize>().read_unaligned() };
    0
}

/// fi_getname(3).
unsafe extern "C" fn getname(endpoint: *mut Endpoint, name: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the endpoint is open, and the program has `*len` bytes.
    unsafe {
        let node = (*endpoint).core.with(|core| core.self_node);
        let address = NodeAddress::new(node, (*endpoint).number);
        store_name(address, name, len, failed(FI_ETOOSMALL))
    }
}
