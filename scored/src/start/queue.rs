//! Which launches run: a bounded number at a time, each for a bounded time, until all of its hosts
//! have arrived. Pure: processes and clock are outside.

use std::time::{Duration, Instant};

/// Launches that may be under way at the same time.
pub const AT_ONCE: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Under way since then.
    Running(Instant),
    /// All its hosts have arrived.
    Up,
    /// It ended or took too long.
    Over,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Start this launch.
    Start(usize),
    /// End this launch, and count these hosts as lost: they have not arrived in time.
    GiveUp(usize, Vec<usize>),
}

/// All launches of an order.
#[derive(Debug)]
pub struct Queue {
    /// Hosts of each launch.
    hosts: Vec<Vec<usize>>,
    states: Vec<State>,
    arrived: Vec<bool>,
    limit: Duration,
}

impl Queue {
    /// Nothing has begun. `limit` is how long a host may take to arrive from its launch on.
    pub fn new(hosts: Vec<Vec<usize>>, limit: Duration) -> Self {
        let count = hosts.iter().flatten().max().map_or(0, |last| last + 1);
        let states = vec![State::Waiting; hosts.len()];
        Self { hosts, states, arrived: vec![false; count], limit }
    }

    /// What is to be done now.
    pub fn due(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        for launch in 0..self.states.len() {
            if let State::Running(since) = self.states[launch]
                && now.duration_since(since) >= self.limit
            {
                self.states[launch] = State::Over;
                actions.push(Action::GiveUp(launch, self.missing(launch)));
            }
        }
        let running = self.states.iter().filter(|state| matches!(state, State::Running(_))).count();
        let mut free = AT_ONCE.saturating_sub(running);
        for launch in 0..self.states.len() {
            if free == 0 {
                break;
            }
            if self.states[launch] == State::Waiting {
                self.states[launch] = State::Running(now);
                actions.push(Action::Start(launch));
                free -= 1;
            }
        }
        actions
    }

    /// When [`Queue::due`] has something to say without any other event.
    pub fn deadline(&self) -> Option<Instant> {
        let since = self.states.iter().filter_map(|state| match state {
            State::Running(since) => Some(*since),
            _ => None,
        });
        since.min().map(|since| since + self.limit)
    }

    /// A host's daemon is there.
    pub fn arrived(&mut self, host: usize) {
        let Some(arrived) = self.arrived.get_mut(host) else { return };
        *arrived = true;
        for launch in 0..self.states.len() {
            let complete = self.missing(launch).is_empty();
            if matches!(self.states[launch], State::Running(_)) && complete {
                self.states[launch] = State::Up;
            }
        }
    }

    /// A launch has ended; the hosts that it was for and that have not arrived.
    pub fn ended(&mut self, launch: usize) -> Vec<usize> {
        let Some(state) = self.states.get_mut(launch) else { return Vec::new() };
        let before = std::mem::replace(state, State::Over);
        if before == State::Over { Vec::new() } else { self.missing(launch) }
    }

    /// Whether this launch has brought all its hosts.
    pub fn is_up(&self, launch: usize) -> bool {
        self.states.get(launch) == Some(&State::Up)
    }

    /// Whether every launch has brought its hosts, or failed.
    pub fn is_settled(&self) -> bool {
        self.states.iter().all(|state| matches!(state, State::Up | State::Over))
    }

    fn missing(&self, launch: usize) -> Vec<usize> {
        self.hosts[launch].iter().copied().filter(|host| !self.arrived[*host]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn a_bounded_number_runs_and_each_arrival_makes_room() {
        let now = Instant::now();
        let mut queue = Queue::new((0..100).map(|host| vec![host]).collect(), LIMIT);
        assert_eq!(queue.due(now).len(), AT_ONCE);
        assert!(queue.due(now).is_empty());
        queue.arrived(3);
        assert!(queue.is_up(3));
        assert_eq!(queue.due(now), [Action::Start(AT_ONCE)]);
        assert_eq!(queue.ended(5), [5]);
        assert_eq!(queue.due(now), [Action::Start(AT_ONCE + 1)]);
    }

    #[test]
    fn who_does_not_arrive_in_time_is_given_up_once() {
        let now = Instant::now();
        let mut queue = Queue::new(vec![vec![0, 1, 2], vec![3]], LIMIT);
        assert_eq!(queue.due(now), [Action::Start(0), Action::Start(1)]);
        assert_eq!(queue.deadline(), Some(now + LIMIT));
        queue.arrived(1);
        queue.arrived(3);
        assert!(queue.due(now + LIMIT / 2).is_empty());
        assert_eq!(queue.due(now + LIMIT), [Action::GiveUp(0, vec![0, 2])]);
        assert!(queue.is_settled());
        assert_eq!(queue.deadline(), None);
        assert!(queue.ended(0).is_empty());
        assert!(queue.due(now + LIMIT * 2).is_empty());
    }

    #[test]
    fn a_launch_that_ends_after_all_its_hosts_have_arrived_has_lost_nobody() {
        let now = Instant::now();
        let mut queue = Queue::new(vec![vec![0, 1]], LIMIT);
        queue.due(now);
        queue.arrived(0);
        queue.arrived(1);
        queue.arrived(77);
        assert!(queue.is_settled() && queue.ended(0).is_empty());
    }
}
