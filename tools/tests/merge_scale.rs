//! 100,000 servers in a tree with 16 children for each hop answer with 1,000 different stacks
//! (docs/dev/tools.md, N47 and E6 to E8). The results do not depend on the machine. `cargo bench -p
//! score-tools` measures times. This test is a program of its own, because it limits the memory of
//! the process.

#[path = "merge_scale/tree.rs"]
mod tree;

use std::collections::BTreeMap;

use score_proto::nodeset::NodeSet;
use score_tools::merge::EventBody;

const ARITY: usize = 16;
const STACKS: u32 = 1000;

/// The peak memory of this process so far, in bytes.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Simulates the tree, and compares the events of the root with a plain union.
fn run(servers: usize) -> Vec<tree::LevelCounts> {
    let result = tree::simulate(servers, ARITY, STACKS);
    let mut expected = BTreeMap::<usize, NodeSet>::new();
    for rank in 0..servers as u32 {
        expected.entry(tree::stack_index(rank, STACKS as usize)).or_default().insert(rank);
    }
    assert_eq!(result.top.len(), expected.len(), "one event a stack");
    let expected: BTreeMap<Vec<u8>, NodeSet> =
        expected.into_iter().map(|(index, ranks)| (tree::stack(index as u32), ranks)).collect();
    for event in result.top {
        let EventBody::Answer(body) = event.body else { panic!("{:?}", event.body) };
        assert_eq!(expected.get(&body), Some(&event.ranks));
    }
    result.levels
}

// Promise (debug manager): 100,000 servers with 1,000 stacks: at most 16,001 events at a hop, at
// most 256 MiB in the whole simulation.
#[test]
fn a_hundred_thousand_servers_send_a_bounded_number_of_events_to_the_root() {
    let small = run(10_000);
    let large = run(100_000);
    let peak = peak_memory();
    for (level, counts) in large.iter().enumerate() {
        println!("level {level}: {counts:?}");
    }
    println!("peak of the whole simulation: {} MiB", peak >> 20);

    // Each child passes each stack on once, and the hop adds one of its own. The number of servers
    // has no influence. With 10,000 servers, some branches do not have all stacks.
    let max_events = ARITY * STACKS as usize + 1;
    assert_eq!(large[0].max_events, max_events, "the root has no more events than it must");
    assert!(large.iter().chain(&small).all(|level| level.max_events <= max_events));
    // The bytes are those of the bodies, and at most 8 for each rank.
    let body_len = tree::stack(999).len();
    assert!(large[0].max_bytes <= max_events * body_len + 100_000 * 8);
    assert!(large[0].max_held_bytes <= STACKS as usize * (body_len + 128) + 100_000 * 8);
    assert!(peak <= 256 << 20, "{} MiB", peak >> 20);
}
