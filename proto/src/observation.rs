//! The observations of shepherds about processes, made without stopping them: whether all are idle,
//! what each waits for, and the metrics for monitors.

use crate::ids::{ElementIndex, JobHostId};
use serde::{Deserialize, Serialize};

use crate::job_control::SwitchSeq;
use crate::mpi_call::MpiCallRecord;

/// The activity of some processes. The values are ordered: the lowest activity of several groups is
/// the activity of all groups together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Activity {
    /// At least one process is busy.
    Busy,
    /// A debugger has stopped at least one process, and the others are idle. The processes need no
    /// processor, but the debugger may let the stopped process continue at any time.
    Held,
    /// All processes are idle.
    Idle,
}

/// Whether all processes below a point of a job's tree are idle, and the sums of their counters.
/// This is enough to give up a slice, but not to detect a deadlock, because there are no rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdleSummary {
    /// The activity of the processes.
    pub activity: Activity,
    /// Number of messages sent.
    pub sent: u64,
    /// Number of messages received and released.
    pub received: u64,
    /// Number of outstanding remote reads and writes.
    pub outstanding_rma: u64,
    /// The last stop that all processes have been through, or 0. Processes that were idle before a
    /// later stop may have work to do after that stop.
    pub stop_seq: SwitchSeq,
}

impl IdleSummary {
    /// The summary of no processes.
    pub const EMPTY: IdleSummary = IdleSummary {
        activity: Activity::Idle,
        sent: 0,
        received: 0,
        outstanding_rma: 0,
        stop_seq: SwitchSeq::MAX,
    };
    /// At least one process is busy. All other fields are then meaningless.
    pub const BUSY: IdleSummary = IdleSummary {
        activity: Activity::Busy,
        sent: 0,
        received: 0,
        outstanding_rma: 0,
        stop_seq: SwitchSeq::NONE,
    };
    /// A debugger has stopped a process, and the others are idle. The counters are then
    /// meaningless.
    pub const HELD: IdleSummary = IdleSummary { activity: Activity::Held, ..Self::EMPTY };

    /// The summary of both groups. The counters of hostile processes may wrap around.
    #[must_use]
    pub fn combine(self, other: IdleSummary) -> IdleSummary {
        IdleSummary {
            activity: self.activity.min(other.activity),
            sent: self.sent.wrapping_add(other.sent),
            received: self.received.wrapping_add(other.received),
            outstanding_rma: self.outstanding_rma.wrapping_add(other.outstanding_rma),
            stop_seq: self.stop_seq.min(other.stop_seq),
        }
    }

    /// The summary with meaningless fields cleared, so that equivalent summaries are equal.
    #[must_use]
    pub fn simplified(self) -> Self {
        match self.activity {
            Activity::Idle => self,
            Activity::Held => Self { stop_seq: self.stop_seq, ..Self::HELD },
            Activity::Busy => Self::BUSY,
        }
    }

    /// Whether none of the processes needs a processor.
    pub fn needs_no_processor(&self) -> bool {
        self.activity != Activity::Busy
    }

    /// Whether all processes are idle, and no message or remote access is outstanding.
    pub fn is_quiescent(&self) -> bool {
        self.activity == Activity::Idle && self.sent == self.received && self.outstanding_rma == 0
    }
}

/// The number of a round of samples of one parallel process. The detector numbers the rounds, so
/// that two rounds that follow each other directly have consecutive numbers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct SampleRound(pub u64);

impl SampleRound {
    /// The next round.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The result of a sample of all processes below a point of a job's tree. `job/src/deadlock/`
/// handles rounds of samples, and draws conclusions from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActivitySample {
    /// Number of processes.
    pub node_count: u32,
    /// Whether all processes are idle.
    pub idle: bool,
    /// Whether no process was busy since the previous round.
    pub unchanged: bool,
    /// Whether all spinning processes have polled since the previous round.
    pub all_spinners_polled: bool,
    /// Sum of messages sent.
    pub sent: u64,
    /// Sum of messages received and released.
    pub received: u64,
    /// Sum of outstanding remote reads and writes.
    pub outstanding_rma: u64,
}

impl ActivitySample {
    /// The sample of no processes.
    pub const EMPTY: ActivitySample = ActivitySample {
        node_count: 0,
        idle: true,
        unchanged: true,
        all_spinners_polled: true,
        sent: 0,
        received: 0,
        outstanding_rma: 0,
    };

    /// The sample of both groups. The counters of hostile processes may wrap around.
    #[must_use]
    pub fn combine(self, other: ActivitySample) -> ActivitySample {
        ActivitySample {
            node_count: self.node_count.saturating_add(other.node_count),
            idle: self.idle && other.idle,
            unchanged: self.unchanged && other.unchanged,
            all_spinners_polled: self.all_spinners_polled && other.all_spinners_polled,
            sent: self.sent.wrapping_add(other.sent),
            received: self.received.wrapping_add(other.received),
            outstanding_rma: self.outstanding_rma.wrapping_add(other.outstanding_rma),
        }
    }
}

/// The event that one process waits for, as the process has recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitState {
    /// The node.
    pub node: u32,
    /// A [`crate::carea::WaitingFor`] code.
    pub waiting_for: u32,
    /// How long the process has been idle, in milliseconds of job time.
    pub idle_ms: u64,
    /// Number of messages that the process has sent.
    pub sent: u64,
    /// Number of messages that the process has received and released.
    pub received: u64,
    /// The destination of the last message that the process sent.
    pub last_destination: Option<u32>,
    /// The source of the last message that the process received.
    pub last_source: Option<u32>,
    /// The MPI call in which the process waits.
    pub mpi_call: Option<MpiCallRecord>,
}

/// From scrun to its monitor (scmon), over a pipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MonitorMessage {
    /// Metrics of some of the job's hosts and processes.
    Metrics(Metrics),
    /// Bytes for the standard error that scrun and scmon share. scmon prints the bytes, because its
    /// display is on the same terminal.
    Stderr(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// Metrics for monitors: totals since the start of a process. The reader computes fractions and
/// rates from them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Metrics of hosts.
    pub hosts: Vec<HostMetrics>,
    /// Metrics of processes.
    pub nodes: Vec<NodeMetrics>,
}

/// The resources that a job uses on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMetrics {
    /// Index of the host in the job.
    pub host: JobHostId,
    /// The name of the host.
    pub name: String,
    /// Size of the job's files on the host in KiB.
    pub disk_kib: u64,
    /// Full scale of `disk_kib`: the limit, or the free space when the job started.
    pub disk_scale_kib: u64,
    /// Full scale of memory in KiB: the limit, or the free memory when the job started.
    pub memory_scale_kib: u64,
}

/// The activity of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMetrics {
    /// Element of the running stage.
    pub element: ElementIndex,
    /// The node.
    pub node: u32,
    /// Index of its host in the job.
    pub host: JobHostId,
    /// Time of the sample in nanoseconds, by the clock of the host.
    pub sampled_at_ns: u64,
    /// How long the process was observed while its job ran, in nanoseconds.
    pub observed_ns: u64,
    /// The busy part of that time, by its idle flag, in nanoseconds. It is the whole time if the
    /// process never sets the flag.
    pub busy_ns: u64,
    /// Number of messages sent.
    pub sent: u64,
    /// Number of messages received and released.
    pub received: u64,
    /// Number of bytes in the sent messages.
    pub sent_bytes: u64,
    /// Number of bytes in the received messages.
    pub received_bytes: u64,
    /// Resident memory in KiB.
    pub memory_kib: u64,
    /// Processor time in nanoseconds.
    pub cpu_ns: u64,
    /// User monitor 0 (manual 3.5.3).
    pub usr0: u8,
    /// User monitor 1.
    pub usr1: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_quiescent_if_all_are_idle_and_nothing_is_outstanding() {
        let idle = IdleSummary { sent: 3, received: 3, ..IdleSummary::EMPTY };
        assert!(idle.is_quiescent() && idle.needs_no_processor());
        for other in [
            IdleSummary { sent: 4, ..idle },
            IdleSummary { outstanding_rma: 1, ..idle },
            IdleSummary { activity: Activity::Held, ..idle },
            IdleSummary { activity: Activity::Busy, ..idle },
        ] {
            assert!(!other.is_quiescent(), "{other:?}");
        }
        assert!(!IdleSummary::BUSY.needs_no_processor());
    }

    #[test]
    fn rounds_have_consecutive_numbers() {
        assert_eq!(SampleRound(4).next(), SampleRound(5));
        assert_eq!(SampleRound(u64::MAX).next(), SampleRound(0));
    }

    #[test]
    fn a_combined_sample_has_the_sums_and_only_the_properties_of_both_groups() {
        let sample = ActivitySample {
            node_count: 2,
            sent: 3,
            received: 4,
            outstanding_rma: 1,
            ..ActivitySample::EMPTY
        };
        assert_eq!(sample.combine(ActivitySample::EMPTY), sample);
        let busy = ActivitySample { idle: false, ..ActivitySample::EMPTY };
        assert_eq!(sample.combine(busy), ActivitySample { idle: false, ..sample });
        let changed = ActivitySample { unchanged: false, ..ActivitySample::EMPTY };
        assert_eq!(sample.combine(changed), ActivitySample { unchanged: false, ..sample });
        let spinning = ActivitySample { all_spinners_polled: false, ..ActivitySample::EMPTY };
        let expected = ActivitySample { all_spinners_polled: false, ..sample };
        assert_eq!(sample.combine(spinning), expected);
    }
}
