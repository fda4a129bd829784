//! Tests of contexts whose calls the program promises to serialize (`set_serialized`, an extension
//! of the manual). The test harness has its own threads. Therefore these processes always have
//! several threads.

use crate::remote::memory::{Kind, Memory, share_region_ids};
use crate::testbed::*;
use score_pm::testing::threads;
use score_pm::*;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Locks by which threads take turns at the nodes 0 and 1.
struct Turns([Mutex<()>; 2]);

impl Turns {
    fn take(&self, node: usize) -> MutexGuard<'_, ()> {
        self.0[node].lock().unwrap()
    }
}

// Promise (messages): Threads with calls that do not overlap (`pmSetSerialized`) lose nothing and
// take the fast path; no order of their calls breaks lock, ring or copies.
#[test]
fn threads_that_take_turns_lose_no_message_on_any_device() {
    const THREADS: u64 = 3;
    let per_thread: u64 = if in_vm() { 50 } else { 2_000 };
    on_every_kind(2, |bed| {
        for end in &bed.contexts {
            end.set_serialized(true).unwrap();
        }
        let turns = Turns([Mutex::new(()), Mutex::new(())]);
        let received = Mutex::new(Vec::new());
        let count = (THREADS * per_thread) as usize;
        let deadline = Instant::now() + Duration::from_secs(200);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (turns, received) = (&turns, &received);
                scope.spawn(move || {
                    for i in 0..per_thread {
                        // Some messages do not fit into a slot.
                        let mut message = (thread * per_thread + i).to_le_bytes().to_vec();
                        message.resize(if i % 7 == 0 { 500 } else { 8 }, thread as u8);
                        loop {
                            let _turn = turns.take(0);
                            match send(&bed.contexts[0], 1, &message) {
                                Ok(()) => break,
                                Err(error) => assert_eq!(error, Error::NoBuffers),
                            }
                            assert!(Instant::now() < deadline, "{}", bed.kind);
                        }
                    }
                });
                scope.spawn(move || {
                    loop {
                        let _turn = turns.take(1);
                        let mut received = received.lock().unwrap();
                        if received.len() == count {
                            break;
                        }
                        match receive(&bed.contexts[1]) {
                            Ok(message) => received.push(message),
                            Err(error) => assert_eq!(error, Error::NoBuffers),
                        }
                        assert!(Instant::now() < deadline, "{}", bed.kind);
                    }
                });
            }
        });
        let mut next = [0; THREADS as usize];
        for message in received.into_inner().unwrap() {
            let number = u64::from_le_bytes(message[..8].try_into().unwrap());
            let (thread, index) = (number / per_thread, number % per_thread);
            assert_eq!(index, next[thread as usize], "{}: the order of a thread", bed.kind);
            assert_eq!(message.len(), if index % 7 == 0 { 500 } else { 8 });
            assert!(message[8..].iter().all(|&byte| u64::from(byte) == thread));
            next[thread as usize] += 1;
        }
        assert_eq!(next, [per_thread; THREADS as usize]);
        assert_eq!(bed.sums(), (count as u64, count as u64));
    });
}

#[test]
fn threads_that_take_turns_write_words_that_are_counted_and_numbered() {
    const WORDS: usize = 400;
    let _ids = share_region_ids();
    let _dog = Watchdog::new(120);
    for kind in KINDS {
        let bed = TestBed::new(kind, 2);
        let end = &bed.contexts[0];
        end.set_serialized(true).unwrap();
        let a = Memory::new(&bed, 0, Kind::Allocated, WORDS * 8);
        let b = Memory::new(&bed, 1, Kind::Allocated, WORDS * 8);
        a.fill(9);
        let (from, to) = (a.handle, b.handle);
        let turn = Mutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..WORDS / 4 {
                        let mut next = turn.lock().unwrap();
                        end.write(1, to + *next * 8, from + *next * 8, 8).unwrap();
                        *next += 1;
                        assert_eq!(end.remote_status(1).unwrap().started, *next);
                    }
                });
            }
        });
        assert_eq!(b.bytes(), a.bytes());
        let expected =
            RemoteStatus { started: WORDS as u64, completed: WORDS as u64, has_failed: false };
        assert_eq!(end.remote_status(1), Ok(expected));
        assert_eq!(bed.counters(0).sent_bytes, WORDS as u64 * 8, "{kind}");
    }
}

/// One thread gets the buffer, and another thread fills and sends it.
#[test]
fn a_buffer_may_pass_from_thread_to_thread() {
    on_every_kind(2, |bed| {
        bed.contexts.iter().for_each(|end| end.set_serialized(true).unwrap());
        let in_thread = |call: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(call).join().unwrap());
        };
        for round in 0..50u8 {
            let buffer = bed.contexts[0].get_send_buffer(1, 4).unwrap().addr();
            in_thread(&|| {
                assert_eq!(bed.contexts[0].get_send_buffer(1, 4), Err(Error::Busy));
                fill(std::ptr::with_exposed_provenance_mut(buffer), &[round; 4]);
                bed.contexts[0].send().unwrap();
            });
            assert_eq!(bytes(take_surely(&bed.contexts[1])), [round; 4]);
            in_thread(&|| {
                assert_eq!(bed.contexts[1].receive(), Err(Error::Busy));
                bed.contexts[1].release_receive_buffer().unwrap();
            });
        }
    });
}

// Promise of `threads_that_take_turns_lose_no_message_on_any_device`.
#[test]
fn short_messages_use_the_fast_path_while_other_threads_run() {
    let _dog = Watchdog::new(60);
    let bed = TestBed::new("composite", 2);
    let end = &bed.contexts[1];
    // SAFETY: the context lives until the end of the test.
    let inner = unsafe { Context::live_from_ptr(end.as_ptr()) }.unwrap();
    assert!(!threads::is_only_app_thread(), "libtest has another thread");
    // The first message makes node 0 the hot source.
    send(&bed.contexts[0], 1, b"first").unwrap();
    assert_eq!(receive_surely(end), b"first");
    let receive_next = |expects_fast_path: bool| {
        send(&bed.contexts[0], 1, b"next").unwrap();
        let is_fast = matches!(inner.receive_fast(), FastReceive::Message(..));
        assert_eq!(is_fast, expects_fast_path);
        if is_fast {
            end.release_receive_buffer().unwrap();
        } else {
            assert_eq!(receive_surely(end), b"next");
        }
    };
    receive_next(false);
    end.set_serialized(true).unwrap();
    receive_next(true);
    end.set_serialized(false).unwrap();
    receive_next(false);
}
