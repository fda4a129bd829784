//! Tests with events that no honest peer and no correct caller would send, in any order. The state
//! machines do not panic, and their memory stays within its limits.

use proptest::prelude::*;
use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{
    ChildJoined, ChildLost, DaemonInfo, Heartbeat, Incarnation, JoinRequest, ParentAssignment,
    PeerMessage, User,
};

use super::lifecycle::cluster_config;
use crate::cluster::JobPermit;
use crate::cluster::tree_member::{self, Member};
use score_proto::allocation_request::AllocationRequest;

use crate::cluster::{
    ClusterAction, ClusterEvent, JobRequest, MonotonicTime, ServerState, SessionId, SlotUse,
};

const HOSTS: u32 = 12;

fn host() -> impl Strategy<Value = HostId> {
    prop_oneof![3 => Just(0u32), 8 => 0..HOSTS + 2, 1 => Just(u32::MAX)].prop_map(HostId)
}

fn membership_record() -> impl Strategy<Value = DaemonInfo> {
    (host(), 0u64..4, proptest::option::of(6u64..8), prop_oneof![0u32..4, Just(u32::MAX)]).prop_map(
        |(host, incarnation, server, attach)| {
            let address = "127.0.0.1:1".parse().unwrap();
            let memory = u64::from(attach % 3) * 100;
            DaemonInfo {
                host,
                incarnation: Incarnation(incarnation),
                address,
                server_incarnation: server.map(Incarnation),
                attach_seq: attach,
                memory,
            }
        },
    )
}

fn message() -> impl Strategy<Value = PeerMessage> {
    let joined = (membership_record(), host())
        .prop_map(|(member, parent)| ChildJoined { daemon: member, parent });
    let lost = membership_record().prop_map(
        |DaemonInfo { host, incarnation, attach_seq: attach, .. }| ChildLost {
            host,
            incarnation,
            attach_seq: attach,
            reason: "why".to_owned(),
        },
    );
    let join = (membership_record(), proptest::option::of(host())).prop_map(|(record, without)| {
        let DaemonInfo {
            host,
            incarnation,
            address,
            server_incarnation: server,
            attach_seq: attach,
            ..
        } = record;
        PeerMessage::Join(JoinRequest {
            name: format!("c{host}"),
            incarnation,
            address,
            server_incarnation: server,
            attach_seq: attach,
            unreachable_parent: without,
        })
    });
    let assignment = (host(), host(), 6u64..8).prop_map(|(host, parent, server)| {
        PeerMessage::AssignParent(ParentAssignment {
            host,
            server_incarnation: Incarnation(server),
            parent,
            parent_address: None,
        })
    });
    prop_oneof![
        join,
        assignment,
        membership_record().prop_map(PeerMessage::AttachChild),
        proptest::collection::vec(joined, 0..4).prop_map(PeerMessage::ChildrenJoined),
        proptest::collection::vec(lost, 0..4).prop_map(PeerMessage::ChildrenLost),
        (6u64..8, 0u64..4, 0u32..4).prop_map(
            |(server_incarnation, child_incarnation, attach_seq)| PeerMessage::Heartbeat(
                Heartbeat {
                    server_incarnation: Incarnation(server_incarnation),
                    child_incarnation: Incarnation(child_incarnation),
                    attach_seq,
                }
            )
        ),
        (0u32..20, 0u32..20)
            .prop_map(|(from, to)| PeerMessage::PresenceReport(NodeSet::from(from..to))),
        Just(PeerMessage::ParentLost),
        Just(PeerMessage::DetachChild),
        (0u64..4).prop_map(|incarnation| PeerMessage::Reset {
            incarnation: Incarnation(incarnation),
            reason: String::new()
        }),
        Just(PeerMessage::Refused { reason: String::new() }),
        Just(PeerMessage::SessionEnded { session: 1, reason: String::new() }),
    ]
}

fn session() -> impl Strategy<Value = SessionId> {
    (host(), 0u64..8, 0u64..4).prop_map(|(host, incarnation, number)| SessionId {
        host,
        incarnation: Incarnation(incarnation),
        number,
    })
}

fn job() -> impl Strategy<Value = JobId> {
    (0u32..20).prop_map(JobId)
}

fn session_job() -> impl Strategy<Value = SessionJobId> {
    (0u32..9).prop_map(SessionJobId)
}

fn request() -> impl Strategy<Value = JobRequest> {
    let shape = prop_oneof![
        any::<(u32, u32)>()
            .prop_map(|(hosts, procs)| AllocationRequest::HostsByProcs { hosts, procs }),
        (0u32..4, 0u32..4)
            .prop_map(|(hosts, procs)| AllocationRequest::HostsByProcs { hosts, procs }),
        (0u32..30).prop_map(AllocationRequest::FewestHosts),
        any::<(u32, u32)>().prop_map(|(min_nodes, max_nodes)| {
            AllocationRequest::AllFreeSlots { min_nodes, max_nodes }
        }),
        any::<[u32; 3]>().prop_map(|[hosts, min_nodes, max_nodes]| {
            AllocationRequest::Exclusive { hosts, min_nodes, max_nodes }
        }),
        (0u32..4).prop_map(|hosts| AllocationRequest::Exclusive {
            hosts,
            min_nodes: 1,
            max_nodes: 99
        }),
        any::<[u32; 3]>().prop_map(|[procs, min_nodes, max_nodes]| {
            AllocationRequest::EveryHost { procs, min_nodes, max_nodes }
        }),
        (0u32..4).prop_map(|procs| AllocationRequest::EveryHost {
            procs,
            min_nodes: 1,
            max_nodes: 99
        }),
    ];
    let allowed = proptest::option::weighted(0.2, (0u32..16, 0u32..16));
    (shape, allowed, any::<bool>(), 0u8..18, any::<u32>()).prop_map(
        |(shape, allowed, wait, priority, bytes)| {
            let allowed = allowed.map(|(from, to)| NodeSet::from(from..to));
            JobRequest {
                allocation: shape,
                pools: allowed.into_iter().collect(),
                wait,
                priority,
                slot_use: match bytes % 3 {
                    0 => SlotUse::WholeHosts,
                    _ => SlotUse::PerProcess,
                },
                memory: u64::from(bytes % 4) * 60,
                spec_bytes: u64::from(bytes % 1000),
            }
        },
    )
}

fn event() -> impl Strategy<Value = ClusterEvent> {
    let reason = || "why".to_owned();
    prop_oneof![
        6 => (host(), message())
            .prop_map(|(from, message)| ClusterEvent::Received { from, message }),
        3 => membership_record().prop_map(|record| ClusterEvent::Received {
            from: record.host,
            message: PeerMessage::AttachChild(record)
        }),
        1 => host().prop_map(move |host| ClusterEvent::LinkLost { host, reason: reason() }),
        2 => (session(), 0u32..4).prop_map(|(session, uid)| ClusterEvent::Login {
            session,
            user: User { uid, gid: 0, name: OsBytes(Vec::new()) },
        }),
        6 => (session(), session_job(), request())
            .prop_map(|(session, tag, request)| ClusterEvent::Submit { session, tag, request }),
        1 => (session(), session_job())
            .prop_map(|(session, tag)| ClusterEvent::Cancel { session, tag }),
        1 => session().prop_map(|session| ClusterEvent::Logout { session }),
        2 => (job(), 0u32..9).prop_map(|(job, end)| {
            ClusterEvent::Released { job, hosts: NodeSet::from(0..end) }
        }),
        1 => (job(), 0u32..9).prop_map(|(job, end)| {
            ClusterEvent::HostsLost { job, hosts: NodeSet::from(0..end) }
        }),
        2 => (job(), any::<u8>()).prop_map(|(job, code)| ClusterEvent::Finished { job, code }),
        1 => (0u32..4, job())
            .prop_map(|(uid, job)| ClusterEvent::KillJob(JobPermit::forged(uid, job))),
        1 => Just(ClusterEvent::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    // Promise (cluster): Whatever a peer or a user sends in whatever order, server and daemon do
    // not panic, and their memory is bounded.
    #[test]
    fn no_event_makes_the_server_panic_or_count_wrongly(
        events in proptest::collection::vec((event(), 0u64..4000), 0..150), rows in 1u32..4,
    ) {
        let mut small = cluster_config(HOSTS - 1, 3);
        small.hosts[0].slots = 2;
        (small.rows, small.memory) = (rows, 100);
        (small.limits.queued, small.limits.queued_per_user) = (6, 4);
        (small.limits.sessions, small.limits.sessions_per_user) = (6, 4);
        let mut cluster = ServerState::new(small, MonotonicTime::ZERO);
        let mut now = MonotonicTime::ZERO;
        let (mut open, mut ended) = (0, 0);
        for (event, pause) in events {
            now += MonotonicTime::from_millis(pause);
            for action in cluster.on(event, now) {
                match action {
                    ClusterAction::Ended { .. } => ended += 1,
                    ClusterAction::Start { incarnations, shares, .. } => {
                        prop_assert_eq!(incarnations.len(), shares.len());
                        open += 1;
                    }
                    _ => {}
                }
            }
            prop_assert!(cluster.sessions.len() <= 6 && cluster.pending.len() <= 6);
            for (number, host) in (0..).zip(&cluster.membership.hosts) {
                prop_assert!(host.used_slots <= host.config.slots * rows, "c{}", number);
            }
            let held = cluster.list().filter(|job| !job.shares.is_empty()).count();
            prop_assert!(held + ended >= open);
        }
    }

    // Promise of `no_event_makes_the_server_panic_or_count_wrongly`.
    #[test]
    fn no_event_makes_a_daemon_panic(
        events in proptest::collection::vec((host(), message(), 0u64..4000, 0u8..8), 0..150)
    ) {
        let setting = tree_member::MemberConfig {
            name: "c1".to_owned(),
            incarnation: Incarnation(1),
            address: "127.0.0.1:1".parse().unwrap(),
            memory: 0,
            host_and_parent: Some((HostId(1), HostId(0))),
            times: cluster_config(1, 1).times,
        };
        let mut member = Member::new(setting, MonotonicTime::ZERO);
        let mut now = MonotonicTime::ZERO;
        for (from, message, pause, kind) in events {
            now += MonotonicTime::from_millis(pause);
            let event = match kind {
                0 => tree_member::MemberEvent::Tick,
                1 => tree_member::MemberEvent::LinkLost { host: from, reason: "why".to_owned() },
                2 => tree_member::MemberEvent::ResetDone(Incarnation(pause)),
                _ => tree_member::MemberEvent::Received { from, message },
            };
            member.on(event, now);
            // A caller that ticks at each deadline comes to an end.
            let mut ticks = 0;
            while member.deadline() <= now {
                member.on(tree_member::MemberEvent::Tick, now);
                ticks += 1;
                prop_assert!(ticks < 3);
            }
        }
    }
}
