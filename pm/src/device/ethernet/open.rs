//! How ethernet contexts come and go: the owner's channels, wires, binding, attach descriptors,
//! and what it does for those that have ended.

#![forbid(unsafe_code)]

use super::addresses::{Addresses, Shape, append};
use super::adopt::{Orphan, count_unread};
use super::attach::{ATTACH_MAX, Attach};
use super::config::{self, Options};
use super::engine::{Identity, refused};
use super::layout::Geometry;
use super::reliability::HEADER;
use super::slab::Slab;
use super::wire;
use super::{Endpoint, Ethernet};
use crate::config::{CONTROL_MTU, Counters, DeviceConfig, MIN_MTU};
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
struct Port {
    /// The sockets, one for each link; the owner keeps them for the time after the process.
    links: Vec<wire::Endpoint>,
    bound: bool,
    /// Taken into use here, or given to a process: never again.
    used: bool,
    exited: bool,
}

impl Port {
    fn new(links: Vec<wire::Endpoint>) -> Port {
        Port { links, bound: false, used: false, exited: false }
    }
}

/// An ethernet device's channels: a slab each.
pub(crate) struct Channels {
    options: Options,
    geometry: Geometry,
    secret: u64,
    slabs: Vec<Arc<Slab>>,
    state: Mutex<State>,
    /// What the owner waits on for its orphans: their sockets and a timer.
    epoll: Epoll,
    timer: TimerFd,
}

struct State {
    /// By channel and place.
    ports: Vec<Vec<Port>>,
    addresses: Option<Arc<Addresses>>,
    orphans: Vec<Orphan>,
}

impl Channels {
    pub(crate) fn new(options: Options) -> Result<Channels> {
        let open = |node: usize| -> Result<Port> {
            let open = |link| wire::Endpoint::open(&options.wire(link, node)).map_err(refused);
            (0..options.links.len()).map(open).collect::<Result<Vec<_>>>().map(Port::new)
        };
        let nodes = || options.first..options.first + options.local;
        let ports = (0..options.channels)
            .map(|_| nodes().map(open).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        Channels::over(options, ports)
    }

    /// The same for one channel over sockets that somebody else has opened: for each local node
    /// one for each link. Invalid: there are others.
    pub(crate) fn given(options: Options, nodes: Vec<Vec<wire::Endpoint>>) -> Result<Channels> {
        let fits = |links: &Vec<_>| links.len() == options.links.len();
        if options.channels != 1 || nodes.len() != options.local || !nodes.iter().all(fits) {
            return Err(Error::Invalid);
        }
        let with_loss = |(node, links): (usize, Vec<wire::Endpoint>)| {
            let lossy = |(link, one): (usize, wire::Endpoint)| {
                let note = one.note().map(str::to_owned);
                one.with(note, options.wire(link, options.first + node).loss)
            };
            Port::new(links.into_iter().enumerate().map(lossy).collect())
        };
        let ports = nodes.into_iter().enumerate().map(with_loss).collect();
        Channels::over(options, vec![ports])
    }

    fn over(options: Options, ports: Vec<Vec<Port>>) -> Result<Channels> {
        let longest = ports.iter().flatten().flat_map(|port| &port.links).map(|link| link.mtu());
        let mtu = longest.min().unwrap_or(0).saturating_sub(HEADER);
        if mtu < MIN_MTU {
            debug::say(debug::ERROR, || {
                format!("ethernet: a link carries messages of {mtu} bytes, {MIN_MTU} are needed")
            });
            return Err(Error::NoDevice);
        }
        let geometry = Geometry::new(options.nodes, options.first, options.local, mtu)?;
        let slabs = (0..options.channels)
            .map(|_| Slab::create(geometry).map(Arc::new))
            .collect::<Result<_>>()?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(from_errno)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(from_errno)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(from_errno)?;
        let secret = match options.secret {
            Some(secret) => secret,
            None => new_nonce()?[0],
        };
        let state = State { ports, addresses: None, orphans: Vec::new() };
        let state = Mutex::new(state);
        let channels = Channels { options, geometry, secret, slabs, state, epoll, timer };
        if channels.geometry.local == channels.geometry.nodes {
            channels.set_peers(&channels.addresses()?)?;
        }
        Ok(channels)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line for people about a wire that is not the one that was asked for.
    pub(crate) fn note(&self) -> Option<String> {
        let state = self.state();
        let note = state.ports.iter().flatten().flat_map(|port| &port.links).find_map(|l| l.note());
        note.map(str::to_owned)
    }

    /// Which wires there are over which links: `AF_XDP and AF_PACKET over eth0, UDP over eth1`.
    pub(crate) fn wires(&self) -> String {
        let state = self.state();
        let link = |number: usize| {
            let ports = state.ports.iter().flatten();
            let ends: Vec<_> = ports.filter_map(|port| port.links.get(number)).collect();
            let mut kinds: Vec<String> = Vec::new();
            for kind in ends.iter().map(|end| end.kind().to_string()) {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            let name = ends.first().map_or("?", |end| end.link_name());
            format!("{} over {name}", kinds.join(" and "))
        };
        (0..self.options.links.len()).map(link).collect::<Vec<_>>().join(", ")
    }

    /// Where the local nodes are reached: opaque, to be put behind those of the hosts before.
    pub(crate) fn addresses(&self) -> Result<Vec<u8>> {
        let state = self.state();
        let mut table = Vec::new();
        for place in 0..self.geometry.local {
            for channel in &state.ports {
                for link in &channel[place].links {
                    append(&mut table, &link.address())?;
                }
            }
        }
        Ok(table)
    }

    /// Where all nodes are reached. Busy: said before. Invalid: not as many as there are.
    pub(crate) fn set_peers(&self, table: &[u8]) -> Result<()> {
        let Options { nodes, channels, .. } = self.options;
        let shape = Shape { nodes, channels, links: self.options.links.len() };
        let mut state = self.state();
        if state.addresses.is_some() {
            return Err(Error::Busy);
        }
        state.addresses = Some(Arc::new(Addresses::create(shape, table)?));
        Ok(())
    }

    pub(crate) fn config(&self, contexts: usize) -> DeviceConfig {
        config::device(&self.options, contexts, self.geometry.mtu, self.geometry.size)
    }

    /// Contexts: one for each local node and channel.
    pub(crate) fn contexts(&self) -> usize {
        self.geometry.local * self.options.channels
    }

    /// Nodes, the longest message, bytes of a channel.
    pub(crate) fn measures(&self) -> (usize, usize, usize) {
        (self.geometry.nodes, self.geometry.mtu, self.geometry.size)
    }

    /// Invalid: no such channel or no such local node.
    fn port<'a>(&self, state: &'a mut State, channel: u32, own: u32) -> Result<&'a mut Port> {
        let place = self.geometry.place(own as usize).ok_or(Error::Invalid)?;
        let ports = state.ports.get_mut(channel as usize).ok_or(Error::Invalid)?;
        ports.get_mut(place).ok_or(Error::Invalid)
    }

    /// Invalid: no such channel or local node. Busy: another context is bound there, or was used
    /// there: packets are numbered once.
    pub(crate) fn bind(&self, channel: u32, own: u32) -> Result<()> {
        let mut state = self.state();
        let port = self.port(&mut state, channel, own)?;
        if port.bound || port.used {
            return Err(Error::Busy);
        }
        port.bound = true;
        Ok(())
    }

    pub(crate) fn unbind(&self, channel: u32, own: u32) {
        if let Ok(port) = self.port(&mut self.state(), channel, own) {
            port.bound = false;
        }
    }

    fn identity(&self, channel: u32, own: u32) -> Identity {
        let incarnation = self.options.incarnation;
        Identity { own, channel: channel as usize, secret: self.secret, incarnation }
    }

    /// The owner itself uses what is bound there. Invalid: the peers are not known yet. Busy: it
    /// was given to a process.
    pub(super) fn take_into_use(&self, channel: u32, own: u32) -> Result<Arc<Endpoint>> {
        let mut state = self.state();
        let addresses = state.addresses.clone().ok_or(Error::Invalid)?;
        let slab = self.slabs.get(channel as usize).ok_or(Error::Invalid)?.clone();
        let port = self.port(&mut state, channel, own)?;
        if port.used {
            return Err(Error::Busy);
        }
        let links = duplicates(&port.links)?;
        let endpoint = Endpoint::new(self.identity(channel, own), links, addresses, slab)?;
        port.used = true;
        Ok(endpoint)
    }

    /// Makes a descriptor that [`attach`] takes. Invalid: the peers are not known yet. Busy: it was
    /// used here.
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
        let links = port.links.iter();
        let message = Attach {
            number: number as u32,
            channel,
            channels: self.options.channels as u32,
            own,
            geometry: self.geometry,
            nonce: slab.nonce(),
            secret: self.secret,
            incarnation: self.options.incarnation,
            links: links.map(|link| (link.describe(), link.descriptors().count())).collect(),
        };
        let mut fds = vec![slab.memory(), addresses.memory()];
        fds.extend(port.links.iter().flat_map(wire::Endpoint::descriptors));
        let fd = passing::pack(&message.encode(), &fds)?;
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
            slab.record(place).node.add_to(&mut sum, self.geometry.nodes);
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
            slab.record(place).node.door.0.exit(barrier::issue);
            count_unread(slab, place);
            slab.set_gone(node);
            let port = &mut state.ports[channel][place];
            slab.record(place).node.send.0.remote.store(0, Ordering::Release);
            let lent = port.used && !std::mem::replace(&mut port.exited, true);
            let left = lent && slab.has_left(place);
            let Some(addresses) = state.addresses.clone().filter(|_| left) else { continue };
            let links = duplicates(&state.ports[channel][place].links);
            let orphan = links.and_then(|links| {
                let identity = self.identity(channel as u32, node as u32);
                Orphan::adopt(identity, links, addresses, slab.clone())
            });
            match orphan {
                Ok(orphan) => self.take_in(&mut state, orphan),
                Err(error) => result = Err(error),
            }
        }
        drop(state);
        self.serve();
        result
    }

    fn take_in(&self, state: &mut State, orphan: Orphan) {
        for wire in orphan.wires() {
            let _ = self.epoll.add(wire.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0));
        }
        state.orphans.push(orphan);
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

fn duplicates(links: &[wire::Endpoint]) -> Result<Vec<wire::Endpoint>> {
    links.iter().map(|link| link.try_clone().map_err(refused)).collect()
}

/// Makes a context from an attach descriptor. Invalid: it holds anything else, or was used before.
pub(crate) fn attach(fd: OwnedFd) -> Result<Ethernet> {
    let (bytes, fds) = passing::unpack(&fd, ATTACH_MAX)?;
    let attach = Attach::decode(&bytes)?;
    let mut fds = fds.into_iter();
    let (Some(memory), Some(addresses)) = (fds.next(), fds.next()) else {
        return Err(Error::Invalid);
    };
    let slab = Arc::new(Slab::open(memory, attach.geometry, attach.nonce)?);
    let shape = Shape {
        nodes: attach.geometry.nodes,
        channels: attach.channels as usize,
        links: attach.links.len(),
    };
    let addresses = Arc::new(Addresses::open(addresses, shape)?);
    let mut links = Vec::new();
    for (description, count) in &attach.links {
        let descriptors: Vec<_> = fds.by_ref().take(*count).collect();
        links.push(wire::Endpoint::rebuild(description, descriptors).map_err(refused)?);
    }
    if fds.next().is_some() {
        return Err(Error::Invalid);
    }
    let identity = Identity {
        own: attach.own,
        channel: attach.channel as usize,
        secret: attach.secret,
        incarnation: attach.incarnation,
    };
    let endpoint = Endpoint::new(identity, links, addresses, slab)?;
    role::become_user();
    debug::say(debug::INFO, || {
        format!("ethernet: attached as node {} of {}", attach.own, attach.geometry.nodes)
    });
    Ok(Ethernet::attached(attach.number as usize, endpoint))
}
