//! Runs PM/Ethernet's reliability machine in a simulated network, and checks the guarantees of
//! `docs/dev/ethernet.md`.

// These tests have no unsafe code, and they would take too much of the time that sanitizers have.
#![cfg(not(sanitized))]

mod delays;
mod hostile;
mod interface;
mod network;
mod node;
mod random_faults;
mod sim_rng;
mod simulator;
mod throughput;

use network::{MS, Network, SECOND};
use score_pm_reliability::ReliabilityEvent;
use simulator::Simulation;

const HOUR: u64 = 3600 * SECOND;

/// Runs the simulation to its end. If it does not reach the end in time, panics with the states of
/// the machines.
fn finish(sim: &mut Simulation, timeout_ns: u64) {
    let until = sim.now + timeout_ns;
    let done = sim.run(until, Simulation::all_done);
    assert!(done, "not done at {} ms:\n{}", sim.now / MS, sim.dump());
    sim.check_nothing_leaked();
}

#[test]
fn sequence_numbers_may_wrap_in_the_middle_of_a_window() {
    let network = Network { loss: 50, jitter: 30_000, ..Network::clean(3, 1) };
    let mut sim = Simulation::new(network, 1, |config| config.first_sequence = u32::MAX - 300);
    sim.plan(0, 1, 2000);
    sim.plan(1, 0, 100);
    sim.plan(2, 1, 500);
    finish(&mut sim, 60 * SECOND);
}

// Promise (messages): A peer that sends nothing for an hour is not taken for dead; a link that is
// down for 5 s loses nothing.
#[test]
fn a_peer_that_is_frozen_for_an_hour_is_not_dead() {
    let mut sim = Simulation::new(Network::clean(2, 1), 2, |_| {});
    sim.plan(0, 1, 5000);
    sim.nodes[1].frozen_until = HOUR;
    assert!(!sim.run(HOUR - SECOND, Simulation::all_done));
    let sent = sim.nodes[0].machine.counters().sent;
    assert!(sent < 40_000, "{sent} packets to a peer that does not answer");
    let timeout_ns = 2 * SECOND;
    finish(&mut sim, timeout_ns);
}

#[test]
fn a_stalled_receiver_stops_its_sender_until_it_reads_again() {
    let network = Network { loss: 200, ..Network::clean(2, 1) };
    let mut sim = Simulation::new(network, 3, |config| config.window = 64);
    sim.plan(0, 1, 3000);
    sim.nodes[1].stalled_until = 20 * SECOND;
    assert!(!sim.run(10 * SECOND, Simulation::all_done));
    let before = sim.nodes[0].machine.counters().sent;
    assert!(!sim.run(19 * SECOND, Simulation::all_done));
    let probes = sim.nodes[0].machine.counters().sent - before;
    assert!((5..200).contains(&probes), "{probes} packets in 9 s with a closed window");
    finish(&mut sim, 20 * SECOND);
}

#[test]
fn many_senders_do_not_fill_the_buffers_of_one_receiver() {
    let mut sim = Simulation::new(Network::clean(33, 1), 4, |config| config.buffers = 128);
    for from in 1..33 {
        sim.plan(from, 0, 200);
        sim.nodes[from as usize].len = 200;
    }
    sim.nodes[0].stalled_until = 3 * SECOND;
    // If a machine kept more than `buffers` buffers, the simulation's pool would run empty, which
    // panics.
    finish(&mut sim, 60 * SECOND);
    let delivered = sim.nodes[0].delivered.values().sum::<u64>();
    assert_eq!(delivered, 32 * 200);
}

// Promise of `a_peer_that_is_frozen_for_an_hour_is_not_dead`.
#[test]
fn a_link_that_is_down_for_five_seconds_loses_no_message_and_is_reported_once() {
    let mut network = Network::clean(2, 2);
    network.outages.push((1, 100 * MS, 5 * SECOND));
    network.byte_picos = 1_600_000; // 5 Mbit/s
    let mut sim = Simulation::new(network, 5, |_| {});
    sim.plan(0, 1, 5000);
    finish(&mut sim, 60 * SECOND);
    let expected = [
        ReliabilityEvent::LinkDown { peer: 1, link: 1 },
        ReliabilityEvent::LinkUp { peer: 1, link: 1 },
    ];
    assert_eq!(sim.nodes[0].events, expected);
    let finished_at = sim.nodes[1].finished_at;
    // 5,000 messages take 6 s on two links. 5 s with only one link add 2.5 s.
    assert!(finished_at < 9500 * MS, "took {} ms", finished_at / MS);
}

// Promise (messages): A link is given up if its probes remain unanswered while another link works,
// but not because packets, a link or a host are late.
#[test]
fn no_link_is_declared_dead_because_a_host_or_a_link_is_slow() {
    let (mut premature_packets, mut paused_hosts) = (0, 0);
    for seed in 0..8 {
        let mut network = Network::clean(2, 2);
        (network.byte_picos, network.delay) = (800 << (seed % 4), 10_000 << (seed % 3));
        (network.loss, network.jitter) = (seed % 3 * 10, seed % 5 * 50_000);
        network.link_stalls = (2000, 30 * MS);
        let mut sim = Simulation::new(network, seed, |_| {});
        sim.freeze_ppm = if seed < 6 { 1000 } else { 0 };
        sim.plan(0, 1, 5000);
        sim.plan(1, 0, 5000 * (seed % 2));
        finish(&mut sim, 300 * SECOND);
        for node in &sim.nodes {
            assert!(node.events.is_empty(), "seed {seed}: {:?}\n{}", node.events, sim.dump());
            premature_packets += node.machine.counters().premature;
            paused_hosts += u64::from(node.frozen_until > 0);
        }
    }
    assert!(
        premature_packets > 500 && paused_hosts > 6,
        "{premature_packets} packets late, {paused_hosts} hosts paused"
    );
}

#[test]
fn the_only_link_is_down_for_five_seconds_and_traffic_resumes_at_once() {
    let mut network = Network::clean(2, 1);
    network.outages.push((0, MS, 5 * SECOND));
    let mut sim = Simulation::new(network, 6, |_| {});
    sim.plan(0, 1, 5000);
    sim.plan(1, 0, 5000);
    finish(&mut sim, 6 * SECOND);
    assert!(sim.nodes[0].events.is_empty(), "there is no other link to compare with");
}

#[test]
fn an_idle_network_has_no_timers() {
    let mut sim = Simulation::new(Network::clean(8, 2), 7, |_| {});
    for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
        if from != to {
            sim.plan(from, to, 100);
        }
    }
    finish(&mut sim, SECOND);
    sim.run(sim.now + 2 * SECOND, |_| false);
    for node in &mut sim.nodes {
        assert_eq!(node.machine.deadline(), None);
    }
}

#[test]
fn messages_of_a_process_that_died_arrive_and_those_to_it_are_dropped() {
    let network = Network { loss: 100, jitter: 50_000, ..Network::clean(3, 1) };
    let mut sim = Simulation::new(network, 8, |_| {});
    sim.plan(0, 1, 900);
    sim.plan(0, 2, 900);
    sim.plan(1, 0, 900);
    sim.run(2 * MS, |_| false);
    sim.kill(0);
    sim.run(30 * MS, |_| false);
    sim.announce_death(0);
    sim.nodes[0].to_submit.clear();
    finish(&mut sim, 30 * SECOND);
    assert!(sim.nodes[1].machine.counters().dropped > 0, "{}", sim.dump());
}
