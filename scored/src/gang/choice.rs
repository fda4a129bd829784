//! Which jobs run side by side.

use std::collections::BTreeMap;

use score_proto::peer::HostId;

use crate::cluster::Share;

/// What is taken of each host.
#[derive(Debug, Default)]
pub struct Room<'a> {
    slots: Option<&'a BTreeMap<HostId, u32>>,
    taken: BTreeMap<HostId, u32>,
}

impl<'a> Room<'a> {
    /// All of it is free. Hosts that are not in `slots` have one slot.
    pub fn free(slots: &'a BTreeMap<HostId, u32>) -> Self {
        Self { slots: Some(slots), taken: BTreeMap::new() }
    }

    /// Whether a job fits beside those that were put there. One that has more processes than a
    /// host has slots fits where it is alone.
    pub fn fits(&self, shares: &[Share]) -> bool {
        shares.iter().all(|share| {
            let taken = self.taken.get(&share.host).copied().unwrap_or(0);
            let slots = self.slots.and_then(|slots| slots.get(&share.host)).copied().unwrap_or(1);
            taken == 0 || taken.saturating_add(share.procs.max(1)) <= slots
        })
    }

    /// Puts a job there, whether it fits or not.
    pub fn put(&mut self, shares: &[Share]) {
        for share in shares {
            let taken = self.taken.entry(share.host).or_default();
            *taken = taken.saturating_add(share.procs.max(1));
        }
    }
}
