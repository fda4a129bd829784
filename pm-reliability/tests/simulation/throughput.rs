//! The throughput of the reliability machine in simulated time, which does not depend on the
//! computer.

use super::finish;
use super::network::{Network, SECOND};
use super::simulator::Simulation;

/// The nanoseconds that `count` messages from node 0 to node 1 take.
fn one_way(network: Network, count: u64) -> u64 {
    let mut sim = Simulation::new(network, 11, |_| {});
    sim.plan(0, 1, count);
    finish(&mut sim, 600 * SECOND);
    sim.nodes[1].finished_at
}

// Promise (messages): 1 % loss costs less than a tenth of the bandwidth; two links carry at least
// 1.9 times as much as one (simulated).
#[test]
fn one_percent_loss_reduces_bandwidth_by_less_than_a_tenth() {
    for (byte_picos, delay, count) in
        [(800, 10_000, 40_000), (8000, 50_000, 6000), (40_000, 200_000, 6000)]
    {
        let clean = Network { byte_picos, delay, ..Network::clean(2, 1) };
        let lossy = Network { loss: 10, ..clean.clone() };
        let wire_ns = count * (1400 + 64 + 42) * byte_picos / 1000;
        let (clean, lossy) = (one_way(clean, count), one_way(lossy, count));
        println!("{byte_picos} ps a byte: wire {wire_ns} ns, clean {clean}, 1 % loss {lossy}");
        assert!(wire_ns * 10 > clean * 9, "clean: {clean} ns, the wire alone {wire_ns}");
        assert!(clean * 10 >= lossy * 9, "{clean} ns without loss, {lossy} with");
    }
}

// Promise of `one_percent_loss_reduces_bandwidth_by_less_than_a_tenth`.
#[test]
fn two_links_carry_nearly_twice_the_data_of_one_link() {
    for (byte_picos, count) in [(800, 8000), (40_000, 4000)] {
        let one = one_way(Network { byte_picos, ..Network::clean(2, 1) }, count);
        for links in 2..=4 {
            let several = one_way(Network { byte_picos, ..Network::clean(2, links) }, count);
            println!("{byte_picos} ps a byte: one link {one} ns, {links} links {several}");
            let factor = one * 100 / several;
            assert!(factor >= 95 * u64::from(links), "{links} links: {factor} %");
        }
    }
}

#[test]
fn thirty_two_senders_to_one_all_get_their_share() {
    let network = Network { byte_picos: 8000, queue: 128 << 10, ..Network::clean(33, 1) };
    let mut sim = Simulation::new(network, 12, |_| {});
    for from in 1..33 {
        sim.plan(from, 0, 400);
    }
    // When the first sender has finished, the last one must have made good progress.
    let first_is_done =
        |sim: &Simulation| sim.nodes[0].delivered.values().any(|count| *count == 400);
    assert!(sim.run(60 * SECOND, first_is_done));
    let counts: Vec<u64> = sim.nodes[0].delivered.values().copied().collect();
    let min_count = counts.iter().min().copied().unwrap_or(0);
    println!("when the first sender is done: {counts:?}");
    assert!(counts.len() == 32 && min_count >= 8, "{counts:?}");
    finish(&mut sim, 60 * SECOND);
    let elapsed_ns = sim.nodes[0].finished_at;
    let wire_ns = 32 * 400 * (1400 + 64 + 42) * sim.network.byte_picos / 1000;
    println!("incast: wire {wire_ns} ns, took {elapsed_ns}");
    assert!(elapsed_ns < wire_ns * 2, "took {elapsed_ns} ns, the wire alone {wire_ns}");
}

#[test]
fn reordering_over_long_distances_reduces_bandwidth_little() {
    let ordered = Network { byte_picos: 8000, ..Network::clean(2, 1) };
    let reordered = Network { jitter: 300_000, ..ordered.clone() };
    let (ordered_ns, reordered_ns) = (one_way(ordered, 5000), one_way(reordered, 5000));
    println!("in order {ordered_ns} ns, reordered {reordered_ns}");
    assert!(reordered_ns < ordered_ns * 13 / 10, "{ordered_ns} ns in order, {reordered_ns} not");
}
