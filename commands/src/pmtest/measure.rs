//! What the two measuring nodes do. Both run the same function with the same numbers, node 0
//! looks at the clock.
#![forbid(unsafe_code)]

use std::ffi::c_int;
use std::time::Instant;

use crate::pmtest::channel::{Channel, PmError};
use crate::pmtest::figures::{Latency, Samples};
use crate::pmtest::floor::Floor;

/// Round trips between two looks at the clock: reading it costs as much as a message.
const BATCH: u32 = 32;
/// Batches in a round.
const BATCHES: u32 = 50;
/// Round trips in a round that are timed one by one, for the tail.
const SINGLES: u32 = 500;
/// Batches of messages in one direction.
const BURSTS: u32 = 12;
/// Messages in such a batch.
const BURST: usize = 50_000;
/// Bytes in such a batch at most.
const BURST_BYTES: usize = 16 << 20;

/// One of the two nodes that measure.
pub struct Side<'a> {
    channel: &'a Channel,
    /// Node 0: it begins and takes the time.
    first: bool,
    out: Vec<u8>,
    into: Vec<u8>,
    /// Messages go through a bare ring instead of PM.
    bare: bool,
}

impl<'a> Side<'a> {
    /// `mtu` is the longest message; `bare`: the latency of a bare ring instead of PM's.
    pub fn new(channel: &'a Channel, first: bool, mtu: usize, bare: bool) -> Self {
        let out = (0..mtu).map(|i| i as u8).collect();
        Self { channel, first, out, into: vec![0; mtu], bare }
    }

    fn peer(&self) -> c_int {
        c_int::from(self.first)
    }

    fn round_trips(&mut self, size: usize, count: u32) -> Result<(), PmError> {
        let peer = self.peer();
        for _ in 0..count {
            if self.first {
                self.channel.send(peer, &self.out[..size])?;
                self.channel.receive(&mut self.into)?;
            } else {
                self.channel.receive(&mut self.into)?;
                self.channel.send(peer, &self.out[..size])?;
            }
        }
        Ok(())
    }

    /// By PM, or by the bare ring where that is measured.
    fn trips(
        &mut self,
        floor: &mut Option<&mut Floor>,
        size: usize,
        count: u32,
    ) -> Result<(), PmError> {
        match floor {
            Some(floor) if self.bare => {
                floor.exchange(self.first, count, &self.out[..size], &mut self.into);
                Ok(())
            }
            _ => self.round_trips(size, count),
        }
    }

    /// Floor (if there is one) and messages in turn, for that many rounds.
    ///
    /// # Errors
    /// A PM function failed.
    pub fn latency(
        &mut self,
        mut floor: Option<&mut Floor>,
        size: usize,
        rounds: u32,
    ) -> Result<Latency, PmError> {
        let [mut line, mut batch, mut single] = [const { Samples::none() }; 3];
        self.trips(&mut floor, size, BATCH * BATCHES)?;
        for _ in 0..rounds {
            if let Some(floor) = &mut floor {
                for _ in 0..BATCHES {
                    let start = Instant::now();
                    floor.bounce(self.first, BATCH);
                    line.add(one_way(start, BATCH));
                }
            }
            for _ in 0..BATCHES {
                let start = Instant::now();
                self.trips(&mut floor, size, BATCH)?;
                batch.add(one_way(start, BATCH));
            }
            for _ in 0..SINGLES {
                let start = Instant::now();
                self.trips(&mut floor, size, 1)?;
                single.add(one_way(start, 1));
            }
        }
        Ok(Latency {
            min: batch.min(),
            median: batch.quantile(0.5),
            p999: single.quantile(0.999),
            floor: line.min(),
        })
    }

    /// Messages per second in one direction, of the best batch.
    ///
    /// # Errors
    /// A PM function failed.
    pub fn rate(&mut self, size: usize) -> Result<f64, PmError> {
        let count = BURST.min(BURST_BYTES / size);
        let mut rates = Samples::default();
        for _ in 0..BURSTS {
            let start = Instant::now();
            self.burst(size, count)?;
            rates.add(count as f64 / start.elapsed().as_secs_f64());
        }
        Ok(rates.max())
    }

    /// Bytes per second in one direction, of the best batch. What is longer than a message goes
    /// in several.
    ///
    /// # Errors
    /// A PM function failed.
    pub fn bandwidth(&mut self, size: usize) -> Result<f64, PmError> {
        let piece = size.min(self.out.len());
        let pieces = size.div_ceil(piece);
        let count = (BURST_BYTES / size).clamp(1, BURST);
        let mut rates = Samples::default();
        for _ in 0..BURSTS {
            let start = Instant::now();
            // The last piece of each block may be shorter; whole blocks of equal pieces would
            // not be what was asked for.
            for _ in 0..count {
                self.one_direction(piece, pieces - 1)?;
                self.one_direction(size - piece * (pieces - 1), 1)?;
            }
            self.answer()?;
            rates.add((size * count) as f64 / start.elapsed().as_secs_f64());
        }
        Ok(rates.max())
    }

    /// Node 1 answers once everything has come; only then the clock is stopped.
    fn burst(&mut self, size: usize, count: usize) -> Result<(), PmError> {
        self.one_direction(size, count)?;
        self.answer()
    }

    fn one_direction(&mut self, size: usize, count: usize) -> Result<(), PmError> {
        let peer = self.peer();
        for _ in 0..count {
            if self.first {
                self.channel.send(peer, &self.out[..size])?;
            } else {
                self.channel.receive(&mut self.into)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<(), PmError> {
        if self.first {
            self.channel.receive(&mut self.into).map(|_| ())
        } else {
            self.channel.send(self.peer(), &[0])
        }
    }
}

fn one_way(start: Instant, round_trips: u32) -> f64 {
    start.elapsed().as_nanos() as f64 / f64::from(2 * round_trips)
}
