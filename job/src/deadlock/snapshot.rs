//! Samples of the processes of a host.

use score_proto::observation::{ActivitySample, SampleRound};

/// A sample of one process. [`ProcessSnapshot::turns`] is read first, then every idle slot, then
/// [`ProcessSnapshot::threads`], then the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ProcessSnapshot {
    /// The number of times that one of its threads became busy.
    pub turns: u64,
    /// All threads of the process have set idle or are in sc_barrier, and no reply to the process
    /// is in flight.
    pub idle: bool,
    /// The number of empty polls.
    pub polls: u64,
    /// The process polls instead of sleeping.
    pub is_spinning: bool,
    /// Messages that the process has sent.
    pub sent: u64,
    /// Messages that the process has received and released.
    pub received: u64,
    /// Remote reads and writes that are outstanding.
    pub remote_in_flight: u64,
    /// A fingerprint of the places at which the threads are, and of how often the sleeping threads
    /// have run. None if the threads were not sampled.
    pub threads: Option<u64>,
}

/// The last round that a host has recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LastRound {
    round: SampleRound,
    snapshots: Vec<ProcessSnapshot>,
    /// Empty polls of each process in the second consecutive round.
    baseline_polls: Vec<u64>,
}

impl LastRound {
    /// Whether `round` directly follows the recorded round.
    pub fn follows(&self, round: SampleRound) -> bool {
        round == self.round.next() && !self.snapshots.is_empty()
    }

    /// Whether the round directly before `round` has also sampled threads.
    pub fn has_thread_states(&self, round: SampleRound) -> bool {
        self.follows(round) && self.snapshots.iter().any(|sample| sample.threads.is_some())
    }

    /// Records the samples of a round, always of the same processes in the same order, and compares
    /// them with the round before. Only the directly preceding round counts: a host that missed a
    /// round reports that everything has changed. `stopped` means that the processes could not run
    /// while they were sampled.
    pub fn compare_round(
        &mut self,
        round: SampleRound,
        samples: &[ProcessSnapshot],
        stopped: bool,
    ) -> ActivitySample {
        let follows = self.follows(round) && self.snapshots.len() == samples.len();
        let activity =
            samples.iter().enumerate().fold(ActivitySample::EMPTY, |seen, (index, sample)| {
                let previous = self.snapshots.get(index).filter(|_| follows);
                let baseline_polls = self.baseline_polls.get(index).filter(|_| follows);
                // The values that the round before found in an idle process were valid from then to
                // now. So they were also valid at the instant between the rounds, which is the same
                // for all hosts.
                let baseline = previous.filter(|_| !stopped).copied().unwrap_or(*sample);
                seen.combine(ActivitySample {
                    node_count: 1,
                    idle: sample.idle,
                    unchanged: previous.is_some_and(|previous| {
                        // A stop counts as a run of each thread.
                        let threads_compared = previous.threads.is_some() && !stopped;
                        let threads_unchanged =
                            !threads_compared || previous.threads == sample.threads;
                        previous.turns == sample.turns && threads_unchanged
                    }),
                    all_spinners_polled: !sample.is_spinning
                        || baseline_polls
                            .is_some_and(|polls| sample.polls.wrapping_sub(*polls) >= 2),
                    sent: baseline.sent,
                    received: baseline.received,
                    outstanding_rma: baseline.remote_in_flight,
                })
            });
        if !follows {
            self.baseline_polls.clear();
        } else if self.baseline_polls.is_empty() {
            self.baseline_polls.extend(samples.iter().map(|sample| sample.polls));
        }
        self.round = round;
        self.snapshots = samples.to_vec();
        activity
    }
}
