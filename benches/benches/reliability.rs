//! Measures the cost of PM/Ethernet's reliability machine itself. Two machines are in one thread
//! without a wire between them.

#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use score_pm_reliability::{
    BufferDisposition, Config, PACKET_HEADER_LEN, PacketKind, ReliabilityMachine,
};

/// Two machines, and a clock that advances with each step.
struct LinkedMachines {
    machines: [ReliabilityMachine; 2],
    now_ns: u64,
    packet: [u8; PACKET_HEADER_LEN + 8],
}

impl LinkedMachines {
    fn new(links: u8) -> LinkedMachines {
        let machine = |self_node| {
            ReliabilityMachine::new(Config { links, ..Config::new(self_node, 2, 7, 1) })
        };
        LinkedMachines {
            machines: [machine(0), machine(1)],
            now_ns: 1,
            packet: [0; PACKET_HEADER_LEN + 8],
        }
    }

    fn submit(&mut self, from: usize) {
        let result = self.machines[from].submit(1 - from as u32, 3, 8, PacketKind::Data);
        assert!(result.is_ok());
    }

    /// Delivers the packets that `from` has to send, and receives their messages.
    fn deliver(&mut self, from: usize) -> u32 {
        self.now_ns += 500;
        let mut delivered = 0;
        let [ref mut a, ref mut b] = self.machines;
        let (source, target) = if from == 0 { (a, b) } else { (b, a) };
        if source.expire(self.now_ns) {
            source.on_timeout(self.now_ns);
        }
        while let Some(packet) = source.poll_transmit(self.now_ns) {
            let len = packet.payload.map_or(0, |(_, len)| usize::from(len));
            packet.header.encode(self.packet.first_chunk_mut().expect("longer than a header"));
            let bytes = &self.packet[..PACKET_HEADER_LEN + len];
            let is_kept =
                target.receive(bytes, packet.link, 5, self.now_ns) == BufferDisposition::Kept;
            assert_eq!(is_kept, len > 0);
        }
        while let Some(delivery) = target.next_delivery() {
            target.on_released(delivery.peer);
            delivered += 1;
        }
        while target.next_free_slot().is_some() {}
        delivered
    }
}

fn ping_pong(c: &mut Criterion) {
    let mut linked = LinkedMachines::new(1);
    c.bench_function("reliability: there and back, 2 messages", |b| {
        b.iter(|| {
            for from in [0, 1] {
                linked.submit(from);
                assert_eq!(linked.deliver(from), 1);
            }
        });
    });
}

fn stream(c: &mut Criterion) {
    for links in [1, 2] {
        let mut linked = LinkedMachines::new(links);
        c.bench_function(&format!("reliability: 16 messages and their ack, {links} links"), |b| {
            b.iter(|| {
                (0..16).for_each(|_| linked.submit(0));
                assert_eq!(linked.deliver(0), 16);
                linked.deliver(1);
            });
        });
    }
}

criterion_group!(benches, ping_pong, stream);
criterion_main!(benches);
