//! What the owner does for processes that have ended: it brings home what they have sent, and
//! tells those who still send to them how far they had come. It runs the same machine, over
//! duplicates of the dead process's sockets, from what lies in the slab.

#![forbid(unsafe_code)]

use super::addresses::Addresses;
use super::engine::{Engine, Identity, Pass};
use super::lanes::Lanes;
use super::pool;
use super::slab::Slab;
use super::wire::{self, Wire};
use crate::error::Result;
use crate::sync::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// A process that has ended.
pub(super) struct Orphan {
    engine: Engine,
    lanes: Lanes,
}

impl Orphan {
    /// Takes over the dead process's sockets and slots.
    pub(super) fn adopt(
        identity: Identity,
        links: Vec<wire::Endpoint>,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Orphan> {
        let geometry = *slab.geometry();
        let mut engine = Engine::new(identity, links, addresses, slab)?;
        engine.resume();
        let lanes = Lanes::new(&geometry, pool::buffers(geometry.mtu));
        Ok(Orphan { engine, lanes })
    }

    /// Makes progress. None: nothing more is to be done before something comes.
    pub(super) fn serve(&mut self) -> Option<Duration> {
        self.engine.pass(&self.lanes, Pass::All);
        self.engine.tell();
        self.engine.wait().map(Duration::from_nanos)
    }

    /// Whether all that it had sent has been acknowledged, or its receivers have gone.
    pub(super) fn is_quiet(&self) -> bool {
        self.engine.machine.is_done()
    }

    pub(super) fn wires(&self) -> &[Wire] {
        &self.engine.links.wires
    }
}

/// After the process at `place` has ended: what it had accepted and never read counts as
/// received.
pub(super) fn count_unread(slab: &Slab, place: usize) {
    let record = slab.record(place);
    let arrived = record.arrived.0.load(Ordering::Acquire);
    record.node.receive.0.received.fetch_max(arrived, Ordering::AcqRel);
}
