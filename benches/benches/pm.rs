//! Measures the cost of PM's functions themselves. Sender and receiver are in one thread, so no
//! cache line moves.

// UNSAFETY: the bench writes messages through the pointers of PM, and reads them.
#![allow(missing_docs, unsafe_code)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use score_pm::{CompositeOptions, Context, ContextRef, Device, ShmemOptions};
use std::hint::black_box;

/// Makes the composites of `nodes` nodes, and the contexts that must outlive them.
fn composites(nodes: u32) -> (Vec<ContextRef>, Vec<ContextRef>) {
    let shmem = Device::open(ShmemOptions::new(nodes as usize)).unwrap();
    let device = Device::open(CompositeOptions::new(nodes as usize)).unwrap();
    let node_pairs: Vec<_> = (0..nodes).map(|k| (k, k)).collect();
    let (mut contexts, mut keep_alive) = (Vec::new(), Vec::new());
    for k in 0..nodes {
        let opened = shmem.open_context(k as usize).unwrap();
        opened.bind_channel(0, k).unwrap();
        let fd = opened.create_attach_fd().unwrap();
        let member = Context::attach("shmem", fd).unwrap();
        let context = device.open_context(k as usize).unwrap();
        context.associate_nodes(&member, &node_pairs).unwrap();
        contexts.push(context);
        keep_alive.extend([opened, member]);
    }
    (contexts, keep_alive)
}

fn send(from: &Context, to: u32, message: &[u8]) {
    let buffer = from.get_send_buffer(to, message.len()).unwrap();
    // SAFETY: `get_send_buffer` has reserved `message.len()` bytes at `buffer`.
    unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), buffer, message.len()) };
    from.send().unwrap();
}

fn receive(context: &Context) {
    let (payload, _) = context.receive().unwrap();
    // SAFETY: the payload is readable until it is released below.
    black_box(unsafe { payload.read() });
    context.release_receive_buffer().unwrap();
}

fn send_and_receive(c: &mut Criterion) {
    let (contexts, _keep_alive) = composites(2);
    let mut group = c.benchmark_group("send and receive");
    for len in [8, 48, 49, 1024, 4096, 8192] {
        let message = vec![1; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("{len} bytes"), |b| {
            b.iter(|| {
                send(&contexts[0], 1, &message);
                receive(&contexts[1]);
            });
        });
    }
    group.finish();
}

fn empty_polls(c: &mut Criterion) {
    let mut group = c.benchmark_group("empty poll");
    for nodes in [2, 8, 64] {
        let (contexts, _keep_alive) = composites(nodes);
        for k in 1..nodes {
            send(&contexts[k as usize], 0, b"active");
            while contexts[0].receive().is_err() {}
            contexts[0].release_receive_buffer().unwrap();
        }
        // One successful poll in a hundred keeps PM from yielding the processor.
        group.bench_function(format!("{} active sources, 100 polls", nodes - 1), |b| {
            b.iter(|| {
                send(&contexts[1], 0, b"x");
                while contexts[0].receive().is_err() {}
                contexts[0].release_receive_buffer().unwrap();
                for _ in 0..99 {
                    black_box(contexts[0].receive().is_err());
                }
            });
        });
    }
    group.finish();
}

fn multicast(c: &mut Criterion) {
    let (contexts, _keep_alive) = composites(8);
    let nodes: Vec<u32> = (1..8).collect();
    c.bench_function("multicast of 8 bytes to 7 nodes", |b| {
        b.iter(|| {
            let buffer = contexts[0].get_multicast_buffer(&nodes, 8).unwrap();
            // SAFETY: `get_multicast_buffer` has reserved 8 bytes at `buffer`.
            unsafe { std::ptr::write_bytes(buffer, 1, 8) };
            contexts[0].send().unwrap();
            nodes.iter().for_each(|&k| receive(&contexts[k as usize]));
        });
    });
}

criterion_group!(benches, send_and_receive, empty_polls, multicast);
criterion_main!(benches);
