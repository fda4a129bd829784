//! Tests of the idle flag, as SCore-D samples it (manual 3.5.2).

use crate::harness::build;
use crate::harness::shepherd::Shepherd;
use score_proto::carea::{BUSY, IDLE, THREAD_SLOTS, WaitingFor, area, area::slot};
use score_proto::idle_notify;

#[test]
fn the_flag_follows_the_thread_and_every_return_to_work_is_counted() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    assert_eq!(shepherd.slot(0, 0, slot::STATE), BUSY, "a node starts busy");
    for round in 1..4 {
        for _ in 0..2 {
            // A repeated call has no effect.
            shepherd.nodes[0].process.request("idle");
            assert_eq!(shepherd.slot(0, 0, slot::STATE), IDLE);
            assert_eq!(shepherd.slot(0, 0, slot::WAITING_FOR), WaitingFor::Message as u32);
            assert_eq!(shepherd.word(0, area::IDLE_THREADS), 1);
        }
        assert_ne!(shepherd.slot(0, 0, slot::IDLE_SINCE_NS), 0);
        for _ in 0..2 {
            shepherd.nodes[0].process.request("busy");
            assert_eq!(shepherd.slot(0, 0, slot::STATE), BUSY);
            assert_eq!(shepherd.word(0, area::IDLE_THREADS), 0);
            assert_eq!(shepherd.word(0, area::BUSY_TRANSITIONS), round);
        }
    }
}

#[test]
fn the_idle_since_time_is_in_job_time() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let now = || {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        u64::try_from(std::time::Duration::from(now).as_nanos()).unwrap()
    };
    let since_offset = area::SLOTS + slot::IDLE_SINCE_NS;
    let second = 1_000_000_000;
    for stopped in [0, second, now() - second] {
        shepherd.stopped_for(stopped);
        shepherd.nodes[0].process.request("busy");
        let before = now() - stopped;
        shepherd.nodes[0].process.request("idle");
        let (low, high) = (shepherd.word(0, since_offset), shepherd.word(0, since_offset + 4));
        let idle_since = u64::from(high) << 32 | u64::from(low);
        assert!(
            (before..=now() - stopped).contains(&idle_since),
            "{stopped}: {idle_since}, {before}"
        );
    }
}

#[test]
fn each_thread_has_a_slot_and_releases_it_at_its_end() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    assert_eq!(shepherd.nodes[0].process.request("threads 5"), "5");
    assert_eq!(shepherd.word(0, area::IDLE_THREADS), 5);
    assert_eq!(shepherd.word(0, area::SLOTS_USED), 6);
    let threads: Vec<u32> = (0..6).map(|s| shepherd.slot(0, s, slot::TID)).collect();
    let mut different = threads.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 6, "{threads:?}");
    assert_eq!(shepherd.slot(0, 0, slot::STATE), BUSY, "the main thread works");
    assert_eq!(shepherd.nodes[0].process.request("threads 0"), "5");
    shepherd.await_word(0, area::IDLE_THREADS, 0);
    for number in 1..6 {
        shepherd.await_word(0, area::SLOTS + number * area::SLOT_LEN + slot::TID, 0);
        assert_eq!(shepherd.slot(0, number, slot::STATE), BUSY);
    }
    assert_eq!(shepherd.word(0, area::BUSY_TRANSITIONS), 5, "an end counts as a change to busy");
}

#[test]
fn only_an_armed_change_notifies_and_only_once() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let change = |shepherd: &mut Shepherd, word: &str| {
        shepherd.nodes[0].process.request(word);
        shepherd.notification_count()
    };
    assert_eq!(change(&mut shepherd, "idle") + change(&mut shepherd, "busy"), 0);
    shepherd.set_word(0, area::IDLE_NOTIFY, idle_notify::idle(0));
    assert_eq!(change(&mut shepherd, "idle"), 1);
    assert_eq!(shepherd.word(0, area::IDLE_NOTIFY), idle_notify::NONE);
    assert_eq!(change(&mut shepherd, "busy") + change(&mut shepherd, "idle"), 0);
    shepherd.set_word(0, area::IDLE_NOTIFY, idle_notify::ON_BUSY);
    assert_eq!((change(&mut shepherd, "busy"), change(&mut shepherd, "busy")), (1, 0));
    shepherd.set_word(0, area::IDLE_NOTIFY, idle_notify::idle(1));
    assert_eq!(change(&mut shepherd, "idle") + change(&mut shepherd, "busy"), 0, "another thread");
    shepherd.nodes[0].process.request("threads 1");
    assert_eq!(shepherd.notification_count(), 1);
    shepherd.set_word(0, area::IDLE_NOTIFY, idle_notify::idle(1));
    shepherd.nodes[0].process.request("threads 0");
    shepherd.await_word(0, area::IDLE_NOTIFY, idle_notify::NONE);
}

#[test]
fn threads_beyond_the_slots_keep_the_process_busy_until_they_end() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    assert_eq!(shepherd.nodes[0].process.request("threads 64"), "64");
    let slot_count = THREAD_SLOTS as u32;
    assert_eq!(shepherd.word(0, area::SLOTS_USED), slot_count);
    assert_eq!(shepherd.word(0, area::OVERFLOW), 65 - slot_count);
    assert_eq!(shepherd.word(0, area::IDLE_THREADS), slot_count - 1);
    assert_eq!(shepherd.nodes[0].process.request("threads 0"), "64");
    shepherd.await_word(0, area::OVERFLOW, 0);
    assert_eq!(shepherd.word(0, area::IDLE_THREADS), 0);
}

#[test]
fn a_thread_that_sends_while_idle_becomes_busy_and_is_warned_once() {
    let mut shepherd = Shepherd::welcome(&build::node(), 2);
    for round in 1..3 {
        shepherd.nodes[0].process.request("idle");
        assert_eq!(shepherd.nodes[0].process.request("send 1 hello"), "0");
        assert_eq!(shepherd.slot(0, 0, slot::STATE), BUSY);
        assert_eq!(shepherd.word(0, area::BUSY_TRANSITIONS), round);
        assert_eq!(shepherd.nodes[1].process.request("receive"), "hello");
    }
    shepherd.nodes[0].process.send_line("exit 0");
    shepherd.nodes[0].process.wait_for_exit();
    let complaints = shepherd.nodes[0].process.stderr_lines();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].contains("sent a message while it was idle"));
}
