//! Tests of the pin-down cache on the real kernel. Many threads unmap and map memory, and the cache
//! never finds a registration of the previous memory again. `pinning_single_threaded.rs` tests this
//! in a single-threaded process, in which a hit makes no system call. These tests are a separate
//! program, because a cache drops registrations when any test changes the mapped memory.

// UNSAFETY: maps, unmaps and writes its own memory.
#![expect(unsafe_code)]

mod stamps;

use score_pm::testing::pin::{self, Cache, CacheOptions, PAGE};
use score_pm::{Context, Device, Error, PmResult, ShmemOptions};
use stamps::{
    ARENA, PRIVATE, Random, StampRegistrar, arena, cache, change, map, matches_pages, rounds,
    stamp, unmap,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn is_monitored() -> bool {
    let probed = score_pm::probe_memory_monitor();
    if let Err(error) = &probed {
        println!("memory cannot be monitored: {error}");
    }
    probed.is_ok()
}

/// Whether `cache` finds an earlier registration of the four pages at `addr`. Panics if it finds a
/// stale registration. The function tries repeatedly, because the cache may drop all registrations
/// when other tests change memory meanwhile.
fn finds_again(cache: &Cache<StampRegistrar>, addr: usize) -> bool {
    let hits = cache.stats().hits;
    (0..1000).any(|_| {
        assert!(matches_pages(cache, addr, 4));
        cache.stats().hits > hits
    })
}

// Promise of `the_regions_behave_as_a_plain_list`.
#[test]
fn no_stale_registration_is_found_while_many_threads_change_memory() {
    let (cache, pinned) = cache(40 * PAGE);
    let others = Mutex::new(vec![arena()]);
    let before = cache.stats();
    std::thread::scope(|scope| {
        for seed in 1u64..5 {
            let (cache, others) = (&cache, &others);
            scope.spawn(move || {
                let (mut random, mut own_arena) = (Random(seed << 32 | 0x9e37_79b9), arena());
                for round in 0..rounds(1500) {
                    if random.below(4) == 0 && change(own_arena, &mut random).is_none() {
                        own_arena = arena();
                    }
                    let first = random.below(ARENA);
                    let pages = 1 + random.below(ARENA - first);
                    let addr = own_arena + first * PAGE;
                    assert!(matches_pages(cache, addr, pages), "seed {seed}, round {round}");
                    if random.below(16) == 0 {
                        // This thread takes an arena that another thread has changed.
                        let mut others = others.lock().unwrap();
                        let other = others.pop().unwrap();
                        others.push(std::mem::replace(&mut own_arena, other));
                    }
                }
            });
        }
    });
    let counts = cache.stats();
    println!("{counts:?}");
    assert_eq!(before.hits, 0);
    assert_eq!(finds_again(&cache, arena()), is_monitored(), "{counts:?}");
    if is_monitored() {
        assert_eq!(counts.unmonitored, 0);
    }
    cache.clear();
    assert_eq!((cache.bytes(), pinned.load(Ordering::Relaxed)), (0, 0), "still pinned");
}

/// Threads map memory at addresses that other threads are unmapping. The kernel reuses the
/// addresses before it reports the unmapping.
// Promise of `the_regions_behave_as_a_plain_list`.
#[test]
fn no_stale_registration_is_found_for_memory_mapped_while_another_thread_unmaps_it() {
    let (cache, _) = cache(1 << 20);
    let stale = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..rounds(1500) {
                    let addr = map(0, 4, PRIVATE, -1).unwrap();
                    stamp(addr, 4);
                    stale
                        .fetch_add(usize::from(!matches_pages(&cache, addr, 4)), Ordering::Relaxed);
                    unmap(addr, 4);
                }
            });
        }
    });
    assert_eq!(stale.into_inner(), 0);
}

fn file(pages: usize) -> OwnedFd {
    let file = score_sys::memfd::create("pinning").unwrap();
    file.set_len((pages * PAGE) as u64).unwrap();
    file.into()
}

// Promise of `the_regions_behave_as_a_plain_list`.
#[test]
fn memory_of_files_is_unpinned_at_once_because_no_event_reports_their_shrinking() {
    let (cache, pinned) = cache(1 << 20);
    let file = file(4);
    let addr = map(0, 4, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
    for _ in 0..3 {
        stamp(addr, 4);
        assert!(matches_pages(&cache, addr, 4));
        assert_eq!(pinned.load(Ordering::Relaxed), 0);
        nix::unistd::ftruncate(&file, 0).unwrap();
        assert_eq!(cache.lock(addr, PAGE).map(drop), Err(Error::Invalid), "not mapped");
        nix::unistd::ftruncate(&file, 4 * PAGE as i64).unwrap();
    }
    assert_eq!(cache.stats().hits, 0);
    unmap(addr, 4);
}

#[test]
fn memory_of_pm_itself_stays_pinned_until_pm_releases_it() {
    let (cache, pinned) = cache(1 << 20);
    let file = file(4);
    let addr = map(0, 4, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
    pin::add_own(addr, 4 * PAGE).unwrap();
    stamp(addr, 4);
    assert!(matches_pages(&cache, addr, 4) && matches_pages(&cache, addr + PAGE, 2));
    let counts = cache.stats();
    assert_eq!((counts.hits, counts.misses, counts.unmonitored), (1, 1, 0));
    assert_eq!(pinned.load(Ordering::Relaxed), 4 * PAGE);
    pin::remove_own(addr, 4 * PAGE).unwrap();
    map(addr, 4, PRIVATE | libc::MAP_FIXED, -1).unwrap();
    stamp(addr, 4);
    assert!(matches_pages(&cache, addr, 4));
    unmap(addr, 4);
}

// Promise of `the_regions_behave_as_a_plain_list`.
#[test]
fn memory_of_pm_alloc_is_registered_as_memory_of_pm_until_it_is_freed() {
    let device = Device::open(ShmemOptions::new(1)).unwrap();
    let opened = device.open_context(0).unwrap();
    opened.bind_channel(0, 0).unwrap();
    let end = Context::attach("shmem", opened.create_attach_fd().unwrap()).unwrap();
    let (cache, pinned) = cache(1 << 20);
    for round in 1..4 {
        let block = end.allocate_memory(4 * PAGE).unwrap();
        stamp(block as usize, 4);
        assert!(matches_pages(&cache, block as usize, 4), "round {round}: pages that were freed");
        assert!(matches_pages(&cache, block as usize + PAGE, 3));
        let counts = cache.stats();
        assert_eq!((counts.hits, counts.misses, counts.unmonitored), (round, round, 0));
        assert_eq!(pinned.load(Ordering::Relaxed), 4 * PAGE);
        end.free_memory(block).unwrap();
    }
}

// Promise (messages): If there is no space for registered memory, idle registrations are evicted,
// then the result is ENOSPC.
#[test]
fn a_full_device_evicts_idle_registrations_and_then_is_enospc() {
    let pinned = Arc::new(AtomicUsize::new(0));
    let registrar = StampRegistrar { capacity: 8 * PAGE, pinned: pinned.clone() };
    let cache = Cache::new(registrar, CacheOptions::default()).unwrap();
    let addr = map(0, 16, PRIVATE, -1).unwrap();
    stamp(addr, 16);
    for page in (0..16).step_by(4) {
        assert!(matches_pages(&cache, addr + page * PAGE, 4));
    }
    let locked = cache.lock(addr, 6 * PAGE).unwrap();
    assert_eq!(cache.lock(addr + 6 * PAGE, 4 * PAGE).map(drop), Err(Error::NoSpace));
    assert!(cache.lock(addr + 6 * PAGE, 2 * PAGE).is_ok());
    cache.unlock(locked.id).unwrap();
    assert_eq!(cache.unlock(locked.id), Err(Error::Invalid));
    unmap(addr, 16);
}

// Promise of `the_regions_behave_as_a_plain_list`.
#[test]
fn a_child_of_fork_finds_no_registrations_and_its_parent_all() -> PmResult<()> {
    let (cache, _) = cache(1 << 20);
    let addr = map(0, 4, PRIVATE, -1).unwrap();
    stamp(addr, 4);
    assert!(matches_pages(&cache, addr, 4));
    // SAFETY: the child acquires no lock that another thread may hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = cache.lock(addr, PAGE).map(drop) == Err(Error::Invalid);
        // SAFETY: this ends the child at once. The unmapping does not wait for another thread.
        unsafe {
            libc::munmap(addr as *mut _, 4 * PAGE);
            libc::_exit(i32::from(!refused));
        }
    }
    let mut status = 0;
    // SAFETY: this waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(finds_again(&cache, addr), is_monitored());
    unmap(addr, 4);
    Ok(())
}
