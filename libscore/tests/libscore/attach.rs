//! Tests of score_initialize on a compute host: the state that the program gets, and the errors.

use std::process::Command;
use std::time::Duration;

use crate::harness::build::{self, Link};
use crate::harness::shepherd::Shepherd;
use score_proto::carea::{AREA_LEN, AREA_MAGIC, BOARD_LEN, area};
use score_proto::ids::{JobHostId, ProcessIndex};
use score_proto::message::{Reply, Welcome};
use score_sys::memfd::create_sealed;

#[test]
fn a_single_node_has_no_network_and_a_null_context() {
    for link in [Link::Static, Link::Shared] {
        let program = build::program("node", "gcc -std=c99 -O2", link);
        let mut shepherd = Shepherd::welcome(&program, 1);
        let location = shepherd.nodes[0].process.request("place");
        assert_eq!(location, "node 0/1 proc 0/1 host 0/1 nets 0 closed", "{link:?}");
        assert_eq!(shepherd.nodes[0].process.request("job"), "0 17 22");
    }
}

#[test]
fn all_variables_are_set_also_in_a_program_with_copies_of_them() {
    for link in [Link::Static, Link::Shared] {
        let program = build::program("node", "gcc -std=c99 -O2", link);
        let mut shepherd = Shepherd::start(&program, 1);
        let welcome = Welcome {
            self_host: JobHostId(2),
            num_host: 3,
            self_proc: ProcessIndex(1),
            num_proc: 2,
            self_node: 5,
            num_node: 6,
            networks: Vec::new(),
            ..shepherd.welcome_message(0)
        };
        // Six nodes without a network are impossible; with one node everything else must be 1.
        shepherd.nodes[0]
            .answer(&Reply::Welcome(Box::new(welcome)), &[&shepherd.board, &shepherd.area]);
        assert_eq!(shepherd.nodes[0].process.wait_for_exit().code(), Some(1));
        let complaints = shepherd.nodes[0].process.stderr_lines();
        assert!(complaints[0].contains("0 network sets for 6 nodes"), "{complaints:?}");
        let mut four = Shepherd::welcome(&program, 4);
        for (number, node) in four.nodes.iter_mut().enumerate() {
            let expected = format!("node {number}/4 proc {number}/4 host 0/1 nets 1 closed");
            assert_eq!(node.process.request("place"), expected, "{link:?}");
        }
    }
}

#[test]
fn options_are_those_of_scrun_and_the_leftmost_option_is_used() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let node = &mut shepherd.nodes[0].process;
    assert_eq!(node.request("option nodes"), "[4]");
    assert_eq!(node.request("option stat"), "[]");
    assert_eq!(node.request("option node"), "[(none)]");
}

#[test]
fn a_second_call_has_no_effect() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let node = &mut shepherd.nodes[0];
    assert_eq!(node.process.request("again"), "again");
    assert_eq!(node.process.request("place"), "node 0/1 proc 0/1 host 0/1 nets 0 closed");
    node.process.send_line("barrier");
    // The next call is the barrier, not a second Attach.
    node.serve(0);
    assert_eq!(node.process.read_line(), "0");
}

#[test]
fn programs_that_a_node_starts_do_not_inherit_the_control_socket() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    assert_eq!(shepherd.nodes[0].process.request("program"), "control none sockets 0");
}

#[test]
fn the_area_is_declared_valid_with_the_first_thread_in_it() {
    let shepherd = Shepherd::welcome(&build::node(), 1);
    assert_eq!(shepherd.word(0, area::MAGIC), AREA_MAGIC as u32);
    assert_eq!(shepherd.word(0, area::VERSION), score_proto::PROTOCOL_VERSION);
    assert_eq!(shepherd.word(0, area::SLOTS_USED), 1);
    let thread = shepherd.slot(0, 0, area::slot::TID);
    assert_eq!(thread, shepherd.nodes[0].process.pid().as_raw() as u32);
}

/// Sends a reply to a node. The argument is the correct reply.
type ReplyMutator = fn(&Shepherd, &Reply);

/// Sends a wrong reply to a node, and returns the line that the node prints before it ends with
/// code 1.
fn refusal_line(mutate: impl FnOnce(&Shepherd)) -> String {
    let mut shepherd = Shepherd::start(&build::node(), 1);
    mutate(&shepherd);
    let process = &mut shepherd.nodes[0].process;
    assert_eq!(process.wait_for_exit().code(), Some(1));
    assert!(process.remaining_output().is_empty(), "user code ran");
    let complaints = process.stderr_lines();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    complaints[0].clone()
}

#[test]
fn every_invalid_reply_is_named_and_ends_the_process_with_code_1() {
    let welcome = |s: &Shepherd| Reply::Welcome(Box::new(s.welcome_message(0)));
    let cases: [(&str, ReplyMutator); 8] = [
        ("no such job", |s, _| s.nodes[0].answer(&Reply::Refused("no such job".into()), &[])),
        ("another version of SCore", |s, _| s.nodes[0].send(b"\xff\xff", &[])),
        ("unexpected answer", |s, _| s.nodes[0].answer(&Reply::Done { id: 1, error: 0 }, &[])),
        ("1 descriptors instead of 2", |s, w| s.nodes[0].answer(w, &[&s.board])),
        ("the board has 64 bytes", |s, w| {
            s.nodes[0].answer(w, &[&create_sealed("short", 64).unwrap(), &s.area]);
        }),
        ("the board has no valid header", |s, w| {
            s.nodes[0].answer(w, &[&create_sealed("zeros", BOARD_LEN as u64).unwrap(), &s.area]);
        }),
        ("the C-Area has 100 bytes", |s, w| {
            s.nodes[0].answer(w, &[&s.board, &create_sealed("short", 100).unwrap()]);
        }),
        ("the C-Area", |s, w| {
            let pipe = nix::unistd::pipe().unwrap().0;
            s.nodes[0].answer(w, &[&s.board, &pipe]);
        }),
    ];
    for (word, mutate) in cases {
        let line = refusal_line(|shepherd| mutate(shepherd, &welcome(shepherd)));
        assert!(line.starts_with("score_initialize: ") && line.contains(word), "{line}");
    }
}

#[test]
fn a_board_of_another_version_is_refused_with_both_versions() {
    use std::os::unix::fs::FileExt;
    let line = refusal_line(|shepherd| {
        let board = std::fs::File::from(shepherd.board.try_clone().unwrap());
        let offset = score_proto::carea::board::VERSION as u64;
        board.write_all_at(&99u32.to_le_bytes(), offset).unwrap();
        let welcome = Reply::Welcome(Box::new(shepherd.welcome_message(0)));
        shepherd.nodes[0].answer(&welcome, &[&shepherd.board, &shepherd.area]);
    });
    let self_version = format!("libscore {}", score_proto::PROTOCOL_VERSION);
    assert!(line.contains("protocol 99") && line.contains(&self_version), "{line}");
}

#[test]
fn an_area_that_could_be_shrunk_is_refused() {
    let line = refusal_line(|shepherd| {
        let unsealed = score_sys::memfd::create("open").unwrap();
        unsealed.set_len(AREA_LEN as u64).unwrap();
        let welcome = Reply::Welcome(Box::new(shepherd.welcome_message(0)));
        shepherd.nodes[0].answer(&welcome, &[&shepherd.board, &unsealed.into()]);
    });
    assert!(line.contains("not sealed"), "{line}");
}

#[test]
fn a_shepherd_that_exits_before_the_start_ends_the_process() {
    let mut shepherd = Shepherd::start(&build::node(), 1);
    let node = shepherd.nodes.remove(0);
    drop(node.socket);
    let mut process = node.process;
    assert_eq!(process.wait_for_exit().code(), Some(1));
    assert!(process.stderr_lines()[0].contains("before it began"));
}

#[test]
fn no_node_passes_the_start_barrier_alone() {
    let shepherd = Shepherd::start(&build::node(), 1);
    // The reply is the start barrier: without it no part of the program runs.
    assert_eq!(shepherd.nodes[0].process.read_line_within(Duration::from_millis(200)), None);
}

#[test]
fn an_invalid_control_descriptor_is_refused_by_its_variable() {
    for value in ["abc", "-1", "0", "999", "99999999999"] {
        let output = Command::new(build::node()).env("SCORE_CONTROL_FD", value).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{value}");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(line.contains(&format!("SCORE_CONTROL_FD={value}")), "{line}");
    }
}
