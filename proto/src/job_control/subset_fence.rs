//! Fences of some nodes of a parallel process.

use serde::{Deserialize, Serialize};

use crate::nodeset::NodeSet;

/// A fence of PMIx, or the construction of a group, in which some nodes of a parallel process take
/// part. Several may be under way at once. Of two that are equal the second begins on a host after
/// the first has ended there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SubsetFence {
    /// The nodes that take part.
    pub members: NodeSet,
    /// Tells groups of the same nodes apart.
    pub tag: u64,
}
