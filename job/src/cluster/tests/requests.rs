//! Tests of users' requests and their answers: numbers in refusals, the list of jobs, the queue,
//! and the right to end a job.

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{Incarnation, SERVER};

use super::lifecycle::{
    SERVER_INCARNATION, at_second, child, cluster, cluster_config, finished, reason, released,
    request, session, share, shares, started, submit, user,
};
use crate::cluster::{
    ClusterAction, ClusterEvent, ClusterLimits, JobAction, JobRequest, ServerState, SessionId,
    Summary,
};

fn hosts_by_procs(hosts: u32, procs: u32) -> JobRequest {
    request(AllocationRequest::HostsByProcs { hosts, procs }, false)
}

fn waiting(request: JobRequest) -> JobRequest {
    JobRequest { wait: true, ..request }
}

fn login(server: &mut ServerState, number: u64, uid: u32) -> Vec<ClusterAction> {
    server.on(ClusterEvent::Login { session: session(number), user: user(uid) }, at_second(0))
}

#[test]
fn an_error_shows_the_hosts_and_processors_that_the_request_could_use() {
    let mut server = cluster(4, 2);
    let mut refusal =
        |tag, request| reason(&server.on(submit(1, tag, request), at_second(0))).to_owned();
    let pools = vec![NodeSet::one(1), NodeSet::one(2)];
    let text = "2 hosts with 1 processes each are needed; 2 of these hosts have 4 processors, at \
                most 2 on one";
    assert_eq!(refusal(1, JobRequest { pools, ..hosts_by_procs(2, 1) }), text);
    let text = "5 hosts with 1 processes each are needed; 4 of the cluster's hosts have 8 \
                processors, at most 2 on one";
    assert_eq!(refusal(2, hosts_by_procs(5, 1)), text);
    assert_eq!(shares(&server.on(submit(1, 3, hosts_by_procs(1, 1)), at_second(0))), [share(1, 1)]);
    server.on(submit(1, 4, hosts_by_procs(1, 2)), at_second(0));
    let refusal = server.on(submit(1, 5, hosts_by_procs(4, 1)), at_second(0));
    let text = "4 hosts with 1 processes each are needed; now 5 processors on 3 of the \
                cluster's hosts are free, at most 2 on one; use the option wait to queue the job";
    assert_eq!(reason(&refusal), text);
}

#[test]
fn a_host_whose_memory_is_unknown_accepts_jobs_with_a_memorylimit() {
    let mut server = cluster(1, 2);
    assert_eq!(
        (server.membership.memory(HostId(1)), server.membership.memory(SERVER)),
        (None, None)
    );
    let limited = JobRequest { memory: 1 << 40, ..hosts_by_procs(1, 1) };
    assert_eq!(shares(&server.on(submit(1, 1, limited), at_second(0))), [share(1, 1)]);
    // Without its limit the job would also have to wait, because processors are missing.
    let limited = JobRequest { memory: 1 << 40, ..hosts_by_procs(1, 2) };
    let refusal = server.on(submit(1, 2, limited), at_second(0));
    assert!(reason(&refusal).contains("now 1 processors on 1 of the cluster"), "{refusal:?}");
    let mut config = cluster_config(1, 2);
    config.memory = 64;
    let server = ServerState::new(config, at_second(0));
    assert_eq!(
        (server.membership.memory(SERVER), server.membership.memory(HostId(9))),
        (Some(64), None)
    );
}

#[test]
fn the_list_shows_each_job_with_its_hosts_or_the_cause_of_its_wait() {
    let mut server = cluster(2, 2);
    server.on(submit(1, 1, hosts_by_procs(2, 2)), at_second(3));
    let urgent = JobRequest { priority: 2, ..waiting(hosts_by_procs(1, 2)) };
    server.on(submit(1, 2, urgent), at_second(4));
    let summary = |job, shares, nodes| Summary {
        job: JobId(job),
        uid: 1000,
        shares,
        ending: None,
        priority: 8,
        nodes,
        state_since: at_second(3),
    };
    let first = summary(1, vec![share(1, 2), share(2, 2)], 4);
    let mut second = summary(2, Vec::new(), 2);
    (second.priority, second.state_since) = (2, at_second(4));
    assert_eq!(server.list().collect::<Vec<_>>(), [first.clone(), second.clone()]);
    let cancel = ClusterEvent::Cancel { session: session(1), tag: SessionJobId(1) };
    server.on(cancel, at_second(5));
    let ending = Some("its user has ended it".to_owned());
    assert_eq!(server.list().collect::<Vec<_>>(), [Summary { ending, ..first }, second.clone()]);
    server.on(released(1, 0..2), at_second(6));
    (second.shares, second.state_since) = (vec![share(1, 2)], at_second(6));
    assert_eq!(server.list().collect::<Vec<_>>(), [second]);
}

#[test]
fn the_server_reports_its_jobs_users_and_daemons() {
    let mut server = cluster(1, 1);
    assert_eq!((server.job_count(), server.pending_count()), (0, 0));
    server.on(submit(1, 1, hosts_by_procs(1, 1)), at_second(0));
    server.on(submit(1, 2, waiting(hosts_by_procs(1, 1))), at_second(0));
    server.on(submit(1, 3, waiting(hosts_by_procs(1, 1))), at_second(0));
    assert_eq!((server.job_count(), server.pending_count()), (3, 2));
    assert_eq!([1, 9].map(|job| server.owner_of(JobId(job))), [Some(1000), None]);
    assert_eq!([0, 50, 1000].map(|uid| server.is_operator(uid)), [true, true, false]);
    assert_eq!(server.server_incarnation(), Incarnation(SERVER_INCARNATION));
    let incarnations = [SERVER, HostId(1), HostId(2)].map(|host| server.incarnation_of(host));
    assert_eq!(incarnations, [None, Some(Incarnation(100)), None]);
    assert_eq!([1, 2].map(|host| server.name(HostId(host)).to_owned()), ["c1", "?"]);
    assert!(server.is_up(SERVER) && !server.is_up(HostId(2)));
}

#[test]
fn the_queue_is_bounded_for_each_user_and_for_all() {
    let mut config = cluster_config(1, 1);
    config.limits = ClusterLimits { queued: 3, queued_per_user: 2, ..ClusterLimits::default() };
    let mut server = ServerState::new(config, at_second(0));
    server.on(child(1, 100, 1), at_second(0));
    (1..=3).for_each(|number| assert_eq!(login(&mut server, number, 999 + number as u32), []));
    let mut queue = |number, tag| {
        let job = waiting(hosts_by_procs(1, 1));
        match &server.on(submit(number, tag, job), at_second(0))[..] {
            [ClusterAction::Refused { reason, .. }] => reason.clone(),
            _ => String::new(),
        }
    };
    assert_eq!([1, 2, 3].map(|tag| queue(1, tag)), [""; 3], "one runs, two wait");
    assert_eq!(queue(1, 4), "2 of your jobs wait, which is the limit for one user now");
    assert_eq!(queue(1, 3), "the session has a job 3 already");
    assert_eq!(queue(2, 1), "");
    assert_eq!(queue(3, 1), "3 jobs wait, which is the limit");
}

/// Submits this request again and again until the server refuses it. Each job ends at once. Returns
/// the number of jobs.
fn count_overtakes(server: &mut ServerState, request: &JobRequest) -> u32 {
    for count in 0.. {
        let actions = server.on(submit(1, 1000 + count, request.clone()), at_second(1));
        let [job] = started(&actions)[..] else {
            assert!(reason(&actions).contains("processors"), "memory is not what is missing");
            return count;
        };
        server.on(finished(job.0, 0), at_second(1));
        server.on(released(job.0, 0..1), at_second(1));
    }
    unreachable!("the server accepts each job")
}

#[test]
fn a_job_is_not_overtaken_by_the_earlier_jobs_of_its_user() {
    let mut server = cluster(1, 2);
    login(&mut server, 2, 1001);
    server.on(submit(1, 1, hosts_by_procs(1, 1)), at_second(0));
    server.on(submit(1, 2, hosts_by_procs(1, 1)), at_second(0));
    server.on(submit(2, 1, waiting(hosts_by_procs(1, 1))), at_second(0));
    server.on(submit(2, 2, waiting(hosts_by_procs(1, 2))), at_second(0));
    server.on(finished(2, 0), at_second(1));
    // The start of the third job makes the fourth job the next one of its user.
    assert_eq!(started(&server.on(released(2, 0..1), at_second(1))), [JobId(3)]);
    server.on(finished(3, 0), at_second(1));
    server.on(released(3, 0..1), at_second(1));
    assert_eq!(count_overtakes(&mut server, &hosts_by_procs(1, 1)), 32);
}

#[test]
fn a_job_that_was_overtaken_too_often_reserves_its_own_hosts_only() {
    let mut server = cluster(2, 2);
    login(&mut server, 2, 1001);
    let pool = |host| vec![NodeSet::one(host)];
    // Host 1 always has a job of the first user, so that the second user's job has to wait.
    let small = || JobRequest { pools: pool(1), ..hosts_by_procs(1, 1) };
    let large = JobRequest { pools: pool(1), ..waiting(hosts_by_procs(1, 2)) };
    server.on(submit(1, 0, small()), at_second(0));
    server.on(submit(2, 1, large), at_second(0));
    assert_eq!(count_overtakes(&mut server, &small()), 32);
    let other = JobRequest { pools: pool(2), ..hosts_by_procs(1, 1) };
    assert_eq!(shares(&server.on(submit(1, 100, other), at_second(2))), [share(2, 1)]);
    // Waiting jobs are started by the same rule.
    let waiting_other = JobRequest { pools: pool(2), ..waiting(hosts_by_procs(1, 1)) };
    let actions = server.on(submit(1, 101, waiting_other), at_second(2));
    assert_eq!(shares(&actions), [share(2, 1)]);
    server.on(finished(1, 0), at_second(3));
    assert_eq!(started(&server.on(released(1, 0..1), at_second(3))), [JobId(2)]);
}

#[test]
fn job_numbers_begin_again_after_the_largest_and_skip_those_in_use() {
    let mut config = cluster_config(1, 4);
    config.first_job = JobId(i32::MAX as u32 - 1);
    let mut server = ServerState::new(config, at_second(0));
    server.on(child(1, 100, 1), at_second(0));
    login(&mut server, 1, 1000);
    let mut start =
        |tag| started(&server.on(submit(1, tag, hosts_by_procs(1, 1)), at_second(0)))[0].0;
    assert_eq!([1, 2, 3].map(&mut start), [i32::MAX as u32 - 1, i32::MAX as u32, 1]);
    server.next_job = JobId(1);
    let actions = server.on(submit(1, 4, hosts_by_procs(1, 1)), at_second(0));
    assert_eq!(started(&actions), [JobId(2)]);
}

#[test]
fn the_reason_of_an_ended_job_names_the_user_that_ended_it() {
    let mut server = cluster(1, 1);
    (1..=4).for_each(|tag| {
        _ = server.on(submit(1, tag, waiting(hosts_by_procs(1, 1))), at_second(0));
    });
    let mut kill = |uid, job| {
        let permit = server.authorize(uid, JobAction::Kill, JobId(job)).unwrap();
        server.on(ClusterEvent::KillJob(permit), at_second(1))
    };
    let ended = |tag, reason: &str| ClusterAction::Ended {
        session: session(1),
        tag: SessionJobId(tag),
        job: JobId(tag),
        code: None,
        reason: Some(reason.to_owned()),
    };
    assert_eq!(kill(1000, 2), [ended(2, "its user has ended it")]);
    assert_eq!(kill(50, 3), [ended(3, "an operator has ended it")]);
    // The first job has finished. No later event changes its end.
    server.on(finished(1, 4), at_second(2));
    server.on(finished(1, 5), at_second(2));
    let cancel = |tag| ClusterEvent::Cancel { session: session(1), tag: SessionJobId(tag) };
    assert_eq!(server.on(cancel(1), at_second(2)), []);
    assert_eq!(server.on(cancel(9), at_second(2)), []);
    let actions = server.on(released(1, 0..1), at_second(2));
    let (session, tag, job) = (session(1), SessionJobId(1), JobId(1));
    let ended = ClusterAction::Ended { session, tag, job, code: Some(4), reason: None };
    assert_eq!(actions[0], ended);
    assert_eq!(started(&actions), [JobId(4)]);
}

#[test]
fn a_host_that_is_down_ends_its_own_jobs_and_sessions_only() {
    let mut server = cluster(2, 2);
    let on_host = |host: u32| SessionId {
        host: HostId(host),
        incarnation: Incarnation(u64::from(host) * 100),
        number: 1,
    };
    for host in 1..=2 {
        let event = ClusterEvent::Login { session: on_host(host), user: user(1001) };
        assert_eq!(server.on(event, at_second(0)), []);
    }
    let on_hosts = |from: u32, to: u32, hosts| JobRequest {
        pools: vec![NodeSet::from(from..to)],
        memory: 7,
        ..hosts_by_procs(hosts, 1)
    };
    server.on(submit(1, 1, on_hosts(1, 2, 1)), at_second(0));
    server.on(submit(1, 2, on_hosts(2, 3, 1)), at_second(0));
    server.on(submit(1, 3, on_hosts(1, 3, 2)), at_second(0));
    let occupied = |server: &ServerState| {
        [1, 2].map(|host| {
            (
                server.membership.hosts[host].used_slots,
                server.membership.hosts[host].promised_memory,
            )
        })
    };
    assert_eq!(occupied(&server), [(2, 14); 2]);
    // The third job has already left host 1.
    server.on(released(3, 0..1), at_second(0));
    assert_eq!(occupied(&server), [(1, 7), (2, 14)]);
    let actions = server.on(child(1, 101, 1), at_second(1));
    let ends = actions.iter().filter_map(|action| match action {
        ClusterAction::End { job, .. } => Some(*job),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [JobId(1)]);
    let closed = actions.iter().filter_map(|action| match action {
        ClusterAction::SessionClosed { session, .. } => Some(*session),
        _ => None,
    });
    assert_eq!(closed.collect::<Vec<_>>(), [on_host(1)]);
    assert_eq!(occupied(&server), [(0, 0), (2, 14)]);
}

#[test]
fn after_a_logout_a_user_can_log_in_as_often_as_before() {
    let mut config = cluster_config(1, 1);
    config.limits = ClusterLimits { sessions_per_user: 2, ..ClusterLimits::default() };
    let mut server = ServerState::new(config, at_second(0));
    for round in 0..3 {
        assert_eq!(login(&mut server, round * 2 + 1, 1000), []);
        assert_eq!(login(&mut server, round * 2 + 2, 1000), []);
        let text = "you are logged in 2 times, which is the limit for one user now";
        assert_eq!(reason(&login(&mut server, 99, 1000)), text);
        for number in [round * 2 + 1, round * 2 + 2] {
            server.on(ClusterEvent::Logout { session: session(number) }, at_second(0));
        }
        assert!(server.users.is_empty(), "nothing is kept of a user who has nothing");
    }
}

#[test]
fn jobs_on_the_same_host_share_it() {
    let mut config = cluster_config(2, 2);
    config.rows = 2;
    let mut server = ServerState::new(config, at_second(0));
    (1..=2).for_each(|host| _ = server.on(child(host, 100, 1), at_second(0)));
    login(&mut server, 1, 1000);
    server.on(submit(1, 1, hosts_by_procs(2, 1)), at_second(0));
    assert_eq!(server.shared_hosts(JobId(1)), []);
    server.on(submit(1, 2, hosts_by_procs(1, 2)), at_second(0));
    let shared = [1, 2, 9].map(|job| server.shared_hosts(JobId(job)));
    assert_eq!(shared, [vec![HostId(1)], vec![HostId(1)], vec![]]);
}
