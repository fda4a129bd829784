//! The pin-down cache in a process whose program never had a second thread: a hit asks the kernel
//! nothing, and what is found is true all the same, beside threads of PM, too. Not by libtest,
//! which runs tests in threads.

// UNSAFETY: reads a variable of the C library, forks, forbids itself system calls.
#![expect(unsafe_code)]

#[path = "pinning/stamps.rs"]
mod stamps;

use score_pm::pin::{self, PAGE};
use score_pm::threads;
use stamps::{ARENA, PRIVATE, Random, arena, cache, change, is_true, map, rounds, stamp, unmap};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

unsafe extern "C" {
    static __libc_single_threaded: AtomicU8;
}

fn main() {
    if let Err(why) = pin::probe() {
        println!("memory is not watched here: {why}");
        return;
    }
    println!("test a_hit_calls_the_kernel_for_nothing ...");
    assert!(quiet(|| ()), "the child called the kernel, or missed");
    println!("test what_one_thread_changes_is_not_found_as_it_was ...");
    // SAFETY: a byte of the C library that lives as long as the process; loaded atomically.
    let alone = unsafe { __libc_single_threaded.load(Ordering::Relaxed) } != 0;
    changes();
    assert!(alone || cfg!(sanitized), "the watching thread counts as a thread of the program");
    if cfg!(any(sanitized, not(all(target_arch = "x86_64", target_env = "gnu")))) {
        println!("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        return;
    }
    println!("test threads_of_pm_are_told_from_the_programs ...");
    told_apart();
    println!("test the_same_beside_threads_of_pm ...");
    assert!(quiet(start_ours), "the child called the kernel, or missed");
    changes();
    println!("test a_hit_asks_the_kernel_where_the_program_has_had_another_thread ...");
    let had_another = || {
        start_ours();
        std::thread::scope(|scope| scope.spawn(look_up).join().unwrap());
    };
    assert!(!quiet(had_another), "it did not ask");
    println!("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}

/// A thread of PM's own that does nothing, but lives.
fn start_ours() {
    threads::spawn("ours", 64 << 10, || std::thread::sleep(Duration::from_secs(600))).unwrap();
    assert!(threads::is_alone(), "a thread of PM is none of the program");
}

fn told_apart() {
    assert!(threads::is_alone());
    start_ours();
    start_ours();
    std::thread::scope(|scope| {
        assert!(!scope.spawn(threads::is_alone).join().unwrap(), "the program had two");
    });
    assert!(threads::is_alone(), "it has one again");
    assert!(forked(threads::is_alone), "so has a child");
    let child = || {
        start_ours();
        let others = std::thread::scope(|scope| scope.spawn(threads::is_alone).join().unwrap());
        !others && threads::is_alone()
    };
    assert!(forked(child), "threads of a child are told apart, too");
}

fn look_up() {
    let (cache, _) = cache(1 << 20);
    cache.unlock(cache.lock(arena(), PAGE).unwrap().id).unwrap();
}

/// What `child` answers in a child of this process; false, if it dies.
fn forked(child: impl FnOnce() -> bool) -> bool {
    let (read, write) = nix::unistd::pipe().unwrap();
    // SAFETY: threads of PM that do nothing have no locks.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let _ = nix::unistd::write(&write, &[u8::from(child())]);
        // SAFETY: ends this thread; others are ended by the parent.
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
        libc::kill(process, libc::SIGKILL);
        libc::waitpid(process, std::ptr::null_mut(), 0);
    }
    answer == [1]
}

/// Whether a child that did this `before` hits under seccomp's strict mode, where any system call
/// but `read`, `write` and `exit` is the calling thread's death. A sanitizer's thread makes others.
fn quiet(before: impl FnOnce()) -> bool {
    let child = || {
        let (cache, _) = cache(1 << 20);
        let (watched, own) = (arena(), map(0, ARENA, PRIVATE, -1).unwrap());
        pin::add_own(own, ARENA * PAGE).unwrap();
        before();
        for at in [watched, own] {
            cache.unlock(cache.lock(at, ARENA * PAGE).unwrap().id).unwrap();
        }
        // SAFETY: no memory is passed.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        for round in 0..1000 {
            let at = [watched, own][round % 2] + round % ARENA * PAGE;
            cache.unlock(cache.lock(at, 8).unwrap().id).unwrap();
        }
        cache.counts().hits == 1000
    };
    cfg!(sanitized) || forked(child)
}

fn changes() {
    let (cache, pinned) = cache(40 * PAGE);
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
