//! Packets that have the secret and say anything: a peer gone mad costs its own messages, and
//! neither memory nor anybody else's.

use std::collections::HashSet;

use score_pm::reliability::{Config, Fate, HEADER, Header, Kind, Machine, Pending, Refused};

use super::world::Chance;

const KINDS: [Kind; 9] = [
    Kind::Data,
    Kind::Control,
    Kind::Remote,
    Kind::More,
    Kind::Lost,
    Kind::Ack,
    Kind::WindowProbe,
    Kind::LinkProbe,
    Kind::LinkAnswer,
];

fn config() -> Config {
    Config { links: 2, buffers: 32, window: 64, queue: 48, ..Config::new(0, 4, 1, 2) }
}

fn any_header(chance: &mut Chance, near: u32) -> Header {
    let kind = KINDS[chance.below(KINDS.len() as u64) as usize];
    let mut number = |wild: u64| {
        let close = near.wrapping_add(chance.below(200) as u32).wrapping_sub(100);
        if chance.hits(wild) { chance.next() as u32 } else { close }
    };
    Header {
        kind,
        sequence: number(100),
        ack: number(100),
        window: number(100),
        stamp: number(900),
        echo: number(900),
        flags: chance.below(8) as u8,
        link: chance.below(8) as u8,
        block: if chance.hits(500) { 0 } else { chance.next() as u8 },
        len: if kind.is_numbered() { 1 + chance.below(1500) as u16 } else { 0 },
        secret: 1,
        incarnation: 2,
        source: chance.below(5) as u32,
        destination: 0,
        received: chance.next() & chance.next(),
        mac: chance.next(),
    }
}

/// One machine, a mad network, and what must hold all the same.
fn torment(seed: u64) {
    let mut chance = Chance::new(seed);
    let mut machine = Machine::new(config());
    let (mut kept, mut taken, mut slots) = (HashSet::new(), Vec::new(), HashSet::new());
    if chance.hits(300) {
        let any = |slot: u32| Pending {
            peer: chance.below(5) as u32,
            sequence: chance.below(80) as u32,
            slot,
            len: chance.below(2000) as u16,
            kind: KINDS[chance.below(4) as usize],
        };
        machine.resume((1000..1020).map(any).collect::<Vec<_>>());
        slots.extend(1000..1020);
    }
    let (mut now, mut next) = (0, 0);
    for buffer in 0..1500 {
        now += chance.below(3_000_000);
        let peer = 1 + chance.below(3) as u32;
        if machine.submit(peer, next, 8, Kind::Data).is_ok() {
            slots.insert(next);
        }
        next += 1;
        let mut packet = vec![0; HEADER + 1500];
        let near = machine.next_sequence(1);
        any_header(&mut chance, near).encode(packet.first_chunk_mut().unwrap());
        if machine.receive(&packet, chance.below(3) as u8, buffer, now) == Fate::Kept {
            kept.insert(buffer);
        }
        assert!(kept.len() + taken.len() <= 32, "{} buffers held", kept.len());
        if machine.expire(now) {
            machine.time_out(now);
        }
        let sent = std::iter::from_fn(|| machine.poll_transmit(now)).take(1000).count();
        assert!(sent < 1000, "one packet made it send {sent}");
        while let Some(slot) = machine.next_free_slot() {
            assert!(slots.remove(&slot), "slot {slot} was not taken, or freed before");
        }
        if chance.hits(500)
            && let Some(delivery) = machine.next_delivery()
        {
            assert!(kept.remove(&delivery.buffer), "buffer {} not kept", delivery.buffer);
            taken.push(delivery.peer);
        }
        if chance.hits(500) {
            taken.drain(..).for_each(|peer| machine.released(peer));
        }
        machine.released(peer + 10); // nobody's
        assert_eq!(machine.outstanding(), slots.len() as u64);
    }
    (0..4).for_each(|peer| machine.peer_gone(peer));
    while let Some(slot) = machine.next_free_slot() {
        assert!(slots.remove(&slot), "slot {slot} freed twice");
    }
    assert!(slots.is_empty() && machine.is_done());
    machine.dump(&mut Vec::new()).unwrap();
}

#[test]
fn no_packet_that_has_the_secret_does_harm() {
    for seed in 0..60 {
        let result = std::panic::catch_unwind(|| torment(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let mut machine = Machine::new(config());
    for (node, len, kind) in
        [(0, 8, Kind::Data), (4, 8, Kind::Data), (1, 0, Kind::Data), (1, 1409, Kind::Data)]
    {
        assert_eq!(machine.submit(node, 0, len, kind), Err(Refused::Invalid));
    }
    assert_eq!(machine.submit(1, 0, 8, Kind::Ack), Err(Refused::Invalid));
    assert!(!machine.can_send(0) && !machine.can_send(4) && machine.can_send(1));
    for slot in 0..48 {
        assert_eq!(machine.submit(1, slot, 8, Kind::Data), Ok(slot));
    }
    assert_eq!(machine.submit(1, 48, 8, Kind::Data), Err(Refused::Full));
    assert!(!machine.can_send(1) && machine.can_send(2));
    machine.peer_gone(1);
    assert_eq!(machine.submit(1, 48, 8, Kind::Data), Ok(48), "dropped, not refused");
    assert_eq!(std::iter::from_fn(|| machine.next_free_slot()).count(), 49);
    assert_eq!((machine.counters().dropped, machine.outstanding()), (49, 0));
}

#[test]
fn the_secret_is_looked_at_first() {
    let mut machine = Machine::new(config());
    let mut packet = [0xff; HEADER];
    machine.receive(&packet, 0, 0, 0);
    assert_eq!(machine.counters().wrong_secret, 1, "whatever else is wrong");
    packet[8..16].copy_from_slice(&1u64.to_le_bytes());
    machine.receive(&packet, 0, 0, 0);
    machine.receive(&packet[..20], 0, 0, 0);
    assert_eq!((machine.counters().wrong_secret, machine.counters().malformed), (1, 2));
}
