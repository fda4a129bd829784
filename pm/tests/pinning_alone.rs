//! The pin-down cache in a process that never had a second thread: the C library knows of none, so
//! that a hit asks the kernel nothing, and what is found is true all the same. Not by libtest,
//! which runs tests in threads.

// UNSAFETY: reads a variable of the C library, forks, forbids itself system calls.
#![expect(unsafe_code)]

#[path = "pinning/stamps.rs"]
mod stamps;

use score_pm::pin::{self, PAGE};
use stamps::{ARENA, PRIVATE, Random, arena, cache, change, is_true, map, rounds, stamp, unmap};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

unsafe extern "C" {
    static __libc_single_threaded: AtomicU8;
}

fn main() {
    if let Err(why) = pin::probe() {
        println!("memory is not watched here: {why}");
        return;
    }
    println!("test a_hit_calls_the_kernel_for_nothing ...");
    if cfg!(not(sanitized)) {
        quiet();
    }
    println!("test what_one_thread_changes_is_not_found_as_it_was ...");
    changes();
    println!("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}

/// A child hits under seccomp's strict mode, where any system call but `read`, `write` and `exit`
/// is the calling thread's death.
fn quiet() {
    let (read, write) = nix::unistd::pipe().unwrap();
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (cache, _) = cache(1 << 20);
        let (watched, own) = (arena(), map(0, ARENA, PRIVATE, -1).unwrap());
        pin::add_own(own, ARENA * PAGE).unwrap();
        for at in [watched, own] {
            cache.unlock(cache.lock(at, ARENA * PAGE).unwrap().id).unwrap();
        }
        // SAFETY: no memory is passed.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        for round in 0..1000 {
            let at = [watched, own][round % 2] + round % ARENA * PAGE;
            cache.unlock(cache.lock(at, 8).unwrap().id).unwrap();
        }
        let hits = cache.counts().hits;
        let _ = nix::unistd::write(&write, &[u8::from(hits == 1000)]);
        // SAFETY: ends this thread; the watching one is ended by the parent.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    drop(write);
    let mut polled = [nix::poll::PollFd::new(read.as_fd(), nix::poll::PollFlags::POLLIN)];
    let came = nix::poll::poll(&mut polled, 20_000u16);
    let mut answer = [0];
    if came == Ok(1) {
        nix::unistd::read(&read, &mut answer).unwrap();
    }
    // SAFETY: a child of this process, which nobody has waited for yet.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(answer, [1], "the child called the kernel, or missed");
}

fn changes() {
    let (cache, pinned) = cache(40 * PAGE);
    // SAFETY: a byte of the C library that lives as long as the process; loaded atomically.
    let alone = unsafe { __libc_single_threaded.load(Ordering::Relaxed) } != 0;
    assert!(alone || cfg!(sanitized), "the watching thread counts as a thread of the program");
    let (mut random, mut own) = (Random(0x9e37_79b9), arena());
    let before = cache.counts();
    for round in 0..rounds(4000) {
        if random.below(4) == 0 && change(own, &mut random).is_none() {
            own = arena();
        }
        let first = random.below(ARENA);
        let pages = 1 + random.below(ARENA - first);
        assert!(is_true(&cache, own + first * PAGE, pages), "round {round}");
    }
    for round in 0..rounds(4000) {
        let at = map(0, 4, PRIVATE, -1).unwrap();
        stamp(at, 4);
        assert!(is_true(&cache, at, 4), "mapped anew, round {round}");
        unmap(at, 4);
    }
    let counts = cache.counts();
    assert!(counts.hits - before.hits > rounds(500) as u64 && counts.unwatched == 0, "{counts:?}");
    cache.clear();
    assert_eq!(pinned.load(Ordering::Relaxed), 0, "what was left");
}
