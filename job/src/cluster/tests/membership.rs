//! Tests of the server's membership, step by step: the assignment of parents, the reports that
//! count, and the loss of hosts.

use std::time::Duration;

use score_proto::ids::HostId;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{
    ChildJoined, ChildLost, DaemonInfo, Incarnation, PeerMessage, SERVER,
};
use score_tree::range_tree::Subtree;

use super::lifecycle::{at_second, child, cluster, cluster_config, join, link_lost, member};
use crate::cluster::{ClusterAction, ClusterEvent, MonotonicTime, ServerState};

/// Hosts of a cluster whose tree has four levels: 2 is below 1, and 3 is below 2.
const HOSTS: u32 = 200;
const TOP: HostId = HostId(1);
const MIDDLE: HostId = HostId(2);
const LEAF: HostId = HostId(3);

fn deep_cluster() -> ServerState {
    let ancestors = Subtree::whole(HOSTS + 1).ancestors(LEAF.0);
    assert_eq!(ancestors, [SERVER, TOP, MIDDLE].map(|host| host.0));
    ServerState::new(cluster_config(HOSTS, 1), at_second(0))
}

fn tick(server: &mut ServerState, second: u64) -> Vec<ClusterAction> {
    server.on(ClusterEvent::Tick, at_second(second))
}

/// The join request of a host that could not reach this parent.
fn join_without(host: HostId, attach_seq: u32, unreachable: HostId) -> ClusterEvent {
    let mut event = join(host.0, 100, attach_seq);
    if let ClusterEvent::Received { message: PeerMessage::Join(join), .. } = &mut event {
        join.unreachable_parent = Some(unreachable);
    }
    event
}

/// The report that host `parent` has this daemon as its child.
fn joined(parent: HostId, daemon: DaemonInfo) -> ClusterEvent {
    let message = PeerMessage::ChildrenJoined(vec![ChildJoined { daemon, parent }]);
    ClusterEvent::Received { from: TOP, message }
}

fn lost(host: HostId, incarnation: u64, attach_seq: u32) -> ClusterEvent {
    let reason = "closed".to_owned();
    let lost = ChildLost { host, incarnation: Incarnation(incarnation), attach_seq, reason };
    ClusterEvent::Received { from: TOP, message: PeerMessage::ChildrenLost(vec![lost]) }
}

/// The hosts that get a parent, and their parents.
fn assignments(actions: &[ClusterAction]) -> Vec<(HostId, HostId)> {
    let assignment = |action: &ClusterAction| match action {
        ClusterAction::Send { to, message: PeerMessage::AssignParent(assignment) } => {
            Some((*to, assignment.parent))
        }
        _ => None,
    };
    actions.iter().filter_map(assignment).collect()
}

fn beats(actions: &[ClusterAction]) -> Vec<HostId> {
    let beat = |action: &ClusterAction| match action {
        ClusterAction::Send { to, message: PeerMessage::Heartbeat(_) } => Some(*to),
        _ => None,
    };
    actions.iter().filter_map(beat).collect()
}

/// The reasons for which hosts were declared down.
fn down(actions: &[ClusterAction]) -> Vec<&str> {
    let mut reasons = Vec::new();
    for action in actions {
        if let ClusterAction::HostDown { reason, .. } = action {
            reasons.push(reason.as_str());
        }
    }
    reasons
}

fn is_only_log(actions: &[ClusterAction]) -> bool {
    matches!(actions, [ClusterAction::Log(_)])
}

fn is_reset(actions: &[ClusterAction], incarnation: u64) -> bool {
    matches!(
        actions,
        [ClusterAction::Send { message: PeerMessage::Reset { incarnation: reset, .. }, .. }]
            if *reset == Incarnation(incarnation)
    )
}

#[test]
fn a_host_is_assigned_the_nearest_ancestor_that_is_up_or_starting() {
    let mut server = deep_cluster();
    let parent_of = |server: &mut ServerState, attach| {
        assignments(&server.on(join(LEAF.0, 100, attach), at_second(0)))
    };
    assert_eq!(parent_of(&mut server, 0), [(LEAF, SERVER)], "its ancestors are absent");
    server.on(join(TOP.0, 100, 0), at_second(0));
    assert_eq!(parent_of(&mut server, 0), [(LEAF, TOP)], "it joins");
    server.on(child(TOP.0, 100, 1), at_second(0));
    server.on(joined(TOP, member(MIDDLE.0, 100, 1)), at_second(0));
    assert_eq!(parent_of(&mut server, 0), [(LEAF, MIDDLE)]);
    server.on(lost(MIDDLE, 100, 1), at_second(0));
    assert_eq!(parent_of(&mut server, 0), [(LEAF, TOP)], "2 is suspect");
    server.on(link_lost(TOP.0, "closed"), at_second(0));
    assert_eq!(parent_of(&mut server, 0), [(LEAF, SERVER)]);
}

/// A cluster with the hosts 1, 2 and 3 up. Host 1 is the parent of 2, and 2 is the parent of 3.
fn cluster_with_branch() -> ServerState {
    let mut server = deep_cluster();
    server.on(child(TOP.0, 100, 1), at_second(0));
    server.on(joined(TOP, member(MIDDLE.0, 100, 1)), at_second(0));
    server.on(joined(MIDDLE, member(LEAF.0, 100, 1)), at_second(0));
    assert_eq!(assignments(&tick(&mut server, 0)), []);
    server
}

#[test]
fn a_host_that_cannot_reach_its_parent_is_assigned_an_ancestor_of_the_parent() {
    let mut server = cluster_with_branch();
    let mut parent_without =
        |unreachable| assignments(&server.on(join_without(LEAF, 1, unreachable), at_second(0)));
    assert_eq!(parent_without(SERVER), [(LEAF, MIDDLE)], "every host is below the server");
    assert_eq!(parent_without(MIDDLE), [(LEAF, TOP)]);
    assert_eq!(parent_without(TOP), [(LEAF, SERVER)]);
    assert_eq!(parent_without(MIDDLE), [(LEAF, SERVER)], "it could not reach 1 either");
    server.on(child(LEAF.0, 100, 2), at_second(0));
    assert_eq!(assignments(&tick(&mut server, 1)), [], "its parent is the one that it can reach");
    // A new incarnation of the daemon may try all parents.
    server.on(child(LEAF.0, 101, 1), at_second(1));
    assert_eq!(assignments(&tick(&mut server, 2)), [(LEAF, MIDDLE)]);
}

#[test]
fn a_host_returns_to_an_unreachable_parent_after_the_restart_of_the_parent() {
    let mut server = cluster_with_branch();
    server.on(join_without(LEAF, 1, MIDDLE), at_second(0));
    server.on(joined(TOP, member(LEAF.0, 100, 2)), at_second(0));
    assert_eq!(assignments(&tick(&mut server, 1)), []);
    server.on(child(4, 100, 1), at_second(1));
    server.on(joined(TOP, member(MIDDLE.0, 100, 2)), at_second(1));
    let moved = assignments(&tick(&mut server, 2));
    assert!(moved.iter().all(|(host, _)| *host != LEAF), "neither 4 nor 2 was restarted");
    server.on(joined(TOP, member(MIDDLE.0, 101, 1)), at_second(2));
    let moved = assignments(&tick(&mut server, 3));
    assert!(moved.contains(&(LEAF, MIDDLE)), "{moved:?}");
    assert_eq!(assignments(&tick(&mut server, 4)), [], "once");
}

#[test]
fn a_host_is_a_child_of_its_ancestors_only_and_reports_itself_only() {
    let mut server = deep_cluster();
    let wrong = [
        joined(HostId(9), member(LEAF.0, 100, 1)),
        joined(LEAF, member(MIDDLE.0, 100, 1)),
        joined(TOP, member(SERVER.0, 100, 1)),
        joined(SERVER, member(HOSTS + 1, 100, 1)),
        ClusterEvent::Received {
            from: MIDDLE,
            message: PeerMessage::AttachChild(member(LEAF.0, 100, 1)),
        },
        ClusterEvent::Received { from: MIDDLE, message: PeerMessage::ParentLost },
    ];
    for event in wrong {
        assert!(is_only_log(&server.on(event.clone(), at_second(0))), "{event:?}");
    }
    assert!((1..=HOSTS).all(|host| !server.is_up(HostId(host))));
    let detached = ClusterEvent::Received { from: MIDDLE, message: PeerMessage::DetachChild };
    assert_eq!(server.on(detached, at_second(0)), []);
}

#[test]
fn only_hosts_of_the_list_may_join() {
    let mut server = deep_cluster();
    let text = |actions: Vec<ClusterAction>| match &actions[..] {
        [ClusterAction::Log(text)] => text.clone(),
        other => panic!("{other:?}"),
    };
    let refusal = text(server.on(join(HOSTS + 1, 100, 0), at_second(0)));
    assert_eq!(refusal, "join refused: \"c201\" is not a host of this cluster");
    let refusal = text(server.on(join(SERVER.0, 100, 0), at_second(0)));
    assert!(refusal.starts_with("join refused: \"c0\""), "{refusal}");
}

#[test]
fn a_daemon_that_serves_another_server_cleans_up_first() {
    let mut server = deep_cluster();
    for (known_server, must_reset) in [(6, true), (7, false)] {
        let server_incarnation = Some(Incarnation(known_server));
        let daemon = DaemonInfo { server_incarnation, ..member(LEAF.0, 100, 1) };
        let message = PeerMessage::AttachChild(daemon);
        let actions = server.on(ClusterEvent::Received { from: LEAF, message }, at_second(0));
        assert_eq!(is_reset(&actions, 100), must_reset, "{actions:?}");
        assert_ne!(server.is_up(LEAF), must_reset);
    }
}

#[test]
fn the_last_eight_incarnations_that_were_declared_down_have_to_clean_up() {
    let mut server = cluster(1, 1);
    for incarnation in 101..110 {
        assert_eq!(down(&server.on(child(1, incarnation, 1), at_second(1))).len(), 1);
    }
    for incarnation in 101..109 {
        assert!(is_reset(&server.on(join(1, incarnation, 1), at_second(2)), incarnation));
    }
    let actions = server.on(join(1, 100, 1), at_second(2));
    assert_eq!(assignments(&actions), [(HostId(1), SERVER)], "it is forgotten");
}

#[test]
fn a_host_that_finds_no_parent_in_time_is_absent_again() {
    let mut server = ServerState::new(cluster_config(1, 1), at_second(0));
    tick(&mut server, 0);
    server.on(join(1, 100, 0), at_second(1));
    for second in [3, 6, 9, 12] {
        assert_eq!(tick(&mut server, second), []);
    }
    assert_eq!(server.deadline(), at_second(13), "the silence limit and the grace");
    assert!(server.address(HostId(1)).is_some());
    assert_eq!(tick(&mut server, 13), []);
    assert_eq!((server.address(HostId(1)), server.is_up(HostId(1))), (None, false));
    assert!(server.deadline() > at_second(13));
}

#[test]
fn a_host_that_dials_again_and_finds_no_parent_is_down() {
    let mut server = cluster(1, 1);
    tick(&mut server, 0);
    assert_eq!(assignments(&server.on(join(1, 100, 0), at_second(1))), [], "it was sent earlier");
    assert!(server.is_up(HostId(1)));
    server.on(join(1, 100, 1), at_second(1));
    assert!(!server.is_up(HostId(1)));
    for second in [3, 6, 9, 12] {
        assert_eq!(tick(&mut server, second), []);
    }
    let actions = tick(&mut server, 13);
    assert_eq!(down(&actions), ["host c1: it dialled again and found no parent"]);
}

#[test]
fn a_suspect_host_that_dials_is_given_time_to_find_a_parent() {
    let mut server = cluster(1, 1);
    tick(&mut server, 0);
    server.on(link_lost(1, "closed"), at_second(1));
    assert_eq!(server.deadline(), at_second(3), "the grace");
    server.on(join(1, 100, 1), at_second(2));
    assert_eq!(down(&tick(&mut server, 4)), [""; 0]);
    server.on(child(1, 100, 2), at_second(5));
    assert!(server.is_up(HostId(1)));
}

#[test]
fn the_loss_of_a_host_that_was_already_reported_elsewhere_does_not_count() {
    let mut server = deep_cluster();
    server.on(child(TOP.0, 100, 1), at_second(0));
    server.on(joined(TOP, member(MIDDLE.0, 100, 2)), at_second(0));
    for stale in [lost(MIDDLE, 100, 1), lost(MIDDLE, 99, 2), lost(HostId(HOSTS + 1), 100, 1)] {
        assert_eq!(server.on(stale, at_second(0)), []);
    }
    assert_eq!(server.on(link_lost(MIDDLE.0, "closed"), at_second(0)), [], "1 is its parent");
    assert_eq!(server.on(link_lost(HOSTS + 1, "closed"), at_second(0)), []);
    assert!(server.is_up(MIDDLE));
    let actions = server.on(lost(MIDDLE, 100, 2), at_second(0));
    assert_eq!(actions, [ClusterAction::Log("host c2 is lost: closed".to_owned())]);
    assert!(!server.is_up(MIDDLE));
    assert_eq!(server.on(lost(MIDDLE, 100, 2), at_second(0)), [], "that is known");
    assert_eq!(down(&tick(&mut server, 2)), ["host c2: closed"]);
}

#[test]
fn hosts_below_a_lost_host_have_time_to_notice_and_to_dial() {
    let mut server = deep_cluster();
    tick(&mut server, 0);
    server.on(child(TOP.0, 100, 1), at_second(0));
    server.on(joined(TOP, member(MIDDLE.0, 100, 1)), at_second(0));
    server.on(joined(MIDDLE, member(LEAF.0, 100, 1)), at_second(0));
    // Another host is a child of the server, although its parent in the tree is host 1.
    server.on(child(4, 100, 1), at_second(0));
    server.on(link_lost(TOP.0, "closed"), at_second(1));
    let up = [TOP, MIDDLE, LEAF, HostId(4)].map(|host| server.is_up(host));
    assert_eq!(up, [false, false, false, true]);
    assert_eq!(down(&tick(&mut server, 3)), ["host c1: closed"]);
    for second in [6, 9, 12] {
        assert_eq!(down(&tick(&mut server, second)), [""; 0]);
    }
    assert_eq!(server.deadline(), at_second(13));
    let reason = "it did not dial again after c1, its parent, was lost";
    let actions = tick(&mut server, 13);
    assert_eq!(down(&actions), [2, 3].map(|host| format!("host c{host}: {reason}")));
}

#[test]
fn the_server_sends_its_children_a_beat_every_third_of_the_silence_limit() {
    let mut server = deep_cluster();
    server.on(child(TOP.0, 100, 1), at_second(0));
    server.on(joined(TOP, member(MIDDLE.0, 100, 1)), at_second(0));
    server.on(join(9, 100, 0), at_second(0));
    assert_eq!(beats(&tick(&mut server, 0)), [TOP], "2 is another's child, and 9 has no parent");
    let next = at_second(10) / 3;
    assert_eq!(server.deadline(), next);
    assert_eq!(beats(&server.on(ClusterEvent::Tick, next - Duration::from_nanos(1))), []);
    assert_eq!(beats(&server.on(ClusterEvent::Tick, next)), [TOP]);
}

#[test]
fn a_host_that_its_parent_stops_reporting_is_suspect_after_four_silence_limits() {
    let mut server = deep_cluster();
    tick(&mut server, 0);
    server.on(child(TOP.0, 100, 1), at_second(0));
    server.on(joined(TOP, member(MIDDLE.0, 100, 1)), at_second(0));
    let mut time = MonotonicTime::ZERO;
    let mut report = |server: &mut ServerState, hosts: &[u32]| {
        time += Duration::from_secs(10) / 3;
        let message = PeerMessage::PresenceReport(hosts.iter().copied().collect::<NodeSet>());
        server.on(ClusterEvent::Received { from: TOP, message }, time);
        server.on(ClusterEvent::Tick, time);
        (server.is_up(TOP), server.is_up(MIDDLE))
    };
    for _ in 0..30 {
        assert_eq!(report(&mut server, &[1, 2, HOSTS + 1]), (true, true));
    }
    for _ in 0..12 {
        assert_eq!(report(&mut server, &[1]), (true, true));
    }
    assert_eq!(report(&mut server, &[1]), (true, false));
}

#[test]
fn a_server_extends_the_limit_of_each_host_by_the_time_it_was_stopped() {
    for (pause, is_extended) in [(3, false), (4, true)] {
        let mut server = cluster(2, 1);
        tick(&mut server, 0);
        server.on(link_lost(1, "closed"), at_second(3));
        server.on(join(2, 200, 1), at_second(3));
        // The next heartbeat is due at 3.33 s.
        let late = at_second(10) / 3 + at_second(pause);
        assert_eq!(down(&server.on(ClusterEvent::Tick, late)).is_empty(), is_extended);
        if is_extended {
            assert_eq!(server.deadline(), at_second(5 + pause));
            assert_eq!(down(&tick(&mut server, 9)), ["host c1: closed"]);
            assert_eq!([11, 14, 17].map(|second| tick(&mut server, second).len()), [0; 3]);
            assert_eq!(server.deadline(), at_second(15 + pause));
        }
    }
}

#[test]
fn hosts_move_to_their_places_in_the_tree_a_batch_at_a_time() {
    let mut server = cluster(HOSTS, 1);
    let own_place: Vec<_> = (1..=HOSTS)
        .map(|host| (host, *Subtree::whole(HOSTS + 1).ancestors(host).last().unwrap()))
        .filter(|(_, parent)| *parent != SERVER.0)
        .collect();
    assert!(own_place.len() > 128 && own_place.len() <= 192);
    let moved = assignments(&tick(&mut server, 0));
    let expected = own_place[..64].iter().map(|(host, parent)| (HostId(*host), HostId(*parent)));
    assert_eq!(moved, expected.collect::<Vec<_>>());
    for (host, parent) in moved {
        server.on(joined(parent, member(host.0, u64::from(host.0) * 100, 2)), at_second(1));
    }
    let moved = assignments(&tick(&mut server, 1));
    assert_eq!((moved.len(), moved[0].0.0), (64, own_place[64].0));
}
