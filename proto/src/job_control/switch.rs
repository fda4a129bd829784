//! Orders to the hosts' switch threads that stop and resume a job, and the reports of these
//! threads.

use serde::{Deserialize, Serialize};

use super::SwitchSeq;
use crate::ids::ElementIndex;
use crate::observation::IdleSummary;

/// When a running job stops again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCondition {
    /// The condition of the last order remains. Only the sampling interval changes, and a stopped
    /// job stays stopped.
    Unchanged,
    /// An order to stop.
    OnOrder,
    /// After a time. Each host stops the job when this time has passed since it received this
    /// order, as if by an order to stop with this number. An order to stop that arrives earlier
    /// takes effect.
    After {
        /// The time in microseconds.
        run_us: u32,
        /// The number of the stop, which is larger than all earlier ones.
        switch_seq: SwitchSeq,
    },
    /// The job does not run yet, but alternates with other jobs of its only host. The daemon of
    /// that host lets the jobs run one after the other, each as by [`StopCondition::After`]. The
    /// daemon reports only the stop of the last turn.
    LocalRotation(LocalRotation),
}

/// How a job alternates with other jobs. Each of these jobs gets this data, with its own position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRotation {
    /// The number of the stop that ends the first turn. Each further turn has the next number.
    pub first_switch_seq: SwitchSeq,
    /// The length of a turn in microseconds.
    pub turn_us: u32,
    /// Total number of turns.
    pub turn_count: u32,
    /// Number of jobs that take part.
    pub job_count: u8,
    /// The job's position among them, from 0.
    pub position: u8,
}

/// An order to the switch threads of all hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwitchOrder {
    /// Stop every process with its threads and descendants, then send [`SwitchReport::Stopped`].
    Stop {
        /// The number of this stop, which is larger than all earlier ones.
        switch_seq: SwitchSeq,
    },
    /// Let every process continue, or permit its start.
    Run {
        /// Interval in microseconds at which the host checks whether all processes are idle. 0
        /// disables the checks.
        idle_check_interval_us: u32,
        /// When the job stops again.
        stop_condition: StopCondition,
    },
}

/// A report of the switch threads.
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
        element: ElementIndex,
        /// The result.
        summary: IdleSummary,
    },
}
