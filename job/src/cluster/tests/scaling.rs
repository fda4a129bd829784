//! Tests of scaling: the cost of starting a job and of joining, for up to 4,096 hosts.
//!
//! A launch is simulated with a cost per hop and a cost per message that a host handles, one
//! message at a time. An order goes down the tree. The reports of all hosts go up, merged by the
//! queue that the daemons use. `SCORE_SIM_COUNTS=1` simulates every number of hosts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use score_proto::ids::HostId;
use score_proto::nodeset::NodeSet;
use score_tree::range_tree::{FAN_OUT, Subtree};
use score_tree::report_queue::{CoalescingQueue, Mergeable};

use super::simulation::Simulation;
use crate::cluster::MonotonicTime;

/// Time in microseconds.
type Micros = u64;

/// The latency from one host to the next.
const HOP_LATENCY: Micros = 100;
/// The cost of handling a message, in or out.
const MESSAGE_COST: Micros = 20;
/// The time from a host's order until its processes have reached the start barrier.
const STARTUP_TIME: Micros = 2000;
/// The time that a report waits for other reports.
const MERGE_DELAY: Micros = 500;

/// Nodes that have reached the start barrier.
struct Attached(NodeSet);

impl Mergeable for Attached {
    fn merge(&mut self, other: &Self) -> bool {
        self.0.union(&other.0);
        true
    }

    fn concerns(&self, _: &Self) -> bool {
        false
    }
}

enum ScalingEvent {
    Order,
    ProcessesReady,
    Attached(Attached),
    Flush,
}

struct Daemon {
    branch: Subtree,
    parent: u32,
    busy_until: Micros,
    handled_count: u32,
    queue: CoalescingQueue<Attached>,
    flush_pending: bool,
}

struct SimLaunch {
    time: Micros,
    /// The number of messages that the busiest host has handled.
    busiest: u32,
}

fn tree(count: u32) -> Vec<Daemon> {
    let mut all: Vec<Option<Daemon>> = (0..count).map(|_| None).collect();
    let mut next = vec![(Subtree::whole(count), 0)];
    while let Some((branch, parent)) = next.pop() {
        let host = branch.root();
        next.extend(branch.children().map(|child| (child, host)));
        let queue = CoalescingQueue::new(4);
        let daemon =
            Daemon { branch, parent, busy_until: 0, handled_count: 0, queue, flush_pending: false };
        all[host as usize] = Some(daemon);
    }
    all.into_iter().flatten().collect()
}

fn launch(count: u32) -> SimLaunch {
    let mut daemons = tree(count);
    let mut events = vec![ScalingEvent::Order];
    let mut queue = BinaryHeap::from([Reverse((0, 0, 0u32))]);
    let mut attached = NodeSet::new();
    while let Some(Reverse((when, number, host))) = queue.pop() {
        let event = std::mem::replace(&mut events[number], ScalingEvent::Flush);
        let daemon = &mut daemons[host as usize];
        let mut now = when.max(daemon.busy_until);
        let mut schedule = |when, host, event| {
            events.push(event);
            queue.push(Reverse((when, events.len() - 1, host)));
        };
        match event {
            ScalingEvent::Order => {
                daemon.handled_count += 1;
                now += MESSAGE_COST;
                for child in daemon.branch.children() {
                    now += MESSAGE_COST;
                    schedule(now + HOP_LATENCY, child.root(), ScalingEvent::Order);
                }
                schedule(now + STARTUP_TIME, host, ScalingEvent::ProcessesReady);
            }
            ScalingEvent::ProcessesReady | ScalingEvent::Attached(_) => {
                let report = match event {
                    ScalingEvent::Attached(report) => {
                        daemon.handled_count += 1;
                        now += MESSAGE_COST;
                        report
                    }
                    _ => Attached(NodeSet::one(host)),
                };
                if host == 0 {
                    attached.union(&report.0);
                    if attached.len() == count {
                        let busiest = daemons.iter().map(|daemon| daemon.handled_count).max();
                        return SimLaunch { time: now, busiest: busiest.unwrap() };
                    }
                    daemons[0].busy_until = now;
                    continue;
                }
                assert!(daemon.queue.push(report).is_ok());
                if !std::mem::replace(&mut daemon.flush_pending, true) {
                    schedule(now + MERGE_DELAY, host, ScalingEvent::Flush);
                }
            }
            ScalingEvent::Flush => {
                daemon.flush_pending = false;
                while let Some(report) = daemon.queue.pop() {
                    now += MESSAGE_COST;
                    schedule(now + HOP_LATENCY, daemon.parent, ScalingEvent::Attached(report));
                }
            }
        }
        daemons[host as usize].busy_until = now;
    }
    panic!("{} of {count} hosts have reached the barrier", attached.len());
}

fn depth(branch: &Subtree) -> u32 {
    branch.children().map(|child| depth(&child) + 1).max().unwrap_or(0)
}

// Promise (cluster): The time of launches and of joining grows logarithmically up to 4,096 hosts
// (simulated).
#[test]
fn a_launch_takes_logarithmic_time_and_no_host_handles_many_messages() {
    let all_counts = std::env::var_os("SCORE_SIM_COUNTS").is_some();
    let chosen =
        |count: &u32| all_counts || *count <= 130 || count.is_multiple_of(131) || *count == 4096;
    for count in (1..=4096).filter(chosen) {
        let SimLaunch { time, busiest } = launch(count);
        let depth = u64::from(depth(&Subtree::whole(count)));
        // Down: the order, and the orders to the children. Up: the reports of all children, then
        // the delay of merged reports.
        let fan_out = u64::from(FAN_OUT);
        let level = (1 + fan_out) * MESSAGE_COST
            + HOP_LATENCY
            + 2 * fan_out * MESSAGE_COST
            + HOP_LATENCY
            + MERGE_DELAY;
        let limit = STARTUP_TIME + 2 * MESSAGE_COST + depth * level;
        assert!(time <= limit, "{count} hosts: {time} us, depth {depth}, limit {limit}");
        assert!(busiest <= 1 + 8 * FAN_OUT, "{count} hosts: {busiest} messages at one of them");
    }
}

// Promise of `a_launch_takes_logarithmic_time_and_no_host_handles_many_messages`.
#[test]
fn every_number_of_hosts_is_reached_in_logarithmic_rounds() {
    // In one round, every host that has the order sends it to one more host.
    fn rounds(branch: &Subtree, depth_by_size: &mut Vec<Option<u32>>) -> u32 {
        let host_count = branch.positions().len();
        if let Some(found) = depth_by_size[host_count] {
            return found;
        }
        let children = (1..).zip(branch.children());
        let found =
            children.map(|(turn, child)| turn + rounds(&child, depth_by_size)).max().unwrap_or(0);
        depth_by_size[host_count] = Some(found);
        found
    }
    let mut depth_by_size = vec![None; 4097];
    for count in 1..=4096u32 {
        let found = rounds(&Subtree::whole(count), &mut depth_by_size);
        let levels = (1..).find(|levels| 8u64.pow(*levels) >= u64::from(count)).unwrap();
        assert!(found <= FAN_OUT * levels, "{count} hosts: {found} rounds, {levels} levels");
    }
}

// Promise of `a_launch_takes_logarithmic_time_and_no_host_handles_many_messages`.
#[test]
fn thousands_of_hosts_join_whichever_side_dials_first() {
    for (count, by_parent) in [(4096, true), (600, false), (64, true), (2, true)] {
        let mut sim = Simulation::new(count, 1);
        sim.start_server();
        for host in 1..count {
            // Either each daemon gets its parent at its start, or all daemons connect to the server
            // at once.
            let parent = *Subtree::whole(count).ancestors(host).last().unwrap();
            let host = HostId(host);
            sim.start_daemon(host, by_parent.then_some((host, HostId(parent))));
        }
        sim.run_until(MonotonicTime::from_millis(500));
        let server = sim.server.as_ref().unwrap();
        let missing = (1..count).filter(|host| !server.is_up(HostId(*host))).count();
        assert_eq!(missing, 0, "of {count}");
        if by_parent {
            // The server receives merged messages, a few from each of its children.
            let message_count = sim.log.server_message_count;
            assert!(
                message_count <= 8 * u64::from(FAN_OUT),
                "{message_count} messages from {count} hosts"
            );
        }
    }
}
