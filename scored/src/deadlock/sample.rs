//! What a host sees of its processes.

/// One process, looked at once. [`Sample::turns`] is read first, then every idle slot, then the
/// rest.
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
}

/// What all processes below a point of the tree have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Processes.
    pub nodes: u32,
    /// All are idle.
    pub idle: bool,
    /// None was busy since the round before.
    pub unchanged: bool,
    /// All that spin have polled since the round before.
    pub polled: bool,
    /// Sum.
    pub sent: u64,
    /// Sum.
    pub received: u64,
    /// Sum.
    pub remote: u64,
}

impl Seen {
    /// Of no process.
    pub const NOTHING: Seen = Seen {
        nodes: 0,
        idle: true,
        unchanged: true,
        polled: true,
        sent: 0,
        received: 0,
        remote: 0,
    };

    /// Of both. What hostile processes counted may wrap around.
    pub fn and(self, other: Seen) -> Seen {
        Seen {
            nodes: self.nodes.saturating_add(other.nodes),
            idle: self.idle && other.idle,
            unchanged: self.unchanged && other.unchanged,
            polled: self.polled && other.polled,
            sent: self.sent.wrapping_add(other.sent),
            received: self.received.wrapping_add(other.received),
            remote: self.remote.wrapping_add(other.remote),
        }
    }
}

/// A host's memory of the last round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Watch {
    round: u64,
    last: Vec<Sample>,
}

impl Watch {
    /// Round `round` has looked at these, always the same processes in the same order. Only the
    /// round right before counts: a host that missed one says that everything has changed.
    /// `stopped`: none of them can have done anything while it was looked at.
    pub fn look(&mut self, round: u64, samples: &[Sample], stopped: bool) -> Seen {
        let follows = round == self.round + 1 && self.last.len() == samples.len();
        let seen = samples.iter().enumerate().fold(Seen::NOTHING, |seen, (at, sample)| {
            let before = self.last.get(at).filter(|_| follows);
            // What the round before saw of an idle process was true from then to now, so also at
            // the instant between the rounds, which is the same for all.
            let counted = before.filter(|_| !stopped).copied().unwrap_or(*sample);
            seen.and(Seen {
                nodes: 1,
                idle: sample.idle,
                unchanged: before.is_some_and(|before| before.turns == sample.turns),
                polled: !sample.spins
                    || before.is_some_and(|before| sample.polls.wrapping_sub(before.polls) >= 2),
                sent: counted.sent,
                received: counted.received,
                remote: counted.remote,
            })
        });
        self.round = round;
        self.last = samples.to_vec();
        seen
    }
}
