//! Messages between two daemons that are neighbours in a job's range tree.

use crate::ids::JobHostId;
use serde::{Deserialize, Serialize};

use super::{Order, Placement, Report};

/// From a daemon to the next one down the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HopOrder {
    /// The hosts of the job; once, before all other orders. Answered by [`HopReport::UnknownJob`]
    /// if the receiver must not take part.
    SetPlacement(Placement),
    /// End everything at once; no report is needed any more.
    Abort,
    /// For the receiver's node of the tree.
    Tree(Order),
}

/// From a daemon to the next one up the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HopReport {
    /// Answer to an order about a job that the receiver does not have and must not start.
    UnknownJob {
        /// Why.
        reason: String,
    },
    /// The path at which a host is about to make the job's directory. Each daemon passes it on, up
    /// to the one that leads the job.
    Directory {
        /// The host.
        host: JobHostId,
        /// Absolute path.
        path: String,
    },
    /// From the sender's node of the tree.
    Tree(Report),
}
