//! Progress. The engine posts submitted messages, takes back completed ones, and delivers received
//! ones. Only the holder of the progress lock uses it. The parts are in `send`, `receive` and
//! `connection_driver`.

// UNSAFETY: registers the slots of the slab.
#![expect(unsafe_code)]

use super::adapter::{AccessRights, Adapter, CompletionBatch, DmaBuffer, MemoryRegion, QueueSizes};
use super::adapter_status::AdapterStatus;
use super::bindings::{REQUEST_ERROR_STATUSES, WorkCompletion};
use super::connection::ConnectionEvent;
use super::credits::Credits;
use super::hello_socket::HelloSocket;
use super::outgoing_queue::{MessageClass, QueueItem, QueuedMessage};
use super::peer_table::{RESERVED_WORK_REQUESTS, VerbsPeerTable};
use super::port_selection::SelectedPort;
use super::queue_pair::SEND_QUEUE_DEPTH;
use super::rdma_counts::RdmaCounts;
use super::receive_buffers::{HEADER_LEN, SharedReceiveBuffers};
use super::regions::{ENTRY_LEN, VerbsRegions};
use crate::debug;
use crate::device::net_common::address_table::AddressTable;
use crate::device::net_common::control_messages::ControlMessages;
use crate::device::net_common::endpoint_queues::{ControlMessage, EndpointQueues};
use crate::device::net_common::indices::SlotIndex;
use crate::device::net_common::node_slab::NodeSlab;
use crate::device::net_common::slab::Slab;
use crate::device::net_common::{self, EndpointIdentity, ProgressMode};
use crate::error::{Error, PmResult};
use crate::sync::Ordering;
use std::io::Write;
use std::net::UdpSocket;
use std::sync::Arc;

/// The engine of one endpoint.
pub(crate) struct VerbsEngine {
    /// The peers are dropped before the resources that they use.
    pub(super) peers: VerbsPeerTable,
    pub(super) receive_buffers: SharedReceiveBuffers,
    pub(super) credits: Credits,
    /// The slots of this process.
    pub(super) frames: MemoryRegion<Arc<Slab>>,
    pub(super) regions: Arc<VerbsRegions>,
    /// The memory into which a requested entry of a region table is read, for each node.
    pub(super) read_landings: MemoryRegion<Arc<DmaBuffer>>,
    pub(super) adapter: Arc<Adapter>,
    pub(super) adapter_status: AdapterStatus,
    pub(super) hello_socket: HelloSocket,
    pub(super) self_node: u32,
    pub(super) slab: NodeSlab,
    /// The number of messages that are not done.
    pub(super) outstanding: u64,
    pub(super) rdma_counts: RdmaCounts,
    pub(super) control_messages: ControlMessages<()>,
    /// Whether the last pass delivered a message and left all other work to the next pass.
    is_deferred: bool,
    /// Whether a message was delivered since the last query.
    pub(super) has_delivered: bool,
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
        let slab = NodeSlab::new(slab, identity.self_node)?;
        let geometry = *slab.geometry();
        let nodes = geometry.nodes as usize;
        let receive_buffers = SharedReceiveBuffers::new(nodes, geometry.mtu);
        let send_count = geometry.slots + nodes * RESERVED_WORK_REQUESTS;
        let adapter = Adapter::open(
            chosen,
            QueueSizes { receive_count: receive_buffers.buffer_count(), send_count },
        );
        let adapter = adapter.map_err(warn_no_memory)?;
        let first = slab.payload(SlotIndex(0));
        let last = slab.payload(SlotIndex(geometry.slots as u32 - 1));
        let len = HEADER_LEN + (last.addr() - first.addr()) + geometry.mtu;
        let first_frame = first.wrapping_sub(HEADER_LEN);
        let memory = slab.slab().clone();
        // SAFETY: frames of the slab, each with room before its payload.
        let frames =
            unsafe { MemoryRegion::new(&adapter, memory, first_frame, len, AccessRights::Local) };
        let frames = frames.map_err(|why| warn_no_memory(adapter.registration_error_text(&why)))?;
        let credits = Credits::new(&adapter, nodes).map_err(warn_no_memory)?;
        let landings = MemoryRegion::allocate(&adapter, nodes * ENTRY_LEN, AccessRights::Local);
        let regions = Arc::new(VerbsRegions::new(&adapter).map_err(warn_no_memory)?);
        let queue_depth = SEND_QUEUE_DEPTH.min(adapter.max_work_requests);
        Ok(VerbsEngine {
            peers: VerbsPeerTable::new(nodes, queue_depth),
            receive_buffers,
            credits,
            frames,
            regions,
            read_landings: landings.map_err(warn_no_memory)?,
            adapter,
            adapter_status: AdapterStatus::new(),
            hello_socket: HelloSocket::new(socket, addresses, identity),
            self_node: identity.self_node,
            slab,
            outstanding: 0,
            rdma_counts: RdmaCounts::default(),
            control_messages: ControlMessages::new(&geometry),
            is_deferred: false,
            has_delivered: false,
        })
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
                self.peers.complete_up_to(to, work);
                self.on_work_done(to, work);
                while let Some(item) = self.peers[to].send_queue.pop_done() {
                    self.complete_item(queues, to, item, true);
                }
                if self.peers[to].has_unsent_report {
                    self.send_credits(queues, to);
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
        self.peers.get(node).is_some_and(|peer| peer.qp_number == Some(qp_number))
    }

    /// Posts more items after room has become free.
    #[inline]
    fn transmit_more(&mut self, queues: &EndpointQueues, to: u32) {
        if self.peers[to].send_queue.next_to_post().is_some() {
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
        self.slab.free(message.slot);
        if message.kind == MessageClass::Control {
            return self.control_messages.free_slot(message.slot);
        }
        if let Some(peer) = queues.peers.get(to) {
            peer.freed_count.set(peer.freed_count.get().wrapping_add(1));
        }
        queues.freed.push(message.slot);
    }

    /// Requests a completion for the last work request of each peer, if that request is not
    /// signalled.
    #[cold]
    fn request_completions(&mut self, queues: &EndpointQueues) {
        let busy_peers = self.peers.take_busy_peers();
        for &to in &busy_peers {
            if self.peers[to].send_queue.is_last_unsignalled() {
                let no_bytes = self.credits.no_bytes();
                self.write_word(queues, to, no_bytes);
            }
        }
        self.peers.put_back_busy_peers(busy_peers);
    }

    /// Drops everything that is in flight to nodes that the owner has marked as exited.
    #[cold]
    fn check_exited_peers(&mut self, queues: &EndpointQueues) {
        self.slab.note_exits();
        for node in 0..self.slab.geometry().nodes {
            if node != self.self_node && self.slab.is_exited(node) {
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
        while let Some(item) = self.peers[node].send_queue.pop_first() {
            let is_data =
                matches!(item, QueueItem::Message(QueuedMessage { kind: MessageClass::Data, .. }));
            dropped_count += u32::from(is_data);
            self.complete_item(queues, node, item, false);
        }
        let sent = self.peers[node].sent[0];
        if let Some(accepted) = self.slab.accepted_by(node) {
            // The swap makes all messages count as accepted, so that this happens only once.
            let accepted_before = accepted.swap(u64::from(sent), Ordering::AcqRel) as u32;
            dropped_count = sent.wrapping_sub(accepted_before);
        }
        self.slab.count_dropped(dropped_count.into());
    }

    /// Destroys all queue pairs, so that no more messages are received.
    pub(super) fn close(&mut self) {
        self.peers.close();
    }
}

impl VerbsEngine {
    /// Whether a pass that has received no message would do nothing.
    #[inline(always)]
    fn has_nothing_to_do(&self, queues: &EndpointQueues) -> bool {
        let is_idle =
            !self.is_deferred && !self.peers.has_work_in_flight() && !self.slab.has_new_exits();
        let is_empty = queues.submitted.is_empty() && queues.released.is_empty();
        is_idle && is_empty && self.slab.control_queue().is_empty()
    }

    /// Does the rest of a pass.
    #[inline(never)]
    fn finish_progress(&mut self, queues: &EndpointQueues, mode: ProgressMode) -> bool {
        self.is_deferred = false;
        if !queues.submitted.is_empty() {
            self.send_submitted(queues);
        }
        // If no work is in flight, a poll only detects failures of queue pairs, and need not be
        // frequent.
        if self.peers.has_work_in_flight() || mode == ProgressMode::All {
            self.poll_send_completions(queues);
        }
        self.repost_released(queues);
        if self.slab.has_new_exits() {
            self.check_exited_peers(queues);
        }
        if !self.slab.control_queue().is_empty() {
            self.send_queued_control(queues);
        }
        if mode == ProgressMode::All {
            self.request_completions(queues);
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
        // The receiver gets its message at once. The next pass does the rest of the work.
        if mode == ProgressMode::Receive && self.has_delivered && !self.is_deferred {
            self.is_deferred = true;
            return std::mem::take(&mut self.has_delivered);
        }
        self.finish_progress(queues, mode)
    }

    fn control_message_count(&self) -> usize {
        self.control_messages.unread_count()
    }

    fn send_control(&mut self, queues: &EndpointQueues, to: u32, message: &[u8]) -> PmResult<()> {
        self.send_control_message(queues, to, message)
    }

    fn receive_control<T>(
        &mut self,
        queues: &EndpointQueues,
        read: impl FnOnce(&ControlMessage) -> PmResult<T>,
    ) -> PmResult<T> {
        let (result, from, ()) = self.control_messages.read_next(read)?;
        let consumed = &mut self.peers[from].consumed[1];
        *consumed = consumed.wrapping_add(1);
        self.send_credits(queues, from);
        Ok(result)
    }

    fn dump(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        let name = &self.adapter.chosen.adapter;
        let suffix = if self.adapter_status.is_removed() { " (removed)" } else { "" };
        let refused_count = self.rdma_counts.refused();
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
