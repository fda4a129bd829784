//! Messages between a shepherd and its helper `scored-pmix`, in frames on a stream socket. The
//! helper serves PMIx to the processes of the job on this host. It runs as the job's user, as the
//! shepherd does, and the user can make it send any report. The daemons check what goes to other
//! hosts, as they check each report of a shepherd.

use serde::{Deserialize, Serialize};

use crate::job_control::SubsetFence;
use crate::message::{EnvVar, OsBytes};

/// The descriptor at which the helper finds its socket.
pub const PMIX_SOCKET_FD: i32 = 0;

/// A host of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixHost {
    /// Its name in the job.
    pub name: String,
    /// The number of ranks on it. They follow those of the host before.
    pub ranks: u32,
}

/// A parallel process that starts by PMIx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixNamespace {
    /// Its number in the stage.
    pub element: u32,
    /// The name of its namespace, the same one on all hosts. It is secret: a local process that
    /// knows it could connect in place of a rank.
    pub name: String,
}

/// What a helper serves: the programs of one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixSetup {
    /// The libpmix that the programs will load, if that is known. Otherwise the system's is used.
    pub library: Option<OsBytes>,
    /// A directory of the job on this host, for the files of the library.
    pub directory: OsBytes,
    /// The job's hosts, in the order of their ranks.
    pub hosts: Vec<PmixHost>,
    /// The number of this host among them.
    pub self_host: u32,
    /// The programs.
    pub namespaces: Vec<PmixNamespace>,
}

impl PmixSetup {
    /// The first rank of a host.
    pub fn first_rank(&self, host: u32) -> u32 {
        self.hosts.iter().take(host as usize).map(|host| host.ranks).sum()
    }

    /// The number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.first_rank(self.hosts.len() as u32)
    }

    /// The ranks of this host.
    pub fn local_ranks(&self) -> std::ops::Range<u32> {
        let first = self.first_rank(self.self_host);
        first..self.first_rank(self.self_host + 1)
    }
}

/// From the shepherd to its helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PmixOrder {
    /// The first order.
    Setup(PmixSetup),
    /// What the ranks of some hosts have put before a fence.
    FenceEntries {
        /// The parallel process.
        element: u32,
        /// The fence. None: that of all ranks.
        fence: Option<SubsetFence>,
        /// Blobs of libpmix, one after the other.
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// All ranks that take part are in the fence, and their entries have come.
    FenceDone {
        /// The parallel process.
        element: u32,
        /// The fence. None: that of all ranks.
        fence: Option<SubsetFence>,
    },
    /// A rank of another host wants what a rank of this host has put. To be answered by
    /// [`PmixReport::ModexAnswer`] when that rank has put something.
    ModexRequest {
        /// The parallel process.
        element: u32,
        /// The rank of this host.
        rank: u32,
        /// The rank has ended: it is to be answered at once. This repeats an earlier order.
        is_last_try: bool,
    },
    /// Answer to [`PmixReport::ModexRequest`].
    ModexAnswer {
        /// The parallel process.
        element: u32,
        /// The rank of another host.
        rank: u32,
        /// What it has put: a blob of libpmix. None: nothing.
        #[serde(with = "serde_bytes")]
        entries: Option<Vec<u8>>,
    },
    /// Answer [`PmixReport::Alive`].
    ReportAlive,
}

/// From the helper to its shepherd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PmixReport {
    /// A rank of this host can be started.
    Ready {
        /// The parallel process.
        element: u32,
        /// The rank.
        rank: u32,
        /// The variables by which it finds the helper.
        environment: Vec<EnvVar>,
    },
    /// PMIx cannot be served on this host: one line.
    Unavailable(String),
    /// A rank of this host has called PMIx_Init (MPI_Init).
    Connected {
        /// The parallel process.
        element: u32,
        /// The rank.
        rank: u32,
    },
    /// A rank of this host has called PMIx_Finalize (MPI_Finalize).
    Finalized {
        /// The parallel process.
        element: u32,
        /// The rank.
        rank: u32,
    },
    /// The ranks of this host that take part in a fence are in it.
    InFence {
        /// The parallel process.
        element: u32,
        /// The fence. None: that of all ranks.
        fence: Option<SubsetFence>,
        /// What they have put: a blob of libpmix.
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// A rank of this host wants what a rank of another host has put. Reported once until it is
    /// answered by [`PmixOrder::ModexAnswer`].
    ModexRequest {
        /// The parallel process.
        element: u32,
        /// The rank of another host.
        rank: u32,
    },
    /// Answer to [`PmixOrder::ModexRequest`].
    ModexAnswer {
        /// The parallel process.
        element: u32,
        /// The rank of this host.
        rank: u32,
        /// What it has put: a blob of libpmix. None: nothing.
        #[serde(with = "serde_bytes")]
        entries: Option<Vec<u8>>,
    },
    /// A rank of this host has called PMIx_Abort (MPI_Abort).
    Aborted {
        /// The parallel process.
        element: u32,
        /// The rank.
        rank: u32,
        /// Its error code.
        code: i32,
        /// Its message.
        text: String,
    },
    /// Answer to [`PmixOrder::ReportAlive`]: both threads of the helper work.
    Alive,
}
