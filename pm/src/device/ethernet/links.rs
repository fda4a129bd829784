//! The wires of a context and the ways to its peers: packets of the machine go out, in runs.

#![forbid(unsafe_code)]

use super::away::{Away, State};
use super::reliability::{HEADER, Machine, Transmit};
use super::wire::{self, Elsewhere, Packet, Wire};
use crate::debug;
use crate::device::network::addresses::Addresses;
use crate::device::network::slab::Slab;
use crate::error::{Error, Result};
use score_proto::wire::{Header, Kind};
use std::collections::VecDeque;
use std::sync::Arc;

/// Packets that are handed to a wire together.
pub(super) const BATCH: usize = 64;
const PAGE: usize = 256;
/// A way that was not looked up yet.
const UNKNOWN: u32 = u32::MAX;
/// The peer's address is none: nothing can go there.
const NOWHERE: u32 = u32::MAX - 1;

/// Bytes of a packet that says that its bytes are lost: it has to have some.
pub(super) const LOST: usize = 1;

const NONE: Elsewhere = Elsewhere { at: 0, len: 0 };

/// What goes before a payload.
type Head = [u8; HEADER];

/// Where the payload of a packet is.
struct Payload {
    at: usize,
    len: usize,
    more: Elsewhere,
}

/// The wires, and by which number each of them knows a node.
pub(super) struct Links {
    pub(super) wires: Vec<Wire>,
    /// For each node and link, in pages made on demand.
    ways: Vec<Option<Box<[u32]>>>,
    addresses: Arc<Addresses>,
    channel: usize,
    heads: Box<[Head; BATCH]>,
    /// Whether packets go to the kernel in segments of one piece on all wires.
    pub(super) segments: bool,
    /// Frames of remote memory that are not in the slab.
    pub(super) away: Away,
    /// Of these, which have to go out again: they wait until they are in the slab.
    pub(super) late: Vec<Transmit>,
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
        away: Away,
    ) -> Links {
        Links {
            ways: (0..addresses.shape().nodes.div_ceil(PAGE)).map(|_| None).collect(),
            warned: vec![false; wires.len()],
            segments: wires.iter().all(|wire| wire.kind() == wire::Kind::Udp),
            wires,
            addresses,
            channel,
            heads: Box::new([[0; HEADER]; BATCH]),
            away,
            late: Vec::new(),
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
        let Some(payload) = complete(&self.away, slab, place, packet, head) else {
            return self.late.push(*packet);
        };
        let Payload { at, len, more } = payload;
        if wire.send(&[Packet { to, header: head, at, len, more }]) == 0 {
            self.unsent.push_back(*packet);
        } else if more.len > 0 {
            self.has_gone_out(packet);
        }
    }

    fn has_gone_out(&mut self, packet: &Transmit) {
        if let Some((slot, _)) = packet.payload {
            self.away.has_gone_out(slot);
        }
    }

    /// Sends a batch, one run for each link; what is refused joins the unsent.
    #[inline(never)]
    pub(super) fn send(&mut self, slab: &Slab, place: usize, batch: &[Transmit]) {
        for run in batch.chunk_by(|a, b| a.link == b.link) {
            if let [only] = run {
                self.send_one(slab, place, only);
                continue;
            }
            let link = usize::from(run[0].link);
            if link >= self.wires.len() {
                continue;
            }
            let nothing = Packet { to: NOWHERE, header: &[], at: 0, len: 0, more: NONE };
            let mut packets = [nothing; BATCH];
            let (mut count, mut away) = (0, false);
            let mut from = [0; BATCH];
            let mut ways = [UNKNOWN; BATCH];
            for (way, packet) in ways.iter_mut().zip(run) {
                *way = self.way(packet.peer, link).unwrap_or(NOWHERE);
            }
            for ((i, head), to) in self.heads[..run.len()].iter_mut().enumerate().zip(ways) {
                if to == NOWHERE {
                    continue;
                }
                let Some(payload) = complete(&self.away, slab, place, &run[i], head) else {
                    self.late.push(run[i]);
                    continue;
                };
                let Payload { at, len, more } = payload;
                away |= more.len > 0;
                packets[count] = Packet { to, header: head, at, len, more };
                from[count] = i;
                count += 1;
            }
            let taken = self.wires[link].send(&packets[..count]).min(count);
            if away {
                from[..taken].iter().for_each(|&i| self.has_gone_out(&run[i]));
            }
            self.unsent.extend(from[taken..count].iter().map(|&i| run[i]));
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

/// Completes what goes before the payload, and says where that is. None: it is not in the slab,
/// and was sent before.
#[inline]
fn complete(
    away: &Away,
    slab: &Slab,
    place: usize,
    packet: &Transmit,
    head: &mut Head,
) -> Option<Payload> {
    let (slot, len) = packet.payload.unwrap_or((0, 0));
    let at = if len == 0 { 0 } else { slab.payload_at(place, slot as usize) };
    let home = Payload { at, len: len.into(), more: NONE };
    let payload = match away.state(slot) {
        State::Home => home,
        State::Fresh(frame) => Payload { at: 0, len: 0, more: frame.bytes },
        State::Sent(_) => return None,
        State::Lost => {
            Header { kind: Kind::Lost, len: LOST as u16, ..packet.header }.encode(head);
            return Some(Payload { len: LOST, ..home });
        }
    };
    packet.header.encode(head);
    Some(payload)
}

fn warn(node: u32, link: &str, why: &str) {
    let host = nix::unistd::gethostname().unwrap_or_default();
    debug::warn_user(&format!(
        "host {}, node {node}: network link {link} carries nothing now ({why}); messages wait until \
         it does, or take another",
        host.to_string_lossy()
    ));
}
