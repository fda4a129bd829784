//! One job over two machines that have nothing in common but two wires: kernels, clocks, disks and
//! adapters are each one's own. What is scattered arrives over every network; jobs that take turns
//! run on both machines at once and lose nothing; a deadlock is found, and named with both hosts;
//! the user hears which host was lost, and the next job runs when that is back.
//!
//! `cargo xtask test virtual` has two machines; elsewhere these pass without having looked.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::machines::{Clocks, HOSTS, Other, on_both};
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Job, Outcome, Running, Scene};

/// Emulated processors are slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// In milliseconds.
const SLICE: &str = "100";
/// Where each machine has what its process of a job has written.
const WRITTEN: [&str; 2] = ["/tmp/stretches-a", "/tmp/stretches-b"];
/// Nanoseconds that are less than a slice: a processor that was elsewhere.
const BREAK: i64 = 20_000_000;
/// The first wire carries daemons and rxe0, the second siw0.
const DATABASE: &str = "\
    roce type=verbs device=rxe0\n\
    iwarp type=verbs device=siw0\n\
    fast type=ethernet netdev=wire1 trusted=yes\n\
    wary type=ethernet netdev=wire1\n\
    one address=10.9.0.1 cores=1 group=all network=agent-udp,roce,iwarp,fast,wary\n\
    two address=10.9.0.2 cores=1 group=all network=agent-udp,roce,iwarp,fast,wary\n";

/// A job of one process on each machine.
fn job(cluster: &Cluster<'_>, uid: u32, network: &str, words: &[&str]) -> Job {
    let options = format!("-scored=all,nodes=2x1,network={network},stat");
    let job = cluster.command(uid, "scrun", HOSTS[0]).arg(&options).args(words);
    job.watchdog(PATIENCE)
}

fn program(scene: &Scene, name: &str) -> String {
    scene.program(name).unwrap().to_str().unwrap().to_owned()
}

/// Those that there are: soft iWARP cannot be built everywhere.
fn networks<'a>(all: &[&'a str]) -> impl Iterator<Item = &'a str> {
    let has_iwarp = Path::new("/sys/class/infiniband/siw0").exists();
    all.iter().copied().filter(move |name| has_iwarp || *name != "iwarp")
}

/// No process of the job is left there.
fn is_gone_from(other: &mut Other, name: &str) {
    let begin = Instant::now();
    while !other.sh(&format!("pidof {name}")).is_empty() {
        assert!(begin.elapsed() < PATIENCE, "{name} runs on: {}", other.sh("ps"));
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn what_is_scattered_comes_back_from_the_other_machine_over_every_network() {
    on_both(DATABASE, &["-page", "off"], |_, cluster, _| {
        let bytes: Vec<u8> =
            (0..200_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let rows = [
            ("roce", &["network set 0 (roce): RDMA by rxe0 port 1, RoCE"][..]),
            ("iwarp", &["network set 0 (iwarp): RDMA by siw0"]),
            ("verbs", &["network set 0 (verbs): RDMA by rxe0"]),
            ("agent-udp", &["network set 0 (agent-udp): UDP over wire0"]),
            ("fast", &["network set 0 (fast): AF_"]),
            (
                "wary",
                &[
                    "network wary: UDP is used instead of raw Ethernet: host one (and 1 more): \
                     scorehosts.db does not mark it trusted",
                    "network set 0 (wary): UDP over wire1",
                ],
            ),
            // These adapters are no hardware.
            ("auto", &["network set 0 (auto): UDP over wire0"]),
        ];
        for network in networks(&rows.map(|row| row.0)) {
            let says = rows.iter().find(|row| row.0 == network).unwrap().1;
            let words = ["scatter", "==", "system", "cat", "==", "gather", "-node", "1"];
            let outcome = job(cluster, ALICE, network, &words).input(bytes.clone()).run();
            let outcome = outcome.expect(0).says(says);
            assert!(outcome.stdout == bytes, "{network}: {} bytes", outcome.stdout.len());
            println!("{network}: {:?}", outcome.elapsed);
        }
    });
}

/// From when until when a job ran without a break.
type Stretch = (i64, i64);

/// The stretches of a job that has written them to a file on each machine, by the clock of the
/// first.
fn stretches(other: &mut Other, clocks: &Clocks, file: &str) -> [Vec<Stretch>; 2] {
    let there = other.sh(&format!("cat {file} && rm -f {file}"));
    let here = std::fs::read_to_string(file).unwrap();
    std::fs::remove_file(file).unwrap();
    let read = |text: &str, time: &dyn Fn(i64) -> i64| {
        let pair = |line: &str| {
            let (from, to) = line.split_once(' ')?;
            Some((time(from.parse().ok()?), time(to.parse().ok()?)))
        };
        text.lines().filter_map(pair).collect()
    };
    [read(&here, &|time| time), read(&there, &|time| clocks.here(time))]
}

/// Without breaks that are no slice of another's.
fn slices(stretches: &[Stretch]) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    for (from, to) in stretches.iter().copied() {
        match all.last_mut() {
            Some(last) if from - last.1 < BREAK => last.1 = to,
            _ => all.push((from, to)),
        }
    }
    all
}

/// How long both last, if they meet.
fn common(one: &Stretch, other: &Stretch) -> i64 {
    (one.1.min(other.1) - one.0.max(other.0)).max(0)
}

/// For each stretch here the one there that it has most in common with.
fn pairs<'a>(here: &'a [Stretch], there: &'a [Stretch]) -> Vec<(&'a Stretch, &'a Stretch)> {
    let best = |one| there.iter().map(|two| (common(one, two), two)).max_by_key(|(time, _)| *time);
    let pair = |one| Some((one, best(one).filter(|(time, _)| *time > 0)?.1));
    here.iter().filter_map(pair).collect()
}

fn tell(what: &str, mut times: Vec<i64>) {
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).map_or(0, |time| time / 1000);
    println!("{what}: {} {} {} us (50, 90, 99 %) of {}", at(50), at(90), at(99), times.len());
}

/// For `HARNESS_SLICES_SECONDS`; a soak has more of them.
#[test]
fn jobs_take_turns_on_both_machines_at_once_and_lose_nothing() {
    let seconds = std::env::var("HARNESS_SLICES_SECONDS").ok();
    let seconds: u64 = seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(6);
    on_both(DATABASE, &["-page", "off", "-ts", SLICE], |scene, cluster, other| {
        let [turns, traffic] = ["turns", "traffic"].map(|name| program(scene, name));
        let mut clocks = Clocks::default();
        let spinners = [(ALICE, WRITTEN[0]), (BOB, WRITTEN[1])].map(|(uid, file)| {
            let words = [&turns, &seconds.to_string(), "=:", file];
            let watchdog = PATIENCE + Duration::from_secs(3 * seconds);
            job(cluster, uid, "agent-udp", &words).watchdog(watchdog).start()
        });
        let begin = Instant::now();
        let mut messages = 0;
        while messages == 0 || begin.elapsed() < Duration::from_secs(seconds) {
            for network in networks(&["roce", "iwarp", "agent-udp"]) {
                clocks.look(other);
                let seed = messages.to_string();
                let outcome = job(cluster, ALICE, network, &[&traffic, "300", &seed]).run();
                assert_eq!(outcome.text(), "all in order\n".repeat(2), "{network}: {outcome}");
                messages += 600;
            }
        }
        for spinner in spinners {
            let _ = spinner.wait().expect(0);
        }
        clocks.look(other);
        println!("{messages} messages in order");
        let [mine, others] = WRITTEN.map(|file| stretches(other, &clocks, file));
        let (mut starts, mut stops) = (Vec::new(), Vec::new());
        for both in [&mine, &others] {
            let [here, there] = both.each_ref().map(|all| slices(all));
            let pairs = pairs(&here, &there);
            let ran = |list: &[Stretch]| list.iter().map(|(from, to)| to - from).sum::<i64>();
            let shared: i64 = pairs.iter().map(|(one, two)| common(one, two)).sum();
            let (ran, count) = ([ran(&here), ran(&there)], [here.len(), there.len()]);
            println!("{count:?} slices of {ran:?} ns, {shared} ns of it at once");
            assert!(count[0] > 5, "{here:?}");
            starts.extend(pairs.iter().map(|(one, two)| (one.0 - two.0).abs()));
            stops.extend(pairs.iter().map(|(one, two)| (one.1 - two.1).abs()));
        }
        // Did the machines know nothing of each other, a job would meet the other one as often.
        let time = |here: &[Stretch], there: &[Stretch]| -> i64 {
            here.iter().flat_map(|one| there.iter().map(|two| common(one, two))).sum()
        };
        let same = time(&mine[0], &mine[1]) + time(&others[0], &others[1]);
        let crossed = time(&mine[0], &others[1]) + time(&others[0], &mine[1]);
        println!("each with itself for {same} ns, with the other for {crossed} ns");
        assert!(same > 2 * crossed, "{same} {crossed}");
        for (one, two) in mine.iter().zip(&others) {
            let beside = one.iter().find(|one| two.iter().any(|two| common(one, two) > 0));
            assert_eq!(beside, None, "both jobs run on a machine");
        }
        tell("skew of starts", starts);
        tell("skew of stops", stops);
        cluster.strike(HOSTS[0], Signal::SIGTERM);
        cluster.until_logged(HOSTS[0], " stops of jobs");
        let log = cluster.log(HOSTS[0]);
        println!("{}", log.lines().find(|line| line.contains(" stops of jobs")).unwrap());
    });
}

#[test]
fn who_cannot_go_on_is_named_with_both_machines_and_nobody_else_is_accused() {
    on_both(DATABASE, &["-page", "off", "-ts", SLICE], |scene, cluster, _| {
        let deadlock = program(scene, "deadlock");
        for network in networks(&["roce", "iwarp"]) {
            let outcome = job(cluster, ALICE, network, &[&deadlock, "mutual"]).run();
            let _ = outcome.expect(35).says(&[
                "deadlock: no process of deadlock can go on",
                "node 0 on host one waits for a message since",
                "node 1 on host two waits for a message since",
                "sent 3, the last to node 1; received 3, the last from node 1",
            ]);
            let outcome = job(cluster, ALICE, network, &[&deadlock, "late"]).run().expect(0);
            assert_eq!(outcome.sorted(), ["node 0 went on", "node 1 went on"], "{outcome}");
        }
    });
}

/// Waits until the server has said that often that the other host is up.
fn is_up(cluster: &Cluster<'_>, times: usize) {
    let begin = Instant::now();
    while cluster.log(HOSTS[0]).matches("host two is up").count() < times {
        assert!(begin.elapsed() < PATIENCE, "{}", cluster.log(HOSTS[0]));
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_machine_that_is_lost_is_named_and_has_jobs_again_when_it_is_back() {
    on_both(DATABASE, &["-page", "off"], |scene, cluster, other| {
        let [game, traffic] = ["pingpong", "traffic"].map(|name| program(scene, name));
        let start = |cluster: &Cluster<'_>| -> Running {
            let mut game = job(cluster, BOB, "agent-udp", &[&game, "/never"]).start();
            game.wait_for("round ", 2);
            game
        };
        let is_lost = |outcome: Outcome, why: &str| {
            assert_ne!(outcome.code, 0, "{outcome}");
            let _ = outcome.says(&["host two is lost", why]);
        };
        let running = start(cluster);
        other.kill_scored();
        is_lost(running.wait(), "connection");
        is_gone_from(other, "pingpong");
        other.start_scored();
        is_up(cluster, 2);
        let running = start(cluster);
        let begin = Instant::now();
        other.sh("ip link set wire0 down");
        is_lost(running.wait(), "nothing was heard");
        println!("lost: {:?}", begin.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(50), "it took {:?}", begin.elapsed());
        is_gone_from(other, "pingpong");
        other.sh("ip link set wire0 up");
        // It queues until the machine is back, where it was not back before it was given up.
        let outcome = job(cluster, ALICE, "roce,wait", &[&traffic, "200", "1"]).run().expect(0);
        assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
        println!("back: {:?}", begin.elapsed());
    });
}

/// Where the second machine runs what it is told, as a remote shell does: the line, then its input.
const SHELL: &str = "nc -ll -p 7200 -e sh -c 'IFS= read -r line; exec sh -c \"$line\"' \
                     > /dev/null 2>&1 < /dev/null & echo $!";
const REMOTE_SHELL: &str = "#!/bin/sh\nshift\n{ echo \"$*\"; exec cat; } | exec nc 10.9.1.2 7200\n";

#[test]
fn whoever_has_a_remote_shell_needs_no_service() {
    on_both(DATABASE, &["-page", "off"], |scene, _, other| {
        let shell = other.sh(SHELL);
        let remote = scene.file("rsh", REMOTE_SHELL);
        std::fs::set_permissions(&remote, std::fs::Permissions::from_mode(0o755)).unwrap();
        let traffic = program(scene, "traffic");
        // A directory that both machines have.
        let database = scene.dir().join("db");
        let options = format!("-file={},nodes=2x1,network=roce,stat", database.display());
        let line = format!("cd / && exec scrun {options} {traffic} 100 1");
        let job = scene.sh(&line).env("SCORE_RSH", remote.to_str().unwrap());
        let outcome = job.watchdog(PATIENCE).run().expect(0);
        assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
        let _ = outcome.says(&["network set 0 (roce): RDMA by rxe0"]);
        is_gone_from(other, "traffic");
        other.sh(&format!("kill {shell}"));
    });
}
