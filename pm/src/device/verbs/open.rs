//! How verbs contexts come and go: the owner's channels, binding, attach descriptors, and what it
//! does for those that have ended.

#![forbid(unsafe_code)]

use super::adopt::Orphan;
use super::attach::{ATTACH_MAX, Attach};
use super::choice::{Chosen, choose};
use super::config::{MTU, Options};
use super::engine::Identity;
use super::library::Library;
use super::meeting::encode;
use super::{Endpoint, Verbs};
use crate::config::{CONTROL_MTU, Counters, DeviceConfig};
use crate::debug;
use crate::device::ethernet::addresses::{Addresses, Shape, append};
use crate::device::ethernet::layout::Geometry;
use crate::device::ethernet::slab::Slab;
use crate::device::passing;
use crate::error::{Error, Result};
use crate::segment::{from_errno, new_nonce};
use crate::sync::Ordering;
use crate::{barrier, role};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One local node's end of one channel.
struct Port {
    /// Where hellos are heard; the owner keeps it for the time after the process.
    socket: UdpSocket,
    bound: bool,
    /// Taken into use here, or given to a process: never again.
    used: bool,
    exited: bool,
}

/// A verbs device's channels: a slab each.
pub(crate) struct Channels {
    options: Options,
    chosen: Chosen,
    geometry: Geometry,
    secret: u64,
    slabs: Vec<Arc<Slab>>,
    state: Mutex<State>,
    /// Readable when `serve` has something to do.
    epoll: Epoll,
    timer: TimerFd,
}

struct State {
    /// By channel and local node.
    ports: Vec<Vec<Port>>,
    addresses: Option<Arc<Addresses>>,
    orphans: Vec<Orphan>,
}

fn io(error: std::io::Error) -> Error {
    debug::say(debug::ERROR, || format!("verbs: {error}"));
    error.raw_os_error().map_or(Error::Io, |errno| from_errno(nix::errno::Errno::from_raw(errno)))
}

impl Channels {
    /// NoDevice: PM_DEBUG says whether library, kernel or adapter is missing, or what of the
    /// options.
    pub(crate) fn new(options: Options) -> Result<Channels> {
        let chosen = find(&options).map_err(|why| {
            debug::say(debug::ERROR, || format!("device verbs: {why}; use ethernet"));
            Error::NoDevice
        })?;
        debug::say(debug::INFO, || format!("device verbs: {}", describe(&chosen)));
        let geometry = Geometry::new(options.nodes, options.first, options.local, MTU)?;
        let open = |_| -> Result<Port> {
            let link = options.link.ok_or(Error::Invalid)?;
            let socket = UdpSocket::bind(SocketAddr::new(link, 0)).map_err(io)?;
            socket.set_nonblocking(true).map_err(io)?;
            Ok(Port { socket, bound: false, used: false, exited: false })
        };
        let ports = (0..options.channels)
            .map(|_| (0..options.local).map(open).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        let slabs = (0..options.channels).map(|_| Slab::create(geometry).map(Arc::new));
        let slabs = slabs.collect::<Result<_>>()?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(from_errno)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(from_errno)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(from_errno)?;
        let secret = options.secret.map_or_else(|| new_nonce().map(|nonce| nonce[0]), Ok)?;
        let state = Mutex::new(State { ports, addresses: None, orphans: Vec::new() });
        let channels = Channels { options, chosen, geometry, secret, slabs, state, epoll, timer };
        if channels.geometry.local == channels.geometry.nodes {
            channels.set_peers(&channels.addresses()?)?;
        }
        Ok(channels)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the local nodes are reached: opaque, to be put behind those of the hosts before.
    pub(crate) fn addresses(&self) -> Result<Vec<u8>> {
        let state = self.state();
        let mut table = Vec::new();
        for place in 0..self.geometry.local {
            for channel in &state.ports {
                let address = channel[place].socket.local_addr().map_err(io)?;
                append(&mut table, &encode(address))?;
            }
        }
        Ok(table)
    }

    fn shape(&self) -> Shape {
        Shape { nodes: self.options.nodes, channels: self.options.channels, links: 1 }
    }

    /// Where all nodes are reached. Busy: said before. Invalid: not as many as there are.
    pub(crate) fn set_peers(&self, table: &[u8]) -> Result<()> {
        let mut state = self.state();
        if state.addresses.is_some() {
            return Err(Error::Busy);
        }
        state.addresses = Some(Arc::new(Addresses::create(self.shape(), table)?));
        Ok(())
    }

    pub(crate) fn config(&self, contexts: usize) -> DeviceConfig {
        self.options.config(contexts, self.geometry.size)
    }

    /// Contexts: one for each local node and channel. None on iWARP, whose connections are not
    /// made this way.
    pub(crate) fn contexts(&self) -> usize {
        self.geometry.local * self.options.channels
    }

    /// NoSys: messages over iWARP are not built.
    pub(crate) fn check(&self) -> Result<()> {
        if self.chosen.iwarp {
            debug::say(debug::ERROR, || "verbs: messages over iWARP are not built".into());
            return Err(Error::NoSys);
        }
        Ok(())
    }

    /// Nodes, the longest message, bytes of a channel.
    pub(super) fn measures(&self) -> (usize, usize, usize) {
        (self.geometry.nodes, self.geometry.mtu, self.geometry.size)
    }

    /// Invalid: no such channel or no such local node.
    fn port<'a>(&self, state: &'a mut State, channel: u32, own: u32) -> Result<&'a mut Port> {
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
    pub(super) fn take_into_use(&self, channel: u32, own: u32) -> Result<Arc<Endpoint>> {
        let mut state = self.state();
        let addresses = state.addresses.clone().ok_or(Error::Invalid)?;
        let slab = self.slabs.get(channel as usize).ok_or(Error::Invalid)?.clone();
        let port = self.port(&mut state, channel, own)?;
        if port.used {
            return Err(Error::Busy);
        }
        let socket = port.socket.try_clone().map_err(io)?;
        let identity = self.identity(channel, own);
        let endpoint = Endpoint::new(&self.chosen, identity, socket, addresses, slab)?;
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
        let chosen = &self.chosen;
        let partition = chosen.port.partitions.get(chosen.partition).copied();
        let message = Attach {
            number: number as u32,
            channel,
            channels: self.options.channels as u32,
            own,
            geometry: self.geometry,
            nonce: slab.nonce(),
            secret: self.secret,
            adapter: chosen.adapter.clone(),
            port: chosen.port.number,
            gid: chosen.gid.map(|gid| gid.index),
            partition: partition.unwrap_or(u16::MAX),
            level: chosen.level,
        };
        let fds = [slab.memory(), addresses.memory(), port.socket.as_fd()];
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
            let lent = port.used && !std::mem::replace(&mut port.exited, true);
            if !lent || !slab.has_left(place) {
                continue;
            }
            let adopted = self.adopt(&mut state, channel, node, slab);
            result = result.and(adopted);
        }
        // What can be done at once is done by the next `serve`.
        let soon = Expiration::OneShot(Duration::from_micros(1).into());
        let _ = self.timer.set(soon, TimerSetTimeFlags::empty());
        result
    }

    fn adopt(
        &self,
        state: &mut State,
        channel: usize,
        node: usize,
        slab: &Arc<Slab>,
    ) -> Result<()> {
        let place = self.geometry.place(node).ok_or(Error::Invalid)?;
        let addresses = state.addresses.clone().ok_or(Error::Invalid)?;
        let socket = state.ports[channel][place].socket.try_clone().map_err(io)?;
        let identity = self.identity(channel as u32, node as u32);
        let orphan = Orphan::adopt(&self.chosen, identity, socket, addresses, slab.clone())?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        self.epoll.add(orphan.socket(), event).map_err(from_errno)?;
        state.orphans.push(orphan);
        Ok(())
    }

    /// A node of another host has ended: sends to it are dropped.
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
            let _ = self.timer.set(Expiration::OneShot(wait.into()), TimerSetTimeFlags::empty());
        }
    }

    /// Whether everything that the dead had sent has arrived, or its receivers have gone.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state().orphans.iter().all(Orphan::is_quiet)
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        describe(&self.chosen)
    }
}

/// After the process at `place` has ended: what it had taken from the adapter and never read
/// counts as received.
pub(super) fn count_unread(slab: &Slab, place: usize) {
    let record = slab.record(place);
    let arrived = record.arrived.0.load(Ordering::Acquire);
    record.node.receive.0.received.fetch_max(arrived, Ordering::AcqRel);
}

/// Makes a context from an attach descriptor. Invalid: it holds anything else, or was used before.
/// NoDevice: this process finds no such adapter.
pub(crate) fn attach(fd: OwnedFd) -> Result<Verbs> {
    let (bytes, fds) = passing::unpack(&fd, ATTACH_MAX)?;
    let attach = Attach::decode(&bytes)?;
    let [memory, addresses, socket] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| Error::Invalid)?;
    let slab = Arc::new(Slab::open(memory, attach.geometry, attach.nonce)?);
    let channels = attach.channels as usize;
    let shape = Shape { nodes: attach.geometry.nodes, channels, links: 1 };
    let addresses = Arc::new(Addresses::open(addresses, shape)?);
    let socket = UdpSocket::from(socket);
    socket.local_addr().map_err(|_| Error::Invalid)?;
    let chosen = find(&attach.options()).map_err(|why| {
        debug::say(debug::ERROR, || format!("device verbs: {why}"));
        Error::NoDevice
    })?;
    let (own, channel, secret) = (attach.own, attach.channel, attach.secret);
    let identity = Identity { own, channel, secret };
    let endpoint = Endpoint::new(&chosen, identity, socket, addresses, slab)?;
    role::become_user();
    debug::say(debug::INFO, || {
        format!("verbs: attached as node {own} of {}", attach.geometry.nodes)
    });
    Ok(Verbs::attached(attach.number as usize, endpoint))
}

fn find(options: &Options) -> std::result::Result<Chosen, String> {
    let library = Library::get().map_err(|lack| lack.to_string())?;
    choose(&library.adapters().map_err(|lack| lack.to_string())?, options)
}

fn describe(chosen: &Chosen) -> String {
    let Chosen { adapter, port, .. } = chosen;
    let kind = match (chosen.iwarp, port.ethernet) {
        (true, _) => "iWARP",
        (false, true) => "RoCE",
        (false, false) => "InfiniBand",
    };
    let address = match &chosen.gid {
        Some(gid) => format!("GID {} {}", gid.index, std::net::Ipv6Addr::from(gid.bytes)),
        None => format!("LID {}", port.lid),
    };
    let key = port.partitions.get(chosen.partition).copied().unwrap_or(u16::MAX);
    format!(
        "{adapter} port {}, {kind}, {address}, MTU {}, partition {key:#06x}, service level {}",
        port.number, port.mtu, chosen.level
    )
}

/// What `Device::open("verbs", ...)` without options would use; for `scored -probe`.
///
/// # Errors
/// Which of library, kernel and adapter is missing.
pub fn probe() -> std::result::Result<String, String> {
    find(&Options::parse(&[]).map_err(|error| error.to_string())?).map(|chosen| describe(&chosen))
}
