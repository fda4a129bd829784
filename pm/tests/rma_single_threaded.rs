//! Tests of remote memory access to single words in a process that never had a second thread. Such
//! a process uses the fast path of the composite, which must report the same errors as the slow
//! path. These tests do not use libtest, which runs tests in threads.

// UNSAFETY: reads a variable of the C library.
#![expect(unsafe_code)]
#![allow(missing_docs)]

#[allow(dead_code, reason = "the program `pm` uses the rest")]
#[path = "pm/remote/memory.rs"]
mod memory;
#[allow(dead_code, reason = "the program `pm` uses the rest")]
#[path = "pm/testbed/mod.rs"]
mod testbed;

use memory::{Kind, Memory};
use score_pm::*;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use testbed::hostile_segment::Segment;
use testbed::*;

const ARENA_PART: u64 = 64 << 30;

unsafe extern "C" {
    static __libc_single_threaded: AtomicU8;
}

fn main() {
    let tests: [(&str, fn()); 5] = [
        ("a_word_goes_both_ways_and_is_counted", check_words),
        ("a_handle_that_is_not_locked_or_does_not_reach_is_einval", check_handles),
        ("a_corrupt_region_table_permits_no_access", check_corrupt_table),
        ("unlocking_does_not_wait_for_a_word_that_was_copied_or_refused", check_unlock),
        ("a_word_to_an_exited_node_is_eio", check_exited_node),
    ];
    for (name, test) in tests {
        println!("test {name} ...");
        test();
    }
    // SAFETY: this byte of the C library lives as long as the process, and is loaded atomically.
    let single_threaded = unsafe { __libc_single_threaded.load(Ordering::Relaxed) } != 0;
    assert!(single_threaded || cfg!(sanitized), "this process has had threads");
    println!("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}

/// Locks an area on each of two nodes, and copies a word between them, so that the fast path is set
/// up.
fn new_areas(bed: &TestBed) -> [Memory<'_>; 2] {
    let areas = [0, 1].map(|node| Memory::new(bed, node, Kind::Allocated, 4096));
    for call in [Context::write, Context::read] {
        call(&bed.contexts[0], 1, areas[1].handle, areas[0].handle, 8).unwrap();
    }
    areas[0].fill(1);
    areas[1].fill(100);
    areas
}

// Promise (messages): Remote memory on shmem, ethernet and composites, with and without loss: all
// bytes arrive between memory of every kind, and no other byte changes; wrong handles are refused;
// memory that no longer exists is EIO, once.
fn check_words() {
    let bed = TestBed::new("composite", 2);
    let [a, b] = new_areas(&bed);
    let end = &bed.contexts[0];
    // The addresses are aligned on both sides, on one side, or on none. The lengths are one word
    // and others.
    for (len, from, to) in [8, 1, 2, 4, 7, 16]
        .into_iter()
        .flat_map(|len| [(len, 8, 64), (len, 9, 64), (len, 8, 65), (len, 4093, 4094)])
        .filter(|(len, _, to)| to + len <= 4096)
        .chain([(8, 0, 4088), (8, 4088, 0)])
    {
        a.fill(3);
        b.fill(100);
        let before = bed.counters(0);
        end.write(1, b.handle + to as u64, a.handle + from as u64, len).unwrap();
        assert_eq!(b.bytes()[to..to + len], a.bytes()[from..from + len], "{len} {from} {to}");
        b.is_unchanged_except(100, to..to + len);
        a.fill(50);
        end.read(1, b.handle + to as u64, a.handle + from as u64, len).unwrap();
        assert_eq!(a.bytes()[from..from + len], b.bytes()[to..to + len], "{len} {from} {to}");
        a.is_unchanged_except(50, from..from + len);
        let after = bed.counters(0);
        assert_eq!(after.sent_bytes - before.sent_bytes, len as u64);
        assert_eq!(after.received_bytes - before.received_bytes, len as u64);
    }
    assert_eq!((end.is_write_done(), end.is_read_done()), (Ok(()), Ok(())));
}

// Promise of `check_words`.
fn check_handles() {
    let bed = TestBed::new("composite", 3);
    let [a, b] = new_areas(&bed);
    let bits = b.handle.bits();
    let zero = AddrHandle::from_bits(0);
    let altered = |mask: u64| AddrHandle::from_bits(bits ^ mask);
    for (node, remote, local, len) in [
        (1, zero, a.handle, 8),
        (1, b.handle, zero, 8),
        (1, b.handle + 4089, a.handle, 8),
        (1, b.handle + 4096, a.handle, 8),
        (1, b.handle, a.handle + 4089, 8),
        (1, b.handle + ((1 << 40) - 8), a.handle, 8),
        (1, b.handle, a.handle + ((1 << 40) - 8), 8),
        (1, b.handle, a.handle, 0),
        (1, altered(1 << 63), a.handle, 8),
        (1, altered(1 << 40), a.handle, 8),
        (1, AddrHandle::from_bits(u64::MAX), a.handle, 8),
        (0, b.handle, a.handle, 8),
        (2, b.handle, a.handle, 8),
        (3, b.handle, a.handle, 8),
        (u32::MAX, b.handle, a.handle, 8),
    ] {
        for call in [Context::write, Context::read] {
            let result = call(&bed.contexts[0], node, remote, local, len);
            assert_eq!(result, Err(Error::Invalid), "{node} {remote:?} {local:?} {len}");
        }
    }
    bed.contexts[1].unlock_memory(None, b.at.addr(), 4096).unwrap();
    for call in [Context::write, Context::read] {
        assert_eq!(call(&bed.contexts[0], 1, b.handle, a.handle, 8), Err(Error::Invalid));
    }
    a.is_unchanged_except(1, 0..0);
    b.is_unchanged_except(100, 0..0);
}

// Promise of `check_words`.
fn check_corrupt_table() {
    let bed = TestBed::new("composite", 2);
    let segment = Segment::steal(&bed);
    let [a, b] = new_areas(&bed);
    // An entry of the table consists of the state, the address, the length, and the offset in the
    // arena.
    let entry = segment.find(b.at.addr() as u64);
    segment.word(entry + 1).store(u64::MAX, Ordering::Relaxed);
    for arena_offset in
        [u64::MAX, u64::MAX - 7, u64::MAX - 4096, ARENA_PART, ARENA_PART - 7, 1 << 63]
    {
        segment.word(entry + 2).store(arena_offset, Ordering::Relaxed);
        for (call, offset) in [(Context::write as fn(&_, _, _, _, _) -> _, 0), (Context::read, 1)] {
            let result = call(&bed.contexts[0], 1, b.handle + offset, a.handle, 8);
            assert_eq!(result, Err(Error::Invalid), "{arena_offset:#x} {offset}");
        }
    }
    a.is_unchanged_except(1, 0..0);
    b.is_unchanged_except(100, 0..0);
}

/// A word that was copied or refused is no longer in a hazard slot.
// Promise of `check_words`.
fn check_unlock() {
    for offset in [0, 4089] {
        let bed = TestBed::new("composite", 2);
        let [a, b] = new_areas(&bed);
        let result = bed.contexts[0].write(1, b.handle + offset, a.handle, 8);
        assert_eq!(result.is_ok(), offset == 0);
        let begin = Instant::now();
        bed.contexts[1].unlock_memory(None, b.at.addr(), 4096).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5), "{offset}: {:?}", begin.elapsed());
    }
}

// Promise of `check_words`.
fn check_exited_node() {
    let bed = TestBed::new("composite", 2);
    let [a, b] = new_areas(&bed);
    bed.mark_exited(1);
    assert_eq!(bed.contexts[0].write(1, b.handle, a.handle, 8), Ok(()));
    assert_eq!(bed.contexts[0].is_write_done(), Err(Error::Io));
    assert_eq!(bed.contexts[0].read(1, b.handle, a.handle, 8), Ok(()));
    assert_eq!(bed.contexts[0].is_read_done(), Err(Error::Io));
    a.is_unchanged_except(1, 0..0);
    b.is_unchanged_except(100, 0..0);
}
