//! PM over RDMA hardware: InfiniBand and RoCE, by libibverbs. `docs/dev/verbs.md` describes the
//! structure and the message flow. Verbs is a [`NetworkDevice`]. The code that such devices share
//! is in `net_common/`.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs`, `open.rs`, `attach.rs`, `config.rs` | the network; opening, attaching, options |
//! | `port_selection.rs` | selects adapter, port and address; pure |
//! | `ibverbs_library.rs`, `bindings.rs` | libibverbs, opened at run time; its declarations |
//! | `adapter.rs`, `queue_pair.rs` | adapter resources: queues, registered memory; queue pairs |
//! | `adapter_status.rs` | the state of the adapter |
//! | `peer.rs`, `peer_table.rs` | state of one peer; all peers |
//! | `connection.rs`, `hello.rs` | the protocol that connects a pair of queue pairs; pure |
//! | `hello_socket.rs` | the socket of this protocol |
//! | `outgoing_queue.rs` | messages and operations in flight to one peer; pure |
//! | `receive_buffers.rs` | the receive buffers that all peers share |
//! | `credits.rs` | flow control |
//! | `engine.rs` | progress |
//! | `send.rs`, `receive.rs`, `connection_driver.rs` | sending, receiving, connecting |
//! | `control_queue.rs` | control messages |
//! | `rma.rs`, `rdma_counts.rs`, `regions.rs` | remote memory access; locked regions |
//! | `progress.rs` | the thread that makes progress while the application computes |
//! | `adapter_probe.rs` | the check whether an owner can offer the device |
//! | `adopt.rs` | the owner's work for an exited process |

mod adapter;
mod adapter_probe;
mod adapter_status;
mod adopt;
mod attach;
mod bindings;
pub(crate) mod config;
mod connection;
mod connection_driver;
mod control_queue;
mod credits;
mod engine;
mod hello;
mod hello_socket;
mod ibverbs_library;
pub(crate) mod open;
mod outgoing_queue;
mod peer;
mod peer_table;
pub(crate) mod port_selection;
mod progress;
mod queue_pair;
mod rdma_counts;
mod receive;
mod receive_buffers;
mod regions;
mod rma;
mod send;

use super::net_common::address_table::AddressTable;
use super::net_common::endpoint_queues::{PeerSendState, SendRequest};
use super::net_common::layout::SendSlotState;
use super::net_common::slab::{PublishedMessage, SequenceNumber, Slab};
use super::net_common::{
    self, EndpointIdentity, Engine as _, NetworkDevice, ProgressMode, count_unread,
};
use crate::error::{Error, PmResult, from_errno};
use crate::rma::Direction;
use crate::sync::{AtomicU64, Ordering};
use adapter::DmaBuffer;
pub use adapter_probe::{Unusable, Usable, probe_adapter};
use adopt::VerbsOrphan;
use engine::VerbsEngine;
use nix::sys::eventfd::{EfdFlags, EventFd};
pub use open::probe;
use port_selection::SelectedPort;
use regions::VerbsRegions;
use score_pm_reliability::packet_header::PacketKind;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The verbs device, and the state that it keeps for an endpoint.
pub(crate) struct Verbs {
    /// The number of messages to one peer that may be in flight or unread.
    window: u32,
    /// The count of consumed messages that each peer has reported.
    credits: Arc<DmaBuffer>,
    regions: Arc<VerbsRegions>,
    /// Wakes the thread to end it.
    stop: EventFd,
    /// The word is not 0 if the adapter was removed.
    broken: AtomicU64,
}

/// The state that this process keeps for one channel and node.
pub(crate) type VerbsEndpoint = net_common::NetworkEndpoint<Verbs>;
/// The verbs part of a context.
pub(crate) type VerbsContext = net_common::NetworkContext<Verbs>;

impl NetworkDevice for Verbs {
    const KIND: &'static str = "verbs";
    const OPTIONS: u64 = rma::OPTIONS;
    /// A poll is not a system call, because it reads completions from memory.
    const IS_POLL_SYSTEM_CALL: bool = false;
    const SAVE_MAGIC: u64 = u64::from_le_bytes(*b"SCPMVSV\x01");
    const ATTACH_MAGIC: u64 = u64::from_le_bytes(*b"SCPMVAT\x02");

    type Engine = VerbsEngine;
    type OpenParams = SelectedPort;
    /// The socket that receives hellos.
    type LocalSockets = UdpSocket;
    type Orphan = VerbsOrphan;

    fn duplicate(socket: &UdpSocket) -> PmResult<UdpSocket> {
        socket.try_clone().map_err(open::log_io_error)
    }
    fn addresses(socket: &UdpSocket) -> PmResult<Vec<Vec<u8>>> {
        Ok(vec![hello_socket::encode_address(socket.local_addr().map_err(open::log_io_error)?)])
    }
    fn describe<'a>(
        chosen: &SelectedPort,
        socket: &'a UdpSocket,
    ) -> (Vec<u8>, Vec<BorrowedFd<'a>>) {
        (attach::PortParams::of(chosen).encode(), vec![socket.as_fd()])
    }
    fn rebuild(bytes: &[u8], fds: Vec<OwnedFd>) -> PmResult<(SelectedPort, UdpSocket, usize)> {
        let port_address = attach::PortParams::decode(bytes)?;
        let [socket] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Error::Invalid)?;
        let socket = UdpSocket::from(socket);
        socket.local_addr().map_err(|_| Error::Invalid)?;
        Ok((open::choose(&port_address.choice())?, socket, 1))
    }

    /// Opens an endpoint and starts its progress thread. NoMemory: the adapter or the kernel
    /// refuses a resource. A warning to the user names it.
    fn open(
        chosen: &SelectedPort,
        identity: EndpointIdentity,
        socket: UdpSocket,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<Arc<VerbsEndpoint>> {
        let buffer_count = receive_buffers::entry_count(slab.geometry().nodes as usize);
        let engine = VerbsEngine::new(chosen, identity, socket, addresses, slab.clone())?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let net = Verbs {
            window: engine.credits.window(),
            credits: engine.credits.words(),
            regions: engine.regions.clone(),
            stop: EventFd::from_flags(flags).map_err(from_errno)?,
            broken: AtomicU64::new(0),
        };
        let endpoint = VerbsEndpoint::new(identity, slab, buffer_count, engine, net)?;
        progress::start(&endpoint)?;
        Ok(endpoint)
    }
    fn adopt(
        chosen: &SelectedPort,
        identity: EndpointIdentity,
        socket: UdpSocket,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<VerbsOrphan> {
        Ok(VerbsOrphan::adopt(VerbsEngine::new(chosen, identity, socket, addresses, slab)?))
    }

    /// Io: the adapter was removed.
    #[inline(always)]
    fn check_operational(endpoint: &VerbsEndpoint) -> PmResult<()> {
        if endpoint.is_broken() { Err(Error::Io) } else { Ok(()) }
    }
    fn max_message_len(endpoint: &VerbsEndpoint, _: u32) -> PmResult<usize> {
        Ok(endpoint.mtu)
    }
    /// A sender sends no more messages than the receiver has buffers for. The receiver reports by
    /// RDMA how many it has consumed.
    #[inline(always)]
    fn may_send(endpoint: &VerbsEndpoint, node: u32, peer: &PeerSendState) -> bool {
        let consumed = endpoint.net.credits.word(node as usize).load(Ordering::Acquire) as u32;
        (peer.sent_count.get() as u32).wrapping_sub(consumed) < endpoint.net.window
    }
    #[inline(always)]
    fn content(_: &VerbsEndpoint, node: u32, peer: &PeerSendState, len: usize) -> PublishedMessage {
        let published = SendSlotState::new(len, PacketKind::Data);
        let sequence = Some(SequenceNumber(peer.sent_count.get() as u32));
        PublishedMessage { to: node, order: 0, sequence, published }
    }
    /// Sends without the queue, unless another thread makes progress.
    #[inline(always)]
    fn send(endpoint: &VerbsEndpoint, peer: &PeerSendState, message: SendRequest) {
        endpoint.publish_slot(peer, message);
        let Some(mut engine) = endpoint.progress_lock.try_lock() else {
            // The queue has as many entries as there are slots, so there is room.
            endpoint.queues.submitted.push(message);
            return endpoint.serve(ProgressMode::Send);
        };
        engine.send_now(&endpoint.queues, message);
        endpoint.serve_locked(engine, ProgressMode::Send);
        // The slots are collected now, because this shortens the path of the next message.
        endpoint.collect_freed_slots();
    }
    /// Waits for the progress thread, if it is running a pass.
    fn poll_blocking(endpoint: &VerbsEndpoint) {
        let mut engine = endpoint.progress_lock.lock();
        let must_wake = engine.progress(&endpoint.queues, ProgressMode::All)
            && endpoint.queues.wakeup_flag.take_wakeup();
        drop(engine);
        if must_wake {
            endpoint.select.notify();
        }
        // Serves requests of threads that found the engine locked.
        endpoint.serve(ProgressMode::Send);
    }
    /// A later message makes the adapter's channel readable, and the progress thread wakes the
    /// receiver.
    fn arm_wakeup(endpoint: &VerbsEndpoint) {
        endpoint.progress_lock.lock().adapter.request_notify();
    }
    fn pending_reads(endpoint: &VerbsEndpoint) -> usize {
        endpoint.progress_lock.lock().rdma_counts.in_flight(Direction::Read) as usize
    }
    fn close(endpoint: &VerbsEndpoint) {
        if endpoint.closed.load(Ordering::Acquire) != 0 {
            return;
        }
        endpoint.wait_for_acks();
        endpoint.closed.store(1, Ordering::Release);
        let _ = endpoint.net.stop.write(1);
        endpoint.record().node.receiver_state.0.set_exited(crate::membarrier::issue);
        count_unread(&endpoint.slab, endpoint.local_index);
        endpoint.progress_lock.lock().close();
    }
}

impl VerbsEndpoint {
    #[inline(always)]
    fn is_broken(&self) -> bool {
        self.net.broken.load(Ordering::Relaxed) != 0
    }
}
