//! Opening and closing shmem contexts: the owner's channels, binding, attach descriptors, exit.

#![forbid(unsafe_code)]

use super::config::{self, ShmemOptions};
use super::{Shmem, ShmemEndpoint, state};
use crate::config::{Counters, DeviceConfig};
use crate::debug;
use crate::device::fd_passing;
use crate::doorbell::DoorbellSender;
use crate::error::{Error, PmResult};
use crate::receiver_state::EXITED;
use crate::rma::RegionEntry;
use crate::segment::attach::{ATTACH_LEN, AttachMessage};
use crate::segment::layout::SegmentGeometry;
use crate::segment::{RingKind, Segment};
use crate::sync::Ordering;
use crate::{membarrier, role};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A shmem device's channels: one segment each, created when the first context is bound to it.
pub(crate) struct ShmemChannels {
    options: ShmemOptions,
    geometry: SegmentGeometry,
    doorbell: Arc<DoorbellSender>,
    state: Mutex<State>,
}

struct State {
    segments: Vec<Option<Arc<Segment>>>,
    bound_contexts: HashSet<(u32, u32)>,
}

impl ShmemChannels {
    pub(crate) fn new(options: ShmemOptions) -> PmResult<ShmemChannels> {
        let state =
            State { segments: vec![None; options.channels], bound_contexts: HashSet::new() };
        Ok(ShmemChannels {
            options,
            geometry: SegmentGeometry::for_nodes(options.nodes)?,
            doorbell: Arc::new(DoorbellSender::new()?),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn geometry(&self) -> &SegmentGeometry {
        &self.geometry
    }

    pub(crate) fn config(&self, contexts: usize) -> DeviceConfig {
        config::device_config(self.options, &self.geometry, contexts)
    }

    /// Creates the endpoint of `self_node` on a channel. Invalid: no such channel or node. Busy:
    /// another context is bound to that node.
    pub(crate) fn bind(&self, channel: u32, self_node: u32) -> PmResult<ShmemEndpoint> {
        if self_node as usize >= self.options.nodes {
            return Err(Error::Invalid);
        }
        let mut state = self.state();
        let slot = state.segments.get_mut(channel as usize).ok_or(Error::Invalid)?;
        let segment = match slot {
            Some(segment) => segment.clone(),
            None => slot.insert(Arc::new(Segment::create(self.geometry)?)).clone(),
        };
        if state.bound_contexts.contains(&(channel, self_node)) {
            return Err(Error::Busy);
        }
        let node = segment.node(self_node as usize);
        if node.receiver_state.0.bits() & EXITED != 0 {
            // The new context must not receive messages to the process that has exited.
            state::drop_received(&segment, self_node as usize);
            withdraw_all_regions(&segment, self_node as usize);
            node.receiver_state.0.0.store(0, Ordering::SeqCst);
        }
        let pid = std::process::id() as i32;
        let endpoint = ShmemEndpoint::new(segment, channel, self_node, self.doorbell.clone(), pid)?;
        state.bound_contexts.insert((channel, self_node));
        Ok(endpoint)
    }

    pub(crate) fn unbind(&self, channel: u32, self_node: u32) {
        self.state().bound_contexts.remove(&(channel, self_node));
    }

    fn segments(&self) -> Vec<Arc<Segment>> {
        self.state().segments.iter().flatten().cloned().collect()
    }

    pub(crate) fn counters(&self, node: usize) -> PmResult<Counters> {
        if node >= self.options.nodes {
            return Err(Error::Invalid);
        }
        let mut sum = Counters::default();
        for segment in self.segments() {
            segment.node(node).add_to(&mut sum, self.options.nodes);
        }
        Ok(sum)
    }

    pub(crate) fn mark_exited(&self, node: usize) -> PmResult<()> {
        if node >= self.options.nodes {
            return Err(Error::Invalid);
        }
        self.segments().iter().for_each(|segment| mark_exited(segment, node));
        Ok(())
    }
}

/// Marks `node` as exited: from now on senders drop their messages to it, and messages that are
/// queued for it count as received. Each message is counted once, by the side that claims it first
/// (see `receiver_state.rs`).
pub(super) fn mark_exited(segment: &Segment, node: usize) {
    let record = segment.node(node);
    record.receiver_state.0.set_exited(membarrier::issue);
    let claimed_count: u64 = segment
        .active_sources(node, RingKind::Message)
        .map(|source| segment.ring(source, node, RingKind::Message).claim_all())
        .sum();
    let received = record.receive.0.received.load(Ordering::Relaxed);
    record.receive.0.received.store(received.wrapping_add(claimed_count), Ordering::Release);
}

/// Withdraws all regions that an exited process had locked.
fn withdraw_all_regions(segment: &Segment, node: usize) {
    let regions = segment.regions(node);
    if regions.access.pid.swap(0, Ordering::Relaxed) != 0 {
        regions.entries.iter().for_each(RegionEntry::withdraw);
    }
}

/// Creates a descriptor for [`attach`]: a socket that holds the whole state and is read once.
pub(super) fn create_attach_fd(number: usize, endpoint: &ShmemEndpoint) -> PmResult<OwnedFd> {
    let segment = endpoint.segment();
    let message = AttachMessage {
        number: number as u32,
        channel: endpoint.channel,
        self_node: endpoint.self_node,
        geometry: *segment.geometry(),
        nonce: segment.nonce(),
    }
    .encode();
    let arena = segment.arena().map(|arena| arena.memfd());
    let fds: Vec<_> = [segment.memfd()].into_iter().chain(arena).collect();
    fd_passing::pack(&message, &fds)
}

/// Creates a context from a descriptor of [`create_attach_fd`]. Invalid: the content is malformed,
/// or the descriptor was already used.
pub(crate) fn attach(fd: OwnedFd) -> PmResult<Shmem> {
    let owner_pid = getsockopt(&fd, PeerCredentials).map_or(0, |peer| peer.pid());
    let (bytes, fds) = fd_passing::unpack(&fd, ATTACH_LEN)?;
    let attach = AttachMessage::decode(&bytes)?;
    let mut fds = fds.into_iter();
    let (Some(rings_fd), arena_fd, None) = (fds.next(), fds.next(), fds.next()) else {
        return Err(Error::Invalid);
    };
    let segment = Arc::new(Segment::open(rings_fd, arena_fd, &attach)?);
    let doorbell = Arc::new(DoorbellSender::new()?);
    let endpoint =
        ShmemEndpoint::new(segment, attach.channel, attach.self_node, doorbell, owner_pid)?;
    role::become_user();
    debug::log(debug::INFO, || {
        format!("shmem: attached as node {} of {}", attach.self_node, attach.geometry.nodes)
    });
    Ok(Shmem::attached(attach.number as usize, endpoint))
}
