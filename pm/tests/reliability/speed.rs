//! How well the machine uses a link, in simulated time: the same on every computer.

use super::finish;
use super::world::{Network, SECOND, World};

/// Nanoseconds that `count` messages from node 0 to node 1 take.
fn one_way(network: Network, count: u64) -> u64 {
    let mut world = World::new(network, 11, |_| {});
    world.plan(0, 1, count);
    finish(&mut world, 600 * SECOND);
    world.nodes[1].finished_at
}

#[test]
fn one_percent_loss_costs_less_than_a_tenth_of_the_bandwidth() {
    for (byte_picos, delay, count) in
        [(800, 10_000, 40_000), (8000, 50_000, 6000), (40_000, 200_000, 6000)]
    {
        let clean = Network { byte_picos, delay, ..Network::clean(2, 1) };
        let lossy = Network { loss: 10, ..clean.clone() };
        let wire = count * (1400 + 64 + 42) * byte_picos / 1000;
        let (clean, lossy) = (one_way(clean, count), one_way(lossy, count));
        println!("{byte_picos} ps a byte: wire {wire} ns, clean {clean}, 1 % loss {lossy}");
        assert!(wire * 10 > clean * 9, "clean: {clean} ns, the wire alone {wire}");
        assert!(clean * 10 >= lossy * 9, "{clean} ns without loss, {lossy} with");
    }
}

#[test]
fn two_links_carry_nearly_twice_as_much_as_one() {
    for (byte_picos, count) in [(800, 8000), (40_000, 4000)] {
        let one = one_way(Network { byte_picos, ..Network::clean(2, 1) }, count);
        for links in 2..=4 {
            let more = one_way(Network { byte_picos, ..Network::clean(2, links) }, count);
            println!("{byte_picos} ps a byte: one link {one} ns, {links} links {more}");
            let factor = one * 100 / more;
            assert!(factor >= 95 * u64::from(links), "{links} links: {factor} %");
        }
    }
}

#[test]
fn thirty_two_senders_to_one_all_get_their_share() {
    let network = Network { byte_picos: 8000, queue: 128 << 10, ..Network::clean(33, 1) };
    let mut world = World::new(network, 12, |_| {});
    for from in 1..33 {
        world.plan(from, 0, 400);
    }
    // When the first one is through, the last one is well on its way.
    let first = |world: &World| world.nodes[0].delivered.values().any(|count| *count == 400);
    assert!(world.run(60 * SECOND, first));
    let counts: Vec<u64> = world.nodes[0].delivered.values().copied().collect();
    let least = counts.iter().min().copied().unwrap_or(0);
    println!("when the first is through: {counts:?}");
    assert!(counts.len() == 32 && least >= 8, "{counts:?}");
    finish(&mut world, 60 * SECOND);
    let took = world.nodes[0].finished_at;
    let wire = 32 * 400 * (1400 + 64 + 42) * world.network.byte_picos / 1000;
    println!("incast: wire {wire} ns, took {took}");
    assert!(took < wire * 2, "took {took} ns, the wire alone {wire}");
}

#[test]
fn reordering_by_many_places_costs_little() {
    let calm = Network { byte_picos: 8000, ..Network::clean(2, 1) };
    let wild = Network { jitter: 300_000, ..calm.clone() };
    let (calm, wild) = (one_way(calm, 5000), one_way(wild, 5000));
    println!("calm {calm} ns, reordered {wild}");
    assert!(wild < calm * 13 / 10, "{calm} ns in order, {wild} not");
}
