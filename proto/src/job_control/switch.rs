//! When a job runs and when it is stopped: orders to the hosts' switch threads, and their reports.

use serde::{Deserialize, Serialize};

use crate::observation::IdleSummary;

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
        switch_seq: u64,
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
    pub first_switch_seq: u64,
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
        switch_seq: u64,
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
        switch_seq: u64,
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
