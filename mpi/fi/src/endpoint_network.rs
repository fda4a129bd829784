//! The part of PM that an endpoint uses. A process has one PM context; the endpoints share it, and
//! a byte of each header tells whose the message is. Endpoints of the same number reach each other.
//!
//! A process may open endpoints before it is a node of its job: the first use of PM makes it one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::rc::Rc;

use score_p2p::wire::ENGINE_BYTE;
use score_p2p::{
    AccessError, AccessNumber, Body, EndedAccess, Message, Network, SendError, UserBuffer,
    WriteProgress,
};

use crate::pm_network::{self, PmNetwork};

/// Endpoints that a process may have open at a time.
pub(crate) const MAX_ENDPOINTS: usize = 8;

/// PM, and what has arrived for endpoints other than the one that has received it.
struct Shared {
    /// None: this process is not a node of its job yet.
    network: Option<PmNetwork>,
    /// By number of the endpoint.
    inboxes: Vec<VecDeque<Box<[u8]>>>,
}

/// The PM context of the process.
#[derive(Clone)]
pub(crate) struct SharedNetwork(Rc<RefCell<Shared>>);

/// See the [module](self).
pub(crate) struct EndpointNetwork {
    shared: SharedNetwork,
    number: u8,
}

impl SharedNetwork {
    /// None: PM is joined when it is used first.
    pub(crate) fn new(network: Option<PmNetwork>) -> Self {
        let shared = Shared { network, inboxes: vec![VecDeque::new()] };
        Self(Rc::new(RefCell::new(shared)))
    }

    /// The network of an endpoint.
    pub(crate) fn of_endpoint(&self, number: usize) -> EndpointNetwork {
        EndpointNetwork { shared: self.clone(), number: number as u8 }
    }

    /// The descriptors on which PM's messages are waited for (pmGetFd).
    pub(crate) fn wait_fds(&self) -> Vec<RawFd> {
        self.0.borrow_mut().network().wait_fds()
    }

    /// Has arriving messages wake the process (pmBeforeSelect).
    pub(crate) fn before_wait(&self) {
        self.0.borrow_mut().network().before_wait();
    }

    /// Undoes that (pmAfterSelect).
    pub(crate) fn after_wait(&self) {
        self.0.borrow_mut().network().after_wait();
    }

    /// Whether messages have arrived that nobody has looked at.
    pub(crate) fn has_messages(&self) -> bool {
        let mut shared = self.0.borrow_mut();
        shared.network().has_messages() || shared.inboxes.iter().any(|inbox| !inbox.is_empty())
    }

    /// One more than the highest number of an endpoint for which messages have arrived.
    #[inline(always)]
    pub(crate) fn inbox_count(&self) -> usize {
        self.0.borrow().inboxes.len()
    }
}

impl Shared {
    /// PM. The first call makes this process a node of its job, and returns when all nodes have
    /// made theirs.
    #[inline(always)]
    fn network(&mut self) -> &mut PmNetwork {
        self.network.get_or_insert_with(pm_network::join)
    }

    /// Keeps a message for another endpoint. False: there can be no such endpoint.
    #[cold]
    fn keep(&mut self, number: usize, message: &Message<'_>) -> bool {
        if number >= MAX_ENDPOINTS {
            return false;
        }
        if self.inboxes.len() <= number {
            self.inboxes.resize_with(number + 1, VecDeque::new);
        }
        self.inboxes[number].push_back(message.to_boxed());
        true
    }

    #[cold]
    fn next_of_inbox(&mut self, number: usize) -> Option<Box<[u8]>> {
        self.inboxes.get_mut(number)?.pop_front()
    }
}

impl EndpointNetwork {
    /// Passes the next message of the context to `handle`, if it is for this endpoint. None: there
    /// is no message. False: it was for another endpoint.
    #[inline(always)]
    fn receive_of_context(
        shared: &mut Shared,
        number: u8,
        handle: &mut Option<impl FnOnce(Message<'_>)>,
    ) -> Option<bool> {
        let mut other = None;
        let mut is_own = true;
        let has_received = shared.network().receive(|message| {
            // A message that is too short for this byte is malformed, whoever looks at it.
            let target = message.byte(ENGINE_BYTE).unwrap_or(number);
            is_own = target == number;
            if is_own {
                handle.take().into_iter().for_each(|handle| handle(message));
            } else {
                other = Some((target, message.to_boxed()));
            }
        });
        if let Some((target, bytes)) = other {
            let message = Message::of_bytes(&bytes);
            if !shared.keep(usize::from(target), &message) {
                // An endpoint that cannot be: the header is malformed.
                handle.take().into_iter().for_each(|handle| handle(Message::of_bytes(&[])));
                is_own = true;
            }
        }
        has_received.then_some(is_own)
    }
}

impl Network for EndpointNetwork {
    #[inline(always)]
    fn mtu(&mut self, node: u32) -> usize {
        self.shared.0.borrow_mut().network().mtu(node)
    }

    #[inline(always)]
    fn send(&mut self, node: u32, header: &[u8], body: Body<'_>) -> Result<(), SendError> {
        self.shared.0.borrow_mut().network().send(node, (header, self.number), body)
    }

    #[inline(always)]
    fn receive(&mut self, handle: impl FnOnce(Message<'_>)) -> bool {
        let shared = &mut *self.shared.0.borrow_mut();
        let number = usize::from(self.number);
        let has_kept = shared.inboxes.get(number).is_some_and(|inbox| !inbox.is_empty());
        if has_kept && let Some(bytes) = shared.next_of_inbox(number) {
            handle(Message::of_bytes(&bytes));
            return true;
        }
        let mut handle = Some(handle);
        loop {
            match Self::receive_of_context(shared, self.number, &mut handle) {
                None => return false,
                Some(true) => return true,
                Some(false) => {}
            }
        }
    }

    fn expose(&mut self, node: u32, buffer: &UserBuffer) -> Option<u64> {
        self.shared.0.borrow_mut().network().expose(node, buffer)
    }

    fn conceal(&mut self, node: u32, buffer: &UserBuffer) {
        self.shared.0.borrow_mut().network().conceal(node, buffer);
    }

    fn expose_to_all(&mut self, buffer: &UserBuffer) -> Option<u64> {
        self.shared.0.borrow_mut().network().expose_to_all(buffer)
    }

    fn conceal_from_all(&mut self, buffer: &UserBuffer) {
        self.shared.0.borrow_mut().network().conceal_from_all(buffer);
    }

    fn start_read(
        &mut self,
        node: u32,
        handle: u64,
        into: &UserBuffer,
    ) -> Result<AccessNumber, AccessError> {
        let endpoint = usize::from(self.number);
        self.shared.0.borrow_mut().network().start_read(endpoint, node, handle, into)
    }

    fn start_write(
        &mut self,
        node: u32,
        handle: u64,
        from: &UserBuffer,
    ) -> Result<WriteProgress, AccessError> {
        let endpoint = usize::from(self.number);
        self.shared.0.borrow_mut().network().start_write(endpoint, node, handle, from)
    }

    fn next_ended(&mut self) -> Option<EndedAccess> {
        let endpoint = usize::from(self.number);
        self.shared.0.borrow_mut().network().next_ended(endpoint)
    }

    fn release_buffer(&mut self, node: u32, buffer: &UserBuffer) {
        self.shared.0.borrow_mut().network().conceal(node, buffer);
    }
}
