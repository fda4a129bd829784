//! Sends the packets of the reliability machine in batches over the wires of a context. It also
//! maps nodes to their peer numbers on each wire.

#![forbid(unsafe_code)]

use super::wire::{self, Packet, PeerNumber, UserBytes, Wire};
use super::zero_copy::{PayloadState, ZeroCopyFrames};
use crate::debug;
use crate::device::net_common::EndpointIdentity;
use crate::device::net_common::address_table::{AddressKey, AddressTable};
use crate::device::net_common::indices::SlotIndex;
use crate::device::net_common::node_slab::NodeSlab;
use crate::device::net_common::slab::SequenceNumber;
use crate::error::{Error, PmResult};
use score_pm_reliability::packet_header::{Header, PacketKind};
use score_pm_reliability::{PACKET_HEADER_LEN, ReliabilityMachine, Transmit};
use score_sys::host_name::system_host_name;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most packets that are passed to a wire with one call.
pub(super) const BATCH: usize = 64;
const PEERS_PER_PAGE: usize = 256;
/// A peer number that has not been looked up yet.
const UNRESOLVED: PeerNumber = PeerNumber(u32::MAX);
/// The peer has no address: no packet can be sent to it.
const UNREACHABLE: PeerNumber = PeerNumber(u32::MAX - 1);

/// The payload length of a packet that reports lost bytes. A packet needs at least one byte.
pub(super) const LOST_MARKER_LEN: usize = 1;

const NO_LEN: UserBytes = UserBytes { addr: 0, len: 0 };

/// The time in nanoseconds between two carrier checks. Each check may wait for the kernel's lock
/// that serializes all changes of network configuration.
const CARRIER_CHECK_INTERVAL_NS: u64 = 250_000_000;

/// The bytes in front of a payload.
type HeaderBytes = [u8; PACKET_HEADER_LEN];

/// The location of a packet's payload.
struct Payload {
    offset: usize,
    len: usize,
    user_bytes: UserBytes,
}

/// Decides when to check the carriers of the links: after a time-out, but not more often than the
/// interval permits.
#[derive(Default)]
struct CarrierChecks {
    /// The number of time-outs before the latest check.
    timeouts_seen: u64,
    not_before: u64,
}

impl CarrierChecks {
    #[inline]
    fn is_due(&self, timeouts: u64, now: u64) -> bool {
        timeouts != self.timeouts_seen && now >= self.not_before
    }

    fn note_check(&mut self, timeouts: u64, now: u64) {
        self.timeouts_seen = timeouts;
        self.not_before = now.saturating_add(CARRIER_CHECK_INTERVAL_NS);
    }
}

/// The wires, and the peer number of each node on each wire.
pub(super) struct Transmitter {
    pub(super) wires: Vec<Wire>,
    /// The peer number of each node on each link, in pages that are allocated on demand.
    peer_numbers: Vec<Option<Box<[PeerNumber]>>>,
    addresses: Arc<AddressTable>,
    channel: u32,
    headers: Box<[HeaderBytes; BATCH]>,
    /// Whether all wires pass a batch to the kernel as one buffer, which the kernel divides into
    /// segments.
    pub(super) uses_segmentation: bool,
    /// RMA frames whose bytes are in user memory instead of the slab.
    pub(super) zero_copy: ZeroCopyFrames,
    /// Packets of such frames that must be sent again. They wait until their bytes are in the slab.
    pub(super) deferred: Vec<Transmit>,
    /// Packets for which the kernel had no room. They are sent before all other packets.
    unsent: VecDeque<Transmit>,
    warned: Vec<bool>,
    carrier_checks: CarrierChecks,
    /// The node that these wires belong to.
    self_node: u32,
}

impl Transmitter {
    pub(super) fn new(
        wires: Vec<Wire>,
        addresses: Arc<AddressTable>,
        EndpointIdentity { self_node, channel, .. }: EndpointIdentity,
        zero_copy: ZeroCopyFrames,
    ) -> Transmitter {
        Transmitter {
            peer_numbers: (0..(addresses.shape().nodes as usize).div_ceil(PEERS_PER_PAGE))
                .map(|_| None)
                .collect(),
            warned: vec![false; wires.len()],
            uses_segmentation: wires.iter().all(|wire| wire.kind() == wire::WireKind::Udp),
            wires,
            addresses,
            channel,
            headers: Box::new([[0; PACKET_HEADER_LEN]; BATCH]),
            zero_copy,
            deferred: Vec::new(),
            unsent: VecDeque::new(),
            carrier_checks: CarrierChecks::default(),
            self_node,
        }
    }

    /// Returns the length of the longest message to `node`, which is limited by the smallest MTU
    /// among its links. Returns `Invalid` if the node lacks an address on one of them.
    pub(super) fn mtu(&mut self, node: u32) -> PmResult<usize> {
        let mut mtu = usize::MAX;
        for link in 0..self.wires.len() {
            let address = self.addresses.get(AddressKey { node, channel: self.channel, link });
            let address = address.ok_or(Error::Invalid)?;
            let peer = self.wires[link].add_peer(&address).map_err(|why| {
                debug::log(debug::ERROR, || format!("ethernet: node {node}, link {link}: {why}"));
                Error::Invalid
            })?;
            self.set_peer_number(node, link, peer.number);
            mtu = mtu.min(peer.mtu);
        }
        mtu.checked_sub(PACKET_HEADER_LEN).ok_or(Error::Invalid)
    }

    fn set_peer_number(&mut self, node: u32, link: usize, number: PeerNumber) {
        let links = self.wires.len();
        if let Some(page) = self.peer_numbers.get_mut(node as usize / PEERS_PER_PAGE) {
            let page = page.get_or_insert_with(|| vec![UNRESOLVED; PEERS_PER_PAGE * links].into());
            page[node as usize % PEERS_PER_PAGE * links + link] = number;
        }
    }

    /// Returns the peer number of `node` on the wire of `link`, or None if the node has no address.
    #[inline]
    fn peer_number(&mut self, node: u32, link: usize) -> Option<PeerNumber> {
        let index = node as usize % PEERS_PER_PAGE * self.wires.len() + link;
        let number = self
            .peer_numbers
            .get(node as usize / PEERS_PER_PAGE)?
            .as_ref()
            .map_or(UNRESOLVED, |page| page[index]);
        let number =
            if number == UNRESOLVED { self.resolve_peer_number(node, link) } else { number };
        (number != UNREACHABLE).then_some(number)
    }

    #[cold]
    fn resolve_peer_number(&mut self, node: u32, link: usize) -> PeerNumber {
        if self.mtu(node).is_err() {
            self.set_peer_number(node, link, UNREACHABLE);
        }
        let index = node as usize % PEERS_PER_PAGE * self.wires.len() + link;
        self.peer_numbers[node as usize / PEERS_PER_PAGE]
            .as_ref()
            .map_or(UNREACHABLE, |page| page[index])
    }

    /// Whether packets wait for room in the kernel.
    pub(super) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends the machine's packets until none is left or the kernel has no room.
    #[inline]
    pub(super) fn send_all(&mut self, slab: &NodeSlab, machine: &mut ReliabilityMachine, now: u64) {
        if self.is_blocked() {
            self.retry(slab);
        }
        while self.unsent.is_empty() {
            let Some(first) = machine.poll_transmit(now) else { return };
            if machine.is_transmit_idle() {
                return self.send_one(slab, &first);
            }
            if !self.send_many(slab, first, || machine.poll_transmit(now)) {
                return;
            }
        }
    }

    /// Sends `first` and the packets from `next`, at most one batch. Returns false if no more
    /// packets follow.
    #[inline(never)]
    fn send_many(
        &mut self,
        slab: &NodeSlab,
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
        self.send(slab, &batch[..count]);
        count == BATCH
    }

    /// Sends the packets again for which the kernel had no room. Drops packets whose slots have
    /// been freed or reused since then.
    #[cold]
    fn retry(&mut self, slab: &NodeSlab) {
        for _ in 0..self.unsent.len().div_ceil(BATCH) {
            if self.unsent.is_empty() {
                return;
            }
            let is_current = |packet: &Transmit| match slot_of(packet) {
                None => true,
                Some(slot) => slab.content(slot).is_some_and(|content| {
                    let sequence = SequenceNumber(packet.header.sequence);
                    content.to == packet.peer && content.sequence == Some(sequence)
                }),
            };
            let count = self.unsent.len().min(BATCH);
            let batch: Vec<Transmit> = self.unsent.drain(..count).filter(is_current).collect();
            let waiting = self.unsent.len();
            self.send(slab, &batch);
            // Packets that the kernel refused again stay at the front of the queue.
            let refused_count = self.unsent.len() - waiting;
            self.unsent.rotate_right(refused_count);
            if refused_count > 0 {
                return;
            }
        }
    }

    /// Sends a single packet. If the kernel refuses the packet, it is added to `unsent`.
    #[inline]
    fn send_one(&mut self, slab: &NodeSlab, packet: &Transmit) {
        let link = usize::from(packet.link);
        let Some(to) = self.peer_number(packet.peer, link) else { return };
        let Some(wire) = self.wires.get_mut(link) else { return };
        let header = &mut self.headers[0];
        let Some(payload) = encode_header(&self.zero_copy, slab, packet, header) else {
            return self.deferred.push(*packet);
        };
        let Payload { offset, len, user_bytes } = payload;
        if wire.send(&[Packet { to, header, offset, len, user_bytes }]) == 0 {
            self.unsent.push_back(*packet);
        } else if user_bytes.len > 0 {
            self.on_sent(packet);
        }
    }

    fn on_sent(&mut self, packet: &Transmit) {
        if let Some(slot) = slot_of(packet) {
            self.zero_copy.on_sent(slot);
        }
    }

    /// Sends a batch, one run of packets for each link. Packets that the kernel refuses are added
    /// to `unsent`.
    #[inline(never)]
    pub(super) fn send(&mut self, slab: &NodeSlab, batch: &[Transmit]) {
        for run in batch.chunk_by(|a, b| a.link == b.link) {
            if let [only] = run {
                self.send_one(slab, only);
                continue;
            }
            let link = usize::from(run[0].link);
            if link >= self.wires.len() {
                continue;
            }
            let empty =
                Packet { to: UNREACHABLE, header: &[], offset: 0, len: 0, user_bytes: NO_LEN };
            let mut packets = [empty; BATCH];
            let (mut count, mut has_zero_copy) = (0, false);
            let mut run_indices = [0; BATCH];
            let mut peer_numbers = [UNRESOLVED; BATCH];
            for (number, packet) in peer_numbers.iter_mut().zip(run) {
                *number = self.peer_number(packet.peer, link).unwrap_or(UNREACHABLE);
            }
            for ((i, header), to) in
                self.headers[..run.len()].iter_mut().enumerate().zip(peer_numbers)
            {
                if to == UNREACHABLE {
                    continue;
                }
                let Some(payload) = encode_header(&self.zero_copy, slab, &run[i], header) else {
                    self.deferred.push(run[i]);
                    continue;
                };
                let Payload { offset, len, user_bytes } = payload;
                has_zero_copy |= user_bytes.len > 0;
                packets[count] = Packet { to, header, offset, len, user_bytes };
                run_indices[count] = i;
                count += 1;
            }
            let sent = self.wires[link].send(&packets[..count]).min(count);
            if has_zero_copy {
                run_indices[..sent].iter().for_each(|&i| self.on_sent(&run[i]));
            }
            self.unsent.extend(run_indices[sent..count].iter().map(|&i| run[i]));
        }
    }

    /// Checks the links after time-outs. A link without a carrier accepts packets and reports no
    /// error. `timeouts` is the number of time-outs so far.
    #[inline]
    pub(super) fn on_time_outs(&mut self, timeouts: u64, now: u64) {
        if self.carrier_checks.is_due(timeouts, now) {
            self.carrier_checks.note_check(timeouts, now);
            self.report_lost_carriers();
        }
    }

    /// Warns about links without a carrier.
    #[cold]
    fn report_lost_carriers(&mut self) {
        for (wire, warned) in self.wires.iter().zip(&mut self.warned) {
            if !*warned && !wire.link().up {
                *warned = true;
                warn(self.self_node, wire.endpoint().link_name(), "no carrier");
            }
        }
    }

    /// Warns the user once about each link that went down. Other errors go to the log only.
    pub(super) fn report_faults(&mut self) {
        for (link, wire) in self.wires.iter_mut().enumerate() {
            let Some(fault) = wire.take_fault() else { continue };
            let name = wire.endpoint().link_name();
            if fault.is_link_down() && !std::mem::replace(&mut self.warned[link], true) {
                warn(self.self_node, name, fault.0.desc());
            } else {
                debug::log(debug::WARNING, || format!("ethernet: {name}: {}", fault.0.desc()));
            }
        }
    }
}

/// Returns the slot of a packet's payload.
pub(super) fn slot_of(packet: &Transmit) -> Option<SlotIndex> {
    packet.payload.map(|(slot, _)| SlotIndex(slot))
}

/// Encodes the header and returns the location of the payload. Returns None if the payload is in
/// user memory and was sent before. Such a packet is sent from the slab.
#[inline]
fn encode_header(
    zero_copy: &ZeroCopyFrames,
    slab: &NodeSlab,
    packet: &Transmit,
    header: &mut HeaderBytes,
) -> Option<Payload> {
    let (slot, len) = packet.payload.unwrap_or((0, 0));
    let slot = SlotIndex(slot);
    let offset = if len == 0 { 0 } else { slab.payload_offset(slot) };
    let in_slab = Payload { offset, len: len.into(), user_bytes: NO_LEN };
    let payload = match zero_copy.state(slot) {
        PayloadState::InSlab => in_slab,
        PayloadState::Unsent(frame) => Payload { offset: 0, len: 0, user_bytes: frame.bytes },
        PayloadState::Sent(_) => return None,
        PayloadState::Discarded => {
            Header { kind: PacketKind::PayloadLost, len: LOST_MARKER_LEN as u16, ..packet.header }
                .encode(header);
            return Some(Payload { len: LOST_MARKER_LEN, ..in_slab });
        }
    };
    packet.header.encode(header);
    Some(payload)
}

fn warn(node: u32, link: &str, why: &str) {
    let host = system_host_name();
    debug::warn_user(&format!(
        "host {host}, node {node}: network link {link} failed ({why}); messages wait until it \
         works again, or use another link"
    ));
}
