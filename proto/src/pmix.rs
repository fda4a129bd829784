//! Messages between a shepherd and its helper `scored-pmix`, in frames on a stream socket. The
//! helper serves PMIx to the processes of the job on this host. Helper and shepherd run as the
//! job's user, who can make the helper send any report. The daemons check everything that goes to
//! other hosts, as for each report of a shepherd.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::{ElementIndex, JobHostId};
use crate::job_control::SubsetFence;
use crate::message::{EnvVar, OsBytes};

/// The descriptor of the helper's socket.
pub const PMIX_SOCKET_FD: i32 = 0;

/// A host of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixHost {
    /// The name of the host in the job.
    pub name: String,
    /// The number of ranks on the host. They follow the ranks of the previous host.
    pub ranks: u32,
}

/// A parallel process that starts by PMIx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixNamespace {
    /// The number of the element in the stage.
    pub element: ElementIndex,
    /// The name of the PMIx namespace, which is the same on all hosts. The name is secret, because
    /// a local process that has the name could connect in place of a rank.
    pub name: String,
}

/// The data that a helper needs to serve the programs of one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixSetup {
    /// The libpmix that the programs will load, if it is known. Otherwise the system's libpmix is
    /// used.
    pub library: Option<OsBytes>,
    /// A directory of the job on this host, for the files of the library.
    pub directory: OsBytes,
    /// The job's hosts, in the order of their ranks.
    pub hosts: Vec<PmixHost>,
    /// The index of this host among them.
    pub self_host: JobHostId,
    /// The programs.
    pub namespaces: Vec<PmixNamespace>,
}

impl PmixSetup {
    /// The ranks of a host.
    pub fn ranks_of(&self, host: JobHostId) -> Range<u32> {
        let first: u32 = self.hosts.iter().take(host.index()).map(|host| host.ranks).sum();
        first..first + self.hosts.get(host.index()).map_or(0, |host| host.ranks)
    }

    /// The number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.hosts.iter().map(|host| host.ranks).sum()
    }

    /// The ranks of this host.
    pub fn local_ranks(&self) -> Range<u32> {
        self.ranks_of(self.self_host)
    }
}

/// From the shepherd to its helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PmixOrder {
    /// The first order.
    Setup(PmixSetup),
    /// Entries that the ranks of some hosts have put before a fence.
    FenceEntries {
        /// The parallel process.
        element: ElementIndex,
        /// The fence. `None` means the fence of all ranks.
        fence: Option<SubsetFence>,
        /// The entries as blobs of libpmix, one after the other.
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// All ranks that take part are in the fence, and their entries have arrived.
    FenceDone {
        /// The parallel process.
        element: ElementIndex,
        /// The fence. `None` means the fence of all ranks.
        fence: Option<SubsetFence>,
    },
    /// A rank of another host requests the entries of a rank of this host.
    /// [`PmixReport::ModexAnswer`] has to answer it when that rank has put entries.
    ModexRequest {
        /// The parallel process.
        element: ElementIndex,
        /// The rank of this host.
        rank: u32,
        /// Whether the rank has ended, so that the helper has to answer at once. The order then
        /// repeats an earlier one.
        is_last_try: bool,
    },
    /// The answer to [`PmixReport::ModexRequest`].
    ModexAnswer {
        /// The parallel process.
        element: ElementIndex,
        /// The rank of another host.
        rank: u32,
        /// The entries of the rank as a blob of libpmix, or `None` if it has put no entries.
        #[serde(with = "serde_bytes")]
        entries: Option<Vec<u8>>,
    },
    /// The helper has to answer with [`PmixReport::Alive`].
    ReportAlive,
}

/// From the helper to its shepherd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PmixReport {
    /// A rank of this host can be started.
    Ready {
        /// The parallel process.
        element: ElementIndex,
        /// The rank.
        rank: u32,
        /// The environment variables with which the rank finds the helper.
        environment: Vec<EnvVar>,
    },
    /// PMIx cannot be served on this host: the reason in one line.
    Unavailable(String),
    /// A rank of this host has called PMIx_Init (MPI_Init).
    Connected {
        /// The parallel process.
        element: ElementIndex,
        /// The rank.
        rank: u32,
    },
    /// A rank of this host has called PMIx_Finalize (MPI_Finalize).
    Finalized {
        /// The parallel process.
        element: ElementIndex,
        /// The rank.
        rank: u32,
    },
    /// The ranks of this host that take part in a fence have entered the fence.
    InFence {
        /// The parallel process.
        element: ElementIndex,
        /// The fence. `None` means the fence of all ranks.
        fence: Option<SubsetFence>,
        /// The entries that these ranks have put, as a blob of libpmix.
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// A rank of this host requests the entries of a rank of another host. Reported once until
    /// [`PmixOrder::ModexAnswer`] answers it.
    ModexRequest {
        /// The parallel process.
        element: ElementIndex,
        /// The rank of another host.
        rank: u32,
    },
    /// The answer to [`PmixOrder::ModexRequest`].
    ModexAnswer {
        /// The parallel process.
        element: ElementIndex,
        /// The rank of this host.
        rank: u32,
        /// The entries of the rank as a blob of libpmix, or `None` if it has put no entries.
        #[serde(with = "serde_bytes")]
        entries: Option<Vec<u8>>,
    },
    /// A rank of this host has called PMIx_Abort (MPI_Abort).
    Aborted {
        /// The parallel process.
        element: ElementIndex,
        /// The rank.
        rank: u32,
        /// The error code of the call.
        code: i32,
        /// The message of the call.
        text: String,
    },
    /// The answer to [`PmixOrder::ReportAlive`]: both threads of the helper work.
    Alive,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_order_of_the_hosts() {
        let host = |ranks| PmixHost { name: "h".to_owned(), ranks };
        let setup = PmixSetup {
            library: None,
            directory: OsBytes::default(),
            hosts: vec![host(2), host(3), host(4)],
            self_host: JobHostId(1),
            namespaces: Vec::new(),
        };
        assert_eq!(setup.rank_count(), 9);
        assert_eq!((setup.local_ranks(), setup.ranks_of(JobHostId(2))), (2..5, 5..9));
        assert!(setup.ranks_of(JobHostId(3)).is_empty());
    }
}
