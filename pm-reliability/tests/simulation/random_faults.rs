//! All kinds of faults, chosen by a seed. A failing test prints its seed. `SCORE_SIM_SEED=N`
//! repeats one seed, `SCORE_SIM_SEEDS=N` runs more seeds.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use score_pm_reliability::ReliabilityEvent;

use super::network::{MS, Network, SECOND};
use super::sim_rng::SimRng;
use super::simulator::Simulation;

/// The default number of seeds.
const SEEDS: u64 = 40;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|words| words.parse().ok())
}

// Promise (messages): PM/Ethernet: messages arrive once and in order under loss, duplicates,
// reordering, dead links, stalls, forgeries, replays, and the sender's death.
#[test]
fn every_message_arrives_once_and_in_order_over_a_faulty_network() {
    let seeds = match from_environment("SCORE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("SCORE_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let single_seed = seeds.end - seeds.start == 1;
    let mut counts = EventCounts::default();
    for seed in seeds {
        if let Err(reason) = catch_unwind(AssertUnwindSafe(|| simulate(seed, &mut counts))) {
            eprintln!("SCORE_SIM_SEED={seed} repeats this");
            std::panic::resume_unwind(reason);
        }
    }
    println!("{counts:?}");
    let missing = counts.0.iter().filter(|(_, count)| **count == 0);
    let missing: Vec<_> = missing.map(|(name, _)| name).collect();
    assert!(single_seed || missing.is_empty(), "never happened: {missing:?}");
}

/// Counts the events of each kind: a simulation without such an event tests nothing.
#[derive(Default, Debug)]
struct EventCounts(BTreeMap<&'static str, u64>);

impl EventCounts {
    fn add(&mut self, sim: &Simulation) {
        let mut count = |name, count| *self.0.entry(name).or_default() += count;
        count("forgeries", sim.forgeries);
        for node in &sim.nodes {
            let counters = node.machine.counters();
            count("retransmitted", counters.repeated);
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
            let down =
                |event: &&ReliabilityEvent| matches!(event, ReliabilityEvent::LinkDown { .. });
            let downs = node.events.iter().filter(down).count() as u64;
            count("links down", downs);
            count("links up", node.events.len() as u64 - downs);
        }
    }
}

fn network(seed: u64, rng: &mut SimRng) -> Network {
    let nodes = match rng.below(8) {
        0..5 => 2 + rng.below(4),
        5..7 => 6 + rng.below(12),
        _ => 18 + rng.below(47),
    };
    let mut network = Network::clean(nodes as u32, 1 + rng.below(3) as u8);
    let mut half_the_time = |limit: u64| if rng.chance(500) { rng.below(limit) } else { 0 };
    network.loss = half_the_time(250);
    network.duplicates = half_the_time(200);
    network.jitter = half_the_time(2 * MS);
    network.forged = half_the_time(200);
    network.byte_picos = 800 + half_the_time(80_000);
    network.queue = (8 << 10) + half_the_time(512 << 10);
    network.delay = 2_000 + half_the_time(500_000);
    network.link_stalls = (half_the_time(5000), 20 * MS);
    for link in 0..network.links {
        if rng.chance(300) {
            let from = rng.below(200 * MS);
            network.outages.push((link, from, from + rng.below(2 * SECOND)));
        }
    }
    if seed % 5 == 1 {
        // The network is slow, so that packets remain to be sent while a link is declared down, and
        // later.
        (network.nodes, network.links) = (2, 2 + rng.below(2) as u8);
        (network.byte_picos, network.queue) = (1_600_000, 32 << 10);
        network.loss = network.loss.min(50);
        let from = rng.below(200 * MS);
        network.outages = vec![(0, from, from + SECOND + rng.below(SECOND))];
    }
    network
}

fn simulate(seed: u64, counts: &mut EventCounts) {
    let mut rng = SimRng::new(seed ^ 0xc4a0);
    let network = network(seed, &mut rng);
    let nodes = u64::from(network.nodes);
    let first = rng.next() as u32;
    let window = 16 + rng.below(500) as u32;
    let buffers = 16 + rng.below(1000) as u32;
    let queue = 1 + rng.below(600) as u32;
    let description = format!("{network:?}, window {window}, buffers {buffers}, queue {queue}");
    let mut sim = Simulation::new(network, seed, |config| {
        (config.first_sequence, config.window) = (first, window);
        (config.buffers, config.max_queued) = (buffers, queue);
    });
    sim.stall_permille = if rng.chance(300) { rng.below(20) } else { 0 };
    sim.freeze_ppm = if rng.chance(200) { rng.below(500) } else { 0 };
    let pairs = 1 + rng.below((nodes * (nodes - 1)).min(60));
    for _ in 0..pairs {
        let (from, to) = (rng.below(nodes) as u32, rng.below(nodes) as u32);
        if from != to {
            sim.plan(from, to, 1 + rng.below(4000 / pairs));
            sim.nodes[from as usize].len = 8 + rng.below(1392) as u16;
        }
    }
    if seed % 5 == 1 {
        sim.plan(0, 1, 2000);
    }
    if rng.chance(300) {
        let node = rng.below(nodes) as usize;
        sim.nodes[node].stalled_until = rng.below(SECOND);
        sim.nodes[rng.below(nodes) as usize].frozen_until = rng.below(SECOND);
    }
    // A process may die at any moment: before the first packet, between two, after the last.
    if rng.chance(500) {
        let victim = rng.below(nodes) as u32;
        let death_at = rng.below(100 * MS);
        sim.run(death_at, |_| false);
        sim.nodes[victim as usize].to_submit.clear();
        sim.kill(victim);
        let announced_at = sim.now + rng.below(500 * MS);
        sim.run(announced_at, |_| false);
        sim.announce_death(victim);
    }
    let done = sim.run(600 * SECOND, Simulation::all_done);
    let now_ms = sim.now / MS;
    assert!(done, "seed {seed} ({description}) not done at {now_ms} ms:\n{}", sim.dump());
    sim.check_nothing_leaked();
    counts.add(&sim);
}
