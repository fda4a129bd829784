//! The description of a job that its hosts receive at its start.

use serde::{Deserialize, Serialize};

use crate::ids::{JobHostId, JobId};
use crate::message::{JobSpec, OsBytes};

/// A job, in the form in which its hosts receive it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStart {
    /// Job number.
    pub job: JobId,
    /// The secret in the packets of this job's networks. Packets without it are dropped.
    pub secret: u64,
    /// The job, as it was submitted.
    pub spec: JobSpec,
    /// The owner of the job in multi-user mode. `None` means the daemon's own user.
    pub owner: Option<Owner>,
}

/// The owner of a job. Its shepherds change to this user before they access anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The uid that the daemon of the login host has verified.
    pub uid: u32,
    /// The user's group, also verified.
    pub gid: u32,
    /// The user's name in the name services of the login host. It is empty if they have no entry
    /// for the uid. A host on which the uid has another name refuses the job.
    pub name: OsBytes,
    /// The resource limits of scrun. A host never exceeds its own limits.
    pub limits: Vec<Limit>,
    /// The voucher of the keeper on the login host, which confirms the user. The keeper of a host
    /// relies on this alone when it starts a shepherd. All other fields were read from it.
    #[serde(with = "serde_bytes")]
    pub voucher: Vec<u8>,
}

/// A resource limit, as in getrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The number of the resource (`RLIMIT_...`).
    pub resource: u32,
    /// Soft limit; all bits are set if there is none.
    pub soft: u64,
    /// Hard limit; all bits are set if there is none.
    pub hard: u64,
}

/// The addresses of the networks of one parallel process on one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetworkAddress {
    /// The host.
    pub host: JobHostId,
    /// The addresses that the devices of its shepherd have reported. They are opaque to all others.
    #[serde(with = "serde_bytes")]
    pub address: Vec<u8>,
}
