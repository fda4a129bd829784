//! When a job runs and when it is stopped: orders to the hosts' switch threads, and their reports.

use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

use crate::observation::IdleSummary;

/// The number of a stop. The scheduler counts the stops of all jobs, so that a later stop has a
/// larger number, on every host.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct SwitchSeq(pub u64);

impl SwitchSeq {
    /// Before the first stop.
    pub const NONE: Self = Self(0);
    /// After every stop.
    pub const MAX: Self = Self(u64::MAX);

    /// The number of the stop that comes so many stops after this one, if there is such a number.
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

/// When a running job stops again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCondition {
    /// As in the last order: only the sampling interval changes, and a job that has stopped stays
    /// stopped.
    Unchanged,
    /// On an order to stop.
    OnOrder,
    /// By itself, on each host so long after the host has received this order, as if it had
    /// received an order to stop with that number. An order to stop that arrives earlier takes
    /// effect.
    After {
        /// Microseconds.
        run_us: u32,
        /// Larger than all earlier ones.
        switch_seq: SwitchSeq,
    },
    /// The job does not run yet: it takes turns with other jobs of its only host. The daemon of
    /// that host lets each job run as by [`StopCondition::After`], one after the other. The daemon
    /// reports only the stop of the last one.
    LocalRotation(LocalRotation),
}

/// How a job takes turns with others. Every one of these jobs gets this, with its own position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRotation {
    /// The number of the stop that ends the first turn; each further turn has the next number.
    pub first_switch_seq: SwitchSeq,
    /// How long a turn is, in microseconds.
    pub turn_us: u32,
    /// Number of turns in all.
    pub turn_count: u32,
    /// Number of jobs that take part.
    pub job_count: u8,
    /// The job's position among them, from 0.
    pub position: u8,
}

/// To the switch threads of all hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwitchOrder {
    /// Stop every process with its threads and descendants; then send [`SwitchReport::Stopped`].
    Stop {
        /// Number of this stop; larger than all earlier ones.
        switch_seq: SwitchSeq,
    },
    /// Let every process continue, or allow it to be started.
    Run {
        /// Interval in which the host checks whether all processes are idle, in microseconds; 0 for
        /// never.
        idle_check_interval_us: u32,
        /// When the job stops again.
        stop_condition: StopCondition,
    },
}

/// From the switch threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwitchReport {
    /// The whole job has stopped, on this host and on all hosts below it.
    Stopped {
        /// Number of the order that was carried out.
        switch_seq: SwitchSeq,
    },
    /// Whether all processes of the element are idle, on this host and all hosts below it. Sent
    /// when that changes, when the counters change while they are idle, and after each stop if they
    /// are still idle.
    IdleSummary {
        /// Element of the running stage.
        element: u32,
        /// The result.
        summary: IdleSummary,
    },
}
