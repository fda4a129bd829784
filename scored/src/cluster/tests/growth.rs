//! Size: what starting a job and joining cost as the number of hosts grows, up to 4,096.
//!
//! A launch is simulated with a cost for each hop and one for each message that a host handles,
//! one after the other: an order goes down the tree, and the reports of all hosts come up, merged
//! by the queue that the daemons use. `SCORE_SIM_COUNTS=1` simulates every number of hosts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use score_proto::nodeset::NodeSet;
use score_tree::merge::{Queue, Report};
use score_tree::range::{Branch, FAN_OUT};

use super::world::World;
use crate::cluster::Time;

/// Microseconds.
type Micros = u64;

/// From one host to the next.
const HOP: Micros = 100;
/// For handling a message, in or out.
const MESSAGE: Micros = 20;
/// From a host's order until its processes have reached the start barrier.
const WORK: Micros = 2000;
/// How long a report waits for others.
const MERGE: Micros = 500;

/// Nodes that have reached the start barrier.
struct Attached(NodeSet);

impl Report for Attached {
    fn merge(&mut self, other: &Self) -> bool {
        self.0.union(&other.0);
        true
    }

    fn concerns(&self, _: &Self) -> bool {
        false
    }
}

enum Event {
    Order,
    Worked,
    Attached(Attached),
    Flush,
}

struct Daemon {
    branch: Branch,
    parent: u32,
    busy: Micros,
    handled: u32,
    queue: Queue<Attached>,
    flushing: bool,
}

struct Launch {
    time: Micros,
    /// Messages that the busiest host has handled.
    busiest: u32,
}

fn tree(count: u32) -> Vec<Daemon> {
    let mut all: Vec<Option<Daemon>> = (0..count).map(|_| None).collect();
    let mut next = vec![(Branch::whole(count), 0)];
    while let Some((branch, parent)) = next.pop() {
        let own = branch.root();
        next.extend(branch.children().map(|child| (child, own)));
        let queue = Queue::new(4);
        let daemon = Daemon { branch, parent, busy: 0, handled: 0, queue, flushing: false };
        all[own as usize] = Some(daemon);
    }
    all.into_iter().flatten().collect()
}

fn launch(count: u32) -> Launch {
    let mut daemons = tree(count);
    let mut events = vec![Event::Order];
    let mut queue = BinaryHeap::from([Reverse((0, 0, 0u32))]);
    let mut attached = NodeSet::new();
    while let Some(Reverse((when, number, host))) = queue.pop() {
        let event = std::mem::replace(&mut events[number], Event::Flush);
        let daemon = &mut daemons[host as usize];
        let mut now = when.max(daemon.busy);
        let mut later = |when, host, event| {
            events.push(event);
            queue.push(Reverse((when, events.len() - 1, host)));
        };
        match event {
            Event::Order => {
                daemon.handled += 1;
                now += MESSAGE;
                for child in daemon.branch.children() {
                    now += MESSAGE;
                    later(now + HOP, child.root(), Event::Order);
                }
                later(now + WORK, host, Event::Worked);
            }
            Event::Worked | Event::Attached(_) => {
                let report = match event {
                    Event::Attached(report) => {
                        daemon.handled += 1;
                        now += MESSAGE;
                        report
                    }
                    _ => Attached(NodeSet::one(host)),
                };
                if host == 0 {
                    attached.union(&report.0);
                    if attached.len() == count {
                        let busiest = daemons.iter().map(|daemon| daemon.handled).max();
                        return Launch { time: now, busiest: busiest.unwrap() };
                    }
                    daemons[0].busy = now;
                    continue;
                }
                assert!(daemon.queue.push(report).is_ok());
                if !std::mem::replace(&mut daemon.flushing, true) {
                    later(now + MERGE, host, Event::Flush);
                }
            }
            Event::Flush => {
                daemon.flushing = false;
                while let Some(report) = daemon.queue.pop() {
                    now += MESSAGE;
                    later(now + HOP, daemon.parent, Event::Attached(report));
                }
            }
        }
        daemons[host as usize].busy = now;
    }
    panic!("{} of {count} hosts have reached the barrier", attached.len());
}

fn depth(branch: &Branch) -> u32 {
    branch.children().map(|child| depth(&child) + 1).max().unwrap_or(0)
}

#[test]
fn a_launch_takes_logarithmic_time_and_no_host_handles_many_messages() {
    let every = std::env::var_os("SCORE_SIM_COUNTS").is_some();
    let chosen =
        |count: &u32| every || *count <= 130 || count.is_multiple_of(131) || *count == 4096;
    for count in (1..=4096).filter(chosen) {
        let Launch { time, busiest } = launch(count);
        let depth = u64::from(depth(&Branch::whole(count)));
        // Down: the order and the orders to the children. Up: the reports of all children, then
        // what waits for more.
        let fan_out = u64::from(FAN_OUT);
        let level = (1 + fan_out) * MESSAGE + HOP + 2 * fan_out * MESSAGE + HOP + MERGE;
        let limit = WORK + 2 * MESSAGE + depth * level;
        assert!(time <= limit, "{count} hosts: {time} us, depth {depth}, limit {limit}");
        assert!(busiest <= 1 + 8 * FAN_OUT, "{count} hosts: {busiest} messages at one of them");
    }
}

#[test]
fn every_number_of_hosts_is_reached_in_logarithmic_rounds() {
    // In one round every host that has the order passes it on to one more.
    fn rounds(branch: &Branch, known: &mut Vec<Option<u32>>) -> u32 {
        let size = branch.positions().len();
        if let Some(found) = known[size] {
            return found;
        }
        let children = (1..).zip(branch.children());
        let found = children.map(|(turn, child)| turn + rounds(&child, known)).max().unwrap_or(0);
        known[size] = Some(found);
        found
    }
    let mut known = vec![None; 4097];
    for count in 1..=4096u32 {
        let found = rounds(&Branch::whole(count), &mut known);
        let levels = (1..).find(|levels| 8u64.pow(*levels) >= u64::from(count)).unwrap();
        assert!(found <= FAN_OUT * levels, "{count} hosts: {found} rounds, {levels} levels");
    }
}

#[test]
fn thousands_of_hosts_join_whoever_begins() {
    for (count, by_parent) in [(4096, true), (600, false), (64, true), (2, true)] {
        let mut world = World::new(count, 1);
        world.start_server();
        for host in 1..count {
            // Either each is told its parent at its start, or all dial the server at once.
            let parent = *Branch::whole(count).ancestors(host).last().unwrap();
            world.start_daemon(host, by_parent.then_some((host, parent)));
        }
        world.run_until(Time::from_millis(500));
        let server = world.server.as_ref().unwrap();
        let missing = (1..count).filter(|host| !server.is_up(*host)).count();
        assert_eq!(missing, 0, "of {count}");
        if by_parent {
            // What the server hears comes merged: a few messages from each of its children.
            let heard = world.heard_by_server;
            assert!(heard <= 8 * u64::from(FAN_OUT), "{heard} messages from {count} hosts");
        }
    }
}
