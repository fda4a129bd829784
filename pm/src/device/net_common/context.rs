//! The network part of a context: bound by its owner, or attached in a process.

#![forbid(unsafe_code)]

use super::{Channels, NetworkDevice, NetworkEndpoint};
use crate::config::{ContextConfig, QueueStatus};
use crate::device::{Capabilities, EndpointHolder, ReadySource, Transport};
use crate::error::{Error, PmResult};
use crate::rma::{Direction, Region, RegionId, RmaOperation};
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the [module](self).
pub(crate) struct NetworkContext<N: NetworkDevice> {
    number: usize,
    /// The channel and node of an opened context that is bound.
    binding: Mutex<Option<(u32, u32)>>,
    owner: Option<Arc<Channels<N>>>,
    /// Empty while the context is not bound, and until a bound context is first used. If the
    /// context was given to another process, it stays empty.
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

    /// The endpoint, which is not opened. Returns `Invalid` if it is not in use here.
    #[inline(always)]
    fn active_endpoint(&self) -> PmResult<&NetworkEndpoint<N>> {
        self.endpoint.get()
    }

    /// The endpoint, which is opened at the first call. Returns `Invalid` if the context is not
    /// bound or the peers are not known yet. Returns `Busy` if it was given to another process.
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

    /// Called with both locks. Returns `Busy` if this context is bound already, or another one is
    /// bound there.
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

    /// Called with both locks. Returns `Invalid` if the context is not bound.
    pub(crate) fn unbind(&self) -> PmResult<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut binding = self.binding();
        let (channel, self_node) = binding.take().ok_or(Error::Invalid)?;
        self.endpoint.clear();
        self.endpoint.all().iter().for_each(|endpoint| N::close(endpoint));
        owner.unbind(channel, self_node);
        Ok(())
    }

    /// Called with both locks: a process closes the endpoint that it was given.
    pub(crate) fn close(&self) {
        if self.owner.is_none() {
            self.endpoint.all().iter().for_each(|endpoint| N::close(endpoint));
        }
    }

    /// Returns `Invalid` if the context is not bound or the peers are not known yet. Returns `Busy`
    /// if it was used here: sequence numbers are used only once.
    pub(crate) fn create_attach_fd(&self) -> PmResult<OwnedFd> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let binding = self.binding();
        let (channel, self_node) = binding.ok_or(Error::Invalid)?;
        if self.active_endpoint().is_ok() {
            return Err(Error::Busy);
        }
        owner.create_attach_fd(self.number, channel, self_node)
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

impl<N: NetworkDevice> Transport for NetworkContext<N> {
    const KIND: &'static str = N::KIND;
    const CAPABILITIES: Capabilities = Capabilities { has_routes: false, can_be_member: true };

    fn self_node(&self) -> PmResult<u32> {
        match *self.binding() {
            Some((_, self_node)) => Ok(self_node),
            None => self.active_endpoint().map(NetworkEndpoint::self_node),
        }
    }
    fn mtu(&self, node: u32) -> PmResult<usize> {
        self.endpoint()?.mtu(node)
    }
    #[inline(always)]
    fn reserve(&self, node: u32, len: usize) -> PmResult<*mut u8> {
        self.endpoint()?.reserve(node, len)
    }
    fn reserve_multicast(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8> {
        self.endpoint()?.reserve_many(nodes, len)
    }
    fn truncate(&self, len: usize) -> PmResult<()> {
        self.endpoint()?.truncate(len)
    }
    #[inline(always)]
    fn publish(&self) {
        if let Ok(endpoint) = self.active_endpoint() {
            endpoint.publish();
        }
    }
    #[inline(always)]
    fn find(&self) -> Option<ReadySource> {
        self.endpoint().ok()?.find().map(|source| ReadySource { member: 0, source })
    }
    #[inline(always)]
    fn take(&self, _: ReadySource) -> PmResult<(*mut u8, usize)> {
        self.endpoint()?.take()
    }
    #[inline(always)]
    fn release(&self) {
        if let Ok(endpoint) = self.active_endpoint() {
            endpoint.release();
        }
    }
    #[inline(always)]
    fn count_empty_poll(&self) {
        if let Ok(endpoint) = self.active_endpoint() {
            endpoint.count_empty_poll();
        }
    }
    fn is_oversubscribed(&self) -> bool {
        self.active_endpoint().is_ok_and(NetworkEndpoint::is_oversubscribed)
    }
    fn take_rma_activity(&self) -> bool {
        self.active_endpoint().is_ok_and(|endpoint| endpoint.queues.take_rma_received())
    }
    fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        let (channel, self_node) = self.binding().ok_or(Error::Invalid)?;
        self.owner
            .as_ref()
            .ok_or(Error::Permission)?
            .control_send(channel, self_node, node, message)
    }
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        self.endpoint()?.control_receive(buffer, len)
    }
    fn fd(&self) -> PmResult<RawFd> {
        self.endpoint()?.fd()
    }
    fn before_select(&self) -> PmResult<()> {
        self.endpoint()?.before_select()
    }
    fn after_select(&self) {
        if let Ok(endpoint) = self.active_endpoint() {
            endpoint.after_select();
        }
    }
    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.active_endpoint().is_ok_and(NetworkEndpoint::is_selecting)
    }
    fn rearm_and_rescan(&self) -> Option<ReadySource> {
        let source = self.endpoint().ok()?.rearm_and_rescan()?;
        Some(ReadySource { member: 0, source })
    }
    fn is_send_done(&self) -> PmResult<()> {
        self.active_endpoint().map_or(Ok(()), NetworkEndpoint::is_send_done)
    }
    fn queue_status(&self, held: bool) -> QueueStatus {
        self.endpoint().map(|e| e.queue_status(held)).unwrap_or_default()
    }
    fn reset(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.reset();
        }
    }
    fn save(&self, out: &mut Vec<u8>) -> PmResult<()> {
        self.endpoint()?.save(out);
        Ok(())
    }
    fn restore(&self, saved: &[u8]) -> PmResult<()> {
        self.endpoint()?.restore(saved)
    }
    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        match self.active_endpoint() {
            Ok(endpoint) => endpoint.dump(out),
            Err(_) => writeln!(out, "  not in use here"),
        }
    }
    fn options(&self) -> u64 {
        N::OPTIONS
    }
    fn paths(&self, node: Option<u32>) -> PmResult<u32> {
        let endpoint = self.endpoint()?;
        node.map_or(Ok(()), |node| endpoint.check_peer(node))?;
        Ok(1)
    }
    fn publish_region(&self, _path: usize, region: &Region) -> PmResult<()> {
        self.endpoint()?.publish_region(region)
    }
    fn withdraw_region(&self, _path: usize, number: RegionId) {
        if let Ok(endpoint) = self.active_endpoint() {
            endpoint.withdraw_region(number);
        }
    }
    fn start_rma(&self, node: u32, operation: &RmaOperation) -> PmResult<()> {
        self.endpoint()?.start_rma(node, operation)
    }
    fn is_remote_done(&self, direction: Direction) -> PmResult<()> {
        self.endpoint()?.is_remote_done(direction)
    }
}
