//! The numbers of stops.

use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// The number of a stop. The scheduler numbers the stops of all jobs in sequence, so that a later
/// stop has a larger number on every host.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct SwitchSeq(pub u64);

impl SwitchSeq {
    /// Before the first stop.
    pub const NONE: Self = Self(0);
    /// After every stop.
    pub const MAX: Self = Self(u64::MAX);

    /// The number of the stop that follows after this number of stops. Returns `None` if the number
    /// would overflow.
    pub fn checked_add(self, stops: u32) -> Option<Self> {
        self.0.checked_add(stops.into()).map(Self)
    }
}

impl Add<u64> for SwitchSeq {
    type Output = Self;

    fn add(self, stops: u64) -> Self {
        Self(self.0 + stops)
    }
}

impl AddAssign<u64> for SwitchSeq {
    fn add_assign(&mut self, stops: u64) {
        self.0 += stops;
    }
}

impl Sub for SwitchSeq {
    type Output = u64;

    fn sub(self, earlier: Self) -> u64 {
        self.0 - earlier.0
    }
}
