//! Information about a process and its threads that is read without stopping them.

use std::os::unix::fs::FileExt;

use nix::errno::Errno;

use super::attach::refusal;
use super::error::{AttachError, TraceError};
use super::process::checked_buffer;
use super::procfs::{self, Mapping, ThreadStat};
use super::{Pid, Tid, memory};

/// The names of PM's shared memory in the memory map.
const SHARED_REGION_NAMES: [&str; 2] =
    ["/memfd:score-pm (deleted)", "/memfd:score-pm-arena (deleted)"];
/// The system calls that wait for a futex: futex, futex_waitv and futex_wait.
const FUTEX_CALLS: [i64; 3] = [libc::SYS_futex, 449, 455];

/// The first address, and the first address after the range. Both are 0 if the range is empty.
pub type AddressRange = (u64, u64);

/// The memory ranges of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessData {
    /// The shared memory of PM.
    pub shared: AddressRange,
    /// The heap.
    pub heap: AddressRange,
    /// The current end of the heap. The kernel shows only the end of its last page.
    pub heap_break: u64,
    /// The lowest and the highest mapping by mmap(2).
    pub mapped: AddressRange,
}

/// The state of a thread in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadState {
    /// The thread runs, or waits for a processor.
    Run,
    /// The thread sleeps in a system call.
    Sleep,
    /// The thread waits for a futex.
    FutexWait,
}

/// Information about a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadData {
    /// The core on which the thread runs or last ran, given by the number of the core's first
    /// processor.
    pub core: u32,
    /// The processor within the core.
    pub thread_in_core: u32,
    /// Its state.
    pub state: ThreadState,
    /// The page without access below its stack.
    pub guard: AddressRange,
    /// The start of its stack: the highest address.
    pub stack_start: u64,
    /// Its stack pointer. 0 if the thread runs.
    pub stack_pointer: u64,
}

/// A process that is read without being traced, so that it never stops.
#[derive(Debug)]
pub struct Reader {
    pid: Pid,
    /// The memory of the program that the process executed at [`Reader::open`].
    memory: std::fs::File,
}

impl Reader {
    /// Opens a process.
    ///
    /// # Errors
    /// Returns the reason if access is refused.
    pub fn open(pid: Pid) -> Result<Self, AttachError> {
        let result = std::fs::File::open(format!("/proc/{pid}/mem"));
        let memory = result.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => AttachError::NoProcess(pid),
            _ => refusal(pid, Errno::from_raw(error.raw_os_error().unwrap_or(libc::EPERM))),
        })?;
        Ok(Self { pid, memory })
    }

    /// Reads memory. Reads all bytes or fails.
    ///
    /// # Errors
    /// Returns `Length` or `Address`.
    pub fn read_memory(&self, address: u64, length: usize) -> Result<Vec<u8>, TraceError> {
        let mut bytes = checked_buffer(length)?;
        if self.memory.read_exact_at(&mut bytes, address).is_ok()
            || memory::read_raw(self.pid, address, &mut bytes)
        {
            return Ok(bytes);
        }
        Err(TraceError::Address(address))
    }
}

/// Reads the data of a process.
///
/// # Errors
/// Returns `NoProcess`.
pub fn process_data(pid: Pid) -> Result<ProcessData, TraceError> {
    let map = procfs::memory_map(pid).filter(|map| !map.is_empty());
    let map = map.ok_or(TraceError::NoProcess(pid))?;
    let stat = ThreadStat::read(pid, pid).ok_or(TraceError::NoProcess(pid))?;
    Ok(data_of(&map, &stat))
}

fn span<'a>(mappings: impl Iterator<Item = &'a Mapping>) -> AddressRange {
    mappings.fold((0, 0), |(start, end), mapping| match end {
        0 => (mapping.start, mapping.end),
        _ => (start.min(mapping.start), end.max(mapping.end)),
    })
}

fn data_of(map: &[Mapping], stat: &ThreadStat) -> ProcessData {
    let is_shared = |mapping: &&Mapping| SHARED_REGION_NAMES.contains(&mapping.name.as_str());
    let heap = span(map.iter().filter(|mapping| mapping.name == "[heap]"));
    // The kernel places mappings between the heap and the stack of the first thread.
    let floor = heap.1.max(stat.heap_start);
    let is_mapped = |mapping: &&Mapping| {
        mapping.start >= floor && mapping.end <= stat.stack_start && mapping.name != "[stack]"
    };
    let heap_end = if heap.1 == 0 { stat.heap_start } else { heap.1 };
    ProcessData {
        shared: span(map.iter().filter(is_shared)),
        heap: (stat.heap_start, heap_end),
        heap_break: heap_end,
        mapped: span(map.iter().filter(is_mapped)),
    }
}

/// Reads the data of a thread. `stack_pointer` is known if the thread is stopped.
///
/// # Errors
/// Returns `NoThread`.
pub fn thread_data(
    pid: Pid,
    tid: Tid,
    stack_pointer: Option<u64>,
) -> Result<ThreadData, TraceError> {
    let stat = ThreadStat::read(pid, tid).ok_or(TraceError::NoThread(tid))?;
    let call = procfs::blocking_call(pid, tid);
    let state = match call {
        Some((number, _)) if FUTEX_CALLS.contains(&number) => ThreadState::FutexWait,
        Some((0.., _)) => ThreadState::Sleep,
        _ if stat.state == b'D' => ThreadState::Sleep,
        _ => ThreadState::Run,
    };
    let stack_pointer = stack_pointer.or(call.map(|(_, pointer)| pointer)).unwrap_or(0);
    let map = procfs::memory_map(pid).ok_or(TraceError::NoThread(tid))?;
    let (guard, stack_start) = stack_of(&map, &stat, stack_pointer, tid == pid);
    let (core, thread_in_core) = procfs::core_of(stat.processor);
    Ok(ThreadData { core, thread_in_core, state, guard, stack_start, stack_pointer })
}

/// The guard page and the start of the stack that contains the pointer.
fn stack_of(
    map: &[Mapping],
    stat: &ThreadStat,
    pointer: u64,
    is_first: bool,
) -> (AddressRange, u64) {
    if is_first {
        return ((0, 0), stat.stack_start);
    }
    let contains = |mapping: &Mapping| mapping.start <= pointer && pointer < mapping.end;
    let Some(index) = map.iter().position(contains) else { return ((0, 0), 0) };
    let stack = &map[index];
    let below = index.checked_sub(1).map(|index| &map[index]);
    let guard = below.filter(|below| !below.is_accessible && below.end == stack.start);
    (guard.map_or((0, 0), |guard| (guard.start, guard.end)), stack.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_found_in_the_memory_map() {
        let mapping = |start, end, name: &str| Mapping {
            start,
            end,
            is_accessible: name != "guard",
            name: name.into(),
            ..Mapping::default()
        };
        let map = [
            mapping(0x100, 0x200, "/bin/program"),
            mapping(0x300, 0x400, "[heap]"),
            mapping(0x500, 0x600, "/memfd:score-pm (deleted)"),
            mapping(0x600, 0x610, "guard"),
            mapping(0x610, 0x700, ""),
            mapping(0x800, 0x900, "[stack]"),
            mapping(0xa00, 0xb00, "[vdso]"),
        ];
        let stat = ThreadStat { heap_start: 0x300, stack_start: 0x880, ..ThreadStat::default() };
        let data = data_of(&map, &stat);
        assert_eq!(data.shared, (0x500, 0x600));
        assert_eq!((data.heap, data.heap_break), ((0x300, 0x400), 0x400));
        assert_eq!(data.mapped, (0x500, 0x700));
        assert_eq!(stack_of(&map, &stat, 0x650, false), ((0x600, 0x610), 0x700));
        assert_eq!(stack_of(&map, &stat, 0x650, true), ((0, 0), 0x880));
        assert_eq!(stack_of(&map, &stat, 0x750, false), ((0, 0), 0));
    }
}
