//! How shmem contexts come and go: the owner's channels, binding, attach descriptors, exit.

#![forbid(unsafe_code)]

use super::config::{self, Options};
use super::{Endpoint, Shmem, state};
use crate::config::{Counters, DeviceConfig};
use crate::debug;
use crate::device::passing;
use crate::door::EXITED;
use crate::doorbell::Ringer;
use crate::error::{Error, Result};
use crate::remote::Entry;
use crate::segment::attach::{ATTACH_BYTES, Attach};
use crate::segment::layout::Geometry;
use crate::segment::{Kind, Segment};
use crate::sync::Ordering;
use crate::{barrier, role};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A shmem device's channels: one segment each, made when the first context is bound to it.
pub(crate) struct Channels {
    options: Options,
    geometry: Geometry,
    ringer: Arc<Ringer>,
    state: Mutex<State>,
}

struct State {
    segments: Vec<Option<Arc<Segment>>>,
    bound: HashSet<(u32, u32)>,
    oversubscribed: bool,
}

impl Channels {
    pub(crate) fn new(options: Options) -> Result<Channels> {
        let state = State {
            segments: vec![None; options.channels],
            bound: HashSet::new(),
            oversubscribed: false,
        };
        Ok(Channels {
            options,
            geometry: Geometry::for_nodes(options.nodes)?,
            ringer: Arc::new(Ringer::new()?),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn config(&self, contexts: usize) -> DeviceConfig {
        config::device(self.options, &self.geometry, contexts)
    }

    /// Invalid: no such channel or node. Busy: another context is bound there.
    pub(crate) fn bind(&self, channel: u32, own: u32) -> Result<Endpoint> {
        if own as usize >= self.options.nodes {
            return Err(Error::Invalid);
        }
        let mut state = self.state();
        let oversubscribed = state.oversubscribed;
        let slot = state.segments.get_mut(channel as usize).ok_or(Error::Invalid)?;
        let segment = match slot {
            Some(segment) => segment.clone(),
            None => {
                let segment = Arc::new(Segment::create(self.geometry)?);
                segment.oversubscribed().store(u32::from(oversubscribed), Ordering::Relaxed);
                slot.insert(segment).clone()
            }
        };
        if state.bound.contains(&(channel, own)) {
            return Err(Error::Busy);
        }
        let node = segment.node(own as usize);
        if node.door.0.bits() & EXITED != 0 {
            // A new life: nothing that was sent to the old one may be seen.
            state::drop_received(&segment, own as usize);
            forget_regions(&segment, own as usize);
            node.door.0.0.store(0, Ordering::SeqCst);
        }
        let me = std::process::id() as i32;
        let endpoint = Endpoint::new(segment, channel, own, self.ringer.clone(), me)?;
        state.bound.insert((channel, own));
        Ok(endpoint)
    }

    pub(crate) fn unbind(&self, channel: u32, own: u32) {
        self.state().bound.remove(&(channel, own));
    }

    fn segments(&self) -> Vec<Arc<Segment>> {
        self.state().segments.iter().flatten().cloned().collect()
    }

    pub(crate) fn counters(&self, node: usize) -> Result<Counters> {
        if node >= self.options.nodes {
            return Err(Error::Invalid);
        }
        let mut sum = Counters::default();
        for segment in self.segments() {
            segment.node(node).add_to(&mut sum, self.options.nodes);
        }
        Ok(sum)
    }

    pub(crate) fn mark_exited(&self, node: usize) -> Result<()> {
        if node >= self.options.nodes {
            return Err(Error::Invalid);
        }
        self.segments().iter().for_each(|segment| exit(segment, node));
        Ok(())
    }

    pub(crate) fn set_oversubscribed(&self, oversubscribed: bool) {
        let mut state = self.state();
        state.oversubscribed = oversubscribed;
        for segment in state.segments.iter().flatten() {
            segment.oversubscribed().store(u32::from(oversubscribed), Ordering::Relaxed);
        }
    }
}

/// `node` receives no more: from now on senders drop what they send to it, and what is queued
/// counts as received. Each message is counted once, whoever comes first: see `door`.
pub(super) fn exit(segment: &Segment, node: usize) {
    let record = segment.node(node);
    record.door.0.exit(barrier::issue);
    let claimed: u64 = segment
        .active(node, Kind::Message)
        .map(|source| segment.ring(source, node, Kind::Message).claim_all())
        .sum();
    let received = record.receive.0.received.load(Ordering::Relaxed);
    record.receive.0.received.store(received.wrapping_add(claimed), Ordering::Release);
    // Nobody waits for what it had asked for.
    record.send.0.remote.store(0, Ordering::Release);
}

/// What a dead process had locked is locked no more.
fn forget_regions(segment: &Segment, node: usize) {
    let regions = segment.regions(node);
    if regions.access.pid.swap(0, Ordering::Relaxed) != 0 {
        regions.entries.iter().for_each(Entry::withdraw);
    }
}

/// Makes a descriptor that [`attach`] takes: a socket with everything in it, to be read once.
pub(super) fn create_attach_fd(number: usize, endpoint: &Endpoint) -> Result<OwnedFd> {
    let segment = endpoint.segment();
    let message = Attach {
        number: number as u32,
        channel: endpoint.channel(),
        own: endpoint.own(),
        geometry: *segment.geometry(),
        nonce: segment.nonce(),
    }
    .encode();
    let arena = segment.arena().map(|arena| arena.memory());
    let memory: Vec<_> = [segment.memory()].into_iter().chain(arena).collect();
    passing::pack(&message, &memory)
}

/// Makes a context from such a descriptor. Invalid: it holds anything else, or was used before.
pub(crate) fn attach(fd: OwnedFd) -> Result<Shmem> {
    let owner = getsockopt(&fd, PeerCredentials).map_or(0, |peer| peer.pid());
    let (bytes, memory) = passing::unpack(&fd, ATTACH_BYTES)?;
    let attach = Attach::decode(&bytes)?;
    let mut memory = memory.into_iter();
    let (Some(rings), arena, None) = (memory.next(), memory.next(), memory.next()) else {
        return Err(Error::Invalid);
    };
    let segment = Arc::new(Segment::open(rings, arena, &attach)?);
    let ringer = Arc::new(Ringer::new()?);
    let endpoint = Endpoint::new(segment, attach.channel, attach.own, ringer, owner)?;
    role::become_user();
    debug::say(debug::INFO, || {
        format!("shmem: attached as node {} of {}", attach.own, attach.geometry.nodes)
    });
    Ok(Shmem::attached(attach.number as usize, endpoint))
}
