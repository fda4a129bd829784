//! Remote memory access. The calling process makes one copy before the call returns. If both
//! regions come from PM's own allocator, the process copies between memory that both nodes have
//! mapped. Otherwise the kernel copies between the processes. If the kernel refuses (seccomp, Yama,
//! user namespaces), only memory of PM's own allocator can be accessed.

// UNSAFETY: copies between addresses in mappings, and lets the kernel write to the caller's memory.
#![expect(unsafe_code)]

use super::peer_memory::{PeerArena, PeerMemory};
use super::rma_fast_path::copy_word;
use super::{OPTIONS, ShmemEndpoint};
use crate::config::RMA_MTU;
use crate::debug;
use crate::device::{Endpoint, RmaInterface};
use crate::error::{Error, PmResult};
use crate::membarrier;
use crate::receiver_state::{EXITED, NEEDS_FENCE};
use crate::rma::{
    Arena, ArenaFile, Direction, FailedOperations, Region, RegionId, RemoteStatus, ResolvedAddress,
    RmaOperation, Table, WORD, allow, copy_from, copy_to, find, new_table, nontemporal_copy,
};
use crate::segment::layout::RegionTable;
use crate::sync::{AtomicU32, AtomicU64, Ordering, SingleWriterU64, fence};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A word that peers read to check that they reach the right process.
static PROBE_WORD: AtomicU64 = AtomicU64::new(0);

/// The longest time that a copy of another process may delay an unlock of memory.
const COPY_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The bit that is set if the kernel may not copy to or from a peer's process. It is stored
/// together with the process id.
const CMA_DENIED: u64 = 1 << 32;

pub(super) struct RmaState {
    /// The regions of this process. Handles of this process are resolved here and not in memory
    /// that other processes can write.
    local_regions: OnceLock<Box<Table>>,
    arena: OnceLock<Option<Arc<Arena>>>,
    /// For each node, 0 or the process id that was probed, with or without [`CMA_DENIED`].
    probed_processes: Box<[SingleWriterU64]>,
    /// The number of failed operations that were not yet reported, by direction.
    failed_counts: [AtomicU32; 2],
    /// The numbers of failed operations for `remote_status`, by node.
    failed_operations: Mutex<BTreeMap<u32, FailedOperations>>,
    /// The process that created the context: the common ancestor of the job's processes. 0:
    /// unknown.
    owner_pid: i32,
}

impl RmaState {
    pub(super) fn new(nodes: usize, owner_pid: i32) -> RmaState {
        RmaState {
            local_regions: OnceLock::new(),
            arena: OnceLock::new(),
            probed_processes: (0..nodes).map(|_| SingleWriterU64::default()).collect(),
            failed_counts: Default::default(),
            failed_operations: Mutex::default(),
            owner_pid,
        }
    }
}

impl RmaInterface for ShmemEndpoint {
    fn options(&self) -> u64 {
        OPTIONS
    }

    fn publish_region(&self, region: &Region) -> PmResult<()> {
        let local_regions = self.rma.local_regions.get_or_init(|| {
            self.publish_process();
            new_table()
        });
        let arena_offset = self.arena().and_then(|arena| arena.offset(region.addr, region.len));
        let slot = region.id.slot();
        local_regions[slot].publish(region, arena_offset);
        self.peer_regions(self.self_node).entries[slot].publish(region, arena_offset);
        Ok(())
    }

    fn withdraw_region(&self, number: RegionId) {
        let Some(local_regions) = self.rma.local_regions.get() else { return };
        let in_arena = local_regions[number.slot()].is_in_arena();
        local_regions[number.slot()].withdraw();
        self.peer_regions(self.self_node).entries[number.slot()].withdraw();
        self.wait_for_copiers(number, in_arena);
    }

    fn start_rma(&self, node: u32, operation: &RmaOperation) -> PmResult<()> {
        let number = operation.remote.region_bits();
        let copying = &self.record().copy_hazards;
        let copied_node = node.wrapping_add(1);
        let is_serialized = operation.is_serialized;
        let copy = copying.begin(copied_node, number, is_serialized).ok_or(Error::NoBuffers)?;
        let (local, remote_region) = self.resolve_handles(node, operation)?;
        let RmaOperation { direction, len, .. } = *operation;
        let receiver_bits = self.segment.node(node as usize).receiver_state.0.bits();
        if receiver_bits & EXITED != 0 {
            self.fail_on_exited_node(node, operation);
            return Ok(());
        }
        let peer_arena = &self.peer_memory(node).peer_arena;
        if peer_arena.get().is_none()
            && local.arena_offset.is_some()
            && remote_region.arena_offset.is_some()
        {
            let _ = peer_arena.set(self.map_peer_arena(node));
            drop(copy);
            return self.start_rma(node, operation);
        }
        let peer_arena = peer_arena.get().and_then(Option::as_ref);
        if let (Some(peer_arena), Some(_), Some(remote_offset)) =
            (peer_arena, local.arena_offset, remote_region.arena_offset)
        {
            if self.must_fence || receiver_bits & NEEDS_FENCE != 0 {
                fence(Ordering::SeqCst);
                self.resolve_handles(node, operation)?;
            }
            let (local_ptr, remote_ptr) =
                (local.addr as *mut u8, peer_arena.remote_ptr(remote_offset as usize));
            let (from, to) = match direction {
                Direction::Write => (local_ptr, remote_ptr),
                Direction::Read => (remote_ptr, local_ptr),
            };
            // SAFETY: both are inside mappings of parts of the arena, which are never unmapped, at
            // offsets that were checked against their parts. The parts of two nodes do not overlap.
            unsafe { copy_bytes(from, to, len) };
            drop(copy);
            self.count_rma_bytes(direction, len, is_serialized);
            self.peer_memory(node).count_started(is_serialized);
            return Ok(());
        }
        let pid = self.copyable_process_of(node).ok_or(Error::NoSys)?;
        // The system call takes much longer than a fence. Therefore this side always fences, and
        // `wait_for_copiers` issues no membarrier for memory outside the arena.
        fence(Ordering::SeqCst);
        let regions = self.resolve_handles(node, operation)?;
        self.copy_by_kernel(node, pid, operation, regions);
        self.peer_memory(node).count_started(is_serialized);
        Ok(())
    }

    fn is_remote_done(&self, direction: Direction) -> PmResult<()> {
        let failed = &self.rma.failed_counts[direction as usize];
        let has_failed =
            failed.load(Ordering::Relaxed) != 0 && failed.swap(0, Ordering::AcqRel) != 0;
        if has_failed { Err(Error::Io) } else { Ok(()) }
    }

    fn remote_status(&self, node: u32) -> PmResult<RemoteStatus> {
        self.check_peer(node)?;
        // Every operation has ended when its call returns.
        let started = self.peer_memory(node).started_count();
        let mut all_failed = self.failed_operations();
        let Some(failed) = all_failed.get_mut(&node) else {
            return Ok(RemoteStatus { started, completed: started, has_failed: false });
        };
        let status = failed.report(started, started);
        if failed.is_empty() {
            all_failed.remove(&node);
        }
        Ok(status)
    }

    fn arena(&self) -> Option<&Arc<Arena>> {
        let make =
            || Arena::of(self.segment.arena()?, self.segment.nonce(), self.self_node as usize);
        self.rma.arena.get_or_init(make).as_ref()
    }
}

impl ShmemEndpoint {
    pub(super) fn peer_memory(&self, node: u32) -> &PeerMemory {
        &self.send.target(node as usize).rma_fast_path
    }

    fn failed_operations(&self) -> MutexGuard<'_, BTreeMap<u32, FailedOperations>> {
        self.rma.failed_operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer_regions(&self, node: u32) -> &RegionTable {
        self.segment.regions(node as usize)
    }

    /// Waits until no process copies into or out of a withdrawn region. If a debugger stops a
    /// process during a copy, the wait ends after [`COPY_DRAIN_TIMEOUT`].
    fn wait_for_copiers(&self, number: RegionId, in_arena: bool) {
        fence(Ordering::SeqCst);
        let copiers: Vec<_> =
            self.peer_regions(self.self_node).access.copiers(self.nodes()).collect();
        if in_arena && !copiers.is_empty() {
            membarrier::issue();
        }
        let wait_began_at = OnceCell::new();
        for node in copiers {
            let record = self.segment.node(node);
            record.copy_hazards.wait(self.self_node + 1, number.bits(), || {
                let is_late =
                    wait_began_at.get_or_init(Instant::now).elapsed() > COPY_DRAIN_TIMEOUT;
                if is_late {
                    debug::log(debug::ERROR, || {
                        let since = format!("memory that was unlocked {COPY_DRAIN_TIMEOUT:?} ago");
                        format!("shmem: node {node} still copies {since}: stopped by a debugger?")
                    });
                }
                is_late || record.receiver_state.0.bits() & EXITED != 0
            });
        }
    }

    /// Publishes this process's id, and the word by which peers check whether they may copy into
    /// it.
    fn publish_process(&self) {
        allow(self.rma.owner_pid);
        if PROBE_WORD.load(Ordering::Relaxed) == 0 {
            let word = crate::segment::new_nonce().map_or(1, |[word, _]| word | 1);
            let _ = PROBE_WORD.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
        }
        let access = &self.peer_regions(self.self_node).access;
        access.probe_addr.store((&raw const PROBE_WORD).addr() as u64, Ordering::Relaxed);
        access.probe_value.store(PROBE_WORD.load(Ordering::Relaxed), Ordering::Relaxed);
        access.pid.store(u64::from(std::process::id()), Ordering::Release);
    }

    /// The local and the remote memory of an operation.
    #[inline]
    fn resolve_handles(
        &self,
        node: u32,
        operation: &RmaOperation,
    ) -> PmResult<(ResolvedAddress, ResolvedAddress)> {
        self.check_peer(node)?;
        let len = operation.len;
        if len == 0 || len > RMA_MTU {
            return Err(Error::Invalid);
        }
        let local_regions = self.rma.local_regions.get().ok_or(Error::Invalid)?;
        let local = find(local_regions, operation.local, len)?;
        let remote_region = find(&self.peer_regions(node).entries, operation.remote, len)?;
        if remote_region.arena_offset.is_some_and(|offset| !ArenaFile::holds(offset, len)) {
            return Err(Error::Invalid);
        }
        Ok((local, remote_region))
    }

    /// Fails an operation on `node`, which has exited.
    #[cold]
    fn fail_on_exited_node(&self, node: u32, operation: &RmaOperation) {
        let number = self.peer_memory(node).next_number();
        let why = || format!("node {node} has exited");
        self.record_failure((node, number), operation.direction, why);
        self.peer_memory(node).count_started(operation.is_serialized);
    }

    /// The regions of this process, if it ever had one.
    fn local_regions(&self) -> Option<&Table> {
        self.rma.local_regions.get().map(|table| &**table)
    }

    /// Maps the peer's part of the arena before the first copy to or from it.
    #[cold]
    fn map_peer_arena(&self, node: u32) -> Option<PeerArena> {
        self.peer_regions(node).access.mark_copier(self.self_node as usize);
        let mapping = self.segment.arena()?.map(node as usize)?;
        Some(PeerArena::new(mapping, self.arena()?, self.local_regions()?))
    }

    /// Copies to or from memory outside the arena.
    fn copy_by_kernel(
        &self,
        node: u32,
        pid: i32,
        &RmaOperation { direction, len, is_serialized, .. }: &RmaOperation,
        (local, remote_region): (ResolvedAddress, ResolvedAddress),
    ) {
        let (local_addr, remote_addr) = (local.addr as usize, remote_region.addr as usize);
        let result = match direction {
            Direction::Write => copy_to(pid, local_addr, remote_addr, len),
            // SAFETY: the caller has locked these bytes and asked for them to be written.
            Direction::Read => unsafe { copy_from(pid, local_addr, remote_addr, len) },
        };
        match result {
            Ok(()) => self.count_rma_bytes(direction, len, is_serialized),
            Err(error) => {
                let number = self.peer_memory(node).next_number();
                let why = || format!("memory of node {node}: {error}");
                self.record_failure((node, number), direction, why);
            }
        }
    }

    /// The process of `node`, if its memory may be copied. Each process is probed once. The process
    /// id that it publishes may be wrong, so its probe word must be at the published address. The
    /// word is then written back, because the kernel may allow one call and deny the other.
    fn copyable_process_of(&self, node: u32) -> Option<i32> {
        let access = &self.peer_regions(node).access;
        let pid = i32::try_from(access.pid.load(Ordering::Acquire)).ok().filter(|&pid| pid > 0)?;
        let probe_result = &self.rma.probed_processes[node as usize];
        if probe_result.get() == pid as u64 {
            return Some(pid);
        }
        if probe_result.get() == pid as u64 | CMA_DENIED {
            return None;
        }
        access.mark_copier(self.self_node as usize);
        let probe_addr = access.probe_addr.load(Ordering::Relaxed) as usize;
        let expected_word = access.probe_value.load(Ordering::Relaxed);
        let mut found_word = 0u64;
        let found_addr = (&raw mut found_word).addr();
        // SAFETY: `found_word` has these 8 bytes and is read only afterwards.
        let read_result = unsafe { copy_from(pid, found_addr, probe_addr, 8) };
        // SAFETY: a local variable; volatile because the kernel has written to it.
        let found_word = unsafe { (&raw const found_word).read_volatile() };
        let permission = match read_result {
            Ok(()) if found_word != expected_word || expected_word == 0 => {
                Err("is not the process that it claims to be".to_string())
            }
            Ok(()) => copy_to(pid, found_addr, probe_addr, 8)
                .map_err(|error| format!("refuses writes: {error}")),
            Err(error) => Err(format!("refuses reads: {error}")),
        };
        probe_result.set(pid as u64 | if permission.is_ok() { 0 } else { CMA_DENIED });
        match &permission {
            Ok(()) => debug::log(debug::INFO, || {
                format!("shmem: memory of node {node} is copied by process_vm_writev")
            }),
            Err(why) => debug::log(debug::ERROR, || {
                format!(
                    "shmem: process {pid} of node {node} {why}; use pmAlloc, or allow \
                     process_vm_writev (Yama, seccomp)"
                )
            }),
        }
        permission.is_ok().then_some(pid)
    }

    #[inline]
    fn count_rma_bytes(&self, direction: Direction, len: usize, is_serialized: bool) {
        let counters = &self.record().send.0;
        if is_serialized {
            counters.count_rma_bytes(direction, len);
        } else {
            counters.rma_bytes[direction as usize].fetch_add(len as u64, Ordering::Relaxed);
        }
    }

    #[cold]
    fn record_failure(
        &self,
        (node, number): (u32, u64),
        direction: Direction,
        why: impl FnOnce() -> String,
    ) {
        self.rma.failed_counts[direction as usize].fetch_add(1, Ordering::AcqRel);
        self.failed_operations().entry(node).or_default().push(number);
        debug::log(debug::ERROR, || {
            let verb = match direction {
                Direction::Write => "write",
                Direction::Read => "read",
            };
            format!("shmem: a remote {verb} has failed: {}", why())
        });
    }
}

/// Copies `len` bytes. Copies an aligned word as one unit.
///
/// # Safety
/// `len` bytes are mapped at both addresses, and the two ranges do not overlap.
#[inline]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        if len == WORD && copy_word(from, to) {
            return;
        }
        nontemporal_copy::copy(from, to, len);
    }
    // A long copy may have used non-temporal stores.
    fence(Ordering::Release);
}
