//! Remote memory (manual 3.6): what is locked, and the checks around an operation.

#![forbid(unsafe_code)]

use super::{Context, Inner};
use crate::device::{Body, Transport, on};
use crate::error::{Error, Result};
use crate::idle;
use crate::remote::{self, AddrHandle, Direction, Number, Operation, Region};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// Bits of a word of ways.
const WAYS: usize = 32;

/// The regions that a context has locked, by address and length.
#[derive(Default)]
pub(super) struct Book(BTreeMap<(usize, usize), Locked>);

struct Locked {
    number: Number,
    /// How often it was locked for each way.
    counts: [u32; WAYS],
    /// All of it is of PM's own allocator.
    ours: bool,
}

fn each(ways: u32) -> impl Iterator<Item = usize> {
    (0..WAYS).filter(move |way| ways >> way & 1 == 1)
}

impl Inner {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// NoSys: none of these options is offered. Busy: given to another process.
    fn offers(&self, options: u64) -> Result<()> {
        if on!(&self.body, device => device.options()) & options == 0 {
            return Err(Error::NoSys);
        }
        if self.is_lent() { Err(Error::Busy) } else { Ok(()) }
    }

    fn lock_region(&self, ways: u32, addr: usize, len: usize) -> Result<AddrHandle> {
        let mut book = self.book();
        let number = match book.0.get(&(addr, len)) {
            Some(locked) => locked.number,
            None => Number::take()?,
        };
        let ours = || remote::hold(addr, len);
        let locked = book.0.entry((addr, len)).or_insert_with(|| Locked {
            number,
            counts: [0; WAYS],
            ours: ours(),
        });
        let region = Region { number, addr, len };
        let mut told = 0u32;
        for way in each(ways) {
            if locked.counts[way] == 0
                && let Err(error) = on!(&self.body, device => device.publish_region(way, &region))
            {
                each(told).for_each(|way| locked.counts[way] -= 1);
                self.settle(&mut book, (addr, len), told);
                return Err(error);
            }
            locked.counts[way] += 1;
            told |= 1 << way;
        }
        Ok(AddrHandle::new(number))
    }

    fn unlock_region(&self, ways: u32, addr: usize, len: usize) -> Result<()> {
        let mut book = self.book();
        let locked = book.0.get_mut(&(addr, len)).ok_or(Error::NoEntry)?;
        let held = each(ways).filter(|&way| locked.counts[way] > 0).fold(0, |sum, w| sum | 1 << w);
        if held == 0 {
            return Err(Error::NoEntry);
        }
        each(held).for_each(|way| locked.counts[way] -= 1);
        self.settle(&mut book, (addr, len), held);
        Ok(())
    }

    /// The counts of these ways have become smaller.
    fn settle(&self, book: &mut Book, at: (usize, usize), ways: u32) {
        let Some(locked) = book.0.get(&at) else { return };
        let number = locked.number;
        for way in each(ways).filter(|&way| locked.counts[way] == 0) {
            on!(&self.body, device => device.withdraw_region(way, number));
        }
        if locked.counts.iter().all(|&count| count == 0) {
            if locked.ours {
                remote::let_go(at.0, at.1);
            }
            book.0.remove(&at);
            number.give_back();
        }
    }

    /// Unlocks all that goes by these ways: they are about to go.
    pub(super) fn forget_regions(&self, ways: u32) {
        let mut book = self.book();
        let all: Vec<_> = book.0.keys().copied().collect();
        for at in all {
            if let Some(locked) = book.0.get_mut(&at) {
                each(ways).for_each(|way| locked.counts[way] = 0);
            }
            self.settle(&mut book, at, ways);
        }
    }

    /// As `Context::write`; `write_short` is tried first.
    pub fn write(&self, node: u32, handles: [AddrHandle; 2], len: usize) -> Result<()> {
        self.operate(Direction::Write, node, handles, len)
    }

    /// As `Context::read`; `read_short` is tried first.
    pub fn read(&self, node: u32, handles: [AddrHandle; 2], len: usize) -> Result<()> {
        self.operate(Direction::Read, node, handles, len)
    }

    fn operate(
        &self,
        direction: Direction,
        node: u32,
        [remote, local]: [AddrHandle; 2],
        len: usize,
    ) -> Result<()> {
        self.offers(direction.option())?;
        idle::before_send();
        let sending = !self.locks().send.is_free();
        let operation = Operation { sending, direction, remote, local, len };
        on!(&self.body, device => device.remote(node, &operation))
    }
}

impl Context {
    /// Locks `len` bytes at `addr` for remote access from `node`, or from every node (None,
    /// `PM_NODE_ANY`); answers the handle of the first byte (`pmMLock`, manual 3.6.4). Any address
    /// and length: nothing is read. The same region locked again has the same handle, and has to
    /// be unlocked as often. Invalid: no such node, the own one, length 0 or beyond 1 TiB.
    /// NoSpace: 4,096 regions are locked, or the device cannot pin it. NoSys. Busy: the context
    /// belongs to another process.
    pub fn lock_memory(&self, node: Option<u32>, addr: usize, len: usize) -> Result<AddrHandle> {
        let inner = self.live()?;
        inner.offers(u64::MAX)?;
        if addr == 0 || len == 0 || len > AddrHandle::REACH || addr.checked_add(len).is_none() {
            return Err(Error::Invalid);
        }
        let ways = on!(&inner.body, device => device.ways(node))?;
        inner.lock_region(ways, addr, len)
    }

    /// Unlocks what was locked (`pmMUnlock`): its handle is refused from now on, when this was
    /// the last of its locks. NoEntry: it was not. Invalid: as `lock_memory`. NoSys.
    pub fn unlock_memory(&self, node: Option<u32>, addr: usize, len: usize) -> Result<()> {
        let inner = self.live()?;
        inner.offers(u64::MAX)?;
        if len == 0 {
            return Err(Error::Invalid);
        }
        let ways = on!(&inner.body, device => device.ways(node))?;
        inner.unlock_region(ways, addr, len)
    }

    /// Copies `len` bytes at `local` here to `remote` on `node` (`pmWrite`, manual 3.6.5).
    /// Messages that are sent to `node` afterwards arrive after it, and so do later remote
    /// operations to it. Invalid: no such node, the own one, a handle that is not locked or does
    /// not reach, length 0 or beyond `RMA_MTU`. NoBuffers: too much is under way, or it would have
    /// to wait while a buffer for a message is held. NoSys.
    pub fn write(
        &self,
        node: u32,
        remote: AddrHandle,
        local: AddrHandle,
        len: usize,
    ) -> Result<()> {
        let (inner, handles) = (self.live()?, [remote, local]);
        if inner.write_short(node, handles, len) { Ok(()) } else { inner.write(node, handles, len) }
    }

    /// Copies `len` bytes at `remote` on `node` to `local` here (`pmRead`); as `write`.
    pub fn read(&self, node: u32, remote: AddrHandle, local: AddrHandle, len: usize) -> Result<()> {
        let (inner, handles) = (self.live()?, [remote, local]);
        if inner.read_short(node, handles, len) { Ok(()) } else { inner.read(node, handles, len) }
    }

    /// Whether the local memory of all writes may be altered (`pmIsWriteDone`). Busy: not yet.
    /// Io, once: some have failed. NoSys.
    pub fn is_write_done(&self) -> Result<()> {
        let inner = self.live()?;
        inner.offers(Direction::Write.option())?;
        on!(&inner.body, device => device.is_remote_done(Direction::Write))
    }

    /// Whether all reads have been carried out (`pmIsReadDone`); as `is_write_done`.
    pub fn is_read_done(&self) -> Result<()> {
        let inner = self.live()?;
        inner.offers(Direction::Read.option())?;
        on!(&inner.body, device => device.is_remote_done(Direction::Read))
    }

    /// At least `len` bytes of zeroes at a page's begin (`pmAlloc`: ours, not the manual's).
    /// Processes of the same host copy such memory directly; else it is as any other. It stays
    /// until `free_memory`, also when the context goes. Invalid: `len` is 0. NoMemory.
    pub fn allocate_memory(&self, len: usize) -> Result<*mut u8> {
        let inner = self.live()?;
        if inner.is_lent() {
            return Err(Error::Busy);
        }
        let arena = on!(&inner.body, device => device.arena());
        remote::allocate(arena.as_ref(), len).map(|addr| addr as *mut u8)
    }

    /// Gives memory back (`pmFree`). Invalid: `addr` is not what `allocate_memory` answered.
    /// Busy: it is locked.
    pub fn free_memory(&self, addr: *mut u8) -> Result<()> {
        self.live()?;
        remote::free(addr.addr())
    }
}
