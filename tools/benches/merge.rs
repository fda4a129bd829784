//! Measures the time of merging 1,000 different stacks at one hop, by the number of servers below
//! it.

#![allow(missing_docs)]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use score_proto::nodeset::NodeSet;
use score_tools::merge::{CommandId, EventBody, MergeInput, MergedEvent, Merger};
use std::hint::black_box;
use std::time::Duration;

#[expect(dead_code, reason = "the bench takes its stacks only")]
#[path = "../tests/merge_scale/tree.rs"]
mod tree;

const ARITY: u32 = 16;
const STACKS: u32 = 1000;

/// The events that 16 children with `servers / 16` servers each send to a hop: each child sends
/// each stack once.
fn events(servers: u32) -> Vec<(usize, MergedEvent)> {
    let mut events = Vec::new();
    for child in 0..ARITY {
        let ranks = child * (servers / ARITY)..(child + 1) * (servers / ARITY);
        let mut sets = vec![NodeSet::new(); STACKS as usize];
        for rank in ranks {
            sets[tree::stack_index(rank, STACKS as usize)].insert(rank);
        }
        events.extend((0..STACKS).zip(sets).map(|(stack, ranks)| {
            let body = EventBody::Answer(tree::stack(stack));
            (child as usize, MergedEvent { command: CommandId(1), ranks, body })
        }));
    }
    events
}

fn bench_hop(c: &mut Criterion) {
    for servers in [16_000u32, 32_000, 64_000, 128_000, 1_024_000] {
        let events = events(servers);
        let sources = (0..ARITY)
            .map(|child| NodeSet::from(child * (servers / ARITY)..(child + 1) * (servers / ARITY)));
        let merger = || {
            let mut merger = Merger::new(sources.clone());
            let (command, ranks) = (CommandId(1), NodeSet::from(0..servers));
            let input = MergeInput::Command { command, ranks, timeout: Duration::from_secs(60) };
            merger.step(input, Duration::ZERO, &mut Vec::new());
            (merger, events.clone())
        };
        c.bench_function(&format!("hop/16 children, 1,000 stacks, {servers} servers"), |b| {
            b.iter_batched(
                merger,
                |(mut merger, events)| {
                    let mut actions = Vec::new();
                    for (source, event) in events {
                        let input = MergeInput::Event { source, event };
                        merger.step(input, Duration::ZERO, &mut actions);
                    }
                    black_box(actions)
                },
                BatchSize::PerIteration,
            );
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3));
    targets = bench_hop
}
criterion_main!(benches);
