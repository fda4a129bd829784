//! Several jobs share the processors of a host, and none affects the results of another. The jobs
//! alternate and never run at the same time, even if their processes ignore signals, create
//! sessions or stop themselves. ^Z, sc_sleep and unread output suspend a job. If a job or daemon
//! dies, it leaves no process and no file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::test_env::is_installed;
use score_tests::{Outcome, Running, TestEnv, binaries, skip};

const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a cluster of one host with `cores` processors, and slices of `slice` milliseconds.
fn start_cluster<'a>(env: &'a TestEnv, cores: u32, slice: &str) -> Option<Cluster<'a>> {
    let database = format!("a address=127.0.0.1 cores={cores} group=all\n");
    Cluster::start_with_options(env, &["a"], &database, &["-ts", slice])
}

/// Copies the helper program so that every user may run it.
fn copy_turns_program(env: &TestEnv) -> Option<PathBuf> {
    let built = env.test_program("run_intervals")?;
    let path = env.dir().join("run_intervals");
    std::fs::copy(built, &path).unwrap();
    Some(path)
}

fn start(cluster: &Cluster<'_>, uid: u32, options: &str, args: &[&str]) -> Running {
    let options = format!("-scored=all,{options}");
    cluster.command(uid, "scrun", "a").args(&[&options]).args(args).start()
}

/// Returns the intervals in which each spinner of a job ran.
fn run_intervals(outcome: &Outcome) -> Vec<(u64, u64)> {
    assert_eq!(outcome.code, 0, "{outcome}");
    let text = outcome.text();
    let pair = |line: &str| {
        let (from, to) = line.split_once(' ')?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// Checks that two jobs took turns: both ran more than three times, and never at the same time.
fn assert_alternate(first: &[(u64, u64)], second: &[(u64, u64)]) {
    let end = |list: &[(u64, u64)]| list.iter().map(|interval| interval.1).max().unwrap();
    let begin = |list: &[(u64, u64)]| list.iter().map(|interval| interval.0).min().unwrap();
    let shared = begin(first).max(begin(second))..end(first).min(end(second));
    for list in [first, second] {
        let within = list.iter().filter(|interval| shared.contains(&interval.0)).count();
        assert!(within > 3, "{within} turns in {} ms", (shared.end - shared.start) / 1_000_000);
    }
    for (from, to) in first {
        let overlapping = second.iter().find(|interval| interval.0 < *to && *from < interval.1);
        assert_eq!(overlapping, None, "both run: {from} to {to}");
    }
}

// Promise (time-sharing): With real processes: two jobs on one processor never run at the same
// time, whatever their processes ignore, fork, or do with sessions and threads.
#[test]
fn jobs_on_one_processor_never_run_at_once_even_if_they_ignore_signals() {
    let env = TestEnv::new();
    let Some(program) = copy_turns_program(&env) else { return };
    let Some(cluster) = start_cluster(&env, 1, "10") else { return };
    let program = program.to_str().unwrap();
    let plain = start(&cluster, ALICE, "nodes=1", &[program, "6"]);
    let stubborn = start(&cluster, BOB, "nodes=1", &[program, "6", "stubborn"]);
    let (plain, stubborn) = (plain.wait(), stubborn.wait());
    let (plain, stubborn) = (run_intervals(&plain), run_intervals(&stubborn));
    assert_alternate(&plain, &stubborn);
}

// Promise (time-sharing): With real processes: equal jobs rotate, and continue when the shepherd of
// one is killed.
#[test]
fn jobs_that_take_turns_continue_if_the_shepherd_of_one_job_is_killed() {
    let env = TestEnv::new();
    let Some(program) = copy_turns_program(&env) else { return };
    let Some(mut cluster) = start_cluster(&env, 1, "10") else { return };
    let program = program.to_str().unwrap();
    let mut victim = cluster.scrun(BOB, "a", "nodes=1", "echo up; while :; do :; done").start();
    victim.wait_for("up", 1);
    let shepherd = env.processes().into_iter().find(|process| process.is_shepherd()).unwrap();
    let others = [ALICE, ALICE].map(|uid| {
        let mut job = start(&cluster, uid, "nodes=1", &[program, "6"]);
        job.wait_for("up", 1);
        job
    });
    // By then the jobs take turns, in a rotation or by the scheduler's orders.
    sleep(Duration::from_secs(1));
    shepherd.signal(Signal::SIGKILL);
    assert_ne!(victim.wait().code, 0);
    let [first, second] = others.map(Running::wait);
    assert_alternate(&run_intervals(&first), &run_intervals(&second));
    cluster.signal_daemon("a", Signal::SIGTERM);
    cluster.wait_for_log("a", " stops of jobs");
    let log = cluster.log("a");
    let summary = log.lines().find(|line| line.contains(" stops of jobs")).unwrap();
    let words: Vec<&str> = summary.split_whitespace().collect();
    // The line is "N stops of jobs, M of them in rotations".
    let index = words.iter().position(|word| *word == "jobs,").unwrap();
    let in_turns: u64 = words[index + 1].parse().expect(summary);
    assert!(in_turns > 10, "{summary}");
}

// Promise (time-sharing): Processors are kept from sleeping as long as jobs share them, and no
// longer, if the system supports it.
#[test]
fn processors_stay_awake_as_long_as_jobs_take_turns() {
    const LATENCY: &str = "/dev/cpu_dma_latency";
    if File::options().write(true).open(LATENCY).is_err() {
        return eprintln!("SKIPPED: {LATENCY} cannot be opened for writing");
    }
    let env = TestEnv::new();
    let Some(cluster) = start_cluster(&env, 1, "10") else { return };
    // Returns the limit of the whole machine in microseconds. Daemons of other tests also set it.
    let limit_us = || {
        let mut limit_us = [0; 4];
        File::open(LATENCY).and_then(|mut file| file.read_exact(&mut limit_us)).unwrap();
        i32::from_ne_bytes(limit_us)
    };
    let start = |uid| {
        let mut job = cluster.scrun(uid, "a", "nodes=1", "echo up; while :; do :; done").start();
        job.wait_for("up", 1);
        job
    };
    let first = start(ALICE);
    assert!(!cluster.log("a").contains("stay awake"), "a job that is alone does not stop");
    let second = start(BOB);
    cluster.wait_for_log("a", "the processors stay awake");
    assert_eq!(limit_us(), 0);
    first.signal(Signal::SIGTERM);
    assert_ne!(first.wait().code, 0);
    cluster.wait_for_log("a", "the processors may sleep");
    second.signal(Signal::SIGTERM);
    assert_ne!(second.wait().code, 0);
}

// Promise (time-sharing): A process that stopped itself is not continued by the scheduler.
#[test]
fn a_process_that_stopped_itself_stays_stopped() {
    let env = TestEnv::new();
    let Some(program) = copy_turns_program(&env) else { return };
    let Some(cluster) = start_cluster(&env, 2, "10") else { return };
    let program = program.to_str().unwrap();
    let other = start(&cluster, ALICE, "nodes=2", &[program, "3"]);
    let outcome = start(&cluster, BOB, "nodes=2", &[program, "2", "stopped"]).wait();
    assert_eq!(outcome.code, 0, "{outcome}");
    let text = outcome.text();
    let time_of = |label: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(label));
        line.and_then(|time| time.trim().parse::<u64>().ok()).expect(label)
    };
    assert!(time_of("wakes") <= time_of("woken"), "{text}");
    assert_eq!(other.wait().code, 0);
}

/// Moves a process of many threads between two cgroups for `seconds` seconds. Meanwhile the forks
/// of the whole host wait after they have got their process ids. Returns `None` if this user cannot
/// create cgroups.
fn delay_forks(program: &str, seconds: u32) -> Option<()> {
    let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let root = root.into_iter().find(|root| root.join("cgroup.procs").exists())?;
    let groups = ["a", "b"].map(|name| format!("score-test-{}-{name}", std::process::id()));
    let groups = groups.map(|name| root.join(name));
    for group in &groups {
        std::fs::create_dir(group).ok()?;
    }
    let mut moved = Command::new(program).args([&seconds.to_string(), "threads"]).spawn().ok()?;
    let pid = moved.id().to_string();
    while moved.try_wait().unwrap().is_none() {
        for group in &groups {
            // The process may have ended by now.
            let _ = std::fs::write(group.join("cgroup.procs"), &pid);
            sleep(Duration::from_micros(300));
        }
    }
    for group in &groups {
        std::fs::remove_dir(group).unwrap();
    }
    Some(())
}

#[test]
fn a_process_that_did_not_exist_yet_when_its_job_was_stopped_is_resumed() {
    let env = TestEnv::new();
    let Some(program) = copy_turns_program(&env) else { return };
    let Some(cluster) = start_cluster(&env, 1, "10") else { return };
    let program = program.to_str().unwrap();
    let jobs = [ALICE, BOB].map(|uid| start(&cluster, uid, "nodes=1", &[program, "5", "forks"]));
    if delay_forks(program, 5).is_none() {
        eprintln!("SKIPPED: cgroups cannot be created here");
    }
    for outcome in jobs.map(Running::wait) {
        assert_eq!(outcome.code, 0, "{outcome}");
    }
}

// Promise (time-sharing): A new job does not wait for the end of a slice.
#[test]
fn a_newcomer_does_not_wait_for_the_end_of_a_slice() {
    let env = TestEnv::new();
    let Some(cluster) = start_cluster(&env, 1, "20000") else { return };
    let spin = "echo up; while :; do :; done";
    let holders = [ALICE, ALICE].map(|uid| {
        let mut job = cluster.scrun(uid, "a", "nodes=1", spin).start();
        job.wait_for("up", 1);
        job
    });
    let started_at = Instant::now();
    let newcomer = cluster.scrun(BOB, "a", "nodes=1", "echo here").run();
    assert_eq!(newcomer.expect_code(0).text(), "here\n");
    // If the job had to wait, two slices would run first.
    assert!(started_at.elapsed() < Duration::from_secs(15), "{:?}", started_at.elapsed());
    for job in &holders {
        job.signal(Signal::SIGTERM);
    }
    for job in holders {
        assert_ne!(job.wait().code, 0);
    }
}

// Promise (time-sharing): If a job has a process for each processor of a host, each is bound to
// one; `nobind` disables this.
#[test]
fn each_process_is_bound_to_a_processor_when_there_is_one_for_each() {
    let env = TestEnv::new();
    let affinity = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let processors: Vec<usize> =
        (0..CpuSet::count()).filter(|at| affinity.is_set(*at).unwrap()).collect();
    if processors.len() < 2 {
        return eprintln!("SKIPPED: one processor only");
    }
    let Some(cluster) = start_cluster(&env, processors.len() as u32, "40") else { return };
    let list = "sed -n 's/Cpus_allowed_list:.//p' /proc/self/status";
    let allowed_processors = |options: String| {
        let outcome = cluster.scrun(ALICE, "a", &options, list).run();
        let text = outcome.expect_code(0).text();
        let mut lists: Vec<String> = text.lines().map(str::to_owned).collect();
        lists.sort();
        lists
    };
    let one_per_processor = format!("nodes={}", processors.len());
    let mut expected: Vec<String> = processors.iter().map(usize::to_string).collect();
    expected.sort();
    assert_eq!(allowed_processors(one_per_processor.clone()), expected);
    // A job may run on any processor if it requests this, or if it leaves some processors free.
    let unbound = allowed_processors("nodes=1".to_owned()).remove(0);
    assert_ne!(unbound, expected[0]);
    assert_eq!(
        allowed_processors(format!("{one_per_processor},nobind")),
        vec![unbound; processors.len()]
    );
}

// Promise (time-sharing): Jobs whose programs use OpenMP never run at the same time on a host.
#[test]
fn jobs_whose_threads_use_all_processors_never_run_at_once() {
    let env = TestEnv::new();
    if !is_installed("gcc") {
        return skip("openmp", "gcc is not installed");
    }
    let source = binaries::root().join("tests/programs/run_intervals.c");
    let program = env.dir().join("openmp_intervals").display().to_string();
    let scorecc = env.command(binaries::program("scorecc"));
    let options = ["-O1", "-Wl,--no-as-needed", "-fopenmp", "-o", &program];
    let _ = scorecc.args(&options).arg(source.to_str().unwrap()).run().expect_code(0);
    let Some(cluster) = start_cluster(&env, 2, "10") else { return };
    let jobs = [ALICE, BOB].map(|uid| start(&cluster, uid, "nodes=1", &[&program, "4"]));
    let [first, second] = jobs.map(|job| run_intervals(&job.wait()));
    assert_alternate(&first, &second);
}

// Promise (time-sharing): ^Z, output that is not read, and sc_sleep stop the whole job, which
// continues later; a job that yields leaves the processors to others.
#[test]
fn a_suspended_job_does_not_run_while_other_jobs_take_turns() {
    let env = TestEnv::new();
    let Some(cluster) = start_cluster(&env, 1, "10") else { return };
    let tick = "while :; do echo tick; sleep 0.05; done";
    let other = cluster.scrun(ALICE, "a", "nodes=1", "while :; do :; done").start();
    let mut job = cluster.scrun(BOB, "a", "nodes=1", tick).start();
    job.wait_for("tick", 3);
    job.signal(Signal::SIGTSTP);
    let is_ticking_shell =
        |process: &Process| process.command.contains("echo tick") && process.program() != "scrun";
    wait_until_stopped(&env, MIN_STOPPED_SAMPLES, is_ticking_shell);
    // Output that was sent before the stop may still arrive. scrun itself is also stopped.
    sleep(Duration::from_millis(200));
    let shown_len = job.stdout().len();
    sleep(Duration::from_millis(500));
    assert_eq!(job.stdout().len(), shown_len);
    job.signal(Signal::SIGCONT);
    let ticks = job.stdout().matches("tick").count();
    job.wait_for("tick", ticks + 3);
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
    other.signal(Signal::SIGTERM);
    assert_ne!(other.wait().code, 0);
}

/// In slices of 10 ms, this number of stopped samples in a row cannot result from time sharing.
const MIN_STOPPED_SAMPLES: u32 = 40;

/// Waits until processes that satisfy `predicate` are stopped in `sample_count` samples in a row. A
/// shell that waits for a stopped child of vfork(2) also counts, because it does not run.
fn wait_until_stopped(env: &TestEnv, sample_count: u32, predicate: impl Fn(&Process) -> bool) {
    let started_at = Instant::now();
    let mut stopped_samples = 0;
    while stopped_samples < sample_count {
        let matching: Vec<_> =
            env.processes().into_iter().filter(|process| predicate(process)).collect();
        let all_stopped =
            !matching.is_empty() && matching.iter().all(|one| matches!(one.state, 'T' | 'D'));
        stopped_samples = if all_stopped { stopped_samples + 1 } else { 0 };
        assert!(started_at.elapsed() < EVENT_TIMEOUT, "it runs: {matching:#?}");
        sleep(Duration::from_millis(5));
    }
}

// Promise of `a_suspended_job_does_not_run_while_other_jobs_take_turns`.
#[test]
fn a_job_is_suspended_while_its_output_is_not_read() {
    let env = TestEnv::new();
    let (mut reader, write) = std::io::pipe().unwrap();
    let args = ["-nodes=1", "sh", "-c", "seq 1 2000000; echo end >&2"];
    let job = env.scrun(&args).output_to(write).start();
    let is_writer = |process: &Process| {
        process.command.starts_with("seq ") || process.command.starts_with("sh -c seq")
    };
    wait_until_stopped(&env, MIN_STOPPED_SAMPLES, is_writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    let outcome = job.wait();
    assert_eq!(outcome.code, 0, "{outcome}");
    let lines = bytes.split(|byte| *byte == b'\n').count() - 1;
    assert_eq!((lines, bytes.ends_with(b"\n2000000\n")), (2_000_000, true));
}

// Promise of `a_suspended_job_does_not_run_while_other_jobs_take_turns`.
#[test]
fn sc_sleep_stops_the_whole_job_for_its_time() {
    let env = TestEnv::new();
    let Some(program) = copy_turns_program(&env) else { return };
    let job = env.scrun(&["-nodes=2", program.to_str().unwrap(), "6", "sleep"]).start();
    // The job is alone, so only its call of sc_sleep can stop it.
    wait_until_stopped(&env, 5, |process| process.program() == "run_intervals");
    let outcome = job.wait();
    assert_eq!(outcome.code, 0, "{outcome}");
    assert_eq!(outcome.text().matches("slept 0").count(), 2, "{outcome}");
    assert!(outcome.elapsed >= Duration::from_secs(6), "{outcome}");
}

// Promise of `a_suspended_job_does_not_run_while_other_jobs_take_turns`.
#[test]
fn a_job_that_yields_all_the_time_gives_the_processor_to_other_jobs() {
    let env = TestEnv::new();
    let Some(program) = copy_turns_program(&env) else { return };
    let Some(cluster) = start_cluster(&env, 1, "10") else { return };
    let program = program.to_str().unwrap();
    let yielding = start(&cluster, ALICE, "nodes=1", &[program, "3", "yield"]);
    let spinning = start(&cluster, BOB, "nodes=1", &[program, "2"]);
    let (spinning, yielding) = (run_intervals(&spinning.wait()), run_intervals(&yielding.wait()));
    let (begin, end) = (spinning[0].0, spinning.last().unwrap().1);
    let time_within = |list: &[(u64, u64)]| -> u64 {
        list.iter().map(|(from, to)| (*to).min(end).saturating_sub((*from).max(begin))).sum()
    };
    assert!(yielding.len() > 3, "{yielding:?}");
    // With fair shares the run times would be equal.
    assert!(
        2 * time_within(&yielding) < time_within(&spinning),
        "{} of {}",
        time_within(&yielding),
        time_within(&spinning)
    );
}

// Promise (time-sharing): A job that has nothing to do leaves each of its slices to others, also if
// it was busy and idle several times before.
#[test]
fn an_idle_job_yields_each_of_its_slices_to_other_jobs() {
    const SLICE: u64 = 200_000_000;
    let env = TestEnv::new();
    let Some(cluster) = start_cluster(&env, 1, "200") else { return };
    let Some(turns_program) = copy_turns_program(&env) else { return };
    let turns_program = turns_program.to_str().unwrap();
    let mut idle = start(&cluster, ALICE, "nodes=1", &[turns_program, "60", "idle"]);
    idle.wait_for("up", 1);
    let busy = start(&cluster, BOB, "nodes=1", &[turns_program, "6"]).wait();
    let stretches = run_intervals(&busy);
    // By then the idle job has nothing left to do.
    let begin = stretches[0].0 + 3_000_000_000;
    let gaps = stretches.windows(2).map(|pair| (pair[0].1, pair[1].0));
    let kept_slices = gaps.filter(|(from, to)| *from > begin && to - from > SLICE / 2).count();
    // If the idle job gave up no slices, it would have had seven slices.
    assert!(kept_slices < 3, "{kept_slices} were not given up: {stretches:?}");
    idle.signal(Signal::SIGTERM);
    assert_ne!(idle.wait().code, 0);
}

// Promise (time-sharing): If scored is killed while a job is stopped, no process and no directory
// is left.
#[test]
fn no_process_or_file_of_a_stopped_job_remains_after_scored_is_killed() {
    let env = TestEnv::new();
    let Some(mut cluster) = start_cluster(&env, 1, "20") else { return };
    let spin = "echo up; (trap '' TERM; setsid sh -c 'while :; do :; done') & while :; do :; done";
    let jobs = [ALICE, BOB].map(|uid| {
        let mut job = cluster.scrun(uid, "a", "nodes=1", spin).start();
        job.wait_for("up", 1);
        job
    });
    // One of the jobs is stopped at this moment.
    cluster.signal_daemon("a", Signal::SIGKILL);
    for job in jobs {
        assert_ne!(job.wait().code, 0);
    }
    let started_at = Instant::now();
    while let Some(left) = env.processes().first() {
        assert!(started_at.elapsed() < EVENT_TIMEOUT, "{left:?}");
        sleep(Duration::from_millis(10));
    }
    // The next scored removes the directories of the jobs.
    cluster.start_host("a");
}

// Promise (time-sharing): Pipelines of two jobs with slices of 10 ms pass 64 MiB to each node
// unchanged.
#[test]
fn a_pipeline_under_slices_loses_no_byte() {
    let env = TestEnv::new();
    let Some(cluster) = start_cluster(&env, 2, "10") else { return };
    for name in ["scatter", "system"] {
        if Path::new(&score_tests::binaries::program(name)).exists() {
            cluster.program(name);
        }
    }
    let lines = (0..4_000_000_u32).map(|number| format!("{number:015}\n"));
    let input: String = lines.collect();
    let args = ["-scored=all,nodes=2", "scatter", "==", "system", "cat"];
    let jobs = [ALICE, BOB].map(|uid| {
        let job = cluster.command(uid, "scrun", "a").args(&args).input(input.clone());
        job.timeout(Duration::from_secs(240)).start()
    });
    for job in jobs {
        let outcome = job.wait();
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        // Every node has all lines, in order.
        for half in split_by_node(&outcome.stdout) {
            assert!(half == input.as_bytes(), "a node has lost or changed something");
        }
    }
}

// Promise (time-sharing): Two jobs that write and read remote memory between hosts lose nothing
// with slices of 10 ms, nor if one is suspended for seconds.
#[test]
fn remote_memory_between_hosts_works_under_slices_and_a_suspension() {
    let env = TestEnv::new();
    let Some(built) = env.test_program("remote") else { return };
    let hosts = ["b", "a"];
    let database = "b address=127.0.0.1 cores=1 group=all\na address=127.0.0.2 cores=1 group=all\n";
    let Some(cluster) = Cluster::start_with_options(&env, &hosts, database, &["-ts", "10"]) else {
        return;
    };
    let program = env.dir().join("remote");
    std::fs::copy(built, &program).unwrap();
    let args = ["-scored=all,nodes=2x1", program.to_str().unwrap(), "200"];
    let jobs = [ALICE, BOB].map(|uid| {
        let job = cluster.command(uid, "scrun", "a").args(&args);
        job.timeout(Duration::from_secs(240)).start()
    });
    // One of the jobs is suspended for longer than any time-out of the network.
    sleep(Duration::from_millis(500));
    jobs[0].signal(Signal::SIGTSTP);
    sleep(Duration::from_secs(2));
    jobs[0].signal(Signal::SIGCONT);
    for job in jobs {
        let outcome = job.wait();
        assert_eq!(outcome.code, 0, "{outcome}");
        assert_eq!(outcome.text().matches("all right").count(), 2, "{outcome}");
    }
}

/// Splits merged output into the parts of two nodes, which have written the same lines.
fn split_by_node(bytes: &[u8]) -> [Vec<u8>; 2] {
    let mut halves = [Vec::new(), Vec::new()];
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        // All lines have equal lengths. The number in a line determines the offset of the line. The
        // line therefore belongs to the half that has reached this offset.
        let number: usize = std::str::from_utf8(line).unwrap().trim().parse().unwrap();
        let index = usize::from(halves[0].len() / line.len() != number);
        halves[index].extend_from_slice(line);
    }
    halves
}

// Promise (time-sharing): A host that does not stop a job in time is named; the job continues to
// run, and no processor has two jobs.
#[test]
fn a_host_that_does_not_answer_is_named_and_never_has_two_jobs() {
    let env = TestEnv::new();
    let Some(program) = copy_turns_program(&env) else { return };
    let hosts = ["b", "a"];
    let database = "b address=127.0.0.1 cores=1 group=all\na address=127.0.0.2 cores=1 group=all\n";
    let Some(mut cluster) = Cluster::start_with_options(&env, &hosts, database, &["-ts", "20"])
    else {
        return;
    };
    let program = program.to_str().unwrap();
    let mut jobs = [ALICE, BOB].map(|uid| {
        let options = "-scored=all,nodes=2x1";
        cluster.command(uid, "scrun", "a").args(&[options, program, "16"]).start()
    });
    jobs.iter_mut().for_each(|job| job.wait_for("up", 2));
    // The daemon of one host receives no orders for some time.
    cluster.signal_daemon("b", Signal::SIGSTOP);
    let started_at = Instant::now();
    while !cluster.log("a").contains("has not been stopped") {
        assert!(started_at.elapsed() < EVENT_TIMEOUT, "{}", cluster.log("a"));
        sleep(Duration::from_millis(20));
    }
    assert!(cluster.log("a").contains("on host b"), "{}", cluster.log("a"));
    cluster.signal_daemon("b", Signal::SIGCONT);
    let [first, second] = jobs.map(Running::wait);
    let is_named = first.stderr.contains("host b") || second.stderr.contains("host b");
    assert!(is_named, "{first}\n{second}");
    assert_alternate(&run_intervals(&first), &run_intervals(&second));
}

// Promise (time-sharing): A process with an attached debugger takes its slices like any other.
#[test]
fn jobs_take_turns_although_a_process_is_traced() {
    let env = TestEnv::new();
    let (Some(program), Some(tracer)) = (copy_turns_program(&env), env.test_program("tracer"))
    else {
        return;
    };
    let Some(cluster) = start_cluster(&env, 1, "20") else { return };
    let program = program.to_str().unwrap();
    let mut traced = start(&cluster, ALICE, "nodes=1", &[program, "12"]);
    traced.wait_for("up", 1);
    let process =
        env.wait_for_process("run_intervals", |process| process.program() == "run_intervals");
    let mut tracer = env.command(tracer).arg(&process.pid.to_string()).start();
    tracer.wait_for("attached", 1);
    let other = start(&cluster, BOB, "nodes=1", &[program, "3"]);
    let (traced, other) = (traced.wait(), other.wait());
    assert_alternate(&run_intervals(&traced), &run_intervals(&other));
    assert_eq!(tracer.wait().code, 0);
}

/// gdb stops the only process of a job. In slices of 40 ms the other job would be stopped half of
/// the time, but the first job gives up its slices.
#[test]
fn a_job_at_a_breakpoint_yields_its_slices_to_other_jobs_and_continues_later() {
    let env = TestEnv::new();
    if !is_installed("gdb") {
        return skip("time_sharing", "gdb is not installed");
    }
    let Some(program) = copy_turns_program(&env) else { return };
    let Some(cluster) = start_cluster(&env, 1, "40") else { return };
    let mut held = start(&cluster, ALICE, "nodes=1", &[program.to_str().unwrap(), "4"]);
    held.wait_for("up", 1);
    let process =
        env.wait_for_process("run_intervals", |process| process.program() == "run_intervals");
    let spin = "echo up; while :; do :; done";
    let mut other = start(&cluster, BOB, "nodes=1", &["system", "sh", "-c", spin]);
    other.wait_for("up", 1);
    let command = format!("sh -c {spin}");
    let spinner = env.wait_for_process("the spinner", |process| process.command == command);
    let stopped_looks = || {
        let look = |_: &u32| {
            sleep(Duration::from_millis(7));
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", spinner.pid)).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        (0..200).filter(look).count()
    };
    let wait = format!(
        "shell touch {0}/held; until test -e {0}/go; do sleep 0.02; done",
        env.dir().display()
    );
    let pid = process.pid.to_string();
    let gdb = env.command("gdb").args(&["-nx", "-batch", "-p", &pid, "-ex", &wait]).start();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !env.dir().join("held").exists() {
        assert!(Instant::now() < deadline, "gdb has not attached");
        sleep(Duration::from_millis(10));
    }
    let stopped = stopped_looks();
    std::fs::write(env.dir().join("go"), "").unwrap();
    println!("the other job was stopped in {stopped} of 200 samples");
    assert!(stopped < 60, "the other job was stopped in {stopped} of 200 samples");
    let _ = gdb.wait();
    assert_eq!(held.wait().code, 0);
    other.signal(Signal::SIGTERM);
    let _ = other.wait();
}
