//! Events of the simulation in the tests of the gang scheduler.

use std::time::Duration;

use score_proto::ids::{HostId, JobId};
use score_proto::job_control::SwitchSeq;

/// A message to or from a host, or a timer.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GangSimEvent {
    Stop {
        host: HostId,
        job: JobId,
        seq: SwitchSeq,
    },
    Run {
        host: HostId,
        job: JobId,
        stop: Option<(SwitchSeq, Duration)>,
    },
    /// The job's time has ended by the host's own clock.
    SliceExpired {
        host: HostId,
        job: JobId,
        seq: SwitchSeq,
    },
    Ack {
        host: HostId,
        job: JobId,
        seq: SwitchSeq,
    },
    /// A job joins a rotation. `position` is its index and the number of jobs.
    Turns {
        host: HostId,
        job: JobId,
        position: (usize, usize),
        params: (SwitchSeq, u32, Duration),
    },
    /// The next turn of a host begins, with this number.
    Turn {
        host: HostId,
        seq: SwitchSeq,
    },
    Scripted(usize),
}
