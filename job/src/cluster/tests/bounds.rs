//! Tests of accepted logins, of the position of a waiting job, and of the exact limits on
//! submissions.

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::{HostId, JobId};
use score_proto::peer_message::{Incarnation, SERVER};

use super::lifecycle::{
    SERVER_INCARNATION, at_second, child, cluster, cluster_config, join, request, session, share,
    shares, submit, user,
};
use crate::cluster::{
    ClusterAction, ClusterEvent, ClusterLimits, JobRequest, ServerState, SessionId,
};

fn one_slot() -> JobRequest {
    request(AllocationRequest::HostsByProcs { hosts: 1, procs: 1 }, true)
}

fn is_accepted(actions: &[ClusterAction]) -> bool {
    !actions.iter().any(|action| {
        matches!(action, ClusterAction::Refused { .. } | ClusterAction::SessionClosed { .. })
    })
}

#[test]
fn users_log_in_on_hosts_that_are_up_and_at_daemons_that_still_run() {
    let mut server = cluster(1, 1);
    let mut number = 10;
    let mut login = |server: &mut ServerState, host, incarnation| {
        number += 1;
        let session = SessionId { host, incarnation, number };
        is_accepted(&server.on(ClusterEvent::Login { session, user: user(1001) }, at_second(0)))
    };
    assert!(login(&mut server, SERVER, Incarnation(SERVER_INCARNATION)));
    assert!(!login(&mut server, SERVER, Incarnation(SERVER_INCARNATION + 1)));
    assert!(login(&mut server, HostId(1), Incarnation(100)));
    assert!(
        !login(&mut server, HostId(1), Incarnation(101)),
        "that daemon has ended, or has not joined"
    );
    assert!(!login(&mut server, HostId(7), Incarnation(100)), "there is no such host");
    // The daemon has joined but has no parent yet.
    let mut server = ServerState::new(cluster_config(1, 1), at_second(0));
    server.on(join(1, 100, 0), at_second(0));
    assert!(!server.is_up(HostId(1)));
    assert!(!login(&mut server, HostId(1), Incarnation(100)));
    server.on(child(1, 100, 1), at_second(0));
    assert!(login(&mut server, HostId(1), Incarnation(100)));
}

#[test]
fn a_waiting_job_shows_the_number_of_jobs_ahead_of_it() {
    let mut server = cluster(1, 1);
    assert_eq!(shares(&server.on(submit(1, 1, one_slot()), at_second(0))), [share(1, 1)]);
    for tag in 2..=4 {
        server.on(submit(1, tag, one_slot()), at_second(0));
    }
    let ahead: Vec<_> = (1..=5).map(|job| server.jobs_ahead(JobId(job))).collect();
    assert_eq!(ahead, [None, Some(0), Some(1), Some(2), None]);
}

#[test]
fn requests_can_use_all_bytes_of_a_user_and_of_the_server() {
    let mut config = cluster_config(1, 1);
    config.limits =
        ClusterLimits { spec_bytes: 300, spec_bytes_per_user: 200, ..ClusterLimits::default() };
    let mut server = ServerState::new(config, at_second(0));
    server.on(join(1, 100, 0), at_second(0));
    server.on(child(1, 100, 1), at_second(0));
    for (number, uid) in [(1, 1000), (2, 1001)] {
        let login = ClusterEvent::Login { session: session(number), user: user(uid) };
        assert!(is_accepted(&server.on(login, at_second(0))));
    }
    let mut accepts = |number, tag, spec_bytes| {
        let request = JobRequest { spec_bytes, ..one_slot() };
        is_accepted(&server.on(submit(number, tag, request), at_second(0)))
    };
    assert!(accepts(1, 1, 100) && !accepts(1, 2, 101) && accepts(1, 3, 100));
    assert!(!accepts(1, 4, 1), "the user has no byte left");
    assert!(!accepts(2, 1, 101) && accepts(2, 2, 100));
    assert!(!accepts(2, 3, 1), "nobody has");
}

#[test]
fn a_few_users_cannot_use_all_logins_or_all_bytes_or_the_whole_queue() {
    let mut config = cluster_config(1, 1);
    config.limits = ClusterLimits {
        sessions: 100,
        sessions_per_user: 40,
        queued: 100,
        queued_per_user: 40,
        spec_bytes: 10_000,
        spec_bytes_per_user: 4000,
    };
    let mut server = ServerState::new(config, at_second(0));
    server.on(join(1, 100, 0), at_second(0));
    server.on(child(1, 100, 1), at_second(0));
    let mut number = 0;
    let mut login = |server: &mut ServerState, uid| {
        number += 1;
        let event = ClusterEvent::Login { session: session(number), user: user(uid) };
        is_accepted(&server.on(event, at_second(0))).then_some(number)
    };
    let mut jobs_of_users = Vec::new();
    for uid in 1000..1004 {
        let logins: Vec<u64> = std::iter::from_fn(|| login(&mut server, uid)).collect();
        let mut submit = |tag| {
            let request = JobRequest { spec_bytes: 99, ..one_slot() };
            is_accepted(&server.on(submit(logins[0], tag, request), at_second(0)))
        };
        let jobs = (0..).take_while(|tag| submit(*tag)).count();
        jobs_of_users.push((logins.len(), jobs));
    }
    assert_eq!(jobs_of_users, [(40, 40), (30, 31), (15, 15), (8, 8)]);
    let newcomer = login(&mut server, 2000).expect("a newcomer logs in");
    assert!(is_accepted(&server.on(submit(newcomer, 1, one_slot()), at_second(0))));
}
