//! Fault injection for tests and measurements. It drops, duplicates and reorders received packets
//! before the reliability machine handles them. A seed makes a run repeatable.
//!
//! The parameters are written as `drop=0.01,duplicate=0.005,reorder=0.02,seed=7`, with
//! probabilities from 0 to 1. A missing parameter is 0, including the seed. A reordered packet is
//! delivered after up to 8 later packets.

#![forbid(unsafe_code)]

use super::error::WireError;
use super::{PacketSource, Received};
use std::collections::VecDeque;

/// The probabilities of faults, and the seed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultConfig {
    /// The probability that a packet is dropped.
    pub drop: f64,
    /// The probability that a packet is duplicated.
    pub duplicate: f64,
    /// The probability that later packets overtake a packet.
    pub reorder: f64,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl FaultConfig {
    /// Parses the parameters in the form that the [module](self) describes.
    ///
    /// # Errors
    /// A parameter is unknown or a number is out of range.
    pub fn parse(words: &str) -> Result<FaultConfig, WireError> {
        let mut loss = FaultConfig::default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let wrong = || {
                let valid = "drop=P,duplicate=P,reorder=P,seed=N with P from 0 to 1";
                WireError::new(format!("loss: {word:?}: invalid (valid: {valid})"))
            };
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            if name == "seed" {
                loss.seed = value.parse().map_err(|_| wrong())?;
                continue;
            }
            let probability: f64 = value.parse().map_err(|_| wrong())?;
            if !(0.0..=1.0).contains(&probability) {
                return Err(wrong());
            }
            *match name {
                "drop" => &mut loss.drop,
                "duplicate" => &mut loss.duplicate,
                "reorder" => &mut loss.reorder,
                _ => return Err(wrong()),
            } = probability;
        }
        Ok(loss)
    }
}

/// The most packets that overtake a delayed packet.
const MAX_REORDER: u32 = 8;
/// A delayed packet is delivered after this many polls without a packet.
const MAX_DELAY_POLLS: u32 = 64;
/// The most packets that are received from the wire with one call.
const BATCH: usize = 32;

struct DelayedPacket {
    packet: Received,
    overtakes_left: u32,
    empty_polls: u32,
}

/// The fault injection of one wire.
pub(super) struct FaultInjector {
    config: FaultConfig,
    rng: Random,
    ready: VecDeque<Received>,
    delayed: Option<DelayedPacket>,
    injected_count: u64,
}

impl FaultInjector {
    pub(super) fn new(config: FaultConfig) -> FaultInjector {
        let rng = Random(config.seed);
        FaultInjector { config, rng, ready: VecDeque::new(), delayed: None, injected_count: 0 }
    }

    pub(super) fn injected(&self) -> u64 {
        self.injected_count
    }

    /// Receives packets and injects faults. `ready` is bounded because it is filled only when it is
    /// empty.
    pub(super) fn receive(&mut self, out: &mut [Received], wire: &mut impl PacketSource) -> usize {
        if self.ready.is_empty() {
            let mut received = [Received::default(); BATCH];
            let count = wire.receive(&mut received);
            for packet in &received[..count] {
                self.inject(*packet, wire);
            }
            if count == 0 {
                self.on_empty_poll();
            }
        }
        let count = out.len().min(self.ready.len());
        for (to, packet) in out.iter_mut().zip(self.ready.drain(..count)) {
            *to = packet;
        }
        count
    }

    fn inject(&mut self, packet: Received, wire: &mut impl PacketSource) {
        if self.rng.happens(self.config.drop) {
            wire.release(packet.buffer);
            self.injected_count += 1;
            return;
        }
        if self.rng.happens(self.config.duplicate) {
            wire.retain(packet.buffer);
            self.ready.push_back(packet);
            self.injected_count += 1;
        }
        if self.delayed.is_none() && self.rng.happens(self.config.reorder) {
            let overtakes_left = 1 + self.rng.next() as u32 % MAX_REORDER;
            self.delayed = Some(DelayedPacket { packet, overtakes_left, empty_polls: 0 });
            self.injected_count += 1;
            return;
        }
        self.ready.push_back(packet);
        if let Some(delayed) = &mut self.delayed {
            delayed.overtakes_left -= 1;
            if delayed.overtakes_left == 0 {
                let packet = delayed.packet;
                self.delayed = None;
                self.ready.push_back(packet);
            }
        }
    }

    fn on_empty_poll(&mut self) {
        let Some(delayed) = &mut self.delayed else { return };
        delayed.empty_polls += 1;
        if delayed.empty_polls >= MAX_DELAY_POLLS {
            self.ready.push_back(delayed.packet);
            self.delayed = None;
        }
    }
}

/// The SplitMix64 generator of random numbers, for which every seed is good.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn happens(&mut self, probability: f64) -> bool {
        // A double has a precision of 53 bits.
        probability > 0.0 && (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that returns packets from 0 on and counts the references to each.
    struct Counting {
        next: u32,
        last: u32,
        refcounts: Vec<u32>,
    }

    impl PacketSource for Counting {
        fn receive(&mut self, out: &mut [Received]) -> usize {
            let count = out.len().min((self.last - self.next) as usize);
            for slot in &mut out[..count] {
                *slot = Received { buffer: self.next, offset: 0, len: 1 };
                self.refcounts.push(1);
                self.next += 1;
            }
            count
        }
        fn release(&mut self, buffer: u32) {
            self.refcounts[buffer as usize] -= 1;
        }
        fn retain(&mut self, buffer: u32) {
            self.refcounts[buffer as usize] += 1;
        }
    }

    fn run(words: &str) -> (Vec<u32>, u64) {
        let mut injector = FaultInjector::new(FaultConfig::parse(words).unwrap());
        let mut wire = Counting { next: 0, last: 10_000, refcounts: vec![] };
        let mut out = [Received::default(); 7];
        let (mut received, mut idle) = (vec![], 0);
        while idle < 100 {
            let count = injector.receive(&mut out, &mut wire);
            idle = if count == 0 { idle + 1 } else { 0 };
            for packet in &out[..count] {
                received.push(packet.buffer);
                wire.release(packet.buffer);
            }
        }
        assert!(wire.refcounts.iter().all(|refcount| *refcount == 0), "every buffer was released");
        (received, injector.injected())
    }

    #[test]
    fn without_configured_faults_all_packets_arrive_in_order() {
        let (received, injected) = run("seed=1");
        assert!(received.iter().copied().eq(0..10_000));
        assert_eq!(injected, 0);
    }

    #[test]
    fn each_fault_happens_about_as_often_as_configured() {
        let (received, injected) = run("drop=0.1,seed=3");
        assert!((8_700..9_300).contains(&received.len()), "{}", received.len());
        assert_eq!(injected as usize, 10_000 - received.len());
        let (received, _) = run("duplicate=0.1,seed=3");
        assert!((10_700..11_300).contains(&received.len()), "{}", received.len());
        let (received, injected) = run("reorder=0.1,seed=3");
        assert_eq!(received.len(), 10_000);
        assert!(injected > 300 && !received.is_sorted());
        let max_distance =
            received.iter().enumerate().map(|(i, packet)| i.abs_diff(*packet as usize)).max();
        assert!(max_distance.unwrap() <= MAX_REORDER as usize, "{max_distance:?}");
    }

    #[test]
    fn equal_seeds_cause_equal_faults_and_other_seeds_do_not() {
        let all = "drop=0.1,duplicate=0.1,reorder=0.1,seed=";
        assert_eq!(run(&format!("{all}5")), run(&format!("{all}5")));
        assert_ne!(run(&format!("{all}5")).0, run(&format!("{all}6")).0);
    }

    #[test]
    fn words_out_of_range_are_refused_by_name() {
        for words in ["drop", "drop=2", "drop=-0.1", "drop=nan", "lose=0.1", "seed=-1"] {
            let error = FaultConfig::parse(words).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
