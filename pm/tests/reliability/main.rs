//! PM/Ethernet's reliability machine in a simulated network: what `docs/ethernet.md` promises.

// Nothing here is unsafe, and it takes a tenth of the time that sanitizers have.
#![cfg(not(sanitized))]

mod chaos;
mod hostile;
mod late;
mod node;
mod speed;
mod world;

use score_pm::reliability::Event;
use world::{MS, Network, SECOND, World};

const HOUR: u64 = 3600 * SECOND;

/// Runs to the end, and says what the machines know if that does not come.
fn finish(world: &mut World, within: u64) {
    let until = world.now + within;
    let done = world.run(until, World::all_done);
    assert!(done, "not done at {} ms:\n{}", world.now / MS, world.dump());
    world.check_nothing_leaked();
}

#[test]
fn sequence_numbers_may_wrap_in_the_middle_of_a_window() {
    let network = Network { loss: 50, jitter: 30_000, ..Network::clean(3, 1) };
    let mut world = World::new(network, 1, |config| config.first_sequence = u32::MAX - 300);
    world.plan(0, 1, 2000);
    world.plan(1, 0, 100);
    world.plan(2, 1, 500);
    finish(&mut world, 60 * SECOND);
}

#[test]
fn a_peer_held_for_an_hour_is_not_dead() {
    let mut world = World::new(Network::clean(2, 1), 2, |_| {});
    world.plan(0, 1, 5000);
    world.nodes[1].frozen_until = HOUR;
    assert!(!world.run(HOUR - SECOND, World::all_done));
    let sent = world.nodes[0].machine.counters().sent;
    assert!(sent < 40_000, "{sent} packets to a peer that does not answer");
    let within = 2 * SECOND;
    finish(&mut world, within);
}

#[test]
fn a_receiver_that_takes_nothing_stops_its_sender_and_then_all_goes_on() {
    let network = Network { loss: 200, ..Network::clean(2, 1) };
    let mut world = World::new(network, 3, |config| config.window = 64);
    world.plan(0, 1, 3000);
    world.nodes[1].stalled_until = 20 * SECOND;
    assert!(!world.run(10 * SECOND, World::all_done));
    let before = world.nodes[0].machine.counters().sent;
    assert!(!world.run(19 * SECOND, World::all_done));
    let probes = world.nodes[0].machine.counters().sent - before;
    assert!((5..200).contains(&probes), "{probes} packets in 9 s of a shut window");
    finish(&mut world, 20 * SECOND);
}

#[test]
fn many_senders_do_not_fill_the_buffers_of_one_receiver() {
    let mut world = World::new(Network::clean(33, 1), 4, |config| config.buffers = 128);
    for from in 1..33 {
        world.plan(from, 0, 200);
        world.nodes[from as usize].len = 200;
    }
    world.nodes[0].stalled_until = 3 * SECOND;
    // Each buffer beyond `buffers` would find the world's pool empty, and panic there.
    finish(&mut world, 60 * SECOND);
    let kept = world.nodes[0].delivered.values().sum::<u64>();
    assert_eq!(kept, 32 * 200);
}

#[test]
fn a_link_that_is_down_for_five_seconds_loses_nothing_and_is_told_once() {
    let mut network = Network::clean(2, 2);
    network.outages.push((1, 100 * MS, 5 * SECOND));
    network.byte_picos = 1_600_000; // 5 Mbit/s
    let mut world = World::new(network, 5, |_| {});
    world.plan(0, 1, 5000);
    finish(&mut world, 60 * SECOND);
    let expected = [Event::LinkDown { peer: 1, link: 1 }, Event::LinkUp { peer: 1, link: 1 }];
    assert_eq!(world.nodes[0].events, expected);
    let at = world.nodes[1].finished_at;
    // 5,000 messages take 6 s on two links; 5 s on one of them add 2.5.
    assert!(at < 9500 * MS, "took {} ms", at / MS);
}

#[test]
fn no_link_is_given_up_because_a_host_or_a_link_is_slow() {
    let (mut late, mut pauses) = (0, 0);
    for seed in 0..8 {
        let mut network = Network::clean(2, 2);
        (network.byte_picos, network.delay) = (800 << (seed % 4), 10_000 << (seed % 3));
        (network.loss, network.jitter) = (seed % 3 * 10, seed % 5 * 50_000);
        network.holds = (2000, 30 * MS);
        let mut world = World::new(network, seed, |_| {});
        world.pauses = if seed < 6 { 1000 } else { 0 };
        world.plan(0, 1, 5000);
        world.plan(1, 0, 5000 * (seed % 2));
        finish(&mut world, 300 * SECOND);
        for node in &world.nodes {
            assert!(node.events.is_empty(), "seed {seed}: {:?}\n{}", node.events, world.dump());
            late += node.machine.counters().premature;
            pauses += u64::from(node.frozen_until > 0);
        }
    }
    assert!(late > 500 && pauses > 6, "{late} packets late, {pauses} hosts paused");
}

#[test]
fn the_only_link_is_down_for_five_seconds_and_traffic_resumes_at_once() {
    let mut network = Network::clean(2, 1);
    network.outages.push((0, MS, 5 * SECOND));
    let mut world = World::new(network, 6, |_| {});
    world.plan(0, 1, 5000);
    world.plan(1, 0, 5000);
    finish(&mut world, 6 * SECOND);
    assert!(world.nodes[0].events.is_empty(), "there is no other link to compare with");
}

#[test]
fn a_network_at_rest_has_no_timers() {
    let mut world = World::new(Network::clean(8, 2), 7, |_| {});
    for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
        if from != to {
            world.plan(from, to, 100);
        }
    }
    finish(&mut world, SECOND);
    world.run(world.now + 2 * SECOND, |_| false);
    for node in &mut world.nodes {
        assert_eq!(node.machine.deadline(), None);
    }
}

#[test]
fn messages_of_a_process_that_died_arrive_and_those_to_it_are_dropped() {
    let network = Network { loss: 100, jitter: 50_000, ..Network::clean(3, 1) };
    let mut world = World::new(network, 8, |_| {});
    world.plan(0, 1, 900);
    world.plan(0, 2, 900);
    world.plan(1, 0, 900);
    world.run(2 * MS, |_| false);
    world.kill(0);
    world.run(30 * MS, |_| false);
    world.announce_death(0);
    world.nodes[0].plan.clear();
    finish(&mut world, 30 * SECOND);
    assert!(world.nodes[1].machine.counters().dropped > 0, "{}", world.dump());
}
