//! The pending requests of PMIx's "direct modex" on this host. A process calls PMIx_Get for entries
//! that a process of another host has put, without a fence that has collected them. The helpers
//! send the requests and the answers. This module keeps the requests in both directions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use score_proto::ids::JobHostId;

use super::job_info::ProcessKey;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct DirectModex {
    /// Processes of other hosts whose entries this host has requested.
    requested: BTreeSet<ProcessKey>,
    /// Processes of other hosts whose entries will be requested when answers have arrived.
    waiting: VecDeque<ProcessKey>,
    /// Largest number of unanswered requests that the daemon of this host permits.
    max_requested: usize,
    /// Processes of this host, and the hosts that have requested their entries.
    askers: BTreeMap<ProcessKey, Vec<JobHostId>>,
}

impl DirectModex {
    /// No requests. At most `max_requested` requests are sent at a time.
    pub fn new(max_requested: usize) -> Self {
        Self { max_requested, ..Self::default() }
    }

    /// Records a request of the helper for the entries of a process of another host. Returns
    /// whether the request has to be sent now.
    pub fn request(&mut self, key: ProcessKey) -> bool {
        if self.requested.contains(&key) || self.waiting.contains(&key) {
            return false;
        }
        let has_room = self.requested.len() < self.max_requested;
        match has_room {
            true => {
                self.requested.insert(key);
            }
            false => self.waiting.push_back(key),
        }
        has_room
    }

    /// Handles an answer about a process of another host. Returns the process whose entries have to
    /// be requested next.
    pub fn on_answer(&mut self, key: ProcessKey) -> Option<ProcessKey> {
        self.requested.remove(&key);
        let next = (self.requested.len() < self.max_requested).then(|| self.waiting.pop_front());
        let next = next.flatten()?;
        self.requested.insert(next);
        Some(next)
    }

    /// Records a request of another host for the entries of a process of this host.
    pub fn add_asker(&mut self, key: ProcessKey, asker: JobHostId) {
        let askers = self.askers.entry(key).or_default();
        if !askers.contains(&asker) {
            askers.push(asker);
        }
    }

    /// Whether another host waits for an answer about a process.
    pub fn is_asked(&self, key: ProcessKey) -> bool {
        self.askers.contains_key(&key)
    }

    /// All processes of this host whose entries other hosts have requested.
    pub fn asked(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.askers.keys().copied()
    }

    /// Takes the hosts that have requested the entries of a process, to answer them.
    pub fn take_askers(&mut self, key: ProcessKey) -> Vec<JobHostId> {
        self.askers.remove(&key).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::ElementIndex;

    fn key(node: u32) -> ProcessKey {
        ProcessKey { element: ElementIndex(0), node }
    }

    #[test]
    fn the_number_of_pending_questions_is_bounded_and_each_is_asked_once() {
        let mut direct_modex = DirectModex::new(2);
        let asked: Vec<bool> =
            [1, 1, 2, 3, 3, 4].map(|node| direct_modex.request(key(node))).to_vec();
        assert_eq!(asked, [true, false, true, false, false, false]);
        assert_eq!(direct_modex.on_answer(key(2)), Some(key(3)));
        assert_eq!(direct_modex.on_answer(key(9)), None, "no request is pending");
        assert_eq!(direct_modex.on_answer(key(1)), Some(key(4)));
        assert_eq!(direct_modex.on_answer(key(3)), None);
        assert!(direct_modex.request(key(1)), "the process may have put more entries");
    }

    #[test]
    fn an_answer_is_sent_to_all_hosts_that_asked_the_question() {
        let mut direct_modex = DirectModex::new(2);
        for asker in [1, 2, 1] {
            direct_modex.add_asker(key(0), JobHostId(asker));
        }
        assert!(direct_modex.is_asked(key(0)) && !direct_modex.is_asked(key(1)));
        assert_eq!(direct_modex.asked().collect::<Vec<_>>(), [key(0)]);
        assert_eq!(direct_modex.take_askers(key(0)), [1, 2].map(JobHostId));
        assert_eq!(direct_modex.take_askers(key(0)), []);
    }
}
