//! Numbers that identify something. Each has a type of its own, so that none is taken for another.
//! All of them are encoded and printed as the bare number.
//!
//! | type | identifies | chosen by | unique |
//! |---|---|---|---|
//! | [`HostId`] | a host of a cluster | the cluster's list of hosts | in the cluster |
//! | [`JobId`] | a job | its cluster, or its single-user daemon | there, among jobs of one time |
//! | [`JobHostId`] | a host of a job | the order of the job's hosts | in the job |
//! | [`SessionJobId`] | a job for its scrun | scrun | in its session, while the job lasts |

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// The text of an id is that of its number, with the same options of width and fill.
macro_rules! display_as_number {
    ($($id:ty),+) => {$(
        impl Display for $id {
            fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
                Display::fmt(&self.0, formatter)
            }
        }
    )+};
}

display_as_number!(HostId, JobId, JobHostId, SessionJobId);

/// A host's index in the cluster's list and in its tree. The server has number 0:
/// [`crate::peer_message::SERVER`].
///
/// [`JobHostId`] is the index of a host among those of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(pub u32);

impl HostId {
    /// The host's position in the cluster's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A job's number, from 1, which `sc_getpid` returns.
///
/// The server of the cluster assigns it or, in single-user mode, scrun's own daemon. No two jobs of
/// that daemon have it at the same time. The server counts on when it restarts, and begins with 1
/// again after `i32::MAX`: where a message may be late,
/// [`JobIncarnation`](crate::peer_message::JobIncarnation) says which job of this number is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u32);

/// A host's index among the hosts of a job, in the order of their nodes. `score_self_host` is this
/// number.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct JobHostId(pub u32);

impl JobHostId {
    /// The first host of every job.
    pub const FIRST: Self = Self(0);

    /// The host's position in lists of the job's hosts.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a job within its session.
///
/// The client chooses it when it submits the job: any number except
/// [`crate::client_session::SESSION_JOB`] that no other job of the session has. It is free again
/// after the job's last message. Jobs of different sessions may have the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionJobId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_encoded_and_printed_as_its_number() {
        for number in [0, 7, 300, u32::MAX] {
            let bytes = postcard::to_allocvec(&number).unwrap();
            assert_eq!(postcard::to_allocvec(&HostId(number)).unwrap(), bytes);
            assert_eq!(postcard::to_allocvec(&JobHostId(number)).unwrap(), bytes);
            assert_eq!(postcard::to_allocvec(&JobId(number)).unwrap(), bytes);
            assert_eq!(postcard::to_allocvec(&SessionJobId(number)).unwrap(), bytes);
            assert_eq!(SessionJobId(number).to_string(), number.to_string());
        }
        assert_eq!(format!("{:>4}", SessionJobId(7)), "   7");
    }
}
