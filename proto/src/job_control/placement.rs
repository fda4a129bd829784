//! The placement of a job: its hosts in order, each with its block of nodes.

use std::net::SocketAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::{JobHostId, ProcessIndex};
use crate::peer_message::{Incarnation, JobIncarnation};

/// The hosts of a job in order, and the index of the receiver among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The index of the receiver.
    pub self_host: JobHostId,
    /// Distinguishes the job from all others that ever had its number. Messages for these other
    /// jobs are ignored.
    pub job_incarnation: JobIncarnation,
    /// All hosts.
    pub hosts: Vec<HostPlacement>,
}

/// One host of a job, with the block of nodes that run there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlacement {
    /// The host's name.
    pub name: String,
    /// The address at which its daemon listens. None if the job has only one host.
    pub address: Option<SocketAddr>,
    /// The incarnation of its daemon. A daemon that has restarted since then must not run the job.
    /// None if the job has only one host.
    pub incarnation: Option<Incarnation>,
    /// The first node on the host.
    pub first_node: u32,
    /// Number of nodes on the host.
    pub nodes: u32,
}

impl HostPlacement {
    /// The nodes on the host.
    pub fn node_range(&self) -> Range<u32> {
        self.first_node..self.first_node.saturating_add(self.nodes)
    }

    /// The index of a node's process on this host. No process has the index that a node of another
    /// host gets.
    pub fn process_of(&self, node: u32) -> ProcessIndex {
        ProcessIndex(node.wrapping_sub(self.first_node))
    }
}

impl Placement {
    /// Creates a placement from hosts in order: name, address and incarnation of the daemon, number
    /// of nodes.
    pub fn new(
        job_incarnation: JobIncarnation,
        hosts: impl IntoIterator<Item = (String, Option<(SocketAddr, Incarnation)>, u32)>,
    ) -> Self {
        let mut next = 0u32;
        let host_placement =
            |(name, daemon, nodes): (String, Option<(SocketAddr, Incarnation)>, u32)| {
                let first_node = next;
                next = next.saturating_add(nodes);
                let (address, incarnation) = daemon.unzip();
                HostPlacement { name, address, incarnation, first_node, nodes }
            };
        Self {
            self_host: JobHostId::FIRST,
            job_incarnation,
            hosts: hosts.into_iter().map(host_placement).collect(),
        }
    }

    /// Number of nodes of each parallel process.
    pub fn nodes(&self) -> u32 {
        self.hosts.last().map_or(0, |last| last.node_range().end)
    }

    /// The entry of the receiver.
    pub fn self_placement(&self) -> Option<&HostPlacement> {
        self.hosts.get(self.self_host.index())
    }

    /// The host on which a node runs.
    pub fn host_of(&self, node: u32) -> Option<JobHostId> {
        let after = self.hosts.partition_point(|host| host.first_node <= node);
        let index = after.checked_sub(1)?;
        self.hosts[index].node_range().contains(&node).then_some(JobHostId(index as u32))
    }

    /// Checks a placement that was received from another process. An error is the reason why it
    /// cannot be the placement of any job.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut next = 0;
        for host in &self.hosts {
            if host.first_node != next || host.nodes == 0 {
                return Err("the nodes of the hosts are not consecutive");
            }
            next = host.node_range().end;
        }
        match self.self_placement() {
            Some(_) if next <= crate::MAX_NODES => Ok(()),
            Some(_) => Err("too many nodes"),
            None => Err("this host is not among the hosts of the job"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(nodes: &[u32]) -> Placement {
        Placement::new(JobIncarnation(0), nodes.iter().map(|nodes| ("h".to_owned(), None, *nodes)))
    }

    #[test]
    fn every_node_has_its_host() {
        for blocks in [&[1][..], &[9], &[2, 2, 2, 2], &[3, 1, 2], &[1; 100]] {
            let placement = placement(blocks);
            assert_eq!((placement.check(), placement.nodes()), (Ok(()), blocks.iter().sum()));
            for node in 0..placement.nodes() {
                let host = placement.host_of(node).unwrap();
                assert!(placement.hosts[host.index()].node_range().contains(&node));
            }
            assert_eq!(placement.host_of(placement.nodes()), None);
        }
    }

    #[test]
    fn a_placement_with_gaps_or_without_the_receiver_is_refused() {
        let mut absent = placement(&[2, 2, 2]);
        absent.self_host = JobHostId(3);
        let mut gap = placement(&[2, 2, 2]);
        gap.hosts[1].first_node = 3;
        let mut many = placement(&[2, 2, 2]);
        many.hosts[2].nodes = u32::MAX;
        for wrong in [absent, gap, many, placement(&[2, 0, 2]), placement(&[])] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_number_of_nodes_is_limited() {
        assert_eq!(placement(&[crate::MAX_NODES]).check(), Ok(()));
        assert_eq!(placement(&[crate::MAX_NODES, 1]).check(), Err("too many nodes"));
    }

    #[test]
    fn processes_are_counted_from_the_first_node_of_their_host() {
        let placement = placement(&[2, 3]);
        let host = &placement.hosts[1];
        assert_eq!(host.process_of(2), ProcessIndex::FIRST);
        assert_eq!(host.process_of(4), ProcessIndex(2));
        assert!(host.process_of(1).0 >= host.nodes);
    }
}
