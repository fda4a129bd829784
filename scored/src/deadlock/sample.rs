//! What a host sees of its processes.

use score_proto::sight::Seen;

/// One process, looked at once. [`Sample::turns`] is read first, then every idle slot, then
/// [`Sample::threads`], then the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sample {
    /// How often one of its threads became busy.
    pub turns: u64,
    /// All of its threads have set idle, or are in sc_barrier, and no answer is on its way to it.
    pub idle: bool,
    /// Empty polls.
    pub polls: u64,
    /// It does not sleep: it polls.
    pub spins: bool,
    /// Messages that it sent.
    pub sent: u64,
    /// Messages that it received and released.
    pub received: u64,
    /// Remote reads and writes that are outstanding.
    pub remote: u64,
    /// Where its threads stand, and how often those that sleep have run; none where that was not
    /// looked at.
    pub threads: Option<u64>,
}

/// A host's memory of the last round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Watch {
    round: u64,
    last: Vec<Sample>,
    /// Empty polls of each, when the second round in a row saw it.
    polls: Vec<u64>,
}

impl Watch {
    /// Whether this round comes right after the last.
    pub fn follows(&self, round: u64) -> bool {
        round == self.round + 1 && !self.last.is_empty()
    }

    /// Whether the round right before this one has looked at threads, too.
    pub fn has_proof(&self, round: u64) -> bool {
        self.follows(round) && self.last.iter().any(|sample| sample.threads.is_some())
    }

    /// Round `round` has looked at these, always the same processes in the same order. Only the
    /// round right before counts: a host that missed one says that everything has changed.
    /// `stopped`: none of them can have done anything while it was looked at.
    pub fn look(&mut self, round: u64, samples: &[Sample], stopped: bool) -> Seen {
        let follows = self.follows(round) && self.last.len() == samples.len();
        let seen = samples.iter().enumerate().fold(Seen::NOTHING, |seen, (at, sample)| {
            let before = self.last.get(at).filter(|_| follows);
            let polls = self.polls.get(at).filter(|_| follows);
            // What the round before saw of an idle process was true from then to now, so also at
            // the instant between the rounds, which is the same for all.
            let counted = before.filter(|_| !stopped).copied().unwrap_or(*sample);
            seen.and(Seen {
                nodes: 1,
                idle: sample.idle,
                unchanged: before.is_some_and(|before| {
                    // A stop counts as a run.
                    let looked_at = before.threads.is_some() && !stopped;
                    let threads = !looked_at || before.threads == sample.threads;
                    before.turns == sample.turns && threads
                }),
                polled: !sample.spins
                    || polls.is_some_and(|polls| sample.polls.wrapping_sub(*polls) >= 2),
                sent: counted.sent,
                received: counted.received,
                remote: counted.remote,
            })
        });
        if !follows {
            self.polls.clear();
        } else if self.polls.is_empty() {
            self.polls.extend(samples.iter().map(|sample| sample.polls));
        }
        self.round = round;
        self.last = samples.to_vec();
        seen
    }
}
