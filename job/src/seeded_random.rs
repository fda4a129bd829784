//! Random numbers of the simulations.

use crate::cluster::MonotonicTime;

/// Pseudo-random numbers that depend on the seed alone.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn time(&mut self, from_ms: u64, to_ms: u64) -> MonotonicTime {
        MonotonicTime::from_millis(from_ms + self.below(to_ms - from_ms + 1))
    }
}
