//! What the owner does for processes that have ended: the adapter has given their queue pairs up,
//! but what they had sent and nobody has acknowledged still lies in the slab. The owner meets their
//! peers in their place, as if a queue pair had failed, and sends it.

#![forbid(unsafe_code)]

use super::choice::Chosen;
use super::engine::{Engine, Identity, Pass};
use crate::device::ethernet::addresses::Addresses;
use crate::device::ethernet::lanes::Lanes;
use crate::device::ethernet::slab::Slab;
use crate::error::Result;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at what the adapter has done.
const LOOK: Duration = Duration::from_millis(2);

/// A process that has ended.
pub(super) struct Orphan {
    engine: Engine,
    lanes: Lanes,
}

impl Orphan {
    /// Takes over the dead process's address and slots.
    pub(super) fn adopt(
        chosen: &Chosen,
        identity: Identity,
        socket: UdpSocket,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Orphan> {
        let geometry = *slab.geometry();
        let lanes = Lanes::new(&geometry, super::arrivals::entries(geometry.nodes));
        let mut engine = Engine::new(chosen, identity, socket, addresses, slab)?;
        engine.resume(&lanes);
        Ok(Orphan { engine, lanes })
    }

    /// Makes progress. None: nothing more is to be done.
    pub(super) fn serve(&mut self) -> Option<Duration> {
        self.engine.attend(&self.lanes);
        self.engine.pass(&self.lanes, Pass::All);
        (!self.is_quiet()).then_some(LOOK)
    }

    /// Whether all that it had sent has arrived, or its receivers or the adapter have gone.
    pub(super) fn is_quiet(&self) -> bool {
        self.engine.is_quiet() || self.engine.is_broken
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.engine.socket.as_fd()
    }
}
