//! The parts of remote memory (manual 3.6) that all devices share: handles, the ids of locked
//! regions, the table of their addresses, PM's own allocator, and copies into and out of processes.
//!
//! `Context::lock_memory` gives a region an id that is unique in the process, so that one handle
//! is valid on every member of a composite. The context publishes the region to the device of each
//! member that needs it (`RmaInterface::publish_region`). Shmem enters the region in a table that
//! its peers read, ethernet in a table of this process, and verbs registers it with the adapter.

mod allocator;
mod arena;
mod cross_memory_attach;
mod local_copy;
pub(crate) mod nontemporal_copy;
mod operation_log;
mod region_id;
mod region_table;

pub(crate) use allocator::{allocate, free, release, retain};
pub(crate) use arena::{Arena, ArenaFile};
pub(crate) use cross_memory_attach::{allow, copy_from, copy_to};
pub(crate) use local_copy::{IoSegment, MAX_SEGMENTS, UserMemoryCopier};
pub use operation_log::RemoteStatus;
pub(crate) use operation_log::{FailedOperations, OperationLog, Outcome};
pub(crate) use region_id::{RegionId, SLOTS};
pub(crate) use region_table::{
    RegionEntry, ResolvedAddress, Table, WORD, find, find_word, new_table,
};

use crate::config::{OPT_REMOTE_READ, OPT_REMOTE_WRITE};
use std::ops::Add;

/// Bits of the offset in a handle.
const OFFSET_BITS: u32 = 40;

/// A locked region and an offset in it (`pmAddrHandle`): \[63:40\] slot and generation, \[39:0\]
/// offset. Offsets can be added. 0 is not a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct AddrHandle(u64);

impl AddrHandle {
    /// The longest region.
    pub(crate) const MAX_REGION_LEN: usize = 1 << OFFSET_BITS;

    pub(crate) fn new(id: RegionId) -> AddrHandle {
        AddrHandle(u64::from(id.bits()) << OFFSET_BITS)
    }

    /// Makes a handle from the bits that another node has sent.
    pub const fn from_bits(bits: u64) -> AddrHandle {
        AddrHandle(bits)
    }

    /// The bits that can be sent to another node.
    pub const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn region_bits(self) -> u32 {
        (self.0 >> OFFSET_BITS) as u32
    }

    pub(crate) fn offset(self) -> u64 {
        self.0 & (Self::MAX_REGION_LEN as u64 - 1)
    }
}

/// Adds to the offset. An operation refuses a handle beyond the end of its region.
impl Add<u64> for AddrHandle {
    type Output = AddrHandle;
    fn add(self, bytes: u64) -> AddrHandle {
        AddrHandle(self.0.wrapping_add(bytes))
    }
}

/// A region of locked memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) id: RegionId,
    pub(crate) addr: usize,
    pub(crate) len: usize,
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the origin to the target.
    Write = 0,
    /// From the target to the origin.
    Read = 1,
}

impl Direction {
    /// The option bit of devices that support it.
    #[inline(always)]
    pub(crate) fn option(self) -> u64 {
        match self {
            Direction::Write => OPT_REMOTE_WRITE,
            Direction::Read => OPT_REMOTE_READ,
        }
    }
}

/// One remote memory operation, as a context passes it to its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RmaOperation {
    /// Whether no other thread uses the endpoint at the same time.
    pub(crate) is_serialized: bool,
    pub(crate) direction: Direction,
    pub(crate) remote: AddrHandle,
    pub(crate) local: AddrHandle,
    pub(crate) len: usize,
}
