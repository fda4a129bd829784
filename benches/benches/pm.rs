//! What the functions of PM cost by themselves: both ends in one thread, so no line moves.

#![allow(missing_docs, unsafe_code)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use score_pm::{Context, ContextRef, Device};
use std::hint::black_box;

/// The composites of `nodes` nodes, and what keeps them alive.
fn composites(nodes: u32) -> (Vec<ContextRef>, Vec<ContextRef>) {
    let count = nodes.to_string();
    let shmem = Device::open("shmem", &["-nodes", &count]).unwrap();
    let device = Device::open("composite", &["-nodes", &count]).unwrap();
    let all: Vec<_> = (0..nodes).map(|k| (k, k)).collect();
    let (mut ends, mut kept) = (Vec::new(), Vec::new());
    for k in 0..nodes {
        let opened = shmem.open_context(k as usize).unwrap();
        opened.bind_channel(0, k).unwrap();
        let fd = opened.create_attach_fd().unwrap();
        let member = Context::attach("shmem", fd).unwrap();
        let end = device.open_context(k as usize).unwrap();
        end.associate_nodes(&member, &all).unwrap();
        ends.push(end);
        kept.extend([opened, member]);
    }
    (ends, kept)
}

fn send(from: &Context, to: u32, message: &[u8]) {
    let buffer = from.get_send_buffer(to, message.len()).unwrap();
    // SAFETY: as many bytes were reserved.
    unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), buffer, message.len()) };
    from.send().unwrap();
}

fn receive(end: &Context) {
    let (at, _) = end.receive().unwrap();
    // SAFETY: readable until release.
    black_box(unsafe { at.read() });
    end.release_receive_buffer().unwrap();
}

fn pass(c: &mut Criterion) {
    let (ends, _kept) = composites(2);
    let mut group = c.benchmark_group("send and receive");
    for len in [8, 48, 49, 1024, 4096, 8192] {
        let message = vec![1; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("{len} bytes"), |b| {
            b.iter(|| {
                send(&ends[0], 1, &message);
                receive(&ends[1]);
            });
        });
    }
    group.finish();
}

fn empty(c: &mut Criterion) {
    let mut group = c.benchmark_group("empty poll");
    for nodes in [2, 8, 64] {
        let (ends, _kept) = composites(nodes);
        for k in 1..nodes {
            send(&ends[k as usize], 0, b"active");
            while ends[0].receive().is_err() {}
            ends[0].release_receive_buffer().unwrap();
        }
        // A success every hundred polls keeps the poll from yielding the processor.
        group.bench_function(format!("{} active sources, 100 polls", nodes - 1), |b| {
            b.iter(|| {
                send(&ends[1], 0, b"x");
                while ends[0].receive().is_err() {}
                ends[0].release_receive_buffer().unwrap();
                for _ in 0..99 {
                    black_box(ends[0].receive().is_err());
                }
            });
        });
    }
    group.finish();
}

fn multicast(c: &mut Criterion) {
    let (ends, _kept) = composites(8);
    let nodes: Vec<u32> = (1..8).collect();
    c.bench_function("multicast of 8 bytes to 7 nodes", |b| {
        b.iter(|| {
            let buffer = ends[0].get_multicast_buffer(&nodes, 8).unwrap();
            // SAFETY: 8 bytes were reserved.
            unsafe { std::ptr::write_bytes(buffer, 1, 8) };
            ends[0].send().unwrap();
            nodes.iter().for_each(|&k| receive(&ends[k as usize]));
        });
    });
}

criterion_group!(benches, pass, empty, multicast);
criterion_main!(benches);
