//! Faults at random, by seed, and some by name. A failing seed prints itself:
//! `SCORE_SIM_SEED=17 cargo test -p scored cluster` replays it, with `SCORE_SIM_TRACE=1` line by
//! line; `SCORE_SIM_SEEDS=100000` runs many.

use score_proto::peer::{HostId, SERVER};
use score_tree::range::Branch;

use super::world::{LIMIT, Random, TIMES, Tally, World};
use crate::cluster::{Event, Time};

fn seconds(count: u64) -> Time {
    Time::from_secs(count)
}

/// Says on a panic how to see it again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {0}: SCORE_SIM_SEED={0} replays it", self.0);
        }
    }
}

fn world(hosts: u32, seed: u64) -> World {
    let mut world = World::new(hosts, seed);
    world.start_server();
    for host in 1..hosts {
        world.start_daemon(host, None);
    }
    world.run_until(seconds(1));
    world
}

/// Everybody is there, under the parent that the tree gives, and nothing is left of any job.
fn at_rest(world: &World) {
    let server = world.server.as_ref().unwrap();
    let count = world.hosts.len() as u32;
    for host in 1..count {
        assert!(server.is_up(host), "c{host} is not up");
        let parent = world.hosts[host as usize].member.as_ref().unwrap().parent();
        let above = Branch::whole(count).ancestors(host).into_iter();
        assert!(parent.is_some_and(|parent| above.clone().any(|one| one == parent)));
    }
    for ((_, tag), seen) in &world.seen {
        assert!(seen.refused || seen.ended || seen.dropped, "submission {tag}: {seen:?}");
    }
    assert_eq!(server.jobs.len(), 0);
    assert_eq!((server.waiting.len(), server.bytes), (0, 0));
    assert!(server.hosts.iter().all(|host| host.used == 0 && host.promised == 0));
    assert!(server.sessions.is_empty() && server.users.is_empty());
    assert!(world.under_way() < 20 * world.hosts.len() + 100, "{}", world.under_way());
}

/// One thing that happens to a host or is done by a user.
fn mischief(world: &mut World, down: &mut Vec<HostId>) {
    let count = world.hosts.len() as u64;
    let host = 1 + world.random.below(count - 1) as HostId;
    let is_down = down.contains(&host);
    match world.random.below(100) {
        0..=3 if !is_down => {
            let power = world.random.chance(50);
            world.kill(host, power);
            down.push(host);
        }
        4..=5 => world.stop(host, true),
        6..=9 => world.stop(host, false),
        10..=11 => world.cut(host, 1 + (host % 2) as u8),
        12..=16 => world.cut(host, 0),
        17 => world.hosts[host as usize].slow = world.random.time(0, 500),
        18..=24 => {
            if let Some(host) = down.pop() {
                world.start_daemon(host, None);
            }
        }
        25 if world.random.chance(10) => {
            world.kill(SERVER, false);
            let pause = world.random.time(1, 40_000);
            world.run_until(world.now + pause);
            world.start_server();
        }
        26..=40 => world.login(1000 + host % 5),
        41..=43 => {
            if let Some(session) = world.sessions.first().copied() {
                world.logout(session);
            }
        }
        _ => {
            let sessions: Vec<_> = world.sessions.iter().copied().collect();
            if !sessions.is_empty() {
                let index = world.random.below(sessions.len() as u64) as usize;
                world.submit(sessions[index]);
            }
        }
    }
}

fn one_seed(seed: u64) -> Tally {
    let _replay = Replay(seed);
    let mut random = Random::new(seed ^ 0xABCD);
    let hosts = 2 + random.below(if seed.is_multiple_of(16) { 150 } else { 25 }) as u32;
    let mut world = world(hosts, seed);
    world.repeats = random.below(3) * 5;
    // Faults that hide each other take longer to be seen: one more round of silence each.
    world.limit = LIMIT * 2;
    let mut down = Vec::new();
    let end = world.now + seconds(100 + random.below(200));
    while world.now < end {
        let pause = world.random.time(1, 1500);
        world.run_until(world.now + pause);
        mischief(&mut world, &mut down);
    }
    for host in 1..hosts {
        world.stop(host, false);
        world.cut(host, 0);
        world.hosts[host as usize].slow = Time::ZERO;
    }
    for host in down {
        world.start_daemon(host, None);
    }
    // Long enough for the longest queue.
    world.run_until(world.now + seconds(200));
    while world.server.as_ref().unwrap().waiting.len() > 0 && world.now < end + seconds(4000) {
        world.run_until(world.now + seconds(50));
    }
    world.run_until(world.now + seconds(100));
    for session in world.sessions.clone() {
        world.logout(session);
    }
    world.run_until(world.now + seconds(1));
    at_rest(&world);
    world.tally
}

/// A daemon hung, was replaced, and woke for just one beat more: who had heard it took fifteen
/// seconds to look for its parent, and was given up after twelve.
#[test]
fn who_has_heard_a_parent_that_was_replaced_is_not_blamed() {
    one_seed(1920);
}

/// A former parent hung while the server was started anew, and its next beat named the old one.
#[test]
fn a_beat_of_a_former_parent_does_not_bring_back_a_server_that_is_gone() {
    one_seed(5407);
}

/// It told of a child to a parent that never answered, and was then given another one: nobody heard
/// of the child, which was served all the same.
#[test]
fn who_gets_another_parent_tells_of_its_children_again() {
    one_seed(6304);
}

#[test]
fn no_fault_breaks_a_promise() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("SCORE_SIM_SEED") {
        return eprintln!("{:?}", one_seed(seed));
    }
    for turn in 0..number("SCORE_SIM_SEEDS").unwrap_or(48).div_ceil(48) {
        let all: Vec<_> = (turn * 48..(turn + 1) * 48).map(one_seed).collect();
        // It would prove nothing if nothing happened.
        let sum = |of: fn(&Tally) -> u64| all.iter().map(of).sum::<u64>();
        assert!(sum(|tally| tally.started) > 1000 && sum(|tally| tally.refused) > 100);
        assert!(sum(|tally| tally.done) > 500 && sum(|tally| tally.blamed) > 100);
        assert!(sum(|tally| tally.given_up) > 100 && sum(|tally| tally.cleaned) > 100);
    }
}

/// A cluster where one user's jobs fill all hosts.
fn busy(hosts: u32) -> World {
    let mut world = world(hosts, 5);
    world.login(1000);
    let session = world.sessions.first().copied().unwrap();
    for _ in 0..40 {
        world.submit(session);
    }
    world
}

#[test]
fn a_hanging_host_is_named_within_the_limit_and_comes_back_clean() {
    for host in [1, 5, 30] {
        let mut world = busy(40);
        world.run_until(seconds(3));
        world.stop(host, true);
        world.run_until(world.now + LIMIT);
        assert!(!world.server.as_ref().unwrap().is_up(host));
        let name = format!("host c{host} is lost: nothing was heard from it");
        assert!(world.lines.contains(&name), "{:?}", world.lines);
        let before = world.hosts[host as usize].member.as_ref().unwrap().incarnation();
        world.stop(host, false);
        world.run_until(world.now + seconds(15));
        assert!(world.server.as_ref().unwrap().is_up(host));
        assert_ne!(world.hosts[host as usize].member.as_ref().unwrap().incarnation(), before);
    }
}

#[test]
fn a_host_that_dies_with_its_parent_is_named_within_the_limit_too() {
    let mut world = world(75, 5);
    // Everybody has found its own place by then.
    world.run_until(seconds(20));
    let child = Branch::whole(75).towards(1).unwrap().children().next().unwrap().root();
    world.kill(1, true);
    world.kill(child, true);
    world.run_until(world.now + LIMIT);
    let server = world.server.as_ref().unwrap();
    let away: Vec<_> = (1..75).filter(|host| !server.is_up(*host)).collect();
    assert_eq!(away, [1, child]);
    let why = "it did not dial again after c1, its parent, was lost";
    assert!(world.given_up.contains(&format!("host c{child}: {why}")), "{:?}", world.given_up);
}

/// Its parent, which hung meanwhile, took its beats for those of its predecessor: the server never
/// heard of it and gave its jobs to a daemon that was gone.
#[test]
fn a_daemon_that_begins_anew_while_its_parent_hangs_is_heard_of() {
    let mut world = world(75, 5);
    world.run_until(seconds(20));
    let child = Branch::whole(75).towards(1).unwrap().children().next().unwrap().root();
    world.stop(1, true);
    world.run_until(world.now + Time::from_millis(500));
    world.kill(child, false);
    world.run_until(world.now + Time::from_millis(2500));
    world.start_daemon(child, None);
    // Its word to the parent is lost with a dial that nobody answers; by then the parent, which
    // wakes, has made a link of its own.
    world.run_until(world.now + seconds(1));
    world.stop(1, false);
    world.run_until(world.now + LIMIT);
    let there = world.hosts[child as usize].member.as_ref().unwrap().incarnation();
    assert_eq!(world.server.as_ref().unwrap().incarnation_of(child), Some(there));
}

#[test]
fn a_network_that_is_away_for_five_seconds_costs_nothing() {
    let mut world = busy(40);
    world.run_until(seconds(3));
    let before: Vec<_> = (1..40).map(|host| world.hosts[host].life).collect();
    for host in [1, 2, 17] {
        world.cut(host, 1);
    }
    world.run_until(world.now + seconds(5));
    for host in [1, 2, 17] {
        world.cut(host, 0);
    }
    world.run_until(world.now + seconds(60));
    assert!(world.lines.is_empty(), "{:?}", world.lines);
    let after: Vec<_> = (1..40).map(|host| world.hosts[host].life).collect();
    assert_eq!(before, after);
}

#[test]
fn jobs_go_on_when_only_the_parent_in_the_tree_dies() {
    for power in [false, true] {
        let mut world = world(75, 9);
        // Host 1 is the parent of others that run the only job.
        let children = Branch::whole(75).towards(1).unwrap().children();
        let below: Vec<_> = children.flat_map(|child| child.positions()).collect();
        assert!(below.len() > 5);
        world.login(1000);
        let session = world.sessions.first().copied().unwrap();
        let request = crate::cluster::Request {
            shape: score_proto::shape::Shape::Fill { least: 1, most: 1000 },
            pools: vec![below.into_iter().collect()],
            wait: false,
            priority: 8,
            memory: 0,
            bytes: 1,
        };
        world.seen.insert((session, 1), Default::default());
        world.serve(Event::Submit { session, tag: 1, request });
        world.run_until(world.now + Time::from_millis(10));
        world.kill(1, power);
        world.run_until(world.now + LIMIT);
        let seen = &world.seen[&(session, 1)];
        // `check_end` has seen to it that nobody was blamed.
        assert!(seen.started.is_some() && seen.ended, "{seen:?}");
        assert_eq!(world.server.as_ref().unwrap().host_named("c1"), Some(1));
        assert!((2..75).all(|host| world.server.as_ref().unwrap().is_up(host)));
    }
}

#[test]
fn a_restarted_server_takes_jobs_as_soon_as_its_hosts_have_cleaned_up() {
    let mut world = busy(40);
    world.run_until(seconds(3));
    world.kill(SERVER, false);
    world.run_until(world.now + seconds(2));
    world.start_server();
    let restarted = world.now;
    while (1..40).any(|host| !world.server.as_ref().unwrap().is_up(host)) {
        world.run_until(world.now + Time::from_millis(100));
        assert!(world.now < restarted + seconds(5), "hosts are still missing");
    }
    world.login(1000);
    let session = world.sessions.first().copied().unwrap();
    for _ in 0..10 {
        world.submit(session);
    }
    world.run_until(world.now + seconds(300));
    world.logout(session);
    world.run_until(world.now + seconds(30));
    at_rest(&world);
}

#[test]
fn a_server_that_does_not_come_back_leaves_no_job_on_any_host() {
    let mut world = busy(40);
    world.run_until(seconds(3));
    world.kill(SERVER, true);
    world.run_until(world.now + TIMES.silence * 3 + TIMES.grace + seconds(9));
    let cleaned = world.hosts[1..].iter().all(|host| host.is_empty());
    assert!(cleaned);
}

#[test]
fn a_server_that_was_stopped_for_less_than_the_limit_blames_nobody() {
    let mut world = busy(40);
    world.run_until(seconds(3));
    world.stop(SERVER, true);
    world.run_until(world.now + seconds(9));
    world.stop(SERVER, false);
    world.run_until(world.now + seconds(60));
    assert!(world.lines.is_empty(), "{:?}", world.lines);
}

#[test]
fn hosts_return_to_their_own_place_in_the_tree() {
    let mut world = world(75, 3);
    for host in [1, 2, 3] {
        world.kill(host, false);
    }
    world.run_until(world.now + seconds(30));
    for host in [1, 2, 3] {
        world.start_daemon(host, None);
    }
    world.run_until(world.now + seconds(30));
    for host in 1..75 {
        let parent = world.hosts[host as usize].member.as_ref().unwrap().parent();
        assert_eq!(parent, Branch::whole(75).ancestors(host).last().copied(), "c{host}");
    }
}
