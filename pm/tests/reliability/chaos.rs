//! Everything that can go wrong, chosen by a seed. A seed that fails is printed;
//! `PM_RELIABILITY_SEED=N` repeats it, `PM_RELIABILITY_SEEDS=N` runs more of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use score_pm::reliability::Event;

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
    let one = seeds.end - seeds.start == 1;
    let mut seen = Seen::default();
    for seed in seeds {
        if let Err(reason) = catch_unwind(AssertUnwindSafe(|| play(seed, &mut seen))) {
            eprintln!("PM_RELIABILITY_SEED={seed} repeats this");
            std::panic::resume_unwind(reason);
        }
    }
    println!("{seen:?}");
    let rare = seen.0.iter().filter(|(_, count)| **count == 0);
    let rare: Vec<_> = rare.map(|(name, _)| name).collect();
    assert!(one || rare.is_empty(), "never happened: {rare:?}");
}

/// How often each thing has happened: a simulation that never gets there shows nothing.
#[derive(Default, Debug)]
struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    fn add(&mut self, world: &World) {
        let mut count = |name, count| *self.0.entry(name).or_default() += count;
        count("forgeries", world.forgeries);
        for node in &world.nodes {
            let counters = node.machine.counters();
            count("sent again", counters.repeated);
            count("too early", counters.premature);
            count("time-outs", counters.time_outs);
            count("out of order", counters.early);
            count("dropped", counters.dropped);
            count("wrong secret", counters.wrong_secret);
            count("wrong incarnation", counters.wrong_incarnation);
            count("malformed", counters.malformed);
            count("wrong length", counters.wrong_length);
            count("misdirected", counters.misdirected);
            count("duplicate", counters.duplicate);
            count("no room", counters.no_room);
            count("overtaken acknowledgements", counters.old_acks);
            count("for a dead process", counters.undelivered);

            count("links suspected", counters.suspected);
            let down = |event: &&Event| matches!(event, Event::LinkDown { .. });
            let downs = node.events.iter().filter(down).count() as u64;
            count("links down", downs);
            count("links up", node.events.len() as u64 - downs);
        }
    }
}

fn network(seed: u64, chance: &mut Chance) -> Network {
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
    network.holds = (sometimes(5000), 20 * MS);
    for link in 0..network.links {
        if chance.hits(300) {
            let from = chance.below(200 * MS);
            network.outages.push((link, from, from + chance.below(2 * SECOND)));
        }
    }
    if seed % 5 == 1 {
        // So slow that there is something to send while a link is found dead, and after that.
        (network.nodes, network.links) = (2, 2 + chance.below(2) as u8);
        (network.byte_picos, network.queue) = (1_600_000, 32 << 10);
        network.loss = network.loss.min(50);
        let from = chance.below(200 * MS);
        network.outages = vec![(0, from, from + SECOND + chance.below(SECOND))];
    }
    network
}

fn play(seed: u64, seen: &mut Seen) {
    let mut chance = Chance::new(seed ^ 0xc4a0);
    let network = network(seed, &mut chance);
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
    world.pauses = if chance.hits(200) { chance.below(500) } else { 0 };
    let pairs = 1 + chance.below((nodes * (nodes - 1)).min(60));
    for _ in 0..pairs {
        let (from, to) = (chance.below(nodes) as u32, chance.below(nodes) as u32);
        if from != to {
            world.plan(from, to, 1 + chance.below(4000 / pairs));
            world.nodes[from as usize].len = 8 + chance.below(1392) as u16;
        }
    }
    if seed % 5 == 1 {
        world.plan(0, 1, 2000);
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
    world.check_nothing_leaked();
    seen.add(&world);
}
