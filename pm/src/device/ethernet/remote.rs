//! Remote memory: an operation is handed to whoever makes progress, who copies and sends its bytes
//! (`pump.rs`). The target's process needs not call anything: its progress thread does the same.

#![forbid(unsafe_code)]

use super::transfers::{self, OPERATIONS};
use super::{Endpoint, Ethernet};
use crate::config::{OPT_REMOTE_READ, OPT_REMOTE_WRITE, RMA_MTU};
use crate::debug;
use crate::device::network::{Network, Pass, lanes};
use crate::error::{Error, Result};
use crate::remote::{AddrHandle, Operation};
use crate::sync::Ordering;

/// Both directions.
pub(crate) const OPTIONS: u64 = OPT_REMOTE_READ | OPT_REMOTE_WRITE;

impl lanes::Peer {
    /// One more operation on it; false: there are as many as may be.
    fn begin(&self) -> bool {
        let one_more = |count| (count < OPERATIONS as u64).then_some(count + 1);
        let (done, seen) = (Ordering::AcqRel, Ordering::Relaxed);
        self.operations.fetch_update(done, seen, one_more).is_ok()
    }
}

impl Endpoint {
    /// Begins with an operation.
    pub(super) fn begin(&self, node: u32, operation: &Operation) -> Result<()> {
        let Operation { direction, remote, local, len, .. } = *operation;
        self.check_peer(node)?;
        if len == 0 || len > RMA_MTU {
            return Err(Error::Invalid);
        }
        // What the handle names there is known there alone, but no region is longer than this.
        if remote.number() == 0 || remote.offset() + len as u64 > AddrHandle::REACH as u64 {
            return Err(Error::Invalid);
        }
        let address = self.net.desk.find(local, len)?;
        let peer = self.peer(node)?;
        if self.is_gone(node) {
            self.net.desk.fail(direction);
            debug::say(debug::ERROR, || {
                format!("ethernet: a remote operation has failed: node {node} has exited")
            });
            return Ok(());
        }
        if !peer.begin() {
            Ethernet::poll(self, Pass::All);
            if !peer.begin() {
                return Err(Error::NoBuffers);
            }
        }
        // Before anybody could see that it is done.
        self.record().node.send.0.remote.fetch_add(1, Ordering::AcqRel);
        let operation = transfers::Operation { direction, remote, local, address, len };
        self.net.desk.put(node, operation);
        self.serve(Pass::Send);
        Ok(())
    }
}
