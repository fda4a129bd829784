//! Tests of messages over the contexts that score_initialize has set up.

use crate::harness::build::{self, Link};
use crate::harness::shepherd::Shepherd;

#[test]
fn every_node_reaches_every_other_node_and_not_itself() {
    for link in [Link::Static, Link::Shared] {
        let program = build::program("node", "gcc -std=c99 -O2", link);
        let mut shepherd = Shepherd::welcome(&program, 4);
        for from in 0..4 {
            for to in 0..4 {
                let sent = shepherd.nodes[from].process.request(&format!("send {to} {from}-{to}"));
                if from == to {
                    assert_eq!(sent, libc::EINVAL.to_string());
                } else {
                    assert_eq!(sent, "0");
                    assert_eq!(
                        shepherd.nodes[to].process.request("receive"),
                        format!("{from}-{to}")
                    );
                }
            }
        }
        let beyond = shepherd.nodes[0].process.request("send 4 nobody");
        assert_eq!(beyond, libc::EINVAL.to_string());
    }
}

#[test]
fn a_process_that_exits_is_marked_in_the_segment_and_messages_to_it_are_dropped() {
    let mut shepherd = Shepherd::welcome(&build::node(), 2);
    let exited = |shepherd: &Shepherd| {
        shepherd.device.as_ref().unwrap().counters(1).unwrap().receiver_state & 2
    };
    assert_eq!(exited(&shepherd), 0);
    shepherd.nodes[1].process.request("child");
    assert_eq!(exited(&shepherd), 0, "the end of a forked child is not the node's");
    shepherd.nodes[1].process.read_line();
    shepherd.nodes[1].process.send_line("exit 0");
    assert_eq!(shepherd.nodes[1].process.wait_for_exit().code(), Some(0));
    assert_eq!(exited(&shepherd), 2);
    assert_eq!(shepherd.nodes[0].process.request("send 1 late"), "0");
}

#[test]
fn messages_sent_before_the_end_of_the_sender_arrive() {
    let mut shepherd = Shepherd::welcome(&build::node(), 2);
    assert_eq!(shepherd.nodes[0].process.request("send 1 last-words"), "0");
    shepherd.nodes[0].process.send_line("exit 0");
    shepherd.nodes[0].process.wait_for_exit();
    assert_eq!(shepherd.nodes[1].process.request("receive"), "last-words");
}

#[test]
fn an_exit_while_other_threads_use_the_network_is_clean() {
    for _ in 0..20 {
        let mut shepherd = Shepherd::welcome(&build::node(), 2);
        for node in 0..2 {
            assert_eq!(shepherd.nodes[node].process.request("poll 2"), "polling");
        }
        std::thread::sleep(std::time::Duration::from_millis(3));
        for node in 0..2 {
            shepherd.nodes[node].process.send_line("exit 3");
            let status = shepherd.nodes[node].process.wait_for_exit();
            assert_eq!(status.code(), Some(3), "{status}");
        }
    }
}
