//! The wires of a context and the ways to its peers: packets of the machine go out, in runs.

#![forbid(unsafe_code)]

use super::reliability::{HEADER, Machine, Transmit};
use super::wire::{Packet, Wire};
use crate::debug;
use crate::device::network::addresses::Addresses;
use crate::device::network::slab::Slab;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Packets that are handed to a wire together.
pub(super) const BATCH: usize = 64;
const PAGE: usize = 256;
/// A way that was not looked up yet.
const UNKNOWN: u32 = u32::MAX;
/// The peer's address is none: nothing can go there.
const NOWHERE: u32 = u32::MAX - 1;

/// The wires, and by which number each of them knows a node.
pub(super) struct Links {
    pub(super) wires: Vec<Wire>,
    /// For each node and link, in pages made on demand.
    ways: Vec<Option<Box<[u32]>>>,
    addresses: Arc<Addresses>,
    channel: usize,
    heads: Box<[[u8; HEADER]; BATCH]>,
    /// What the kernel had no room for. Nothing else goes out before.
    unsent: VecDeque<Transmit>,
    warned: Vec<bool>,
    /// Whose wires they are.
    own: u32,
}

impl Links {
    pub(super) fn new(
        wires: Vec<Wire>,
        addresses: Arc<Addresses>,
        (own, channel): (u32, usize),
    ) -> Links {
        Links {
            ways: (0..addresses.shape().nodes.div_ceil(PAGE)).map(|_| None).collect(),
            warned: vec![false; wires.len()],
            wires,
            addresses,
            channel,
            heads: Box::new([[0; HEADER]; BATCH]),
            unsent: VecDeque::new(),
            own,
        }
    }

    /// The longest message to `node`: what the narrowest of its links carries. Invalid: one of
    /// its addresses is none.
    pub(super) fn mtu(&mut self, node: u32) -> Result<usize> {
        let mut mtu = usize::MAX;
        for link in 0..self.wires.len() {
            let address = self.addresses.get(node as usize, self.channel, link);
            let address = address.ok_or(Error::Invalid)?;
            let peer = self.wires[link].add_peer(&address).map_err(|why| {
                debug::say(debug::ERROR, || format!("ethernet: node {node}, link {link}: {why}"));
                Error::Invalid
            })?;
            self.set_way(node, link, peer.number);
            mtu = mtu.min(peer.mtu);
        }
        mtu.checked_sub(HEADER).ok_or(Error::Invalid)
    }

    fn set_way(&mut self, node: u32, link: usize, way: u32) {
        let links = self.wires.len();
        if let Some(page) = self.ways.get_mut(node as usize / PAGE) {
            let page = page.get_or_insert_with(|| vec![UNKNOWN; PAGE * links].into());
            page[node as usize % PAGE * links + link] = way;
        }
    }

    /// By which number the wire of `link` knows `node`.
    #[inline]
    fn way(&mut self, node: u32, link: usize) -> Option<u32> {
        let at = node as usize % PAGE * self.wires.len() + link;
        let way = self.ways.get(node as usize / PAGE)?.as_ref().map_or(UNKNOWN, |page| page[at]);
        let way = if way == UNKNOWN { self.find_way(node, link) } else { way };
        (way != NOWHERE).then_some(way)
    }

    #[cold]
    fn find_way(&mut self, node: u32, link: usize) -> u32 {
        if self.mtu(node).is_err() {
            self.set_way(node, link, NOWHERE);
        }
        let at = node as usize % PAGE * self.wires.len() + link;
        self.ways[node as usize / PAGE].as_ref().map_or(NOWHERE, |page| page[at])
    }

    /// Whether packets wait for room in the kernel.
    pub(super) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends what the machine has until that is nothing, or the kernel has no room.
    #[inline]
    pub(super) fn send_all(&mut self, slab: &Slab, place: usize, machine: &mut Machine, now: u64) {
        if self.is_blocked() {
            self.retry(slab, place);
        }
        while self.unsent.is_empty() {
            let Some(first) = machine.poll_transmit(now) else { return };
            if machine.is_silent() {
                return self.send_one(slab, place, &first);
            }
            if !self.send_many(slab, place, first, || machine.poll_transmit(now)) {
                return;
            }
        }
    }

    /// Sends this and what follows, a batch at most; false: nothing more follows.
    #[inline(never)]
    fn send_many(
        &mut self,
        slab: &Slab,
        place: usize,
        first: Transmit,
        mut next: impl FnMut() -> Option<Transmit>,
    ) -> bool {
        let mut batch = [first; BATCH];
        let mut count = 1;
        while count < BATCH
            && let Some(more) = next()
        {
            batch[count] = more;
            count += 1;
        }
        self.send(slab, place, &batch[..count]);
        count == BATCH
    }

    /// Packets whose slots have been freed since, or used again, are forgotten.
    #[cold]
    fn retry(&mut self, slab: &Slab, place: usize) {
        for _ in 0..self.unsent.len().div_ceil(BATCH) {
            if self.unsent.is_empty() {
                return;
            }
            let holds = |packet: &Transmit| match packet.payload {
                None => true,
                Some((slot, _)) => slab.content(place, slot as usize).is_some_and(|content| {
                    content.to == packet.peer && content.sequence == Some(packet.header.sequence)
                }),
            };
            let count = self.unsent.len().min(BATCH);
            let batch: Vec<Transmit> = self.unsent.drain(..count).filter(holds).collect();
            let waiting = self.unsent.len();
            self.send(slab, place, &batch);
            // What was refused again stays in front.
            let refused = self.unsent.len() - waiting;
            self.unsent.rotate_right(refused);
            if refused > 0 {
                return;
            }
        }
    }

    /// Sends a single packet; if it is refused it joins the unsent.
    #[inline]
    fn send_one(&mut self, slab: &Slab, place: usize, packet: &Transmit) {
        let link = usize::from(packet.link);
        let Some(to) = self.way(packet.peer, link) else { return };
        let Some(wire) = self.wires.get_mut(link) else { return };
        let head = &mut self.heads[0];
        packet.header.encode(head);
        let (slot, len) = packet.payload.unwrap_or((0, 0));
        let at = if len == 0 { 0 } else { slab.payload_at(place, slot as usize) };
        if wire.send(&[Packet { to, header: head, at, len: len.into() }]) == 0 {
            self.unsent.push_back(*packet);
        }
    }

    /// Sends a batch, one run for each link; what is refused joins the unsent.
    #[inline(never)]
    fn send(&mut self, slab: &Slab, place: usize, batch: &[Transmit]) {
        for run in batch.chunk_by(|a, b| a.link == b.link) {
            if let [only] = run {
                self.send_one(slab, place, only);
                continue;
            }
            let link = usize::from(run[0].link);
            if link >= self.wires.len() {
                continue;
            }
            for (head, packet) in self.heads.iter_mut().zip(run) {
                packet.header.encode(head);
            }
            let mut ways = [UNKNOWN; BATCH];
            for (way, packet) in ways.iter_mut().zip(run) {
                *way = self.way(packet.peer, link).unwrap_or(NOWHERE);
            }
            let heads = &self.heads;
            let packet = |i: usize| {
                let (slot, len) = run[i].payload.unwrap_or((0, 0));
                let at = if len == 0 { 0 } else { slab.payload_at(place, slot as usize) };
                Packet { to: ways[i], header: &heads[i], at, len: len.into() }
            };
            let known = (0..run.len()).filter(|&i| ways[i] != NOWHERE);
            let mut packets = [packet(0); BATCH];
            let mut count = 0;
            let mut from = [0; BATCH];
            for i in known {
                packets[count] = packet(i);
                from[count] = i;
                count += 1;
            }
            let taken = self.wires[link].send(&packets[..count]);
            self.unsent.extend(from[taken.min(count)..count].iter().map(|&i| run[i]));
        }
    }

    /// A link without a carrier takes packets and says nothing: it is asked when nobody answers.
    #[cold]
    pub(super) fn tell_lost_carriers(&mut self) {
        for (wire, warned) in self.wires.iter().zip(&mut self.warned) {
            if !*warned && !wire.link().up {
                *warned = true;
                warn(self.own, wire.endpoint().link_name(), "no carrier");
            }
        }
    }

    /// A link that went down is said once: traffic goes on when it is back.
    pub(super) fn tell_faults(&mut self) {
        for (link, wire) in self.wires.iter_mut().enumerate() {
            let Some(fault) = wire.take_fault() else { continue };
            let name = wire.endpoint().link_name();
            if fault.is_link_down() && !std::mem::replace(&mut self.warned[link], true) {
                warn(self.own, name, fault.0.desc());
            } else {
                debug::say(debug::WARNING, || format!("ethernet: {name}: {}", fault.0.desc()));
            }
        }
    }
}

fn warn(node: u32, link: &str, why: &str) {
    let host = nix::unistd::gethostname().unwrap_or_default();
    debug::warn_user(&format!(
        "host {}, node {node}: network link {link} carries nothing now ({why}); messages wait until \
         it does, or take another",
        host.to_string_lossy()
    ));
}
