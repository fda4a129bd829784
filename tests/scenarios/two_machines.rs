//! One job runs over two machines that share only two wires: each has its own kernel, clock, disk
//! and adapters. Scattered data arrives over every network. Jobs that take turns run on both
//! machines at once and lose nothing. A deadlock is reported with both hosts. If a host is lost,
//! scrun names it, and the next job runs when the host is back.
//!
//! `cargo xtask test virtual` has two machines. On other machines these tests pass without checking
//! anything.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::machines::{ClockMap, HOSTS, RemoteMachine, run_on_both};
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Job, Outcome, Running, TestEnv};

/// Emulated processors are slow.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);
/// The length of a slice in milliseconds.
const SLICE: &str = "100";
/// The files into which the processes of two jobs write their results on each machine.
const RESULT_FILES: [&str; 2] = ["/tmp/stretches-a", "/tmp/stretches-b"];
/// The longest gap that counts as running, in nanoseconds. Such a gap is less than a slice, so no
/// other job had the processor.
const MAX_STALL_INTERVAL_NS: i64 = 20_000_000;
/// The first wire carries the daemons' links and rxe0.
const DATABASE: &str = "\
    roce type=verbs device=rxe0\n\
    fast type=ethernet netdev=wire1 trusted=yes\n\
    wary type=ethernet netdev=wire1\n\
    one address=10.9.0.1 cores=1 group=all network=agent-udp,roce,fast,wary\n\
    two address=10.9.0.2 cores=1 group=all network=agent-udp,roce,fast,wary\n";

/// Makes a job of one process on each machine.
fn job(cluster: &Cluster<'_>, uid: u32, network: &str, args: &[&str]) -> Job {
    let options = format!("-scored=all,nodes=2x1,network={network},stat");
    let job = cluster.command(uid, "scrun", HOSTS[0]).arg(&options).args(args);
    job.timeout(JOB_TIMEOUT)
}

fn program(env: &TestEnv, name: &str) -> String {
    env.test_program(name).unwrap().to_str().unwrap().to_owned()
}

/// Waits until no process of the job is left on the remote machine.
fn wait_until_exited(remote_machine: &mut RemoteMachine, name: &str) {
    let started_at = Instant::now();
    while !remote_machine.sh(&format!("pidof {name}")).is_empty() {
        assert!(started_at.elapsed() < JOB_TIMEOUT, "{name} is left: {}", remote_machine.sh("ps"));
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn scattered_data_is_gathered_from_the_other_machine_over_every_network() {
    run_on_both(DATABASE, &["-page", "off"], |_, cluster, _| {
        let bytes: Vec<u8> =
            (0..200_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let cases = [
            ("roce", &["network set 0 (roce): RDMA by rxe0 port 1, RoCE"][..]),
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
            // Jobs do not use software adapters by default.
            ("auto", &["network set 0 (auto): UDP over wire0"]),
        ];
        for (network, expected) in cases {
            let args = ["scatter", "==", "system", "cat", "==", "gather", "-node", "1"];
            let outcome = job(cluster, ALICE, network, &args).input(bytes.clone()).run();
            let outcome = outcome.expect_code(0).assert_stderr(expected);
            assert!(outcome.stdout == bytes, "{network}: {} bytes", outcome.stdout.len());
            println!("{network}: {:?}", outcome.elapsed);
        }
    });
}

/// The start and the end of an interval in which a job ran without a break.
type RunInterval = (i64, i64);

/// Returns the intervals that the processes of a job have written to a file on each machine, by the
/// clock of the first machine.
fn run_intervals(
    remote_machine: &mut RemoteMachine,
    clocks: &ClockMap,
    file: &str,
) -> [Vec<RunInterval>; 2] {
    let remote_text = remote_machine.sh(&format!("cat {file} && rm -f {file}"));
    let local_text = std::fs::read_to_string(file).unwrap();
    std::fs::remove_file(file).unwrap();
    let read = |text: &str, to_local: &dyn Fn(i64) -> i64| {
        let pair = |line: &str| {
            let (from, to) = line.split_once(' ')?;
            Some((to_local(from.parse().ok()?), to_local(to.parse().ok()?)))
        };
        text.lines().filter_map(pair).collect()
    };
    [read(&local_text, &|time| time), read(&remote_text, &|time| clocks.to_local(time))]
}

/// Merges intervals across breaks that are too short for another job's slice.
fn merge_into_slices(stretches: &[RunInterval]) -> Vec<RunInterval> {
    let mut slices: Vec<RunInterval> = Vec::new();
    for (from, to) in stretches.iter().copied() {
        match slices.last_mut() {
            Some(last) if from - last.1 < MAX_STALL_INTERVAL_NS => last.1 = to,
            _ => slices.push((from, to)),
        }
    }
    slices
}

/// How long two intervals overlap, in nanoseconds.
fn overlap_ns(one: &RunInterval, other: &RunInterval) -> i64 {
    (one.1.min(other.1) - one.0.max(other.0)).max(0)
}

/// Finds for each local interval the remote interval that overlaps it most.
fn match_slices<'a>(
    local_slices: &'a [RunInterval],
    remote_slices: &'a [RunInterval],
) -> Vec<(&'a RunInterval, &'a RunInterval)> {
    let best_match = |one| {
        remote_slices.iter().map(|two| (overlap_ns(one, two), two)).max_by_key(|(time, _)| *time)
    };
    let pair = |one| Some((one, best_match(one).filter(|(time, _)| *time > 0)?.1));
    local_slices.iter().filter_map(pair).collect()
}

fn print_percentiles(what: &str, mut times: Vec<i64>) {
    times.sort_unstable();
    let percentile_us =
        |percent: usize| times.get(times.len() * percent / 100).map_or(0, |time| time / 1000);
    println!(
        "{what}: {} {} {} us (50, 90, 99 %) of {}",
        percentile_us(50),
        percentile_us(90),
        percentile_us(99),
        times.len()
    );
}

/// The test runs for `HARNESS_SLICES_SECONDS`. A soak runs it for longer.
#[test]
fn jobs_take_turns_on_both_machines_at_once_and_lose_no_message() {
    let seconds = std::env::var("HARNESS_SLICES_SECONDS").ok();
    let seconds: u64 = seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(6);
    run_on_both(DATABASE, &["-page", "off", "-ts", SLICE], |env, cluster, remote_machine| {
        let [turns, traffic] = ["run_intervals", "traffic"].map(|name| program(env, name));
        let mut clocks = ClockMap::default();
        let spinners = [(ALICE, RESULT_FILES[0]), (BOB, RESULT_FILES[1])].map(|(uid, file)| {
            let args = [&turns, &seconds.to_string(), "=:", file];
            let timeout = JOB_TIMEOUT + Duration::from_secs(3 * seconds);
            job(cluster, uid, "agent-udp", &args).timeout(timeout).start()
        });
        let started_at = Instant::now();
        let mut messages = 0;
        while messages == 0 || started_at.elapsed() < Duration::from_secs(seconds) {
            for network in ["roce", "agent-udp"] {
                clocks.sample(remote_machine);
                let seed = messages.to_string();
                let outcome = job(cluster, ALICE, network, &[&traffic, "300", &seed]).run();
                assert_eq!(outcome.text(), "all in order\n".repeat(2), "{network}: {outcome}");
                messages += 600;
            }
        }
        for spinner in spinners {
            let _ = spinner.wait().expect_code(0);
        }
        clocks.sample(remote_machine);
        println!("{messages} messages in order");
        let [alice_runs, bob_runs] =
            RESULT_FILES.map(|file| run_intervals(remote_machine, &clocks, file));
        let (mut starts, mut stops) = (Vec::new(), Vec::new());
        for runs in [&alice_runs, &bob_runs] {
            let [local_slices, remote_slices] = runs.each_ref().map(|all| merge_into_slices(all));
            let pairs = match_slices(&local_slices, &remote_slices);
            let total_ns =
                |list: &[RunInterval]| list.iter().map(|(from, to)| to - from).sum::<i64>();
            let shared_ns: i64 = pairs.iter().map(|(one, two)| overlap_ns(one, two)).sum();
            let (run_ns, slice_counts) = (
                [total_ns(&local_slices), total_ns(&remote_slices)],
                [local_slices.len(), remote_slices.len()],
            );
            println!("{slice_counts:?} slices of {run_ns:?} ns, {shared_ns} ns of it at once");
            assert!(slice_counts[0] > 5, "{local_slices:?}");
            starts.extend(pairs.iter().map(|(one, two)| (one.0 - two.0).abs()));
            stops.extend(pairs.iter().map(|(one, two)| (one.1 - two.1).abs()));
        }
        // If the machines switched independently, each job would overlap the other job as much as
        // itself.
        let overlap_sum = |local_runs: &[RunInterval], remote_runs: &[RunInterval]| -> i64 {
            local_runs
                .iter()
                .flat_map(|one| remote_runs.iter().map(|two| overlap_ns(one, two)))
                .sum()
        };
        let same_job_ns =
            overlap_sum(&alice_runs[0], &alice_runs[1]) + overlap_sum(&bob_runs[0], &bob_runs[1]);
        let other_job_ns =
            overlap_sum(&alice_runs[0], &bob_runs[1]) + overlap_sum(&bob_runs[0], &alice_runs[1]);
        println!("each with itself for {same_job_ns} ns, with the other for {other_job_ns} ns");
        assert!(same_job_ns > 2 * other_job_ns, "{same_job_ns} {other_job_ns}");
        for (one, two) in alice_runs.iter().zip(&bob_runs) {
            let overlapping = one.iter().find(|one| two.iter().any(|two| overlap_ns(one, two) > 0));
            assert_eq!(overlapping, None, "both jobs run on a machine");
        }
        print_percentiles("skew of starts", starts);
        print_percentiles("skew of stops", stops);
        cluster.signal_daemon(HOSTS[0], Signal::SIGTERM);
        cluster.wait_for_log(HOSTS[0], " stops of jobs");
        let log = cluster.log(HOSTS[0]);
        println!("{}", log.lines().find(|line| line.contains(" stops of jobs")).unwrap());
    });
}

#[test]
fn a_deadlock_is_reported_with_both_machines_and_a_job_that_can_continue_is_not() {
    run_on_both(DATABASE, &["-page", "off", "-ts", SLICE], |env, cluster, _| {
        let deadlock = program(env, "deadlock");
        let outcome = job(cluster, ALICE, "roce", &[&deadlock, "mutual"]).run();
        let _ = outcome.expect_code(35).assert_stderr(&[
            "deadlock: no process of deadlock can continue",
            "node 0 on host one waits for a message since",
            "node 1 on host two waits for a message since",
            "sent 3, the last to node 1; received 3, the last from node 1",
        ]);
        let outcome = job(cluster, ALICE, "roce", &[&deadlock, "late"]).run().expect_code(0);
        assert_eq!(outcome.sorted_lines(), ["node 0 went on", "node 1 went on"], "{outcome}");
    });
}

/// Waits until the server has reported `times` times that the other host is up.
fn wait_until_up(cluster: &Cluster<'_>, times: usize) {
    let started_at = Instant::now();
    while cluster.log(HOSTS[0]).matches("host two is up").count() < times {
        assert!(started_at.elapsed() < JOB_TIMEOUT, "{}", cluster.log(HOSTS[0]));
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_machine_that_is_lost_is_named_and_has_jobs_again_when_it_is_back() {
    run_on_both(DATABASE, &["-page", "off"], |env, cluster, remote_machine| {
        let [pingpong_program, traffic] = ["pingpong", "traffic"].map(|name| program(env, name));
        let start = |cluster: &Cluster<'_>| -> Running {
            let mut pingpong =
                job(cluster, BOB, "agent-udp", &[&pingpong_program, "/never"]).start();
            pingpong.wait_for("round ", 2);
            pingpong
        };
        let assert_lost = |outcome: Outcome, reason: &str| {
            assert_ne!(outcome.code, 0, "{outcome}");
            let _ = outcome.assert_stderr(&["host two is lost", reason]);
        };
        let running = start(cluster);
        remote_machine.kill_scored();
        assert_lost(running.wait(), "connection");
        wait_until_exited(remote_machine, "pingpong");
        remote_machine.start_scored();
        wait_until_up(cluster, 2);
        let running = start(cluster);
        let started_at = Instant::now();
        remote_machine.sh("ip link set wire0 down");
        assert_lost(running.wait(), "no data received");
        println!("lost: {:?}", started_at.elapsed());
        assert!(
            started_at.elapsed() < Duration::from_secs(50),
            "it took {:?}",
            started_at.elapsed()
        );
        wait_until_exited(remote_machine, "pingpong");
        remote_machine.sh("ip link set wire0 up");
        // The job waits in the queue until the machine is back, if the server has already declared
        // the machine lost.
        let outcome =
            job(cluster, ALICE, "roce,wait", &[&traffic, "200", "1"]).run().expect_code(0);
        assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
        println!("back: {:?}", started_at.elapsed());
    });
}

/// The remote shell of the second machine reads a command line, then the input of that command.
const SHELL: &str = "nc -ll -p 7200 -e sh -c 'IFS= read -r line; exec sh -c \"$line\"' \
                     > /dev/null 2>&1 < /dev/null & echo $!";
const REMOTE_SHELL: &str = "#!/bin/sh\nshift\n{ echo \"$*\"; exec cat; } | exec nc 10.9.1.2 7200\n";

#[test]
fn a_job_started_by_a_remote_shell_needs_no_service() {
    run_on_both(DATABASE, &["-page", "off"], |env, _, remote_machine| {
        let listener_pid = remote_machine.sh(SHELL);
        let remote_shell = env.write_script("rsh", REMOTE_SHELL);
        let traffic = program(env, "traffic");
        // The directory exists on both machines.
        let database = env.dir().join("db");
        let options = format!("-file={},nodes=2x1,network=roce,stat", database.display());
        let line = format!("cd / && exec scrun {options} {traffic} 100 1");
        let job = env.sh(&line).env("SCORE_RSH", remote_shell.to_str().unwrap());
        let outcome = job.timeout(JOB_TIMEOUT).run().expect_code(0);
        assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
        let _ = outcome.assert_stderr(&["network set 0 (roce): RDMA by rxe0"]);
        wait_until_exited(remote_machine, "traffic");
        remote_machine.sh(&format!("kill {listener_pid}"));
    });
}
