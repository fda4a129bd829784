//! Links between the simulated hosts. Messages arrive in order and with delays until a link is
//! lost.

use std::collections::BTreeMap;

use super::MonotonicTime;
use crate::jobs::LinkId;

struct Link {
    ends: [usize; 2],
    /// For each end, whether it has not noticed a loss.
    is_up_at: [bool; 2],
    is_lost: bool,
    /// The time at which the last message arrives at each end.
    last_arrival: [MonotonicTime; 2],
}

#[derive(Default)]
pub struct Links {
    all: BTreeMap<LinkId, Link>,
    last: usize,
}

impl Links {
    /// Returns the link between two hosts that the first host can use, or a new link.
    pub fn connect(&mut self, from: usize, to: usize) -> LinkId {
        let usable = self.all.iter().find(|(_, link)| {
            let index = link.ends.iter().position(|end| *end == from);
            link.ends.contains(&to) && index.is_some_and(|index| link.is_up_at[index])
        });
        if let Some((id, _)) = usable {
            return *id;
        }
        self.last += 1;
        let id = LinkId(self.last);
        let last_arrival = [MonotonicTime::ZERO; 2];
        let link = Link { ends: [from, to], is_up_at: [true; 2], is_lost: false, last_arrival };
        self.all.insert(id, link);
        id
    }

    fn end_index(&self, id: LinkId, host: usize) -> Option<usize> {
        self.all.get(&id)?.ends.iter().position(|end| *end == host)
    }

    pub fn is_up_at(&self, id: LinkId, host: usize) -> bool {
        let index = self.end_index(id, host);
        index.is_some_and(|index| self.all[&id].is_up_at[index] && !self.all[&id].is_lost)
    }

    /// The other end, and the time at which a message that is sent now arrives there. None: the
    /// link is lost.
    pub fn send(
        &mut self,
        id: LinkId,
        from: usize,
        arrival: MonotonicTime,
    ) -> Option<(usize, MonotonicTime)> {
        let other = 1 - self.end_index(id, from)?;
        let link = self.all.get_mut(&id).filter(|link| !link.is_lost)?;
        link.last_arrival[other] = link.last_arrival[other].max(arrival);
        Some((link.ends[other], link.last_arrival[other]))
    }

    /// The links that end at a host.
    pub fn of_host(&self, host: usize) -> Vec<LinkId> {
        let of_host = self.all.iter().filter(|(_, link)| link.ends.contains(&host));
        of_host.filter(|(_, link)| !link.is_lost).map(|(id, _)| *id).collect()
    }

    /// Makes a link lose all further messages. Returns its ends, which will notice the loss.
    pub fn lose(&mut self, id: LinkId) -> [usize; 2] {
        let Some(link) = self.all.get_mut(&id) else { panic!("no link {id:?}") };
        link.is_lost = true;
        link.ends
    }

    pub fn ends(&self, id: LinkId) -> [usize; 2] {
        self.all[&id].ends
    }

    /// Records that an end has noticed a loss. Returns false if it had noticed before.
    pub fn notice_loss(&mut self, id: LinkId, host: usize) -> bool {
        let Some(index) = self.end_index(id, host) else { return false };
        let link = self.all.get_mut(&id);
        link.is_some_and(|link| std::mem::replace(&mut link.is_up_at[index], false))
    }
}
