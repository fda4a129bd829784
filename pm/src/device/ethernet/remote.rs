//! Remote memory: an operation is handed to whoever makes progress, who copies and sends its bytes
//! (`pump.rs`). The target's process needs not call anything: its progress thread does the same.

#![forbid(unsafe_code)]

use super::engine::Pass;
use super::transfers::{self, OPERATIONS};
use super::{Endpoint, lanes};
use crate::config::{OPT_REMOTE_READ, OPT_REMOTE_WRITE, RMA_MTU};
use crate::debug;
use crate::error::{Error, Result};
use crate::remote::{AddrHandle, Direction, Number, Operation, Region};
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
    /// Invalid: no such node, or the own one.
    pub(crate) fn check_peer(&self, node: u32) -> Result<()> {
        let known = (node as usize) < self.nodes() && node != self.own;
        if known { Ok(()) } else { Err(Error::Invalid) }
    }

    pub(crate) fn publish_region(&self, region: &Region) {
        self.lanes.remote.publish(region);
    }

    pub(crate) fn withdraw_region(&self, number: Number) {
        self.lanes.remote.withdraw(number);
    }

    pub(crate) fn remote(&self, node: u32, operation: &Operation) -> Result<()> {
        let Operation { direction, remote, local, len, .. } = *operation;
        self.check_peer(node)?;
        if len == 0 || len > RMA_MTU {
            return Err(Error::Invalid);
        }
        // What the handle names there is known there alone, but no region is longer than this.
        if remote.number() == 0 || remote.offset() + len as u64 > AddrHandle::REACH as u64 {
            return Err(Error::Invalid);
        }
        let address = self.lanes.remote.find(local, len)?;
        let peer = self.lanes.peers.get(node).ok_or(Error::Invalid)?;
        if peer.mtu.get() == 0 {
            self.meet(node, peer)?;
        }
        if self.is_gone(node) {
            self.lanes.remote.fail(direction);
            debug::say(debug::ERROR, || {
                format!("ethernet: a remote operation has failed: node {node} has exited")
            });
            return Ok(());
        }
        if !peer.begin() {
            self.poll(Pass::All);
            if !peer.begin() {
                return Err(Error::NoBuffers);
            }
        }
        // Before anybody could see that it is done.
        self.record().node.send.0.remote.fetch_add(1, Ordering::AcqRel);
        let operation = transfers::Operation { direction, remote, local, address, len };
        self.lanes.remote.put(node, operation);
        self.serve(Pass::Send);
        Ok(())
    }

    pub(crate) fn is_remote_done(&self, direction: Direction) -> Result<()> {
        if self.lanes.remote.pending(direction) > 0 {
            self.poll(Pass::All);
        }
        self.lanes.remote.is_done(direction)
    }
}
