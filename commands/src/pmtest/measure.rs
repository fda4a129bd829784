//! The measurements of the two measuring nodes. Both nodes run the same function with the same
//! arguments, and node 0 reads the clock.
#![forbid(unsafe_code)]

use std::ffi::c_int;
use std::time::Instant;

use crate::pmtest::channel::{Channel, PmError};
use crate::pmtest::floor::FloorProbe;
use crate::pmtest::results::{Latency, Samples};

/// Round trips between two reads of the clock, because reading it costs as much as a message.
const BATCH: u32 = 32;
/// Batches in a round.
const BATCHES: u32 = 50;
/// Round trips in a round that are timed one by one, for the tail.
const TIMED_ROUND_TRIPS: u32 = 500;
/// Batches of messages in one direction.
const BURST_COUNT: u32 = 12;
/// Messages in such a batch.
const MESSAGES_PER_BURST: usize = 50_000;
/// Maximum bytes in such a batch.
const MAX_BURST_BYTES: usize = 16 << 20;

/// One of the two nodes that measure.
pub struct MeasuringNode<'a> {
    channel: &'a Channel,
    /// Whether this is node 0, which begins and measures the time.
    is_first: bool,
    send_buffer: Vec<u8>,
    receive_buffer: Vec<u8>,
    /// Whether messages use a bare ring instead of PM.
    bare_ring: bool,
}

impl<'a> MeasuringNode<'a> {
    /// `mtu` is the length of the longest message. If `bare_ring` is set, measures a bare ring
    /// instead of PM.
    pub fn new(channel: &'a Channel, is_first: bool, mtu: usize, bare_ring: bool) -> Self {
        let send_buffer = (0..mtu).map(|i| i as u8).collect();
        Self { channel, is_first, send_buffer, receive_buffer: vec![0; mtu], bare_ring }
    }

    fn peer(&self) -> c_int {
        c_int::from(self.is_first)
    }

    fn round_trips(&mut self, size: usize, count: u32) -> Result<(), PmError> {
        let peer = self.peer();
        for _ in 0..count {
            if self.is_first {
                self.channel.send(peer, &self.send_buffer[..size])?;
                self.channel.receive(&mut self.receive_buffer)?;
            } else {
                self.channel.receive(&mut self.receive_buffer)?;
                self.channel.send(peer, &self.send_buffer[..size])?;
            }
        }
        Ok(())
    }

    /// Does round trips through PM, or through the bare ring if it is measured.
    fn exchange_messages(
        &mut self,
        floor: &mut Option<&mut FloorProbe>,
        size: usize,
        count: u32,
    ) -> Result<(), PmError> {
        match floor {
            Some(floor) if self.bare_ring => {
                floor.exchange(
                    self.is_first,
                    count,
                    &self.send_buffer[..size],
                    &mut self.receive_buffer,
                );
                Ok(())
            }
            _ => self.round_trips(size, count),
        }
    }

    /// Measures the floor (if there is one) and messages alternately, for `rounds` rounds.
    ///
    /// # Errors
    /// Returns an error if a PM function failed.
    pub fn latency(
        &mut self,
        mut floor: Option<&mut FloorProbe>,
        size: usize,
        rounds: u32,
    ) -> Result<Latency, PmError> {
        let [mut line_samples, mut batch_samples, mut single_samples] =
            [const { Samples::empty() }; 3];
        self.exchange_messages(&mut floor, size, BATCH * BATCHES)?;
        for _ in 0..rounds {
            if let Some(floor) = &mut floor {
                for _ in 0..BATCHES {
                    let start = Instant::now();
                    floor.bounce(self.is_first, BATCH);
                    line_samples.add(one_way(start, BATCH));
                }
            }
            for _ in 0..BATCHES {
                let start = Instant::now();
                self.exchange_messages(&mut floor, size, BATCH)?;
                batch_samples.add(one_way(start, BATCH));
            }
            for _ in 0..TIMED_ROUND_TRIPS {
                let start = Instant::now();
                self.exchange_messages(&mut floor, size, 1)?;
                single_samples.add(one_way(start, 1));
            }
        }
        Ok(Latency {
            min: batch_samples.min(),
            median: batch_samples.quantile(0.5),
            p999: single_samples.quantile(0.999),
            floor: line_samples.min(),
        })
    }

    /// The messages per second in one direction, of the best batch.
    ///
    /// # Errors
    /// Returns an error if a PM function failed.
    pub fn rate(&mut self, size: usize) -> Result<f64, PmError> {
        let count = MESSAGES_PER_BURST.min(MAX_BURST_BYTES / size);
        let mut rates = Samples::default();
        for _ in 0..BURST_COUNT {
            let start = Instant::now();
            self.burst(size, count)?;
            rates.add(count as f64 / start.elapsed().as_secs_f64());
        }
        Ok(rates.max())
    }

    /// The bytes per second in one direction, of the best batch. A block that is longer than the
    /// MTU is sent in several messages.
    ///
    /// # Errors
    /// Returns an error if a PM function failed.
    pub fn bandwidth(&mut self, size: usize) -> Result<f64, PmError> {
        let chunk = size.min(self.send_buffer.len());
        let chunks = size.div_ceil(chunk);
        let count = (MAX_BURST_BYTES / size).clamp(1, MESSAGES_PER_BURST);
        let mut rates = Samples::default();
        for _ in 0..BURST_COUNT {
            let start = Instant::now();
            // The last chunk of each block may be shorter than the others. With equal chunks the
            // block would have another size.
            for _ in 0..count {
                self.one_direction(chunk, chunks - 1)?;
                self.one_direction(size - chunk * (chunks - 1), 1)?;
            }
            self.acknowledge()?;
            rates.add((size * count) as f64 / start.elapsed().as_secs_f64());
        }
        Ok(rates.max())
    }

    /// Sends one batch. Node 1 replies after it has received all messages, and node 0 then stops
    /// the clock.
    fn burst(&mut self, size: usize, count: usize) -> Result<(), PmError> {
        self.one_direction(size, count)?;
        self.acknowledge()
    }

    fn one_direction(&mut self, size: usize, count: usize) -> Result<(), PmError> {
        let peer = self.peer();
        for _ in 0..count {
            if self.is_first {
                self.channel.send(peer, &self.send_buffer[..size])?;
            } else {
                self.channel.receive(&mut self.receive_buffer)?;
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self) -> Result<(), PmError> {
        if self.is_first {
            self.channel.receive(&mut self.receive_buffer).map(|_| ())
        } else {
            self.channel.send(self.peer(), &[0])
        }
    }
}

fn one_way(start: Instant, round_trips: u32) -> f64 {
    start.elapsed().as_nanos() as f64 / f64::from(2 * round_trips)
}
