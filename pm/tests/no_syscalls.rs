//! Tests that sending and receiving a message, and the first 10,000 empty polls, make no system
//! call and no allocation. Seccomp's strict mode kills a thread that makes any system call other
//! than read, write or exit. A counting allocator detects allocations. These tests are a program of
//! their own because of this allocator, and because no thread may hold a lock during their forks.

// UNSAFETY: seccomp, fork and the counting allocator have no safe wrapper.
#![allow(unsafe_code, missing_docs)]

#[allow(dead_code, reason = "the program `pm` uses the rest")]
#[path = "pm/testbed/mod.rs"]
mod testbed;

use score_pm::*;
use score_pm_reliability as reliability;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use testbed::*;

struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the contract of the caller is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the contract of the caller is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Only one test runs at a time, because a child must not inherit a lock that the thread of another
/// test holds.
static SERIAL: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn serialize() -> std::sync::MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Sends and receives a message of `len` bytes without copying it.
fn round_trip(bed: &TestBed, from: usize, to: usize, len: usize) -> bool {
    let Ok(buffer) = bed.contexts[from].get_send_buffer(to as u32, len) else { return false };
    // SAFETY: `len` bytes were reserved.
    unsafe { buffer.write_bytes(1, len) };
    bed.contexts[from].send().is_ok()
        && bed.contexts[to].receive().is_ok_and(|(_, received_len)| received_len == len)
        && bed.contexts[to].release_receive_buffer().is_ok()
}

/// Runs all functions of the message path. Returns whether all of them succeed.
fn exercise_message_path(bed: &TestBed) -> bool {
    let mut ok = true;
    for round in 0..2000 {
        for len in [8, 48, 49, 4096, 8192] {
            ok &= round_trip(bed, round % 3, (round + 1) % 3, len);
        }
    }
    for _ in 0..300 {
        ok &= bed.contexts[0].get_multicast_buffer(&[1, 2], 100).is_ok()
            && bed.contexts[0].send().is_ok();
        for k in 1..3 {
            ok &= bed.contexts[k].receive().is_ok()
                && bed.contexts[k].release_receive_buffer().is_ok();
        }
    }
    while bed.contexts[0].get_send_buffer(1, 8).is_ok() {
        ok &= bed.contexts[0].send().is_ok();
    }
    for _ in 0..9_000 {
        ok &= bed.contexts[0].get_send_buffer(1, 8) == Err(Error::NoBuffers);
        ok &= bed.contexts[0].receive() == Err(Error::NoBuffers);
    }
    ok
}

#[test]
fn the_message_path_allocates_no_memory() {
    let _guard = serialize();
    let _dog = Watchdog::new(300);
    for kind in KINDS {
        let bed = TestBed::new(kind, 3);
        debug::level();
        let before = ALLOCATIONS.with(Cell::get);
        assert!(exercise_message_path(&bed));
        assert_eq!(ALLOCATIONS.with(Cell::get), before, "{kind}");
    }
}

/// Runs `f` in a child that may only read, write and exit. Returns the wait status of the child.
fn in_strict_mode(kind: &'static str, f: fn(&TestBed) -> bool) -> i32 {
    // SAFETY: the child uses only its own contexts, runs `f` and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the alarm only ends a child that hangs, so that the test fails.
        unsafe { libc::alarm(60) };
        let bed = TestBed::new(kind, 3);
        debug::level();
        // SAFETY: no pointer is passed, and afterwards the child calls only SYS_exit.
        unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, 1, 0, 0, 0);
            let ok = f(&bed);
            libc::syscall(libc::SYS_exit, i32::from(!ok));
        }
        unreachable!("exit returns");
    }
    let mut status = -1;
    // SAFETY: this waits for a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn the_message_path_makes_no_system_call() {
    let _guard = serialize();
    let _dog = Watchdog::new(300);
    for kind in KINDS {
        assert_eq!(in_strict_mode(kind, exercise_message_path), 0, "{kind}");
    }
}

#[test]
fn the_poll_after_ten_thousand_empty_ones_yields() {
    let _guard = serialize();
    let _dog = Watchdog::new(300);
    assert_eq!(in_strict_mode("composite", |bed| polls(10_000, bed)), 0);
    assert_eq!(in_strict_mode("composite", |bed| polls(10_001, bed)), libc::SIGKILL);
}

fn polls(count: usize, bed: &TestBed) -> bool {
    (0..count).all(|_| bed.contexts[0].receive() == Err(Error::NoBuffers))
}

static YIELDS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_yield(_: libc::c_int) {
    YIELDS.fetch_add(1, Ordering::Relaxed);
}

/// Replaces `sched_yield` in this thread: from now on it only increments YIELDS.
fn count_yields() {
    const NR: u32 = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let ret = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        instruction(load, 0, 0, NR),
        instruction(equal, 0, 1, libc::SYS_sched_yield as u32),
        instruction(ret, 0, 0, libc::SECCOMP_RET_TRAP),
        instruction(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the handler only counts, and the program is valid for the call, which copies it.
    let set = unsafe {
        libc::signal(libc::SIGSYS, on_yield as *const () as libc::sighandler_t);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Checks that the target of a write, which polls and finds no message, does not yield.
fn check_polls_of_a_target() {
    let bed = TestBed::new("both", 2);
    let bytes: [[AtomicU64; 8]; 2] = Default::default();
    let lock = |k: usize| {
        let addr = bytes[k].as_ptr().addr();
        bed.contexts[k].lock_memory(None, addr, size_of_val(&bytes[k])).unwrap()
    };
    let (local, remote) = (lock(0), lock(1));
    count_yields();
    for _ in 0..8 {
        bed.contexts[0].write(1, remote, local, 8).unwrap();
        assert!(polls_of(&bed, 4000));
        while bed.contexts[0].is_write_done().is_err() {
            assert!(polls_of(&bed, 1));
        }
    }
    // The locks of a sanitizer also yield.
    let yield_count = YIELDS.load(Ordering::Relaxed);
    assert!(yield_count == 0 || cfg!(sanitized), "{yield_count} times");
    assert!(polls_of(&bed, 21_000));
    assert!(YIELDS.load(Ordering::Relaxed) > 0, "there is no activity any more");
}

fn polls_of(bed: &TestBed, count: usize) -> bool {
    (0..count).all(|_| bed.contexts[1].receive() == Err(Error::NoBuffers))
}

// Promise (messages): Polls that make progress of remote memory do not yield the processor.
#[test]
fn polls_that_progress_remote_memory_do_not_yield() {
    let _guard = serialize();
    let _dog = Watchdog::new(300);
    // The filter cannot be removed from a thread, so the test runs in a thread of its own.
    std::thread::spawn(check_polls_of_a_target).join().unwrap();
}

/// Sends `count` messages in each direction between two reliability machines, alternately.
fn exchange_messages(
    machines: &mut [reliability::ReliabilityMachine; 2],
    now: &mut u64,
    count: usize,
) {
    use reliability::{PACKET_HEADER_LEN, PacketKind};
    for from in (0..count).flat_map(|_| [0, 1]) {
        *now += 700;
        let submitted = machines[from].submit(1 - from as u32, 0, 8, PacketKind::Data);
        assert!(submitted.is_ok(), "{submitted:?}");
        machines[from].expire(*now);
        while let Some(transmit) = machines[from].poll_transmit(*now) {
            let mut packet = [0; PACKET_HEADER_LEN + 8];
            let len = transmit.payload.map_or(0, |(_, len)| usize::from(len));
            transmit.header.encode(packet.first_chunk_mut().unwrap());
            machines[1 - from].receive(&packet[..PACKET_HEADER_LEN + len], 0, 0, *now);
        }
        let delivery = machines[1 - from].next_delivery().unwrap();
        machines[1 - from].on_released(delivery.peer);
        while machines[1 - from].next_free_slot().is_some() {}
    }
}

#[test]
fn the_reliability_machine_allocates_no_memory_once_it_knows_its_peer() {
    let _guard = serialize();
    let machine =
        |node| reliability::ReliabilityMachine::new(reliability::Config::new(node, 2, 1, 1));
    let (mut machines, mut now) = ([machine(0), machine(1)], 1);
    exchange_messages(&mut machines, &mut now, 100);
    let before = ALLOCATIONS.with(Cell::get);
    exchange_messages(&mut machines, &mut now, 100_000);
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
}
