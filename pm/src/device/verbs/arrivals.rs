//! What has come: buffers that all peers share, each peer's brought when it is met; and what was
//! consumed, which senders are told by RDMA writes, so that nobody sends what finds no buffer.

// UNSAFETY: reads heads of messages where the adapter has written them.
#![expect(unsafe_code)]

use super::adapter::{Access, Adapter, Batch, Buffers, Registered};
use super::bindings::{Completion, Piece, WC_RECV};
use super::engine::Engine;
use super::flow::{Kind, is_before};
use crate::config::CONTROL_MTU;
use crate::debug;
use crate::device::network::lanes::{Arrived, Lanes, Letter};
use crate::device::network::layout::OUTBOX;
use crate::sync::Ordering;
use std::sync::Arc;

/// Before each payload: number, length, sender and kind, each of four bytes.
pub(super) const HEAD: usize = 16;
/// Buffers of a peer besides those of its window: for control messages, and for what is sent again
/// after a failure.
const SPARE: usize = 2 * OUTBOX;
/// Messages to one peer that are on the way or unread, with few peers and with many.
const FEW: usize = 64;
const MANY: usize = 16;
/// What all peers together get, while each gets `MANY`.
const ALL: usize = 256;
/// Batches that one pass takes at most.
const ROUNDS: usize = 16;

/// Messages that may be on the way to one of so many nodes, or unread there.
pub(super) fn window(nodes: usize) -> usize {
    (ALL / nodes.saturating_sub(1).max(1)).clamp(MANY, FEW)
}

/// The receive buffers.
pub(super) struct Arrivals {
    chunks: Box<[Option<Registered<Arc<Buffers>>>]>,
    /// Buffers of a peer. The number of one has so many bits for its place among these.
    each: usize,
    bits: u32,
    /// Bytes of one.
    stride: usize,
    mtu: usize,
}

/// A message's head.
#[derive(Clone, Copy, Debug)]
struct Head {
    sequence: u32,
    len: u32,
    kind: Kind,
}

impl Head {
    /// None: no sender of ours writes this.
    #[inline(always)]
    fn check(words: [u32; 4], bytes: u32, mtu: usize) -> Option<Head> {
        let [sequence, len, _, kind] = words.map(u32::from_le);
        let kind = match kind {
            0 => Kind::Data,
            1 if len as usize <= CONTROL_MTU => Kind::Control,
            _ => return None,
        };
        let fits = (1..=mtu).contains(&(len as usize)) && bytes == HEAD as u32 + len;
        fits.then_some(Head { sequence, len, kind })
    }
}

impl Arrivals {
    pub(super) fn new(nodes: usize, mtu: usize) -> Arrivals {
        Arrivals {
            chunks: (0..nodes).map(|_| None).collect(),
            each: each(nodes),
            bits: bits(nodes),
            stride: (HEAD + mtu).next_multiple_of(64),
            mtu,
        }
    }

    /// Buffers of all peers.
    pub(super) fn entries(&self) -> usize {
        self.each * self.chunks.len()
    }

    /// Brings the buffers of a peer.
    pub(super) fn bring(
        &mut self,
        adapter: &Arc<Adapter>,
        node: u32,
    ) -> std::result::Result<(), String> {
        if self.chunks[node as usize].is_some() {
            return Ok(());
        }
        let chunk = Registered::buffers(adapter, self.each * self.stride, Access::Own)?;
        self.chunks[node as usize] = Some(chunk);
        for number in 0..self.each {
            self.offer(adapter, (node as usize) << self.bits | number);
        }
        Ok(())
    }

    /// Where a buffer lies, and its key.
    #[inline(always)]
    fn place(&self, entry: usize) -> Option<(*mut u8, u32)> {
        let chunk = self.chunks.get(entry >> self.bits)?.as_ref()?;
        let number = entry & ((1 << self.bits) - 1);
        let at = chunk.keeps.at(number * self.stride, self.stride);
        Some((at, chunk.lkey))
    }

    #[inline(always)]
    fn offer(&self, adapter: &Adapter, entry: usize) {
        let Some((at, lkey)) = self.place(entry) else { return };
        let length = (HEAD + self.mtu) as u32;
        let piece = Piece { addr: at.addr() as u64, length, lkey };
        if !adapter.offer(entry as u64, piece) {
            debug::say(debug::ERROR, || "verbs: a receive buffer is refused".into());
        }
    }
}

/// Buffers of one peer of so many nodes.
fn each(nodes: usize) -> usize {
    window(nodes) + SPARE
}

/// Bits that number the buffers of one peer.
fn bits(nodes: usize) -> u32 {
    each(nodes).next_power_of_two().ilog2()
}

/// Numbers of all buffers: a power of two.
pub(super) fn entries(nodes: usize) -> usize {
    (nodes << bits(nodes)).next_power_of_two()
}

impl Engine {
    /// Hands out what has come.
    pub(super) fn receive(&mut self, lanes: &Lanes) {
        let mut batch = Batch::new();
        match self.adapter.poll_receives(&mut batch) {
            Some(found) => self.take(lanes, found),
            None => self.breaks(),
        }
    }

    /// Hands out what was found, and what else has come.
    #[inline(always)]
    pub(super) fn take(&mut self, lanes: &Lanes, found: &[Completion]) {
        let (mut batch, mut found) = (Batch::new(), found);
        for _ in 0..ROUNDS {
            for came in found {
                self.came(lanes, came);
            }
            if found.len() < Batch::SIZE {
                return;
            }
            found = match self.adapter.poll_receives(&mut batch) {
                Some(found) => found,
                None => return self.breaks(),
            };
        }
    }

    #[inline(always)]
    fn came(&mut self, lanes: &Lanes, came: &Completion) {
        let entry = came.wr_id as usize;
        let Some((at, _)) = self.arrivals.place(entry) else { return };
        // SAFETY: a buffer, which the adapter has filled and nobody else has.
        let words = unsafe { at.cast::<[u32; 4]>().read_unaligned() };
        let from = u32::from_le(words[2]);
        if came.status != 0 || !self.is_pair_of(came.qp_num, from) {
            // Of a queue pair that was given up: its sender sends it again. Or the sender lies.
            return self.arrivals.offer(&self.adapter, entry);
        }
        let head = Head::check(words, came.byte_len, self.arrivals.mtu);
        let Some(head) = head.filter(|_| came.opcode & WC_RECV != 0) else {
            debug::say(debug::WARNING, || format!("verbs: node {from} sends what is no message"));
            return self.arrivals.offer(&self.adapter, entry);
        };
        let kind = head.kind as usize;
        let expected = self.peers[from as usize].expected[kind];
        if head.sequence != expected {
            self.arrivals.offer(&self.adapter, entry);
            if !is_before(head.sequence, expected) {
                self.failed(lanes, from, "has left something out");
            }
            return;
        }
        self.peers[from as usize].expected[kind] = expected.wrapping_add(1);
        if head.kind == Kind::Control {
            // SAFETY: its length was checked; behind the head.
            let text = unsafe { std::slice::from_raw_parts(at.add(HEAD), head.len as usize) };
            let mut letter = Letter { from, bytes: [0; CONTROL_MTU], len: text.len() };
            letter.bytes[..text.len()].copy_from_slice(text);
            self.letters.push_back(letter);
            return self.arrivals.offer(&self.adapter, entry);
        }
        // SAFETY: inside the buffer.
        lanes.set_place(entry as u32, unsafe { at.add(HEAD) });
        // As many words as buffers: there is room.
        lanes.delivered.push(Arrived { entry: entry as u32, from, len: head.len }.word());
        self.delivered = true;
        let arrived = &self.slab.record(self.place).arrived.0;
        arrived.store(arrived.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.slab
            .accepted(self.place, from as usize)
            .store(u64::from(expected.wrapping_add(1)), Ordering::Release);
    }

    #[inline]
    pub(super) fn take_released(&mut self, lanes: &Lanes) {
        while let Some(word) = lanes.released.pop() {
            let Arrived { entry, from, .. } = Arrived::from_word(word);
            self.arrivals.offer(&self.adapter, entry as usize);
            let peer = &mut self.peers[from as usize];
            peer.consumed[0] = peer.consumed[0].wrapping_add(1);
            if peer.consumed[0].wrapping_sub(peer.told) >= self.window / 2 {
                self.tell(lanes, from);
            }
        }
    }

    /// Tells a peer what was consumed of it. Where it cannot be told now, the next hello does.
    pub(super) fn tell(&mut self, lanes: &Lanes, to: u32) {
        let word = self.peers.len() + to as usize;
        let peer = &mut self.peers[to as usize];
        let all = u64::from(peer.consumed[1]) << 32 | u64::from(peer.consumed[0]);
        self.credits.keeps.word(word).store(all, Ordering::Release);
        let consumed = peer.consumed[0];
        if self.write_word(lanes, to, word, 8) {
            self.peers[to as usize].told = consumed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_does_not_fit_what_came_is_refused() {
        let words = |len: u32, kind: u32| [7, len, 3, kind].map(u32::to_le);
        assert!(Head::check(words(100, 0), 116, 1024).is_some());
        assert!(Head::check(words(48, 1), 64, 1024).is_some());
        for (len, kind, bytes) in [
            (0, 0, 16),
            (100, 0, 115),
            (1025, 0, 1041),
            (100, 2, 116),
            (49, 1, 65),
            (u32::MAX, 0, 15),
        ] {
            assert!(Head::check(words(len, kind), bytes, 1024).is_none(), "{len} {kind}");
        }
    }

    #[test]
    fn a_receiver_has_buffers_for_all_that_its_peers_may_send() {
        for nodes in [1, 2, 5, 17, 300, 4096] {
            assert!((MANY..=FEW).contains(&window(nodes)), "{nodes}");
            assert!(entries(nodes) >= nodes * (window(nodes) + OUTBOX));
        }
    }
}
