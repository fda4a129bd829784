//! What the hosts of a job learn when it begins, and how a process ends.

use serde::{Deserialize, Serialize};

use crate::ids::{JobHostId, JobId};
use crate::message::{JobSpec, OsBytes};

/// The job as its hosts receive it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStart {
    /// Job number.
    pub job: JobId,
    /// The secret in the packets of this job's networks; packets without it are dropped.
    pub secret: u64,
    /// The job as it was submitted.
    pub spec: JobSpec,
    /// The owner of the job, if daemons serve several users. None: the daemon's own user.
    pub owner: Option<Owner>,
}

/// The owner of a job: its shepherds switch to this user before they access anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The uid that the daemon of the login host has verified.
    pub uid: u32,
    /// The user's group, also verified.
    pub gid: u32,
    /// The user's name on the login host, as its name services know it; empty if they do not know
    /// the uid. A host on which the uid has another name refuses the job.
    pub name: OsBytes,
    /// scrun's own limits. No host exceeds its own limits.
    pub limits: Vec<Limit>,
    /// What the keeper of the login host says about the user. The keeper of a host starts a
    /// shepherd by this alone. Everything else here has been read from it.
    #[serde(with = "serde_bytes")]
    pub voucher: Vec<u8>,
}

/// A resource limit, as in getrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// RLIMIT_
    pub resource: u32,
    /// Soft limit; all ones for none.
    pub soft: u64,
    /// Hard limit; all ones for none.
    pub hard: u64,
}

/// The addresses of the networks of one parallel process on one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetworkAddress {
    /// The host.
    pub host: JobHostId,
    /// The addresses that its shepherd's devices report; opaque to all others on the way.
    #[serde(with = "serde_bytes")]
    pub address: Vec<u8>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// The process called exit or returned from main.
    Exited(u8),
    /// Killed by this signal.
    Signaled(i32),
}
