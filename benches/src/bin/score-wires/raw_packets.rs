//! Measures packets between two hosts, directly on a wire.

// UNSAFETY: makes a send slab from leaked memory, and reads payloads in place.
#![expect(unsafe_code)]

use crate::BenchResult;
use score_pm::wire::{Packet, PeerNumber, Received, SendMemory, UserBytes, Wire, WireEndpoint};
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// The only peer of an endpoint.
const PEER: PeerNumber = PeerNumber(0);
/// The bytes of a message.
pub const SIZE: usize = 8;
/// The length of the header of a packet of the ethernet device.
const HEADER: usize = 64;
/// The number of packets that the source may have in flight, and the number of packets after which
/// the sink acknowledges.
const WINDOW: u64 = 512;
const ACK_INTERVAL: u64 = 64;
/// The number of polls or attempts to send after which an endpoint gives up.
const MAX_EMPTY_POLLS: u32 = 200_000_000;
/// How long an idle endpoint waits for its peer.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The offset of the first payload in the slab, and the number of payloads.
const SLAB_OFFSET: usize = 128;
const SLOTS: usize = 512;
/// The free bytes in front of each payload, as in the device's slab: for the header and UDP's
/// length.
const HEADROOM_LEN: usize = HEADER + 2;

/// A wire with its send slab.
pub struct RawEndpoint {
    wire: Wire,
    mtu: usize,
    next_slot: usize,
}

impl RawEndpoint {
    /// Attaches a send slab to a wire.
    pub fn attach(endpoint: WireEndpoint) -> BenchResult<RawEndpoint> {
        let len = SLAB_OFFSET + SLOTS * (endpoint.mtu() + HEADROOM_LEN).next_multiple_of(64);
        let slab: &'static mut [u8] = Box::leak(vec![7u8; len].into_boxed_slice());
        // SAFETY: the memory is never freed, and each payload has `HEADROOM_LEN` free bytes in
        // front of it.
        let slab = unsafe {
            SendMemory::new(NonNull::from(&mut slab[0]), slab.len()).with_headroom(HEADROOM_LEN)
        };
        Ok(RawEndpoint { wire: Wire::attach(endpoint, slab)?, mtu: 0, next_slot: 0 })
    }

    /// Returns the local address, for the peer.
    pub fn address(&self) -> Vec<u8> {
        self.wire.endpoint().address()
    }

    /// Sets the peer.
    pub fn set_peer(&mut self, address: &[u8]) -> BenchResult<()> {
        self.mtu = self.wire.add_peer(address)?.mtu;
        Ok(())
    }

    /// Sends a packet whose header begins with this word.
    pub fn send(&mut self, word: u64, len: usize) -> BenchResult<()> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&word.to_le_bytes());
        let mut tries = 0u32;
        while self.wire.send(&[Packet {
            to: PEER,
            header: &header,
            offset: SLAB_OFFSET,
            len,
            user_bytes: UserBytes::default(),
        }]) == 0
        {
            tries += 1;
            if tries > MAX_EMPTY_POLLS {
                return Err("the queue stays full".into());
            }
        }
        Ok(())
    }

    /// Sends about `bytes` bytes in packets of the maximum length. Returns the number of bytes
    /// sent.
    pub fn send_batch(&mut self, bytes: usize) -> BenchResult<usize> {
        let len = self.mtu - HEADER;
        let count = bytes / len;
        if self.send_max_len(count) < count {
            return Err("the queue is full".into());
        }
        Ok(count * len)
    }

    /// Sends `count` packets of the maximum length, from one slot after the other as the device
    /// does. Returns the number of packets that the wire has accepted.
    fn send_max_len(&mut self, count: usize) -> usize {
        let header = [0; HEADER];
        let len = self.mtu - HEADER;
        let stride = (len + HEADROOM_LEN).next_multiple_of(64);
        let packet = |k: usize| {
            let offset = SLAB_OFFSET + (self.next_slot + k) % SLOTS * stride;
            Packet { to: PEER, header: &header, offset, len, user_bytes: UserBytes::default() }
        };
        let batch: Vec<_> = (0..count).map(packet).collect();
        let sent = self.wire.send(&batch);
        self.next_slot = (self.next_slot + sent) % SLOTS;
        sent
    }

    /// Receives `bytes` bytes.
    pub fn receive_bytes(&mut self, mut bytes: usize) -> BenchResult<()> {
        let mut out = [Received::default(); 64];
        let mut polls = 0;
        while bytes > 0 {
            let count = self.wire.receive(&mut out);
            polls += 1;
            if polls > MAX_EMPTY_POLLS {
                return Err("packets were lost".into());
            }
            for packet in &out[..count] {
                bytes = bytes.saturating_sub(packet.len as usize - HEADER);
                self.wire.release(packet.buffer);
            }
        }
        Ok(())
    }

    /// Polls once. No packet is expected.
    pub fn poll(&mut self) -> BenchResult<()> {
        match self.wire.receive(&mut [Received::default(); 1]) {
            0 => Ok(()),
            _ => Err("not empty".into()),
        }
    }

    /// Returns the first word of the next packet, or `None` if no packet arrives for a long time.
    pub fn receive(&mut self) -> Option<u64> {
        let mut out = [Received::default(); 1];
        let mut polls = 0u32;
        while self.wire.receive(&mut out) == 0 {
            polls += 1;
            std::hint::spin_loop();
            // This number of polls takes seconds on any wire.
            if polls > MAX_EMPTY_POLLS {
                return None;
            }
        }
        let word = self.wire.copy_prefix::<8>(out[0]).map(u64::from_le_bytes);
        // Read the payload, as a program does.
        // SAFETY: the packet is not released yet, and the offset is less than its length.
        black_box(unsafe {
            self.wire.pointer(out[0]).add(HEADER.min(out[0].len as usize - 1)).read()
        });
        self.wire.release(out[0].buffer);
        word
    }
}

/// Measures round trips in small batches, so that a disturbance affects only one batch.
pub struct RoundTripTimer {
    deadline: Instant,
    batch_times_ns: Vec<f64>,
}

const BATCH: u32 = 20;

impl RoundTripTimer {
    /// Measures for the time `time`.
    pub fn new(time: Duration) -> RoundTripTimer {
        RoundTripTimer { deadline: Instant::now() + time, batch_times_ns: Vec::new() }
    }

    /// Whether there is time left.
    pub fn has_time_left(&self) -> bool {
        Instant::now() < self.deadline
    }

    /// Measures [`BATCH`] round trips.
    pub fn measure_batch(
        &mut self,
        mut round_trip: impl FnMut() -> BenchResult<()>,
    ) -> BenchResult<()> {
        let begin = Instant::now();
        for _ in 0..BATCH {
            round_trip()?;
        }
        self.batch_times_ns.push(begin.elapsed().as_nanos() as f64 / f64::from(2 * BATCH));
        Ok(())
    }

    /// Returns the median and the 5 % quantile of batches in ns. The quantile is for a machine
    /// that is busy with other work.
    pub fn one_way(&mut self) -> String {
        self.batch_times_ns.sort_by(f64::total_cmp);
        let percentile =
            |part: usize| self.batch_times_ns.get(self.batch_times_ns.len() / part).copied();
        let [median, low] = [2, 20].map(|part| percentile(part).unwrap_or(f64::NAN));
        format!("{median:.1} {low:.1}")
    }
}

/// Measures the time one way.
pub fn ping(endpoint: &mut RawEndpoint, time: Duration) -> BenchResult<String> {
    // The peer is ready when it answers. Earlier packets may be lost.
    while {
        endpoint.send(1, SIZE)?;
        let mut out = [Received::default(); 1];
        let deadline = Instant::now() + Duration::from_millis(20);
        let mut count = 0;
        while count == 0 && Instant::now() < deadline {
            count = endpoint.wire.receive(&mut out);
        }
        if count > 0 {
            endpoint.wire.release(out[0].buffer);
        }
        count == 0
    } {}
    let mut timer = RoundTripTimer::new(time);
    while timer.has_time_left() {
        timer.measure_batch(|| {
            endpoint.send(1, SIZE)?;
            endpoint.receive().map(drop).ok_or_else(|| "a packet was lost".into())
        })?;
    }
    Ok(timer.one_way())
}

/// Sends every packet back.
pub fn echo(endpoint: &mut RawEndpoint) -> BenchResult<()> {
    while endpoint.receive().is_some() {
        endpoint.send(1, SIZE)?;
    }
    Ok(())
}

/// Receives packets, and returns Gbit/s of their payload.
pub fn sink(endpoint: &mut RawEndpoint, time: Duration) -> BenchResult<f64> {
    let mut out = [Received::default(); 64];
    let (mut bytes, mut packets, mut acknowledged) = (0u64, 0u64, 0u64);
    let mut begin = None;
    let mut last_ack_at = Instant::now();
    loop {
        let count = endpoint.wire.receive(&mut out);
        for packet in &out[..count] {
            bytes += u64::from(packet.len) - HEADER as u64;
            packets += 1;
            black_box(endpoint.wire.copy_prefix::<HEADER>(*packet));
            endpoint.wire.release(packet.buffer);
        }
        if packets - acknowledged >= ACK_INTERVAL
            || count == 0 && last_ack_at.elapsed() > Duration::from_millis(5)
        {
            // Sends the first acknowledgement, or repeats one that may have been lost.
            endpoint.send(packets, 0)?;
            (acknowledged, last_ack_at) = (packets, Instant::now());
        }
        if count == 0 {
            continue;
        }
        let (start, before) = *begin.get_or_insert((Instant::now(), bytes));
        if start.elapsed() > time {
            return Ok((bytes - before) as f64 * 8.0 / start.elapsed().as_nanos() as f64);
        }
    }
}

/// Sends as much as the sink accepts.
pub fn source(endpoint: &mut RawEndpoint) -> BenchResult<()> {
    let (mut sent, mut acknowledged) = (0u64, 0u64);
    let mut out = [Received::default(); 16];
    let mut last_receive_at = Instant::now();
    loop {
        let free_window = (WINDOW - (sent - acknowledged).min(WINDOW)).min(64) as usize;
        if free_window >= 32 {
            sent += endpoint.send_max_len(free_window) as u64;
        }
        let count = endpoint.wire.receive(&mut out);
        for packet in &out[..count] {
            if let Some(word) = endpoint.wire.copy_prefix::<8>(*packet).map(u64::from_le_bytes) {
                acknowledged = acknowledged.max(word);
            }
            endpoint.wire.release(packet.buffer);
            last_receive_at = Instant::now();
        }
        if last_receive_at.elapsed() > Duration::from_millis(10) {
            // Packets were lost, so their credit is restored.
            acknowledged = sent;
        }
        if last_receive_at.elapsed() > IDLE_TIMEOUT {
            return Ok(());
        }
    }
}
