//! Packets with the right secret and arbitrary contents. A hostile peer can damage only its own
//! messages, but neither memory nor the messages of other peers.

use std::collections::HashSet;

use score_pm_reliability::{
    BufferDisposition, Config, Header, PACKET_HEADER_LEN, PacketKind, RecoveredMessage,
    ReliabilityMachine, SubmitError,
};

use super::sim_rng::SimRng;

const KINDS: [PacketKind; 9] = [
    PacketKind::Data,
    PacketKind::Control,
    PacketKind::Remote,
    PacketKind::Continuation,
    PacketKind::PayloadLost,
    PacketKind::Ack,
    PacketKind::WindowProbe,
    PacketKind::LinkProbe,
    PacketKind::LinkAnswer,
];

fn config() -> Config {
    Config { links: 2, buffers: 32, window: 64, max_queued: 48, ..Config::new(0, 4, 1, 2) }
}

fn any_header(rng: &mut SimRng, near_sequence: u32) -> Header {
    let kind = KINDS[rng.below(KINDS.len() as u64) as usize];
    let mut field = |random_permille: u64| {
        let nearby = near_sequence.wrapping_add(rng.below(200) as u32).wrapping_sub(100);
        if rng.chance(random_permille) { rng.next() as u32 } else { nearby }
    };
    Header {
        kind,
        sequence: field(100),
        ack: field(100),
        window: field(100),
        timestamp: field(900),
        timestamp_echo: field(900),
        flags: rng.below(8) as u8,
        link: rng.below(8) as u8,
        sack_block: if rng.chance(500) { 0 } else { rng.next() as u8 },
        len: if kind.is_numbered() { 1 + rng.below(1500) as u16 } else { 0 },
        secret: 1,
        incarnation: 2,
        source: rng.below(5) as u32,
        destination: 0,
        sack_bitmap: rng.next() & rng.next(),
        mac: rng.next(),
    }
}

/// Attacks one machine with arbitrary packets, and checks its invariants.
fn attack(seed: u64) {
    let mut rng = SimRng::new(seed);
    let mut machine = ReliabilityMachine::new(config());
    let (mut kept_buffers, mut delivered_peers, mut slots) =
        (HashSet::new(), Vec::new(), HashSet::new());
    if rng.chance(300) {
        let any_pending = |slot: u32| RecoveredMessage {
            peer: rng.below(5) as u32,
            sequence: rng.below(80) as u32,
            slot,
            len: rng.below(2000) as u16,
            kind: KINDS[rng.below(4) as usize],
        };
        machine.resume((1000..1020).map(any_pending).collect::<Vec<_>>());
        slots.extend(1000..1020);
    }
    let (mut now, mut next_slot) = (0, 0);
    for buffer in 0..1500 {
        now += rng.below(3_000_000);
        let peer = 1 + rng.below(3) as u32;
        if machine.submit(peer, next_slot, 8, PacketKind::Data).is_ok() {
            slots.insert(next_slot);
        }
        next_slot += 1;
        let mut packet = vec![0; PACKET_HEADER_LEN + 1500];
        let near_sequence = machine.next_sequence(1);
        any_header(&mut rng, near_sequence).encode(packet.first_chunk_mut().unwrap());
        if machine.receive(&packet, rng.below(3) as u8, buffer, now) == BufferDisposition::Kept {
            kept_buffers.insert(buffer);
        }
        assert!(
            kept_buffers.len() + delivered_peers.len() <= 32,
            "{} buffers held",
            kept_buffers.len()
        );
        if machine.expire(now) {
            machine.on_timeout(now);
        }
        let sent = std::iter::from_fn(|| machine.poll_transmit(now)).take(1000).count();
        assert!(sent < 1000, "one packet caused {sent} packets");
        while let Some(slot) = machine.next_free_slot() {
            assert!(slots.remove(&slot), "slot {slot} was not taken, or freed before");
        }
        if rng.chance(500)
            && let Some(delivery) = machine.next_delivery()
        {
            assert!(kept_buffers.remove(&delivery.buffer), "buffer {} not kept", delivery.buffer);
            delivered_peers.push(delivery.peer);
        }
        if rng.chance(500) {
            delivered_peers.drain(..).for_each(|peer| machine.on_released(peer));
        }
        machine.on_released(peer + 10); // no such peer
        assert_eq!(machine.outstanding(), slots.len() as u64);
    }
    (0..4).for_each(|peer| machine.on_peer_exited(peer));
    while let Some(slot) = machine.next_free_slot() {
        assert!(slots.remove(&slot), "slot {slot} freed twice");
    }
    assert!(slots.is_empty() && machine.is_all_acked());
    machine.dump(&mut Vec::new()).unwrap();
}

// Promise of `every_message_arrives_once_and_in_order_over_a_faulty_network`.
#[test]
fn no_packet_that_has_the_secret_does_harm() {
    for seed in 0..60 {
        let result = std::panic::catch_unwind(|| attack(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn impossible_messages_are_refused() {
    let mut machine = ReliabilityMachine::new(config());
    for (node, len, kind) in [
        (0, 8, PacketKind::Data),
        (4, 8, PacketKind::Data),
        (1, 0, PacketKind::Data),
        (1, 1409, PacketKind::Data),
    ] {
        assert_eq!(machine.submit(node, 0, len, kind), Err(SubmitError::Invalid));
    }
    assert_eq!(machine.submit(1, 0, 8, PacketKind::Ack), Err(SubmitError::Invalid));
    assert!(!machine.can_send(0) && !machine.can_send(4) && machine.can_send(1));
    for slot in 0..48 {
        assert_eq!(machine.submit(1, slot, 8, PacketKind::Data), Ok(slot));
    }
    assert_eq!(machine.submit(1, 48, 8, PacketKind::Data), Err(SubmitError::Full));
    assert!(!machine.can_send(1) && machine.can_send(2));
    machine.on_peer_exited(1);
    assert_eq!(machine.submit(1, 48, 8, PacketKind::Data), Ok(48), "dropped, not refused");
    assert_eq!(std::iter::from_fn(|| machine.next_free_slot()).count(), 49);
    assert_eq!((machine.counters().dropped, machine.outstanding()), (49, 0));
}

#[test]
fn the_secret_is_checked_first() {
    let mut machine = ReliabilityMachine::new(config());
    let mut packet = [0xff; PACKET_HEADER_LEN];
    machine.receive(&packet, 0, 0, 0);
    assert_eq!(machine.counters().wrong_secret, 1, "before other errors");
    packet[8..16].copy_from_slice(&1u64.to_le_bytes());
    machine.receive(&packet, 0, 0, 0);
    machine.receive(&packet[..20], 0, 0, 0);
    assert_eq!((machine.counters().wrong_secret, machine.counters().malformed), (1, 2));
}
