//! The network of an endpoint. A process has one PM context, which its endpoints share. A byte of
//! each header identifies the endpoint. Only endpoints with the same number can reach each other.
//!
//! A process may open endpoints before it has joined its job. It joins when it first uses PM.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::rc::Rc;

use score_p2p::wire::EncodedHeader;
use score_p2p::{
    AccessError, AccessNumber, Body, EndedAccess, Message, Network, SendError, UserBuffer,
    WriteProgress,
};

use crate::pm_network::{self, PmNetwork};

/// The PM context of the process.
struct Shared {
    /// The network. None: this process has not joined its job yet. The first use joins the job.
    network: Option<PmNetwork>,
}

/// The PM context of the process. A clone refers to the same context.
#[derive(Clone)]
pub(crate) struct SharedNetwork(Rc<RefCell<Shared>>);

/// See the [module](self).
pub(crate) struct EndpointNetwork {
    shared: SharedNetwork,
    number: u8,
}

impl SharedNetwork {
    /// If `network` is None, the process joins when it first uses PM.
    pub(crate) fn new(network: Option<PmNetwork>) -> Self {
        Self(Rc::new(RefCell::new(Shared { network })))
    }

    /// The network of the endpoint with this number.
    pub(crate) fn of_endpoint(&self, number: usize) -> EndpointNetwork {
        EndpointNetwork { shared: self.clone(), number: number as u8 }
    }

    /// The descriptors for waiting on messages of PM (pmGetFd).
    pub(crate) fn wait_fds(&self) -> Vec<RawFd> {
        self.0.borrow_mut().network().wait_fds()
    }

    /// Makes arriving messages wake the process (pmBeforeSelect).
    pub(crate) fn before_wait(&self) {
        self.0.borrow_mut().network().before_wait();
    }

    /// Ends the effect of `before_wait` (pmAfterSelect).
    pub(crate) fn after_wait(&self) {
        self.0.borrow_mut().network().after_wait();
    }

    /// Whether messages have arrived that were not received.
    pub(crate) fn has_messages(&self) -> bool {
        self.0.borrow_mut().network().has_messages()
    }

    /// Passes the next message to `handle`. Returns false if there is no message.
    #[inline(always)]
    pub(crate) fn receive(&self, handle: impl FnOnce(Message<'_>)) -> bool {
        self.0.borrow_mut().network().receive(handle)
    }
}

impl Shared {
    /// The PM context. The first call joins the job, and returns when all nodes have joined.
    #[inline(always)]
    fn network(&mut self) -> &mut PmNetwork {
        if self.network.is_none() {
            self.join();
        }
        self.network.as_mut().unwrap_or_else(|| unreachable!("it was joined"))
    }

    #[cold]
    #[inline(never)]
    fn join(&mut self) {
        self.network = Some(pm_network::join());
    }
}

impl Network for EndpointNetwork {
    #[inline(always)]
    fn mtu(&mut self, node: u32) -> usize {
        self.shared.0.borrow_mut().network().mtu(node)
    }

    #[inline(always)]
    fn send(
        &mut self,
        node: u32,
        mut header: EncodedHeader,
        body: Body<'_>,
    ) -> Result<(), SendError> {
        header.set_engine(self.number);
        self.shared.0.borrow_mut().network().send(node, &header, body)
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
