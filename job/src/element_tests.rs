use super::*;
use crate::master::MasterAction;
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::message::MpiStart;

const FIRST: ElementIndex = ElementIndex::FIRST;

fn one(node: u32) -> NodeSet {
    NodeSet::one(node)
}

fn score_element(nodes: u32) -> Element {
    Element::new(FIRST, "a.out".to_owned(), ProgramKind::Score, nodes, false)
}

fn attach(element: &mut Element, nodes: impl Into<NodeSet>) -> Vec<MasterAction> {
    let mut out = Outbox::default();
    element.on_attached(&nodes.into(), Vec::new(), &mut out);
    out.take()
}

fn attached_element(nodes: u32) -> Element {
    let mut element = score_element(nodes);
    assert_eq!(attach(&mut element, 0..nodes), [welcome()]);
    element
}

fn welcome() -> MasterAction {
    MasterAction::Order(ElementOrder::Welcome { peers: Vec::new() }.to(FIRST))
}

fn end() -> MasterAction {
    MasterAction::Order(ElementOrder::End.to(FIRST))
}

fn barrier(element: &mut Element, nodes: impl Into<NodeSet>) -> Vec<MasterAction> {
    let mut out = Outbox::default();
    let is_complete = element.on_in_barrier(&nodes.into(), &mut out);
    let out = out.take();
    assert_eq!(is_complete, out == [MasterAction::Order(ElementOrder::BarrierDone.to(FIRST))]);
    out
}

fn ended(element: &mut Element, nodes: impl Into<NodeSet>, status: Status) -> Vec<MasterAction> {
    let mut out = Outbox::default();
    element.on_ended(&nodes.into(), status, &[], &mut out);
    out.take()
}

fn text(action: &MasterAction) -> &str {
    match action {
        MasterAction::ToClient(score_proto::server_message::JobAnswer::Notice { text, .. }) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_network_is_announced_only_when_all_have_attached() {
    let mut element = score_element(3);
    assert_eq!(attach(&mut element, 1..3), []);
    assert_eq!(attach(&mut element, 1..2), []);
    assert_eq!(attach(&mut element, 0..1), [welcome()]);
    assert_eq!(attach(&mut element, 0..1), []);
}

#[test]
fn the_welcome_sends_the_addresses_of_all_hosts_to_all_hosts() {
    let mut element = score_element(2);
    let address = |host: JobHostId| HostNetworkAddress { host, address: vec![host.0 as u8] };
    let mut out = Outbox::default();
    element.on_attached(&one(1), vec![address(JobHostId(1))], &mut out);
    element.on_attached(&one(0), vec![address(JobHostId(0))], &mut out);
    let peers = vec![address(JobHostId(1)), address(JobHostId(0))];
    assert_eq!(out.take(), [MasterAction::Order(ElementOrder::Welcome { peers }.to(FIRST))]);
}

#[test]
fn a_barrier_ends_when_all_nodes_are_in_it_and_can_be_entered_again() {
    let mut element = attached_element(4);
    for _ in 0..2 {
        assert_eq!(barrier(&mut element, 1..4), []);
        let done = MasterAction::Order(ElementOrder::BarrierDone.to(FIRST));
        assert_eq!(barrier(&mut element, 0..1), [done]);
    }
}

#[test]
fn a_wait_for_an_ended_node_is_reported_once_in_either_order() {
    let mut element = attached_element(3);
    assert_eq!(barrier(&mut element, 0..1), []);
    let first = ended(&mut element, 2..3, Status::Exited(0));
    let mut other = attached_element(3);
    assert_eq!(ended(&mut other, 2..3, Status::Exited(0)), []);
    let second = barrier(&mut other, 0..1);
    for actions in [first, second] {
        assert_eq!(
            text(&actions[0]),
            "a.out: node 0 waits in sc_barrier() for node 2, which has exited"
        );
        assert_eq!(actions[1..], [end()]);
    }
    assert_eq!(barrier(&mut other, 1..2), []);
    assert_eq!(other.code(), 1);
}

#[test]
fn only_the_first_failure_is_reported_and_counted() {
    let mut element = attached_element(3);
    assert_eq!(ended(&mut element, 1..2, Status::Signaled(7)).len(), 2);
    assert_eq!(ended(&mut element, 0..1, Status::Signaled(signal::SIGKILL)), []);
    assert_eq!(ended(&mut element, 1..3, Status::Exited(9)), []);
    assert!(element.is_ended());
    assert_eq!(element.code(), 135);
}

#[test]
fn a_report_for_many_nodes_counts_each_node_once_and_uses_the_code_of_node_0() {
    let mut element = Element::new(FIRST, "sh".to_owned(), ProgramKind::Plain, 5, false);
    let lines = ended(&mut element, 0..3, Status::Exited(4));
    let lines: Vec<&str> = lines.iter().map(text).collect();
    assert_eq!(lines, ["node 1 of sh exited with code 4", "node 2 of sh exited with code 4"]);
    assert_eq!(ended(&mut element, 2..5, Status::Exited(0)), []);
    assert_eq!((element.is_ended(), element.code()), (true, 4));
}

#[test]
fn sigpipe_of_a_piped_element_ends_its_node_only() {
    let mut element = Element::new(FIRST, "yes".to_owned(), ProgramKind::Plain, 2, true);
    assert_eq!(ended(&mut element, 0..1, Status::Signaled(signal::SIGPIPE)), []);
    assert_eq!(ended(&mut element, 1..2, Status::Exited(0)), []);
    assert_eq!((element.is_ended(), element.code()), (true, 0));
}

#[test]
fn sc_exit_takes_precedence_over_all_later_events() {
    let mut element = attached_element(2);
    let mut out = Outbox::default();
    element.on_exit(258, &mut out);
    assert_eq!(out.take(), [end()]);
    assert_eq!(ended(&mut element, 0..1, Status::Signaled(11)), []);
    assert_eq!(element.code(), 2);
}

#[test]
fn a_program_of_score_that_never_attaches_is_named() {
    let mut element = score_element(2);
    attach(&mut element, 0..1);
    let actions = ended(&mut element, 0..2, Status::Exited(0));
    assert_eq!(text(&actions[0]), "node 1 of a.out exited with code 0 before score_initialize()");
    assert_eq!(element.code(), 1);
}

#[test]
fn a_node_number_that_does_not_exist_is_ignored() {
    let mut element = attached_element(2);
    assert_eq!(barrier(&mut element, 7..8), []);
    assert_eq!(ended(&mut element, 7..9, Status::Exited(1)), []);
    assert_eq!(ended(&mut element, 1..9, Status::Exited(0)), []);
    assert!(!element.is_ended());
}

// Promise (use): sc_signal_bcast returns when every host has sent the signal.
#[test]
fn a_broadcast_is_done_when_every_host_has_sent_it() {
    let mut element = attached_element(6);
    let call = |element: &mut Element, node| {
        let mut out = Outbox::default();
        element.on_broadcast(node, 10, &mut out);
        out.take()
    };
    let sent = |element: &mut Element, serial, nodes: std::ops::Range<u32>| {
        let mut out = Outbox::default();
        element.on_broadcast_sent(serial, &nodes.into(), &mut out);
        out.take()
    };
    let order =
        |serial| MasterAction::Order(ElementOrder::Broadcast { serial, signal: 10 }.to(FIRST));
    let done = |node| MasterAction::Order(ElementOrder::BroadcastDone { node }.to(FIRST));
    assert_eq!(call(&mut element, 4), [order(0)]);
    assert_eq!(call(&mut element, 1), [order(1)]);
    // The answer of the caller's own host does not suffice.
    assert_eq!(sent(&mut element, 0, 4..6), []);
    assert_eq!(sent(&mut element, 1, 0..4), []);
    assert_eq!(sent(&mut element, 0, 0..4), [done(4)]);
    assert_eq!(sent(&mut element, 0, 0..6), []);
    assert_eq!(sent(&mut element, 1, 4..7), []);
    assert_eq!(sent(&mut element, 1, 4..6), [done(1)]);
}

#[test]
fn a_node_that_inspects_itself_ends_its_element_with_the_code_of_its_signal() {
    for (signal, code) in [(1, 129), (11, 139), (64, 192), (0, 1), (65, 1), (-1, 1)] {
        let mut element = attached_element(2);
        let mut out = Outbox::default();
        element.on_inspect(signal, "stuck".to_owned(), &mut out);
        let out = out.take();
        assert_eq!((text(&out[0]), &out[1]), ("stuck", &end()));
        assert_eq!((element.code(), out.len()), (code, 2));
    }
}

#[test]
fn an_element_communicates_from_its_welcome_until_its_end() {
    let mut element = score_element(2);
    assert!(!element.is_communicating());
    attach(&mut element, 0..2);
    assert!(element.is_communicating());
    ended(&mut element, 0..1, Status::Exited(0));
    assert!(element.is_communicating() && !element.is_ended());
    ended(&mut element, 1..2, Status::Exited(0));
    assert!(!element.is_communicating() && element.is_ended());
}

#[test]
fn an_element_is_ended_at_most_once_and_not_after_its_own_end() {
    let mut element = attached_element(2);
    let mut out = Outbox::default();
    element.end(7, &mut out);
    element.end(8, &mut out);
    element.on_exit(9, &mut out);
    element.on_broken(1, "late", &mut out);
    let out = out.take();
    assert_eq!((out.as_slice(), element.code()), ([end()].as_slice(), 7));
    let mut element = attached_element(2);
    ended(&mut element, 0..2, Status::Exited(0));
    let mut out = Outbox::default();
    element.end(7, &mut out);
    assert_eq!((out.take(), element.code()), (Vec::new(), 0));
}

#[test]
fn an_element_that_cannot_continue_ends_with_its_name_and_the_reason() {
    let mut element = attached_element(2);
    let mut out = Outbox::default();
    element.on_broken(1, "it cannot continue", &mut out);
    let out = out.take();
    assert!(text(&out[0]).ends_with(": it cannot continue"), "{out:?}");
    assert_eq!((&out[1..], element.code()), ([end()].as_slice(), 1));
}

#[test]
fn nodes_that_are_independent_commands_end_independently() {
    let element =
        |kind| Element::new(FIRST, "ls".to_owned(), kind, 3, false).with_independent_nodes();
    let mut commands = element(ProgramKind::Plain);
    assert_eq!(ended(&mut commands, 0..1, Status::Exited(3)), []);
    assert_eq!(ended(&mut commands, 1..2, Status::Signaled(signal::SIGKILL)), []);
    let mut out = Outbox::default();
    commands.on_not_started(&one(2), 127, "no such file", &mut out);
    let out = out.take();
    assert_eq!((text(&out[0]), out.len()), ("node 2: ls: no such file", 1));
    assert!(commands.is_ended() && commands.code() == 127);
    // A SCore program fails as a whole: its nodes are not independent.
    let mut program = element(ProgramKind::Score);
    let actions = ended(&mut program, 0..1, Status::Exited(3));
    assert_eq!(
        (text(&actions[0]), &actions[1]),
        ("node 0 of ls exited with code 3 before score_initialize()", &end())
    );
}

fn mpi_element(nodes: u32) -> Element {
    Element::new(FIRST, "a.out".to_owned(), ProgramKind::Mpi(MpiStart::Pmi), nodes, false)
}

fn fence(element: &mut Element, nodes: impl Into<NodeSet>, entries: &[u8]) -> Vec<MasterAction> {
    let mut out = Outbox::default();
    element.on_in_fence(&nodes.into(), entries.to_vec(), &mut out);
    out.take()
}

#[test]
fn a_fence_ends_when_all_nodes_are_in_it_and_all_hosts_have_all_entries() {
    let mut element = mpi_element(5);
    let entries =
        |bytes: &[u8]| MasterAction::Order(ElementOrder::FenceEntries(bytes.to_vec()).to(FIRST));
    let done = MasterAction::Order(ElementOrder::FenceDone.to(FIRST));
    for _ in 0..2 {
        assert_eq!(fence(&mut element, 3..5, b"34"), [entries(b"34")]);
        assert_eq!(fence(&mut element, 2..3, b""), []);
        // The element has no such node: the report comes from a faulty or hostile shepherd.
        assert_eq!(fence(&mut element, 0..6, b"x"), []);
        assert_eq!(fence(&mut element, 0..2, b"01"), [entries(b"01"), done.clone()]);
    }
    assert_eq!(element.code(), 0);
}

#[test]
fn a_fence_with_too_many_entries_ends_the_element() {
    let mut element = mpi_element(2);
    let most = vec![0; MAX_FENCE_BYTES_PER_NODE];
    for _ in 0..2 {
        // The limit applies to each fence separately.
        assert_eq!(fence(&mut element, 0..1, &most).len(), 1);
        assert_eq!(fence(&mut element, 1..2, &most).len(), 2);
    }
    assert_eq!(fence(&mut element, 0..1, &most).len(), 1);
    let actions = fence(&mut element, 0..1, &[most, vec![0]].concat());
    assert!(text(&actions[0]).contains("more than 32768 bytes"), "{actions:?}");
    assert_eq!((&actions[1..], element.code()), ([end()].as_slice(), 1));
    assert_eq!(fence(&mut element, 1..2, b""), []);
}

// Promise of `several_fences_of_some_ranks_of_several_hosts_run_at_once`.
#[test]
fn a_fence_of_some_nodes_forwards_entries_and_ends_independently() {
    let mut element = mpi_element(4);
    let fence = SubsetFence { members: [0, 2].into_iter().collect(), tag: 1 };
    let enter = |element: &mut Element, node: u32, entries: &[u8]| {
        let mut out = Outbox::default();
        let nodes = NodeSet::one(node);
        element.on_in_subset_fence(fence.clone(), &nodes, entries.to_vec(), &mut out);
        out.take()
    };
    let entries = |bytes: &[u8]| {
        let (fence, entries) = (fence.clone(), bytes.to_vec());
        MasterAction::Order(ElementOrder::SubsetFenceEntries { fence, entries }.to(FIRST))
    };
    let done = MasterAction::Order(ElementOrder::SubsetFenceDone(fence.clone()).to(FIRST));
    for _ in 0..2 {
        assert_eq!(enter(&mut element, 0, b"0"), [entries(b"0")]);
        assert_eq!(enter(&mut element, 2, b""), std::slice::from_ref(&done));
    }
    assert_eq!(ended(&mut element, 2..3, Status::Exited(0)), []);
    let actions = enter(&mut element, 0, b"");
    assert!(text(&actions[0]).contains("node 0 waits in a fence or group of PMIx"), "{actions:?}");
    assert!(text(&actions[0]).contains("for node 2, which has exited"), "{actions:?}");
    assert_eq!((&actions[1..], element.code()), ([end()].as_slice(), 1));
    let mut element = mpi_element(4);
    let most = vec![0; 2 * MAX_FENCE_BYTES_PER_NODE + 1];
    let actions = enter(&mut element, 0, &most);
    assert!(text(&actions[0]).contains("more than 32768 bytes"), "{actions:?}");
}

#[test]
fn a_node_that_has_exited_is_named_to_those_that_wait_for_it_in_a_fence() {
    let mut element = mpi_element(3);
    assert_eq!(fence(&mut element, 0..2, b""), []);
    let actions = ended(&mut element, 2..3, Status::Exited(0));
    let expected = "a.out: node 0-1 waits in a fence (MPI_Init() or MPI_Finalize()) for node 2, which has exited";
    assert_eq!((text(&actions[0]), &actions[1..]), (expected, [end()].as_slice()));
    let mut element = mpi_element(3);
    assert_eq!(ended(&mut element, 2..3, Status::Exited(0)), []);
    let actions = fence(&mut element, 0..2, b"");
    assert_eq!((text(&actions[0]), &actions[1..]), (expected, [end()].as_slice()));
}

#[test]
fn a_program_of_mpi_that_never_begins_is_no_error() {
    let mut element = mpi_element(2).with_independent_nodes();
    assert_eq!(ended(&mut element, 0..2, Status::Exited(0)), []);
    assert_eq!((element.is_ended(), element.code()), (true, 0));
    let mut element = mpi_element(2).with_independent_nodes();
    assert_eq!(ended(&mut element, 1..2, Status::Signaled(7)).len(), 2, "it is one program");
}

#[test]
fn the_rightmost_failure_sets_the_exit_code_of_the_pipeline() {
    for (codes, code) in
        [(vec![0, 0], 0), (vec![3, 0], 3), (vec![3, 4], 4), (vec![3, 4, 0], 4), (vec![7], 7)]
    {
        assert_eq!(code_of_pipeline(codes.into_iter()), code);
    }
}
