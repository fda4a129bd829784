//! Measures the cost of the pin-down cache itself: hits, and misses with a device that takes no
//! time.

// UNSAFETY: the bench maps and unmaps the memory that the cache registers.
#![allow(missing_docs, unsafe_code)]

use criterion::{Criterion, criterion_group, criterion_main};
use score_pm::testing::pin::{self, Cache, CacheOptions, PAGE, PageRange, Registrar};
use score_pm::testing::threads;
use std::hint::black_box;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A registrar that pins no memory.
struct NullRegistrar;

impl Registrar for NullRegistrar {
    type Registration = u32;

    fn pin(&mut self, _: PageRange) -> Result<u32, i32> {
        Ok(7)
    }

    fn unpin(&mut self, _: u32) {}
}

/// Maps private memory that is never unmapped.
fn map_memory(pages: usize) -> usize {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the call makes a new mapping at an address that the kernel chooses, so it affects no
    // existing memory.
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, access, kind, -1, 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    addr as usize
}

/// Locks and unlocks regions of 64 KiB, one after the other. Each lock is a hit.
fn bench_hits(c: &mut Criterion, regions: usize, kind: &str) {
    let cache = Cache::new(NullRegistrar, CacheOptions::default()).unwrap();
    let addr = map_memory(regions * 16);
    if kind == "own" {
        pin::add_own(addr, regions * 16 * PAGE).unwrap();
    }
    for region in 0..regions {
        let lock = cache.lock(addr + region * 16 * PAGE, 16 * PAGE).unwrap();
        cache.unlock(lock.id).unwrap();
    }
    let mut next = 0;
    c.bench_function(&format!("hit: lock and unlock one of {regions}, {kind} memory"), |b| {
        b.iter(|| {
            next = (next + 7) % regions;
            let lock = cache.lock(black_box(addr + next * 16 * PAGE + 24), 4096).unwrap();
            cache.unlock(black_box(lock).id).unwrap();
        });
    });
    assert!(cache.stats().misses as usize == regions);
}

fn cache_hits(c: &mut Criterion) {
    for regions in [1, 64, 1024] {
        for kind in ["own", "watched"] {
            bench_hits(c, regions, kind);
        }
    }
}

fn cache_misses(c: &mut Criterion) {
    let cache = Cache::new(NullRegistrar, CacheOptions { max_bytes: 0 }).unwrap();
    let addr = map_memory(16);
    c.bench_function("miss: lock and unlock, watched memory", |b| {
        b.iter(|| {
            let lock = cache.lock(black_box(addr), 4096).unwrap();
            cache.unlock(black_box(lock).id).unwrap();
        });
    });
}

fn with_threads(c: &mut Criterion) {
    threads::spawn("ours", 64 << 10, || std::thread::sleep(Duration::from_secs(600))).unwrap();
    bench_watched_hits(c, "with a thread of PM");
    let (stop_sender, stop_receiver) = channel::<()>();
    let idle_thread = std::thread::spawn(move || stop_receiver.recv());
    bench_watched_hits(c, "in a process of several threads");
    drop(stop_sender);
    let _ = idle_thread.join();
}

/// Locks and unlocks memory that is cached and watched.
fn bench_watched_hits(c: &mut Criterion, process: &str) {
    let mut group = c.benchmark_group(process);
    let cache = Cache::new(NullRegistrar, CacheOptions::default()).unwrap();
    let addr = map_memory(16);
    group.bench_function("hit: lock and unlock, watched memory", |b| {
        b.iter(|| {
            let lock = cache.lock(black_box(addr), 4096).unwrap();
            cache.unlock(black_box(lock).id).unwrap();
        });
    });
    group.finish();
}

criterion_group!(benches, cache_hits, cache_misses, with_threads);
criterion_main!(benches);
