//! Tests with a process of the job that writes arbitrary data into the region tables. Its
//! peers get errors, but no byte outside of locked memory is accessed.

use super::memory::*;
use crate::testbed::hostile_segment::Segment;
use crate::testbed::*;
use score_pm::*;
use std::sync::atomic::Ordering;

const ARENA_PART: u64 = 64 << 30;

// Promise (messages): False entries in the table of regions and about a process are errors, and
// give access to no byte outside locked memory.
#[test]
fn a_corrupt_region_table_permits_no_access() {
    let _ids = share_region_ids();
    for kind in SHARED {
        let bed = TestBed::new(kind, 2);
        let segment = Segment::steal(&bed);
        let (a, b) = (
            Memory::new(&bed, 0, Kind::Allocated, 8192),
            Memory::new(&bed, 1, Kind::Allocated, 8192),
        );
        a.fill(1);
        b.fill(2);
        // An entry of the table consists of the state, the address, the length, and the offset in
        // the arena.
        let entry = segment.find(b.at.addr() as u64);
        let original = segment.word(entry + 2).load(Ordering::Relaxed);
        let end = &bed.contexts[0];
        segment.word(entry + 1).store(u64::MAX, Ordering::Relaxed);
        for arena_offset in [u64::MAX, u64::MAX - 4096, ARENA_PART + 1, ARENA_PART - 8, 1 << 63] {
            segment.word(entry + 2).store(arena_offset, Ordering::Relaxed);
            assert_eq!(
                end.write(1, b.handle, a.handle, 4096),
                Err(Error::Invalid),
                "{arena_offset:#x}"
            );
            assert_eq!(
                end.read(1, b.handle, a.handle, 4096),
                Err(Error::Invalid),
                "{arena_offset:#x}"
            );
        }
        segment.word(entry + 2).store(original, Ordering::Relaxed);
        let beyond = b.handle + (ARENA_PART - 8);
        assert_eq!(end.write(1, beyond, a.handle, 4096), Err(Error::Invalid));
        segment.word(entry - 1).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(end.write(1, b.handle, a.handle, 8), Err(Error::Invalid));
        b.is_unchanged_except(2, 0..0);
        a.is_unchanged_except(1, 0..0);
    }
}

// Promise of `a_corrupt_region_table_permits_no_access`.
#[test]
fn memory_of_a_process_whose_probe_word_differs_is_not_written() {
    let _ids = share_region_ids();
    let bed = TestBed::new("composite", 2);
    let segment = Segment::steal(&bed);
    let (a, b) = (Memory::new(&bed, 0, Kind::Mapped, 64), Memory::new(&bed, 1, Kind::Mapped, 64));
    b.fill(2);
    // The record of a node consists of the process id, the address of the probe word, and its
    // value.
    let pid = u64::from(std::process::id());
    let process_records: Vec<_> = (0..segment.words() - 2)
        .filter(|&index| segment.word(index).load(Ordering::Relaxed) == pid)
        .collect();
    for &record in &process_records {
        segment.word(record + 2).fetch_xor(1, Ordering::Relaxed);
    }
    assert!(!process_records.is_empty());
    for call in [Context::write, Context::read] {
        assert_eq!(call(&bed.contexts[0], 1, b.handle, a.handle, 64), Err(Error::NoSys));
    }
    b.is_unchanged_except(2, 0..0);
}
