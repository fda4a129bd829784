//! How contexts come and go: the owner's channels, binding, attach descriptors, and what it does
//! for processes that have ended.

#![forbid(unsafe_code)]

use super::addresses::{Addresses, Shape, append};
use super::attach::{ATTACH_MAX, Attach};
use super::layout::Geometry;
use super::slab::Slab;
use super::{Bound, Endpoint, Identity, Network, Orphan};
use crate::config::{CONTROL_MTU, Counters, DeviceConfig};
use crate::debug;
use crate::device::passing;
use crate::error::{Error, Result};
use crate::segment::{from_errno, new_nonce};
use crate::sync::Ordering;
use crate::{barrier, role};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One local node's end of one channel.
struct Port<N: Network> {
    /// Kept by the owner for the time after the process.
    end: N::Port,
    bound: bool,
    /// Taken into use here, or given to a process: never again.
    used: bool,
    exited: bool,
}

/// A device's channels: a slab each.
pub(crate) struct Channels<N: Network> {
    pub(crate) setup: N::Setup,
    pub(crate) geometry: Geometry,
    shape: Shape,
    secret: u64,
    slabs: Vec<Arc<Slab>>,
    state: Mutex<State<N>>,
    /// What the owner waits on for its orphans: their sockets and a timer.
    epoll: Epoll,
    timer: TimerFd,
}

struct State<N: Network> {
    /// By channel and place.
    ports: Vec<Vec<Port<N>>>,
    addresses: Option<Arc<Addresses>>,
    orphans: Vec<N::Orphan>,
}

impl<N: Network> Channels<N> {
    /// Channels between these ends, by channel and place, with so many links each. No secret: a
    /// random one.
    pub(crate) fn over(
        setup: N::Setup,
        geometry: Geometry,
        secret: Option<u64>,
        links: usize,
        ends: Vec<Vec<N::Port>>,
    ) -> Result<Channels<N>> {
        let slabs = ends.iter().map(|_| Slab::create(geometry).map(Arc::new));
        let slabs = slabs.collect::<Result<Vec<_>>>()?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(from_errno)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(from_errno)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(from_errno)?;
        let secret = secret.map_or_else(|| new_nonce().map(|nonce| nonce[0]), Ok)?;
        let shape = Shape { nodes: geometry.nodes, channels: ends.len(), links };
        let port = |end| Port { end, bound: false, used: false, exited: false };
        let ports = ends.into_iter().map(|ends| ends.into_iter().map(port).collect()).collect();
        let state = Mutex::new(State { ports, addresses: None, orphans: Vec::new() });
        let channels = Channels { setup, geometry, shape, secret, slabs, state, epoll, timer };
        if geometry.local == geometry.nodes {
            channels.set_peers(&channels.addresses()?)?;
        }
        Ok(channels)
    }

    fn state(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at all ends.
    pub(crate) fn with_ends<T>(&self, look: impl FnOnce(&[&N::Port]) -> T) -> T {
        let state = self.state();
        let ends: Vec<_> = state.ports.iter().flatten().map(|port| &port.end).collect();
        look(&ends)
    }

    /// Where the local nodes are reached: opaque, to be put behind those of the hosts before.
    pub(crate) fn addresses(&self) -> Result<Vec<u8>> {
        let state = self.state();
        let mut table = Vec::new();
        for place in 0..self.geometry.local {
            for channel in &state.ports {
                for address in N::addresses(&channel[place].end)? {
                    append(&mut table, &address)?;
                }
            }
        }
        Ok(table)
    }

    /// Where all nodes are reached. Busy: said before. Invalid: not as many as there are.
    pub(crate) fn set_peers(&self, table: &[u8]) -> Result<()> {
        let mut state = self.state();
        if state.addresses.is_some() {
            return Err(Error::Busy);
        }
        state.addresses = Some(Arc::new(Addresses::create(self.shape, table)?));
        Ok(())
    }

    /// What `pmGetDeviceConfig` answers.
    pub(crate) fn config(&self, contexts: usize) -> DeviceConfig {
        let Geometry { nodes, mtu, size, .. } = self.geometry;
        DeviceConfig { kind: N::KIND, nodes, contexts, mtu, size, option: N::OPTIONS }
    }

    /// Contexts: one for each local node and channel.
    pub(crate) fn contexts(&self) -> usize {
        self.geometry.local * self.shape.channels
    }

    /// Nodes, the longest message, bytes of a channel.
    pub(super) fn measures(&self) -> (usize, usize, usize) {
        (self.geometry.nodes, self.geometry.mtu, self.geometry.size)
    }

    /// Invalid: no such channel or no such local node.
    fn port<'a>(&self, state: &'a mut State<N>, channel: u32, own: u32) -> Result<&'a mut Port<N>> {
        let place = self.geometry.place(own as usize).ok_or(Error::Invalid)?;
        let ports = state.ports.get_mut(channel as usize).ok_or(Error::Invalid)?;
        ports.get_mut(place).ok_or(Error::Invalid)
    }

    /// Invalid: no such channel or local node. Busy: another context is bound there, or was used
    /// there: messages are numbered once.
    pub(super) fn bind(&self, channel: u32, own: u32) -> Result<()> {
        let mut state = self.state();
        let port = self.port(&mut state, channel, own)?;
        if port.bound || port.used {
            return Err(Error::Busy);
        }
        port.bound = true;
        Ok(())
    }

    pub(super) fn unbind(&self, channel: u32, own: u32) {
        if let Ok(port) = self.port(&mut self.state(), channel, own) {
            port.bound = false;
        }
    }

    fn identity(&self, channel: u32, own: u32) -> Identity {
        Identity { own, channel, secret: self.secret }
    }

    /// The owner itself uses what is bound there. Invalid: the peers are not known yet. Busy: it
    /// was given to a process.
    pub(super) fn take_into_use(&self, channel: u32, own: u32) -> Result<Arc<Endpoint<N>>> {
        let mut state = self.state();
        let addresses = state.addresses.clone().ok_or(Error::Invalid)?;
        let slab = self.slabs.get(channel as usize).ok_or(Error::Invalid)?.clone();
        let port = self.port(&mut state, channel, own)?;
        if port.used {
            return Err(Error::Busy);
        }
        let end = N::duplicate(&port.end)?;
        let endpoint = N::open(&self.setup, self.identity(channel, own), end, addresses, slab)?;
        port.used = true;
        Ok(endpoint)
    }

    /// Makes a descriptor that [`attach`] takes; of what was given away, another one. Invalid: the
    /// peers are not known yet.
    pub(super) fn create_attach_fd(
        &self,
        number: usize,
        channel: u32,
        own: u32,
    ) -> Result<OwnedFd> {
        let mut state = self.state();
        let addresses = state.addresses.clone().ok_or(Error::Invalid)?;
        let slab = self.slabs.get(channel as usize).ok_or(Error::Invalid)?;
        let port = self.port(&mut state, channel, own)?;
        let (end, descriptors) = N::describe(&self.setup, &port.end);
        let message = Attach {
            number: number as u32,
            channel,
            channels: self.shape.channels as u32,
            own,
            geometry: self.geometry,
            nonce: slab.nonce(),
            secret: self.secret,
            end,
        };
        let mut fds = vec![slab.memory(), addresses.memory()];
        fds.extend(descriptors);
        let fd = passing::pack(&message.encode(N::ATTACH), &fds)?;
        port.used = true;
        Ok(fd)
    }

    /// From `own`, by its process. Invalid: bad node or length. NoBuffers: that has to send the
    /// earlier ones first.
    pub(super) fn control_send(
        &self,
        channel: u32,
        own: u32,
        to: u32,
        message: &[u8],
    ) -> Result<()> {
        let slab = self.slabs.get(channel as usize).ok_or(Error::Invalid)?;
        let place = self.geometry.place(own as usize).ok_or(Error::Invalid)?;
        let fits = (1..=CONTROL_MTU).contains(&message.len());
        if to as usize >= self.geometry.nodes || to == own || !fits {
            return Err(Error::Invalid);
        }
        let _one_at_a_time = self.state();
        if slab.is_gone(to as usize) {
            return Ok(());
        }
        slab.record(place).outbox.put(to, message)
    }

    pub(crate) fn counters(&self, node: usize) -> Result<Counters> {
        let place = self.geometry.place(node).ok_or(Error::Invalid)?;
        let mut sum = Counters::default();
        for slab in &self.slabs {
            let record = slab.record(place);
            record.node.add_to(&mut sum, self.geometry.nodes);
            sum.opened = sum.opened.max(record.opened.0.load(Ordering::Relaxed));
        }
        Ok(sum)
    }

    pub(crate) fn set_oversubscribed(&self, oversubscribed: bool) {
        for slab in &self.slabs {
            slab.oversubscribed().store(u32::from(oversubscribed), Ordering::Relaxed);
        }
    }

    /// The process of a local node has ended: what it has sent is brought home from here.
    pub(crate) fn mark_exited(&self, node: usize) -> Result<()> {
        let place = self.geometry.place(node).ok_or(Error::Invalid)?;
        let mut state = self.state();
        let mut result = Ok(());
        for (channel, slab) in self.slabs.iter().enumerate() {
            let record = slab.record(place);
            record.node.door.0.exit(barrier::issue);
            count_unread(slab, place);
            slab.set_gone(node);
            record.node.send.0.remote.store(0, Ordering::Release);
            let port = &mut state.ports[channel][place];
            let lent = port.used && !std::mem::replace(&mut port.exited, true);
            if lent && slab.has_left(place) {
                result = result.and(self.adopt(&mut state, (channel, node, place), slab));
            }
        }
        drop(state);
        self.serve();
        result
    }

    fn adopt(
        &self,
        state: &mut State<N>,
        (channel, node, place): (usize, usize, usize),
        slab: &Arc<Slab>,
    ) -> Result<()> {
        // Without addresses it has sent nothing.
        let Some(addresses) = state.addresses.clone() else { return Ok(()) };
        let end = N::duplicate(&state.ports[channel][place].end)?;
        let identity = self.identity(channel as u32, node as u32);
        let orphan = N::adopt(&self.setup, identity, end, addresses, slab.clone())?;
        for fd in orphan.fds() {
            let _ = self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0));
        }
        state.orphans.push(orphan);
        Ok(())
    }

    /// A node of another host has ended: what is sent to it is dropped from now on.
    pub(crate) fn peer_exited(&self, node: usize) -> Result<()> {
        if node >= self.geometry.nodes {
            return Err(Error::Invalid);
        }
        self.slabs.iter().for_each(|slab| slab.set_gone(node));
        Ok(())
    }

    /// Becomes readable when `serve` has something to do.
    pub(crate) fn adopted_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Goes on with what the dead have left; never waits.
    pub(crate) fn serve(&self) {
        let mut state = self.state();
        let _ = self.timer.wait();
        let waits = state.orphans.iter_mut().filter_map(Orphan::serve);
        if let Some(wait) = waits.min() {
            // Zero would stop the timer.
            let wait = wait.max(Duration::from_micros(1));
            let _ = self.timer.set(Expiration::OneShot(wait.into()), TimerSetTimeFlags::empty());
        }
    }

    /// Whether everything that the dead had sent has arrived, or its receivers have gone.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state().orphans.iter().all(Orphan::is_quiet)
    }
}

/// After the process at `place` has ended: what it had accepted and never read counts as received.
pub(crate) fn count_unread(slab: &Slab, place: usize) {
    let record = slab.record(place);
    let arrived = record.arrived.0.load(Ordering::Acquire);
    record.node.receive.0.received.fetch_max(arrived, Ordering::AcqRel);
}

/// Makes a context from an attach descriptor. Invalid: it holds anything else, or was used before.
/// NoDevice: this process has no such device.
pub(crate) fn attach<N: Network>(fd: &OwnedFd) -> Result<Bound<N>> {
    let (bytes, fds) = passing::unpack(fd, ATTACH_MAX)?;
    let attach = Attach::decode(N::ATTACH, &bytes)?;
    let mut fds = fds.into_iter();
    let (Some(memory), Some(addresses)) = (fds.next(), fds.next()) else {
        return Err(Error::Invalid);
    };
    let slab = Arc::new(Slab::open(memory, attach.geometry, attach.nonce)?);
    let (setup, end, links) = N::rebuild(&attach.end, fds.collect())?;
    let Attach { own, channel, secret, .. } = attach;
    let (nodes, channels) = (attach.geometry.nodes, attach.channels as usize);
    let addresses = Arc::new(Addresses::open(addresses, Shape { nodes, channels, links })?);
    let identity = Identity { own, channel, secret };
    let endpoint = N::open(&setup, identity, end, addresses, slab)?;
    role::become_user();
    debug::say(debug::INFO, || format!("{}: attached as node {own} of {nodes}", N::KIND));
    Ok(Bound::attached(attach.number as usize, endpoint))
}
