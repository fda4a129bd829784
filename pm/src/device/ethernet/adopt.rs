//! What the owner does for processes that have ended: it brings home what they have sent, and
//! tells those who still send to them how far they had come. It runs the same machine, over
//! duplicates of the dead process's sockets, from what lies in the slab.

#![forbid(unsafe_code)]

use super::engine::Engine;
use super::reliability::{Kind, Pending};
use crate::device::network::lanes::Lanes;
use crate::device::network::slab::Content;
use crate::device::network::{self, Engine as _, Pass};
use crate::sync::Ordering;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A process that has ended.
pub(crate) struct Orphan {
    engine: Engine,
    lanes: Lanes,
    /// Some of what it has left is for others' memory.
    writes: bool,
}

impl Orphan {
    /// Takes over the dead process's slots.
    pub(super) fn adopt(mut engine: Engine, entries: usize) -> Orphan {
        let lanes = Lanes::new(engine.slab.geometry(), entries);
        let writes = engine.resume();
        let orphan = Orphan { engine, lanes, writes };
        orphan.count_operations(writes);
        orphan
    }

    /// As long as memory of others may still change, operations are under way.
    fn count_operations(&self, any: bool) {
        let record = self.engine.slab.record(self.engine.place);
        record.node.send.0.remote.store(u64::from(any), Ordering::Release);
    }
}

impl network::Orphan for Orphan {
    fn serve(&mut self) -> Option<Duration> {
        self.engine.pass(&self.lanes, Pass::All);
        if self.writes && self.is_quiet() {
            self.writes = false;
            self.count_operations(false);
        }
        self.engine.tell();
        self.engine.wait().map(Duration::from_nanos)
    }

    /// All that it had sent has been acknowledged, or its receivers have gone.
    fn is_quiet(&self) -> bool {
        self.engine.machine.is_done()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.engine.links.wires.iter().map(|wire| wire.fd()).collect()
    }
}

/// A message that no machine has numbered yet.
struct Unnumbered {
    order: u32,
    behind: bool,
    pending: Pending,
}

impl Engine {
    /// Adopts what a dead process has left in its slots. What is not sensible is counted there.
    /// Answers whether frames of remote memory are among it.
    fn resume(&mut self) -> bool {
        let (slab, place) = (self.slab.clone(), self.place);
        let mut left = Vec::new();
        let mut unnumbered: BTreeMap<u32, Vec<Unnumbered>> = BTreeMap::new();
        for slot in 0..slab.geometry().all_slots() {
            let Some(content) = slab.content(place, slot) else { continue };
            let Content { to, order, sequence, published } = content;
            self.owners[slot] = to;
            let pending = Pending {
                peer: to,
                sequence: sequence.unwrap_or(0),
                slot: slot as u32,
                len: u16::try_from(published.len).unwrap_or(0),
                kind: published.kind,
            };
            if sequence.is_some() || to as usize >= slab.geometry().nodes {
                left.push(pending);
            } else {
                let behind = published.behind;
                unnumbered.entry(to).or_default().push(Unnumbered { order, behind, pending });
            }
        }
        for (to, messages) in unnumbered {
            self.number(to, messages, &mut left);
        }
        let remote = |kind| matches!(kind, Kind::Remote | Kind::More | Kind::Lost);
        let writes = left.iter().any(|pending| remote(pending.kind));
        self.machine.resume(left);
        writes
    }

    /// Gives numbers to the messages that the process had not numbered. The first one that may
    /// wait for a remote operation ends that: what the operation needed is gone with the process,
    /// and a message says that it was done.
    fn number(&mut self, to: u32, mut messages: Vec<Unnumbered>, left: &mut Vec<Pending>) {
        let Some(first) = messages.first().map(|message| message.order) else { return };
        messages.sort_by_key(|message| message.order.wrapping_sub(first) as i32);
        let mut next = self.slab.number(self.place, to as usize).load(Ordering::Acquire) as u32;
        for known in left.iter().filter(|pending| pending.peer == to) {
            // The process may have died before it counted the last one.
            let behind = known.sequence.wrapping_add(1);
            if (behind.wrapping_sub(next) as i32) > 0 {
                next = behind;
            }
        }
        let sent = messages.iter().position(|message| message.behind).unwrap_or(messages.len());
        for message in messages.drain(..sent) {
            left.push(Pending { sequence: next, ..message.pending });
            next = next.wrapping_add(1);
        }
        for message in &messages {
            self.slab.free(self.place, message.pending.slot as usize);
        }
        self.count_dropped(messages.len() as u64);
    }
}
