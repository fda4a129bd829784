//! Packets that are late, not lost: a host has lost the processor for a while.

use score_pm::reliability::{Config, HEADER, Kind, Machine};

use super::finish;
use super::world::{INCARNATION, MS, Network, SECOND, SECRET, World};

/// When 20,000 messages have come to a host that sleeps so often for so long, and how many
/// time-outs there were, and messages sent again.
fn sleepy(sleeps: u64, length: u64) -> (u64, u64, u64) {
    let roomy = Network { queue: 4 << 20, ..Network::clean(2, 1) };
    let mut world = World::new(roomy, 21, |_| {});
    world.plan(0, 1, 20_000);
    world.run(2 * MS, |_| false);
    for _ in 0..sleeps {
        world.nodes[1].frozen_until = world.now + length;
        world.run(world.now + length + MS, |_| false);
    }
    finish(&mut world, SECOND);
    let counters = world.nodes[0].machine.counters();
    println!("{sleeps} x {} ms: {counters:?}", length / MS);
    (world.nodes[1].finished_at, counters.time_outs, counters.repeated)
}

#[test]
fn a_receiver_that_sleeps_costs_its_sleep_and_a_packet_or_two_for_each_time_out() {
    let (awake, none, never) = sleepy(0, 0);
    assert_eq!((none, never), (0, 0));
    for (sleeps, length, each) in [(1, 4, 1), (5, 4, 1), (3, 12, 2), (2, 40, 2)] {
        let length = length * MS;
        let (at, time_outs, repeated) = sleepy(sleeps, length);
        assert!(time_outs > sleeps && repeated <= each * time_outs, "{repeated} for {time_outs}");
        let most = awake + sleeps * (length + MS / 10);
        assert!(at <= most, "{sleeps} x {} ms: {at} ns instead of {awake}", length / MS);
    }
}

/// Longer than its acknowledgements say one by one, and shorter than three time-outs.
#[test]
fn a_window_that_is_lost_as_a_whole_goes_again_at_once() {
    let network = Network::clean(2, 1);
    let took = |outages| {
        let mut world = World::new(Network { outages, ..network.clone() }, 22, |_| {});
        world.plan(0, 1, 20_000);
        finish(&mut world, SECOND);
        world.nodes[1].finished_at
    };
    let whole = took(Vec::new());
    for begin in 0..20 {
        let begin = 5 * MS + begin * MS / 20;
        let broken = took(vec![(0, begin, begin + 2 * MS)]);
        assert!(broken < whole + 5 * MS, "{broken} ns instead of {whole} from {begin} on");
    }
}

/// What the machine has to send, encoded.
fn packets(machine: &mut Machine, now: u64) -> Vec<Vec<u8>> {
    let transmits = std::iter::from_fn(|| machine.poll_transmit(now));
    let encode = |packet: score_pm::reliability::Transmit| {
        let mut bytes = vec![0; HEADER + packet.payload.map_or(0, |(_, len)| usize::from(len))];
        packet.header.encode(bytes.first_chunk_mut().expect("a header's length"));
        bytes
    };
    transmits.map(encode).collect()
}

#[test]
fn what_has_come_while_the_sender_slept_comes_before_its_time_out() {
    let machine = |own| Machine::new(Config::new(own, 2, SECRET, INCARNATION));
    let [mut sender, mut receiver] = [0, 1].map(machine);
    assert!(sender.submit(1, 0, 8, Kind::Data).is_ok());
    for packet in packets(&mut sender, MS) {
        receiver.receive(&packet, 0, 0, MS);
    }
    assert!(!receiver.expire(2 * MS), "it waits for nothing");
    let answer = packets(&mut receiver, 2 * MS);
    assert!(sender.expire(20 * MS), "it would have been answered by then");
    for packet in answer {
        sender.receive(&packet, 0, 0, 20 * MS);
    }
    sender.time_out(20 * MS);
    assert_eq!(packets(&mut sender, 20 * MS).len() as u64 + sender.counters().time_outs, 0);
    assert!(sender.is_done() && sender.deadline().is_none());
    // The same without an answer.
    assert!(sender.submit(1, 0, 8, Kind::Data).is_ok());
    assert_eq!(packets(&mut sender, 30 * MS).len(), 1);
    assert!(sender.expire(300 * MS));
    sender.time_out(300 * MS);
    assert_eq!((packets(&mut sender, 300 * MS).len(), sender.counters().time_outs), (1, 1));
}
