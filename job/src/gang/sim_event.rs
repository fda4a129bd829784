//! Events of the simulation in the tests of the gang scheduler.

use score_proto::ids::JobId;
use std::time::Duration;

/// A message in flight to a host or from it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GangSimEvent {
    Stop {
        host: u32,
        job: JobId,
        seq: u64,
    },
    Run {
        host: u32,
        job: JobId,
        stop: Option<(u64, Duration)>,
    },
    /// The job's time has ended by the host's own clock.
    SliceExpired {
        host: u32,
        job: JobId,
        seq: u64,
    },
    Ack {
        host: u32,
        job: JobId,
        seq: u64,
    },
    /// A job is to rotate, at this position of so many.
    Turns {
        host: u32,
        job: JobId,
        position: (usize, usize),
        params: (u64, u32, Duration),
    },
    /// The next turn of a host begins, by this number.
    Turn {
        host: u32,
        seq: u64,
    },
    Scripted(usize),
}
