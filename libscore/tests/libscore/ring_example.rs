//! The Rust API, tested with the example that uses all of it.

use crate::harness::shepherd::Shepherd;
use crate::harness::{Process, build};
use score_proto::carea::{IDLE, WaitingFor, area, area::slot};
use score_proto::message::{Call, Reply};

/// Replies to the barrier that ends the example, after all nodes have called it.
fn finish(shepherd: &mut Shepherd) {
    let barrier_ids: Vec<u32> = shepherd
        .nodes
        .iter()
        .map(|node| match node.receive_call() {
            Some(Call::Barrier { id }) => id,
            call => panic!("{call:?}"),
        })
        .collect();
    for (node, id) in shepherd.nodes.iter_mut().zip(barrier_ids) {
        node.answer(&Reply::Done { id, error: 0 }, &[]);
        assert_eq!(node.process.wait_for_exit().code(), Some(0));
    }
}

#[test]
fn the_nodes_pass_a_token_around_with_each_method_of_waiting() {
    let mut shepherd = Shepherd::start_and_welcome(&build::example("ring"), 3);
    for node in 0..3 {
        let expected = format!("node {node}: {} of 300", 298 + (node + 2) % 3);
        assert_eq!(shepherd.nodes[node].process.read_line(), expected);
    }
    finish(&mut shepherd);
}

#[test]
fn a_blocked_receiver_is_idle_and_reports_the_kind_of_its_wait() {
    use nix::sys::signal::Signal;
    let mut shepherd = Shepherd::start(&build::example("ring"), 2);
    // Node 1 is welcomed first and then stopped: node 0 waits for a token that does not come back.
    shepherd.welcome_node(1);
    shepherd.await_word(1, area::MAGIC, score_proto::carea::AREA_MAGIC as u32);
    shepherd.signal(1, Signal::SIGSTOP);
    shepherd.welcome_node(0);
    shepherd.await_word(0, area::MAGIC, score_proto::carea::AREA_MAGIC as u32);
    // In round 0 of the example node 0 waits asleep.
    shepherd.await_word(0, area::SLOTS + slot::STATE, IDLE);
    shepherd.await_word(0, area::SLOTS + slot::WAITING_FOR, WaitingFor::Select as u32);
    shepherd.signal(1, Signal::SIGCONT);
    for node in &shepherd.nodes {
        node.process.read_line();
    }
    // 100 rounds, in 34 of which each node prepared to sleep: every change to busy is counted.
    for node in 0..2 {
        assert!(shepherd.word(node, area::BUSY_TRANSITIONS) >= 34);
    }
    for node in 0..2 {
        shepherd.await_word(node, area::SLOTS + slot::WAITING_FOR, WaitingFor::Barrier as u32);
        shepherd.await_word(node, area::SLOTS + slot::STATE, IDLE);
    }
    finish(&mut shepherd);
}

#[test]
fn a_single_node_has_no_network() {
    let mut process = Process::start(&build::example("ring"), &[], None);
    assert_eq!(process.read_line(), "one node: no ring");
    assert_eq!(process.wait_for_exit().code(), Some(0));
}
