//! Access to memory of another process by address.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use super::procfs::{self, Mapping};
use super::{Pid, sys};

/// The bytes of the instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The most bytes of code that are searched for the instruction `syscall`.
const MAX_SEARCHED_BYTES: usize = 4 << 20;

/// Reads memory. Reads all bytes or fails. Also reads pages that the program itself cannot read, if
/// the kernel permits this.
pub fn read_raw(pid: Pid, address: u64, buffer: &mut [u8]) -> bool {
    if sys::read_memory(pid, address, buffer).is_ok_and(|count| count == buffer.len()) {
        return true;
    }
    File::open(format!("/proc/{pid}/mem"))
        .is_ok_and(|file| file.read_exact_at(buffer, address).is_ok())
}

/// Writes memory, even if the program itself cannot write it (private pages are copied). On
/// failure, a part may have been written.
pub fn write_raw(pid: Pid, address: u64, bytes: &[u8]) -> bool {
    if sys::write_memory(pid, address, bytes).is_ok_and(|count| count == bytes.len()) {
        return true;
    }
    let file = OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"));
    file.is_ok_and(|file| file.write_all_at(bytes, address).is_ok())
}

/// The kind of a range according to the memory map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeKind {
    /// A part of it is not mapped.
    Unmapped,
    /// A part of it is shared with other processes (MAP_SHARED).
    Shared,
    /// All of it is private memory.
    Private,
}

/// Looks up a range in a memory map, which must be sorted by address.
pub fn range_kind(map: &[Mapping], address: u64, length: u64) -> RangeKind {
    let Some(end) = address.checked_add(length) else { return RangeKind::Unmapped };
    let mut reached = address;
    let mut kind = RangeKind::Private;
    for mapping in map.iter().filter(|mapping| mapping.end > address && mapping.start < end) {
        if mapping.start > reached {
            return RangeKind::Unmapped;
        }
        if mapping.is_shared {
            kind = RangeKind::Shared;
        }
        reached = mapping.end;
    }
    if reached >= end { kind } else { RangeKind::Unmapped }
}

/// Finds a `syscall` instruction, first in the vDSO, then in other code.
pub fn find_syscall_instruction(pid: Pid) -> Option<u64> {
    let map = procfs::memory_map(pid)?;
    let mut code: Vec<&Mapping> = map.iter().filter(|mapping| mapping.is_executable).collect();
    code.sort_by_key(|mapping| mapping.name != "[vdso]");
    let mut budget = MAX_SEARCHED_BYTES;
    for mapping in code {
        let length = usize::try_from(mapping.end - mapping.start).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length.min(budget)];
        // The legacy vsyscall page cannot be read, and cannot execute a `syscall`.
        if !sys::read_memory(pid, mapping.start, &mut bytes).is_ok_and(|count| count == bytes.len())
        {
            continue;
        }
        if let Some(offset) = bytes.windows(2).position(|pair| pair == SYSCALL) {
            return Some(mapping.start + offset as u64);
        }
        budget -= bytes.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_looked_up_across_mappings_and_holes() {
        let mapping =
            |start, end, is_shared| Mapping { start, end, is_shared, ..Mapping::default() };
        let map = [mapping(10, 20, false), mapping(20, 30, true), mapping(40, 50, false)];
        for (address, length, kind) in [
            (10, 10, RangeKind::Private),
            (12, 9, RangeKind::Shared),
            (20, 10, RangeKind::Shared),
            (5, 6, RangeKind::Unmapped),
            (25, 20, RangeKind::Unmapped),
            (40, 11, RangeKind::Unmapped),
            (u64::MAX, 2, RangeKind::Unmapped),
        ] {
            assert_eq!(range_kind(&map, address, length), kind, "{address} {length}");
        }
    }

    #[test]
    fn own_memory_is_read_and_the_vdso_has_a_system_call() {
        let pid = std::process::id() as Pid;
        let value = 0x1122_3344_5566_7788_u64;
        let mut bytes = [0; 8];
        assert!(read_raw(pid, &raw const value as u64, &mut bytes));
        assert_eq!(u64::from_ne_bytes(bytes), value);
        assert!(!read_raw(pid, 8, &mut bytes));
        let address = find_syscall_instruction(pid).unwrap();
        let mut pair = [0; 2];
        assert!(read_raw(pid, address, &mut pair) && pair == SYSCALL);
    }
}
