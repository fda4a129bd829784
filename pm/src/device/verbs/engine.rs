//! Progress. The engine posts submitted messages, takes back completed ones, and delivers received
//! ones. Only the holder of the progress lock uses it. The parts are in `send`, `receive` and
//! `connection_driver`.

// UNSAFETY: registers the slots of the slab.
#![expect(unsafe_code)]

use super::adapter::{AccessRights, Adapter, CompletionBatch, DmaBuffer, MemoryRegion, QueueSizes};
use super::bindings::{REQUEST_ERROR_STATUSES, WorkCompletion};
use super::connection::{Connection, ConnectionEvent};
use super::outgoing_queue::{MessageClass, QueueItem, QueuedMessage};
use super::peer::VerbsPeer;
use super::port_selection::SelectedPort;
use super::receive_buffers::{HEADER_LEN, SharedReceiveBuffers, window};
use super::regions::{ENTRY_LEN, VerbsRegions};
use crate::debug;
use crate::device::net_common::address_table::AddressTable;
use crate::device::net_common::endpoint_queues::{ControlMessage, EndpointQueues};
use crate::device::net_common::layout::CONTROL_QUEUE_LEN;
use crate::device::net_common::slab::Slab;
use crate::device::net_common::{self, EndpointIdentity, ProgressMode};
use crate::error::{Error, PmResult};
use crate::sync::Ordering;
use std::collections::VecDeque;
use std::io::Write;
use std::net::UdpSocket;
use std::sync::Arc;

/// Work requests of a queue pair that are reserved for other purposes than messages.
const RESERVED_WORK_REQUESTS: usize = 8;

/// The engine of one endpoint.
pub(crate) struct VerbsEngine {
    /// The peers are dropped before the resources that they use.
    pub(super) peers: Box<[VerbsPeer]>,
    pub(super) receive_buffers: SharedReceiveBuffers,
    /// The number of messages to one peer that may be in flight or unread.
    pub(super) window: u32,
    /// The largest number of work requests in flight to one peer.
    pub(super) max_in_flight: usize,
    /// The slots of this process.
    pub(super) frames: MemoryRegion<Arc<Slab>>,
    /// The first words, one for each peer, contain the number of this process's messages that the
    /// peer has consumed. The peer writes its word by RDMA. The next words, one for each peer,
    /// contain the number of the peer's messages that this process has consumed. RDMA writes send
    /// these words from here.
    pub(super) credits: MemoryRegion<Arc<DmaBuffer>>,
    pub(super) regions: Arc<VerbsRegions>,
    /// The memory into which a requested entry of a region table is read, for each node.
    pub(super) read_landings: MemoryRegion<Arc<DmaBuffer>>,
    pub(super) adapter: Arc<Adapter>,
    pub(super) socket: UdpSocket,
    pub(super) addresses: Arc<AddressTable>,
    pub(super) identity: EndpointIdentity,
    pub(super) local_index: usize,
    pub(super) slab: Arc<Slab>,
    /// Peers with a timer.
    pub(super) timer_peers: Vec<u32>,
    /// Peers to which messages or operations are in flight.
    pub(super) busy_peers: Vec<u32>,
    pub(super) outstanding: u64,
    /// Work requests in flight to all peers.
    pub(super) in_flight: usize,
    /// Whether the last pass delivered a message and left all other work to the next pass.
    is_deferred: bool,
    /// Remote memory operations in flight, by direction. `has_failed_rdma`: whether some have
    /// failed.
    pub(super) rdma_in_flight: [u64; 2],
    pub(super) has_failed_rdma: [bool; 2],
    /// The number of all remote memory operations that were refused.
    pub(super) refused_rdma_count: u64,
    /// Slots for control messages.
    pub(super) control_slots: Vec<u32>,
    pub(super) exited_seen: u64,
    pub(super) adapter_state: AdapterState,
    /// The time of the last check that the adapter exists.
    pub(super) adapter_checked_ns: u64,
    /// Whether the user was notified that the adapter has no more resources.
    pub(super) is_exhaustion_reported: bool,
    /// Control messages that are not read yet.
    pub(super) control_messages: VecDeque<ControlMessage>,
    /// Whether a message was delivered since the last query.
    pub(super) has_delivered: bool,
}

/// The state of the adapter, as far as its events have shown. The user was notified of each change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdapterState {
    Up,
    /// A port is down: messages wait.
    PortDown,
    /// The adapter was removed. This state is final.
    Removed,
}

/// Warns the user of an adapter's error that prevents opening a context.
pub(super) fn warn_no_memory(why: String) -> Error {
    debug::warn_user(&why);
    Error::NoMemory
}

impl VerbsEngine {
    /// Creates the engine and the resources of the adapter. NoMemory: the adapter or the kernel
    /// refuses a resource. A warning to the user names it.
    pub(super) fn new(
        chosen: &SelectedPort,
        identity: EndpointIdentity,
        socket: UdpSocket,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<VerbsEngine> {
        let geometry = *slab.geometry();
        let local_index =
            geometry.local_index(identity.self_node as usize).ok_or(Error::Invalid)?;
        let receive_buffers = SharedReceiveBuffers::new(geometry.nodes, geometry.mtu);
        let send_count = geometry.slots + geometry.nodes * RESERVED_WORK_REQUESTS;
        let adapter = Adapter::open(
            chosen,
            QueueSizes { receive_count: receive_buffers.buffer_count(), send_count },
        );
        let adapter = adapter.map_err(warn_no_memory)?;
        let first = slab.payload(local_index, 0);
        let last = slab.payload(local_index, geometry.slots - 1);
        let len = HEADER_LEN + (last.addr() - first.addr()) + geometry.mtu;
        let first_frame = first.wrapping_sub(HEADER_LEN);
        // SAFETY: frames of the slab, each with room before its payload.
        let frames = unsafe {
            MemoryRegion::new(&adapter, slab.clone(), first_frame, len, AccessRights::Local)
        };
        let frames = frames.map_err(|why| warn_no_memory(adapter.registration_error_text(&why)))?;
        let credits =
            MemoryRegion::allocate(&adapter, geometry.nodes * 16, AccessRights::RemoteWrite);
        let landings =
            MemoryRegion::allocate(&adapter, geometry.nodes * ENTRY_LEN, AccessRights::Local);
        let regions = Arc::new(VerbsRegions::new(&adapter).map_err(warn_no_memory)?);
        let control_slots = (geometry.slots - CONTROL_QUEUE_LEN) as u32..geometry.slots as u32;
        Ok(VerbsEngine {
            peers: (0..geometry.nodes).map(|_| VerbsPeer::default()).collect(),
            receive_buffers,
            window: window(geometry.nodes) as u32,
            max_in_flight: super::queue_pair::SEND_QUEUE_DEPTH.min(adapter.max_work_requests)
                - RESERVED_WORK_REQUESTS,
            frames,
            credits: credits.map_err(warn_no_memory)?,
            regions,
            read_landings: landings.map_err(warn_no_memory)?,
            adapter,
            socket,
            addresses,
            identity,
            local_index,
            slab,
            timer_peers: Vec::new(),
            busy_peers: Vec::new(),
            outstanding: 0,
            in_flight: 0,
            is_deferred: false,
            rdma_in_flight: [0; 2],
            has_failed_rdma: [false; 2],
            refused_rdma_count: 0,
            control_slots: control_slots.collect(),
            exited_seen: 0,
            adapter_state: AdapterState::Up,
            adapter_checked_ns: 0,
            is_exhaustion_reported: false,
            control_messages: VecDeque::new(),
            has_delivered: false,
        })
    }

    /// The words in which peers report what they have consumed.
    pub(super) fn credits(&self) -> Arc<DmaBuffer> {
        self.credits.memory.clone()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// Handles completions of sends.
    #[inline]
    fn poll_send_completions(&mut self, queues: &EndpointQueues) {
        loop {
            let mut batch = CompletionBatch::new();
            let Some(completions) = self.adapter.poll_sends(&mut batch) else {
                return self.on_adapter_lost();
            };
            for completion in completions {
                let (to, work) = ((completion.wr_id >> 32) as u32, completion.wr_id as u32);
                if !self.is_current_qp(completion.qp_num, to) {
                    continue;
                }
                if completion.status != 0 {
                    let (status, vendor_error) = (completion.status, completion.vendor_err);
                    if REQUEST_ERROR_STATUSES.contains(&status) {
                        self.on_work_refused(to, work);
                    }
                    self.on_qp_failed(
                        queues,
                        to,
                        &format!(
                            "a work request has failed with status {status} ({vendor_error:#x})"
                        ),
                    );
                    continue;
                }
                self.in_flight -= self.peers[to as usize].send_queue.complete_up_to(work);
                self.on_work_done(to, work);
                while let Some(item) = self.peers[to as usize].send_queue.pop_done() {
                    self.complete_item(queues, to, item, true);
                }
                self.transmit_more(queues, to);
            }
            if completions.len() < CompletionBatch::SIZE {
                return;
            }
        }
    }

    /// Whether this is the number of the queue pair to that peer.
    #[inline]
    pub(super) fn is_current_qp(&self, qp_number: u32, node: u32) -> bool {
        self.peers.get(node as usize).is_some_and(|peer| peer.qp_number == Some(qp_number))
    }

    /// Posts more items after room has become free.
    #[inline]
    fn transmit_more(&mut self, queues: &EndpointQueues, to: u32) {
        if self.peers[to as usize].send_queue.next_to_post().is_some() {
            self.transmit(queues, to);
        }
    }

    /// Ends an item that is done or was dropped.
    pub(super) fn complete_item(
        &mut self,
        queues: &EndpointQueues,
        to: u32,
        item: QueueItem,
        is_done: bool,
    ) {
        match item {
            QueueItem::Message(message) => self.free_slot(queues, to, message),
            QueueItem::Rdma(operation) => self.finish_rdma(to, &operation, is_done),
        }
    }

    #[inline(always)]
    fn free_slot(&mut self, queues: &EndpointQueues, to: u32, message: QueuedMessage) {
        self.outstanding -= 1;
        self.slab.free(self.local_index, message.slot as usize);
        if message.kind == MessageClass::Control {
            return self.control_slots.push(message.slot);
        }
        if let Some(peer) = queues.peers.get(to) {
            peer.freed_count.set(peer.freed_count.get().wrapping_add(1));
        }
        queues.freed.push(u64::from(message.slot));
    }

    /// Requests a completion for the last work request of each peer, if that request is not
    /// signalled.
    #[cold]
    fn request_completions(&mut self, queues: &EndpointQueues) {
        let mut busy_peers = std::mem::take(&mut self.busy_peers);
        busy_peers.retain(|&to| {
            if self.peers[to as usize].send_queue.is_last_unsignalled() {
                self.write_word(queues, to, 0, 0);
            }
            let peer = &mut self.peers[to as usize];
            peer.is_busy = peer.send_queue.len() > 0;
            peer.is_busy
        });
        // A failure may have added peers to the list.
        busy_peers.append(&mut self.busy_peers);
        self.busy_peers = busy_peers;
    }

    /// Drops everything that is in flight to nodes that the owner has marked as exited.
    #[cold]
    fn check_exited_peers(&mut self, queues: &EndpointQueues) {
        self.exited_seen = self.slab.exited_count().load(Ordering::Acquire);
        for node in 0..self.peers.len() as u32 {
            if node != self.identity.self_node && self.slab.is_exited(node as usize) {
                self.dispatch_event(queues, node, ConnectionEvent::PeerExited);
                self.drop_queued(queues, node);
            }
        }
    }

    /// Drops the messages that an exited peer has not taken, and counts them as received. If the
    /// peer was on this host, its count of accepted messages is still in the slab.
    #[cold]
    pub(super) fn drop_queued(&mut self, queues: &EndpointQueues, node: u32) {
        let mut dropped_count = 0u32;
        while let Some(item) = self.peers[node as usize].send_queue.pop_first() {
            let is_data =
                matches!(item, QueueItem::Message(QueuedMessage { kind: MessageClass::Data, .. }));
            dropped_count += u32::from(is_data);
            self.complete_item(queues, node, item, false);
        }
        let self_node = self.identity.self_node as usize;
        let sent = self.peers[node as usize].sent[0];
        if let Some(peer_index) = self.slab.geometry().local_index(node as usize) {
            let accepted = self.slab.accepted(peer_index, self_node);
            // The swap makes all messages count as accepted, so that this happens only once.
            let accepted_before = accepted.swap(u64::from(sent), Ordering::AcqRel) as u32;
            dropped_count = sent.wrapping_sub(accepted_before);
        }
        let drop_counter = &self.slab.record(self.local_index).node.send.0.dropped;
        drop_counter.fetch_add(dropped_count.into(), Ordering::Release);
    }

    /// Destroys all queue pairs, so that no more messages are received.
    pub(super) fn close(&mut self) {
        for peer in &mut self.peers {
            peer.connection = Connection::closed();
            peer.qp_number = None;
            peer.pair = None;
        }
    }
}

impl VerbsEngine {
    /// Whether a pass that has received no message would do nothing.
    #[inline(always)]
    fn has_nothing_to_do(&self, queues: &EndpointQueues) -> bool {
        let is_idle = !self.is_deferred
            && self.in_flight == 0
            && self.slab.exited_count().load(Ordering::Relaxed) == self.exited_seen;
        let is_empty = queues.submitted.is_empty() && queues.released.is_empty();
        is_idle && is_empty && self.slab.record(self.local_index).control_queue.is_empty()
    }

    /// Does the rest of a pass.
    #[inline(never)]
    fn finish_progress(&mut self, queues: &EndpointQueues, mode: ProgressMode) -> bool {
        self.is_deferred = false;
        if !queues.submitted.is_empty() {
            self.send_submitted(queues);
        }
        // With nothing in flight, a poll is only needed to detect failures of queue pairs from time
        // to time.
        if self.in_flight > 0 || mode == ProgressMode::All {
            self.poll_send_completions(queues);
        }
        self.repost_released(queues);
        if self.slab.exited_count().load(Ordering::Relaxed) != self.exited_seen {
            self.check_exited_peers(queues);
        }
        if !self.slab.record(self.local_index).control_queue.is_empty() {
            self.send_queued_control(queues);
        }
        if mode == ProgressMode::All {
            self.request_completions(queues);
            let in_flight = self.peers.iter().map(|peer| peer.send_queue.in_flight());
            debug_assert_eq!(self.in_flight, in_flight.sum::<usize>());
        }
        queues.outstanding.store(self.outstanding, Ordering::Release);
        std::mem::take(&mut self.has_delivered)
    }
}

impl net_common::Engine for VerbsEngine {
    #[inline(always)]
    fn progress(&mut self, queues: &EndpointQueues, mode: ProgressMode) -> bool {
        let mut batch = CompletionBatch::new();
        let completions: &[WorkCompletion] = match mode {
            ProgressMode::Send => &[],
            _ => match self.adapter.poll_receives(&mut batch) {
                Some(completions) => completions,
                None => {
                    self.on_adapter_lost();
                    &[]
                }
            },
        };
        // Most polls end here.
        if mode == ProgressMode::Receive && completions.is_empty() && self.has_nothing_to_do(queues)
        {
            return false;
        }
        self.deliver_completions(queues, completions);
        // Returns at once, so that the receiver gets its message. The next pass does the rest.
        if mode == ProgressMode::Receive && self.has_delivered && !self.is_deferred {
            self.is_deferred = true;
            return std::mem::take(&mut self.has_delivered);
        }
        self.finish_progress(queues, mode)
    }

    fn control_message_count(&self) -> usize {
        self.control_messages.len()
    }

    fn send_control(&mut self, queues: &EndpointQueues, to: u32, message: &[u8]) -> PmResult<()> {
        self.send_control_message(queues, to, message)
    }

    fn receive_control<T>(
        &mut self,
        queues: &EndpointQueues,
        read: impl FnOnce(&ControlMessage) -> PmResult<T>,
    ) -> PmResult<T> {
        let control_message = self.control_messages.front().ok_or(Error::NoBuffers)?;
        let from = control_message.from;
        let result = read(control_message)?;
        self.control_messages.pop_front();
        let consumed = &mut self.peers[from as usize].consumed[1];
        *consumed = consumed.wrapping_add(1);
        self.send_credits(queues, from);
        Ok(result)
    }

    fn dump(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        let name = &self.adapter.chosen.adapter;
        let suffix = if self.adapter_state == AdapterState::Removed { " (removed)" } else { "" };
        let refused_count = self.refused_rdma_count;
        let refused_text =
            if refused_count > 0 { format!(", {refused_count} refused") } else { String::new() };
        writeln!(out, "  adapter {name}{suffix}: {} in flight{refused_text}", self.outstanding)?;
        for (node, peer) in self.peers.iter().enumerate().filter(|(_, peer)| peer.pair.is_some()) {
            let [data, _] = peer.consumed;
            let (sent, in_flight) = (peer.sent[0], peer.send_queue.len());
            let connection = &peer.connection;
            writeln!(
                out,
                "  node {node}: sent {sent}, {in_flight} in flight, consumed {data}; {connection:?}"
            )?;
        }
        Ok(())
    }
}
