//! The common part of messages with and without tags.

use std::ffi::c_void;

use score_p2p::wire::Envelope;
use score_p2p::{
    Channel, Completion, CompletionKind, Failure, Peek, PeekMode, ReceiveMode, ReceiveOperation,
    Request, Retention, Selector, SendCompletes, SendError, SendOperation, UserBuffer,
};

use crate::abi::*;
use crate::core_state::{CoreState, EndpointState, Reported};
use crate::endpoint::Endpoint;
use crate::failed_call;
use crate::properties::INJECT_SIZE;

/// The flags that affect only how a completion is reported, and that allow an early completion.
const FLAGS_OF_REPORTS: u64 = FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE;

/// A message to be sent.
struct Outgoing {
    buffer: UserBuffer,
    address: u64,
    envelope: Envelope,
    flags: u64,
    context: *mut c_void,
}

/// A receive to be posted.
struct Incoming {
    buffer: UserBuffer,
    address: u64,
    /// The tag, and its bits to ignore. None: a receive for messages without tags.
    tag: Option<(u64, u64)>,
    flags: u64,
    context: *mut c_void,
}

/// Posts a receive. `buffer` is None if the program passed too many pieces. If `flags` is None,
/// uses the flags of the endpoint.
///
/// # Safety
/// `endpoint` is open.
#[inline(always)]
pub(crate) unsafe fn receive(
    endpoint: *mut Endpoint,
    buffer: Option<UserBuffer>,
    address: u64,
    tag: Option<(u64, u64)>,
    flags: Option<u64>,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises it.
    let endpoint = unsafe { &*endpoint };
    let Some(buffer) = buffer else { return failed_call(libc::EINVAL) };
    let flags = flags.unwrap_or(endpoint.receives.default_flags);
    endpoint.post_receive(Incoming { buffer, address, tag, flags, context })
}

/// Like [`receive`], for contiguous memory and with the flags of the endpoint.
///
/// # Safety
/// Those of [`receive`] and of fi_msg(3).
#[inline(always)]
pub(crate) unsafe fn receive_segment(
    endpoint: *mut Endpoint,
    (start, len): (*mut c_void, usize),
    address: u64,
    tag: Option<(u64, u64)>,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises it.
    let endpoint = unsafe { &*endpoint };
    let flags = endpoint.receives.default_flags;
    if flags & !FI_COMPLETION == 0 {
        let request = endpoint.receives.request(context, flags);
        let core = &mut *endpoint.core.access();
        if let Some((channel, selector)) = endpoint.selector(core, address, tag) {
            // SAFETY: the caller promises it.
            let buffer = unsafe { one_segment(start, len) };
            let engine = &mut core.endpoints[endpoint.number].engine;
            if engine.post(channel, selector, buffer, request) {
                return 0;
            }
        }
    }
    // SAFETY: the caller promises it.
    let buffer = unsafe { one_segment(start, len) };
    endpoint.post_receive(Incoming { buffer, address, tag, flags, context })
}

/// Sends a message. `buffer` and `flags` have the same meaning as in [`receive`].
///
/// # Safety
/// `endpoint` is open.
#[inline(always)]
pub(crate) unsafe fn send(
    endpoint: *mut Endpoint,
    buffer: Option<UserBuffer>,
    address: u64,
    envelope: Envelope,
    flags: Option<u64>,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises it.
    let endpoint = unsafe { &*endpoint };
    let Some(buffer) = buffer else { return failed_call(libc::EINVAL) };
    let flags = flags.unwrap_or(endpoint.sends.default_flags);
    endpoint.post_send(Outgoing { buffer, address, envelope, flags, context }, true)
}

/// Like [`send`], for contiguous memory and with the flags of the endpoint. Most messages are sent
/// by this function.
///
/// # Safety
/// Those of [`send`] and of fi_msg(3).
#[inline(always)]
pub(crate) unsafe fn send_segment(
    endpoint: *mut Endpoint,
    (start, len): (*const c_void, usize),
    address: u64,
    envelope: Envelope,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller promises it.
    let endpoint = unsafe { &*endpoint };
    let flags = endpoint.sends.default_flags;
    let request = endpoint.sends.request(context, flags);
    if flags & !FLAGS_OF_REPORTS == 0
        // SAFETY: the caller promises it.
        && let Some(result) = unsafe {
            endpoint.send_eager(one_segment(start, len), address, envelope, request)
        }
    {
        return result;
    }
    // SAFETY: the caller promises it.
    let buffer = unsafe { one_segment(start, len) };
    endpoint.post_send(Outgoing { buffer, address, envelope, flags, context }, true)
}

/// Sends a message whose memory may change as soon as the call returns. Its success is not
/// reported.
///
/// # Safety
/// `endpoint` is open.
#[inline(always)]
pub(crate) unsafe fn inject(
    endpoint: *mut Endpoint,
    (start, len): (*const c_void, usize),
    address: u64,
    envelope: Envelope,
) -> isize {
    // SAFETY: the caller promises it.
    let endpoint = unsafe { &*endpoint };
    let request = Request { context: 0, is_reported: false };
    if len <= INJECT_SIZE
        // SAFETY: the caller promises it.
        && let Some(result) = unsafe {
            endpoint.send_eager(one_segment(start, len), address, envelope, request)
        }
    {
        return result;
    }
    // SAFETY: the caller promises it.
    let buffer = unsafe { one_segment(start, len) };
    let (flags, context) = (FI_INJECT, std::ptr::null_mut());
    endpoint.post_send(Outgoing { buffer, address, envelope, flags, context }, false)
}

/// A buffer of the program in one piece.
///
/// # Safety
/// The memory can be used until the operation completes (fi_msg(3)).
#[inline(always)]
pub(crate) unsafe fn one_segment(start: *const c_void, len: usize) -> UserBuffer {
    // SAFETY: the caller promises it.
    unsafe { UserBuffer::of_segment(start.cast_mut().cast(), len) }
}

/// A buffer of the program in several pieces. Returns None if there are too many.
///
/// # Safety
/// See fi_msg(3).
pub(crate) unsafe fn segments(list: *const libc::iovec, count: usize) -> Option<UserBuffer> {
    if count == 0 {
        return Some(UserBuffer::empty());
    }
    // SAFETY: the program's list has `count` entries.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    let parts = list.iter().map(|part| (part.iov_base.cast(), part.iov_len));
    // SAFETY: the caller promises it.
    unsafe { UserBuffer::of_segments(parts) }
}

/// The data that a call with these flags sends.
pub(crate) fn data_of(flags: u64, data: u64) -> Option<u64> {
    (flags & FI_REMOTE_CQ_DATA != 0).then_some(data)
}

/// The return value of a call that sends.
#[inline(always)]
pub(crate) fn send_result(result: Result<(), SendError>) -> isize {
    match result {
        Ok(()) => 0,
        Err(SendError::Full) => failed_call(libc::EAGAIN),
        Err(SendError::Unreachable) => failed_call(libc::EHOSTUNREACH),
    }
}

impl Endpoint {
    /// Sends a short message that completes at once. Returns None if nothing was sent; the caller
    /// then uses `post_send`.
    #[inline(always)]
    fn send_eager(
        &self,
        buffer: UserBuffer,
        address: u64,
        envelope: Envelope,
        request: Request,
    ) -> Option<isize> {
        let core = &mut *self.core.access();
        let node = core.node_at(self.number, address)?;
        if envelope.tag.is_none() {
            core.own_messages.note_send();
        }
        let engine = &mut core.endpoints[self.number].engine;
        engine.send_eager(node, envelope, &buffer, request).map(send_result)
    }

    /// Sends a message, or starts to send it. If `is_reported` is false, its success is not
    /// reported.
    #[inline(never)]
    fn post_send(&self, outgoing: Outgoing, is_reported: bool) -> isize {
        let Outgoing { buffer, address, envelope, flags, context } = outgoing;
        let is_volatile = flags & FI_INJECT != 0;
        if is_volatile && buffer.len() > INJECT_SIZE {
            return failed_call(libc::EMSGSIZE);
        }
        let mut request = self.sends.request(context, flags);
        request.is_reported &= is_reported;
        let retention = if is_volatile { Retention::Volatile } else { Retention::Stays };
        let completes = match flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) {
            0 => SendCompletes::AtOnce,
            FI_DELIVERY_COMPLETE => SendCompletes::OnArrival,
            _ => SendCompletes::OnMatch,
        };
        self.core.with(|core| {
            let Some(node) = core.node_at(self.number, address) else {
                return failed_call(libc::EINVAL);
            };
            if core.is_fenced(self.number, node, flags) {
                return failed_call(libc::EAGAIN);
            }
            if envelope.tag.is_none() {
                core.own_messages.note_send();
            }
            let send = SendOperation { node, envelope, buffer, retention, request, completes };
            send_result(core.endpoints[self.number].engine.send(&send))
        })
    }

    /// The channel and selector of a receive. Returns None if the address is not in the address
    /// vector.
    #[inline(always)]
    fn selector(
        &self,
        core: &CoreState,
        address: u64,
        tag: Option<(u64, u64)>,
    ) -> Option<(Channel, Selector)> {
        let source = match address {
            FI_ADDR_UNSPEC => None,
            _ if !self.is_directed => None,
            address => Some(core.node_at(self.number, address)?),
        };
        Some(match tag {
            Some((tag, ignore)) => (Channel::Tagged, Selector { source, tag, ignore }),
            None => (Channel::Untagged, Selector::untagged(source)),
        })
    }

    /// Posts a receive, or peeks for a message.
    #[inline(never)]
    fn post_receive(&self, incoming: Incoming) -> isize {
        self.core.with(|core| {
            let Some((channel, selector)) = self.selector(core, incoming.address, incoming.tag)
            else {
                return failed_call(libc::EINVAL);
            };
            if incoming.flags & (FI_PEEK | FI_CLAIM) != 0 && channel == Channel::Tagged {
                return self.look(core, selector, incoming);
            }
            let Incoming { buffer, flags, context, .. } = incoming;
            // Only messages without tags use buffers for several messages.
            let is_multiple = flags & FI_MULTI_RECV != 0 && channel == Channel::Untagged;
            let mode = match is_multiple {
                true => ReceiveMode::Multiple { min_free: self.min_multi_recv },
                false => ReceiveMode::Single,
            };
            let request = self.receives.request(context, flags);
            let engine = &mut core.endpoints[self.number].engine;
            engine.receive(channel, ReceiveOperation { selector, buffer, mode, request });
            0
        })
    }

    /// Handles `FI_PEEK`, `FI_CLAIM` and `FI_DISCARD` (fi_tagged(3)).
    #[cold]
    fn look(&self, core: &mut CoreState, selector: Selector, incoming: Incoming) -> isize {
        let Incoming { buffer, flags, context, .. } = incoming;
        let claimed = |is_found: bool| if is_found { 0 } else { failed_call(libc::ENOMSG) };
        if flags & FI_PEEK == 0 {
            if flags & FI_DISCARD == 0 {
                let request = self.receives.request(context, flags);
                let engine = &mut core.endpoints[self.number].engine;
                return claimed(engine.receive_claimed(buffer, request));
            }
            let engine = &mut core.endpoints[self.number].engine;
            let is_discarded = engine.discard_claimed(context.addr());
            if is_discarded {
                let envelope = Envelope { tag: Some(selector.tag), data: None };
                let source = core.self_node;
                let peek = Peek { len: 0, source, envelope };
                self.report_peek(core, context, &peek, None);
            }
            return claimed(is_discarded);
        }
        let mode = match (flags & FI_CLAIM != 0, flags & FI_DISCARD != 0) {
            (_, true) => PeekMode::Discard,
            (true, false) => PeekMode::Claim,
            (false, false) => PeekMode::Look,
        };
        // A program that only peeks must also make progress.
        core.progress();
        let EndpointState { engine, earlier_looks, .. } = &mut core.endpoints[self.number];
        let may_find = earlier_looks.may_find(selector);
        let peek = may_find.then(|| engine.peek(selector, mode, context.addr())).flatten();
        match peek {
            Some(peek) => self.report_peek(core, context, &peek, None),
            // The provider reports this as a failed completion, like other providers, because Open
            // MPI treats a failed call as an error.
            None => {
                earlier_looks.add(selector);
                let envelope = Envelope { tag: Some(selector.tag), data: None };
                let nothing = Peek { len: 0, source: core.self_node, envelope };
                self.report_peek(core, context, &nothing, Some(Failure::NoMessage));
            }
        }
        0
    }

    fn report_peek(
        &self,
        core: &mut CoreState,
        context: *mut c_void,
        peek: &Peek,
        failure: Option<Failure>,
    ) {
        let completion = Completion {
            context: context.addr(),
            kind: CompletionKind::Received,
            channel: Channel::Tagged,
            len: usize::try_from(peek.len).unwrap_or(usize::MAX),
            start: std::ptr::null_mut(),
            source: peek.source,
            envelope: peek.envelope,
            failure,
        };
        let queue = core.endpoints[self.number].queues.and_then(|queues| queues.receives);
        let reported = Reported { completion, endpoint: self.number };
        queue.into_iter().for_each(|number| core.report(number, reported));
    }
}
