//! Tests of the hosts and processors that a job gets: spares, defective hosts, and pools.

use score_proto::allocation_request::AllocationRequest;
use score_proto::nodeset::NodeSet;

use super::lifecycle::{
    at_second, child, cluster_config, finished, reason, released, request, session, share, shares,
    submit, user,
};
use crate::cluster::{
    ClusterAction, ClusterConfig, ClusterEvent, JobRequest, ServerState, SlotUse,
};

/// A cluster of this configuration with all its hosts up. One user is logged in as session 1.
fn cluster_of(config: ClusterConfig) -> ServerState {
    let hosts = config.hosts.len() as u32;
    let mut cluster = ServerState::new(config, at_second(0));
    cluster.on(ClusterEvent::Login { session: session(1), user: user(1000) }, at_second(0));
    for host in 1..hosts {
        cluster.on(child(host, 100, 1), at_second(0));
    }
    cluster
}

#[test]
fn spares_replace_missing_hosts_only_and_defective_spares_are_never_used() {
    let mut config = cluster_config(3, 2);
    config.hosts[3].spare_for = NodeSet::from(0..3);
    config.hosts[2].defect = true;
    let mut cluster = cluster_of(config);
    let two = request(AllocationRequest::HostsByProcs { hosts: 2, procs: 1 }, false);
    let three = request(AllocationRequest::HostsByProcs { hosts: 3, procs: 1 }, false);
    assert!(!reason(&cluster.on(submit(1, 1, three), at_second(0))).is_empty());
    let actions = cluster.on(submit(1, 2, two), at_second(0));
    let [ClusterAction::Start { shares, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(shares[..], [share(1, 1), share(3, 1)]);
}

#[test]
fn a_spare_replaces_only_the_hosts_that_it_is_a_spare_for() {
    let actions_without = |defect: usize| {
        let mut config = cluster_config(3, 2);
        config.hosts[3].spare_for = NodeSet::one(1);
        config.hosts[defect].defect = true;
        let mut cluster = cluster_of(config);
        let two = request(AllocationRequest::HostsByProcs { hosts: 2, procs: 1 }, false);
        cluster.on(submit(1, 1, two), at_second(0))
    };
    assert!(!reason(&actions_without(2)).is_empty());
    let actions = actions_without(1);
    let [ClusterAction::Start { shares, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(shares[..], [share(2, 1), share(3, 1)]);
}

#[test]
fn a_job_has_hosts_of_one_pool_and_waits_for_the_first_pool_with_free_slots() {
    let mut cluster = cluster_of(cluster_config(4, 2));
    let pools = vec![NodeSet::from(1..3), NodeSet::from(3..5)];
    let pooled = |procs| JobRequest {
        pools: pools.clone(),
        ..request(AllocationRequest::HostsByProcs { hosts: 2, procs }, true)
    };
    assert_eq!(
        shares(&cluster.on(submit(1, 1, pooled(1)), at_second(0))),
        [share(1, 1), share(2, 1)]
    );
    assert_eq!(
        shares(&cluster.on(submit(1, 2, pooled(2)), at_second(0))),
        [share(3, 2), share(4, 2)]
    );
    let three = JobRequest {
        pools: pools.clone(),
        ..request(AllocationRequest::HostsByProcs { hosts: 3, procs: 1 }, true)
    };
    assert!(!reason(&cluster.on(submit(1, 3, three), at_second(0))).is_empty());
    // Both pools are in use: the job takes the pool that becomes free first.
    cluster.on(submit(1, 4, pooled(2)), at_second(0));
    cluster.on(finished(2, 0), at_second(1));
    let actions = cluster.on(released(2, 0..2), at_second(1));
    assert_eq!(shares(&actions), [share(3, 2), share(4, 2)]);
}

#[test]
fn a_job_that_needs_whole_hosts_is_alone_on_them_in_its_row() {
    let mut cluster = cluster_of(ClusterConfig { rows: 2, ..cluster_config(2, 4) });
    let one = |slot_use| JobRequest {
        slot_use,
        ..request(AllocationRequest::HostsByProcs { hosts: 1, procs: 1 }, false)
    };
    let (per_process, whole) = (one(SlotUse::PerProcess), one(SlotUse::WholeHosts));
    let mut try_submit =
        |tag, request: &JobRequest| cluster.on(submit(1, tag, request.clone()), at_second(0));
    assert_eq!(shares(&try_submit(1, &per_process)), [share(1, 1)]);
    assert_eq!(shares(&try_submit(2, &whole)), [share(2, 1)], "the first row of host 1 is in use");
    assert_eq!(shares(&try_submit(3, &whole)), [share(1, 1)], "the second row");
    assert_eq!(shares(&try_submit(4, &whole)), [share(2, 1)], "the second row");
    let refused = try_submit(5, &whole);
    let text = "1 hosts with 1 processes each are needed, with all processors of each host for \
                OpenMP; a processor may have 2 jobs, and 0 of the cluster's hosts have room";
    assert!(reason(&refused).starts_with(text), "{refused:?}");
    assert_eq!(shares(&try_submit(6, &per_process)), [share(1, 1)], "three slots are left");
    cluster.on(finished(4, 0), at_second(1));
    cluster.on(released(4, 0..1), at_second(1));
    assert_eq!(shares(&cluster.on(submit(1, 7, whole), at_second(1))), [share(2, 1)]);
}

#[test]
fn a_job_that_needs_every_host_whole_gets_no_part_of_the_hosts() {
    let mut cluster = cluster_of(cluster_config(2, 4));
    let every = AllocationRequest::EveryHost { procs: 1, min_nodes: 1, max_nodes: 9 };
    let whole = JobRequest { slot_use: SlotUse::WholeHosts, ..request(every, false) };
    let one = request(AllocationRequest::FewestHosts(1), false);
    assert_eq!(shares(&cluster.on(submit(1, 1, one), at_second(0))), [share(2, 1)]);
    assert!(!reason(&cluster.on(submit(1, 2, whole), at_second(0))).is_empty());
}
