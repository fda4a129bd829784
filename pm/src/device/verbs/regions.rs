//! Locked regions: pinned by the pin-down cache, and listed in a table that peers read by RDMA. A
//! peer reads an entry once, and keeps it: a region that is locked anew has another number.

// UNSAFETY: registers memory of the application, at its word.
#![expect(unsafe_code)]

use super::adapter::{Access, Adapter, Buffers, Registered};
use crate::debug;
use crate::error::{Error, Result};
use crate::pin::{Cache, Id, Options, Registrar, Span};
use crate::remote::{AddrHandle, Number, Region, SLOTS};
use crate::sync::Ordering;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of an entry: state and number, address, length, key and number. Number twice: who reads it
/// while it is written sees that they differ.
pub(super) const ENTRY: usize = 32;
const WORDS: usize = ENTRY / 8;
const USED: u64 = 1 << 63;
/// Nobody may write there.
const CONSTANT: u64 = 1 << 62;

/// What the pin-down cache registers with.
struct Pinner(Arc<Adapter>);

impl Registrar for Pinner {
    type Registration = Arc<Registered<()>>;

    fn pin(&mut self, span: Span) -> std::result::Result<Arc<Registered<()>>, i32> {
        let (start, len) = (span.start() as *mut u8, span.bytes());
        let pin = |access| -> io::Result<Registered<()>> {
            // SAFETY: the pages are pinned, so that the adapter reaches what was here whatever
            // becomes of the addresses; what is not mapped is refused.
            unsafe { Registered::new(&self.0, (), start, len, access) }
        };
        let errno = |why: io::Error| why.raw_os_error().unwrap_or(libc::EIO);
        match pin(Access::All).map_err(errno) {
            // Perhaps it may only be read.
            Err(libc::EFAULT | libc::EACCES | libc::EPERM) => pin(Access::Constant).map_err(errno),
            other => other,
        }
        .map(Arc::new)
    }

    fn unpin(&mut self, registration: Arc<Registered<()>>) {
        drop(registration);
    }
}

/// A region of this process.
struct Own {
    addr: usize,
    len: usize,
    lkey: u32,
    constant: bool,
    id: Id,
}

/// See the module.
pub(super) struct Regions {
    /// Made with the first region. None inside: it cannot be.
    cache: OnceLock<Option<Cache<Pinner>>>,
    own: Mutex<HashMap<u32, Own>>,
    table: Registered<Arc<Buffers>>,
    adapter: Arc<Adapter>,
}

impl Regions {
    pub(super) fn new(adapter: &Arc<Adapter>) -> std::result::Result<Regions, String> {
        Ok(Regions {
            cache: OnceLock::new(),
            own: Mutex::default(),
            table: Registered::buffers(adapter, SLOTS * ENTRY, Access::Read)?,
            adapter: adapter.clone(),
        })
    }

    /// Where peers find the table, and its key.
    pub(super) fn table(&self) -> (u64, u32) {
        (self.table.keeps.at(0, 8).addr() as u64, self.table.rkey)
    }

    fn own(&self) -> MutexGuard<'_, HashMap<u32, Own>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins it, and lists it. NoSpace: no more memory can be pinned. Invalid: it is not mapped.
    pub(super) fn publish(&self, region: &Region) -> Result<()> {
        let make = || Cache::new(Pinner(self.adapter.clone()), Options::default()).ok();
        let cache = self.cache.get_or_init(make).as_ref().ok_or(Error::NoMemory)?;
        let lock = cache.lock(region.addr, region.len)?;
        let (lkey, rkey) = (lock.registration.lkey, lock.registration.rkey);
        let (number, addr, len) = (region.number.bits(), region.addr, region.len);
        let constant = lock.registration.access == Access::Constant;
        self.own().insert(number, Own { addr, len, lkey, constant, id: lock.id });
        let key = u64::from(number) << 32 | u64::from(rkey);
        let state = USED | if constant { CONSTANT } else { 0 } | u64::from(number);
        let words = [state, addr as u64, len as u64, key];
        // The state last.
        for at in [1, 2, 3, 0] {
            self.word(region.number, at).store(words[at], Ordering::Release);
        }
        Ok(())
    }

    fn word(&self, number: Number, at: usize) -> &crate::sync::AtomicU64 {
        self.table.keeps.word(number.slot() * WORDS + at)
    }

    /// It is listed no more, and pinned as long as the cache likes.
    pub(super) fn withdraw(&self, number: Number) {
        for at in [0, 3] {
            self.word(number, at).store(0, Ordering::Release);
        }
        let Some(own) = self.own().remove(&number.bits()) else { return };
        if let Some(Some(cache)) = self.cache.get()
            && cache.unlock(own.id).is_err()
        {
            debug::say(debug::WARNING, || "verbs: a region was pinned by another process".into());
        }
    }

    /// Where the `len` bytes at an own handle lie, and their key. Invalid: it is not locked, does
    /// not reach, or may not be written to, where `written` says that it will be.
    pub(super) fn find(&self, handle: AddrHandle, len: usize, written: bool) -> Result<(u64, u32)> {
        let own = self.own();
        let region = own.get(&handle.number()).ok_or(Error::Invalid)?;
        let offset = handle.offset();
        if written && region.constant {
            return Err(Error::Invalid);
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > region.len as u64) {
            return Err(Error::Invalid);
        }
        Ok((region.addr as u64 + offset, region.lkey))
    }
}

/// A region of a peer, as its table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct There {
    addr: u64,
    len: u64,
    pub(super) rkey: u32,
    /// Nobody may write there.
    pub(super) constant: bool,
}

/// Where the entry of a region lies in a table at `table`.
pub(super) fn entry_at(table: u64, number: u32) -> u64 {
    table.wrapping_add((number as usize % SLOTS * ENTRY) as u64)
}

impl There {
    /// None: there is no such region.
    pub(super) fn parse(words: [u64; WORDS], number: u32) -> Option<There> {
        let [state, addr, len, key] = words;
        let constant = state & CONSTANT != 0;
        let same = state & !CONSTANT == USED | u64::from(number) && key >> 32 == u64::from(number);
        same.then_some(There { addr, len, rkey: key as u32, constant })
    }

    /// The address of `len` bytes from `offset` on. None: they are not all in it.
    pub(super) fn reach(&self, offset: u64, len: usize) -> Option<u64> {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        self.addr.checked_add(offset).filter(|_| inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_region_only_under_its_own_number_and_to_its_end() {
        let number = 0x7a_b00f;
        let words = [USED | 0x7a_b00f, 4096, 100, 0x7a_b00f << 32 | 9];
        let there = There::parse(words, number).unwrap();
        assert!(!there.constant);
        let mut constant = words;
        constant[0] |= CONSTANT;
        assert!(There::parse(constant, number).is_some_and(|there| there.constant));
        assert_eq!((there.reach(0, 100), there.reach(99, 1)), (Some(4096), Some(4195)));
        for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 2), (1, usize::MAX)] {
            assert_eq!(there.reach(offset, len), None, "{offset} {len}");
        }
        assert_eq!(There::parse(words, number + 1), None);
        for changed in 0..WORDS {
            let mut torn = words;
            torn[changed] = 0;
            let is_torn = There::parse(torn, number).is_none();
            assert_eq!(is_torn, changed == 0 || changed == 3, "{changed}");
        }
    }
}
