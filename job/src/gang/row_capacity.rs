//! Computes which jobs can run at the same time.

use std::collections::BTreeMap;

use score_proto::ids::HostId;

use crate::cluster::HostShare;

/// The slots of each host that the jobs of a row use.
#[derive(Debug, Default)]
pub struct SlotUsage<'a> {
    slots: Option<&'a BTreeMap<HostId, u32>>,
    used: BTreeMap<HostId, u32>,
}

impl<'a> SlotUsage<'a> {
    /// No slots are used. Hosts that are not in `slots` have one slot.
    pub fn empty(slots: &'a BTreeMap<HostId, u32>) -> Self {
        Self { slots: Some(slots), used: BTreeMap::new() }
    }

    /// Whether a job fits in addition to the jobs that were added. A job that has more processes
    /// than a host has slots fits if it is alone on that host.
    pub fn fits(&self, shares: &[HostShare]) -> bool {
        shares.iter().all(|share| {
            let used = self.used.get(&share.host).copied().unwrap_or(0);
            let slots = self.slots.and_then(|slots| slots.get(&share.host)).copied().unwrap_or(1);
            used == 0 || used.saturating_add(share.procs.max(1)) <= slots
        })
    }

    /// Adds a job without checking whether it fits.
    pub fn add(&mut self, shares: &[HostShare]) {
        for share in shares {
            let used = self.used.entry(share.host).or_default();
            *used = used.saturating_add(share.procs.max(1));
        }
    }
}
