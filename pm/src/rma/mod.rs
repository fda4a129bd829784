//! Remote memory (manual 3.6), as far as all devices share it: handles, the process's numbers of
//! locked regions, the table that says where they lie, memory of our own allocator, and copies
//! into and out of processes.
//!
//! `Context::lock_memory` gives a region a number that no other region of the process has, so
//! that one handle serves on every member of a composite. Each device that is on the way is told
//! (`Transport::publish_region`); what it makes of it is its own affair: an entry of a table that
//! its peers read (shmem), or a registration with a card.

mod allocator;
mod arena;
mod cross_memory_attach;
mod local_copy;
pub(crate) mod nontemporal_copy;
mod region_id;
mod region_table;

pub(crate) use allocator::{allocate, free, release, retain};
pub(crate) use arena::{Arena, ArenaFile};
pub(crate) use cross_memory_attach::{allow, copy_from, copy_to};
pub(crate) use local_copy::{IoSegment, MAX_SEGMENTS, UserMemoryCopier};
pub(crate) use region_id::{RegionId, SLOTS};
pub(crate) use region_table::{
    RegionEntry, ResolvedAddress, Table, WORD, find, find_word, new_table,
};

use crate::config::{OPT_REMOTE_READ, OPT_REMOTE_WRITE};
use std::ops::Add;

/// Bits of the offset in a handle.
const OFFSET_BITS: u32 = 40;

/// A locked region, and a place in it (`pmAddrHandle`): \[63:40\] slot and generation, \[39:0\]
/// offset. Offsets add. 0 is no handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct AddrHandle(u64);

impl AddrHandle {
    /// The longest region.
    pub(crate) const MAX_REGION_LEN: usize = 1 << OFFSET_BITS;

    pub(crate) fn new(number: RegionId) -> AddrHandle {
        AddrHandle(u64::from(number.bits()) << OFFSET_BITS)
    }

    /// As it was sent by another node.
    pub const fn from_bits(bits: u64) -> AddrHandle {
        AddrHandle(bits)
    }

    /// To be sent to another node.
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

/// So many bytes further. A handle that leaves its region is refused where it is used.
impl Add<u64> for AddrHandle {
    type Output = AddrHandle;
    fn add(self, bytes: u64) -> AddrHandle {
        AddrHandle(self.0.wrapping_add(bytes))
    }
}

/// Memory that was locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) id: RegionId,
    pub(crate) addr: usize,
    pub(crate) len: usize,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From here to there.
    Write = 0,
    /// From there to here.
    Read = 1,
}

impl Direction {
    /// The option bit of a device that has it.
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
    /// A buffer for a message is held: what is sent next may be that.
    pub(crate) is_send_locked: bool,
    pub(crate) direction: Direction,
    pub(crate) remote: AddrHandle,
    pub(crate) local: AddrHandle,
    pub(crate) len: usize,
}
