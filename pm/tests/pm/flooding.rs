//! Tests that a source that floods a receiver delays other sources by a bounded number of messages.

use crate::testbed::*;
use score_pm::*;
use std::time::{Duration, Instant};

// Promise (messages): A node that floods a receiver delays another source by at most 16 messages
// per source.
#[test]
fn one_flooder_delays_another_source_by_16_messages_for_each_source_at_most() {
    on_local_kinds(8, |bed| {
        // All sources are active. Then node 1 floods, and node 7 sends one message at some time.
        for k in 1..8 {
            send(&bed.contexts[k], 0, b"hello").unwrap();
        }
        for _ in 1..8 {
            receive_surely(&bed.contexts[0]);
        }
        for start in 0..40 {
            let send_flood = |n: usize| {
                for _ in 0..n {
                    if send(&bed.contexts[1], 0, b"flood").is_err() {
                        break;
                    }
                }
            };
            send_flood(200);
            for _ in 0..start {
                receive_surely(&bed.contexts[0]);
                send_flood(1);
            }
            send(&bed.contexts[7], 0, b"quiet").unwrap();
            let mut before = 0;
            while receive(&bed.contexts[0]).unwrap() != b"quiet" {
                before += 1;
                send_flood(1);
                assert!(before <= 16 * 7, "{}: {before} messages arrived first", bed.kind);
            }
            while receive(&bed.contexts[0]).is_ok() {}
        }
    });
}

#[test]
fn messages_of_a_new_source_are_received_while_another_source_floods() {
    on_local_kinds(3, |bed| {
        send(&bed.contexts[1], 0, b"flood").unwrap();
        receive_surely(&bed.contexts[0]);
        while send(&bed.contexts[1], 0, b"flood").is_ok() {}
        send(&bed.contexts[2], 0, b"new").unwrap();
        let mut before = 0;
        while receive(&bed.contexts[0]).unwrap() != b"new" {
            before += 1;
            send(&bed.contexts[1], 0, b"flood").unwrap();
            assert!(before <= 16, "{}: {before} messages arrived first", bed.kind);
        }
    });
}

// Promise (messages): The same test suite of PM's functions passes on shmem, ethernet and
// composites of both, also with loss, duplicates and reordering.
#[test]
fn a_flood_of_one_node_does_not_starve_another_node() {
    let _dog = Watchdog::new(300);
    for kind in kinds() {
        // In a composite of both devices, the parity of two nodes decides which device connects
        // them.
        let pairs: &[_] = if kind.contains("both") { &[(1, 2), (2, 1), (1, 3)] } else { &[(1, 2)] };
        pairs.iter().for_each(|&(flooder, quiet)| {
            check_not_starved(&TestBed::new(kind, 4), flooder, quiet)
        });
    }
}

/// Checks that node 0 receives from `quiet` while `flooder` sends as much as it can.
fn check_not_starved(bed: &TestBed, flooder: usize, quiet: usize) {
    for round in 0..if in_vm() { 6 } else { 20u32 } {
        let send_flood = || while send(&bed.contexts[flooder], 0, b"flood").is_ok() {};
        send_flood();
        send_surely(&bed.contexts[quiet], 0, &round.to_le_bytes());
        // A packet may be late or lost, and any number of messages may arrive before it. After it
        // has arrived, only the order of the sources matters. In every second round the receiver
        // reads while it waits for the packet, and there is no limit.
        let reads = round % 2 == 1 && !bed.is_immediate();
        let end = Instant::now() + Duration::from_secs(60);
        while !reads && bed.contexts[quiet].is_send_done() == Err(Error::Busy) {
            let _ = bed.contexts[0].queue_status();
            send_flood();
            assert!(Instant::now() < end, "{}: not delivered after 60 s", bed.kind);
        }
        let mut before = 0;
        while receive_surely(&bed.contexts[0]) != round.to_le_bytes() {
            before += 1;
            send_flood();
            assert!(reads || before <= 4096, "{}: {before} arrived first", bed.kind);
            assert!(Instant::now() < end, "{}: not received for 60 s", bed.kind);
        }
    }
}

#[test]
fn a_cold_source_is_found_within_few_polls() {
    on_local_kinds(64, |bed| {
        for k in 1..64 {
            send(&bed.contexts[k], 0, b"hello").unwrap();
        }
        for _ in 1..64 {
            receive_surely(&bed.contexts[0]);
        }
        for k in (1..64).rev() {
            send(&bed.contexts[k], 0, &[k as u8]).unwrap();
            let polls = (1..).find(|_| receive(&bed.contexts[0]) == Ok(vec![k as u8]));
            assert!(polls.unwrap() <= 64 / 4 + 1, "{polls:?} polls");
        }
    });
}
