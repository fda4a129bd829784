//! What PM/Ethernet's reliability machine costs by itself: two machines in one thread, with no
//! wire between them.

#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use score_pm::reliability::{Config, Fate, HEADER, Kind, Machine};

/// Two machines, and a clock that moves with each step.
struct Pair {
    machines: [Machine; 2],
    now: u64,
    packet: [u8; HEADER + 8],
}

impl Pair {
    fn new(links: u8) -> Pair {
        let machine = |own| Machine::new(Config { links, ..Config::new(own, 2, 7, 1) });
        Pair { machines: [machine(0), machine(1)], now: 1, packet: [0; HEADER + 8] }
    }

    fn submit(&mut self, from: usize) {
        let taken = self.machines[from].submit(1 - from as u32, 3, 8, Kind::Data);
        assert!(taken.is_ok());
    }

    /// Moves what `from` has to send, and takes what arrives.
    fn pass(&mut self, from: usize) -> u32 {
        self.now += 500;
        let mut delivered = 0;
        let [ref mut a, ref mut b] = self.machines;
        let (source, target) = if from == 0 { (a, b) } else { (b, a) };
        if source.expire(self.now) {
            source.time_out(self.now);
        }
        while let Some(packet) = source.poll_transmit(self.now) {
            let len = packet.payload.map_or(0, |(_, len)| usize::from(len));
            packet.header.encode(self.packet.first_chunk_mut().expect("longer than a header"));
            let bytes = &self.packet[..HEADER + len];
            let kept = target.receive(bytes, packet.link, 5, self.now) == Fate::Kept;
            assert_eq!(kept, len > 0);
        }
        while let Some(delivery) = target.next_delivery() {
            target.released(delivery.peer);
            delivered += 1;
        }
        while target.next_free_slot().is_some() {}
        delivered
    }
}

fn ping_pong(c: &mut Criterion) {
    let mut pair = Pair::new(1);
    c.bench_function("reliability: there and back, 2 messages", |b| {
        b.iter(|| {
            for from in [0, 1] {
                pair.submit(from);
                assert_eq!(pair.pass(from), 1);
            }
        });
    });
}

fn stream(c: &mut Criterion) {
    for links in [1, 2] {
        let mut pair = Pair::new(links);
        c.bench_function(&format!("reliability: 16 messages and their ack, {links} links"), |b| {
            b.iter(|| {
                (0..16).for_each(|_| pair.submit(0));
                assert_eq!(pair.pass(0), 16);
                pair.pass(1);
            });
        });
    }
}

criterion_group!(benches, ping_pong, stream);
criterion_main!(benches);
