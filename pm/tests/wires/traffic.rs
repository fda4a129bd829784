//! Test packets, whose contents identify the sender and the number of the packet.

use score_pm::wire::{
    Packet, PeerNumber, Received, SendMemory, UserBytes, Wire, WireEndpoint, WireOptions,
    WirePreference,
};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::bed::Host;

/// The length of the header of test packets: sender, number and length of the payload.
pub const HEADER: usize = 32;

/// The memory of payloads. Byte k is a function of k.
pub struct Payload(Vec<u8>);

impl Payload {
    pub fn new() -> Payload {
        Payload((0..1 << 20).map(|k: usize| (k * 7 + k / 251) as u8).collect())
    }

    /// Returns the memory as a slab, for wires that do not outlive it.
    pub fn slab(&self) -> SendMemory {
        // SAFETY: the vector is never changed, and its owner outlives every wire of the test.
        unsafe { SendMemory::new(NonNull::from(&self.0[0]), self.0.len()) }
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Returns the offset of the payload of packet `number`.
    fn payload_offset(number: u32) -> usize {
        (number as usize * 61) % (1 << 19)
    }
}

/// A wire of a test, and the packets that it has received.
pub struct TestWire {
    pub wire: Wire,
    /// If set, most of each payload is sent from this address, at which there must be the same
    /// bytes.
    pub user_addr: Option<usize>,
    sender: u32,
    /// The numbers of received packets, by sender.
    pub received: BTreeMap<u32, Vec<u32>>,
    /// The number of received packets that differ from those that were sent.
    pub corrupt: usize,
}

pub fn header(sender: u32, number: u32, len: usize) -> [u8; HEADER] {
    let mut out = [0xa5; HEADER];
    out[..4].copy_from_slice(&sender.to_le_bytes());
    out[4..8].copy_from_slice(&number.to_le_bytes());
    out[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    out
}

impl TestWire {
    pub fn attach(endpoint: WireEndpoint, sender: u32, payload: &Payload) -> TestWire {
        let wire = Wire::attach(endpoint, payload.slab()).unwrap();
        TestWire { wire, user_addr: None, sender, received: BTreeMap::new(), corrupt: 0 }
    }

    pub fn open(host: &Host, options: &WireOptions, sender: u32, payload: &Payload) -> TestWire {
        let endpoint = host.within(|| WireEndpoint::open(options)).unwrap();
        host.within(|| TestWire::attach(endpoint, sender, payload))
    }

    pub fn address(&self) -> Vec<u8> {
        self.wire.endpoint().address()
    }

    /// Sends packets with payloads of these lengths, numbered from `first`. Returns how many were
    /// accepted.
    pub fn send(&mut self, to: u32, first: u32, lens: &[usize]) -> usize {
        let number = |k: usize| first + k as u32;
        let headers: Vec<_> =
            lens.iter().enumerate().map(|(k, len)| header(self.sender, number(k), *len)).collect();
        let batch: Vec<_> = headers
            .iter()
            .enumerate()
            .map(|(k, header)| {
                let (offset, total_len) = (Payload::payload_offset(number(k)), lens[k]);
                let len = if self.user_addr.is_some() { total_len / 3 } else { total_len };
                let rest = UserBytes {
                    addr: self.user_addr.unwrap_or(0) + offset + len,
                    len: total_len - len,
                };
                Packet { to: PeerNumber(to), header, offset, len, user_bytes: rest }
            })
            .collect();
        self.wire.send(&batch)
    }

    /// Sends all packets, and waits if the queue is full.
    pub fn send_all(&mut self, to: u32, first: u32, lens: &[usize]) {
        let end = Instant::now() + Duration::from_secs(60);
        let mut sent = 0;
        while sent < lens.len() {
            sent += self.send(to, first + sent as u32, &lens[sent..]);
            assert!(Instant::now() < end, "the queue stays full");
        }
    }

    /// Receives and checks the waiting packets. Returns their number.
    pub fn receive(&mut self, payload: &Payload) -> usize {
        let mut out = [Received::default(); 48];
        let count = self.wire.receive(&mut out);
        for packet in &out[..count] {
            self.check(*packet, payload);
            self.wire.release(packet.buffer);
        }
        count
    }

    fn check(&mut self, packet: Received, payload: &Payload) {
        let payload_ptr = self.wire.pointer(packet);
        assert!(!payload_ptr.is_null());
        // SAFETY: the packet is readable until it is released, and these tests do not write there.
        let bytes = unsafe { std::slice::from_raw_parts(payload_ptr, packet.len as usize) };
        let word = |offset: usize| {
            bytes
                .get(offset..offset + 4)
                .map_or(u32::MAX, |word| u32::from_le_bytes(word.try_into().unwrap()))
        };
        let (sender, number, len) = (word(0), word(4), word(8) as usize);
        let payload_start = Payload::payload_offset(number);
        let is_intact = bytes.len() == HEADER + len
            && payload.0.get(payload_start..payload_start + len) == bytes.get(HEADER..);
        assert_eq!(self.wire.copy_prefix::<4>(packet), bytes.first_chunk().copied());
        if is_intact {
            self.received.entry(sender).or_default().push(number);
        } else {
            self.corrupt += 1;
        }
    }

    /// Receives until `count` packets have arrived from `sender`, or 30 s are over.
    pub fn wait_for(&mut self, sender: u32, count: usize, payload: &Payload) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.received.get(&sender).map_or(0, Vec::len) < count && Instant::now() < end {
            self.receive(payload);
        }
        assert_eq!(self.corrupt, 0);
    }

    /// Returns the numbers of the packets that were received from `sender` since the last call.
    pub fn take_received(&mut self, sender: u32) -> Vec<u32> {
        self.received.remove(&sender).unwrap_or_default()
    }
}

/// Opens two wires over `eth0` of two hosts, each with the other as peer 0.
pub fn open_pair(hosts: &[Host; 2], choice: WirePreference, payload: &Payload) -> [TestWire; 2] {
    let open = |k: usize| {
        TestWire::open(&hosts[k], &WireOptions::on_interface(choice, "eth0"), k as u32 + 1, payload)
    };
    let mut wires = [open(0), open(1)];
    add_peers(hosts, &mut wires);
    // The first packet makes the kernel look up the neighbour's address. It queues only few packets
    // meanwhile, and drops others.
    let [mut one, mut other] = wires;
    check_transfer(&mut one, &mut other, &[8], payload);
    check_transfer(&mut other, &mut one, &[8], payload);
    [one, other]
}

pub fn add_peers(hosts: &[Host; 2], wires: &mut [TestWire; 2]) {
    let addresses = [wires[0].address(), wires[1].address()];
    for k in 0..2 {
        let wire = &mut wires[k].wire;
        let peer = hosts[k].within(|| wire.add_peer(&addresses[1 - k])).unwrap();
        assert_eq!(peer.number, PeerNumber(0));
    }
}

/// Sends packets of these lengths from one end to the other, a batch at a time, and checks that
/// all arrive complete and in order.
pub fn check_transfer(from: &mut TestWire, to: &mut TestWire, lens: &[usize], payload: &Payload) {
    for (batch, lens) in lens.chunks(64).enumerate() {
        let first = batch as u32 * 64;
        from.send_all(0, first, lens);
        to.wait_for(from.sender, lens.len(), payload);
        let received = to.take_received(from.sender);
        assert!(
            received.iter().copied().eq(first..first + lens.len() as u32),
            "{received:?} of {lens:?}"
        );
    }
}
