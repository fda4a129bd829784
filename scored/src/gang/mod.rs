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
//! | a host does not answer: `Tick` | `Late`, and the job runs on for another slice |
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
//! host has them take turns without asking, for half a second: `Turns`. Only the stop of the last
//! turn is told; then the machine decides anew. Whatever happens before ends the turns: `Stop` for
//! all of them, and nobody runs before all have `Stopped`.

use std::time::Duration;

use crate::cluster::{JobId, Share, Time};

mod choice;
mod machine;
mod tally;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod turn_tests;

pub use machine::Gang;
pub use tally::Tally;

/// The largest priority.
pub const LAST_PRIORITY: u8 = 15;

/// Times of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// A slice (`scored -ts`).
    pub slice: Duration,
    /// The least that a job runs before it is stopped for another.
    pub smallest: Duration,
    /// What hosts may take to stop a job.
    pub patience: Duration,
    /// An idle job keeps its processors that long if all that wait for them were idle, too.
    pub linger: Duration,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            slice: Duration::from_millis(500),
            smallest: Duration::from_millis(5),
            patience: Duration::from_secs(1),
            linger: Duration::from_millis(10),
        }
    }
}

/// Why a job is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its user has suspended it.
    User,
    /// Nobody takes its output.
    Output,
    /// What it does is looked at.
    Check,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A job can run from now on, on these hosts. Nothing of it runs yet.
    Enter {
        /// Its number.
        job: JobId,
        /// Where, each host once.
        shares: Vec<Share>,
        /// 0 to [`LAST_PRIORITY`]; what is larger counts as that.
        priority: u8,
    },
    /// It has ended, or is being ended.
    Leave(JobId),
    /// All of its hosts have carried out the stop of that number.
    Stopped {
        /// Which.
        job: JobId,
        /// The number of the `Stop`.
        switch: u64,
    },
    /// All of its processes are idle, and no message is outstanding.
    Idle(JobId),
    /// That is over.
    Busy(JobId),
    /// It gives up the rest of its slice (`sc_yield`).
    Yield(JobId),
    /// It wants no slice until then (`sc_sleep`).
    Sleep(JobId, Time),
    /// It is not to run until `Release` for the same reason.
    Hold(JobId, Why),
    /// See `Hold`.
    Release(JobId, Why),
    /// Time has passed.
    Tick,
}

/// A stop that needs no order: each host carries it out by its own clock, so that all do so at
/// once and nobody's way to them takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// Its number, as of an order; larger than all before.
    pub switch: u64,
    /// How long the job runs first.
    pub after: Duration,
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Stop it on all of its hosts, then report `Stopped` with this number.
    Stop {
        /// Which.
        job: JobId,
        /// Number of this order; larger than all before.
        switch: u64,
        /// For longer than a slice.
        lasting: bool,
    },
    /// Start it, or let it go on, on all of its hosts. Orders reach a host in their order.
    Run {
        /// Which.
        job: JobId,
        /// Number of this order.
        switch: u64,
        /// When it stops by itself; in place of what was said before.
        stop: Option<Planned>,
    },
    /// Have these run one after the other on their one host, so long each, the first one first. The
    /// last turn ends with `Stopped`; so does an earlier one after which the host goes no further.
    Turns {
        /// Which.
        jobs: Vec<JobId>,
        /// Number of the first turn's stop; each further turn has the next one.
        switch: u64,
        /// How many.
        turns: u32,
        /// How long each of them is.
        length: Duration,
    },
    /// The turns of these are over; there have been about so many since then.
    Turned {
        /// Which, in their order.
        jobs: Vec<JobId>,
        /// How many.
        turns: u32,
        /// When the first one began.
        since: Time,
    },
    /// A job with `Hold` has stopped everywhere.
    Held(JobId),
    /// Some host has not stopped this job within [`Setting::patience`]: it is to be asked for, and
    /// named. The job runs on.
    Late(JobId),
    /// This row begins.
    Row(Vec<JobId>),
}
