//! Remote memory access. A call queues an operation for the engine, which copies and sends its
//! bytes (`rma_data.rs`). The target process need not call any function, because its progress
//! thread runs its engine.

#![forbid(unsafe_code)]

use super::rma_protocol::{self, MAX_OPERATIONS};
use super::{Ethernet, EthernetEndpoint};
use crate::config::{OPT_REMOTE_READ, OPT_REMOTE_WRITE, RMA_MTU};
use crate::debug;
use crate::device::net_common::{NetworkDevice, ProgressMode, endpoint_queues};
use crate::device::{Endpoint, RmaInterface};
use crate::error::{Error, PmResult};
use crate::rma::{AddrHandle, Direction, Region, RegionId, RemoteStatus, RmaOperation};
use crate::sync::Ordering;

/// The device supports both directions.
pub(crate) const OPTIONS: u64 = OPT_REMOTE_READ | OPT_REMOTE_WRITE;

impl endpoint_queues::PeerSendState {
    /// Counts one more operation on this peer. Returns false if the maximum number is pending.
    fn try_begin_operation(&self) -> bool {
        let one_more = |count| (count < MAX_OPERATIONS as u64).then_some(count + 1);
        let (success_order, failure_order) = (Ordering::AcqRel, Ordering::Relaxed);
        self.pending_operations.fetch_update(success_order, failure_order, one_more).is_ok()
    }
}

impl RmaInterface for EthernetEndpoint {
    fn options(&self) -> u64 {
        OPTIONS
    }

    fn publish_region(&self, region: &Region) -> PmResult<()> {
        self.net.rma_requests.publish(region);
        Ok(())
    }

    fn withdraw_region(&self, number: RegionId) {
        // Taking the lock waits for a copy that is in progress. Bytes of frames that are still in
        // user memory are copied to the slab before the region is withdrawn.
        let mut engine = self.progress_lock.lock();
        engine.copy_back_all(None);
        self.net.rma_requests.withdraw(number);
    }

    fn start_rma(&self, node: u32, operation: &RmaOperation) -> PmResult<()> {
        let RmaOperation { direction, remote, local, len, .. } = *operation;
        self.check_peer(node)?;
        if len == 0 || len > RMA_MTU {
            return Err(Error::Invalid);
        }
        // Only the target can look up the region of the handle, but the length of a region has a
        // limit.
        if remote.region_bits() == 0
            || remote.offset() + len as u64 > AddrHandle::MAX_REGION_LEN as u64
        {
            return Err(Error::Invalid);
        }
        let address = self.net.rma_requests.find(local, len)?;
        let peer = self.peer(node)?;
        if self.is_exited(node) {
            self.net.rma_requests.count_failed(node, direction);
            debug::log(debug::ERROR, || {
                format!("ethernet: a remote operation has failed: node {node} has exited")
            });
            return Ok(());
        }
        if !peer.try_begin_operation() {
            Ethernet::poll(self, ProgressMode::All);
            if !peer.try_begin_operation() {
                return Err(Error::NoBuffers);
            }
        }
        // The operation is counted before it can complete.
        self.record().node.send.0.pending_rma.fetch_add(1, Ordering::AcqRel);
        let operation = rma_protocol::LocalOperation { direction, remote, local, address, len };
        self.net.rma_requests.push(node, operation);
        self.serve(ProgressMode::Send);
        Ok(())
    }

    fn is_remote_done(&self, direction: Direction) -> PmResult<()> {
        if self.net.rma_requests.pending(direction) > 0 {
            Ethernet::poll(self, ProgressMode::All);
        }
        self.net.rma_requests.is_done(direction)
    }

    fn remote_status(&self, node: u32) -> PmResult<RemoteStatus> {
        self.check_peer(node)?;
        if self.net.rma_requests.is_busy() {
            Ethernet::poll(self, ProgressMode::All);
        }
        Ok(self.net.rma_requests.report(node))
    }
}
