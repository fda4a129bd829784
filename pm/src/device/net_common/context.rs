//! The network part of a context: bound by its owner, or attached in a process.

// UNSAFETY: returns a reference by a pointer to an endpoint that other references keep alive.
#![expect(unsafe_code)]

use super::{Channels, NetworkDevice, NetworkEndpoint};
use crate::config::{ContextConfig, QueueStatus};
use crate::device::{Capabilities, ReadySource, Transport};
use crate::error::{Error, PmResult};
use crate::rma::{Direction, Region, RegionId, RmaOperation};
use crate::sync::{AtomicPtr, Ordering};
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the [module](self).
pub(crate) struct NetworkContext<N: NetworkDevice> {
    number: usize,
    /// The binding of an opened context, and all endpoints that it ever had: another thread may
    /// still use an old one.
    state: Mutex<State<N>>,
    owner: Option<Arc<Channels<N>>>,
    /// Null while the context is not bound, and until a bound context is first used. If the context
    /// was given to another process, it stays null.
    endpoint: AtomicPtr<NetworkEndpoint<N>>,
}

struct State<N: NetworkDevice> {
    binding: Option<(u32, u32)>,
    endpoints: Vec<Arc<NetworkEndpoint<N>>>,
}

impl<N: NetworkDevice> NetworkContext<N> {
    fn new(number: usize, owner: Option<Arc<Channels<N>>>) -> NetworkContext<N> {
        let state = Mutex::new(State { binding: None, endpoints: Vec::new() });
        NetworkContext { number, state, owner, endpoint: AtomicPtr::new(null_mut()) }
    }

    pub(crate) fn opened(number: usize, owner: &Arc<Channels<N>>) -> NetworkContext<N> {
        NetworkContext::new(number, Some(owner.clone()))
    }

    pub(super) fn attached(number: usize, endpoint: Arc<NetworkEndpoint<N>>) -> NetworkContext<N> {
        let context = NetworkContext::new(number, None);
        context.install(&mut context.state(), endpoint);
        context
    }

    fn state(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&self, state: &mut State<N>, endpoint: Arc<NetworkEndpoint<N>>) {
        let pointer = Arc::as_ptr(&endpoint).cast_mut();
        state.endpoints.push(endpoint);
        // SYNC: endpoint
        self.endpoint.store(pointer, Ordering::Release);
    }

    /// Returns None if the endpoint is not in use here.
    #[inline(always)]
    fn active_endpoint(&self) -> Option<&NetworkEndpoint<N>> {
        // SYNC: endpoint
        let endpoint = self.endpoint.load(Ordering::Acquire);
        // SAFETY: null or one of `endpoints`, which live as long as `self`.
        unsafe { endpoint.as_ref() }
    }

    /// The endpoint, which is opened at the first call. Returns `Invalid` if the context is not
    /// bound or the peers are not known yet. Returns `Busy` if it was given to another process.
    #[inline(always)]
    pub(crate) fn endpoint(&self) -> PmResult<&NetworkEndpoint<N>> {
        match self.active_endpoint() {
            Some(endpoint) => Ok(endpoint),
            None => self.activate(),
        }
    }

    #[cold]
    fn activate(&self) -> PmResult<&NetworkEndpoint<N>> {
        let owner = self.owner.as_ref().ok_or(Error::Invalid)?;
        let mut state = self.state();
        if self.active_endpoint().is_none() {
            let (channel, self_node) = state.binding.ok_or(Error::Invalid)?;
            let endpoint = owner.open_endpoint(channel, self_node)?;
            self.install(&mut state, endpoint);
        }
        self.active_endpoint().ok_or(Error::Invalid)
    }

    /// Called with both locks. Returns `Busy` if this context is bound already, or another one is
    /// bound there.
    pub(crate) fn bind(&self, channel: u32, self_node: u32) -> PmResult<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut state = self.state();
        if state.binding.is_some() {
            return Err(Error::Busy);
        }
        owner.bind(channel, self_node)?;
        state.binding = Some((channel, self_node));
        Ok(())
    }

    /// Called with both locks. Returns `Invalid` if the context is not bound.
    pub(crate) fn unbind(&self) -> PmResult<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut state = self.state();
        let (channel, self_node) = state.binding.take().ok_or(Error::Invalid)?;
        self.endpoint.store(null_mut(), Ordering::Release);
        state.endpoints.iter().for_each(|endpoint| N::close(endpoint));
        owner.unbind(channel, self_node);
        Ok(())
    }

    /// Called with both locks: a process closes the endpoint that it was given.
    pub(crate) fn close(&self) {
        if self.owner.is_none() {
            self.state().endpoints.iter().for_each(|endpoint| N::close(endpoint));
        }
    }

    /// Returns `Invalid` if the context is not bound or the peers are not known yet. Returns `Busy`
    /// if it was used here: sequence numbers are used only once.
    pub(crate) fn create_attach_fd(&self) -> PmResult<OwnedFd> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let state = self.state();
        let (channel, self_node) = state.binding.ok_or(Error::Invalid)?;
        if self.active_endpoint().is_some() {
            return Err(Error::Busy);
        }
        owner.create_attach_fd(self.number, channel, self_node)
    }

    pub(crate) fn config(&self) -> ContextConfig {
        let (nodes, mtu, size) = match (&self.owner, self.active_endpoint()) {
            (_, Some(endpoint)) => (endpoint.nodes(), endpoint.max_message_len(), endpoint.size()),
            (Some(owner), None) => owner.dimensions(),
            (None, None) => (0, 0, 0),
        };
        let option = N::OPTIONS;
        ContextConfig { kind: N::KIND, number: self.number, nodes, mtu, size, option }
    }
}

impl<N: NetworkDevice> Transport for NetworkContext<N> {
    const KIND: &'static str = N::KIND;
    const CAPABILITIES: Capabilities = Capabilities { has_routes: false, can_be_member: true };

    fn self_node(&self) -> PmResult<u32> {
        match self.state().binding {
            Some((_, self_node)) => Ok(self_node),
            None => self.active_endpoint().map(NetworkEndpoint::self_node).ok_or(Error::Invalid),
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
        if let Some(endpoint) = self.active_endpoint() {
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
        if let Some(endpoint) = self.active_endpoint() {
            endpoint.release();
        }
    }
    #[inline(always)]
    fn count_empty_poll(&self) {
        if let Some(endpoint) = self.active_endpoint() {
            endpoint.count_empty_poll();
        }
    }
    fn is_oversubscribed(&self) -> bool {
        self.active_endpoint().is_some_and(NetworkEndpoint::is_oversubscribed)
    }
    fn take_rma_activity(&self) -> bool {
        self.active_endpoint().is_some_and(|endpoint| endpoint.queues.take_rma_received())
    }
    fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        let (channel, self_node) = self.state().binding.ok_or(Error::Invalid)?;
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
        if let Some(endpoint) = self.active_endpoint() {
            endpoint.after_select();
        }
    }
    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.active_endpoint().is_some_and(NetworkEndpoint::is_selecting)
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
            Some(endpoint) => endpoint.dump(out),
            None => writeln!(out, "  not in use here"),
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
        if let Some(endpoint) = self.active_endpoint() {
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
