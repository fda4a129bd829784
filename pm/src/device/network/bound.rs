//! The network part of a context: bound by its owner, or attached to a process.

// UNSAFETY: hands out a pointer to an endpoint beside the references that keep it.
#![expect(unsafe_code)]

use super::{Channels, Endpoint, Network};
use crate::config::{ContextConfig, QueueStatus};
use crate::device::{Capabilities, Found, Transport};
use crate::error::{Error, Result};
use crate::remote::{Direction, Number, Operation, Region};
use crate::sync::{AtomicPtr, Ordering};
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the [module](self).
pub(crate) struct Bound<N: Network> {
    number: usize,
    /// Where an opened context is bound, and all endpoints there ever were: somebody may still
    /// look at an old one.
    state: Mutex<State<N>>,
    owner: Option<Arc<Channels<N>>>,
    /// Null while it is not bound, and until a bound one is first used: one that is given to
    /// another process never is.
    endpoint: AtomicPtr<Endpoint<N>>,
}

struct State<N: Network> {
    bound: Option<(u32, u32)>,
    kept: Vec<Arc<Endpoint<N>>>,
}

impl<N: Network> Bound<N> {
    fn new(number: usize, owner: Option<Arc<Channels<N>>>) -> Bound<N> {
        let state = Mutex::new(State { bound: None, kept: Vec::new() });
        Bound { number, state, owner, endpoint: AtomicPtr::new(null_mut()) }
    }

    pub(crate) fn opened(number: usize, owner: &Arc<Channels<N>>) -> Bound<N> {
        Bound::new(number, Some(owner.clone()))
    }

    pub(super) fn attached(number: usize, endpoint: Arc<Endpoint<N>>) -> Bound<N> {
        let bound = Bound::new(number, None);
        bound.install(&mut bound.state(), endpoint);
        bound
    }

    fn state(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&self, state: &mut State<N>, endpoint: Arc<Endpoint<N>>) {
        let pointer = Arc::as_ptr(&endpoint).cast_mut();
        state.kept.push(endpoint);
        // SYNC: endpoint
        self.endpoint.store(pointer, Ordering::Release);
    }

    /// None: not in use here.
    #[inline(always)]
    fn in_use(&self) -> Option<&Endpoint<N>> {
        // SYNC: endpoint
        let endpoint = self.endpoint.load(Ordering::Acquire);
        // SAFETY: null or one of `kept`, which live as long as `self`.
        unsafe { endpoint.as_ref() }
    }

    /// Takes it into use, if it is not. Invalid: not bound, or the peers are not known yet. Busy:
    /// it was given to another process.
    #[inline(always)]
    pub(crate) fn endpoint(&self) -> Result<&Endpoint<N>> {
        match self.in_use() {
            Some(endpoint) => Ok(endpoint),
            None => self.take_into_use(),
        }
    }

    #[cold]
    fn take_into_use(&self) -> Result<&Endpoint<N>> {
        let owner = self.owner.as_ref().ok_or(Error::Invalid)?;
        let mut state = self.state();
        if self.in_use().is_none() {
            let (channel, own) = state.bound.ok_or(Error::Invalid)?;
            let endpoint = owner.take_into_use(channel, own)?;
            self.install(&mut state, endpoint);
        }
        self.in_use().ok_or(Error::Invalid)
    }

    /// Both locks. Busy: bound already, or somebody else is bound there.
    pub(crate) fn bind(&self, channel: u32, own: u32) -> Result<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut state = self.state();
        if state.bound.is_some() {
            return Err(Error::Busy);
        }
        owner.bind(channel, own)?;
        state.bound = Some((channel, own));
        Ok(())
    }

    /// Both locks. Invalid: not bound.
    pub(crate) fn unbind(&self) -> Result<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut state = self.state();
        let (channel, own) = state.bound.take().ok_or(Error::Invalid)?;
        self.endpoint.store(null_mut(), Ordering::Release);
        state.kept.iter().for_each(|endpoint| N::leave(endpoint));
        owner.unbind(channel, own);
        Ok(())
    }

    /// Both locks: the process that this end was given to gives it up.
    pub(crate) fn leave(&self) {
        if self.owner.is_none() {
            self.state().kept.iter().for_each(|endpoint| N::leave(endpoint));
        }
    }

    /// Invalid: not bound, or the peers are not known yet. Busy: it was used here, and messages
    /// are numbered once.
    pub(crate) fn create_attach_fd(&self) -> Result<OwnedFd> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let state = self.state();
        let (channel, own) = state.bound.ok_or(Error::Invalid)?;
        if self.in_use().is_some() {
            return Err(Error::Busy);
        }
        owner.create_attach_fd(self.number, channel, own)
    }

    pub(crate) fn config(&self) -> ContextConfig {
        let (nodes, mtu, size) = match (&self.owner, self.in_use()) {
            (_, Some(endpoint)) => (endpoint.nodes(), endpoint.largest(), endpoint.size()),
            (Some(owner), None) => owner.measures(),
            (None, None) => (0, 0, 0),
        };
        let option = N::OPTIONS;
        ContextConfig { kind: N::KIND, number: self.number, nodes, mtu, size, option }
    }
}

impl<N: Network> Transport for Bound<N> {
    const KIND: &'static str = N::KIND;
    const CAPABILITIES: Capabilities = Capabilities { routes: false, member: true };

    fn own(&self) -> Result<u32> {
        match self.state().bound {
            Some((_, own)) => Ok(own),
            None => self.in_use().map(Endpoint::own).ok_or(Error::Invalid),
        }
    }
    fn mtu(&self, node: u32) -> Result<usize> {
        self.endpoint()?.mtu(node)
    }
    #[inline(always)]
    fn reserve(&self, node: u32, len: usize) -> Result<*mut u8> {
        self.endpoint()?.reserve(node, len)
    }
    fn reserve_many(&self, nodes: &[u32], len: usize) -> Result<*mut u8> {
        self.endpoint()?.reserve_many(nodes, len)
    }
    fn truncate(&self, len: usize) -> Result<()> {
        self.endpoint()?.truncate(len)
    }
    #[inline(always)]
    fn publish(&self) {
        if let Some(endpoint) = self.in_use() {
            endpoint.publish();
        }
    }
    #[inline(always)]
    fn find(&self) -> Option<Found> {
        self.endpoint().ok()?.find().map(|source| Found { member: 0, source })
    }
    #[inline(always)]
    fn take(&self, _: Found) -> Result<(*mut u8, usize)> {
        self.endpoint()?.take()
    }
    #[inline(always)]
    fn release(&self) {
        if let Some(endpoint) = self.in_use() {
            endpoint.release();
        }
    }
    #[inline(always)]
    fn count_empty_poll(&self) {
        if let Some(endpoint) = self.in_use() {
            endpoint.count_empty_poll();
        }
    }
    fn oversubscribed(&self) -> bool {
        self.in_use().is_some_and(Endpoint::oversubscribed)
    }
    fn has_moved(&self) -> bool {
        self.in_use().is_some_and(|endpoint| endpoint.lanes.has_moved())
    }
    fn control_send(&self, node: u32, message: &[u8]) -> Result<()> {
        let (channel, own) = self.state().bound.ok_or(Error::Invalid)?;
        self.owner.as_ref().ok_or(Error::Permission)?.control_send(channel, own, node, message)
    }
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> Result<u32> {
        self.endpoint()?.control_receive(buffer, len)
    }
    fn fd(&self) -> Result<RawFd> {
        self.endpoint()?.fd()
    }
    fn before_select(&self) -> Result<()> {
        self.endpoint()?.before_select()
    }
    fn after_select(&self) {
        if let Some(endpoint) = self.in_use() {
            endpoint.after_select();
        }
    }
    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.in_use().is_some_and(Endpoint::is_selecting)
    }
    fn look_again(&self) -> Option<Found> {
        let source = self.endpoint().ok()?.look_again()?;
        Some(Found { member: 0, source })
    }
    fn is_send_done(&self) -> Result<()> {
        self.in_use().map_or(Ok(()), Endpoint::is_send_done)
    }
    fn queue_status(&self, held: bool) -> QueueStatus {
        self.endpoint().map(|e| e.queue_status(held)).unwrap_or_default()
    }
    fn reset(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.reset();
        }
    }
    fn save(&self, out: &mut Vec<u8>) -> Result<()> {
        self.endpoint()?.save(out);
        Ok(())
    }
    fn restore(&self, saved: &[u8]) -> Result<()> {
        self.endpoint()?.restore(saved)
    }
    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        match self.in_use() {
            Some(endpoint) => endpoint.dump(out),
            None => writeln!(out, "  not in use here"),
        }
    }
    fn options(&self) -> u64 {
        N::OPTIONS
    }
    fn ways(&self, node: Option<u32>) -> Result<u32> {
        let endpoint = self.endpoint()?;
        node.map_or(Ok(()), |node| endpoint.check_peer(node))?;
        Ok(1)
    }
    fn publish_region(&self, _way: usize, region: &Region) -> Result<()> {
        self.endpoint()?.publish_region(region)
    }
    fn withdraw_region(&self, _way: usize, number: Number) {
        if let Some(endpoint) = self.in_use() {
            endpoint.withdraw_region(number);
        }
    }
    fn remote(&self, node: u32, operation: &Operation) -> Result<()> {
        self.endpoint()?.remote(node, operation)
    }
    fn is_remote_done(&self, direction: Direction) -> Result<()> {
        self.endpoint()?.is_remote_done(direction)
    }
}
