//! Messages between two daemons that are neighbours in a job's range tree.

use crate::ids::JobHostId;
use serde::{Deserialize, Serialize};

use super::{Order, Placement, Report};

/// From a daemon to the next one down the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HopOrder {
    /// The hosts of the job. Sent once, before all other orders. If the receiver must not take
    /// part, it answers [`HopReport::UnknownJob`].
    SetPlacement(Placement),
    /// End the job's part on the receiver and below at once. No further report is needed.
    Abort,
    /// An order for the receiver's node of the tree.
    Tree(Order),
}

/// From a daemon to the next one up the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HopReport {
    /// The answer to an order about a job that the sender does not have and must not start.
    UnknownJob {
        /// The reason.
        reason: String,
    },
    /// The path at which a host is about to create the job's directory. Each daemon passes it on,
    /// up to the daemon that leads the job.
    Directory {
        /// The host.
        host: JobHostId,
        /// The absolute path.
        path: String,
    },
    /// A report of the sender's node of the tree.
    Tree(Report),
}
