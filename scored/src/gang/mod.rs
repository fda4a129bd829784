//! The gang scheduler: several parallel jobs on the same processors, each as if it were alone. All
//! processes of a job run in the same slice on all of its hosts, or none does. A pure machine
//! `(event, now) -> actions`; the shell carries stops and starts to the hosts and their answers
//! back.
//!
//! # A slice's life
//!
//! | event | actions |
//! |---|---|
//! | a job is ready: `Enter` | `Run` if there is room; else it is next |
//! | a slice begins | `Run`, with when to stop for a job that is not in the next row |
//! | such a job has stopped: `Stopped` | the slice is over: `Stop` for others that leave |
//! | nobody has stopped by itself: `Tick` | the same |
//! | a job stops everywhere: `Stopped` | `Run` for whoever waited for its processors |
//! | a job has nothing to do: `Idle`, or gives way: `Yield` | the slice ends for it alone |
//! | somebody stops it for longer: `Hold` | `Stop`, then `Held`; no row has it until `Release` |
//! | it sleeps: `Sleep` | `Stop`; no row has it until then |
//! | a host does not answer: `Tick` | `StopTimedOut`, and the job runs on for another slice |
//! | the job has ended, or lost a host: `Leave` | `Run` for whoever waited |
//!
//! # Who runs
//!
//! A **row** is a set of jobs that fit side by side. Each slice has its own: whoever has used least
//! for its priority comes first, newcomers before all, and every further job that still fits. So a
//! job that competes with nobody is in every row and is never stopped for a slice.
//!
//! What a job uses is counted in slices' time, divided by its weight `2^(-priority/2)` (manual,
//! scrun(1), `priority`; smaller number, larger share). Who gives up a slice is charged all of it.
//!
//! # Turns
//!
//! Where all jobs that run are equals on one host, and nothing has happened for some slices, that
//! host has them take turns without asking, for half a second: `StartRotation`. Only the stop of the last
//! turn is told; then the machine decides anew. Whatever happens before ends the turns: `Stop` for
//! all of them, and nobody runs before all have `Stopped`.

use std::time::Duration;

use crate::cluster::{HostShare, JobId, MonotonicTime};

#[cfg(test)]
mod rotation_tests;
mod row_capacity;
mod scheduler;
mod switch_latency;
#[cfg(test)]
mod tests;

pub use scheduler::GangScheduler;
pub use switch_latency::LatencyHistogram;

/// The largest priority.
pub const LOWEST_PRIORITY: u8 = 15;

/// Times of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangConfig {
    /// A slice (`scored -ts`).
    pub slice: Duration,
    /// The least that a job runs before it is stopped for another.
    pub min_slice: Duration,
    /// What hosts may take to stop a job.
    pub stop_timeout: Duration,
    /// An idle job keeps its processors that long if all that wait for them were idle, too.
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

/// Why a job is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    /// Its user has suspended it.
    User,
    /// Nobody takes its output.
    OutputBlocked,
    /// What it does is looked at.
    Inspection,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GangEvent {
    /// A job can run from now on, on these hosts. Nothing of it runs yet.
    Enter {
        /// Its number.
        job: JobId,
        /// Where, each host once.
        shares: Vec<HostShare>,
        /// 0 to [`LOWEST_PRIORITY`]; what is larger counts as that.
        priority: u8,
    },
    /// It has ended, or is being ended.
    Leave(JobId),
    /// All of its hosts have carried out the stop of that number.
    Stopped {
        /// Which.
        job: JobId,
        /// The number of the `Stop`.
        switch_seq: u64,
    },
    /// All of its processes are idle, and no message is outstanding.
    Idle(JobId),
    /// That is over.
    Busy(JobId),
    /// It gives up the rest of its slice (`sc_yield`).
    Yield(JobId),
    /// It wants no slice until then (`sc_sleep`).
    Sleep(JobId, MonotonicTime),
    /// It is not to run until `Release` for the same reason.
    Hold(JobId, HoldReason),
    /// See `Hold`.
    Release(JobId, HoldReason),
    /// Time has passed.
    Tick,
}

/// A stop that needs no order: each host carries it out by its own clock, so that all do so at
/// once and nobody's way to them takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedStop {
    /// Its number, as of an order; larger than all before.
    pub switch_seq: u64,
    /// How long the job runs first.
    pub after: Duration,
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GangAction {
    /// Stop it on all of its hosts, then report `Stopped` with this number.
    Stop {
        /// Which.
        job: JobId,
        /// Number of this order; larger than all before.
        switch_seq: u64,
        /// For longer than a slice.
        lasting: bool,
    },
    /// Start it, or let it go on, on all of its hosts. Orders reach a host in their order.
    Run {
        /// Which.
        job: JobId,
        /// Number of this order.
        switch_seq: u64,
        /// When it stops by itself; in place of what was said before.
        stop: Option<TimedStop>,
    },
    /// Have these run one after the other on their one host, so long each, the first one first. The
    /// last turn ends with `Stopped`; so does an earlier one after which the host goes no further.
    StartRotation {
        /// Which.
        jobs: Vec<JobId>,
        /// Number of the first turn's stop; each further turn has the next one.
        switch_seq: u64,
        /// How many.
        turns: u32,
        /// How long each of them is.
        length: Duration,
    },
    /// The turns of these are over; there have been about so many since then.
    RotationEnded {
        /// Which, in their order.
        jobs: Vec<JobId>,
        /// How many.
        turns: u32,
        /// When the first one began.
        since: MonotonicTime,
    },
    /// A job with `Hold` has stopped everywhere.
    Held(JobId),
    /// Some host has not stopped this job within [`GangConfig::stop_timeout`]: it is to be asked for, and
    /// named. The job runs on.
    StopTimedOut(JobId),
    /// This row begins.
    RowStarted(Vec<JobId>),
}
