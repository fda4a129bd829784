//! What processes of this host ask about processes of other hosts, and the reverse ("direct modex"
//! of PMIx): PMIx_Get of what another process has put, without a fence that has collected it. The
//! helpers ask and answer; here is what is on its way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use score_proto::ids::JobHostId;

use super::job_info::ProcessKey;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct DirectModex {
    /// Processes of other hosts about which this host has asked.
    requested: BTreeSet<ProcessKey>,
    /// Processes of other hosts about which it will ask when answers have come.
    waiting: VecDeque<ProcessKey>,
    /// The daemon of this host lets so many questions pass.
    max_requested: usize,
    /// Processes of this host, and the hosts that have asked about them.
    askers: BTreeMap<ProcessKey, Vec<JobHostId>>,
}

impl DirectModex {
    /// Nothing is asked yet.
    pub fn new(max_requested: usize) -> Self {
        Self { max_requested, ..Self::default() }
    }

    /// The helper asks about a process of another host. Whether its host is to be asked now.
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

    /// The answer about a process of another host has come. The process about which is to be asked
    /// next.
    pub fn on_answer(&mut self, key: ProcessKey) -> Option<ProcessKey> {
        self.requested.remove(&key);
        let next = (self.requested.len() < self.max_requested).then(|| self.waiting.pop_front());
        let next = next.flatten()?;
        self.requested.insert(next);
        Some(next)
    }

    /// Another host asks about a process of this host.
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

    /// All processes of this host about which others have asked.
    pub fn asked(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.askers.keys().copied()
    }

    /// The helper answers about a process of this host: the hosts that have asked.
    pub fn take_askers(&mut self, key: ProcessKey) -> Vec<JobHostId> {
        self.askers.remove(&key).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(node: u32) -> ProcessKey {
        ProcessKey { element: 0, node }
    }

    #[test]
    fn no_more_questions_than_allowed_are_on_their_way_and_each_is_asked_once() {
        let mut direct_modex = DirectModex::new(2);
        let asked: Vec<bool> =
            [1, 1, 2, 3, 3, 4].map(|node| direct_modex.request(key(node))).to_vec();
        assert_eq!(asked, [true, false, true, false, false, false]);
        assert_eq!(direct_modex.on_answer(key(2)), Some(key(3)));
        assert_eq!(direct_modex.on_answer(key(9)), None, "nobody has asked about it");
        assert_eq!(direct_modex.on_answer(key(1)), Some(key(4)));
        assert_eq!(direct_modex.on_answer(key(3)), None);
        assert!(direct_modex.request(key(1)), "it may have put more since");
    }

    #[test]
    fn an_answer_goes_to_all_hosts_that_have_asked() {
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
