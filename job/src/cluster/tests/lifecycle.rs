//! Tests of lifecycles, step by step, as in the table of `cluster/mod.rs`, and of the answers to
//! requests that exceed the limits.

use std::time::Duration;

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{
    DaemonInfo, Heartbeat, Incarnation, JoinRequest, ParentAssignment, PeerMessage, SERVER, User,
};

use crate::cluster::JobAction;
use crate::cluster::{
    ClusterAction, ClusterConfig, ClusterEvent, ClusterLimits, HostConfig, HostShare, JobRequest,
    MonotonicTime, ServerState, SessionId, SlotUse, Timeouts,
};

pub(super) const SERVER_INCARNATION: u64 = 7;

pub(super) fn at_second(seconds: u64) -> MonotonicTime {
    MonotonicTime::from_secs(seconds)
}

pub fn cluster_config(hosts: u32, slots: u32) -> ClusterConfig {
    let host = |number| HostConfig {
        name: format!("c{number}"),
        slots: if number == 0 { 0 } else { slots },
        spare_for: NodeSet::new(),
        defect: false,
    };
    ClusterConfig {
        server_incarnation: Incarnation(SERVER_INCARNATION),
        hosts: (0..=hosts).map(host).collect(),
        times: Timeouts {
            silence: Duration::from_secs(10),
            grace: Duration::from_secs(2),
            cleanup: Duration::from_secs(5),
            merge: Duration::from_millis(3),
        },
        first_job: JobId(1),
        rows: 1,
        memory: 0,
        operators: vec![50],
        limits: ClusterLimits::default(),
    }
}

pub(super) fn member(host: u32, incarnation: u64, attach: u32) -> DaemonInfo {
    let address = "127.0.0.1:1".parse().unwrap();
    DaemonInfo {
        host: HostId(host),
        incarnation: Incarnation(incarnation),
        address,
        server_incarnation: None,
        attach_seq: attach,
        memory: 0,
    }
}

pub(super) fn join(host: u32, incarnation: u64, attach: u32) -> ClusterEvent {
    let DaemonInfo { address, .. } = member(host, incarnation, attach);
    let name = format!("c{host}");
    let join = JoinRequest {
        name,
        incarnation: Incarnation(incarnation),
        address,
        server_incarnation: None,
        attach_seq: attach,
        unreachable_parent: None,
    };
    ClusterEvent::Received { from: HostId(host), message: PeerMessage::Join(join) }
}

pub(super) fn child(host: u32, incarnation: u64, attach: u32) -> ClusterEvent {
    ClusterEvent::Received {
        from: HostId(host),
        message: PeerMessage::AttachChild(member(host, incarnation, attach)),
    }
}

pub(super) fn session(number: u64) -> SessionId {
    SessionId { host: SERVER, incarnation: Incarnation(SERVER_INCARNATION), number }
}

pub(super) fn user(uid: u32) -> User {
    User { uid, gid: uid, name: OsBytes(format!("u{uid}").into_bytes()) }
}

pub(super) fn request(shape: AllocationRequest, wait: bool) -> JobRequest {
    JobRequest {
        allocation: shape,
        pools: Vec::new(),
        wait,
        priority: 8,
        slot_use: SlotUse::PerProcess,
        memory: 0,
        spec_bytes: 100,
    }
}

pub(super) fn submit(number: u64, tag: u32, request: JobRequest) -> ClusterEvent {
    ClusterEvent::Submit { session: session(number), tag: SessionJobId(tag), request }
}

pub(super) fn link_lost(host: u32, reason: &str) -> ClusterEvent {
    ClusterEvent::LinkLost { host: HostId(host), reason: reason.to_owned() }
}

pub(super) fn finished(job: u32, code: u8) -> ClusterEvent {
    ClusterEvent::Finished { job: JobId(job), code }
}

pub(super) fn released(job: u32, hosts: std::ops::Range<u32>) -> ClusterEvent {
    ClusterEvent::Released { job: JobId(job), hosts: NodeSet::from(hosts) }
}

/// A cluster with all its hosts up. One user is logged in as session 1.
pub(super) fn cluster(hosts: u32, slots: u32) -> ServerState {
    let mut cluster = ServerState::new(cluster_config(hosts, slots), at_second(0));
    for host in 1..=hosts {
        cluster.on(join(host, u64::from(host) * 100, 0), at_second(0));
        cluster.on(child(host, u64::from(host) * 100, 1), at_second(0));
        assert!(cluster.is_up(HostId(host)));
    }
    cluster.on(ClusterEvent::Login { session: session(1), user: user(1000) }, at_second(0));
    cluster
}

pub(super) fn share(host: u32, procs: u32) -> HostShare {
    HostShare { host: HostId(host), procs }
}

pub(super) fn reason(actions: &[ClusterAction]) -> &str {
    let text = actions.iter().find_map(|action| match action {
        ClusterAction::Refused { reason, .. } | ClusterAction::SessionClosed { reason, .. } => {
            Some(reason)
        }
        ClusterAction::Ended { reason, .. } => reason.as_ref(),
        _ => None,
    });
    text.unwrap_or_else(|| panic!("no reason in {actions:?}"))
}

pub(super) fn started(actions: &[ClusterAction]) -> Vec<JobId> {
    let job = |action: &ClusterAction| match action {
        ClusterAction::Start { job, .. } => Some(*job),
        _ => None,
    };
    actions.iter().filter_map(job).collect()
}

// Promise of `a_hanging_host_is_named_within_the_limit_and_returns_without_jobs`.
#[test]
fn a_host_joins_runs_a_job_is_lost_and_returns_without_jobs() {
    let mut cluster = ServerState::new(cluster_config(1, 4), at_second(0));
    let host = HostId(1);
    let assignment = ParentAssignment {
        host,
        server_incarnation: Incarnation(SERVER_INCARNATION),
        parent: SERVER,
        parent_address: None,
    };
    let send_assignment =
        ClusterAction::Send { to: host, message: PeerMessage::AssignParent(assignment) };
    assert_eq!(cluster.on(join(1, 100, 0), at_second(0)), std::slice::from_ref(&send_assignment));
    assert_eq!(
        cluster.on(child(1, 100, 1), at_second(0)),
        [ClusterAction::HostUp { host, incarnation: Incarnation(100) }]
    );
    let beat = ClusterAction::Send {
        to: host,
        message: PeerMessage::Heartbeat(Heartbeat {
            server_incarnation: Incarnation(SERVER_INCARNATION),
            child_incarnation: Incarnation(100),
            attach_seq: 1,
        }),
    };
    assert_eq!(cluster.on(ClusterEvent::Tick, at_second(1)), [beat]);
    assert_eq!(
        cluster.on(ClusterEvent::Login { session: session(1), user: user(1000) }, at_second(1)),
        []
    );
    let [first, second, third] = [1, 2, 3].map(JobId);
    let (session, tag) = (session(1), SessionJobId(5));
    let start = |job, incarnation| ClusterAction::Start {
        session,
        tag,
        job,
        shares: vec![share(1, 4)],
        incarnations: vec![incarnation],
    };
    let job_request = request(AllocationRequest::FewestHosts(4), false);
    assert_eq!(
        cluster.on(submit(1, 5, job_request.clone()), at_second(1)),
        [start(first, Incarnation(100))]
    );
    assert_eq!(cluster.on(finished(1, 3), at_second(2)), []);
    let ended = ClusterAction::Ended { session, tag, job: first, code: Some(3), reason: None };
    assert_eq!(cluster.on(released(1, 0..1), at_second(2)), [ended]);
    assert_eq!(cluster.on(released(1, 0..1), at_second(2)), []);

    assert_eq!(
        cluster.on(submit(1, 5, job_request.clone()), at_second(3)),
        [start(second, Incarnation(100))]
    );
    let actions = cluster.on(link_lost(1, "no data received for 10s"), at_second(4));
    assert!(matches!(&actions[..], [ClusterAction::Log(_)]));
    assert_eq!(cluster.deadline(), at_second(1) + Duration::from_secs(10) / 3);
    assert!(
        !cluster
            .on(ClusterEvent::Tick, at_second(5))
            .iter()
            .any(|a| matches!(a, ClusterAction::HostDown { .. }))
    );
    let text = "host c1: no data received for 10s".to_owned();
    let actions = cluster.on(ClusterEvent::Tick, at_second(6));
    assert_eq!(
        actions[0],
        ClusterAction::HostDown { host, incarnation: Incarnation(100), reason: text.clone() }
    );
    assert_eq!(actions[1], ClusterAction::End { job: second, reason: text.clone() });
    let (code, reason) = (None, Some(text));
    assert_eq!(actions[2], ClusterAction::Ended { session, tag, job: second, code, reason });
    assert_eq!(actions.len(), 3);

    // This incarnation may still run jobs, so it has to clean up first.
    let actions = cluster.on(join(1, 100, 1), at_second(7));
    let is_reset = |action: &ClusterAction| {
        matches!(
            action,
            ClusterAction::Send {
                to: HostId(1),
                message: PeerMessage::Reset { incarnation: Incarnation(100), .. }
            }
        )
    };
    assert!(actions.len() == 1 && is_reset(&actions[0]), "{actions:?}");
    let actions = cluster.on(child(1, 100, 2), at_second(7));
    assert!(actions.len() == 1 && is_reset(&actions[0]), "{actions:?}");
    assert_eq!(cluster.on(join(1, 101, 0), at_second(8)), [send_assignment]);
    assert_eq!(
        cluster.on(child(1, 101, 1), at_second(8)),
        [ClusterAction::HostUp { host, incarnation: Incarnation(101) }]
    );
    assert_eq!(
        cluster.on(submit(1, 5, job_request), at_second(9)),
        [start(third, Incarnation(101))]
    );
}

#[test]
fn a_host_that_dials_again_in_time_keeps_its_jobs() {
    let mut cluster = cluster(1, 4);
    cluster.on(submit(1, 1, request(AllocationRequest::FewestHosts(1), false)), at_second(0));
    cluster.on(link_lost(1, "closed"), at_second(1));
    assert!(!cluster.is_up(HostId(1)));
    cluster.on(join(1, 100, 1), at_second(2));
    cluster.on(child(1, 100, 2), at_second(2));
    assert!(cluster.is_up(HostId(1)));
    let later = cluster.on(ClusterEvent::Tick, at_second(60));
    assert!(later.iter().all(|action| matches!(action, ClusterAction::Send { .. })), "{later:?}");
}

#[test]
fn a_restarted_daemon_ends_the_jobs_of_its_predecessor() {
    let mut cluster = cluster(2, 4);
    cluster.on(
        submit(1, 1, request(AllocationRequest::HostsByProcs { hosts: 2, procs: 1 }, false)),
        at_second(0),
    );
    cluster.on(join(1, 101, 0), at_second(1));
    assert!(cluster.is_up(HostId(1)), "a Join alone is not believed");
    let actions = cluster.on(child(1, 101, 1), at_second(1));
    assert!(
        actions.iter().any(|action| matches!(action, ClusterAction::End { job: JobId(1), reason }
        if reason == "host c1: its scored was restarted")),
        "{actions:?}"
    );
    // The server still waits for the share of the other host.
    let (hosts, job) = (NodeSet::one(1), JobId(1));
    assert!(
        reason(&cluster.on(ClusterEvent::Released { job, hosts }, at_second(2))).contains("c1")
    );
    // Late messages of the previous incarnation.
    let actions = cluster.on(child(1, 100, 1), at_second(3));
    assert!(matches!(
        actions[..],
        [ClusterAction::Send { message: PeerMessage::Reset { .. }, .. }]
    ));
    assert!(cluster.is_up(HostId(1)));
}

// Promise of `a_job_that_fits_only_while_a_host_is_down_starts_at_once_or_not_at_all`.
#[test]
fn a_job_that_does_not_fit_is_refused_or_queues_as_requested() {
    let mut cluster = cluster(2, 4);
    let large = AllocationRequest::HostsByProcs { hosts: 2, procs: 3 };
    assert_eq!(started(&cluster.on(submit(1, 1, request(large, false)), at_second(0))), [JobId(1)]);
    let refused = cluster.on(submit(1, 2, request(large, false)), at_second(0));
    assert!(reason(&refused).starts_with("2 hosts with 3 processes each are needed; now 2 "));
    let never = request(AllocationRequest::HostsByProcs { hosts: 3, procs: 1 }, true);
    let refused = cluster.on(submit(1, 3, never), at_second(0));
    assert!(reason(&refused).contains("2 of the cluster's hosts have 8 processors"), "{refused:?}");
    let queued = ClusterAction::Queued { session: session(1), tag: SessionJobId(4), job: JobId(2) };
    assert_eq!(cluster.on(submit(1, 4, request(large, true)), at_second(0)), [queued]);
    assert!(
        started(
            &cluster
                .on(submit(1, 5, request(AllocationRequest::FewestHosts(1), true)), at_second(0))
        )
        .is_empty()
    );
    cluster.on(finished(1, 0), at_second(1));
    let actions = cluster.on(released(1, 0..2), at_second(1));
    assert_eq!(started(&actions), [JobId(2), JobId(3)], "{actions:?}");
}

pub(super) fn shares(actions: &[ClusterAction]) -> Vec<HostShare> {
    match actions {
        [.., ClusterAction::Start { shares, .. }] => shares.clone(),
        other => panic!("{other:?}"),
    }
}

// Promise (cluster): A job without free processors shares processors in time slices, on the least
// loaded hosts, up to `-rows` jobs on each; a refused job could not have been placed (the
// simulation checks this by counting); memory of a `memorylimit` is reserved once.
#[test]
fn slots_are_time_shared_when_all_slots_are_in_use() {
    let mut config = cluster_config(2, 4);
    config.rows = 2;
    let mut cluster = ServerState::new(config, at_second(0));
    cluster.on(ClusterEvent::Login { session: session(1), user: user(1000) }, at_second(0));
    for host in 1..=2 {
        cluster.on(child(host, 100, 1), at_second(0));
    }
    let mut try_submit =
        |tag, shape| cluster.on(submit(1, tag, request(shape, false)), at_second(0));
    assert_eq!(shares(&try_submit(1, AllocationRequest::FewestHosts(3))), [share(2, 3)]);
    // Free slots are preferred to time sharing.
    assert_eq!(shares(&try_submit(2, AllocationRequest::FewestHosts(2))), [share(1, 2)]);
    // Time sharing uses the least loaded hosts, and at most a row of each host.
    assert_eq!(shares(&try_submit(3, AllocationRequest::FewestHosts(4))), [share(1, 4)]);
    assert_eq!(
        shares(&try_submit(4, AllocationRequest::HostsByProcs { hosts: 2, procs: 2 })),
        [share(1, 2), share(2, 2)]
    );
    assert_eq!(shares(&try_submit(5, AllocationRequest::FewestHosts(3))), [share(2, 3)]);
    let refused = try_submit(6, AllocationRequest::FewestHosts(1));
    let text = "1 processes are needed; a processor may have 2 jobs, and 0 of the cluster's hosts \
                have room";
    assert!(reason(&refused).starts_with(text), "{refused:?}");
    assert!(reason(&refused).contains("use the option wait to queue the job"));
    cluster.on(
        submit(
            1,
            7,
            request(AllocationRequest::Exclusive { hosts: 1, min_nodes: 1, max_nodes: 9 }, true),
        ),
        at_second(0),
    );
    cluster.on(finished(3, 0), at_second(1));
    let actions = cluster.on(released(3, 0..1), at_second(1));
    assert_eq!(shares(&actions), [share(1, 4)], "whole hosts take one row of them");
    assert_eq!(
        (cluster.shared_hosts(JobId(6)), cluster.wants_whole_hosts(JobId(6))),
        (vec![HostId(1)], true)
    );
    assert!(!cluster.wants_whole_hosts(JobId(5)));
}

// Promise of `slots_are_time_shared_when_all_slots_are_in_use`.
#[test]
fn a_memorylimit_is_kept_free_for_its_job_and_is_waited_for() {
    let mut cluster =
        ServerState::new(ClusterConfig { rows: 8, ..cluster_config(2, 4) }, at_second(0));
    cluster.on(ClusterEvent::Login { session: session(1), user: user(1000) }, at_second(0));
    for host in 1..=2 {
        let member = DaemonInfo { memory: u64::from(host) << 30, ..member(host, 100, 1) };
        let (from, message) = (member.host, PeerMessage::AttachChild(member));
        cluster.on(ClusterEvent::Received { from, message }, at_second(0));
    }
    let limited = |mb: u64, shape, wait| JobRequest { memory: mb << 20, ..request(shape, wait) };
    let mut try_submit = |tag, request| cluster.on(submit(1, tag, request), at_second(0));
    assert_eq!(
        shares(&try_submit(1, limited(1500, AllocationRequest::FewestHosts(1), false))),
        [share(2, 1)]
    );
    let refused = try_submit(2, limited(3000, AllocationRequest::FewestHosts(1), true));
    assert!(
        reason(&refused).ends_with(
            "with 3000 MB (memorylimit) on each host; 0 of the cluster's hosts have that, and at \
             most 2048 MB are all that a host has"
        ),
        "{refused:?}"
    );
    let refused =
        try_submit(3, limited(600, AllocationRequest::HostsByProcs { hosts: 2, procs: 1 }, false));
    assert!(
        reason(&refused).contains(
            "1 of the cluster's hosts have that, and at most 1024 MB are not promised to other \
             jobs; use"
        ),
        "{refused:?}"
    );
    assert_eq!(
        try_submit(
            4,
            limited(
                600,
                AllocationRequest::EveryHost { procs: 1, min_nodes: 1, max_nodes: 9 },
                true
            )
        )
        .len(),
        1
    );
    // The memory of hosts does not limit a job without a memorylimit.
    assert_eq!(
        try_submit(5, request(AllocationRequest::HostsByProcs { hosts: 2, procs: 4 }, false)).len(),
        1
    );
    cluster.on(finished(1, 0), at_second(1));
    let actions = cluster.on(released(1, 0..1), at_second(1));
    assert_eq!(shares(&actions), [share(1, 1), share(2, 1)]);
}

// Promise (cluster): Without `wait` a job that does not fit is refused with the numbers; with it,
// users take turns, and at most 32 jobs overtake a large one.
#[test]
fn a_job_that_fits_only_while_a_host_is_down_starts_at_once_or_not_at_all() {
    let mut config = cluster_config(2, 4);
    config.hosts[2].slots = 1;
    let mut cluster = ServerState::new(config, at_second(0));
    cluster.on(ClusterEvent::Login { session: session(1), user: user(1000) }, at_second(0));
    cluster.on(child(1, 100, 1), at_second(0));
    let every =
        || request(AllocationRequest::EveryHost { procs: 2, min_nodes: 1, max_nodes: 9 }, true);
    assert_eq!(shares(&cluster.on(submit(1, 1, every()), at_second(0))), [share(1, 2)]);
    // If this job were queued after a job that waits for the other host, it would wait for ever.
    let both = request(AllocationRequest::HostsByProcs { hosts: 2, procs: 1 }, true);
    cluster.on(submit(1, 2, both), at_second(0));
    let refused = cluster.on(submit(1, 3, every()), at_second(0));
    assert!(reason(&refused).contains("2 of the cluster's hosts have 5 processors"), "{refused:?}");
    assert_eq!(cluster.pending.len(), 1);
}

// Promise of `a_job_that_fits_only_while_a_host_is_down_starts_at_once_or_not_at_all`.
#[test]
fn a_job_that_needs_much_is_passed_a_bounded_number_of_times() {
    let mut cluster = cluster(1, 4);
    cluster.on(ClusterEvent::Login { session: session(2), user: user(1001) }, at_second(0));
    cluster.on(submit(1, 0, request(AllocationRequest::FewestHosts(1), true)), at_second(0));
    cluster.on(submit(2, 0, request(AllocationRequest::FewestHosts(4), true)), at_second(0));
    let mut passed = 0;
    for round in 1..200 {
        // The first user always has one running and one waiting job.
        let actions = cluster.on(
            submit(1, round as u32, request(AllocationRequest::FewestHosts(1), true)),
            at_second(round),
        );
        passed += started(&actions).len();
        let oldest = cluster.jobs.keys().copied().find(|job| *job != JobId(2)).unwrap();
        cluster.on(ClusterEvent::Finished { job: oldest, code: 0 }, at_second(round));
        let hosts = NodeSet::one(0);
        let actions = cluster.on(ClusterEvent::Released { job: oldest, hosts }, at_second(round));
        if started(&actions).contains(&JobId(2)) {
            assert!((10..=32).contains(&passed), "{passed}");
            return;
        }
        passed += started(&actions).len();
    }
    panic!("the job of the second user never started");
}

// Promise of `a_job_that_fits_only_while_a_host_is_down_starts_at_once_or_not_at_all`.
#[test]
fn a_user_with_ten_thousand_jobs_delays_no_other_user_and_is_bounded() {
    let mut cluster = cluster(4, 2);
    cluster.on(ClusterEvent::Login { session: session(2), user: user(1001) }, at_second(0));
    for tag in 0..10_000 {
        let actions = cluster
            .on(submit(1, tag, request(AllocationRequest::FewestHosts(1), true)), at_second(0));
        assert!(!actions.is_empty());
    }
    cluster.on(submit(2, 1, request(AllocationRequest::FewestHosts(1), true)), at_second(0));
    cluster.on(finished(1, 0), at_second(1));
    let actions = cluster.on(released(1, 0..1), at_second(1));
    assert_eq!(started(&actions), [JobId(9)], "the user's own turn comes first, once");
    cluster.on(finished(2, 0), at_second(1));
    let actions = cluster.on(released(2, 0..1), at_second(1));
    assert_eq!(started(&actions), [JobId(10_001)]);
    for tag in 10_000..17_000 {
        cluster.on(submit(1, tag, request(AllocationRequest::FewestHosts(1), true)), at_second(0));
    }
    let refused = cluster
        .on(submit(1, 20_000, request(AllocationRequest::FewestHosts(1), true)), at_second(0));
    assert!(reason(&refused).contains("16384 of your jobs wait"), "{refused:?}");
    let ended = cluster.on(ClusterEvent::Logout { session: session(1) }, at_second(2));
    let ends = ended.iter().filter(|action| matches!(action, ClusterAction::Ended { .. })).count();
    assert_eq!(ends, 16_384);
    assert_eq!(cluster.pending.len(), 0);
}

#[test]
fn an_invalid_request_is_refused_with_the_offending_value() {
    let mut cluster = cluster(2, 4);
    let mut rejection_of = |edit: fn(&mut JobRequest)| {
        let mut job_request = request(AllocationRequest::FewestHosts(1), false);
        edit(&mut job_request);
        reason(&cluster.on(submit(1, 9, job_request), at_second(0))).to_owned()
    };
    assert!(rejection_of(|job_request| job_request.priority = 16).contains("priority 16"));
    assert!(
        rejection_of(|job_request| job_request.allocation = AllocationRequest::FewestHosts(0))
            .contains("at least one node")
    );
    assert!(
        rejection_of(|job_request| job_request.pools = vec![NodeSet::one(3)])
            .contains("not in the cluster")
    );
    assert!(
        rejection_of(|job_request| job_request.pools = vec![NodeSet::one(0)])
            .contains("of these hosts")
    );
    assert!(
        rejection_of(|job_request| job_request.spec_bytes = 1 << 40).contains("limit for one user")
    );
    let refused =
        cluster.on(submit(77, 1, request(AllocationRequest::FewestHosts(1), false)), at_second(0));
    assert_eq!(reason(&refused), "no user has logged in to this session");
    assert!(cluster.jobs.is_empty() && cluster.spec_bytes == 0);
}

#[test]
fn only_its_user_root_and_operators_end_a_job() {
    let mut cluster = cluster(1, 8);
    for tag in 0..4 {
        cluster.on(submit(1, tag, request(AllocationRequest::FewestHosts(1), false)), at_second(0));
    }
    let refused = cluster.authorize(1001, JobAction::Kill, JobId(1));
    assert_eq!(refused, Err("job 1 is another user's, and you are not an operator".to_owned()));
    for (uid, job) in [(1000, JobId(1)), (0, JobId(2)), (50, JobId(3))] {
        let permit = cluster.authorize(uid, JobAction::Kill, job).unwrap();
        assert!(matches!(
            cluster.on(ClusterEvent::KillJob(permit), at_second(0))[..],
            [ClusterAction::End { .. }]
        ));
    }
    assert_eq!(
        cluster.authorize(0, JobAction::Kill, JobId(99)),
        Err("there is no job 99".to_owned())
    );
}

#[test]
fn a_host_that_does_not_clean_up_keeps_its_slots_and_delays_no_user() {
    let mut cluster = cluster(1, 2);
    cluster.on(submit(1, 1, request(AllocationRequest::FewestHosts(2), false)), at_second(0));
    let cancel = ClusterEvent::Cancel { session: session(1), tag: SessionJobId(1) };
    assert!(matches!(
        cluster.on(cancel, at_second(1))[..],
        [ClusterAction::End { job: JobId(1), .. }]
    ));
    assert!(
        !cluster
            .on(ClusterEvent::Tick, at_second(5))
            .iter()
            .any(|a| matches!(a, ClusterAction::Ended { .. }))
    );
    assert!(cluster.deadline() <= at_second(6));
    let actions = cluster.on(ClusterEvent::Tick, at_second(6));
    assert_eq!(reason(&actions), "its user has ended it");
    assert!(actions.contains(&ClusterAction::Log("job 1 has ended but is held by c1".to_owned())));
    assert!(
        !reason(
            &cluster
                .on(submit(1, 2, request(AllocationRequest::FewestHosts(1), false)), at_second(7))
        )
        .is_empty()
    );
    assert_eq!(cluster.on(released(1, 0..1), at_second(8)), []);
    assert_eq!(
        started(
            &cluster
                .on(submit(1, 3, request(AllocationRequest::FewestHosts(2), false)), at_second(9))
        ),
        [JobId(2)]
    );
}

/// A cluster in which the second host of a job is lost for the job at second 1. The job has ended,
/// and another one waits for both hosts.
fn cluster_with_lost_host() -> ServerState {
    let mut cluster = cluster(2, 2);
    let both = |wait| request(AllocationRequest::HostsByProcs { hosts: 2, procs: 2 }, wait);
    cluster.on(submit(1, 1, both(false)), at_second(0));
    let (job, hosts) = (JobId(1), NodeSet::one(1));
    assert_eq!(cluster.on(ClusterEvent::HostsLost { job, hosts }, at_second(1)), []);
    cluster.on(finished(1, 1), at_second(2));
    let (session, tag) = (session(1), SessionJobId(1));
    let ended = ClusterAction::Ended { session, tag, job, code: Some(1), reason: None };
    assert_eq!(cluster.on(released(1, 0..2), at_second(2)), [ended]);
    assert!(matches!(
        cluster.on(submit(1, 1, both(true)), at_second(2))[..],
        [ClusterAction::Queued { .. }]
    ));
    cluster
}

#[test]
fn a_host_that_is_lost_for_a_job_keeps_its_slots_until_it_has_noticed_that() {
    let mut cluster = cluster_with_lost_host();
    for second in 3..23 {
        assert_eq!(started(&cluster.on(ClusterEvent::Tick, at_second(second))), []);
    }
    assert!(cluster.deadline() <= at_second(23));
    assert_eq!(started(&cluster.on(ClusterEvent::Tick, at_second(23))), [JobId(2)]);
}

#[test]
fn a_host_that_is_lost_for_a_job_and_was_restarted_has_free_slots() {
    let mut cluster = cluster_with_lost_host();
    assert_eq!(started(&cluster.on(child(2, 201, 1), at_second(3))), [JobId(2)]);
}

#[test]
fn logins_are_bounded_and_only_hosts_of_the_cluster_vouch() {
    let mut config = cluster_config(1, 2);
    (config.limits.sessions, config.limits.sessions_per_user) = (5, 3);
    let mut cluster = ServerState::new(config, at_second(0));
    let mut login = |number, uid| {
        let actions = cluster
            .on(ClusterEvent::Login { session: session(number), user: user(uid) }, at_second(0));
        actions.iter().any(|action| matches!(action, ClusterAction::SessionClosed { .. }))
    };
    assert_eq!([1, 2, 3, 4].map(|number| login(number, 1000)), [false, false, false, true]);
    assert!(login(1, 1001), "the same session twice");
    assert_eq!([5, 6].map(|number| login(number, 1001)), [false, true], "one is left for others");
    let absent = SessionId { host: HostId(1), incarnation: Incarnation(100), number: 1 };
    let actions =
        cluster.on(ClusterEvent::Login { session: absent, user: user(1002) }, at_second(0));
    assert_eq!(reason(&actions), "host c1 is not in the cluster");
    cluster.on(ClusterEvent::Logout { session: session(1) }, at_second(0));
    let actions =
        cluster.on(ClusterEvent::Login { session: session(9), user: user(1001) }, at_second(0));
    assert_eq!(actions, []);
}
