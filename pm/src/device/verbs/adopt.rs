//! What the owner does for processes that have ended: the adapter has given their queue pairs up,
//! but what they had sent and nobody has acknowledged still lies in the slab. The owner meets their
//! peers in their place, as if a queue pair had failed, and sends it.

#![forbid(unsafe_code)]

use super::arrivals;
use super::engine::Engine;
use super::flow::{Kind, Outgoing};
use crate::device::network::lanes::Lanes;
use crate::device::network::layout::Published;
use crate::device::network::{self, Engine as _, Pass};
use score_proto::wire;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Between two looks at what the adapter has done.
const LOOK: Duration = Duration::from_millis(2);

/// A process that has ended.
pub(crate) struct Orphan {
    engine: Engine,
    lanes: Lanes,
}

impl Orphan {
    /// Takes over the dead process's slots.
    pub(super) fn adopt(mut engine: Engine) -> Orphan {
        let geometry = *engine.slab.geometry();
        let lanes = Lanes::new(&geometry, arrivals::entries(geometry.nodes));
        engine.resume(&lanes);
        Orphan { engine, lanes }
    }
}

impl network::Orphan for Orphan {
    fn serve(&mut self) -> Option<Duration> {
        self.engine.attend(&self.lanes);
        self.engine.pass(&self.lanes, Pass::All);
        (!self.is_quiet()).then_some(LOOK)
    }

    /// All that it had sent has arrived, or its receivers or the adapter have gone.
    fn is_quiet(&self) -> bool {
        self.engine.is_quiet() || self.engine.is_broken
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.engine.socket.as_fd()]
    }
}

impl Engine {
    /// Takes over what a process that has ended has left in its slots.
    fn resume(&mut self, lanes: &Lanes) {
        let geometry = *self.slab.geometry();
        let mut left: Vec<(u32, Outgoing)> = Vec::new();
        for slot in 0..geometry.slots {
            let Some(content) = self.slab.content(self.place, slot) else { continue };
            let Published { len, kind, .. } = content.published;
            let known = (content.to as usize) < geometry.nodes && content.to != self.identity.own;
            if !known || !(1..=geometry.mtu).contains(&len) {
                self.slab.free(self.place, slot);
                continue;
            }
            let control = kind == wire::Kind::Control;
            let kind = if control { Kind::Control } else { Kind::Data };
            let (slot, sequence) = (slot as u32, content.sequence.unwrap_or(0));
            left.push((content.to, Outgoing { slot, len: len as u32, kind, sequence }));
        }
        left.sort_by(|(to, a), (to_b, b)| {
            let apart = b.sequence.wrapping_sub(a.sequence) as i32;
            to.cmp(to_b).then((a.kind as u32).cmp(&(b.kind as u32))).then(0.cmp(&apart))
        });
        for (to, message) in left {
            self.peers[to as usize].sent[message.kind as usize] = message.sequence.wrapping_add(1);
            self.enqueue(to, message);
            self.transmit(lanes, to);
        }
    }
}
