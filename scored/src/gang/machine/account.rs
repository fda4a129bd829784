//! What each job has used, so that whoever has used least is next.

use std::collections::{BTreeMap, BTreeSet};

use score_proto::peer::HostId;

use super::Gang;
use crate::cluster::{JobId, Share};

impl Gang {
    /// Jobs that compete with a newcomer, directly or by way of others, may never have competed
    /// before: what they have used is counted from different beginnings. Each group that has
    /// competed so far begins at 0, like the newcomer.
    pub(super) fn merge_accounts(&mut self, shares: &[Share]) {
        let mut groups: BTreeMap<HostId, Vec<JobId>> = BTreeMap::new();
        for (id, job) in &self.jobs {
            for share in &job.shares {
                groups.entry(share.host).or_default().push(*id);
            }
        }
        let mut seen = BTreeSet::new();
        for share in shares {
            let mut group = BTreeSet::new();
            let mut hosts = vec![share.host];
            while let Some(host) = hosts.pop() {
                // Taken out, so that no host is looked at twice.
                for id in groups.remove(&host).unwrap_or_default() {
                    if seen.insert(id) {
                        group.insert(id);
                        hosts.extend(self.jobs[&id].shares.iter().map(|share| share.host));
                    }
                }
            }
            let least = group.iter().map(|id| self.jobs[id].used).min().unwrap_or(0);
            for id in group {
                self.with(id, |job| job.used -= least);
            }
        }
    }

    /// Whoever was away has not saved anything up.
    pub(super) fn catch_up(&mut self, id: JobId) {
        let Some(own) = self.jobs.get(&id) else { return };
        let hosts: BTreeSet<HostId> = own.shares.iter().map(|share| share.host).collect();
        let others = self.jobs.iter().filter(|(other, job)| {
            **other != id
                && job.may_run()
                && job.shares.iter().any(|share| hosts.contains(&share.host))
        });
        let least = others.map(|(_, job)| job.used).min().unwrap_or(0);
        self.with(id, |job| job.used = job.used.max(least));
    }

    /// Who has run because nobody else fitted there has taken nothing from anybody: no job owes
    /// those that it competes with more than two slices, which is more than a slice ever takes.
    pub(super) fn forgive(&mut self) {
        // Of each host: who has used least, and who comes next.
        let mut least: BTreeMap<HostId, [(u128, JobId); 2]> = BTreeMap::new();
        for (id, job) in self.jobs.iter().filter(|(_, job)| job.may_run()) {
            for share in &job.shares {
                let [first, second] = least.entry(share.host).or_insert([(u128::MAX, 0); 2]);
                let own = (job.used, *id);
                if own < *first {
                    (*first, *second) = (own, *first);
                } else if own < *second {
                    *second = own;
                }
            }
        }
        for (id, job) in &mut self.jobs {
            let others = job.shares.iter().filter_map(|share| {
                let [first, second] = least.get(&share.host)?;
                Some(if first.1 == *id { second.0 } else { first.0 })
            });
            let owed = 2 * self.setting.slice.as_nanos() * job.cost;
            if let Some(least) = others.min() {
                job.used = job.used.min(least.saturating_add(owed));
            }
        }
    }
}
