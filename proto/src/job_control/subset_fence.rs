//! Fences of a subset of the nodes of an element.

use serde::{Deserialize, Serialize};

use crate::nodeset::NodeSet;

/// A fence of PMIx, or the construction of a group, in which some nodes of an element take part.
/// Several may be in progress at once. Two equal fences never overlap on a host: the second begins
/// there after the first has ended there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SubsetFence {
    /// The nodes that take part.
    pub members: NodeSet,
    /// Distinguishes groups that consist of the same nodes.
    pub tag: u64,
}
