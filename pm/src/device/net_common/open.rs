//! Opens and closes contexts: the owner's channels, binding, attach descriptors, and the owner's
//! work for processes that have exited.

#![forbid(unsafe_code)]

use super::address_table::{AddressTable, AddressTableShape, append};
use super::attach::NetworkAttachMessage;
use super::indices::LocalIndex;
use super::layout::SlabGeometry;
use super::slab::Slab;
use super::{EndpointIdentity, NetworkDevice, NetworkEndpoint, Orphan};
use crate::config::{CONTROL_MTU, Counters, DeviceConfig};
use crate::device::fd_passing;
use crate::error::{Error, PmResult, from_errno};
use crate::membarrier;
use crate::segment::new_nonce;
use crate::sync::Ordering;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The sockets of one local node on one channel.
struct NodeSocketSlot<N: NetworkDevice> {
    /// The owner keeps the sockets for the time after the process has exited.
    socket: N::LocalSockets,
    is_bound: bool,
    /// Whether the endpoint was opened here or given to a process. It cannot be opened here again.
    is_used: bool,
    has_exited: bool,
}

/// The channels of a device, with one slab for each channel.
pub(crate) struct Channels<N: NetworkDevice> {
    pub(crate) setup: N::OpenParams,
    pub(crate) geometry: SlabGeometry,
    shape: AddressTableShape,
    secret: u64,
    slabs: Vec<Arc<Slab>>,
    state: Mutex<State<N>>,
    /// Waits for the sockets of orphans and for the timer.
    epoll: Epoll,
    timer: TimerFd,
}

struct State<N: NetworkDevice> {
    /// The local endpoints by channel and local index.
    local_endpoints: Vec<Vec<NodeSocketSlot<N>>>,
    addresses: Option<Arc<AddressTable>>,
    orphans: Vec<N::Orphan>,
}

impl<N: NetworkDevice> Channels<N> {
    /// Makes channels over `sockets`, which are ordered by channel and local index and have `links`
    /// links each. Without a secret it uses a random number.
    pub(crate) fn from_sockets(
        setup: N::OpenParams,
        geometry: SlabGeometry,
        secret: Option<u64>,
        links: usize,
        sockets: Vec<Vec<N::LocalSockets>>,
    ) -> PmResult<Channels<N>> {
        let slabs = sockets.iter().map(|_| Slab::create(geometry).map(Arc::new));
        let slabs = slabs.collect::<PmResult<Vec<_>>>()?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(from_errno)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(from_errno)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(from_errno)?;
        let secret = secret.map_or_else(|| new_nonce().map(|nonce| nonce[0]), Ok)?;
        let channels = sockets.len() as u32;
        let shape = AddressTableShape { nodes: geometry.nodes, channels, links };
        let make_endpoint =
            |socket| NodeSocketSlot { socket, is_bound: false, is_used: false, has_exited: false };
        let local_endpoints =
            sockets.into_iter().map(|ends| ends.into_iter().map(make_endpoint).collect()).collect();
        let state = Mutex::new(State { local_endpoints, addresses: None, orphans: Vec::new() });
        let channels = Channels { setup, geometry, shape, secret, slabs, state, epoll, timer };
        if geometry.local_nodes == geometry.nodes {
            channels.set_peers(&channels.addresses()?)?;
        }
        Ok(channels)
    }

    fn state(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with all sockets.
    pub(crate) fn with_sockets<T>(&self, f: impl FnOnce(&[&N::LocalSockets]) -> T) -> T {
        let state = self.state();
        let sockets: Vec<_> = state
            .local_endpoints
            .iter()
            .flatten()
            .map(|local_endpoint| &local_endpoint.socket)
            .collect();
        f(&sockets)
    }

    /// Returns the addresses of the local nodes as opaque bytes. The caller appends them to the
    /// addresses of the preceding hosts.
    pub(crate) fn addresses(&self) -> PmResult<Vec<u8>> {
        let state = self.state();
        let mut table = Vec::new();
        for local_index in self.geometry.local_indices() {
            for channel in &state.local_endpoints {
                for address in N::addresses(&channel[local_index.as_usize()].socket)? {
                    append(&mut table, &address)?;
                }
            }
        }
        Ok(table)
    }

    /// Sets the addresses of all nodes. Returns `Busy` if they are already set, and `Invalid` if
    /// their number is wrong.
    pub(crate) fn set_peers(&self, table: &[u8]) -> PmResult<()> {
        let mut state = self.state();
        if state.addresses.is_some() {
            return Err(Error::Busy);
        }
        state.addresses = Some(Arc::new(AddressTable::create(self.shape, table)?));
        Ok(())
    }

    /// Returns the result of `pmGetDeviceConfig`.
    pub(crate) fn config(&self, contexts: usize) -> DeviceConfig {
        let SlabGeometry { nodes, mtu, size, .. } = self.geometry;
        let nodes = nodes as usize;
        DeviceConfig { kind: N::KIND, nodes, contexts, mtu, size, option: N::OPTIONS }
    }

    /// Returns the number of contexts: one for each local node and channel.
    pub(crate) fn contexts(&self) -> usize {
        self.geometry.local_nodes as usize * self.shape.channels as usize
    }

    /// Returns the number of nodes, the length of the longest message, and the size of a slab in
    /// bytes.
    pub(super) fn dimensions(&self) -> (usize, usize, usize) {
        (self.geometry.nodes as usize, self.geometry.mtu, self.geometry.size)
    }

    /// Returns `Invalid` if there is no such channel or local node.
    fn local_endpoint<'a>(
        &self,
        state: &'a mut State<N>,
        channel: u32,
        self_node: u32,
    ) -> PmResult<&'a mut NodeSocketSlot<N>> {
        let local_index = self.geometry.local_index(self_node).ok_or(Error::Invalid)?;
        let local_endpoints =
            state.local_endpoints.get_mut(channel as usize).ok_or(Error::Invalid)?;
        local_endpoints.get_mut(local_index.as_usize()).ok_or(Error::Invalid)
    }

    /// Binds a context to a channel and local node. Returns `Invalid` if there is no such channel
    /// or local node. Returns `Busy` if another context is bound to it or has used it, because
    /// sequence numbers may be used only once.
    pub(super) fn bind(&self, channel: u32, self_node: u32) -> PmResult<()> {
        let mut state = self.state();
        let local_endpoint = self.local_endpoint(&mut state, channel, self_node)?;
        if local_endpoint.is_bound || local_endpoint.is_used {
            return Err(Error::Busy);
        }
        local_endpoint.is_bound = true;
        Ok(())
    }

    pub(super) fn unbind(&self, channel: u32, self_node: u32) {
        if let Ok(local_endpoint) = self.local_endpoint(&mut self.state(), channel, self_node) {
            local_endpoint.is_bound = false;
        }
    }

    fn identity(&self, channel: u32, self_node: u32) -> EndpointIdentity {
        EndpointIdentity { self_node, channel, secret: self.secret }
    }

    /// Opens the endpoint in the owner itself. Returns `Invalid` if the addresses of the peers are
    /// not set yet, and `Busy` if the endpoint was opened before or given to a process.
    pub(super) fn open_endpoint(
        &self,
        channel: u32,
        self_node: u32,
    ) -> PmResult<Arc<NetworkEndpoint<N>>> {
        let mut state = self.state();
        let addresses = state.addresses.clone().ok_or(Error::Invalid)?;
        let slab = self.slabs.get(channel as usize).ok_or(Error::Invalid)?.clone();
        let local_endpoint = self.local_endpoint(&mut state, channel, self_node)?;
        if local_endpoint.is_used {
            return Err(Error::Busy);
        }
        let socket = N::duplicate(&local_endpoint.socket)?;
        let endpoint =
            N::open(&self.setup, self.identity(channel, self_node), socket, addresses, slab)?;
        local_endpoint.is_used = true;
        Ok(endpoint)
    }

    /// Makes a descriptor for [`super::context::attach`]. It can be called again for the same
    /// endpoint. Returns `Invalid` if the addresses of the peers are not set yet.
    pub(super) fn create_attach_fd(
        &self,
        number: usize,
        channel: u32,
        self_node: u32,
    ) -> PmResult<OwnedFd> {
        let mut state = self.state();
        let addresses = state.addresses.clone().ok_or(Error::Invalid)?;
        let slab = self.slabs.get(channel as usize).ok_or(Error::Invalid)?;
        let local_endpoint = self.local_endpoint(&mut state, channel, self_node)?;
        let (socket_description, descriptors) = N::describe(&self.setup, &local_endpoint.socket);
        let message = NetworkAttachMessage {
            number: number as u32,
            channel,
            channels: self.shape.channels,
            self_node,
            geometry: self.geometry,
            nonce: slab.nonce(),
            secret: self.secret,
            socket_description,
        };
        let mut fds = vec![slab.memory(), addresses.memory()];
        fds.extend(descriptors);
        let fd = fd_passing::pack(&message.encode(N::ATTACH_MAGIC), &fds)?;
        local_endpoint.is_used = true;
        Ok(fd)
    }

    /// Queues a control message that the process of `self_node` will send. Returns `Invalid` for a
    /// bad node or length, and `NoBuffers` if the process has to send earlier control messages
    /// first.
    pub(super) fn control_send(
        &self,
        channel: u32,
        self_node: u32,
        to: u32,
        message: &[u8],
    ) -> PmResult<()> {
        let slab = self.slabs.get(channel as usize).ok_or(Error::Invalid)?;
        let local_index = self.geometry.local_index(self_node).ok_or(Error::Invalid)?;
        let fits = (1..=CONTROL_MTU).contains(&message.len());
        if to >= self.geometry.nodes || to == self_node || !fits {
            return Err(Error::Invalid);
        }
        let _guard = self.state();
        if slab.is_exited(to) {
            return Ok(());
        }
        slab.record(local_index).control_queue.push(to, message)
    }

    pub(crate) fn counters(&self, node: u32) -> PmResult<Counters> {
        let local_index = self.geometry.local_index(node).ok_or(Error::Invalid)?;
        let mut sum = Counters::default();
        for slab in &self.slabs {
            let record = slab.record(local_index);
            record.node.add_to(&mut sum, self.geometry.nodes as usize);
        }
        Ok(sum)
    }

    /// Marks a local node as exited. From now on, the owner delivers the messages that its process
    /// has sent.
    pub(crate) fn mark_exited(&self, node: u32) -> PmResult<()> {
        let local_index = self.geometry.local_index(node).ok_or(Error::Invalid)?;
        let mut state = self.state();
        let mut result = Ok(());
        for (channel, slab) in self.slabs.iter().enumerate() {
            let record = slab.record(local_index);
            record.node.receiver_state.0.set_exited(membarrier::issue);
            count_unread(slab, local_index);
            slab.set_exited(node);
            record.node.send.0.pending_rma.store(0, Ordering::Release);
            let local_endpoint = &mut state.local_endpoints[channel][local_index.as_usize()];
            let was_in_use =
                local_endpoint.is_used && !std::mem::replace(&mut local_endpoint.has_exited, true);
            if was_in_use && slab.has_unacked(local_index) {
                result = result.and(self.adopt(&mut state, (channel, node, local_index), slab));
            }
        }
        drop(state);
        self.serve();
        result
    }

    fn adopt(
        &self,
        state: &mut State<N>,
        (channel, node, local_index): (usize, u32, LocalIndex),
        slab: &Arc<Slab>,
    ) -> PmResult<()> {
        // Without addresses, the process cannot have sent anything.
        let Some(addresses) = state.addresses.clone() else { return Ok(()) };
        let socket = N::duplicate(&state.local_endpoints[channel][local_index.as_usize()].socket)?;
        let identity = self.identity(channel as u32, node);
        let orphan = N::adopt(&self.setup, identity, socket, addresses, slab.clone())?;
        for fd in orphan.fds() {
            let _ = self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0));
        }
        state.orphans.push(orphan);
        Ok(())
    }

    /// Marks a node of another host as exited. From now on, messages to it are dropped.
    pub(crate) fn peer_exited(&self, node: u32) -> PmResult<()> {
        if node >= self.geometry.nodes {
            return Err(Error::Invalid);
        }
        self.slabs.iter().for_each(|slab| slab.set_exited(node));
        Ok(())
    }

    /// Returns a descriptor that becomes readable when `serve` has work.
    pub(crate) fn adopted_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Makes progress for the orphans. It never waits.
    pub(crate) fn serve(&self) {
        let mut state = self.state();
        let _ = self.timer.wait();
        let waits = state.orphans.iter_mut().filter_map(Orphan::serve);
        if let Some(wait) = waits.min() {
            // A time of zero would stop the timer.
            let wait = wait.max(Duration::from_micros(1));
            let _ = self.timer.set(Expiration::OneShot(wait.into()), TimerSetTimeFlags::empty());
        }
    }

    /// Whether every message of the orphans was acknowledged, or its receiver has exited.
    pub(crate) fn is_drained(&self) -> bool {
        self.state().orphans.iter().all(Orphan::is_drained)
    }
}

/// Counts, as received, the messages that the process at `local_index` has accepted and not read.
/// Called when the process has exited or has closed its endpoint.
pub(crate) fn count_unread(slab: &Slab, local_index: LocalIndex) {
    let record = slab.record(local_index);
    let accepted_count = record.accepted_count.0.load(Ordering::Acquire);
    record.node.receive.0.received.fetch_max(accepted_count, Ordering::AcqRel);
}
