//! Remote memory: one copy, by the process that asks for it, before the call returns. Where both
//! regions are of PM's own allocator it copies in memory that both have mapped; else the kernel
//! copies between the processes. Where that is refused, see `relay.rs`.

// UNSAFETY: copies between places in mappings, and lets the kernel write to the caller's memory.
#![expect(unsafe_code)]

use super::Endpoint;
use super::reach::{Part, copy_word};
use crate::barrier;
use crate::config::RMA_MTU;
use crate::debug;
use crate::door::{EXITED, FENCED};
use crate::error::{Error, Result};
use crate::remote::{
    Arena, ArenaFile, Direction, Number, Operation, Place, Region, Table, WORD, allow, copy_from,
    copy_to, find, long, new_table,
};
use crate::segment::layout::Regions;
use crate::sync::{AtomicU32, AtomicU64, Local, Ordering, fence};
use crate::threads::is_alone;
use std::cell::OnceCell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What lies in every process, for its peers to read.
static KNOWN_WORD: AtomicU64 = AtomicU64::new(0);

/// How long a copy of another process may hold up who unlocks its memory.
const HELD: Duration = Duration::from_secs(10);

/// How the memory of a peer's process is reached, together with its number.
const REFUSED: u64 = 1 << 32;

pub(super) struct Remote {
    /// The own regions: what handles of this process mean is not looked up where others write.
    own: OnceLock<Box<Table>>,
    arena: OnceLock<Option<Arc<Arena>>>,
    /// For each node 0, or the process that was probed, perhaps [`REFUSED`].
    probed: Box<[Local]>,
    /// Operations that have failed, by direction, and were not told of yet.
    failed: [AtomicU32; 2],
    /// Who made the context: the common ancestor of the job's processes. 0: unknown.
    owner: i32,
}

impl Remote {
    pub(super) fn new(nodes: usize, owner: i32) -> Remote {
        Remote {
            own: OnceLock::new(),
            arena: OnceLock::new(),
            probed: (0..nodes).map(|_| Local::default()).collect(),
            failed: Default::default(),
            owner,
        }
    }
}

impl Endpoint {
    /// The own part of the arena.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        let make = || Arena::of(self.segment.arena()?, self.segment.nonce(), self.own as usize);
        self.remote.arena.get_or_init(make).as_ref()
    }

    /// Invalid: no such node, or the own one.
    pub(crate) fn check_peer(&self, node: u32) -> Result<()> {
        let known = (node as usize) < self.segment.geometry().nodes && node != self.own;
        if known { Ok(()) } else { Err(Error::Invalid) }
    }

    fn shared(&self, node: u32) -> &Regions {
        self.segment.regions(node as usize)
    }

    pub(crate) fn publish_region(&self, region: &Region) -> Result<()> {
        let own = self.remote.own.get_or_init(|| {
            self.introduce();
            new_table()
        });
        let arena = self.arena().and_then(|arena| arena.offset(region.addr, region.len));
        let slot = region.number.slot();
        own[slot].publish(region, arena);
        self.shared(self.own).entries[slot].publish(region, arena);
        Ok(())
    }

    pub(crate) fn withdraw_region(&self, number: Number) {
        let Some(own) = self.remote.own.get() else { return };
        let in_arena = own[number.slot()].is_in_arena();
        own[number.slot()].withdraw();
        self.shared(self.own).entries[number.slot()].withdraw();
        self.wait_for_copies(number, in_arena);
    }

    /// Until nobody copies into or out of a region that was withdrawn. Who is held by a debugger
    /// amid a copy is waited for no longer than [`HELD`].
    fn wait_for_copies(&self, number: Number, in_arena: bool) {
        if self.relay_is_used() {
            self.wait_for_relay();
        }
        fence(Ordering::SeqCst);
        let copiers: Vec<_> = self.shared(self.own).access.copiers(self.nodes()).collect();
        if in_arena && !copiers.is_empty() {
            barrier::issue();
        }
        let begin = OnceCell::new();
        for node in copiers {
            let record = self.segment.node(node);
            record.copying.wait(self.own + 1, number.bits(), || {
                let is_late = begin.get_or_init(Instant::now).elapsed() > HELD;
                if is_late {
                    debug::say(debug::ERROR, || {
                        let since = format!("memory that was unlocked {HELD:?} ago");
                        format!("shmem: node {node} still copies {since}: does a debugger hold it?")
                    });
                }
                is_late || record.door.0.bits() & EXITED != 0
            });
        }
    }

    /// Says which process this is, and how to find out whether it may be copied into.
    fn introduce(&self) {
        allow(self.remote.owner);
        if KNOWN_WORD.load(Ordering::Relaxed) == 0 {
            let word = crate::segment::new_nonce().map_or(1, |[word, _]| word | 1);
            let _ = KNOWN_WORD.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
        }
        let access = &self.shared(self.own).access;
        access.probe.store((&raw const KNOWN_WORD).addr() as u64, Ordering::Relaxed);
        access.word.store(KNOWN_WORD.load(Ordering::Relaxed), Ordering::Relaxed);
        access.pid.store(u64::from(std::process::id()), Ordering::Release);
    }

    /// Where both ends of an operation lie: here and there.
    #[inline]
    fn ends(&self, node: u32, operation: &Operation) -> Result<(Place, Place)> {
        self.check_peer(node)?;
        let len = operation.len;
        if len == 0 || len > RMA_MTU {
            return Err(Error::Invalid);
        }
        let own = self.remote.own.get().ok_or(Error::Invalid)?;
        let local = find(own, operation.local, len)?;
        let there = find(&self.shared(node).entries, operation.remote, len)?;
        if there.arena.is_some_and(|at| !ArenaFile::holds(at, len)) {
            return Err(Error::Invalid);
        }
        Ok((local, there))
    }

    pub(crate) fn remote(&self, node: u32, operation: &Operation) -> Result<()> {
        let number = operation.remote.number();
        let copying = &self.record().copying;
        let name = node.wrapping_add(1);
        let copy = copying.begin(name, number, is_alone()).ok_or(Error::NoBuffers)?;
        let (local, there) = self.ends(node, operation)?;
        let Operation { direction, len, .. } = *operation;
        let door = self.segment.node(node as usize).door.0.bits();
        if door & EXITED != 0 {
            self.fail(direction, || format!("node {node} has exited"));
            return Ok(());
        }
        if self.is_relaying_to(node) {
            return self.relayed_operation(node, operation, local);
        }
        let part = &self.send.target(node as usize).reach.part;
        if part.get().is_none() && local.arena.is_some() && there.arena.is_some() {
            let _ = part.set(self.part_of(node));
            drop(copy);
            return self.remote(node, operation);
        }
        let part = part.get().and_then(Option::as_ref);
        if let (Some(part), Some(_), Some(at)) = (part, local.arena, there.arena) {
            if self.fences || door & FENCED != 0 {
                fence(Ordering::SeqCst);
                self.ends(node, operation)?;
            }
            let (here, there) = (local.addr as *mut u8, part.at(at as usize));
            let (from, to) = match direction {
                Direction::Write => (here, there),
                Direction::Read => (there, here),
            };
            // SAFETY: both lie in mappings of parts of the arena, which stay, at places that were
            // checked against their parts, and two nodes' parts are not one.
            unsafe { copy_bytes(from, to, len) };
            drop(copy);
            self.count_moved(direction, len);
            return Ok(());
        }
        let Some(pid) = self.process_of(node) else {
            return self.relayed_operation(node, operation, local);
        };
        // A system call is long: this side may as well fence for itself.
        fence(Ordering::SeqCst);
        let ends = self.ends(node, operation)?;
        self.by_kernel(node, pid, direction, ends, len);
        Ok(())
    }

    #[cold]
    fn relayed_operation(&self, node: u32, operation: &Operation, local: Place) -> Result<()> {
        let Operation { sending, direction, remote, len, .. } = *operation;
        if sending {
            return Err(Error::NoBuffers);
        }
        self.relay_operation(node, direction, local.addr as usize, remote, len)
    }

    /// The own regions, if there were any.
    pub(super) fn own_regions(&self) -> Option<&Table> {
        self.remote.own.get().map(|own| &**own)
    }

    /// Before anything of it is looked at that is to be copied.
    #[cold]
    fn part_of(&self, node: u32) -> Option<Part> {
        self.shared(node).access.note_copier(self.own as usize);
        let map = self.segment.arena()?.map(node as usize)?;
        Some(Part::new(map, self.arena()?, self.own_regions()?))
    }

    /// Any other memory.
    fn by_kernel(
        &self,
        node: u32,
        pid: i32,
        direction: Direction,
        (local, there): (Place, Place),
        len: usize,
    ) {
        let (here, there) = (local.addr as usize, there.addr as usize);
        let done = match direction {
            Direction::Write => copy_to(pid, here, there, len),
            // SAFETY: the caller has locked these bytes, and asks for them to be written.
            Direction::Read => unsafe { copy_from(pid, here, there, len) },
        };
        match done {
            Ok(()) => self.count_moved(direction, len),
            Err(error) => self.fail(direction, || format!("memory of node {node}: {error}")),
        }
    }

    /// The process of `node`, if its memory may be copied. Asked once for each process: what it
    /// says of itself may be wrong, so the word must be where it says; and it is then written
    /// back, since one call may be denied and the other not.
    fn process_of(&self, node: u32) -> Option<i32> {
        let access = &self.shared(node).access;
        let pid = i32::try_from(access.pid.load(Ordering::Acquire)).ok().filter(|&pid| pid > 0)?;
        let probed = &self.remote.probed[node as usize];
        if probed.get() == pid as u64 {
            return Some(pid);
        }
        if probed.get() == pid as u64 | REFUSED {
            return None;
        }
        access.note_copier(self.own as usize);
        let at = access.probe.load(Ordering::Relaxed) as usize;
        let word = access.word.load(Ordering::Relaxed);
        let mut found = 0u64;
        let here = (&raw mut found).addr();
        // SAFETY: `found` has these 8 bytes, and is read afterwards only.
        let read = unsafe { copy_from(pid, here, at, 8) };
        // SAFETY: a local variable; volatile because the kernel has written to it.
        let found = unsafe { (&raw const found).read_volatile() };
        let why = match read {
            Ok(()) if found != word || word == 0 => Err("is not the process it says".to_string()),
            Ok(()) => copy_to(pid, here, at, 8).map_err(|error| format!("refuses writes: {error}")),
            Err(error) => Err(format!("refuses reads: {error}")),
        };
        probed.set(pid as u64 | if why.is_ok() { 0 } else { REFUSED });
        debug::say(debug::INFO, || match &why {
            Ok(()) => format!("shmem: memory of node {node} is copied by process_vm_writev"),
            Err(why) => format!("shmem: process {pid} of node {node} {why}; it has to help"),
        });
        why.is_ok().then_some(pid)
    }

    #[inline]
    pub(super) fn count_moved(&self, direction: Direction, len: usize) {
        let counters = &self.record().send.0;
        if is_alone() {
            counters.count_moved(direction, len);
        } else {
            counters.moved[direction as usize].fetch_add(len as u64, Ordering::Relaxed);
        }
    }

    #[cold]
    pub(super) fn fail(&self, direction: Direction, why: impl FnOnce() -> String) {
        self.remote.failed[direction as usize].fetch_add(1, Ordering::AcqRel);
        debug::say(debug::ERROR, || {
            let what = match direction {
                Direction::Write => "write",
                Direction::Read => "read",
            };
            format!("shmem: a remote {what} has failed: {}", why())
        });
    }

    pub(crate) fn is_remote_done(&self, direction: Direction) -> Result<()> {
        if self.relay_is_used() {
            self.relay_progress();
        }
        let failed = &self.remote.failed[direction as usize];
        let any = failed.load(Ordering::Relaxed) != 0 && failed.swap(0, Ordering::AcqRel) != 0;
        if any {
            return Err(Error::Io);
        }
        if self.relayed(direction) != 0 { Err(Error::Busy) } else { Ok(()) }
    }
}

/// Copies; an aligned word in one piece.
///
/// # Safety
/// `len` bytes are mapped at both places, which do not overlap.
#[inline]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller says.
    unsafe {
        if len == WORD && copy_word(from, to) {
            return;
        }
        long::copy(from, to, len);
    }
    // A long copy may have been written past the caches.
    fence(Ordering::Release);
}
