//! Packets to and fro on a wire.

// UNSAFETY: a send slab, and payloads read where they lie.
#![expect(unsafe_code)]

use crate::Result;
use score_pm::device::ethernet::wire::{Elsewhere, Endpoint, Packet, Received, Slab, Wire};
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Bytes of the message.
pub const SIZE: usize = 8;
/// As many bytes as the machine's header has.
const HEADER: usize = 64;
/// Packets that the source has under way at most, and how many the sink takes before it says so.
const WINDOW: u64 = 512;
const CREDIT: u64 = 64;
/// Empty polls that an end makes before it gives up.
const POLLS: u32 = 200_000_000;
/// What an idle end waits for the other.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes before the first payload, and how many payloads there are.
const BEFORE: usize = 128;
const SLOTS: usize = 512;
/// Room before each payload, as in the device's slab: for the header and UDP's length.
const ROOM: usize = HEADER + 2;

/// A wire with what it sends from.
pub struct End {
    wire: Wire,
    mtu: usize,
    next: usize,
}

impl End {
    /// Takes an endpoint into use.
    pub fn attach(endpoint: Endpoint) -> Result<End> {
        let len = BEFORE + SLOTS * (endpoint.mtu() + ROOM).next_multiple_of(64);
        let slab: &'static mut [u8] = Box::leak(vec![7u8; len].into_boxed_slice());
        // SAFETY: never freed; each payload has that room.
        let slab = unsafe { Slab::new(NonNull::from(&mut slab[0]), slab.len()).with_room(ROOM) };
        Ok(End { wire: Wire::attach(endpoint, slab)?, mtu: 0, next: 0 })
    }

    /// For the other end.
    pub fn address(&self) -> Vec<u8> {
        self.wire.endpoint().address()
    }

    /// The other end.
    pub fn meet(&mut self, address: &[u8]) -> Result<()> {
        self.mtu = self.wire.add_peer(address)?.mtu;
        Ok(())
    }

    /// Sends a packet with this word.
    pub fn send(&mut self, word: u64, len: usize) -> Result<()> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&word.to_le_bytes());
        let mut tries = 0u32;
        while self.wire.send(&[Packet {
            to: 0,
            header: &header,
            at: BEFORE,
            len,
            more: Elsewhere::default(),
        }]) == 0
        {
            tries += 1;
            if tries > POLLS {
                return Err("the queue stays full".into());
            }
        }
        Ok(())
    }

    /// Sends about so many bytes in the longest packets, and answers how many.
    pub fn send_batch(&mut self, bytes: usize) -> Result<usize> {
        let len = self.mtu - HEADER;
        let count = bytes / len;
        if self.send_longest(count) < count {
            return Err("the queue is full".into());
        }
        Ok(count * len)
    }

    /// Sends so many of the longest packets, from slots in turn as the device does; answers how
    /// many there was room for.
    fn send_longest(&mut self, count: usize) -> usize {
        let header = [0; HEADER];
        let len = self.mtu - HEADER;
        let stride = (len + ROOM).next_multiple_of(64);
        let packet = |k: usize| {
            let at = BEFORE + (self.next + k) % SLOTS * stride;
            Packet { to: 0, header: &header, at, len, more: Elsewhere::default() }
        };
        let batch: Vec<_> = (0..count).map(packet).collect();
        let taken = self.wire.send(&batch);
        self.next = (self.next + taken) % SLOTS;
        taken
    }

    /// Takes so many bytes.
    pub fn receive_bytes(&mut self, mut bytes: usize) -> Result<()> {
        let mut out = [Received::default(); 64];
        let mut polls = 0;
        while bytes > 0 {
            let count = self.wire.receive(&mut out);
            polls += 1;
            if polls > POLLS {
                return Err("packets were lost".into());
            }
            for packet in &out[..count] {
                bytes = bytes.saturating_sub(packet.len as usize - HEADER);
                self.wire.release(packet.buffer);
            }
        }
        Ok(())
    }

    /// Looks once, finding nothing.
    pub fn poll(&mut self) -> Result<()> {
        match self.wire.receive(&mut [Received::default(); 1]) {
            0 => Ok(()),
            _ => Err("not empty".into()),
        }
    }

    /// The first word of the next packet; None when nothing came for a long time.
    pub fn receive(&mut self) -> Option<u64> {
        let mut out = [Received::default(); 1];
        let mut polls = 0u32;
        while self.wire.receive(&mut out) == 0 {
            polls += 1;
            std::hint::spin_loop();
            // Seconds, on any wire.
            if polls > POLLS {
                return None;
            }
        }
        let word = self.wire.head::<8>(out[0]).map(u64::from_le_bytes);
        // The payload is read, as a program would.
        // SAFETY: the packet is not released yet, and has more bytes than a header.
        black_box(unsafe {
            self.wire.pointer(out[0]).add(HEADER.min(out[0].len as usize - 1)).read()
        });
        self.wire.release(out[0].buffer);
        word
    }
}

/// Round trips in small batches, so that what disturbs one does not count for all.
pub struct Rounds {
    end: Instant,
    batches: Vec<f64>,
}

const BATCH: u32 = 20;

impl Rounds {
    /// For so long.
    pub fn new(time: Duration) -> Rounds {
        Rounds { end: Instant::now() + time, batches: Vec::new() }
    }

    /// Whether there is time left.
    pub fn go_on(&self) -> bool {
        Instant::now() < self.end
    }

    /// Measures some round trips.
    pub fn batch(&mut self, mut round: impl FnMut() -> Result<()>) -> Result<()> {
        let begin = Instant::now();
        for _ in 0..BATCH {
            round()?;
        }
        self.batches.push(begin.elapsed().as_nanos() as f64 / f64::from(2 * BATCH));
        Ok(())
    }

    /// The median, and what one batch in twenty is below (for a look at a machine that is busy with
    /// other things), in ns.
    pub fn one_way(&mut self) -> String {
        self.batches.sort_by(f64::total_cmp);
        let at = |part: usize| self.batches.get(self.batches.len() / part).copied();
        let [median, low] = [2, 20].map(|part| at(part).unwrap_or(f64::NAN));
        format!("{median:.1} {low:.1}")
    }
}

/// Measures the time one way.
pub fn ping(end: &mut End, time: Duration) -> Result<String> {
    // The other is there once it answers; what was sent before that may be lost.
    while {
        end.send(1, SIZE)?;
        let mut out = [Received::default(); 1];
        let until = Instant::now() + Duration::from_millis(20);
        let mut count = 0;
        while count == 0 && Instant::now() < until {
            count = end.wire.receive(&mut out);
        }
        if count > 0 {
            end.wire.release(out[0].buffer);
        }
        count == 0
    } {}
    let mut rounds = Rounds::new(time);
    while rounds.go_on() {
        rounds.batch(|| {
            end.send(1, SIZE)?;
            end.receive().map(drop).ok_or_else(|| "a packet was lost".into())
        })?;
    }
    Ok(rounds.one_way())
}

/// Sends back what comes.
pub fn echo(end: &mut End) -> Result<()> {
    while end.receive().is_some() {
        end.send(1, SIZE)?;
    }
    Ok(())
}

/// Takes packets and answers Gbit/s of their payload.
pub fn sink(end: &mut End, time: Duration) -> Result<f64> {
    let mut out = [Received::default(); 64];
    let (mut bytes, mut packets, mut told) = (0u64, 0u64, 0u64);
    let mut begin = None;
    let mut quiet = Instant::now();
    loop {
        let count = end.wire.receive(&mut out);
        for packet in &out[..count] {
            bytes += u64::from(packet.len) - HEADER as u64;
            packets += 1;
            black_box(end.wire.head::<HEADER>(*packet));
            end.wire.release(packet.buffer);
        }
        if packets - told >= CREDIT || count == 0 && quiet.elapsed() > Duration::from_millis(5) {
            // Says again what may have been lost, or begins.
            end.send(packets, 0)?;
            (told, quiet) = (packets, Instant::now());
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

/// Sends as much as the sink takes.
pub fn source(end: &mut End) -> Result<()> {
    let (mut sent, mut taken) = (0u64, 0u64);
    let mut out = [Received::default(); 16];
    let mut quiet = Instant::now();
    loop {
        let room = (WINDOW - (sent - taken).min(WINDOW)).min(64) as usize;
        if room >= 32 {
            sent += end.send_longest(room) as u64;
        }
        let count = end.wire.receive(&mut out);
        for packet in &out[..count] {
            if let Some(word) = end.wire.head::<8>(*packet).map(u64::from_le_bytes) {
                taken = taken.max(word);
            }
            end.wire.release(packet.buffer);
            quiet = Instant::now();
        }
        if quiet.elapsed() > Duration::from_millis(10) {
            // Packets were lost: their credit comes back.
            taken = sent;
        }
        if quiet.elapsed() > PATIENCE {
            return Ok(());
        }
    }
}
