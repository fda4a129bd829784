//! Where a job runs: its hosts in order, each with its block of nodes.

use std::net::SocketAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::peer::Incarnation;

/// The hosts of a job, in order, and which of them the receiver is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The receiver.
    pub own: u32,
    /// Distinguishes the job from all others that ever had its number: what was said of those is
    /// not meant for it.
    pub life: u64,
    /// All hosts.
    pub hosts: Vec<Place>,
}

/// One host of a job, with the block of nodes that run there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The host's name.
    pub name: String,
    /// Where its daemon listens; none when there is no other host.
    pub address: Option<SocketAddr>,
    /// The daemon that is meant: one that has begun anew since must not run it. None when there is
    /// no other host.
    pub incarnation: Option<Incarnation>,
    /// The first node there.
    pub first: u32,
    /// Nodes there.
    pub nodes: u32,
}

impl Place {
    /// The nodes there.
    pub fn range(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.nodes)
    }
}

impl Placement {
    /// Hosts in order: name, which daemon and where it listens, nodes.
    pub fn new(
        life: u64,
        hosts: impl IntoIterator<Item = (String, Option<(SocketAddr, Incarnation)>, u32)>,
    ) -> Self {
        let mut next = 0u32;
        let place = |(name, daemon, nodes): (String, Option<(SocketAddr, Incarnation)>, u32)| {
            let first = next;
            next = next.saturating_add(nodes);
            let (address, incarnation) = daemon.unzip();
            Place { name, address, incarnation, first, nodes }
        };
        Self { own: 0, life, hosts: hosts.into_iter().map(place).collect() }
    }

    /// Nodes of every parallel process.
    pub fn nodes(&self) -> u32 {
        self.hosts.last().map_or(0, |last| last.range().end)
    }

    /// The receiver's own place.
    pub fn here(&self) -> Option<&Place> {
        self.hosts.get(self.own as usize)
    }

    /// The host where a node runs.
    pub fn host_of(&self, node: u32) -> Option<u32> {
        let after = self.hosts.partition_point(|place| place.first <= node);
        let at = after.checked_sub(1)?;
        self.hosts[at].range().contains(&node).then_some(at as u32)
    }

    /// Why this cannot be the placement of any job, if so: it came from elsewhere.
    ///
    /// # Errors
    /// One line.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut next = 0;
        for place in &self.hosts {
            if place.first != next || place.nodes == 0 || place.nodes > crate::MAX_NODES {
                return Err("the hosts' nodes do not follow each other");
            }
            next = place.range().end;
        }
        match self.here() {
            Some(_) if next <= crate::MAX_NODES => Ok(()),
            Some(_) => Err("there are too many nodes"),
            None => Err("this host is not among the job's"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(nodes: &[u32]) -> Placement {
        Placement::new(0, nodes.iter().map(|nodes| ("h".to_owned(), None, *nodes)))
    }

    #[test]
    fn every_node_has_its_host() {
        for blocks in [&[1][..], &[9], &[2, 2, 2, 2], &[3, 1, 2], &[1; 100]] {
            let placement = placement(blocks);
            assert_eq!((placement.check(), placement.nodes()), (Ok(()), blocks.iter().sum()));
            for node in 0..placement.nodes() {
                let host = placement.host_of(node).unwrap();
                assert!(placement.hosts[host as usize].range().contains(&node));
            }
            assert_eq!(placement.host_of(placement.nodes()), None);
        }
    }

    #[test]
    fn a_placement_with_gaps_or_without_the_receiver_is_refused() {
        let mut absent = placement(&[2, 2, 2]);
        absent.own = 3;
        let mut gap = placement(&[2, 2, 2]);
        gap.hosts[1].first = 3;
        let mut many = placement(&[2, 2, 2]);
        many.hosts[2].nodes = u32::MAX;
        for wrong in [absent, gap, many, placement(&[2, 0, 2]), placement(&[])] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
