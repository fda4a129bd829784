//! Tests of remote memory between hosts, with a process for each node: a target that calls no
//! function, a target that is stopped or killed, and an origin that ends.

use crate::hosts::*;
use crate::remote::memory::share_region_ids;
use crate::testbed::*;
use score_pm::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The length of a node's region in bytes.
const LEN: usize = 4 << 20;
/// The length of a write that is so short that all its bytes are in frames at once.
const SHORT_LEN: usize = 160_000;
const LOSS: [&str; 2] = ["-loss", "drop=0.03,duplicate=0.02,reorder=0.05,seed=5"];

/// This is not a test, but the code of the other processes.
#[test]
fn role() {
    let Some((role, given)) = InheritedNode::inherited() else { return };
    let _dog = Watchdog::new(300);
    let node = given.join();
    match role.as_str() {
        "computes" => {
            let region = Region::new(&node.end);
            region.send_handle(&node.end);
            // The process calls no function of PM until the last word of the region has changed.
            while region.word(LEN / 8 - 1).load(Ordering::Acquire) == 0 {
                std::hint::spin_loop();
            }
            send_surely(&node.end, 0, b"seen");
            assert_eq!(receive_surely(&node.end), b"end");
        }
        "asks and leaves" => {
            let region = Region::new(&node.end);
            let remote = handle(&receive_surely(&node.end));
            node.end.read(0, remote, region.handle, LEN).unwrap();
            let Node { end, ethernet, .. } = node;
            (0..2).for_each(|other| end.remove_node(other).unwrap());
            drop(end);
            ethernet.detach().unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        "sleeps" => {
            let region = Region::new(&node.end);
            region.send_handle(&node.end);
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        "leaves" => {
            write_region(&node.end, LEN);
            send_surely(&node.end, 0, b"written");
            let Node { end, ethernet, .. } = node;
            (0..2).for_each(|other| end.remove_node(other).unwrap());
            drop(end);
            ethernet.detach().unwrap();
        }
        "exits at once" => {
            write_region(&node.end, LEN);
            send_surely(&node.end, 0, b"written");
            // SAFETY: this ends the process without calling a handler.
            unsafe { libc::_exit(0) };
        }
        "exits without a message" => {
            write_region(&node.end, LEN);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        "exits after a short write" => {
            write_region(&node.end, SHORT_LEN);
            send_surely(&node.end, 0, b"written");
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        other => panic!("no role {other}"),
    }
}

/// Writes `len` bytes of a new region to node 0, without waiting.
fn write_region(end: &Context, len: usize) {
    let region = Region::new(end);
    (0..LEN / 8).for_each(|i| region.word(i).store(pattern(i), Ordering::Relaxed));
    let remote = handle(&receive_surely(end));
    end.write(0, remote, region.handle, len).unwrap();
}

fn pattern(word: usize) -> u64 {
    word as u64 * 0x9e37_79b9 + 1
}

fn handle(message: &[u8]) -> AddrHandle {
    AddrHandle::from_bits(u64::from_ne_bytes(message.try_into().unwrap()))
}

/// Locked memory, which is initially zero.
struct Region {
    words: &'static [AtomicU64],
    handle: AddrHandle,
}

impl Region {
    fn new(end: &Context) -> Region {
        let words: Vec<_> = (0..LEN / 8).map(|_| AtomicU64::new(0)).collect();
        let words: &'static [AtomicU64] = words.leak();
        let handle = end.lock_memory(None, words.as_ptr().addr(), LEN).unwrap();
        Region { words, handle }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }

    fn send_handle(&self, end: &Context) {
        send_surely(end, 0, &self.handle.bits().to_ne_bytes());
    }
}

/// Waits until no write and no read is outstanding.
fn done(end: &Context) -> PmResult<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match (end.is_write_done(), end.is_read_done()) {
            (Err(Error::Busy), _) | (_, Err(Error::Busy)) => std::thread::yield_now(),
            (write, read) => return write.and(read),
        }
        assert!(Instant::now() < deadline, "not done for 120 s");
    }
}

// Promise (messages): Remote memory between hosts needs no call of the target's program; a stopped
// target is no EIO, a dead one is; if the origin of a write exits, the write is complete before a
// later message arrives; over UDP, AF_PACKET and AF_XDP with loss.
#[test]
fn a_target_that_only_computes_is_written_and_read() {
    let _ids = share_region_ids();
    let _dog = Watchdog::new(300);
    for loss in [&[][..], &LOSS] {
        let hosts = Hosts::new(&[1, 1], loss);
        let local = hosts.give(0).join();
        let child = hosts.start(1, module_path!(), "computes");
        let remote = handle(&receive_surely(&local.end));
        let region = Region::new(&local.end);
        // The last word stays 0, so that the target continues to compute.
        (0..LEN / 8 - 1).for_each(|i| region.word(i).store(pattern(i), Ordering::Relaxed));
        local.end.write(1, remote, region.handle, LEN).unwrap();
        assert_eq!(done(&local.end), Ok(()));
        (0..LEN / 8).for_each(|i| region.word(i).store(7, Ordering::Relaxed));
        local.end.read(1, remote, region.handle, LEN).unwrap();
        assert_eq!(done(&local.end), Ok(()));
        for i in 0..LEN / 8 - 1 {
            assert_eq!(region.word(i).load(Ordering::Relaxed), pattern(i), "word {i}");
        }
        local.end.write(1, remote + (LEN as u64 - 8), region.handle, 8).unwrap();
        assert_eq!(receive_surely(&local.end), b"seen");
        send_surely(&local.end, 1, b"end");
        assert!(child.ends().success());
    }
}

// Promise of `a_target_that_only_computes_is_written_and_read`.
#[test]
fn an_operation_waits_for_a_stopped_target_and_fails_with_eio_for_a_killed_target() {
    let _ids = share_region_ids();
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[1, 1], &LOSS);
    let local = hosts.give(0).join();
    let child = hosts.start(1, module_path!(), "sleeps");
    let remote = handle(&receive_surely(&local.end));
    let region = Region::new(&local.end);
    let signal = |signal| {
        // SAFETY: this sends a signal to a child of this process.
        unsafe { libc::kill(child.id(), signal) };
    };
    let start_operations = || {
        local.end.write(1, remote, region.handle, LEN).unwrap();
        local.end.read(1, remote, region.handle, LEN).unwrap();
        send_surely(&local.end, 1, b"after both");
    };
    signal(libc::SIGSTOP);
    start_operations();
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        assert_eq!(local.end.is_write_done(), Err(Error::Busy), "there is no time-out");
    }
    assert_eq!(local.end.queue_status().unwrap().read, 1);
    let counters = hosts.hosts[0].ethernet.counters(0).unwrap();
    assert_eq!(counters.pending_rma, 2, "the detector sees them");
    signal(libc::SIGCONT);
    assert_eq!(done(&local.end), Ok(()));
    assert_eq!(hosts.hosts[0].ethernet.counters(0).unwrap().pending_rma, 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while local.end.is_send_done().is_err() {
        assert!(Instant::now() < deadline, "the message after both is not sent");
    }
    signal(libc::SIGSTOP);
    start_operations();
    signal(libc::SIGKILL);
    child.ends();
    assert_eq!(local.end.is_write_done(), Err(Error::Busy), "the exit is not reported");
    hosts.exited(1);
    for call in [Context::is_write_done, Context::is_read_done] {
        while call(&local.end) == Err(Error::Busy) {
            assert!(Instant::now() < deadline);
        }
    }
    assert_eq!(done(&local.end), Ok(()), "reported once");
    assert_eq!(hosts.hosts[0].ethernet.counters(0).unwrap().pending_rma, 0);
    while local.end.is_send_done().is_err() {
        assert!(Instant::now() < deadline, "messages after them are not dropped");
    }
    let (sent, received) = hosts.sums();
    assert_eq!(sent, received);
}

#[test]
fn the_operations_of_a_node_that_left_are_not_pending() {
    let _ids = share_region_ids();
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[1, 1], &[]);
    let local = hosts.give(0).join();
    let region = Region::new(&local.end);
    let child = hosts.start(1, module_path!(), "asks and leaves");
    send_surely(&local.end, 1, &region.handle.bits().to_ne_bytes());
    let deadline = Instant::now() + Duration::from_secs(60);
    let counters = || hosts.hosts[1].ethernet.counters(1).unwrap();
    while counters().receiver_state & 2 == 0 || counters().pending_rma > 0 {
        let _ = receive(&local.end);
        assert!(Instant::now() < deadline, "{:?}", counters());
    }
    drop(child);
}

// Promise of `a_target_that_only_computes_is_written_and_read`.
#[test]
fn a_write_whose_origin_exits_is_complete_when_a_later_message_arrives() {
    let _ids = share_region_ids();
    let _dog = Watchdog::new(300);
    assert!(message_survives_exit("leaves", &LOSS, LEN));
    // If no exit handler runs, bytes that were not in frames are lost, and so is the message.
    message_survives_exit("exits at once", &LOSS, LEN);
    assert!(!message_survives_exit("exits without a message", &LOSS, LEN));
}

/// All bytes are in frames before the message is sent, so both outlive the process.
#[test]
fn a_short_write_and_a_later_message_outlive_their_origin() {
    let _ids = share_region_ids();
    let _dog = Watchdog::new(300);
    let outlives = |seed: &u32| {
        message_survives_exit(
            "exits after a short write",
            &["-loss", &format!("drop=0.3,seed={seed}")],
            SHORT_LEN,
        )
    };
    let survived: Vec<u32> = (0..6).filter(outlives).collect();
    assert_eq!(survived.len(), 6, "only with seeds {survived:?}");
}

/// Node 1 writes `len` bytes to node 0, sends a message and ends. Returns whether the message has
/// arrived. If so, checks that all bytes have also arrived.
fn message_survives_exit(role: &str, loss: &[&str], len: usize) -> bool {
    let hosts = Hosts::new(&[1, 1], loss);
    let local = hosts.give(0).join();
    let region = Region::new(&local.end);
    let mut child = hosts.start(1, module_path!(), role);
    send_surely(&local.end, 1, &region.handle.bits().to_ne_bytes());
    let mut message_received = false;
    let mut receive = || match receive(&local.end) {
        Ok(message) => {
            assert_eq!(message, b"written");
            for i in 0..len / 8 {
                assert_eq!(region.word(i).load(Ordering::Relaxed), pattern(i), "{role} word {i}");
            }
            message_received = true;
        }
        Err(error) => assert_eq!(error, Error::NoBuffers),
    };
    while child.0.try_wait().unwrap().is_none() {
        receive();
    }
    hosts.exited(1);
    let deadline = Instant::now() + Duration::from_secs(60);
    hosts.serve_while(|| {
        receive();
        !hosts.hosts[1].ethernet.is_idle().unwrap() && Instant::now() < deadline
    });
    (0..1000).for_each(|_| receive());
    assert_eq!(hosts.hosts[1].ethernet.counters(1).unwrap().pending_rma, 0, "{role}");
    let (sent, received) = hosts.sums();
    assert_eq!(sent, received, "{role}");
    message_received
}
