//! Packets that are late but not lost, because a host has lost its processor for a while.

use score_pm_reliability::{Config, PACKET_HEADER_LEN, PacketKind, ReliabilityMachine};

use super::finish;
use super::network::{MS, Network, SECOND};
use super::simulator::{INCARNATION, SECRET, Simulation};

/// Sends 20,000 messages to a host that sleeps `sleeps` times for `length`. Returns the time at
/// which all have arrived, the number of time-outs, and the number of retransmitted messages.
fn run_with_sleeping_receiver(sleeps: u64, length: u64) -> (u64, u64, u64) {
    let network = Network { queue: 4 << 20, ..Network::clean(2, 1) };
    let mut sim = Simulation::new(network, 21, |_| {});
    sim.plan(0, 1, 20_000);
    sim.run(2 * MS, |_| false);
    for _ in 0..sleeps {
        sim.nodes[1].frozen_until = sim.now + length;
        sim.run(sim.now + length + MS, |_| false);
    }
    finish(&mut sim, SECOND);
    let counters = sim.nodes[0].machine.counters();
    println!("{sleeps} x {} ms: {counters:?}", length / MS);
    (sim.nodes[1].finished_at, counters.time_outs, counters.repeated)
}

// Promise (messages): If a host loses its processor, each time-out costs a packet or two, and no
// bandwidth afterwards; packets that have arrived meanwhile are processed before a time-out; a
// window that is lost completely is sent again at once.
#[test]
fn a_sleeping_receiver_causes_one_or_two_packets_for_each_time_out() {
    let (awake_ns, no_time_outs, no_repeats) = run_with_sleeping_receiver(0, 0);
    assert_eq!((no_time_outs, no_repeats), (0, 0));
    for (sleeps, length, repeats_per_time_out) in [(1, 4, 1), (5, 4, 1), (3, 12, 2), (2, 40, 2)] {
        let length = length * MS;
        let (finished_at, time_outs, repeated) = run_with_sleeping_receiver(sleeps, length);
        assert!(
            time_outs > sleeps && repeated <= repeats_per_time_out * time_outs,
            "{repeated} for {time_outs}"
        );
        let max_ns = awake_ns + sleeps * (length + MS / 10);
        assert!(
            finished_at <= max_ns,
            "{sleeps} x {} ms: {finished_at} ns instead of {awake_ns}",
            length / MS
        );
    }
}

/// The loss is longer than single acknowledgements report, and shorter than three time-outs.
// Promise of `a_sleeping_receiver_causes_one_or_two_packets_for_each_time_out`.
#[test]
fn a_window_that_is_lost_as_a_whole_is_resent_at_once() {
    let network = Network::clean(2, 1);
    let time_with = |outages| {
        let mut sim = Simulation::new(Network { outages, ..network.clone() }, 22, |_| {});
        sim.plan(0, 1, 20_000);
        finish(&mut sim, SECOND);
        sim.nodes[1].finished_at
    };
    let undisturbed_ns = time_with(Vec::new());
    for begin in 0..20 {
        let begin = 5 * MS + begin * MS / 20;
        let disturbed_ns = time_with(vec![(0, begin, begin + 2 * MS)]);
        assert!(
            disturbed_ns < undisturbed_ns + 5 * MS,
            "{disturbed_ns} ns instead of {undisturbed_ns} from {begin} on"
        );
    }
}

/// The encoded packets that the machine has to send.
fn packets(machine: &mut ReliabilityMachine, now: u64) -> Vec<Vec<u8>> {
    let transmits = std::iter::from_fn(|| machine.poll_transmit(now));
    let encode = |packet: score_pm_reliability::Transmit| {
        let mut bytes =
            vec![0; PACKET_HEADER_LEN + packet.payload.map_or(0, |(_, len)| usize::from(len))];
        packet.header.encode(bytes.first_chunk_mut().expect("a header's length"));
        bytes
    };
    transmits.map(encode).collect()
}

// Promise of `a_sleeping_receiver_causes_one_or_two_packets_for_each_time_out`.
#[test]
fn packets_received_while_the_sender_slept_are_processed_before_its_time_out() {
    let machine = |node| ReliabilityMachine::new(Config::new(node, 2, SECRET, INCARNATION));
    let [mut sender, mut receiver] = [0, 1].map(machine);
    assert!(sender.submit(1, 0, 8, PacketKind::Data).is_ok());
    for packet in packets(&mut sender, MS) {
        receiver.receive(&packet, 0, 0, MS);
    }
    assert!(!receiver.expire(2 * MS), "no timer is due");
    let answer = packets(&mut receiver, 2 * MS);
    assert!(sender.expire(20 * MS), "the answer is due by then");
    for packet in answer {
        sender.receive(&packet, 0, 0, 20 * MS);
    }
    sender.on_timeout(20 * MS);
    assert_eq!(packets(&mut sender, 20 * MS).len() as u64 + sender.counters().time_outs, 0);
    assert!(sender.is_all_acked() && sender.deadline().is_none());
    // The next message gets no answer.
    assert!(sender.submit(1, 0, 8, PacketKind::Data).is_ok());
    assert_eq!(packets(&mut sender, 30 * MS).len(), 1);
    assert!(sender.expire(300 * MS));
    sender.on_timeout(300 * MS);
    assert_eq!((packets(&mut sender, 300 * MS).len(), sender.counters().time_outs), (1, 1));
}
