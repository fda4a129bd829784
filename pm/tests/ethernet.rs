//! The ethernet device: several hosts, real processes, composites of both devices, loss, death.

#![allow(unsafe_code, missing_docs)]

#[path = "bed/mod.rs"]
mod bed;
#[path = "bed/hosts.rs"]
mod hosts;

use bed::*;
use hosts::*;
use score_pm::*;

/// Not a test of its own: what another process does.
#[test]
fn role() {
    let Some((role, given)) = Given::inherited() else { return };
    let _dog = Watchdog::new(100);
    let node = given.join();
    match role.as_str() {
        "echo" => echo(&node.end),
        other => panic!("no role {other}"),
    }
}

/// Answers every message to node 0, until it says the end.
fn echo(end: &Context) {
    loop {
        let message = receive_surely(end);
        send_surely(end, 0, &message);
        if message == b"end" {
            return;
        }
    }
}

#[test]
fn processes_on_several_hosts_talk_through_one_composite() {
    let _dog = Watchdog::new(100);
    let hosts = Hosts::new(&[2, 1, 3], &[]);
    let children: Vec<_> = (1..6).map(|node| hosts.start(node, "echo")).collect();
    let here = hosts.give(0).join();
    for round in 0..200usize {
        for node in 1..6 {
            let message: Vec<u8> = (0..1 + round * 37 % 1100).map(|i| (i * node) as u8).collect();
            send_surely(&here.end, node as u32, &message);
            assert_eq!(receive_surely(&here.end), message, "round {round} node {node}");
        }
    }
    for node in 1..6 {
        send_surely(&here.end, node, b"end");
        assert_eq!(receive_surely(&here.end), b"end");
    }
    assert!(children.into_iter().all(|child| child.ends().success()));
    // By shmem to node 1, by ethernet to all others.
    let sent = hosts.hosts[0].ethernet.counters(0).unwrap().sent;
    assert_eq!(sent, 4 * 201);
    let by_shmem = hosts.hosts[0].shmem.as_ref().unwrap().counters(0).unwrap().sent;
    assert_eq!(by_shmem, 201);
}
