//! Tests of the pin-down cache in a process whose program never had a second thread. A hit makes no
//! system call and is nevertheless valid, even if PM has threads. These tests do not use libtest,
//! which runs tests in threads.

// UNSAFETY: reads a variable of the C library, forks, and forbids its own system calls.
#![expect(unsafe_code)]

#[path = "pinning/stamps.rs"]
mod stamps;

use score_pm::testing::pin::{self, PAGE};
use score_pm::testing::threads;
use stamps::{
    ARENA, PRIVATE, Random, arena, cache, change, map, matches_pages, rounds, stamp, unmap,
};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

unsafe extern "C" {
    static __libc_single_threaded: AtomicU8;
}

fn main() {
    if let Err(error) = score_pm::probe_memory_monitor() {
        println!("memory cannot be monitored: {error}");
        return;
    }
    println!("test a_hit_makes_no_system_call ...");
    assert!(hits_without_system_calls(|| ()), "the child called the kernel, or missed");
    println!("test memory_that_one_thread_changes_is_not_found_stale ...");
    // SAFETY: this byte of the C library lives as long as the process, and is loaded atomically.
    let single_threaded = unsafe { __libc_single_threaded.load(Ordering::Relaxed) } != 0;
    check_changes();
    assert!(
        single_threaded || cfg!(sanitized),
        "the monitor thread counts as a thread of the program"
    );
    if cfg!(any(sanitized, not(all(target_arch = "x86_64", target_env = "gnu")))) {
        println!("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        return;
    }
    println!("test threads_of_pm_are_distinguished_from_those_of_the_program ...");
    check_threads_are_distinguished();
    println!("test hits_and_changes_are_correct_with_threads_of_pm ...");
    assert!(hits_without_system_calls(start_pm_thread), "the child called the kernel, or missed");
    check_changes();
    println!("test a_hit_calls_the_kernel_if_the_program_has_had_another_thread ...");
    let with_second_thread = || {
        start_pm_thread();
        std::thread::scope(|scope| scope.spawn(lock_once).join().unwrap());
    };
    assert!(!hits_without_system_calls(with_second_thread), "no system call");
    println!("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}

/// Starts a thread of PM that only sleeps.
fn start_pm_thread() {
    threads::spawn("ours", 64 << 10, || std::thread::sleep(Duration::from_secs(600))).unwrap();
    assert!(threads::is_only_app_thread(), "a thread of PM does not count");
}

// Promise of `hits_without_system_calls`.
fn check_threads_are_distinguished() {
    assert!(threads::is_only_app_thread());
    start_pm_thread();
    start_pm_thread();
    std::thread::scope(|scope| {
        assert!(!scope.spawn(threads::is_only_app_thread).join().unwrap(), "the program had two");
    });
    assert!(threads::is_only_app_thread(), "the program has one thread again");
    assert!(run_in_child(threads::is_only_app_thread), "a child has one thread");
    let child = || {
        start_pm_thread();
        let is_only_thread =
            std::thread::scope(|scope| scope.spawn(threads::is_only_app_thread).join().unwrap());
        !is_only_thread && threads::is_only_app_thread()
    };
    assert!(run_in_child(child), "threads of a child are distinguished");
}

fn lock_once() {
    let (cache, _) = cache(1 << 20);
    cache.unlock(cache.lock(arena(), PAGE).unwrap().id).unwrap();
}

/// Runs `child` in a child of this process. Returns its result, or false if the child is killed.
fn run_in_child(child: impl FnOnce() -> bool) -> bool {
    let (read, write) = nix::unistd::pipe().unwrap();
    // SAFETY: the sleeping threads of PM hold no locks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let _ = nix::unistd::write(&write, &[u8::from(child())]);
        // SAFETY: this ends the calling thread. The parent ends other threads of the child.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    drop(write);
    let mut polled = [nix::poll::PollFd::new(read.as_fd(), nix::poll::PollFlags::POLLIN)];
    let ready = nix::poll::poll(&mut polled, 20_000u16);
    let mut answer = [0];
    if ready == Ok(1) {
        nix::unistd::read(&read, &mut answer).unwrap();
    }
    // SAFETY: this is a child of this process that has not been waited for yet.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    answer == [1]
}

/// Whether a child gets hits under seccomp's strict mode after it has called `prepare`. That mode
/// kills a thread that makes any system call other than `read`, `write` and `exit`. Under a
/// sanitizer this always returns true, because the sanitizer itself makes system calls.
// Promise (messages): Registered memory is found again without a system call: PM's own memory, and
// watched memory in a process of one thread (threads of PM do not count); with further threads the
// kernel is asked.
fn hits_without_system_calls(prepare: impl FnOnce()) -> bool {
    let child = || {
        let (cache, _) = cache(1 << 20);
        let (monitored, pm_memory) = (arena(), map(0, ARENA, PRIVATE, -1).unwrap());
        pin::add_own(pm_memory, ARENA * PAGE).unwrap();
        prepare();
        for addr in [monitored, pm_memory] {
            cache.unlock(cache.lock(addr, ARENA * PAGE).unwrap().id).unwrap();
        }
        // SAFETY: the call accesses no memory.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        for round in 0..1000 {
            let addr = [monitored, pm_memory][round % 2] + round % ARENA * PAGE;
            cache.unlock(cache.lock(addr, 8).unwrap().id).unwrap();
        }
        cache.stats().hits == 1000
    };
    cfg!(sanitized) || run_in_child(child)
}

// Promise of `hits_without_system_calls`.
fn check_changes() {
    let (cache, pinned) = cache(40 * PAGE);
    let (mut random, mut own_arena) = (Random(0x9e37_79b9), arena());
    let before = cache.stats();
    for round in 0..rounds(4000) {
        if random.below(4) == 0 && change(own_arena, &mut random).is_none() {
            own_arena = arena();
        }
        let first = random.below(ARENA);
        let pages = 1 + random.below(ARENA - first);
        assert!(matches_pages(&cache, own_arena + first * PAGE, pages), "round {round}");
    }
    for round in 0..rounds(4000) {
        let addr = map(0, 4, PRIVATE, -1).unwrap();
        stamp(addr, 4);
        assert!(matches_pages(&cache, addr, 4), "newly mapped, round {round}");
        unmap(addr, 4);
    }
    let counts = cache.stats();
    assert!(
        counts.hits - before.hits > rounds(500) as u64 && counts.unmonitored == 0,
        "{counts:?}"
    );
    cache.clear();
    assert_eq!(pinned.load(Ordering::Relaxed), 0, "still pinned");
}
