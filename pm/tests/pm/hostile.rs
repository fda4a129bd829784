//! Tests that a process which writes arbitrary data into the segment damages only its own messages.
//! Other processes get errors, but do not crash or read out of bounds.

use crate::testbed::hostile_segment::Segment;
use crate::testbed::*;
use score_pm::*;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A small random number generator with a seed, so that the tests can be repeated.
fn next_random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn a_corrupt_slot_is_eio_once_and_that_peer_is_cut_off_for_good() {
    on_local_kinds(3, |bed| {
        let segment = Segment::steal(bed);
        send(&bed.contexts[1], 0, &0x5c0_4e11_u64.to_le_bytes()).unwrap();
        let header = segment.find(0x5c0_4e11) - 2;
        segment.word(header).store(7 << 32 | 8, Ordering::Relaxed);
        assert_eq!(bed.contexts[0].receive(), Err(Error::Io));
        assert_eq!(bed.contexts[0].receive(), Err(Error::NoBuffers));
        assert_eq!(bed.contexts[0].get_send_buffer(1, 8), Err(Error::Io));
        assert_eq!(bed.contexts[0].get_multicast_buffer(&[1, 2], 8), Err(Error::Io));
        assert_eq!(bed.contexts[0].is_send_done(), Err(Error::Io));
        send(&bed.contexts[2], 0, b"others go on").unwrap();
        assert_eq!(receive(&bed.contexts[0]).unwrap(), b"others go on");
        send(&bed.contexts[0], 2, b"both ways").unwrap();
        assert_eq!(receive(&bed.contexts[2]).unwrap(), b"both ways");
    });
}

#[test]
fn every_impossible_header_is_refused() {
    const LONG: u64 = 1 << 30;
    // The length of the data area of two nodes.
    const AREA: u64 = 256 << 10;
    // The number of words from a ring's first slot to its second: 128 slots of two cache lines.
    const SECOND: usize = 128 * 16;
    let headers = [
        u64::MAX,
        2 << 32 | 8,
        1 << 32,
        1 << 32 | 49,
        1 << 32 | LONG,
        1 << 32 | LONG | 8193,
        1 << 32 | LONG | (LONG - 1),
    ];
    for header in headers {
        let bed = TestBed::new("shmem", 2);
        let segment = Segment::steal(&bed);
        send(&bed.contexts[1], 0, &0x5c0_4e11_u64.to_le_bytes()).unwrap();
        let index = segment.find(0x5c0_4e11) - 2;
        segment.word(index).store(header, Ordering::Relaxed);
        assert_eq!(bed.contexts[0].receive(), Err(Error::Io), "{header:#x}");
    }
    for position in [u64::MAX, 1, AREA, AREA - 64, 63, 1 << 63] {
        let bed = TestBed::new("shmem", 2);
        let segment = Segment::steal(&bed);
        send(&bed.contexts[1], 0, &[0x5c; 8000]).unwrap();
        send(&bed.contexts[1], 0, &0x5c0_4e11_u64.to_le_bytes()).unwrap();
        let index = segment.find(0x5c0_4e11) - 2 - SECOND;
        segment.word(index + 1).store(position, Ordering::Relaxed);
        // AREA, the start of the next lap, is valid, and so is the first fixed buffer (1 << 63).
        let is_in_area = [AREA, 1 << 63].contains(&position);
        assert_eq!(bed.contexts[0].receive().is_ok(), is_in_area, "{position:#x}");
    }
}

#[test]
fn impossible_credit_is_eio() {
    let bed = TestBed::new("shmem", 2);
    let segment = Segment::steal(&bed);
    while send(&bed.contexts[1], 0, &0x5c0_4e11_u64.to_le_bytes()).is_ok() {}
    // The header of the ring has the sender's cache line and, 128 bytes later, the receiver's.
    let ring_header = segment.find(0x5c0_4e11) - 2 - 32;
    assert_eq!(segment.word(ring_header).load(Ordering::Relaxed), 256);
    segment.word(ring_header + 16).store(1 << 50, Ordering::Relaxed);
    let errors: Vec<_> = (0..16).map(|_| bed.contexts[1].get_send_buffer(0, 8)).collect();
    assert!(errors.contains(&Err(Error::Io)), "{errors:?}");
    assert_eq!(bed.contexts[1].get_send_buffer(0, 8), Err(Error::Io));
}

// Promise of `garbage_in_shared_memory_ends_only_its_own_job`.
#[test]
fn garbage_all_over_the_segment_crashes_no_process() {
    let _dog = Watchdog::new(300);
    let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
    for kind in KINDS {
        for round in 0..6 {
            let bed = TestBed::new(kind, 3);
            let segment = Segment::steal(&bed);
            for k in 0..3 {
                for len in [8, 100, 8000] {
                    let _ = send(&bed.contexts[k], (k as u32 + 1) % 3, &vec![1; len]);
                }
            }
            let stop = AtomicBool::new(false);
            let mut attacker_seed = seed.wrapping_add(round);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let index = next_random(&mut attacker_seed) as usize % segment.words();
                        let value = match next_random(&mut attacker_seed) % 4 {
                            0 => next_random(&mut attacker_seed),
                            1 => {
                                ((next_random(&mut attacker_seed) % 4) << 32)
                                    | (next_random(&mut attacker_seed) % 9000)
                            }
                            2 => 0,
                            _ => next_random(&mut attacker_seed) % 300,
                        };
                        segment.word(index).store(value, Ordering::Relaxed);
                    }
                });
                for i in 0..1500 {
                    let k = next_random(&mut seed) as usize % 3;
                    let to = (k as u32 + 1 + (i % 2)) % 3;
                    let len = 1 + next_random(&mut seed) as usize % 8192;
                    let _ = send(&bed.contexts[k], to, &vec![2; len]);
                    if let Ok((payload, len)) = bed.contexts[k].receive() {
                        assert!((1..=8192).contains(&len));
                        let _ = bytes((payload, len));
                        bed.contexts[k].release_receive_buffer().unwrap();
                    }
                    if i % 100 == 0 {
                        let _ = bed.contexts[k].queue_status();
                        let _ = bed.contexts[k].before_select();
                        let _ = bed.contexts[k].receive().map(|_| bed.contexts[k].reset());
                        let _ = bed.contexts[k].after_select();
                        let _ = bed.device.counters(k as u32);
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            let _ = bed.contexts[0].reset();
            for node in 0..3 {
                bed.device.mark_exited(node).unwrap();
            }
        }
    }
}

#[test]
fn a_segment_cannot_be_resized_and_a_foreign_segment_is_refused() {
    let bed = TestBed::new("shmem", 2);
    let segment = Segment::steal(&bed);
    for size in [0, 4096, 1 << 30] {
        assert!(nix::unistd::ftruncate(&segment.2, size).is_err());
    }
    let attach = |message: &[u8], fds: &[BorrowedFd<'_>]| {
        let (a, b) = score_sys::unix_socket::seqpacket_pair().unwrap();
        score_sys::fd_passing::send(&a, message, fds).unwrap();
        Context::attach("shmem", b).map(drop)
    };
    let (good, memory) = (segment.1.clone(), segment.2.as_fd());
    assert_eq!(attach(&good, &[memory]), Ok(()));
    assert_eq!(attach(&good, &[]), Err(Error::Invalid));
    assert_eq!(attach(&good, &[memory, memory]), Err(Error::Invalid));
    assert_eq!(attach(&good[..10], &[memory]), Err(Error::Invalid));
    assert_eq!(attach(&[good.clone(), vec![0]].concat(), &[memory]), Err(Error::Invalid));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(attach(&good, &[file.as_fd()]), Err(Error::Invalid));
    let larger_bed = TestBed::new("shmem", 3);
    let larger_segment = Segment::steal(&larger_bed);
    assert_eq!(attach(&good, &[larger_segment.2.as_fd()]), Err(Error::Invalid), "another size");
    let second_bed = TestBed::new("shmem", 2);
    let second_segment = Segment::steal(&second_bed);
    assert_eq!(attach(&good, &[second_segment.2.as_fd()]), Err(Error::Invalid), "another nonce");
    for byte in 0..good.len() {
        let mut bad = good.clone();
        bad[byte] ^= 0x80;
        // The number and the channel may have any value. All other fields are checked.
        assert_eq!(attach(&bad, &[memory]).is_ok(), (8..16).contains(&byte), "byte {byte}");
    }
    segment.word(0).store(0, Ordering::Relaxed);
    assert_eq!(attach(&good, &[memory]), Err(Error::Invalid), "no magic");
}
