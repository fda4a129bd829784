//! Tests of a daemon in the tree, step by step: its messages to its parent, its children and the
//! server, and its responses to their loss.

use score_proto::ids::HostId;
use score_proto::nodeset::{MAX_RANGES, NodeSet};
use score_proto::peer_message::{
    ChildJoined, ChildLost, DaemonInfo, Heartbeat, Incarnation, JoinRequest, ParentAssignment,
    PeerMessage, SERVER,
};

use super::simulation::TIMEOUTS;
use crate::cluster::MonotonicTime;
use crate::cluster::tree_member::{Member, MemberAction, MemberConfig, MemberEvent};

const SERVER_NOW: Incarnation = Incarnation(7);
const DAEMON: Incarnation = Incarnation(100);
const HOST: HostId = HostId(5);
const PARENT: HostId = HostId(1);
const CHILD: HostId = HostId(6);

fn at(milliseconds: u64) -> MonotonicTime {
    MonotonicTime::from_millis(milliseconds)
}

fn address() -> std::net::SocketAddr {
    "127.0.0.1:5".parse().unwrap()
}

fn config() -> MemberConfig {
    MemberConfig {
        name: "c5".to_owned(),
        incarnation: DAEMON,
        address: address(),
        memory: 64,
        host_and_parent: None,
        times: TIMEOUTS,
    }
}

fn join(server: Option<Incarnation>, attach_seq: u32, unreachable: Option<HostId>) -> MemberAction {
    let join = JoinRequest {
        name: "c5".to_owned(),
        incarnation: DAEMON,
        address: address(),
        server_incarnation: server,
        attach_seq,
        unreachable_parent: unreachable,
    };
    send(SERVER, PeerMessage::Join(join))
}

fn send(to: HostId, message: PeerMessage) -> MemberAction {
    MemberAction::Send { to, message }
}

fn received(from: HostId, message: PeerMessage) -> MemberEvent {
    MemberEvent::Received { from, message }
}

fn link_lost(host: HostId) -> MemberEvent {
    MemberEvent::LinkLost { host, reason: "closed".to_owned() }
}

fn assignment(parent: HostId) -> PeerMessage {
    PeerMessage::AssignParent(ParentAssignment {
        host: HOST,
        server_incarnation: SERVER_NOW,
        parent,
        parent_address: None,
    })
}

/// The daemon's own record in its report to its parent.
fn own_record(server: Option<Incarnation>, attach_seq: u32) -> PeerMessage {
    PeerMessage::AttachChild(DaemonInfo {
        host: HOST,
        incarnation: DAEMON,
        address: address(),
        server_incarnation: server,
        attach_seq,
        memory: 64,
    })
}

fn child_record(host: HostId, incarnation: u64, attach_seq: u32) -> DaemonInfo {
    DaemonInfo {
        host,
        incarnation: Incarnation(incarnation),
        address: address(),
        server_incarnation: None,
        attach_seq,
        memory: 0,
    }
}

fn attach_child(host: HostId, incarnation: u64, attach_seq: u32) -> MemberEvent {
    received(host, PeerMessage::AttachChild(child_record(host, incarnation, attach_seq)))
}

fn beat(server: Incarnation, child: Incarnation, attach_seq: u32) -> PeerMessage {
    PeerMessage::Heartbeat(Heartbeat {
        server_incarnation: server,
        child_incarnation: child,
        attach_seq,
    })
}

fn presence(hosts: impl IntoIterator<Item = u32>) -> PeerMessage {
    PeerMessage::PresenceReport(hosts.into_iter().collect())
}

/// A daemon whose parent was assigned at time 0 and has not answered.
fn assigned_daemon() -> Member {
    let mut daemon = Member::new(config(), at(0));
    assert_eq!(daemon.on(MemberEvent::Tick, at(0)), [join(None, 0, None)]);
    let actions = daemon.on(received(SERVER, assignment(PARENT)), at(0));
    assert_eq!(actions, [send(PARENT, own_record(Some(SERVER_NOW), 1))]);
    assert_eq!((daemon.host(), daemon.parent()), (Some(HOST), Some(PARENT)));
    daemon
}

/// A daemon whose parent has forwarded a heartbeat of the server at time 0.
fn attached_daemon() -> Member {
    let mut daemon = assigned_daemon();
    let actions = daemon.on(received(PARENT, beat(SERVER_NOW, DAEMON, 1)), at(0));
    assert_eq!(actions, [send(PARENT, presence([HOST.0]))]);
    daemon
}

/// A daemon with a child that was reported to the daemon's parent.
fn daemon_with_child() -> Member {
    let mut daemon = attached_daemon();
    daemon.on(attach_child(CHILD, 200, 1), at(0));
    assert_eq!(daemon.on(MemberEvent::Tick, at(3)).len(), 1);
    daemon
}

fn lost_child(host: HostId, incarnation: u64, attach_seq: u32, reason: &str) -> ChildLost {
    let (incarnation, reason) = (Incarnation(incarnation), reason.to_owned());
    ChildLost { host, incarnation, attach_seq, reason }
}

fn is_only_log(actions: &[MemberAction]) -> bool {
    matches!(actions, [MemberAction::Log(_)])
}

#[test]
fn a_daemon_requests_a_parent_again_until_it_gets_one() {
    let mut daemon = Member::new(config(), at(0));
    assert_eq!((daemon.deadline(), daemon.host(), daemon.parent()), (at(0), None, None));
    assert_eq!(daemon.on(MemberEvent::Tick, at(0)), [join(None, 0, None)]);
    assert_eq!(daemon.deadline(), at(10_000));
    assert_eq!(daemon.on(MemberEvent::Tick, at(9_999)), []);
    assert_eq!(daemon.on(MemberEvent::Tick, at(10_000)), [join(None, 0, None)]);
    assert_eq!(daemon.on(link_lost(HostId(3)), at(10_001)), []);
    assert_eq!(daemon.deadline(), at(20_000), "that link is none to the server");
    assert_eq!(daemon.on(link_lost(SERVER), at(10_001)), []);
    assert_eq!(daemon.deadline(), at(10_501));
    assert_eq!(daemon.on(MemberEvent::Tick, at(10_501)), [join(None, 0, None)]);
}

#[test]
fn a_daemon_that_its_parent_started_attaches_to_it_at_once() {
    let config = MemberConfig { host_and_parent: Some((HOST, PARENT)), ..config() };
    let mut daemon = Member::new(config, at(0));
    assert_eq!((daemon.host(), daemon.parent()), (Some(HOST), None));
    assert_eq!(daemon.on(MemberEvent::Tick, at(0)), [send(PARENT, own_record(None, 1))]);
    assert_eq!((daemon.parent(), daemon.incarnation()), (Some(PARENT), DAEMON));
    // If it is lost, the server assigns another parent.
    assert_eq!(daemon.on(link_lost(PARENT), at(1)), [join(None, 1, Some(PARENT))]);
}

#[test]
fn the_address_of_an_assigned_parent_is_known_before_it_is_dialled() {
    let mut daemon = Member::new(config(), at(0));
    let assignment = PeerMessage::AssignParent(ParentAssignment {
        host: HOST,
        server_incarnation: SERVER_NOW,
        parent: PARENT,
        parent_address: Some(address()),
    });
    let actions = daemon.on(received(SERVER, assignment), at(0));
    let set_address = MemberAction::SetAddress { host: PARENT, address: address() };
    assert_eq!(actions, [set_address, send(PARENT, own_record(Some(SERVER_NOW), 1))]);
}

#[test]
fn only_the_server_assigns_parents_and_orders_resets() {
    let mut daemon = attached_daemon();
    let reset = || PeerMessage::Reset { incarnation: DAEMON, reason: "down".to_owned() };
    let refusal = || PeerMessage::Refused { reason: "unknown".to_owned() };
    for message in [assignment(HostId(2)), reset(), refusal()] {
        assert!(is_only_log(&daemon.on(received(PARENT, message), at(1))));
        assert_eq!(daemon.parent(), Some(PARENT));
    }
    let actions = daemon.on(received(SERVER, refusal()), at(1));
    assert_eq!(actions, [MemberAction::Log("the server refuses this host: unknown".to_owned())]);
    let other = PeerMessage::Reset { incarnation: Incarnation(99), reason: "down".to_owned() };
    assert_eq!(daemon.on(received(SERVER, other), at(1)), [], "that is its predecessor");
    let actions = daemon.on(received(SERVER, reset()), at(1));
    assert_eq!(actions.last(), Some(&MemberAction::ResetHost { reason: "down".to_owned() }));
}

#[test]
fn messages_that_no_daemon_expects_are_logged() {
    let mut daemon = attached_daemon();
    let request = JoinRequest {
        name: "c9".to_owned(),
        incarnation: DAEMON,
        address: address(),
        server_incarnation: None,
        attach_seq: 0,
        unreachable_parent: None,
    };
    assert!(is_only_log(&daemon.on(received(CHILD, PeerMessage::Join(request)), at(1))));
    let forged = PeerMessage::AttachChild(child_record(HostId(8), 200, 1));
    assert!(is_only_log(&daemon.on(received(CHILD, forged), at(1))), "8 is not the sender");
}

#[test]
fn a_beat_is_forwarded_to_all_children_and_answered_with_their_reported_hosts() {
    let mut daemon = daemon_with_child();
    daemon.on(received(CHILD, presence([CHILD.0, 8])), at(10));
    daemon.on(received(HostId(9), presence([9])), at(10));
    let actions = daemon.on(received(PARENT, beat(SERVER_NOW, DAEMON, 1)), at(20));
    let to_child = send(CHILD, beat(SERVER_NOW, Incarnation(200), 1));
    assert_eq!(actions, [to_child.clone(), send(PARENT, presence([5, 6, 8]))], "9 is no child");
    // Reports of the children count once. The parent has recorded only the previous incarnation of
    // the daemon.
    let actions = daemon.on(received(PARENT, beat(SERVER_NOW, Incarnation(99), 1)), at(30));
    let record = own_record(Some(SERVER_NOW), 1);
    let report = send(PARENT, presence([5]));
    assert_eq!(actions, [to_child.clone(), report.clone(), send(PARENT, record.clone())]);
    // The parent has recorded only an earlier attachment.
    let actions = daemon.on(received(PARENT, beat(SERVER_NOW, DAEMON, 0)), at(40));
    assert_eq!(actions, [to_child, report, send(PARENT, record)]);
}

#[test]
fn a_beat_of_a_host_that_is_not_the_parent_detaches_the_daemon_from_it() {
    let mut daemon = attached_daemon();
    let actions = daemon.on(received(HostId(2), beat(SERVER_NOW, DAEMON, 1)), at(14_000));
    assert_eq!(actions, [send(HostId(2), PeerMessage::DetachChild)]);
    assert_eq!(daemon.deadline(), at(15_000), "it is no beat of the server");
}

#[test]
fn a_beat_of_another_server_resets_the_daemon_that_it_addresses() {
    let other = Incarnation(8);
    let mut daemon = attached_daemon();
    let actions = daemon.on(received(PARENT, beat(other, Incarnation(99), 1)), at(1));
    assert_eq!(actions, [], "the parent knows a predecessor only");
    let actions = daemon.on(received(PARENT, beat(other, DAEMON, 1)), at(1));
    let reason = "the server was restarted".to_owned();
    assert_eq!(actions.last(), Some(&MemberAction::ResetHost { reason }));
}

#[test]
fn a_daemon_without_beats_requests_another_parent_and_then_ends_all_its_jobs() {
    let mut daemon = daemon_with_child();
    assert_eq!(daemon.deadline(), at(15_000), "one and a half times the silence limit");
    assert_eq!(daemon.on(MemberEvent::Tick, at(14_999)), []);
    let lost = |reason| PeerMessage::ChildrenLost(vec![lost_child(HOST, 100, 1, reason)]);
    let actions = daemon.on(MemberEvent::Tick, at(15_000));
    let expected = [
        send(PARENT, lost("no heartbeat from its parent")),
        send(PARENT, PeerMessage::DetachChild),
        send(CHILD, PeerMessage::ParentLost),
        join(Some(SERVER_NOW), 1, Some(PARENT)),
    ];
    assert_eq!(actions, expected);
    assert_eq!(daemon.deadline(), at(22_000), "twice the silence limit and the grace");
    assert_eq!(daemon.on(MemberEvent::Tick, at(21_999)), []);
    let reason = "no heartbeat of the server for too long".to_owned();
    assert_eq!(daemon.on(MemberEvent::Tick, at(22_000)), [MemberAction::ResetHost { reason }]);
    assert_eq!(daemon.deadline(), MonotonicTime::MAX);
    assert_eq!(daemon.on(MemberEvent::Tick, at(90_000)), []);
}

#[test]
fn each_beat_and_each_assignment_keeps_the_jobs_for_another_period() {
    let mut daemon = attached_daemon();
    daemon.on(received(PARENT, beat(SERVER_NOW, DAEMON, 1)), at(9_000));
    assert_eq!(daemon.deadline(), at(24_000));
    daemon.on(received(SERVER, assignment(PARENT)), at(11_000));
    assert_eq!(daemon.deadline(), at(26_000));
}

#[test]
fn a_daemon_answers_no_message_during_its_reset() {
    let mut daemon = daemon_with_child();
    let reset = || PeerMessage::Reset { incarnation: DAEMON, reason: "down".to_owned() };
    let lost = PeerMessage::ChildrenLost(vec![lost_child(HOST, 100, 1, "down")]);
    let expected = [
        send(PARENT, lost),
        send(PARENT, PeerMessage::DetachChild),
        send(CHILD, PeerMessage::ParentLost),
        MemberAction::ResetHost { reason: "down".to_owned() },
    ];
    assert_eq!(daemon.on(received(SERVER, reset()), at(10)), expected);
    assert_eq!(daemon.on(received(SERVER, reset()), at(11)), []);
    assert_eq!(daemon.on(received(SERVER, assignment(PARENT)), at(11)), []);
    let actions = daemon.on(attach_child(HostId(8), 1, 1), at(11));
    assert_eq!(actions, [send(HostId(8), PeerMessage::ParentLost)]);
    assert_eq!(daemon.parent(), None);
    let actions = daemon.on(MemberEvent::ResetDone(Incarnation(101)), at(12));
    let [MemberAction::Send { to: SERVER, message: PeerMessage::Join(join) }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!((join.incarnation, daemon.incarnation()), (Incarnation(101), Incarnation(101)));
    let first_join = (join.server_incarnation, join.attach_seq, join.unreachable_parent);
    assert_eq!(first_join, (None, 0, None));
    daemon.on(MemberEvent::ResetDone(Incarnation(102)), at(13));
    assert_eq!(daemon.incarnation(), Incarnation(101), "no reset was under way");
}

#[test]
fn changes_of_children_are_collected_and_sent_to_the_parent_together() {
    let mut daemon = attached_daemon();
    let actions = daemon.on(attach_child(CHILD, 200, 1), at(100));
    assert_eq!(actions, [send(CHILD, beat(SERVER_NOW, Incarnation(200), 1))]);
    assert_eq!(daemon.deadline(), at(103));
    assert_eq!(daemon.on(attach_child(HostId(8), 300, 1), at(102)).len(), 1);
    assert_eq!(daemon.on(link_lost(CHILD), at(102)), []);
    let joined = |host, incarnation| ChildJoined {
        daemon: child_record(host, incarnation, 1),
        parent: HOST,
    };
    let up = PeerMessage::ChildrenJoined(vec![joined(CHILD, 200), joined(HostId(8), 300)]);
    let lost = PeerMessage::ChildrenLost(vec![lost_child(CHILD, 200, 1, "closed")]);
    let actions = daemon.on(MemberEvent::Tick, at(103));
    assert_eq!(actions, [send(PARENT, up), send(PARENT, lost)]);
    assert_eq!(daemon.deadline(), at(15_000));
    // The child reports changes of its own children.
    let below = || vec![ChildJoined { daemon: child_record(HostId(9), 1, 1), parent: HostId(8) }];
    let lost = || vec![lost_child(HostId(9), 1, 1, "closed")];
    daemon.on(received(HostId(8), PeerMessage::ChildrenJoined(below())), at(200));
    assert_eq!(daemon.deadline(), at(203));
    daemon.on(received(HostId(8), PeerMessage::ChildrenLost(lost())), at(200));
    let actions = daemon.on(MemberEvent::Tick, at(203));
    let messages = [PeerMessage::ChildrenJoined(below()), PeerMessage::ChildrenLost(lost())];
    assert_eq!(actions, messages.map(|message| send(PARENT, message)));
}

#[test]
fn a_child_is_reported_once_for_each_attachment() {
    let mut daemon = daemon_with_child();
    for (incarnation, attach_seq, is_new) in
        [(200, 1, false), (200, 0, false), (200, 2, true), (201, 1, true), (201, 1, false)]
    {
        let actions = daemon.on(attach_child(CHILD, incarnation, attach_seq), at(100));
        assert_eq!(actions.len(), usize::from(is_new), "{incarnation} {attach_seq}");
        let reports = daemon.on(MemberEvent::Tick, at(103));
        assert_eq!(reports.len(), usize::from(is_new), "{incarnation} {attach_seq}");
    }
    // A child that has detached itself is not lost.
    daemon.on(received(CHILD, PeerMessage::DetachChild), at(200));
    daemon.on(link_lost(CHILD), at(200));
    assert_eq!(daemon.on(MemberEvent::Tick, at(203)), []);
    let actions = daemon.on(received(PARENT, beat(SERVER_NOW, DAEMON, 1)), at(300));
    assert_eq!(actions, [send(PARENT, presence([5]))]);
}

#[test]
fn a_daemon_without_a_number_has_no_children() {
    let mut daemon = Member::new(config(), at(0));
    daemon.on(MemberEvent::Tick, at(0));
    let actions = daemon.on(attach_child(CHILD, 200, 1), at(1));
    assert_eq!(actions, [send(CHILD, PeerMessage::ParentLost)]);
}

#[test]
fn many_changes_are_sent_in_several_messages_and_too_many_detach_the_subtree() {
    let changes = |count: u32| -> Vec<_> {
        (0..count).map(|number| lost_child(HostId(10 + number), 1, 1, "closed")).collect()
    };
    let mut daemon = daemon_with_child();
    daemon.on(received(CHILD, PeerMessage::ChildrenLost(changes(1025))), at(100));
    let counts: Vec<_> = daemon
        .on(MemberEvent::Tick, at(103))
        .into_iter()
        .map(|action| match action {
            MemberAction::Send { to: PARENT, message: PeerMessage::ChildrenLost(lost) } => {
                lost.len()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts, [1024, 1]);
    let joined = ChildJoined { daemon: child_record(HostId(9), 1, 1), parent: CHILD };
    daemon.on(received(CHILD, PeerMessage::ChildrenJoined(vec![joined])), at(200));
    let almost = PeerMessage::ChildrenLost(changes(16 * 1024 - 1));
    assert_eq!(daemon.on(received(CHILD, almost), at(200)), []);
    assert_eq!(daemon.parent(), Some(PARENT));
    let actions = daemon.on(received(CHILD, PeerMessage::ChildrenLost(changes(1))), at(200));
    let dissolved = [send(CHILD, PeerMessage::ParentLost), join(Some(SERVER_NOW), 1, None)];
    assert_eq!((actions, daemon.parent()), (dissolved.to_vec(), None));
}

#[test]
fn a_daemon_that_loses_its_parent_sends_its_children_away() {
    let mut daemon = daemon_with_child();
    assert_eq!(daemon.on(received(HostId(2), PeerMessage::ParentLost), at(10)), []);
    assert_eq!(daemon.parent(), Some(PARENT), "2 is not its parent");
    assert_eq!(daemon.on(link_lost(HostId(2)), at(10)), []);
    daemon.on(attach_child(HostId(8), 300, 1), at(10));
    let actions = daemon.on(received(PARENT, PeerMessage::ParentLost), at(11));
    let expected = [
        send(CHILD, PeerMessage::ParentLost),
        send(HostId(8), PeerMessage::ParentLost),
        join(Some(SERVER_NOW), 1, None),
    ];
    assert_eq!(actions, expected);
    // From now on, each of them reports its own changes.
    let actions = daemon.on(received(SERVER, assignment(HostId(2))), at(20));
    assert_eq!(actions, [send(HostId(2), own_record(Some(SERVER_NOW), 2))]);
    assert_eq!(daemon.on(MemberEvent::Tick, at(5_000)), []);
}

#[test]
fn a_parent_that_never_answered_is_named_as_unreachable() {
    let mut daemon = assigned_daemon();
    let actions = daemon.on(link_lost(PARENT), at(1));
    assert_eq!(actions, [join(Some(SERVER_NOW), 1, Some(PARENT))]);
    // The next parent answers, so the earlier one may be offered again.
    daemon.on(received(SERVER, assignment(HostId(2))), at(2));
    daemon.on(received(HostId(2), beat(SERVER_NOW, DAEMON, 2)), at(3));
    let actions = daemon.on(link_lost(HostId(2)), at(4));
    assert_eq!(actions, [join(Some(SERVER_NOW), 2, None)]);
}

#[test]
fn a_daemon_that_moves_to_another_parent_keeps_its_children_if_the_old_one_has_answered() {
    let other = HostId(2);
    let mut daemon = daemon_with_child();
    let actions = daemon.on(received(SERVER, assignment(other)), at(10));
    let detach = send(PARENT, PeerMessage::DetachChild);
    let record = |attach| send(other, own_record(Some(SERVER_NOW), attach));
    assert_eq!(actions, [detach, record(2)]);
    // The other parent has not answered. If it is assigned again, nothing is lost.
    daemon.on(attach_child(HostId(8), 300, 1), at(10));
    assert_eq!(daemon.on(received(SERVER, assignment(other)), at(11)), [record(3)]);
    let actions = daemon.on(received(SERVER, assignment(PARENT)), at(12));
    let expected = [
        send(CHILD, PeerMessage::ParentLost),
        send(HostId(8), PeerMessage::ParentLost),
        send(PARENT, own_record(Some(SERVER_NOW), 4)),
    ];
    assert_eq!(actions, expected);
}

#[test]
fn a_presence_report_is_dropped_if_all_of_them_would_not_fit_in_a_message() {
    let mut daemon = daemon_with_child();
    let scattered: NodeSet = (0..MAX_RANGES as u32).map(|number| number * 2).collect();
    let further = presence([MAX_RANGES as u32 * 2]);
    daemon.on(received(CHILD, PeerMessage::PresenceReport(scattered.clone())), at(10));
    daemon.on(received(CHILD, further), at(10));
    let mut reported = scattered;
    reported.insert(HOST.0);
    let actions = daemon.on(received(PARENT, beat(SERVER_NOW, DAEMON, 1)), at(20));
    assert!(actions.last() == Some(&send(PARENT, PeerMessage::PresenceReport(reported))));
}
