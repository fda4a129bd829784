//! Tests of remote memory over RDMA hardware, alone and in composites with shmem. The tests do
//! nothing if there is no adapter. `cargo xtask test virtual` has one.

use crate::testbed::*;
use score_pm::*;
use std::process::Command;
use std::time::{Duration, Instant};

fn on_verbs(nodes: usize, test: impl Fn(&TestBed)) {
    let _dog = Watchdog::new(120);
    for kind in kinds().iter().filter(|_| in_vm()) {
        test(&TestBed::new(kind, nodes));
    }
}

/// Locked memory of a node, which PM's allocator may have allocated.
struct VerbsMemory<'a> {
    end: &'a Context,
    addr: *mut u8,
    len: usize,
    is_pm_allocated: bool,
    handle: AddrHandle,
}

impl<'a> VerbsMemory<'a> {
    fn new(bed: &'a TestBed, node: usize, is_pm_allocated: bool, len: usize) -> VerbsMemory<'a> {
        let end = &*bed.contexts[node];
        let addr = if is_pm_allocated {
            end.allocate_memory(len).unwrap()
        } else {
            Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr()
        };
        let handle = end.lock_memory(None, addr.addr(), len).unwrap();
        VerbsMemory { end, addr, len, is_pm_allocated, handle }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: this value owns the memory until it is dropped, and the test has waited for all
        // writes.
        unsafe { std::slice::from_raw_parts(self.addr, self.len) }.to_vec()
    }

    /// Fills the memory. `byte_at` is called for the first 4096 bytes, which are then repeated,
    /// because the virtual machine is slow.
    fn fill(&self, byte_at: impl Fn(usize) -> u8) {
        let block: Vec<u8> = (0..self.len.min(4096)).map(byte_at).collect();
        for begin in (0..self.len).step_by(4096) {
            let len = block.len().min(self.len - begin);
            // SAFETY: this value owns the memory, and the range is inside it.
            unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), self.addr.add(begin), len) };
        }
    }
}

impl Drop for VerbsMemory<'_> {
    fn drop(&mut self) {
        let _ = self.end.unlock_memory(None, self.addr.addr(), self.len);
        if self.is_pm_allocated {
            let _ = self.end.free_memory(self.addr);
        }
    }
}

/// Waits until both directions are done, and returns their results.
fn wait_done(end: &Context) -> (PmResult<()>, PmResult<()>) {
    (retry_until_done(|| end.is_write_done()), retry_until_done(|| end.is_read_done()))
}

const BOTH_OK: (PmResult<()>, PmResult<()>) = (Ok(()), Ok(()));

#[test]
fn bytes_are_written_and_read_and_adjacent_bytes_are_not_touched() {
    on_verbs(2, |bed| {
        let end = &bed.contexts[0];
        for (is_pm_allocated, len) in
            [(true, 1), (false, 8), (true, 4097), (false, 70_001), (true, 1 << 21)]
        {
            let (a, b) = (
                VerbsMemory::new(bed, 0, is_pm_allocated, len + 64),
                VerbsMemory::new(bed, 1, !is_pm_allocated, len + 64),
            );
            a.fill(|i| (i * 7) as u8);
            b.fill(|_| 90);
            retry_until_done(|| end.write(1, b.handle + 33, a.handle + 5, len)).unwrap();
            assert_eq!(wait_done(end), BOTH_OK);
            let (local, remote) = (a.bytes(), b.bytes());
            assert_eq!(remote[33..33 + len], local[5..5 + len], "{len}");
            assert!(remote[..33].iter().chain(&remote[33 + len..]).all(|&byte| byte == 90));
            a.fill(|_| 50);
            retry_until_done(|| end.read(1, b.handle + 33, a.handle + 1, len)).unwrap();
            assert_eq!(wait_done(end), BOTH_OK);
            let local = a.bytes();
            assert_eq!(local[1..1 + len], remote[33..33 + len], "{len}");
            assert!(local[..1].iter().chain(&local[1 + len..]).all(|&byte| byte == 50));
        }
        let counters = bed.counters(0);
        assert_eq!((counters.pending_rma, counters.sent), (0, 0));
    });
}

#[test]
fn short_reads_across_the_end_of_a_page_return_the_right_bytes() {
    on_verbs(2, |bed| {
        let end = &bed.contexts[0];
        let (a, b) =
            (VerbsMemory::new(bed, 0, true, 64), VerbsMemory::new(bed, 1, false, 3 * 4096));
        b.fill(|i| (i * 7) as u8);
        let (remote, page) =
            (b.bytes(), b.addr.addr().next_multiple_of(4096) + 4096 - b.addr.addr());
        let splits = |len: usize| (1..len).map(move |before| (len, before));
        for (len, before) in [2, 5, 25, 32, 33].into_iter().flat_map(splits) {
            let from = page - before;
            a.fill(|_| 50);
            retry_until_done(|| end.read(1, b.handle + from as u64, a.handle + 3, len)).unwrap();
            assert_eq!(wait_done(end), BOTH_OK);
            let local = a.bytes();
            assert_eq!(local[3..3 + len], remote[from..from + len], "{before} of {len} before it");
            assert!(local[..3].iter().chain(&local[3 + len..]).all(|&byte| byte == 50));
        }
    });
}

#[test]
fn a_wrong_handle_is_refused_at_once_or_reported_once_and_others_continue() {
    on_verbs(3, |bed| {
        let end = &bed.contexts[0];
        // Node 0 reaches node 1 by verbs in all kinds of test bed.
        let (a, b) = (VerbsMemory::new(bed, 0, true, 4096), VerbsMemory::new(bed, 1, false, 4096));
        a.fill(|_| 1);
        b.fill(|_| 2);
        let null_handle = AddrHandle::from_bits(0);
        for (node, remote, local, len) in [
            (1, null_handle, a.handle, 8),
            (1, b.handle, null_handle, 8),
            (1, b.handle, a.handle + 4089, 8),
            (1, b.handle, a.handle, 0),
            (1, b.handle, a.handle, RMA_MTU + 1),
            (0, b.handle, a.handle, 8),
            (3, b.handle, a.handle, 8),
        ] {
            assert_eq!(end.write(node, remote, local, len), Err(Error::Invalid), "{node} {len}");
            assert_eq!(end.read(node, remote, local, len), Err(Error::Invalid), "{node} {len}");
        }
        let bits = b.handle.bits();
        for (remote, len) in [
            (b.handle + 4089, 8),
            (b.handle + (1 << 39), 8),
            (AddrHandle::from_bits(bits ^ 1 << 63), 8),
            (AddrHandle::from_bits(bits ^ 1 << 40), 8),
        ] {
            retry_until_done(|| end.write(1, remote, a.handle, len)).unwrap();
            assert_eq!(wait_done(end), (Err(Error::Io), Ok(())), "{remote:?}");
            retry_until_done(|| end.read(1, remote, a.handle, len)).unwrap();
            assert_eq!(wait_done(end), (Ok(()), Err(Error::Io)), "{remote:?}");
            assert_eq!(wait_done(end), BOTH_OK, "reported once");
        }
        assert!(a.bytes().iter().all(|&byte| byte == 1));
        assert!(b.bytes().iter().all(|&byte| byte == 2));
        let new_handle = {
            let (at, len) = (b.addr.addr(), b.len);
            bed.contexts[1].unlock_memory(None, at, len).unwrap();
            bed.contexts[1].lock_memory(None, at, len).unwrap()
        };
        assert_ne!(new_handle, b.handle);
        retry_until_done(|| end.write(1, new_handle, a.handle, 8)).unwrap();
        assert_eq!(wait_done(end), BOTH_OK);
        send_surely(end, 1, b"still here");
        assert_eq!(receive_surely(&bed.contexts[1]), b"still here");
    });
}

#[test]
fn an_operation_that_the_adapter_refuses_is_eio_and_others_complete() {
    on_verbs(2, |bed| {
        let end = &bed.contexts[0];
        let (a, b) = (VerbsMemory::new(bed, 0, true, 4096), VerbsMemory::new(bed, 1, true, 4096));
        // A peer can read read-only memory, but cannot write it.
        let text: &'static [u8] = b"the program's own text, which must not be written";
        let (text_addr, len) = (text.as_ptr().addr(), text.len());
        let constant = bed.contexts[1].lock_memory(None, text_addr, len).unwrap();
        retry_until_done(|| end.write(1, b.handle, a.handle, 100)).unwrap();
        retry_until_done(|| end.write(1, constant, a.handle, 8)).unwrap();
        retry_until_done(|| end.read(1, constant, a.handle, len)).unwrap();
        for i in 0..20u32 {
            send_surely(end, 1, &i.to_le_bytes());
        }
        assert_eq!(wait_done(end), (Err(Error::Io), Ok(())));
        assert_eq!(&a.bytes()[..len], text);
        for i in 0..20u32 {
            assert_eq!(receive_surely(&bed.contexts[1]), i.to_le_bytes());
        }
        assert_eq!(receive(&bed.contexts[1]), Err(Error::NoBuffers));
        bed.contexts[1].unlock_memory(None, text_addr, len).unwrap();
    });
}

/// Changes the key of a region in the tables that peers read, as if the adapter had lost the key.
fn corrupt_key(memory: &VerbsMemory) {
    const ENTRY_VALID: u64 = 1 << 63;
    let number = memory.handle.bits() >> 40;
    let entry = [ENTRY_VALID | number, memory.addr.addr() as u64, memory.len as u64];
    let mut found = 0;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        if !rest.starts_with("rw-s") || !rest.contains("/dev/zero") {
            continue;
        }
        let ends = range.split('-').map(|end| usize::from_str_radix(end, 16).unwrap());
        let [start, end] = ends.collect::<Vec<_>>()[..] else { panic!("{line}") };
        for addr in (start..end).step_by(32) {
            let words = std::ptr::with_exposed_provenance_mut::<u64>(addr);
            // SAFETY: the memory is mapped and is not unmapped meanwhile. Other readers may see the
            // change.
            unsafe {
                if std::ptr::read_volatile(words.cast::<[u64; 3]>()) == entry {
                    let key = words.add(3);
                    key.write_volatile(key.read_volatile() ^ 0x7f_ff00);
                    found += 1;
                }
            }
        }
    }
    assert!(found > 0, "its entry is in no table");
}

// Promise (messages): A remote operation that only the peer's adapter detects as wrong is EIO; no
// other operation and no message is lost.
#[test]
fn an_error_that_only_the_adapter_detects_is_eio_for_that_operation_alone() {
    on_verbs(2, |bed| {
        let (end, other) = (&bed.contexts[0], &bed.contexts[1]);
        let sources = [0, 1].map(|node| VerbsMemory::new(bed, node, true, 4096));
        let areas: Vec<_> = (0..4).map(|i| VerbsMemory::new(bed, i % 2, true, 4096)).collect();
        let bad = VerbsMemory::new(bed, 1, true, 4096);
        sources.iter().for_each(|area| area.fill(|_| 1));
        corrupt_key(&bad);
        // One of several writes fails while the other node also has operations in flight.
        retry_until_done(|| end.write(1, areas[1].handle, sources[0].handle, 4096)).unwrap();
        retry_until_done(|| end.write(1, bad.handle, sources[0].handle, 100)).unwrap();
        retry_until_done(|| other.write(0, areas[0].handle, sources[1].handle, 4096)).unwrap();
        retry_until_done(|| end.read(1, sources[1].handle, areas[2].handle, 4096)).unwrap();
        retry_until_done(|| other.read(0, sources[0].handle, areas[3].handle, 4096)).unwrap();
        for i in 0..20u32 {
            send_surely(end, 1, &i.to_le_bytes());
            send_surely(other, 0, &i.to_le_bytes());
        }
        assert_eq!(wait_done(end), (Err(Error::Io), Ok(())));
        assert_eq!(wait_done(other), BOTH_OK);
        assert!(areas.iter().all(|area| area.bytes().iter().all(|&byte| byte == 1)));
        assert!(bad.bytes().iter().all(|&byte| byte == 0));
        for i in 0..20u32 {
            assert_eq!(receive_surely(other), i.to_le_bytes());
            assert_eq!(receive_surely(end), i.to_le_bytes());
        }
        assert_eq!(receive(other), Err(Error::NoBuffers));
    });
}

// Promise (messages): Remote memory over RDMA hardware: writes and reads, in order with later
// messages; wrong handles are reported once and change nothing; also if a port goes down during a
// transfer.
#[test]
fn operations_take_effect_in_order_and_before_messages_that_are_sent_later() {
    const LEN: usize = 20_000;
    on_verbs(2, |bed| {
        let end = &bed.contexts[0];
        let b = VerbsMemory::new(bed, 1, true, LEN);
        let read = VerbsMemory::new(bed, 0, true, LEN);
        let areas: Vec<_> = (0..8).map(|i| VerbsMemory::new(bed, 0, i % 2 == 0, LEN)).collect();
        for round in 0..8u8 {
            let area = &areas[usize::from(round)];
            area.fill(|_| round + 1);
            let len = if round % 2 == 0 { LEN } else { 1000 };
            retry_until_done(|| end.write(1, b.handle, area.handle, len)).unwrap();
            if round % 3 == 0 {
                retry_until_done(|| end.read(1, b.handle, read.handle, LEN)).unwrap();
            }
            if round % 3 == 1 {
                send_surely(end, 1, &[round + 1]);
                assert_eq!(receive_surely(&bed.contexts[1]), [round + 1]);
                assert!(b.bytes()[..len].iter().all(|&byte| byte == round + 1), "overtaken");
            }
            if round % 3 == 0 {
                assert_eq!(wait_done(end), BOTH_OK);
                assert!(read.bytes()[..len].iter().all(|&byte| byte == round + 1));
            }
        }
        // Later writes do not change the result of an earlier read.
        areas[0].fill(|_| 77);
        areas[1].fill(|_| 78);
        retry_until_done(|| end.write(1, b.handle, areas[0].handle, LEN)).unwrap();
        retry_until_done(|| end.read(1, b.handle, read.handle, LEN)).unwrap();
        retry_until_done(|| end.write(1, b.handle, areas[1].handle, LEN)).unwrap();
        assert_eq!(wait_done(end), BOTH_OK);
        assert!(read.bytes().iter().all(|&byte| byte == 77));
        assert!(b.bytes().iter().all(|&byte| byte == 78));
    });
}

#[test]
fn an_operation_on_an_exited_node_is_eio() {
    on_verbs(2, |bed| {
        let end = &bed.contexts[0];
        let (a, b) = (VerbsMemory::new(bed, 0, true, 64), VerbsMemory::new(bed, 1, true, 64));
        retry_until_done(|| end.write(1, b.handle, a.handle, 64)).unwrap();
        assert_eq!(wait_done(end), BOTH_OK);
        bed.mark_exited(1);
        retry_until_done(|| end.write(1, b.handle, a.handle, 64)).unwrap();
        assert_eq!(wait_done(end), (Err(Error::Io), Ok(())));
        retry_until_done(|| end.read(1, b.handle, a.handle, 64)).unwrap();
        assert_eq!(wait_done(end), (Ok(()), Err(Error::Io)));
        assert_eq!(wait_done(end), BOTH_OK);
    });
}

/// Waits until all operations on node 1 up to `number` have completed. Returns the numbers of those
/// that have failed.
fn failures_up_to(end: &Context, number: u64) -> Vec<u64> {
    let (mut failures, mut completed) = (Vec::new(), 0);
    retry_until_done(|| {
        let status = end.remote_status(1)?;
        assert!(status.completed >= completed && status.completed <= status.started);
        completed = status.completed;
        if status.has_failed {
            failures.push(completed);
        }
        if status.has_failed || completed < number { Err(Error::Busy) } else { Ok(()) }
    })
    .unwrap();
    failures
}

/// An operation that the adapter refuses is counted by its number, although it may end before
/// others.
#[test]
fn operations_complete_by_number_and_a_failure_concerns_one_number() {
    on_verbs(2, |bed| {
        let end = &bed.contexts[0];
        let (a, b) = (VerbsMemory::new(bed, 0, true, 4096), VerbsMemory::new(bed, 1, true, 4096));
        let bad = VerbsMemory::new(bed, 1, true, 4096);
        corrupt_key(&bad);
        for number in 1..=12 {
            let remote = if number == 5 { &bad } else { &b };
            let call = if number % 3 == 0 { Context::read } else { Context::write };
            retry_until_done(|| call(end, 1, remote.handle, a.handle, 1000)).unwrap();
        }
        assert_eq!(failures_up_to(end, 12), [5]);
        assert_eq!(failures_up_to(end, 12), [], "reported once");
        assert_eq!(wait_done(end), (Err(Error::Io), Ok(())));
        retry_until_done(|| end.write(1, bad.handle, a.handle, 100)).unwrap();
        retry_until_done(|| end.write(1, b.handle, a.handle, 100)).unwrap();
        assert_eq!(failures_up_to(end, 14), [13]);
        bed.mark_exited(1);
        retry_until_done(|| end.write(1, b.handle, a.handle, 100)).unwrap();
        assert_eq!(failures_up_to(end, 15), [15]);
    });
}

/// Sets the state of the adapter's link.
fn link(state: &str) {
    let words = ["link", "set", "wire0", state];
    assert!(Command::new("ip").args(words).status().unwrap().success());
}

#[test]
fn transfers_continue_after_a_port_was_down() {
    const LEN: usize = 1 << 20;
    on_verbs(2, |bed| {
        let end = &bed.contexts[0];
        let (a, b) = (VerbsMemory::new(bed, 0, true, LEN), VerbsMemory::new(bed, 1, true, LEN));
        let c = VerbsMemory::new(bed, 0, true, LEN);
        a.fill(|i| ((i * 31) >> 3) as u8);
        retry_until_done(|| end.write(1, b.handle, a.handle, 8)).unwrap();
        assert_eq!(wait_done(end), BOTH_OK);
        link("down");
        let begin = Instant::now();
        retry_until_done(|| end.write(1, b.handle, a.handle, LEN)).unwrap();
        retry_until_done(|| end.read(1, b.handle, c.handle, LEN)).unwrap();
        send_surely(end, 1, b"after");
        assert_eq!(bed.counters(0).pending_rma, 2, "the detector sees them");
        assert_eq!(end.queue_status().unwrap().read, 1);
        assert_eq!(end.is_read_done(), Err(Error::Busy));
        std::thread::sleep(Duration::from_millis(100));
        // The read is outstanding only as long as the adapter retries. Afterwards rdma_rxe reaches
        // itself by another queue pair.
        let read_status = end.is_read_done();
        if begin.elapsed() < Duration::from_millis(400) {
            assert_eq!(read_status, Err(Error::Busy));
        }
        std::thread::sleep(Duration::from_secs(1));
        link("up");
        assert_eq!(receive_surely(&bed.contexts[1]), b"after");
        assert_eq!(wait_done(end), BOTH_OK);
        assert!(b.bytes() == a.bytes() && c.bytes() == a.bytes());
    });
}
