//! Remote memory access: RDMA writes and reads, in order with each other and with later messages.
//! The origin reads the entry of a region in its peer's table once, and keeps it.

// UNSAFETY: the adapter reads and writes pinned memory.
#![expect(unsafe_code)]

use super::bindings::Sge;
use super::engine::VerbsEngine;
use super::outgoing_queue::{QueueItem, RdmaOperation, is_before};
use super::queue_pair::{Opcode, WorkRequest};
use super::regions::{ENTRY_LEN, RemoteRegion, entry_addr};
use super::{Verbs, VerbsEndpoint};
use crate::config::{OPT_REMOTE_READ, OPT_REMOTE_WRITE, RMA_MTU};
use crate::debug;
use crate::device::net_common::endpoint_queues::EndpointQueues;
use crate::device::net_common::{Engine as _, NetworkDevice, ProgressMode};
use crate::device::{Endpoint, RmaInterface};
use crate::error::{Error, PmResult};
use crate::rma::{Direction, Outcome, Region, RegionId, RemoteStatus, RmaOperation};
use crate::sync::Ordering;

/// Remote memory access in both directions.
pub(crate) const OPTIONS: u64 = OPT_REMOTE_WRITE | OPT_REMOTE_READ;
/// The largest number of operations to one peer that are not done.
const MAX_OPERATIONS: usize = 128;
/// The largest length of one work request. The limits of adapters are between a few MiB and a few
/// GiB.
const MAX_RDMA_LEN: usize = 1 << 20;

impl RmaInterface for VerbsEndpoint {
    fn options(&self) -> u64 {
        OPTIONS
    }

    fn publish_region(&self, region: &Region) -> PmResult<()> {
        self.net.regions.publish(region)
    }

    fn withdraw_region(&self, number: RegionId) {
        self.net.regions.withdraw(number);
    }

    /// A bad remote handle is reported at completion. Io: the adapter was removed.
    fn start_rma(&self, node: u32, operation: &RmaOperation) -> PmResult<()> {
        self.check_peer(node)?;
        let RmaOperation { direction, remote: remote_handle, local: local_handle, len, .. } =
            *operation;
        if len == 0 || len > RMA_MTU || remote_handle.region_bits() == 0 {
            return Err(Error::Invalid);
        }
        let local_memory =
            self.net.regions.find(local_handle, len, direction == Direction::Read)?;
        if self.is_broken() {
            return Err(Error::Io);
        }
        let rdma = RdmaOperation::new(direction, local_memory, remote_handle, len);
        let result = self.progress_lock.lock().begin_rdma(&self.queues, node, rdma);
        // Serves requests of threads that found the engine locked.
        self.serve(ProgressMode::Send);
        result
    }

    /// Io: some operations have failed, or the adapter was removed.
    fn is_remote_done(&self, direction: Direction) -> PmResult<()> {
        Verbs::poll_blocking(self);
        let (in_flight, failed) = self.progress_lock.lock().take_rdma_outcome(direction);
        if failed {
            return Err(Error::Io);
        }
        match in_flight {
            0 => Ok(()),
            _ if self.is_broken() => Err(Error::Io),
            _ => Err(Error::Busy),
        }
    }

    /// If the adapter was removed, all operations in flight have failed.
    fn remote_status(&self, node: u32) -> PmResult<RemoteStatus> {
        self.check_peer(node)?;
        Verbs::poll_blocking(self);
        let mut engine = self.progress_lock.lock();
        let operations = &mut engine.peers[node].operations;
        if self.is_broken() {
            operations.fail_all();
        }
        Ok(operations.report())
    }
}

impl VerbsEngine {
    /// Starts an operation. NoBuffers: [`MAX_OPERATIONS`] operations to that peer are in flight.
    fn begin_rdma(
        &mut self,
        queues: &EndpointQueues,
        node: u32,
        mut operation: RdmaOperation,
    ) -> PmResult<()> {
        // Submitted messages go first.
        self.progress(queues, ProgressMode::Send);
        let has_exited = self.slab.is_exited(node);
        let peer = &mut self.peers[node];
        if !has_exited && peer.send_queue.rdma_count() >= MAX_OPERATIONS {
            return Err(Error::NoBuffers);
        }
        operation.number = peer.operations.start();
        if has_exited {
            self.report_failed_rdma(node, &operation, "the node has exited");
            return Ok(());
        }
        self.rdma_counts.begin(operation.direction);
        self.publish_rdma_count();
        self.peers.queue(node, QueueItem::Rdma(operation));
        self.transmit(queues, node);
        Ok(())
    }

    /// Returns the number of operations in flight, and whether any has failed since the last call.
    fn take_rdma_outcome(&mut self, direction: Direction) -> (u64, bool) {
        let failed = self.rdma_counts.take_failure(direction);
        (self.rdma_counts.in_flight(direction), failed)
    }

    /// Publishes the number of operations in flight, for deadlock detection.
    fn publish_rdma_count(&self) {
        let in_flight = &self.slab.record().node.send.0.pending_rma;
        in_flight.store(self.rdma_counts.all_in_flight(), Ordering::Release);
    }

    /// Posts the next operation, or a part of it. False: it has to wait.
    pub(super) fn post_rdma(
        &mut self,
        queues: &EndpointQueues,
        to: u32,
        operation: RdmaOperation,
    ) -> bool {
        let number = operation.remote_handle.region_bits();
        let Some(region) = self.peers[to].remote_regions.get(&number).copied() else {
            return self.request_region_entry(queues, to, number);
        };
        // The whole operation is checked, so that an operation that does not fit changes no memory.
        if region.addr_of(operation.remote_handle.offset(), operation.len).is_none() {
            self.refuse_next_rdma(to, "the handle is out of range");
            return true;
        }
        let offset = operation.remote_handle.offset() + operation.posted_len as u64;
        let len = (operation.len - operation.posted_len).min(MAX_RDMA_LEN);
        let (Some(addr), Some(local_addr)) = (
            region.addr_of(offset, len),
            operation.local_memory.0.checked_add(operation.posted_len as u64),
        ) else {
            return false;
        };
        let opcode = match operation.direction {
            Direction::Write => Opcode::Write(addr, region.rkey),
            Direction::Read => Opcode::Read(addr, region.rkey),
        };
        let sge = Sge { addr: local_addr, length: len as u32, lkey: operation.local_memory.1 };
        let Some(work_number) = self.post_work(queues, to, opcode, sge) else { return false };
        self.peers[to].send_queue.on_part_posted(work_number, len);
        true
    }

    /// Posts work, and returns its number. None: the queue pair has failed and is replaced.
    fn post_work(
        &mut self,
        queues: &EndpointQueues,
        to: u32,
        opcode: Opcode,
        sge: Sge,
    ) -> Option<u32> {
        let is_read = matches!(opcode, Opcode::Read(..));
        let (peer, number, signalled) = self.peers.begin_work(to, is_read);
        let id = u64::from(to) << 32 | u64::from(number);
        let work = WorkRequest { id, opcode, sge, is_signalled: signalled };
        // SAFETY: registered memory, pinned as long as its registration lasts. Inline data is read
        // now, and the caller has locked it.
        if !unsafe { peer.pair.as_ref()?.send(work) } {
            self.on_qp_failed(queues, to, "the queue pair accepts no work request");
            return None;
        }
        Some(number)
    }

    /// Reads the entry of a region in the peer's table. At most one such read to a peer is in
    /// flight. Always returns false: the operation has to wait.
    fn request_region_entry(&mut self, queues: &EndpointQueues, to: u32, number: u32) -> bool {
        let peer = &self.peers[to];
        if peer.pending_entry_read.is_some() {
            return false;
        }
        let (table, table_key) = peer.region_table;
        let landing =
            self.read_landings.memory.addr(to as usize * ENTRY_LEN, ENTRY_LEN).addr() as u64;
        let sge = Sge { addr: landing, length: ENTRY_LEN as u32, lkey: self.read_landings.lkey };
        let opcode = Opcode::Read(entry_addr(table, number), table_key);
        if let Some(work_number) = self.post_work(queues, to, opcode, sge) {
            self.peers[to].pending_entry_read = Some((work_number, number));
        }
        false
    }

    /// All work requests up to this number are done. If one of them has read a requested entry,
    /// this function takes the entry.
    #[inline]
    pub(super) fn on_work_done(&mut self, to: u32, done_work: u32) {
        let Some((entry_read, number)) = self.peers[to].pending_entry_read else { return };
        if is_before(done_work, entry_read) {
            return;
        }
        let word = |index: usize| {
            let word = self.read_landings.memory.word(to as usize * ENTRY_LEN / 8 + index);
            word.load(Ordering::Acquire)
        };
        let found_region = RemoteRegion::parse([word(0), word(1), word(2), word(3)], number);
        let peer = &mut self.peers[to];
        peer.pending_entry_read = None;
        match found_region {
            Some(remote_region) => drop(peer.remote_regions.insert(number, remote_region)),
            None => self.refuse_next_rdma(to, "no such region is locked"),
        }
    }

    fn refuse_next_rdma(&mut self, to: u32, why: &str) {
        if let Some(operation) = self.peers[to].send_queue.remove_refused() {
            self.abandon_rdma(to, &operation, why);
        }
    }

    /// Ends an operation that will never be done.
    pub(super) fn abandon_rdma(&mut self, to: u32, operation: &RdmaOperation, why: &str) {
        self.rdma_counts.end_refused(operation.direction);
        self.publish_rdma_count();
        self.report_failed_rdma(to, operation, why);
    }

    /// Handles a work request that the local or the remote adapter has refused. Only the operation
    /// of this request has failed.
    pub(super) fn on_work_refused(&mut self, to: u32, failed_work: u32) {
        let peer = &mut self.peers[to];
        if peer.pending_entry_read.is_some_and(|(work, _)| work == failed_work) {
            return self.refuse_next_rdma(to, "the table of regions cannot be read");
        }
        if let Some(operation) = peer.send_queue.remove_failed(failed_work) {
            peer.remote_regions.remove(&operation.remote_handle.region_bits());
            self.abandon_rdma(to, &operation, "the memory cannot be reached");
        }
    }

    fn report_failed_rdma(&mut self, node: u32, operation: &RdmaOperation, why: &str) {
        self.rdma_counts.note_failure(operation.direction);
        self.peers[node].operations.end(operation.number, Outcome::Failed);
        debug::log(debug::ERROR, || {
            let verb = if operation.direction == Direction::Write { "write" } else { "read" };
            format!("verbs: a remote {verb} on node {node} has failed: {why}")
        });
    }

    /// Ends an operation. If `is_done` is false, the operation will never be done, because the peer
    /// has exited.
    pub(super) fn finish_rdma(&mut self, node: u32, operation: &RdmaOperation, is_done: bool) {
        self.rdma_counts.end(operation.direction);
        self.publish_rdma_count();
        if !is_done {
            return self.report_failed_rdma(node, operation, "the node has exited");
        }
        self.peers[node].operations.end(operation.number, Outcome::Done);
        let moved_bytes = &self.slab.record().node.send.0.rma_bytes[operation.direction as usize];
        moved_bytes.fetch_add(operation.len as u64, Ordering::Relaxed);
    }
}
