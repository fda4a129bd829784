//! Tests of random faults, which depend on a seed, and of some particular faults. A failing seed is
//! printed: `SCORE_SIM_SEED=17 cargo test -p score-job cluster` replays it, and `SCORE_SIM_TRACE=1`
//! traces it. `SCORE_SIM_SEEDS=100000` runs many seeds.

use score_proto::ids::{HostId, SessionJobId};
use score_proto::peer_message::SERVER;
use score_tree::range_tree::Subtree;

use super::simulation::{Coverage, DETECTION_BOUND, Random, Simulation, TIMEOUTS};
use crate::cluster::{ClusterEvent, MonotonicTime};

fn seconds(count: u64) -> MonotonicTime {
    MonotonicTime::from_secs(count)
}

/// On a panic, prints how to replay the seed.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {0}: SCORE_SIM_SEED={0} replays it", self.0);
        }
    }
}

fn started_cluster(hosts: u32, seed: u64) -> Simulation {
    let mut sim = Simulation::new(hosts, seed);
    sim.start_server();
    for host in (1..hosts).map(HostId) {
        sim.start_daemon(host, None);
    }
    sim.run_until(seconds(1));
    sim
}

/// Asserts that all hosts are up below ancestors in the tree, and that nothing of any job is left.
fn assert_quiescent(sim: &Simulation) {
    let server = sim.server.as_ref().unwrap();
    let count = sim.hosts.len() as u32;
    for host in (1..count).map(HostId) {
        assert!(server.is_up(host), "c{host} is not up");
        let parent = sim.hosts[host.index()].member.as_ref().unwrap().parent();
        let ancestors = Subtree::whole(count).ancestors(host.0).into_iter();
        assert!(
            parent.is_some_and(|parent| ancestors.clone().any(|ancestor| ancestor == parent.0))
        );
    }
    for ((_, tag), submission) in &sim.submissions {
        assert!(
            submission.refused || submission.ended || submission.dropped,
            "submission {tag}: {submission:?}"
        );
    }
    assert_eq!(server.jobs.len(), 0);
    assert_eq!((server.pending.len(), server.spec_bytes), (0, 0));
    assert!(
        server
            .membership
            .hosts
            .iter()
            .all(|host| host.used_slots == 0 && host.promised_memory == 0)
    );
    assert!(server.sessions.is_empty() && server.users.is_empty());
    assert!(sim.in_flight_count() < 20 * sim.hosts.len() + 100, "{}", sim.in_flight_count());
}

/// Injects one random event: a fault of a host, or an action of a user.
fn inject_random_event(sim: &mut Simulation, down: &mut Vec<HostId>) {
    let count = sim.hosts.len() as u64;
    let host = HostId(1 + sim.random.below(count - 1) as u32);
    let is_down = down.contains(&host);
    match sim.random.below(100) {
        0..=3 if !is_down => {
            let power = sim.random.chance(50);
            sim.kill(host, power);
            down.push(host);
        }
        4..=5 => sim.stop(host, true),
        6..=9 => sim.stop(host, false),
        10..=11 => sim.cut(host, 1 + (host.0 % 2) as u8),
        12..=16 => sim.cut(host, 0),
        17 => sim.hosts[host.index()].extra_latency = sim.random.time(0, 500),
        18..=24 => {
            if let Some(host) = down.pop() {
                sim.start_daemon(host, None);
            }
        }
        25 if sim.random.chance(10) => {
            sim.kill(SERVER, false);
            let delay = sim.random.time(1, 40_000);
            sim.run_until(sim.now + delay);
            sim.start_server();
        }
        26..=40 => sim.login(1000 + host.0 % 5),
        44..=47 => sim.break_job_links(host),
        41..=43 => {
            if let Some(session) = sim.sessions.first().copied() {
                sim.logout(session);
            }
        }
        _ => {
            let sessions: Vec<_> = sim.sessions.iter().copied().collect();
            if !sessions.is_empty() {
                let index = sim.random.below(sessions.len() as u64) as usize;
                sim.submit(sessions[index]);
            }
        }
    }
}

fn run_seed(seed: u64) -> Coverage {
    let _replay = Replay(seed);
    let mut random = Random::new(seed ^ 0xABCD);
    let hosts = 2 + random.below(if seed.is_multiple_of(16) { 150 } else { 25 }) as u32;
    let mut sim = started_cluster(hosts, seed);
    sim.duplicate_percent = random.below(3) * 5;
    // A fault that hides another one delays its detection by one more silence limit.
    sim.detection_bound = DETECTION_BOUND * 2;
    let mut down = Vec::new();
    let end = sim.now + seconds(100 + random.below(200));
    while sim.now < end {
        let delay = sim.random.time(1, 1500);
        sim.run_until(sim.now + delay);
        inject_random_event(&mut sim, &mut down);
    }
    for host in (1..hosts).map(HostId) {
        sim.stop(host, false);
        sim.cut(host, 0);
        sim.hosts[host.index()].extra_latency = MonotonicTime::ZERO;
    }
    for host in down {
        sim.start_daemon(host, None);
    }
    // This is long enough for the longest queue.
    sim.run_until(sim.now + seconds(200));
    while sim.server.as_ref().unwrap().pending.len() > 0 && sim.now < end + seconds(4000) {
        sim.run_until(sim.now + seconds(50));
    }
    sim.run_until(sim.now + seconds(100));
    for session in sim.sessions.clone() {
        sim.logout(session);
    }
    sim.run_until(sim.now + seconds(1));
    assert_quiescent(&sim);
    sim.coverage
}

/// A daemon hung, was replaced, and resumed for just one more heartbeat. A child that had received
/// this heartbeat took fifteen seconds to look for its parent, but was declared down after twelve.
#[test]
fn a_child_of_a_replaced_parent_is_not_reported_as_failed() {
    run_seed(1920);
}

/// A former parent hung while the server was restarted. Its next heartbeat named the old server.
#[test]
fn a_beat_of_a_former_parent_does_not_revive_a_restarted_server() {
    run_seed(5407);
}

/// The daemon reported a child to a parent that never answered, and then got another parent. No
/// other daemon was notified of the child, although the child received heartbeats.
#[test]
fn a_daemon_with_a_new_parent_reports_its_children_again() {
    run_seed(6304);
}

// Promise (cluster): Under random crashes, hangs, partitions, broken links of jobs, slow hosts,
// late and repeated messages and server restarts: no slot is used twice, jobs start only on hosts
// that are up, every submission has exactly one end, no host without a fault is reported, and the
// cluster becomes idle.
// Promise of `slots_are_time_shared_when_all_slots_are_in_use`.
#[test]
fn random_faults_violate_no_invariant() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("SCORE_SIM_SEED") {
        return eprintln!("{:?}", run_seed(seed));
    }
    for batch in 0..number("SCORE_SIM_SEEDS").unwrap_or(48).div_ceil(48) {
        let all: Vec<_> = (batch * 48..(batch + 1) * 48).map(run_seed).collect();
        // If no events happened, the test would prove nothing.
        let total = |counter: fn(&Coverage) -> u64| all.iter().map(counter).sum::<u64>();
        assert!(total(|counts| counts.started) > 1000 && total(|counts| counts.refused) > 100);
        assert!(total(|counts| counts.completed) > 500 && total(|counts| counts.blamed_hosts) > 20);
        assert!(total(|counts| counts.declared_down) > 100 && total(|counts| counts.resets) > 100);
        assert!(total(|counts| counts.broken_job_links) > 100);
    }
}

/// A cluster in which one user's jobs fill all hosts.
fn busy_cluster(hosts: u32) -> Simulation {
    let mut sim = started_cluster(hosts, 5);
    sim.login(1000);
    let session = sim.sessions.first().copied().unwrap();
    for _ in 0..40 {
        sim.submit(session);
    }
    sim
}

// Promise (cluster): A host that hangs or dies is named within the time limit; when it returns,
// nothing of its jobs is left.
#[test]
fn a_hanging_host_is_named_within_the_limit_and_returns_without_jobs() {
    for host in [1, 5, 30].map(HostId) {
        let mut sim = busy_cluster(40);
        sim.run_until(seconds(3));
        sim.stop(host, true);
        sim.run_until(sim.now + DETECTION_BOUND);
        assert!(!sim.server.as_ref().unwrap().is_up(host));
        let name = format!("host c{host} is lost: no data received");
        assert!(sim.log.lines.contains(&name), "{:?}", sim.log.lines);
        let old_incarnation = sim.hosts[host.index()].member.as_ref().unwrap().incarnation();
        sim.stop(host, false);
        sim.run_until(sim.now + seconds(15));
        assert!(sim.server.as_ref().unwrap().is_up(host));
        assert_ne!(sim.hosts[host.index()].member.as_ref().unwrap().incarnation(), old_incarnation);
    }
}

// Promise of `a_hanging_host_is_named_within_the_limit_and_returns_without_jobs`.
#[test]
fn a_host_that_dies_with_its_parent_is_also_named_within_the_limit() {
    let mut sim = started_cluster(75, 5);
    // By then, all hosts have found their own parents.
    sim.run_until(seconds(20));
    let child = Subtree::whole(75).child_containing(1).unwrap().children().next().unwrap();
    let child = HostId(child.root());
    sim.kill(HostId(1), true);
    sim.kill(child, true);
    sim.run_until(sim.now + DETECTION_BOUND);
    let server = sim.server.as_ref().unwrap();
    let missing: Vec<_> = (1..75).map(HostId).filter(|host| !server.is_up(*host)).collect();
    assert_eq!(missing, [HostId(1), child]);
    let reason = "it did not dial again after c1, its parent, was lost";
    assert!(
        sim.log.declared_down.contains(&format!("host c{child}: {reason}")),
        "{:?}",
        sim.log.declared_down
    );
}

/// The parent hung during the restart, and later took the daemon's heartbeats for those of its
/// predecessor. The server was never notified of the restart, and gave jobs to a daemon that had
/// died.
// Promise (cluster): A daemon that restarts while its parent in the tree hangs is reported to the
// server, whatever messages are lost.
#[test]
fn a_daemon_restarted_while_its_parent_hangs_is_reported_to_the_server() {
    let mut sim = started_cluster(75, 5);
    sim.run_until(seconds(20));
    let child = Subtree::whole(75).child_containing(1).unwrap().children().next().unwrap();
    let child = HostId(child.root());
    sim.stop(HostId(1), true);
    sim.run_until(sim.now + MonotonicTime::from_millis(500));
    sim.kill(child, false);
    sim.run_until(sim.now + MonotonicTime::from_millis(2500));
    sim.start_daemon(child, None);
    // The daemon's message to the parent is lost with an attempt to connect that gets no answer. By
    // then the parent has resumed and has opened a link itself.
    sim.run_until(sim.now + seconds(1));
    sim.stop(HostId(1), false);
    sim.run_until(sim.now + DETECTION_BOUND);
    let current = sim.hosts[child.index()].member.as_ref().unwrap().incarnation();
    assert_eq!(sim.server.as_ref().unwrap().incarnation_of(child), Some(current));
}

// Promise (cluster): Five seconds without network, a dead parent in the tree, a server that was
// stopped for a while: no job is lost.
#[test]
fn a_network_outage_of_five_seconds_loses_no_job_and_no_daemon() {
    let mut sim = busy_cluster(40);
    sim.run_until(seconds(3));
    let before: Vec<_> = (1..40).map(|host| sim.hosts[host].generation).collect();
    for host in [1, 2, 17].map(HostId) {
        sim.cut(host, 1);
    }
    sim.run_until(sim.now + seconds(5));
    for host in [1, 2, 17].map(HostId) {
        sim.cut(host, 0);
    }
    sim.run_until(sim.now + seconds(60));
    assert!(sim.log.lines.is_empty(), "{:?}", sim.log.lines);
    let after: Vec<_> = (1..40).map(|host| sim.hosts[host].generation).collect();
    assert_eq!(before, after);
}

// Promise of `a_network_outage_of_five_seconds_loses_no_job_and_no_daemon`.
#[test]
fn jobs_continue_if_only_the_parent_in_the_tree_dies() {
    for power in [false, true] {
        let mut sim = started_cluster(75, 9);
        // Host 1 is the parent of other hosts that run the only job.
        let children = Subtree::whole(75).child_containing(1).unwrap().children();
        let below: Vec<_> = children.flat_map(|child| child.positions()).collect();
        assert!(below.len() > 5);
        sim.login(1000);
        let session = sim.sessions.first().copied().unwrap();
        let request = crate::cluster::JobRequest {
            allocation: score_proto::allocation_request::AllocationRequest::AllFreeSlots {
                min_nodes: 1,
                max_nodes: 1000,
            },
            pools: vec![below.into_iter().collect()],
            wait: false,
            priority: 8,
            slot_use: crate::cluster::SlotUse::PerProcess,
            memory: 0,
            spec_bytes: 1,
        };
        sim.submissions.insert((session, SessionJobId(1)), Default::default());
        sim.deliver_to_server(ClusterEvent::Submit { session, tag: SessionJobId(1), request });
        sim.run_until(sim.now + MonotonicTime::from_millis(10));
        sim.kill(HostId(1), power);
        sim.run_until(sim.now + DETECTION_BOUND);
        let submission = &sim.submissions[&(session, SessionJobId(1))];
        // `check_end` has verified that no host was reported as failed.
        assert!(submission.started_at.is_some() && submission.ended, "{submission:?}");
        assert_eq!(sim.server.as_ref().unwrap().host_named("c1"), Some(HostId(1)));
        assert!((2..75).all(|host| sim.server.as_ref().unwrap().is_up(HostId(host))));
    }
}

// Promise (cluster): A restarted server accepts jobs as soon as its hosts have cleaned up; without
// a server the hosts clean up by themselves.
#[test]
fn a_restarted_server_accepts_jobs_as_soon_as_its_hosts_have_cleaned_up() {
    let mut sim = busy_cluster(40);
    sim.run_until(seconds(3));
    sim.kill(SERVER, false);
    sim.run_until(sim.now + seconds(2));
    sim.start_server();
    let restarted = sim.now;
    while (1..40).any(|host| !sim.server.as_ref().unwrap().is_up(HostId(host))) {
        sim.run_until(sim.now + MonotonicTime::from_millis(100));
        assert!(sim.now < restarted + seconds(5), "hosts are still missing");
    }
    sim.login(1000);
    let session = sim.sessions.first().copied().unwrap();
    for _ in 0..10 {
        sim.submit(session);
    }
    sim.run_until(sim.now + seconds(300));
    sim.logout(session);
    sim.run_until(sim.now + seconds(30));
    assert_quiescent(&sim);
}

// Promise of `a_restarted_server_accepts_jobs_as_soon_as_its_hosts_have_cleaned_up`.
#[test]
fn a_server_that_never_returns_leaves_no_job_on_any_host() {
    let mut sim = busy_cluster(40);
    sim.run_until(seconds(3));
    sim.kill(SERVER, true);
    sim.run_until(sim.now + TIMEOUTS.silence * 3 + TIMEOUTS.grace + seconds(9));
    let cleaned = sim.hosts[1..].iter().all(|host| host.is_empty());
    assert!(cleaned);
}

// Promise of `a_network_outage_of_five_seconds_loses_no_job_and_no_daemon`.
#[test]
fn a_server_that_was_stopped_for_less_than_the_limit_reports_no_host() {
    let mut sim = busy_cluster(40);
    sim.run_until(seconds(3));
    sim.stop(SERVER, true);
    sim.run_until(sim.now + seconds(9));
    sim.stop(SERVER, false);
    sim.run_until(sim.now + seconds(60));
    assert!(sim.log.lines.is_empty(), "{:?}", sim.log.lines);
}

#[test]
fn hosts_return_to_their_own_place_in_the_tree() {
    let mut sim = started_cluster(75, 3);
    for host in [1, 2, 3].map(HostId) {
        sim.kill(host, false);
    }
    sim.run_until(sim.now + seconds(30));
    for host in [1, 2, 3].map(HostId) {
        sim.start_daemon(host, None);
    }
    sim.run_until(sim.now + seconds(30));
    for host in (1..75).map(HostId) {
        let parent = sim.hosts[host.index()].member.as_ref().unwrap().parent();
        assert_eq!(
            parent,
            Subtree::whole(75).ancestors(host.0).last().copied().map(HostId),
            "c{host}"
        );
    }
}
