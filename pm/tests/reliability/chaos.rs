//! Everything that can go wrong, chosen by a seed. A seed that fails is printed;
//! `PM_RELIABILITY_SEED=N` repeats it, `PM_RELIABILITY_SEEDS=N` runs more of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::world::{Chance, MS, Network, SECOND, World};

/// Seeds of a run that nobody asked to be longer.
const SEEDS: u64 = 40;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|words| words.parse().ok())
}

#[test]
fn every_message_arrives_once_and_in_order_whatever_the_network_does() {
    let seeds = match from_environment("PM_RELIABILITY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("PM_RELIABILITY_SEEDS").unwrap_or(SEEDS),
    };
    let mut forgeries = 0;
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| play(seed))) {
            Ok(forged) => forgeries += forged,
            Err(reason) => {
                eprintln!("PM_RELIABILITY_SEED={seed} repeats this");
                std::panic::resume_unwind(reason);
            }
        }
    }
    assert!(forgeries > 0 || from_environment("PM_RELIABILITY_SEED").is_some());
}

fn network(chance: &mut Chance) -> Network {
    let nodes = match chance.below(8) {
        0..5 => 2 + chance.below(4),
        5..7 => 6 + chance.below(12),
        _ => 18 + chance.below(47),
    };
    let mut network = Network::clean(nodes as u32, 1 + chance.below(3) as u8);
    let mut sometimes = |most: u64| if chance.hits(500) { chance.below(most) } else { 0 };
    network.loss = sometimes(250);
    network.duplicates = sometimes(200);
    network.jitter = sometimes(2 * MS);
    network.forged = sometimes(200);
    network.byte_picos = 800 + sometimes(80_000);
    network.queue = (8 << 10) + sometimes(512 << 10);
    network.delay = 2_000 + sometimes(500_000);
    for link in 0..network.links {
        if chance.hits(300) {
            let from = chance.below(200 * MS);
            network.outages.push((link, from, from + chance.below(2 * SECOND)));
        }
    }
    network
}

fn play(seed: u64) -> u64 {
    let mut chance = Chance::new(seed ^ 0xc4a0);
    let network = network(&mut chance);
    let nodes = u64::from(network.nodes);
    let first = chance.next() as u32;
    let window = 16 + chance.below(500) as u32;
    let buffers = 16 + chance.below(1000) as u32;
    let queue = 1 + chance.below(600) as u32;
    let described = format!("{network:?}, window {window}, buffers {buffers}, queue {queue}");
    let mut world = World::new(network, seed, |config| {
        (config.first_sequence, config.window) = (first, window);
        (config.buffers, config.queue) = (buffers, queue);
    });
    world.naps = if chance.hits(300) { chance.below(20) } else { 0 };
    let pairs = 1 + chance.below((nodes * (nodes - 1)).min(60));
    for _ in 0..pairs {
        let (from, to) = (chance.below(nodes) as u32, chance.below(nodes) as u32);
        if from != to {
            world.plan(from, to, 1 + chance.below(6000 / pairs));
            world.nodes[from as usize].len = 8 + chance.below(1392) as u16;
        }
    }
    if chance.hits(300) {
        let node = chance.below(nodes) as usize;
        world.nodes[node].stalled_until = chance.below(SECOND);
        world.nodes[chance.below(nodes) as usize].frozen_until = chance.below(SECOND);
    }
    // One may die at any moment: before the first packet, in the middle, after the last.
    if chance.hits(500) {
        let dies = chance.below(nodes) as u32;
        let at = chance.below(100 * MS);
        world.run(at, |_| false);
        world.nodes[dies as usize].plan.clear();
        world.kill(dies);
        let told = world.now + chance.below(500 * MS);
        world.run(told, |_| false);
        world.announce_death(dies);
    }
    let done = world.run(600 * SECOND, World::all_done);
    let at = world.now / MS;
    assert!(done, "seed {seed} ({described}) not done at {at} ms:\n{}", world.dump());
    world.forgeries
}
