//! The network part of a context, which its owner binds or a process attaches.

#![forbid(unsafe_code)]

use super::address_table::{AddressTable, AddressTableShape};
use super::attach::{ATTACH_MAX, NetworkAttachMessage};
use super::slab::Slab;
use super::{Channels, EndpointIdentity, NetworkDevice, NetworkEndpoint};
use crate::config::ContextConfig;
use crate::debug;
use crate::device::{Endpoint, EndpointHolder, fd_passing};
use crate::error::{Error, PmResult};
use crate::role;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the [module](self).
pub(crate) struct NetworkContext<N: NetworkDevice> {
    number: usize,
    /// The channel and node to which the owner has bound the context.
    binding: Mutex<Option<(u32, u32)>>,
    owner: Option<Arc<Channels<N>>>,
    /// In the owner, the holder is empty until the bound context is used for the first time. The
    /// holder stays empty if the context was given to another process.
    endpoint: EndpointHolder<NetworkEndpoint<N>>,
}

impl<N: NetworkDevice> NetworkContext<N> {
    fn new(number: usize, owner: Option<Arc<Channels<N>>>) -> NetworkContext<N> {
        let endpoint = EndpointHolder::empty();
        NetworkContext { number, binding: Mutex::default(), owner, endpoint }
    }

    pub(crate) fn opened(number: usize, owner: &Arc<Channels<N>>) -> NetworkContext<N> {
        NetworkContext::new(number, Some(owner.clone()))
    }

    pub(super) fn attached(number: usize, endpoint: Arc<NetworkEndpoint<N>>) -> NetworkContext<N> {
        let context = NetworkContext::new(number, None);
        context.endpoint.install(endpoint);
        context
    }

    fn binding(&self) -> MutexGuard<'_, Option<(u32, u32)>> {
        self.binding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the endpoint without opening it. Returns `Invalid` if it is not in use in this
    /// process.
    #[inline(always)]
    pub(crate) fn active_endpoint(&self) -> PmResult<&NetworkEndpoint<N>> {
        self.endpoint.get()
    }

    /// Returns the endpoint, and opens it at the first call. Returns `Invalid` if the context is
    /// not bound or the addresses of the peers are not set yet. Returns `Busy` if the context was
    /// given to another process.
    #[inline(always)]
    pub(crate) fn endpoint(&self) -> PmResult<&NetworkEndpoint<N>> {
        self.active_endpoint().or_else(|_| self.activate())
    }

    #[cold]
    fn activate(&self) -> PmResult<&NetworkEndpoint<N>> {
        let owner = self.owner.as_ref().ok_or(Error::Invalid)?;
        let binding = self.binding();
        if self.active_endpoint().is_err() {
            let (channel, self_node) = binding.ok_or(Error::Invalid)?;
            self.endpoint.install(owner.open_endpoint(channel, self_node)?);
        }
        self.active_endpoint()
    }

    /// Binds the context to a channel and node. Returns `Busy` if this context is already bound, or
    /// if another context is bound there. Called with both locks held.
    pub(crate) fn bind(&self, channel: u32, self_node: u32) -> PmResult<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut binding = self.binding();
        if binding.is_some() {
            return Err(Error::Busy);
        }
        owner.bind(channel, self_node)?;
        *binding = Some((channel, self_node));
        Ok(())
    }

    /// Unbinds the context and closes its endpoint. Returns `Invalid` if the context is not bound.
    /// Called with both locks held.
    pub(crate) fn unbind(&self) -> PmResult<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut binding = self.binding();
        let (channel, self_node) = binding.take().ok_or(Error::Invalid)?;
        self.endpoint.clear();
        self.endpoint.all().iter().for_each(|endpoint| N::close(endpoint));
        owner.unbind(channel, self_node);
        Ok(())
    }

    /// Closes the endpoint, in a process to which the context was given. Called with both locks
    /// held.
    pub(crate) fn close(&self) {
        if self.owner.is_none() {
            self.endpoint.all().iter().for_each(|endpoint| N::close(endpoint));
        }
    }

    /// Makes an attach descriptor for another process. Returns `Invalid` if the context is not
    /// bound or the addresses of the peers are not set yet. Returns `Busy` if the context was used
    /// in this process, because sequence numbers may be used only once.
    pub(crate) fn create_attach_fd(&self) -> PmResult<OwnedFd> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let binding = self.binding();
        let (channel, self_node) = binding.ok_or(Error::Invalid)?;
        if self.active_endpoint().is_ok() {
            return Err(Error::Busy);
        }
        owner.create_attach_fd(self.number, channel, self_node)
    }

    /// Returns the node number of the context. Returns `Invalid` if the context is neither bound
    /// nor attached.
    pub(crate) fn self_node(&self) -> PmResult<u32> {
        match *self.binding() {
            Some((_, self_node)) => Ok(self_node),
            None => self.active_endpoint().map(Endpoint::self_node),
        }
    }

    /// Queues a control message. The process that uses the context sends it. Called by the owner.
    pub(crate) fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        let (channel, self_node) = self.binding().ok_or(Error::Invalid)?;
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        owner.control_send(channel, self_node, node, message)
    }

    pub(crate) fn config(&self) -> ContextConfig {
        let (nodes, mtu, size) = match (&self.owner, self.active_endpoint()) {
            (_, Ok(endpoint)) => (endpoint.nodes(), endpoint.max_message_len(), endpoint.size()),
            (Some(owner), Err(_)) => owner.dimensions(),
            (None, Err(_)) => (0, 0, 0),
        };
        let option = N::OPTIONS;
        ContextConfig { kind: N::KIND, number: self.number, nodes, mtu, size, option }
    }
}

/// Makes a context from an attach descriptor. Returns `Invalid` if the descriptor is not an attach
/// descriptor of this device or was used before. Returns `NoDevice` if this process has no such
/// device.
pub(crate) fn attach<N: NetworkDevice>(fd: &OwnedFd) -> PmResult<NetworkContext<N>> {
    let (bytes, fds) = fd_passing::unpack(fd, ATTACH_MAX)?;
    let attach = NetworkAttachMessage::decode(N::ATTACH_MAGIC, &bytes)?;
    let mut fds = fds.into_iter();
    let (Some(memory), Some(addresses)) = (fds.next(), fds.next()) else {
        return Err(Error::Invalid);
    };
    let slab = Arc::new(Slab::open(memory, attach.geometry, attach.nonce)?);
    let (setup, socket, links) = N::rebuild(&attach.socket_description, fds.collect())?;
    let NetworkAttachMessage { self_node, channel, secret, .. } = attach;
    let (nodes, channels) = (attach.geometry.nodes, attach.channels);
    let addresses =
        Arc::new(AddressTable::open(addresses, AddressTableShape { nodes, channels, links })?);
    let identity = EndpointIdentity { self_node, channel, secret };
    let endpoint = N::open(&setup, identity, socket, addresses, slab)?;
    role::become_user();
    debug::log(debug::INFO, || format!("{}: attached as node {self_node} of {nodes}", N::KIND));
    Ok(NetworkContext::attached(attach.number as usize, endpoint))
}
