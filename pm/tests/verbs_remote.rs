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
    for kind in IN_MACHINE.iter().filter(|_| kinds() == IN_MACHINE) {
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
        (0..self.len).map(|i| unsafe { self.at.add(i).read_volatile() }).collect()
    }

    fn fill(&self, with: impl Fn(usize) -> u8) {
        // SAFETY: as above.
        (0..self.len).for_each(|i| unsafe { self.at.add(i).write_volatile(with(i)) });
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

fn until(mut done: impl FnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match done() {
            Err(Error::Busy | Error::NoBuffers) => std::thread::yield_now(),
            other => return other,
        }
        assert!(Instant::now() < end, "not done after 60 s");
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

/// Says a word to the network of the virtual machine.
fn link(state: &str) {
    let words = ["link", "set", "wire0", state];
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
        link("down");
        until(|| end.write(1, b.handle, a.handle, LEN)).unwrap();
        until(|| end.read(1, b.handle, c.handle, LEN)).unwrap();
        send_surely(end, 1, b"after");
        assert_eq!(bed.counters(0).remote, 2, "the detector sees them");
        assert_eq!(end.queue_status().unwrap().read, 1);
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(end.is_read_done(), Err(Error::Busy));
        link("up");
        assert_eq!(receive_surely(&bed.ends[1]), b"after");
        assert_eq!(done(end), WELL);
        assert!(b.bytes() == a.bytes() && c.bytes() == a.bytes());
    });
}
