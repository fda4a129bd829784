//! The gang scheduler: several parallel jobs use the same processors, each as if it were alone. All
//! processes of a job run in the same slice on all of its hosts, or none does. A pure state machine
//! `(event, now) -> actions`. The daemon sends stops and starts to the hosts, and reports their
//! acknowledgements.
//!
//! # The lifecycle of a slice
//!
//! | event | actions |
//! |---|---|
//! | a job is ready: `Enter` | `Run` if it fits; else it is in the next row |
//! | a slice begins | `Run`, with the time of the stop for a job that is not in the next row |
//! | such a job has stopped: `Stopped` | the slice has ended: `Stop` for others that leave |
//! | no job has stopped by its timer: `Tick` | the slice has ended: `Stop` for jobs that leave |
//! | a job stops everywhere: `Stopped` | `Run` for the job that waited for its processors |
//! | a job is idle: `Idle`, or yields: `Yield` | the slice ends for this job alone |
//! | a job is stopped for longer: `Hold` | `Stop`, then `Held`; it is in no row until `Release` |
//! | a job sleeps: `Sleep` | `Stop`; it is in no row until the given time |
//! | a host does not answer: `Tick` | `StopTimedOut`, and the job continues for another slice |
//! | the job has ended, or lost a host: `Leave` | `Run` for the job that waited |
//!
//! # Selection of the running jobs
//!
//! A **row** is a set of jobs that fit at the same time. Each slice has its own row. New jobs come
//! first, then the job with the smallest usage for its priority, then every further job that still
//! fits. A job that competes with no other job is therefore in every row and is never stopped for a
//! slice.
//!
//! The usage of a job is its time in slices, divided by its weight `2^(-priority/2)` (scrun(1),
//! `priority`: a smaller number is a larger share). A job that yields its slice is charged the
//! whole slice.
//!
//! # Rotations
//!
//! The scheduler can start a rotation if all running jobs are equivalent and on one host, and
//! several slices have ended as planned. That host then rotates the jobs for half a second without
//! orders (`StartRotation`). It reports only the stop of the last turn. Then the scheduler decides
//! again. An earlier event that may change the plan ends the rotation: the scheduler sends `Stop`
//! for all of its jobs, and no job runs before all have `Stopped`. `Busy` does not end a rotation.

use std::time::Duration;

use score_proto::ids::JobId;
use score_proto::job_control::SwitchSeq;

use crate::cluster::{HostShare, MonotonicTime};

#[cfg(test)]
mod rotation_tests;
mod row_capacity;
mod scheduler;
#[cfg(test)]
mod sim_event;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod step_tests;
mod switch_latency;
#[cfg(test)]
mod tests;

pub use scheduler::GangScheduler;
pub use switch_latency::LatencyHistogram;

/// The largest value of a priority, for jobs with the smallest share.
pub const LOWEST_PRIORITY: u8 = 15;

/// The time constants of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangConfig {
    /// A slice (`scored -ts`).
    pub slice: Duration,
    /// The shortest time that a job runs before it is stopped for another job.
    pub min_slice: Duration,
    /// The time that hosts may take to stop a job.
    pub stop_timeout: Duration,
    /// An idle job keeps its processors for this time if all jobs that wait for them were also
    /// idle.
    pub idle_grace: Duration,
}

impl Default for GangConfig {
    fn default() -> Self {
        Self {
            slice: Duration::from_millis(500),
            min_slice: Duration::from_millis(5),
            stop_timeout: Duration::from_secs(1),
            idle_grace: Duration::from_millis(10),
        }
    }
}

/// The reason why a job is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    /// The user has suspended the job.
    User,
    /// The output of the job is blocked.
    OutputBlocked,
    /// The processes of the job are inspected.
    Inspection,
    /// The processes of the job wait for a debugger before their first instruction.
    HeldStage,
    /// The processes of the job have debuggers.
    Debugger,
}

/// An event of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GangEvent {
    /// A job can run from now on, on these hosts. None of its processes runs yet.
    Enter {
        /// The number of the job.
        job: JobId,
        /// The shares of the job, each host once.
        shares: Vec<HostShare>,
        /// 0 to [`LOWEST_PRIORITY`]. Larger values count as the lowest priority.
        priority: u8,
    },
    /// The job has ended, or its end has begun.
    Leave(JobId),
    /// All hosts of the job have carried out the stop of this number.
    Stopped {
        /// The job.
        job: JobId,
        /// The number of the `Stop`.
        switch_seq: SwitchSeq,
    },
    /// All processes of the job are idle, and no message is outstanding.
    Idle(JobId),
    /// The job is not idle any more.
    Busy(JobId),
    /// The job gives up the rest of its slice (`sc_yield`).
    Yield(JobId),
    /// The job takes no slice until the given time (`sc_sleep`).
    Sleep(JobId, MonotonicTime),
    /// The job must not run until `Release` with the same reason.
    Hold(JobId, HoldReason),
    /// Ends a `Hold`.
    Release(JobId, HoldReason),
    /// Time has passed. See [`GangScheduler::deadline`].
    Tick,
}

/// A stop without an order, which each host carries out by its own clock. All hosts stop at the
/// same time, without the latency of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedStop {
    /// The number of the stop, larger than all earlier ones.
    pub switch_seq: SwitchSeq,
    /// The time for which the job runs first.
    pub after: Duration,
}

/// An action for the daemon. Actions are performed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GangAction {
    /// Stop the job on all of its hosts, then report `Stopped` with this number.
    Stop {
        /// The job.
        job: JobId,
        /// The number of this stop, larger than all earlier ones.
        switch_seq: SwitchSeq,
    },
    /// Start or continue the job on all of its hosts. Orders reach each host in the order in which
    /// they are sent.
    Run {
        /// The job.
        job: JobId,
        /// The timed stop of the job. It replaces an earlier one.
        stop: Option<TimedStop>,
    },
    /// Run these jobs alternately on their one host, each for one slice, starting with the first.
    /// The last turn ends with `Stopped`. If the host aborts the rotation after an earlier turn,
    /// that turn also ends with `Stopped`.
    StartRotation {
        /// The jobs.
        jobs: Vec<JobId>,
        /// The number of the first turn's stop; each further turn has the next number.
        switch_seq: SwitchSeq,
        /// The number of turns.
        turn_count: u32,
        /// The length of each turn.
        slice: Duration,
    },
    /// The rotation of these jobs has ended after about this many turns.
    RotationEnded {
        /// The jobs, in their order.
        jobs: Vec<JobId>,
        /// The number of turns.
        turn_count: u32,
        /// The time at which the first turn began.
        since: MonotonicTime,
    },
    /// A job with `Hold` has stopped everywhere.
    Held(JobId),
    /// A host has not stopped this job within [`GangConfig::stop_timeout`]. Name the late host.
    /// `Run` follows, unless the job is held or its rotation was aborted. In these cases the job
    /// still has to stop.
    StopTimedOut(JobId),
}
