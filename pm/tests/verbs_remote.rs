//! Remote memory over RDMA hardware, alone and in composites with shmem. Nothing where there is no
//! adapter; `cargo xtask test virtual` has one.

#![allow(unsafe_code, missing_docs)]

mod bed;

use bed::*;
use score_pm::*;
use std::process::Command;
use std::time::{Duration, Instant};

fn on_verbs(nodes: usize, test: impl Fn(&Bed)) {
    let _dog = Watchdog::new(120);
    for kind in kinds().iter().filter(|_| in_machine()) {
        test(&Bed::new(kind, nodes));
    }
}

/// Locked memory of a node, of PM's allocator or not.
struct Memory<'a> {
    end: &'a Context,
    at: *mut u8,
    len: usize,
    ours: bool,
    handle: AddrHandle,
}

impl<'a> Memory<'a> {
    fn new(bed: &'a Bed, node: usize, ours: bool, len: usize) -> Memory<'a> {
        let end = &*bed.ends[node];
        let at = if ours {
            end.allocate_memory(len).unwrap()
        } else {
            Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr()
        };
        let handle = end.lock_memory(None, at.addr(), len).unwrap();
        Memory { end, at, len, ours, handle }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: ours until it is dropped; whoever writes has been waited for.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }.to_vec()
    }

    /// `with` is asked for the first 4096, which then come again: all is slow in the machine.
    fn fill(&self, with: impl Fn(usize) -> u8) {
        let few: Vec<u8> = (0..self.len.min(4096)).map(with).collect();
        for begin in (0..self.len).step_by(4096) {
            let len = few.len().min(self.len - begin);
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(few.as_ptr(), self.at.add(begin), len) };
        }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = self.end.unlock_memory(None, self.at.addr(), self.len);
        if self.ours {
            let _ = self.end.free_memory(self.at);
        }
    }
}

/// Waits until both directions are done; answers what they say.
fn done(end: &Context) -> (Result<()>, Result<()>) {
    (until(|| end.is_write_done()), until(|| end.is_read_done()))
}

const WELL: (Result<()>, Result<()>) = (Ok(()), Ok(()));

#[test]
fn bytes_go_both_ways_and_nothing_beside_them_is_touched() {
    on_verbs(2, |bed| {
        let end = &bed.ends[0];
        for (ours, len) in [(true, 1), (false, 8), (true, 4097), (false, 70_001), (true, 1 << 21)] {
            let (a, b) =
                (Memory::new(bed, 0, ours, len + 64), Memory::new(bed, 1, !ours, len + 64));
            a.fill(|i| (i * 7) as u8);
            b.fill(|_| 90);
            until(|| end.write(1, b.handle + 33, a.handle + 5, len)).unwrap();
            assert_eq!(done(end), WELL);
            let (here, there) = (a.bytes(), b.bytes());
            assert_eq!(there[33..33 + len], here[5..5 + len], "{len}");
            assert!(there[..33].iter().chain(&there[33 + len..]).all(|&byte| byte == 90));
            a.fill(|_| 50);
            until(|| end.read(1, b.handle + 33, a.handle + 1, len)).unwrap();
            assert_eq!(done(end), WELL);
            let here = a.bytes();
            assert_eq!(here[1..1 + len], there[33..33 + len], "{len}");
            assert!(here[..1].iter().chain(&here[1 + len..]).all(|&byte| byte == 50));
        }
        let counters = bed.counters(0);
        assert_eq!((counters.remote, counters.sent), (0, 0));
    });
}

#[test]
fn short_reads_across_the_end_of_a_page_bring_what_is_there() {
    on_verbs(2, |bed| {
        let end = &bed.ends[0];
        let (a, b) = (Memory::new(bed, 0, true, 64), Memory::new(bed, 1, false, 3 * 4096));
        b.fill(|i| (i * 7) as u8);
        let (there, page) = (b.bytes(), b.at.addr().next_multiple_of(4096) + 4096 - b.at.addr());
        let cuts = |len: usize| (1..len).map(move |before| (len, before));
        for (len, before) in [2, 5, 25, 32, 33].into_iter().flat_map(cuts) {
            let from = page - before;
            a.fill(|_| 50);
            until(|| end.read(1, b.handle + from as u64, a.handle + 3, len)).unwrap();
            assert_eq!(done(end), WELL);
            let here = a.bytes();
            assert_eq!(here[3..3 + len], there[from..from + len], "{before} of {len} before it");
            assert!(here[..3].iter().chain(&here[3 + len..]).all(|&byte| byte == 50));
        }
    });
}

#[test]
fn a_wrong_handle_is_refused_here_or_told_once_and_the_rest_goes_on() {
    on_verbs(3, |bed| {
        let end = &bed.ends[0];
        // Node 1 is reached by verbs in both kinds.
        let (a, b) = (Memory::new(bed, 0, true, 4096), Memory::new(bed, 1, false, 4096));
        a.fill(|_| 1);
        b.fill(|_| 2);
        let none = AddrHandle::from_bits(0);
        for (node, remote, local, len) in [
            (1, none, a.handle, 8),
            (1, b.handle, none, 8),
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
            until(|| end.write(1, remote, a.handle, len)).unwrap();
            assert_eq!(done(end), (Err(Error::Io), Ok(())), "{remote:?}");
            until(|| end.read(1, remote, a.handle, len)).unwrap();
            assert_eq!(done(end), (Ok(()), Err(Error::Io)), "{remote:?}");
            assert_eq!(done(end), WELL, "told once");
        }
        assert!(a.bytes().iter().all(|&byte| byte == 1));
        assert!(b.bytes().iter().all(|&byte| byte == 2));
        let again = {
            let (at, len) = (b.at.addr(), b.len);
            bed.ends[1].unlock_memory(None, at, len).unwrap();
            bed.ends[1].lock_memory(None, at, len).unwrap()
        };
        assert_ne!(again, b.handle);
        until(|| end.write(1, again, a.handle, 8)).unwrap();
        assert_eq!(done(end), WELL);
        send_surely(end, 1, b"still here");
        assert_eq!(receive_surely(&bed.ends[1]), b"still here");
    });
}

#[test]
fn what_the_adapter_refuses_is_eio_and_nothing_else_is_lost() {
    on_verbs(2, |bed| {
        let end = &bed.ends[0];
        let (a, b) = (Memory::new(bed, 0, true, 4096), Memory::new(bed, 1, true, 4096));
        // Memory that may only be read can be read from there, and not written.
        let text: &'static [u8] = b"the program's own text, which nobody may write to";
        let (at, len) = (text.as_ptr().addr(), text.len());
        let constant = bed.ends[1].lock_memory(None, at, len).unwrap();
        until(|| end.write(1, b.handle, a.handle, 100)).unwrap();
        until(|| end.write(1, constant, a.handle, 8)).unwrap();
        until(|| end.read(1, constant, a.handle, len)).unwrap();
        for i in 0..20u32 {
            send_surely(end, 1, &i.to_le_bytes());
        }
        assert_eq!(done(end), (Err(Error::Io), Ok(())));
        assert_eq!(&a.bytes()[..len], text);
        for i in 0..20u32 {
            assert_eq!(receive_surely(&bed.ends[1]), i.to_le_bytes());
        }
        assert_eq!(receive(&bed.ends[1]), Err(Error::NoBuffers));
        bed.ends[1].unlock_memory(None, at, len).unwrap();
    });
}

/// Changes the key of a region in the tables where peers look it up, as if its adapter had lost it.
fn spoil(memory: &Memory) {
    const USED: u64 = 1 << 63;
    let number = memory.handle.bits() >> 40;
    let entry = [USED | number, memory.at.addr() as u64, memory.len as u64];
    let mut found = 0;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        if !rest.starts_with("rw-s") || !rest.contains("/dev/zero") {
            continue;
        }
        let ends = range.split('-').map(|end| usize::from_str_radix(end, 16).unwrap());
        let [start, end] = ends.collect::<Vec<_>>()[..] else { panic!("{line}") };
        for at in (start..end).step_by(32) {
            let words = std::ptr::with_exposed_provenance_mut::<u64>(at);
            // SAFETY: mapped, and nobody unmaps anything here; who reads it meanwhile sees that.
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

/// On iWARP each connection ends with such a write, and nothing tells that it was that.
#[test]
fn what_only_the_adapter_knows_to_be_wrong_is_eio_for_that_alone() {
    on_verbs(2, |bed| {
        let (end, other) = (&bed.ends[0], &bed.ends[1]);
        let here = [0, 1].map(|node| Memory::new(bed, node, true, 4096));
        let areas: Vec<_> = (0..4).map(|i| Memory::new(bed, i % 2, true, 4096)).collect();
        let bad = Memory::new(bed, 1, true, 4096);
        here.iter().for_each(|area| area.fill(|_| 1));
        spoil(&bad);
        // One of many, and the other node has its own on the way.
        until(|| end.write(1, areas[1].handle, here[0].handle, 4096)).unwrap();
        until(|| end.write(1, bad.handle, here[0].handle, 100)).unwrap();
        until(|| other.write(0, areas[0].handle, here[1].handle, 4096)).unwrap();
        until(|| end.read(1, here[1].handle, areas[2].handle, 4096)).unwrap();
        until(|| other.read(0, here[0].handle, areas[3].handle, 4096)).unwrap();
        for i in 0..20u32 {
            send_surely(end, 1, &i.to_le_bytes());
            send_surely(other, 0, &i.to_le_bytes());
        }
        assert_eq!(done(end), (Err(Error::Io), Ok(())));
        assert_eq!(done(other), WELL);
        assert!(areas.iter().all(|area| area.bytes().iter().all(|&byte| byte == 1)));
        assert!(bad.bytes().iter().all(|&byte| byte == 0));
        for i in 0..20u32 {
            assert_eq!(receive_surely(other), i.to_le_bytes());
            assert_eq!(receive_surely(end), i.to_le_bytes());
        }
        assert_eq!(receive(other), Err(Error::NoBuffers));
    });
}

#[test]
fn operations_take_effect_in_order_and_before_messages_that_are_sent_later() {
    const LEN: usize = 20_000;
    on_verbs(2, |bed| {
        let end = &bed.ends[0];
        let b = Memory::new(bed, 1, true, LEN);
        let read = Memory::new(bed, 0, true, LEN);
        let areas: Vec<_> = (0..8).map(|i| Memory::new(bed, 0, i % 2 == 0, LEN)).collect();
        for round in 0..8u8 {
            let area = &areas[usize::from(round)];
            area.fill(|_| round + 1);
            let len = if round % 2 == 0 { LEN } else { 1000 };
            until(|| end.write(1, b.handle, area.handle, len)).unwrap();
            if round % 3 == 0 {
                until(|| end.read(1, b.handle, read.handle, LEN)).unwrap();
            }
            if round % 3 == 1 {
                send_surely(end, 1, &[round + 1]);
                assert_eq!(receive_surely(&bed.ends[1]), [round + 1]);
                assert!(b.bytes()[..len].iter().all(|&byte| byte == round + 1), "overtaken");
            }
            if round % 3 == 0 {
                assert_eq!(done(end), WELL);
                assert!(read.bytes()[..len].iter().all(|&byte| byte == round + 1));
            }
        }
        // Later writes do not show in what was read before them.
        areas[0].fill(|_| 77);
        areas[1].fill(|_| 78);
        until(|| end.write(1, b.handle, areas[0].handle, LEN)).unwrap();
        until(|| end.read(1, b.handle, read.handle, LEN)).unwrap();
        until(|| end.write(1, b.handle, areas[1].handle, LEN)).unwrap();
        assert_eq!(done(end), WELL);
        assert!(read.bytes().iter().all(|&byte| byte == 77));
        assert!(b.bytes().iter().all(|&byte| byte == 78));
    });
}

#[test]
fn an_operation_on_a_node_that_has_gone_is_eio() {
    on_verbs(2, |bed| {
        let end = &bed.ends[0];
        let (a, b) = (Memory::new(bed, 0, true, 64), Memory::new(bed, 1, true, 64));
        until(|| end.write(1, b.handle, a.handle, 64)).unwrap();
        assert_eq!(done(end), WELL);
        bed.mark_exited(1);
        until(|| end.write(1, b.handle, a.handle, 64)).unwrap();
        assert_eq!(done(end), (Err(Error::Io), Ok(())));
        until(|| end.read(1, b.handle, a.handle, 64)).unwrap();
        assert_eq!(done(end), (Ok(()), Err(Error::Io)));
        assert_eq!(done(end), WELL);
    });
}

/// Says a word to the link of the bed's adapter.
fn link(bed: &Bed, state: &str) {
    let wire = if bed.kind.contains("iwarp") { "wire1" } else { "wire0" };
    let words = ["link", "set", wire, state];
    assert!(Command::new("ip").args(words).status().unwrap().success());
}

#[test]
fn transfers_go_on_after_a_port_was_down() {
    const LEN: usize = 1 << 20;
    on_verbs(2, |bed| {
        let end = &bed.ends[0];
        let (a, b) = (Memory::new(bed, 0, true, LEN), Memory::new(bed, 1, true, LEN));
        let c = Memory::new(bed, 0, true, LEN);
        a.fill(|i| ((i * 31) >> 3) as u8);
        until(|| end.write(1, b.handle, a.handle, 8)).unwrap();
        assert_eq!(done(end), WELL);
        link(bed, "down");
        let begin = Instant::now();
        until(|| end.write(1, b.handle, a.handle, LEN)).unwrap();
        until(|| end.read(1, b.handle, c.handle, LEN)).unwrap();
        send_surely(end, 1, b"after");
        assert_eq!(bed.counters(0).remote, 2, "the detector sees them");
        assert_eq!(end.queue_status().unwrap().read, 1);
        assert_eq!(end.is_read_done(), Err(Error::Busy));
        std::thread::sleep(Duration::from_millis(100));
        // As long as an adapter tries: rdma_rxe reaches itself by the queue pair that comes then.
        let told = end.is_read_done();
        if begin.elapsed() < Duration::from_millis(400) {
            assert_eq!(told, Err(Error::Busy));
        }
        std::thread::sleep(Duration::from_secs(1));
        link(bed, "up");
        assert_eq!(receive_surely(&bed.ends[1]), b"after");
        assert_eq!(done(end), WELL);
        assert!(b.bytes() == a.bytes() && c.bytes() == a.bytes());
    });
}
