//! Accounting of usage. The job with the smallest usage runs next.

use std::collections::{BTreeMap, BTreeSet};

use score_proto::ids::{HostId, JobId};

use super::GangScheduler;
use crate::cluster::HostShare;

impl GangScheduler {
    /// Rebases the usage of the jobs that compete with a new job, directly or through other jobs.
    /// If they have never competed before, their usage is counted from different origins. In each
    /// group that has competed so far, the job with the smallest usage begins at 0, like the new
    /// job.
    pub(super) fn rebase_usage(&mut self, shares: &[HostShare]) {
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
                // Removed, so that no host is visited twice.
                for id in groups.remove(&host).unwrap_or_default() {
                    if seen.insert(id) {
                        group.insert(id);
                        hosts.extend(self.jobs[&id].shares.iter().map(|share| share.host));
                    }
                }
            }
            let min_usage = group.iter().map(|id| self.jobs[id].weighted_usage).min().unwrap_or(0);
            for id in group {
                self.update_job(id, |job| job.weighted_usage -= min_usage);
            }
        }
    }

    /// Raises the usage of a job that did not compete for some time, so that it does not accumulate
    /// credit.
    pub(super) fn clamp_credit(&mut self, id: JobId) {
        let Some(this_job) = self.jobs.get(&id) else { return };
        let hosts: BTreeSet<HostId> = this_job.shares.iter().map(|share| share.host).collect();
        let others = self.jobs.iter().filter(|(other, job)| {
            **other != id
                && job.may_run()
                && job.shares.iter().any(|share| hosts.contains(&share.host))
        });
        let min_usage = others.map(|(_, job)| job.weighted_usage).min().unwrap_or(0);
        self.update_job(id, |job| job.weighted_usage = job.weighted_usage.max(min_usage));
    }

    /// Limits the debt of each job. A job that ran because no other job fitted has taken time from
    /// no other job. Therefore it owes its competitors at most two slices, which is longer than any
    /// slice.
    pub(super) fn cap_debt(&mut self) {
        // For each host: the job with the smallest usage, and the next one.
        let mut least_used: BTreeMap<HostId, [(u128, JobId); 2]> = BTreeMap::new();
        for (id, job) in self.jobs.iter().filter(|(_, job)| job.may_run()) {
            for share in &job.shares {
                let [first, second] =
                    least_used.entry(share.host).or_insert([(u128::MAX, JobId(0)); 2]);
                let entry = (job.weighted_usage, *id);
                if entry < *first {
                    (*first, *second) = (entry, *first);
                } else if entry < *second {
                    *second = entry;
                }
            }
        }
        for (id, job) in &mut self.jobs {
            let others = job.shares.iter().filter_map(|share| {
                let [first, second] = least_used.get(&share.host)?;
                Some(if first.1 == *id { second.0 } else { first.0 })
            });
            let max_debt = 2 * self.config.slice.as_nanos() * job.cost;
            if let Some(min_usage) = others.min() {
                job.weighted_usage = job.weighted_usage.min(min_usage.saturating_add(max_debt));
            }
        }
    }
}
