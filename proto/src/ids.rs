//! Numbers of hosts, jobs and other objects. Each kind of number has its own type, so that the
//! compiler rejects a mistaken kind. All types are encoded and printed as the bare number.
//!
//! | type | identifies | chosen by | unique |
//! |---|---|---|---|
//! | [`HostId`] | a host of a cluster | the cluster's list of hosts | in the cluster |
//! | [`JobId`] | a job | its cluster, or its single-user daemon | there, among current jobs |
//! | [`JobHostId`] | a host of a job | the order of the job's hosts | in the job |
//! | [`SessionJobId`] | a job for its scrun | scrun | in its session, while the job lasts |
//! | [`ElementIndex`] | a parallel process of a stage | its place in the pipe | in the stage |
//! | [`ProcessIndex`] | a process of an element | the order of nodes | in the element, on a host |

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// Prints an id as its number, with the same options for width and fill.
macro_rules! display_as_number {
    ($($id:ty),+) => {$(
        impl Display for $id {
            fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
                Display::fmt(&self.0, formatter)
            }
        }
    )+};
}

display_as_number!(HostId, JobId, JobHostId, SessionJobId, ElementIndex, ProcessIndex);

/// A host's index in the cluster's list and in its tree. The server has number 0:
/// [`crate::peer_message::SERVER`].
///
/// [`JobHostId`] is the index of a host among the hosts of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(pub u32);

impl HostId {
    /// The host's position in the cluster's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A job's number, from 1, as `sc_getpid` returns it.
///
/// The server of the cluster assigns it. In single-user mode, scrun's own daemon assigns it. The
/// number is unique among the current jobs of that daemon. The server continues the sequence after
/// a restart, and starts again with 1 after `i32::MAX`. If a message may be late,
/// [`JobIncarnation`](crate::peer_message::JobIncarnation) identifies the job of this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u32);

/// A host's index among the hosts of a job, in the order of their nodes. `score_self_host` has this
/// value.
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
/// The client chooses it when it submits the job. It differs from
/// [`crate::client_session::SESSION_JOB`] and from the numbers of all other jobs of the session. It
/// is free again after the job's last message. Jobs of different sessions may have the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionJobId(pub u32);

/// A parallel process's index in its stage, from 0 at the left end of the pipeline.
///
/// The nodes of an element are plain numbers. A receiver that gets an index from a process or from
/// another host checks that the stage has such an element.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ElementIndex(pub u32);

impl ElementIndex {
    /// The leftmost element of every stage.
    pub const FIRST: Self = Self(0);

    /// The indices of the elements of a stage with `count` elements, from left to right.
    pub fn all(count: usize) -> impl DoubleEndedIterator<Item = Self> + Clone {
        (0..count as u32).map(Self)
    }

    /// The element's position in lists of the stage's elements.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank of the element's node 0: its row in the job's process table. `nodes`: the number of
    /// nodes of each element.
    pub fn first_rank(self, nodes: u32) -> u32 {
        self.0.saturating_mul(nodes)
    }
}

/// A process's index among the processes of its element on its host, from 0 in the order of their
/// nodes. `score_self_proc` has this value.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ProcessIndex(pub u32);

impl ProcessIndex {
    /// The first process of an element on each host.
    pub const FIRST: Self = Self(0);

    /// The process's position in lists of the element's processes on the host.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

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
            assert_eq!(postcard::to_allocvec(&ElementIndex(number)).unwrap(), bytes);
            assert_eq!(postcard::to_allocvec(&ProcessIndex(number)).unwrap(), bytes);
            assert_eq!(SessionJobId(number).to_string(), number.to_string());
        }
        assert_eq!(format!("{:>4}", SessionJobId(7)), "   7");
    }

    #[test]
    fn an_index_is_a_position_in_a_list() {
        assert_eq!((HostId(7).index(), JobHostId(7).index()), (7, 7));
        assert_eq!((ElementIndex(7).index(), ProcessIndex(7).index()), (7, 7));
        assert!(ElementIndex::all(3).eq([ElementIndex(0), ElementIndex(1), ElementIndex(2)]));
    }

    #[test]
    fn the_ranks_of_an_element_follow_those_of_the_elements_to_its_left() {
        assert_eq!(ElementIndex::FIRST.first_rank(4), 0);
        assert_eq!(ElementIndex(3).first_rank(4), 12);
        assert_eq!(ElementIndex(u32::MAX).first_rank(2), u32::MAX);
    }
}
