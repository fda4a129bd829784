//! Tests of remote memory (manual 3.6) and its return codes, on every device that supports it.

mod hostile;
pub mod memory;
mod numbers;
mod order;

use crate::testbed::*;
use memory::*;
use score_pm::*;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

// Promise of `check_words`.
#[test]
fn bytes_are_written_and_read_between_memory_of_every_kind() {
    on_every_kind_with_regions(2, |bed| {
        for (local_kind, remote_kind) in
            [(Kind::Allocated, Kind::Allocated), (Kind::Allocated, Kind::Mapped)]
                .into_iter()
                .chain([(Kind::Mapped, Kind::Allocated), (Kind::Mapped, Kind::Mapped)])
        {
            for len in [1, 7, 8, 4096, 70_001, (1 << 20) + 3] {
                let a = Memory::new(bed, 0, local_kind, len + 64);
                let b = Memory::new(bed, 1, remote_kind, len + 64);
                a.fill(3);
                b.fill(90);
                let (from, to) = (a.handle + 5, b.handle + 33);
                retry_polling(bed, 0, || bed.contexts[0].write(1, to, from, len));
                done(bed, 0).unwrap();
                assert_eq!(b.bytes()[33..33 + len], a.bytes()[5..5 + len], "{} {len}", bed.kind);
                b.is_unchanged_except(90, 33..33 + len);
                a.fill(50);
                retry_polling(bed, 0, || bed.contexts[0].read(1, to, a.handle + 1, len));
                done(bed, 0).unwrap();
                assert_eq!(a.bytes()[1..1 + len], b.bytes()[33..33 + len]);
                a.is_unchanged_except(50, 1..1 + len);
            }
        }
    });
}

// Promise of `check_words`.
#[test]
fn a_handle_that_is_unlocked_forged_or_does_not_reach_is_einval_at_the_caller() {
    on_every_kind_with_regions(3, |bed| {
        let (a, b) =
            (Memory::new(bed, 0, Kind::Allocated, 4096), Memory::new(bed, 1, Kind::Mapped, 4096));
        a.fill(1);
        b.fill(2);
        let zero = AddrHandle::from_bits(0);
        let bits = b.handle.bits();
        let cases = [
            (1, zero, a.handle, 8),
            (1, b.handle, zero, 8),
            (1, b.handle, b.handle + 4096, 1),
            (1, b.handle + 4089, a.handle, 8),
            (1, b.handle, a.handle + 4089, 8),
            (1, b.handle, a.handle, 0),
            (1, b.handle, a.handle, 4097),
            (1, b.handle, a.handle, RMA_MTU + 1),
            (1, b.handle, a.handle, usize::MAX),
            (1, b.handle + (1 << 39), a.handle, 8),
            (1, AddrHandle::from_bits(bits.wrapping_sub(1)), a.handle, 8),
            (1, AddrHandle::from_bits(bits ^ 1 << 63), a.handle, 8),
            (1, AddrHandle::from_bits(bits ^ 1 << 40), a.handle, 8),
            (1, AddrHandle::from_bits(u64::MAX), a.handle, 8),
            (0, b.handle, a.handle, 8),
            (2, b.handle, a.handle, 8),
            (3, b.handle, a.handle, 8),
            (u32::MAX, b.handle, a.handle, 8),
        ];
        for (node, remote, local, len) in cases {
            let end = &bed.contexts[0];
            for call in [Context::write, Context::read] {
                let result = call(end, node, remote, local, len);
                // Only the target's host can check a handle of another host.
                let at_completion = !SHARED.contains(&bed.kind) && result.is_ok();
                let expected = if at_completion { Err(Error::Io) } else { Err(Error::Invalid) };
                let outcome = if at_completion { done(bed, 0) } else { result };
                assert_eq!(outcome, expected, "{} {node} {len}", bed.kind);
                assert!(!at_completion || local == a.handle && remote != zero, "{node} {len}");
            }
        }
        a.is_unchanged_except(1, 0..0);
        b.is_unchanged_except(2, 0..0);
        assert_eq!(done(bed, 0), Ok(()));
        let (addr, handle) = (b.at, b.handle);
        bed.contexts[1].unlock_memory(None, addr.addr(), 4096).unwrap();
        let refused = |call: PmResult<()>| call.and_then(|()| done(bed, 0)).unwrap_err();
        let expected_error = if SHARED.contains(&bed.kind) { Error::Invalid } else { Error::Io };
        assert_eq!(refused(bed.contexts[0].write(1, handle, a.handle, 8)), expected_error);
        let new_handle = bed.contexts[1].lock_memory(None, addr.addr(), 4096).unwrap();
        assert_ne!(new_handle, handle);
        assert_eq!(refused(bed.contexts[0].read(1, handle, a.handle, 8)), expected_error);
        retry_polling(bed, 0, || bed.contexts[0].read(1, new_handle, a.handle, 8));
        assert_eq!(done(bed, 0), Ok(()));
    });
}

#[test]
fn locks_are_paired_and_wrong_arguments_are_refused() {
    on_every_kind_with_regions(2, |bed| {
        let end = &bed.contexts[0];
        let memory = [0u8; 256];
        let addr = memory.as_ptr().addr();
        let lock = |node, addr, len| end.lock_memory(node, addr, len);
        for (node, addr, len) in [
            (Some(0), addr, 8),
            (Some(2), addr, 8),
            (Some(u32::MAX), addr, 8),
            (None, addr, 0),
            (None, 0, 8),
            (None, addr, usize::MAX),
            (None, addr, (1 << 40) + 1),
        ] {
            assert_eq!(lock(node, addr, len), Err(Error::Invalid), "{node:?} {len}");
        }
        assert_eq!(end.unlock_memory(None, addr, 8), Err(Error::NoEntry));
        assert_eq!(end.unlock_memory(Some(0), addr, 8), Err(Error::Invalid));
        assert_eq!(end.unlock_memory(None, addr, 0), Err(Error::Invalid));
        let first = lock(None, addr, 64).unwrap();
        assert_eq!(lock(Some(1), addr, 64), Ok(first), "the same region has the same handle");
        assert_ne!(lock(None, addr, 65).unwrap(), first, "another region has another");
        assert_eq!(end.unlock_memory(None, addr, 66), Err(Error::NoEntry));
        end.unlock_memory(None, addr, 64).unwrap();
        end.unlock_memory(Some(1), addr, 64).unwrap();
        assert_eq!(end.unlock_memory(None, addr, 64), Err(Error::NoEntry));
        end.unlock_memory(None, addr, 65).unwrap();
    });
}

#[test]
fn more_regions_than_there_are_numbers_are_enospc() {
    let _all = REGION_IDS_LOCK.write().unwrap_or_else(PoisonError::into_inner);
    on_all(2, |bed| {
        let memory = vec![0u8; 8192];
        let mut locked = Vec::new();
        let error = loop {
            let addr = memory.as_ptr().addr() + locked.len();
            match bed.contexts[0].lock_memory(None, addr, 1) {
                Ok(_) => locked.push(addr),
                Err(error) => break error,
            }
        };
        assert_eq!(error, Error::NoSpace);
        assert!(locked.len() > 2000, "{}", locked.len());
        for addr in locked {
            bed.contexts[0].unlock_memory(None, addr, 1).unwrap();
        }
        bed.contexts[0].lock_memory(None, memory.as_ptr().addr(), 8).unwrap();
    });
}

// Promise of `check_words`.
#[test]
fn memory_that_is_unmapped_or_read_only_is_eio_once_at_completion() {
    on_every_kind_with_regions(2, |bed| {
        let a = Memory::new(bed, 0, Kind::Allocated, 4096);
        for (state, write_fails, read_fails) in
            [("unmapped", true, true), ("read-only", true, false)]
        {
            let b = Memory::new(bed, 1, Kind::Mapped, 3 * 4096);
            b.fill(7);
            if state == "unmapped" {
                b.unmap()
            } else {
                b.protect()
            }
            for (write, fails) in [(true, write_fails), (false, read_fails)] {
                retry_polling(bed, 0, || match write {
                    true => bed.contexts[0].write(1, b.handle + 4096, a.handle, 4096),
                    false => bed.contexts[0].read(1, b.handle + 4096, a.handle, 4096),
                });
                let expected = if fails { Err(Error::Io) } else { Ok(()) };
                assert_eq!(done(bed, 0), expected, "{state} {write}");
                assert_eq!(done(bed, 0), Ok(()), "reported once");
            }
        }
        let b = Memory::new(bed, 1, Kind::Mapped, 4096);
        let c = Memory::new(bed, 0, Kind::Mapped, 4096);
        c.unmap();
        retry_polling(bed, 0, || bed.contexts[0].write(1, b.handle, c.handle, 4096));
        assert_eq!(done(bed, 0), Err(Error::Io));
        retry_polling(bed, 0, || bed.contexts[0].read(1, b.handle, c.handle, 4096));
        assert_eq!(done(bed, 0), Err(Error::Io));
        c.remap();
        c.fill(9);
        retry_polling(bed, 0, || bed.contexts[0].write(1, b.handle, c.handle, 4096));
        assert_eq!(done(bed, 0), Ok(()), "new memory at the same address");
        b.is_unchanged_except(9, 0..0);
    });
}

/// The unmapped bytes belong to frames whose bytes are not copied before they are transmitted.
#[test]
fn a_long_operation_with_unmapped_first_bytes_is_eio_and_others_continue() {
    const LEN: usize = 200_000;
    on_every_kind_with_regions(2, |bed| {
        let [a, b] = [0, 1].map(|node| Memory::new(bed, node, Kind::Mapped, LEN));
        let [c, d] = [0, 1].map(|node| Memory::new(bed, node, Kind::Mapped, LEN));
        [&c, &d].into_iter().for_each(|memory| memory.unmap_first(40_000));
        for _ in 0..3 {
            retry_polling(bed, 0, || bed.contexts[0].write(1, b.handle, c.handle, LEN));
            assert_eq!(done(bed, 0), Err(Error::Io));
            retry_polling(bed, 0, || bed.contexts[0].read(1, d.handle, a.handle, LEN));
            assert_eq!(done(bed, 0), Err(Error::Io));
            a.fill(5);
            retry_polling(bed, 0, || bed.contexts[0].write(1, b.handle, a.handle, LEN));
            assert_eq!(done(bed, 0), Ok(()));
            b.is_unchanged_except(5, 0..0);
        }
    });
}

/// Pages of both nodes are unmapped and mapped while they are written and read. Each operation
/// fails or accesses the new memory, whichever process copies. Neighbouring memory is unchanged.
// Promise (messages): Memory that is unmapped and mapped again under traffic is an error or the new
// memory, on every device.
#[test]
fn memory_that_is_unmapped_and_remapped_under_traffic_does_no_harm() {
    const PAGES: usize = 64;
    let _ids = share_region_ids();
    let _dog = Watchdog::new(300);
    for kind in ALL_KINDS {
        let bed = TestBed::new(kind, 2);
        let a = Memory::new(&bed, 0, Kind::Mapped, PAGES * 4096);
        let b = Memory::new(&bed, 1, Kind::Mapped, PAGES * 4096);
        let neighbour = Memory::new(&bed, 1, Kind::Mapped, 4096);
        neighbour.fill(6);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let (mut failed, mut succeeded) = (0, 0);
        std::thread::scope(|scope| {
            for memory in [&a, &b] {
                let (addr, stop) = (memory.at.addr(), &stop);
                scope.spawn(move || remap_pages(addr, PAGES, stop));
            }
            let end = Instant::now() + Duration::from_secs(20);
            while (failed < 5 || succeeded < 5) && Instant::now() < end {
                retry_polling(&bed, 0, || {
                    bed.contexts[0].write(1, b.handle, a.handle, PAGES * 4096)
                });
                retry_polling(&bed, 0, || bed.contexts[0].read(1, b.handle, a.handle, 4096 * 3));
                match done(&bed, 0) {
                    Ok(()) => succeeded += 1,
                    Err(error) => {
                        assert_eq!(error, Error::Io);
                        failed += 1;
                        // This call consumes a failure of the other direction, if it was not
                        // reported yet.
                        let _ = done(&bed, 0);
                    }
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(failed > 0 && succeeded > 0, "{kind}: {failed} failed, {succeeded} succeeded");
        neighbour.is_unchanged_except(6, 0..0);
        [&a, &b].into_iter().for_each(Memory::remap);
        retry_polling(&bed, 0, || bed.contexts[0].write(1, b.handle, a.handle, PAGES * 4096));
        assert_eq!(done(&bed, 0), Ok(()), "{kind}");
    }
}

/// PM's own memory is copied directly. The copying process finds all of it or gets an error.
// Promise of `check_words`.
#[test]
fn freeing_allocator_memory_during_an_operation_does_no_harm() {
    const LEN: usize = 1 << 20;
    on_every_kind_with_regions(2, |bed| {
        let a = Memory::new(bed, 0, Kind::Allocated, LEN);
        for round in 0..10 {
            let b = Memory::new(bed, 1, Kind::Allocated, LEN);
            retry_polling(bed, 0, || bed.contexts[0].write(1, b.handle, a.handle, LEN));
            for _ in 0..round {
                let _ = bed.contexts[1].receive();
            }
            drop(b);
            let _ = done(bed, 0);
        }
        let b = Memory::new(bed, 1, Kind::Allocated, LEN);
        a.fill(5);
        retry_polling(bed, 0, || bed.contexts[0].write(1, b.handle, a.handle, LEN));
        assert_eq!(done(bed, 0), Ok(()));
        b.is_unchanged_except(5, 0..0);
    });
}

/// Memory is unlocked and changed during a read. The read returns the previous bytes or fails.
#[test]
fn unlocked_memory_is_not_read_afterwards() {
    const LEN: usize = 1 << 20;
    on_every_kind_with_regions(2, |bed| {
        for round in 0..12 {
            let a = Memory::new(bed, 0, Kind::Mapped, LEN);
            let b = Memory::new(bed, 1, [Kind::Mapped, Kind::Allocated][round % 2], LEN);
            a.fill(3);
            b.fill(7);
            retry_polling(bed, 0, || bed.contexts[0].read(1, b.handle, a.handle, LEN));
            for _ in 0..round / 2 {
                let _ = bed.contexts[1].receive();
                let _ = bed.contexts[0].receive();
            }
            bed.contexts[1].unlock_memory(None, b.at.addr(), LEN).unwrap();
            b.fill(8);
            let result = done(bed, 0);
            assert!(matches!(result, Ok(()) | Err(Error::Io)), "{result:?}");
            for (i, byte) in a.bytes().iter().enumerate() {
                let (before, read) = (3u8.wrapping_add(i as u8), 7u8.wrapping_add(i as u8));
                assert!(*byte == read || *byte == before && result.is_err(), "byte {i}");
            }
        }
    });
}

/// Repeatedly makes one page inaccessible or read-only for a short time, until `stop` is set.
fn remap_pages(addr: usize, pages: usize, stop: &std::sync::atomic::AtomicBool) {
    let mut page = 0;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        page = (page * 5 + 3) % pages;
        let page_addr = (addr + page * 4096) as *mut libc::c_void;
        let prot = [libc::PROT_NONE, libc::PROT_READ][page % 2];
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let write = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: these are pages of the test, which are accessed only through their handle.
        unsafe {
            libc::mmap(page_addr, 4096, prot, flags, -1, 0);
            std::thread::sleep(Duration::from_micros(300));
            libc::mmap(page_addr, 4096, write, flags, -1, 0);
        }
        std::thread::sleep(Duration::from_micros(700));
    }
}

#[test]
fn an_operation_on_an_exited_node_is_eio() {
    on_every_kind_with_regions(2, |bed| {
        let (a, b) =
            (Memory::new(bed, 0, Kind::Allocated, 64), Memory::new(bed, 1, Kind::Allocated, 64));
        retry_polling(bed, 0, || bed.contexts[0].write(1, b.handle, a.handle, 64));
        assert_eq!(done(bed, 0), Ok(()));
        bed.mark_exited(1);
        bed.contexts[0].write(1, b.handle, a.handle, 64).unwrap();
        assert_eq!(bed.contexts[0].is_write_done(), Err(Error::Io));
        assert_eq!(bed.contexts[0].is_read_done(), Ok(()));
        bed.contexts[0].read(1, b.handle, a.handle, 64).unwrap();
        assert_eq!(bed.contexts[0].is_read_done(), Err(Error::Io));
        assert_eq!(done(bed, 0), Ok(()));
    });
}

/// Memory of the allocator needs no help of the kernel.
// Promise (messages): If the kernel refuses to copy between processes, memory of pmAlloc can be
// written and read; other memory is ENOSYS and unchanged; messages arrive, also those of MPI.
#[test]
fn without_kernel_copies_only_allocator_memory_is_accessible() {
    let _ids = share_region_ids();
    without_cma(|| {
        for kind in SHARED {
            let bed = TestBed::new(kind, 2);
            let end = &bed.contexts[0];
            let memories = |node| {
                [Kind::Allocated, Kind::Mapped].map(|kind| Memory::new(&bed, node, kind, 9000))
            };
            let (local, remote) = (memories(0), memories(1));
            for (from, to) in [(0, 1), (1, 0), (1, 1)] {
                let (from, to) = (&local[from], &remote[to]);
                from.fill(3);
                to.fill(90);
                for call in [Context::write, Context::read] {
                    assert_eq!(call(end, 1, to.handle, from.handle, 9000), Err(Error::NoSys));
                    assert_eq!(call(end, 1, to.handle, from.handle, 9001), Err(Error::Invalid));
                }
                from.is_unchanged_except(3, 0..0);
                to.is_unchanged_except(90, 0..0);
            }
            assert_eq!(end.remote_status(1), Ok(RemoteStatus::default()), "not counted");
            let (from, to) = (&local[0], &remote[0]);
            from.fill(5);
            for len in [8, 9000] {
                end.write(1, to.handle, from.handle, len).unwrap();
                assert_eq!(end.is_write_done(), Ok(()));
                assert_eq!(to.bytes()[..len], from.bytes()[..len]);
            }
            send(end, 1, b"messages need no help of the kernel").unwrap();
            assert_eq!(receive_surely(&bed.contexts[1]), b"messages need no help of the kernel");
            // An access to memory of a process that has exited also fails at completion here.
            bed.mark_exited(1);
            end.write(1, remote[1].handle, local[1].handle, 8).unwrap();
            assert_eq!(end.is_write_done(), Err(Error::Io));
        }
    });
}

#[test]
fn the_option_bits_of_every_device_and_composite_have_both_directions() {
    for kind in ALL_KINDS {
        let bed = TestBed::new(kind, 2);
        let both = OPT_REMOTE_READ | OPT_REMOTE_WRITE;
        assert_eq!(bed.contexts[0].config().unwrap().option & both, both, "{kind}");
        assert_eq!(bed.device.config().unwrap().option & both, both, "{kind}");
    }
}

#[test]
fn memory_of_the_allocator_is_zero_and_is_not_freed_while_it_is_locked() {
    let _ids = share_region_ids();
    for kind in ALL_KINDS {
        let bed = TestBed::new(kind, 2);
        let end = &bed.contexts[0];
        assert_eq!(end.allocate_memory(0), Err(Error::Invalid));
        assert_eq!(end.allocate_memory(usize::MAX), Err(Error::NoMemory));
        for _ in 0..3 {
            let blocks: Vec<_> = [1, 4096, 3 << 20]
                .into_iter()
                .map(|len| (end.allocate_memory(len).unwrap(), len))
                .collect();
            for &(block, len) in &blocks {
                assert!(block.addr().is_multiple_of(4096));
                // SAFETY: the block was just allocated, and has `len` bytes.
                let bytes = unsafe { std::slice::from_raw_parts_mut(block, len) };
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(1);
            }
            let (block, _) = blocks[0];
            end.lock_memory(None, block.addr(), 1).unwrap();
            assert_eq!(end.free_memory(block), Err(Error::Busy));
            end.unlock_memory(None, block.addr(), 1).unwrap();
            assert_eq!(end.free_memory(block.wrapping_add(1)), Err(Error::Invalid));
            for (block, _) in blocks {
                end.free_memory(block).unwrap();
                assert_eq!(end.free_memory(block), Err(Error::Invalid));
            }
        }
    }
}

#[test]
fn transferred_bytes_are_counted_at_the_origin() {
    on_every_kind_with_regions(2, |bed| {
        let (a, b) =
            (Memory::new(bed, 0, Kind::Allocated, 9000), Memory::new(bed, 1, Kind::Mapped, 9000));
        retry_polling(bed, 0, || bed.contexts[0].write(1, b.handle, a.handle, 9000));
        retry_polling(bed, 0, || bed.contexts[0].read(1, b.handle, a.handle, 500));
        done(bed, 0).unwrap();
        let counters = bed.counters(0);
        assert_eq!((counters.sent_bytes, counters.received_bytes), (9000, 500));
        assert_eq!((counters.sent, counters.received, counters.pending_rma), (0, 0, 0));
    });
}

#[test]
fn closing_a_context_unlocks_its_regions() {
    let _ids = share_region_ids();
    let bed = TestBed::new("composite", 2);
    let (a, b) =
        (Memory::new(&bed, 0, Kind::Allocated, 64), Memory::new(&bed, 1, Kind::Allocated, 64));
    retry_polling(&bed, 0, || bed.contexts[0].write(1, b.handle, a.handle, 64));
    done(&bed, 0).unwrap();
    bed.contexts[1].close().unwrap();
    assert_eq!(bed.contexts[0].write(1, b.handle, a.handle, 64), Err(Error::Invalid));
    std::mem::forget(b);
}
