//! The queue of launches. It limits the number of simultaneous launches and the duration of each. A
//! launch is complete when all of its hosts have arrived. The queue starts no processes and reads
//! no clock.

use std::time::{Duration, Instant};

/// The maximum number of simultaneous launches.
pub const MAX_CONCURRENT_LAUNCHES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// The launch has been running since this time.
    Running(Instant),
    /// All hosts of the launch have arrived.
    Complete,
    /// The launch has ended, or its time-out has passed.
    Ended,
}

/// An action for the launcher.
#[derive(Debug, PartialEq, Eq)]
pub enum LaunchAction {
    /// Start this launch.
    Start(usize),
    /// Terminate this launch. These of its hosts have not arrived in time.
    GiveUp(usize, Vec<usize>),
}

/// All launches of a request.
#[derive(Debug)]
pub struct LaunchQueue {
    /// The hosts of each launch.
    hosts: Vec<Vec<usize>>,
    states: Vec<State>,
    arrived: Vec<bool>,
    arrival_timeout: Duration,
}

impl LaunchQueue {
    /// Creates a queue. `arrival_timeout` is the time from the start of a launch until its hosts
    /// must have arrived.
    pub fn new(hosts: Vec<Vec<usize>>, arrival_timeout: Duration) -> Self {
        let count = hosts.iter().flatten().max().map_or(0, |last| last + 1);
        let states = vec![State::Waiting; hosts.len()];
        Self { hosts, states, arrived: vec![false; count], arrival_timeout }
    }

    /// Returns the actions that are due now.
    pub fn next_actions(&mut self, now: Instant) -> Vec<LaunchAction> {
        let mut actions = Vec::new();
        for launch in 0..self.states.len() {
            if let State::Running(since) = self.states[launch]
                && now.duration_since(since) >= self.arrival_timeout
            {
                self.states[launch] = State::Ended;
                actions.push(LaunchAction::GiveUp(launch, self.missing(launch)));
            }
        }
        let running = self.states.iter().filter(|state| matches!(state, State::Running(_))).count();
        let mut free_slots = MAX_CONCURRENT_LAUNCHES.saturating_sub(running);
        for launch in 0..self.states.len() {
            if free_slots == 0 {
                break;
            }
            if self.states[launch] == State::Waiting {
                self.states[launch] = State::Running(now);
                actions.push(LaunchAction::Start(launch));
                free_slots -= 1;
            }
        }
        actions
    }

    /// The time at which [`LaunchQueue::next_actions`] returns an action without another event.
    pub fn deadline(&self) -> Option<Instant> {
        let since = self.states.iter().filter_map(|state| match state {
            State::Running(since) => Some(*since),
            _ => None,
        });
        since.min().map(|since| since + self.arrival_timeout)
    }

    /// Records that the daemon of a host has arrived.
    pub fn on_arrived(&mut self, host: usize) {
        let Some(arrived) = self.arrived.get_mut(host) else { return };
        *arrived = true;
        for launch in 0..self.states.len() {
            let is_complete = self.missing(launch).is_empty();
            if matches!(self.states[launch], State::Running(_)) && is_complete {
                self.states[launch] = State::Complete;
            }
        }
    }

    /// Records that a launch has ended. Returns its hosts that have not arrived.
    pub fn on_ended(&mut self, launch: usize) -> Vec<usize> {
        let Some(state) = self.states.get_mut(launch) else { return Vec::new() };
        let old_state = std::mem::replace(state, State::Ended);
        if old_state == State::Ended { Vec::new() } else { self.missing(launch) }
    }

    /// Whether all hosts of this launch have arrived.
    pub fn is_complete(&self, launch: usize) -> bool {
        self.states.get(launch) == Some(&State::Complete)
    }

    /// Whether each launch is complete or has ended.
    pub fn is_done(&self) -> bool {
        self.states.iter().all(|state| matches!(state, State::Complete | State::Ended))
    }

    fn missing(&self, launch: usize) -> Vec<usize> {
        self.hosts[launch].iter().copied().filter(|host| !self.arrived[*host]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn the_number_of_starters_is_bounded_and_each_arrival_frees_a_slot() {
        let now = Instant::now();
        let mut queue = LaunchQueue::new((0..100).map(|host| vec![host]).collect(), TEST_TIMEOUT);
        assert_eq!(queue.next_actions(now).len(), MAX_CONCURRENT_LAUNCHES);
        assert!(queue.next_actions(now).is_empty());
        queue.on_arrived(3);
        assert!(queue.is_complete(3));
        assert_eq!(queue.next_actions(now), [LaunchAction::Start(MAX_CONCURRENT_LAUNCHES)]);
        assert_eq!(queue.on_ended(5), [5]);
        assert_eq!(queue.next_actions(now), [LaunchAction::Start(MAX_CONCURRENT_LAUNCHES + 1)]);
    }

    #[test]
    fn a_host_that_does_not_connect_in_time_is_reported_missing_once() {
        let now = Instant::now();
        let mut queue = LaunchQueue::new(vec![vec![0, 1, 2], vec![3]], TEST_TIMEOUT);
        assert_eq!(queue.next_actions(now), [LaunchAction::Start(0), LaunchAction::Start(1)]);
        assert_eq!(queue.deadline(), Some(now + TEST_TIMEOUT));
        queue.on_arrived(1);
        queue.on_arrived(3);
        assert!(queue.next_actions(now + TEST_TIMEOUT / 2).is_empty());
        assert_eq!(queue.next_actions(now + TEST_TIMEOUT), [LaunchAction::GiveUp(0, vec![0, 2])]);
        assert!(queue.is_done());
        assert_eq!(queue.deadline(), None);
        assert!(queue.on_ended(0).is_empty());
        assert!(queue.next_actions(now + TEST_TIMEOUT * 2).is_empty());
    }

    #[test]
    fn a_launch_that_ends_after_all_its_hosts_have_connected_loses_no_host() {
        let now = Instant::now();
        let mut queue = LaunchQueue::new(vec![vec![0, 1]], TEST_TIMEOUT);
        queue.next_actions(now);
        queue.on_arrived(0);
        queue.on_arrived(1);
        queue.on_arrived(77);
        assert!(queue.is_done() && queue.on_ended(0).is_empty());
    }
}
