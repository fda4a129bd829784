//! The position of each server in the tree. Each server computes its parent and its children from
//! its id, the number of servers and the shape of the tree (SDM "Communications Network").
//!
//! Position 0 of the tree is the master, and position p is the server p-1. Every branch is a range
//! of ids, so one range represents the servers of a branch.

use std::ops::Range;

use score_proto::MAX_NODES;
use score_tree::range_tree::Subtree;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum number of servers of one master.
pub const MAX_SERVERS: u32 = MAX_NODES - 1;

/// Maximum number of children of one hop in a k-ary tree.
pub const MAX_FAN_OUT: u32 = 256;

/// The shape of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeShape {
    /// A binomial tree: the master has one child for each power of two.
    Binomial,
    /// At most this many children per hop, with branches of nearly equal size.
    Kary(u32),
}

/// The reason why there is no such tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RoutingError {
    /// There are no servers, or too many.
    #[error("{0} servers; there must be 1 to {MAX_SERVERS}")]
    Servers(u32),
    /// A hop would have no children, or too many.
    #[error("{0} children per hop; there must be 1 to {MAX_FAN_OUT}")]
    FanOut(u32),
}

/// A tree of servers and their master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    servers: u32,
    shape: TreeShape,
}

impl Routing {
    /// A tree of `servers` servers and a master.
    ///
    /// # Errors
    /// See [`RoutingError`].
    pub fn new(servers: u32, shape: TreeShape) -> Result<Self, RoutingError> {
        if servers == 0 || servers > MAX_SERVERS {
            return Err(RoutingError::Servers(servers));
        }
        match shape {
            TreeShape::Kary(fan_out) if fan_out == 0 || fan_out > MAX_FAN_OUT => {
                Err(RoutingError::FanOut(fan_out))
            }
            _ => Ok(Self { servers, shape }),
        }
    }

    /// Number of servers.
    pub fn servers(&self) -> u32 {
        self.servers
    }

    /// The id of the master.
    pub fn master(&self) -> u32 {
        self.servers
    }

    fn position(&self, id: u32) -> u32 {
        if id >= self.servers { 0 } else { id + 1 }
    }

    fn id(&self, position: u32) -> u32 {
        position.checked_sub(1).unwrap_or(self.servers)
    }

    /// The subtree at a position of a k-ary tree, and the position of its parent.
    fn find(&self, fan_out: u32, position: u32) -> (Subtree, u32) {
        let (mut subtree, mut parent) = (Subtree::whole(self.servers + 1), 0);
        while subtree.root() != position {
            let contains = |child: &Subtree| child.positions().contains(&position);
            let Some(child) = subtree.split(fan_out).find(contains) else { break };
            (parent, subtree) = (subtree.root(), child);
        }
        (subtree, parent)
    }

    /// The parent of a server. `None` for the master.
    pub fn parent(&self, id: u32) -> Option<u32> {
        let position = self.position(id);
        let parent = match (position, self.shape) {
            (0, _) => return None,
            (_, TreeShape::Binomial) => position & (position - 1),
            (_, TreeShape::Kary(fan_out)) => self.find(fan_out, position).1,
        };
        Some(self.id(parent))
    }

    /// The children of a server or of the master. In a binomial tree, the largest branch comes
    /// first.
    pub fn children(&self, id: u32) -> Vec<u32> {
        let position = self.position(id);
        match self.shape {
            TreeShape::Binomial => {
                let below = if position == 0 { u32::BITS } else { position.trailing_zeros() };
                let child = |bit: u32| position.checked_add(1u32.checked_shl(bit)?);
                let children = (0..below).rev().filter_map(child);
                children.filter(|child| *child <= self.servers).map(|p| self.id(p)).collect()
            }
            TreeShape::Kary(fan_out) => {
                let (subtree, _) = self.find(fan_out, position);
                subtree.split(fan_out).map(|child| self.id(child.root())).collect()
            }
        }
    }

    /// The servers of the branch of `id`, including `id`. For the master, all servers.
    pub fn branch(&self, id: u32) -> Range<u32> {
        let position = self.position(id);
        let end = match self.shape {
            _ if position == 0 => self.servers + 1,
            TreeShape::Binomial => {
                let size = position & position.wrapping_neg();
                position.saturating_add(size).min(self.servers + 1)
            }
            TreeShape::Kary(fan_out) => self.find(fan_out, position).0.positions().end,
        };
        position.max(1) - 1..end - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [TreeShape; 5] = [
        TreeShape::Binomial,
        TreeShape::Kary(1),
        TreeShape::Kary(2),
        TreeShape::Kary(16),
        TreeShape::Kary(MAX_FAN_OUT),
    ];

    #[test]
    fn every_server_has_one_parent_that_names_it_as_child_and_branches_are_the_descendants() {
        for shape in SHAPES {
            for servers in (1..70).chain([255, 256, 257, 1000]) {
                let routing = Routing::new(servers, shape).unwrap();
                assert_eq!(routing.parent(routing.master()), None);
                let mut branch_sizes = vec![1u32; servers as usize];
                for id in (0..servers).rev() {
                    let parent = routing.parent(id).unwrap();
                    assert!(routing.children(parent).contains(&id), "{shape:?} {servers} {id}");
                    let branch = routing.branch(id);
                    assert_eq!(branch.start, id);
                    assert_eq!(branch.len() as u32, branch_sizes[id as usize]);
                    let mut inner: Vec<_> =
                        routing.children(id).iter().map(|child| routing.branch(*child)).collect();
                    inner.sort_by_key(|branch| branch.start);
                    let mut from = id + 1;
                    for branch in inner {
                        assert_eq!(branch.start, from);
                        from = branch.end;
                    }
                    assert_eq!(from, branch.end);
                    if parent != routing.master() {
                        branch_sizes[parent as usize] += branch_sizes[id as usize];
                    }
                }
                assert_eq!(routing.branch(routing.master()), 0..servers);
            }
        }
    }

    #[test]
    fn the_binomial_tree_is_that_of_mpi_with_the_master_as_root() {
        let routing = Routing::new(11, TreeShape::Binomial).unwrap();
        assert_eq!(routing.children(11), [7, 3, 1, 0]);
        assert_eq!(routing.children(3), [5, 4]);
        assert_eq!(routing.children(7), [9, 8]);
        assert_eq!((routing.parent(6), routing.branch(7)), (Some(5), 7..11));
    }

    #[test]
    fn a_tree_without_servers_or_beyond_a_limit_is_refused() {
        let routing = |servers, shape| Routing::new(servers, shape).unwrap_err();
        assert_eq!(routing(0, TreeShape::Binomial), RoutingError::Servers(0));
        assert_eq!(routing(MAX_NODES, TreeShape::Binomial), RoutingError::Servers(MAX_NODES));
        assert_eq!(routing(4, TreeShape::Kary(0)), RoutingError::FanOut(0));
        assert_eq!(routing(4, TreeShape::Kary(257)), RoutingError::FanOut(257));
    }
}
