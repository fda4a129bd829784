//! What shepherds see of processes without stopping them: whether all are idle, what each waits
//! for, and the figures that monitors show.

use serde::{Deserialize, Serialize};

/// Whether all processes below a point of a job's tree are idle, and the sums of what they have
/// counted. Enough to give up a slice, never for a verdict of deadlock: there are no rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdleSummary {
    /// All are idle.
    pub idle: bool,
    /// Messages sent.
    pub sent: u64,
    /// Messages received and released.
    pub received: u64,
    /// Remote reads and writes that are outstanding.
    pub outstanding_rma: u64,
}

impl IdleSummary {
    /// Of no process.
    pub const EMPTY: IdleSummary =
        IdleSummary { idle: true, sent: 0, received: 0, outstanding_rma: 0 };

    /// Of both. What hostile processes counted may wrap around.
    #[must_use]
    pub fn combine(self, other: IdleSummary) -> IdleSummary {
        IdleSummary {
            idle: self.idle && other.idle,
            sent: self.sent.wrapping_add(other.sent),
            received: self.received.wrapping_add(other.received),
            outstanding_rma: self.outstanding_rma.wrapping_add(other.outstanding_rma),
        }
    }

    /// Whether nothing goes on: all are idle and nothing is outstanding.
    pub fn is_quiescent(&self) -> bool {
        self.idle && self.sent == self.received && self.outstanding_rma == 0
    }
}

/// What a look at all processes below a point of a job's tree has found; rounds of looks, and what
/// may be concluded from them, are in `scored/src/deadlock/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActivitySample {
    /// Processes.
    pub node_count: u32,
    /// All are idle.
    pub idle: bool,
    /// None was busy since the round before.
    pub unchanged: bool,
    /// All that spin have polled since the round before.
    pub all_spinners_polled: bool,
    /// Sum.
    pub sent: u64,
    /// Sum.
    pub received: u64,
    /// Sum.
    pub outstanding_rma: u64,
}

impl ActivitySample {
    /// Of no process.
    pub const EMPTY: ActivitySample = ActivitySample {
        node_count: 0,
        idle: true,
        unchanged: true,
        all_spinners_polled: true,
        sent: 0,
        received: 0,
        outstanding_rma: 0,
    };

    /// Of both. What hostile processes counted may wrap around.
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

/// What one process waits for, as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitState {
    /// The node.
    pub node: u32,
    /// A [`crate::carea::WaitingFor`] code.
    pub waiting_for: u32,
    /// Since so long, in milliseconds of the job's own time.
    pub idle_ms: u64,
    /// Messages that it has sent.
    pub sent: u64,
    /// Messages that it has received and released.
    pub received: u64,
    /// To whom it has sent last.
    pub last_destination: Option<u32>,
    /// From whom it has received last.
    pub last_source: Option<u32>,
}

/// Figures for monitors: totals since a process began, from which a reader makes shares and
/// rates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Of hosts.
    pub hosts: Vec<HostMetrics>,
    /// Of processes.
    pub nodes: Vec<NodeMetrics>,
}

/// What a job uses on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMetrics {
    /// Its place among the hosts of the job.
    pub host: u32,
    /// Its name.
    pub name: String,
    /// Files of the job there.
    pub disk_kib: u64,
    /// What that is shown against: the limit, else what was free when the job began.
    pub disk_scale_kib: u64,
    /// The same for memory.
    pub memory_scale_kib: u64,
}

/// What a process does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMetrics {
    /// Element of the running stage.
    pub element: u32,
    /// The node.
    pub node: u32,
    /// Its host's place among the hosts of the job.
    pub host: u32,
    /// When that was, on its host's own clock, in nanoseconds.
    pub sampled_at_ns: u64,
    /// How long it was watched while its job ran, in nanoseconds.
    pub observed_ns: u64,
    /// How much of that it was busy, by its idle flag; all of it if it never sets the flag.
    pub busy_ns: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages received and released.
    pub received: u64,
    /// Bytes of those sent.
    pub sent_bytes: u64,
    /// Bytes of those received.
    pub received_bytes: u64,
    /// Resident memory.
    pub memory_kib: u64,
    /// Processor time, in nanoseconds.
    pub cpu_ns: u64,
    /// User monitor 0 (manual 3.5.3).
    pub usr0: u8,
    /// User monitor 1.
    pub usr1: u8,
}
