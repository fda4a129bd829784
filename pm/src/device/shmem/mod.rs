//! The shmem device: processes of one host exchange messages through rings in a shared segment.
//! `docs/ARCHITECTURE.md` draws the segment.

// UNSAFETY: keeps addresses inside a mapping beside the mapping that they point into.
#![expect(unsafe_code)]

pub(crate) mod config;
mod control;
pub(crate) mod open;
mod reach;
mod receive;
mod relay;
mod remote;
mod select;
mod send;
pub(crate) mod state;

use super::{Capabilities, Found, Transport};
use crate::barrier;
use crate::config::{ContextConfig, OPT_REMOTE_READ, OPT_REMOTE_WRITE, QueueStatus};
use crate::device::Owner;
use crate::device::open::OwnerKind;
use crate::doorbell::Ringer;
use crate::error::{Error, Result};
use crate::remote::{Arena, Direction, Number, Operation, Region};
use crate::segment::layout::{Geometry, Node};
use crate::segment::{Kind, Segment};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
pub(crate) use receive::{NO_DATA, Source};
pub(crate) use send::Target;
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

/// Remote memory goes both ways.
pub(crate) const OPTIONS: u64 = OPT_REMOTE_WRITE | OPT_REMOTE_READ;

/// What this process keeps for one channel and node: its ends of all rings. The state of a ring
/// is in the ring, so an endpoint may be made again at any time.
#[repr(align(128))]
pub(crate) struct Endpoint {
    channel: u32,
    own: u32,
    mtu: usize,
    /// The own node's record in the segment.
    record: NonNull<Node>,
    /// Advances with every source that sends to us for the first time.
    generation: NonNull<AtomicU64>,
    /// This process cannot be reached by a membarrier: it fences after every message.
    fences: bool,
    send: send::Sender,
    receive: receive::Receiver,
    control: control::Control,
    select: select::Sleeper,
    remote: remote::Remote,
    relay: relay::Relay,
    ringer: Arc<Ringer>,
    segment: Arc<Segment>,
}

// SAFETY: `record` and the rings point into the segment, which the endpoint holds; whatever
// threads share is atomic, and the rings' contents are used under the context's locks.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

impl Endpoint {
    pub(crate) fn new(
        segment: Arc<Segment>,
        channel: u32,
        own: u32,
        ringer: Arc<Ringer>,
        owner: i32,
    ) -> Result<Endpoint> {
        let registered = barrier::register();
        let record = segment.node(own as usize);
        if !registered {
            record.door.0.0.fetch_or(crate::door::FENCED, Ordering::SeqCst);
        }
        let send = send::Sender::new(&segment, own as usize);
        let receive = receive::Receiver::new(&segment, own as usize, &send);
        Ok(Endpoint {
            channel,
            own,
            mtu: segment.geometry().ring.mtu as usize,
            record: NonNull::from(record),
            generation: NonNull::from(segment.generation(own as usize, Kind::Message)),
            fences: !registered,
            send,
            receive,
            control: control::Control::default(),
            select: select::Sleeper::default(),
            remote: remote::Remote::new(segment.geometry().nodes, owner),
            relay: relay::Relay::new(),
            ringer,
            segment,
        })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn channel(&self) -> u32 {
        self.channel
    }

    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Nodes that it reaches, itself included.
    pub(crate) fn nodes(&self) -> usize {
        self.segment.geometry().nodes
    }

    /// Bytes of memory that it maps.
    pub(crate) fn size(&self) -> usize {
        self.segment.geometry().size
    }

    /// The longest message.
    pub(crate) fn largest(&self) -> usize {
        self.mtu
    }

    #[inline(always)]
    fn record(&self) -> &Node {
        // SAFETY: points into the segment that `self` holds; only atomics inside.
        unsafe { self.record.as_ref() }
    }

    /// Send lock. A later message has gone by another device.
    pub(crate) fn forget_last_to(&self) {
        self.record().send.0.last.store(0, Ordering::Relaxed);
    }

    /// Receive lock. A later message has come by another device.
    pub(crate) fn forget_last_from(&self) {
        self.record().receive.0.last.store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    fn generation(&self) -> &AtomicU64 {
        // SAFETY: as `record`.
        unsafe { self.generation.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn oversubscribed(&self) -> bool {
        self.segment.oversubscribed().load(Ordering::Relaxed) != 0
    }
}

/// The shmem part of a context.
pub(crate) struct Shmem {
    number: usize,
    geometry: Geometry,
    /// Null while it is not bound.
    endpoint: AtomicPtr<Endpoint>,
    /// All endpoints there ever were: somebody may still look at an old one.
    kept: Mutex<Vec<NonNull<Endpoint>>>,
    attached: bool,
}

// SAFETY: endpoints are Send and Sync; they are freed with the context alone.
unsafe impl Send for Shmem {}
// SAFETY: as above.
unsafe impl Sync for Shmem {}

impl Shmem {
    pub(crate) fn opened(number: usize, geometry: Geometry) -> Shmem {
        let endpoint = AtomicPtr::new(null_mut());
        Shmem { number, geometry, endpoint, kept: Mutex::default(), attached: false }
    }

    pub(crate) fn attached(number: usize, endpoint: Endpoint) -> Shmem {
        let geometry = *endpoint.segment().geometry();
        let mut shmem = Shmem::opened(number, geometry);
        shmem.attached = true;
        shmem.install(endpoint);
        shmem
    }

    fn install(&self, endpoint: Endpoint) {
        let endpoint = Box::into_raw(Box::new(endpoint));
        // SAFETY: from a Box, not null.
        let kept = unsafe { NonNull::new_unchecked(endpoint) };
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        // SYNC: endpoint
        self.endpoint.store(endpoint, Ordering::Release);
    }

    /// Invalid: not bound.
    #[inline(always)]
    pub(crate) fn endpoint(&self) -> Result<&Endpoint> {
        // SYNC: endpoint
        let endpoint = self.endpoint.load(Ordering::Acquire);
        // SAFETY: null or one of `kept`, which live as long as `self`.
        unsafe { endpoint.as_ref() }.ok_or(Error::Invalid)
    }

    fn channels<'a>(&self, owner: &'a Owner) -> Result<&'a open::Channels> {
        match &owner.kind {
            OwnerKind::Shmem(channels) => Ok(channels),
            _ => Err(Error::Invalid),
        }
    }

    /// Both locks. Busy: bound already, or somebody else is bound there.
    pub(crate) fn bind(&self, owner: &Owner, channel: u32, own: u32) -> Result<()> {
        if self.endpoint().is_ok() {
            return Err(Error::Busy);
        }
        self.install(self.channels(owner)?.bind(channel, own)?);
        Ok(())
    }

    /// Both locks. Invalid: not bound.
    pub(crate) fn unbind(&self, owner: &Owner) -> Result<()> {
        let endpoint = self.endpoint()?;
        let channels = self.channels(owner)?;
        self.after_select();
        endpoint.select.hang_up();
        self.endpoint.store(null_mut(), Ordering::Release);
        channels.unbind(endpoint.channel, endpoint.own);
        Ok(())
    }

    /// Both locks: the process that this end was given to gives it up.
    pub(crate) fn leave(&self) {
        if let (true, Ok(endpoint)) = (self.attached, self.endpoint()) {
            open::exit(endpoint.segment(), endpoint.own as usize);
            endpoint.select.hang_up();
        }
    }

    /// The bell's name goes with the messages: who attaches hangs its own.
    pub(crate) fn create_attach_fd(&self) -> Result<OwnedFd> {
        let endpoint = self.endpoint()?;
        let fd = open::create_attach_fd(self.number, endpoint)?;
        endpoint.after_select();
        endpoint.select.hang_up();
        Ok(fd)
    }

    pub(crate) fn config(&self) -> ContextConfig {
        ContextConfig {
            kind: Self::KIND,
            number: self.number,
            nodes: self.geometry.nodes,
            mtu: self.geometry.ring.mtu as usize,
            size: self.geometry.size,
            option: OPTIONS,
        }
    }
}

impl Drop for Shmem {
    fn drop(&mut self) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        for endpoint in kept {
            // SAFETY: from Box::into_raw in `install`, freed only here.
            drop(unsafe { Box::from_raw(endpoint.as_ptr()) });
        }
    }
}

impl Transport for Shmem {
    const KIND: &'static str = "shmem";
    const CAPABILITIES: Capabilities = Capabilities { routes: false, member: true };

    fn own(&self) -> Result<u32> {
        self.endpoint().map(|e| e.own)
    }
    fn mtu(&self, node: u32) -> Result<usize> {
        let inside = (node as usize) < self.geometry.nodes;
        if inside { Ok(self.geometry.ring.mtu as usize) } else { Err(Error::Invalid) }
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
        if let Ok(endpoint) = self.endpoint() {
            endpoint.publish();
        }
    }
    #[inline(always)]
    fn find(&self) -> Option<Found> {
        self.endpoint().ok()?.find().map(|source| Found { member: 0, source })
    }
    #[inline(always)]
    fn take(&self, found: Found) -> Result<(*mut u8, usize)> {
        self.endpoint()?.take(found.source)
    }
    #[inline(always)]
    fn release(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.release();
        }
    }
    #[inline(always)]
    fn count_empty_poll(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.count_empty_poll();
        }
    }
    fn oversubscribed(&self) -> bool {
        self.endpoint().is_ok_and(Endpoint::oversubscribed)
    }
    fn control_send(&self, node: u32, message: &[u8]) -> Result<()> {
        self.endpoint()?.control_send(node, message)
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
        if let Ok(endpoint) = self.endpoint() {
            endpoint.after_select();
        }
    }
    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.endpoint().is_ok_and(Endpoint::is_selecting)
    }
    fn look_again(&self) -> Option<Found> {
        let source = self.endpoint().ok()?.look_again()?;
        Some(Found { member: 0, source })
    }
    fn is_send_done(&self) -> Result<()> {
        self.endpoint().map_or(Ok(()), Endpoint::is_send_done)
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
        match self.endpoint() {
            Ok(endpoint) => endpoint.dump(out),
            Err(_) => writeln!(out, "  not bound"),
        }
    }
    fn options(&self) -> u64 {
        OPTIONS
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
        if let Ok(endpoint) = self.endpoint() {
            endpoint.withdraw_region(number);
        }
    }
    #[inline]
    fn remote(&self, node: u32, operation: &Operation) -> Result<()> {
        self.endpoint()?.remote(node, operation)
    }
    fn is_remote_done(&self, direction: Direction) -> Result<()> {
        self.endpoint()?.is_remote_done(direction)
    }
    fn arena(&self) -> Option<Arc<Arena>> {
        self.endpoint().ok()?.arena().cloned()
    }
}

/// The ring that `from` sends to `to`.
fn message_ring(segment: &Segment, from: usize, to: usize) -> crate::ring::Ring {
    segment.ring(from, to, Kind::Message)
}
