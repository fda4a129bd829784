//! Several jobs share the processors of a host: each runs as if it were alone, in turns, and never
//! beside another, whatever its processes do to signals, sessions and themselves. ^Z, sc_sleep and
//! output that nobody reads suspend a job. Who dies meanwhile leaves nothing.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Outcome, Running, Scene};

const PATIENCE: Duration = Duration::from_secs(30);

/// One host with so many processors, and slices of so many milliseconds.
fn cluster<'a>(scene: &'a Scene, cores: u32, slice: &str) -> Option<Cluster<'a>> {
    let database = format!("a address=127.0.0.1 cores={cores} group=all\n");
    Cluster::start_as(scene, &["a"], &database, &["-ts", slice])
}

/// The helper program where every user may run it.
fn turns(scene: &Scene) -> Option<PathBuf> {
    let built = scene.program("turns")?;
    let path = scene.dir().join("turns");
    std::fs::copy(built, &path).unwrap();
    Some(path)
}

fn start(cluster: &Cluster<'_>, uid: u32, options: &str, words: &[&str]) -> Running {
    let options = format!("-scored=all,{options}");
    cluster.command(uid, "scrun", "a").args(&[&options]).args(words).start()
}

/// The stretches of time in which each spinner of a job ran.
fn stretches(outcome: &Outcome) -> Vec<(u64, u64)> {
    assert_eq!(outcome.code, 0, "{outcome}");
    let text = outcome.text();
    let pair = |line: &str| {
        let (from, to) = line.split_once(' ')?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// Checks that two jobs ran in turns: both more than once, and never at the same time.
fn assert_in_turns(one: &[(u64, u64)], other: &[(u64, u64)]) {
    let end = |list: &[(u64, u64)]| list.iter().map(|stretch| stretch.1).max().unwrap();
    let begin = |list: &[(u64, u64)]| list.iter().map(|stretch| stretch.0).min().unwrap();
    let shared = begin(one).max(begin(other))..end(one).min(end(other));
    for list in [one, other] {
        let within = list.iter().filter(|stretch| shared.contains(&stretch.0)).count();
        assert!(within > 3, "{within} turns in {} ms", (shared.end - shared.start) / 1_000_000);
    }
    for (from, to) in one {
        let beside = other.iter().find(|stretch| stretch.0 < *to && *from < stretch.1);
        assert_eq!(beside, None, "both run: {from} to {to}");
    }
}

#[test]
fn jobs_on_the_same_processor_never_run_at_once_whatever_they_ignore() {
    let scene = Scene::new();
    let Some(program) = turns(&scene) else { return };
    let Some(cluster) = cluster(&scene, 1, "10") else { return };
    let program = program.to_str().unwrap();
    let plain = start(&cluster, ALICE, "nodes=1", &[program, "3"]);
    let stubborn = start(&cluster, BOB, "nodes=1", &[program, "3", "stubborn"]);
    let (plain, stubborn) = (plain.wait(), stubborn.wait());
    let (plain, stubborn) = (stretches(&plain), stretches(&stubborn));
    assert_in_turns(&plain, &stubborn);
}

#[test]
fn jobs_that_take_turns_go_on_when_the_shepherd_of_one_is_killed() {
    let scene = Scene::new();
    let Some(program) = turns(&scene) else { return };
    let Some(mut cluster) = cluster(&scene, 1, "10") else { return };
    let program = program.to_str().unwrap();
    let mut victim = cluster.scrun(BOB, "a", "nodes=1", "echo up; while :; do :; done").start();
    victim.wait_for("up", 1);
    let shepherd = scene.processes().into_iter().find(|one| one.is_shepherd()).unwrap();
    let others = [ALICE, ALICE].map(|uid| {
        let mut job = start(&cluster, uid, "nodes=1", &[program, "3"]);
        job.wait_for("up", 1);
        job
    });
    // They take turns by now, whether they do already without being asked or not.
    sleep(Duration::from_secs(1));
    shepherd.signal(Signal::SIGKILL);
    assert_ne!(victim.wait().code, 0);
    let [one, other] = others.map(Running::wait);
    assert_in_turns(&stretches(&one), &stretches(&other));
    cluster.strike("a", Signal::SIGTERM);
    cluster.until_logged("a", " stops of jobs");
    let log = cluster.log("a");
    let told = log.lines().find(|line| line.contains(" stops of jobs")).unwrap();
    let words: Vec<&str> = told.split_whitespace().collect();
    // "N stops of jobs, M of them in turns"
    let behind = words.iter().position(|word| *word == "jobs,").unwrap();
    let in_turns: u64 = words[behind + 1].parse().expect(told);
    assert!(in_turns > 10, "{told}");
}

#[test]
fn processors_stay_awake_as_long_as_jobs_take_turns() {
    const LATENCY: &str = "/dev/cpu_dma_latency";
    if File::options().write(true).open(LATENCY).is_err() {
        return eprintln!("SKIPPED: {LATENCY} is not to be had");
    }
    let scene = Scene::new();
    let Some(cluster) = cluster(&scene, 1, "10") else { return };
    let holds = |one: &Process| {
        let held = std::fs::read_dir(format!("/proc/{}/fd", one.pid)).into_iter().flatten();
        let mut files = held.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        one.is_scored() && files.any(|file| file == Path::new(LATENCY))
    };
    let is_awake = || scene.processes().iter().any(holds);
    let until_awake = |awake| {
        let end = Instant::now() + PATIENCE;
        while is_awake() != awake {
            assert!(Instant::now() < end, "awake should be {awake}");
            sleep(Duration::from_millis(20));
        }
    };
    let [first, second] = [ALICE, BOB].map(|uid| {
        assert!(!is_awake(), "a job that is alone does not stop");
        let mut job = cluster.scrun(uid, "a", "nodes=1", "echo up; while :; do :; done").start();
        job.wait_for("up", 1);
        job
    });
    until_awake(true);
    first.signal(Signal::SIGTERM);
    assert_ne!(first.wait().code, 0);
    until_awake(false);
    second.signal(Signal::SIGTERM);
    assert_ne!(second.wait().code, 0);
}

#[test]
fn who_has_stopped_itself_is_left_so() {
    let scene = Scene::new();
    let Some(program) = turns(&scene) else { return };
    let Some(cluster) = cluster(&scene, 2, "10") else { return };
    let program = program.to_str().unwrap();
    let other = start(&cluster, ALICE, "nodes=2", &[program, "3"]);
    let outcome = start(&cluster, BOB, "nodes=2", &[program, "2", "stopped"]).wait();
    assert_eq!(outcome.code, 0, "{outcome}");
    let text = outcome.text();
    let time = |what: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(what));
        line.and_then(|time| time.trim().parse::<u64>().ok()).expect(what)
    };
    assert!(time("wakes") <= time("woken"), "{text}");
    assert_eq!(other.wait().code, 0);
}

#[test]
fn a_newcomer_does_not_wait_for_the_end_of_a_slice() {
    let scene = Scene::new();
    let Some(cluster) = cluster(&scene, 1, "20000") else { return };
    let spin = "echo up; while :; do :; done";
    let holders = [ALICE, ALICE].map(|uid| {
        let mut job = cluster.scrun(uid, "a", "nodes=1", spin).start();
        job.wait_for("up", 1);
        job
    });
    let begin = Instant::now();
    let newcomer = cluster.scrun(BOB, "a", "nodes=1", "echo here").run();
    assert_eq!(newcomer.expect(0).text(), "here\n");
    // Two slices are before it, if it has to wait.
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    for job in &holders {
        job.signal(Signal::SIGTERM);
    }
    for job in holders {
        assert_ne!(job.wait().code, 0);
    }
}

#[test]
fn with_a_process_for_each_processor_each_keeps_to_one() {
    let scene = Scene::new();
    let mine = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let all: Vec<usize> = (0..CpuSet::count()).filter(|at| mine.is_set(*at).unwrap()).collect();
    if all.len() < 2 {
        return eprintln!("SKIPPED: one processor only");
    }
    let Some(cluster) = cluster(&scene, all.len() as u32, "40") else { return };
    let list = "sed -n 's/Cpus_allowed_list:.//p' /proc/self/status";
    let lists = |options: String| {
        let outcome = cluster.scrun(ALICE, "a", &options, list).run();
        let text = outcome.expect(0).text();
        let mut lists: Vec<String> = text.lines().map(str::to_owned).collect();
        lists.sort();
        lists
    };
    let many = format!("nodes={}", all.len());
    let mut each: Vec<String> = all.iter().map(usize::to_string).collect();
    each.sort();
    assert_eq!(lists(many.clone()), each);
    // Whoever wants that, or leaves some to others, may run anywhere.
    let free = lists("nodes=1".to_owned()).remove(0);
    assert_ne!(free, each[0]);
    assert_eq!(lists(format!("{many},nobind")), vec![free; all.len()]);
}

#[test]
fn a_suspended_job_stands_still_while_others_take_turns() {
    let scene = Scene::new();
    let Some(cluster) = cluster(&scene, 1, "10") else { return };
    let tick = "while :; do echo tick; sleep 0.05; done";
    let other = cluster.scrun(ALICE, "a", "nodes=1", "while :; do :; done").start();
    let mut job = cluster.scrun(BOB, "a", "nodes=1", tick).start();
    job.wait_for("tick", 3);
    job.signal(Signal::SIGTSTP);
    let tick = |one: &Process| one.command.contains("echo tick") && one.program() != "scrun";
    stands_still(&scene, NO_SLICE, tick);
    // What was on its way when it was stopped; scrun itself stands still, too.
    sleep(Duration::from_millis(200));
    let shown = job.stdout().len();
    sleep(Duration::from_millis(500));
    assert_eq!(job.stdout().len(), shown);
    job.signal(Signal::SIGCONT);
    let ticks = job.stdout().matches("tick").count();
    job.wait_for("tick", ticks + 3);
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
    other.signal(Signal::SIGTERM);
    assert_ne!(other.wait().code, 0);
}

/// In slices of 10 ms, a process that is found stopped so often on end is not stopped by them.
const NO_SLICE: u32 = 40;

/// Waits until such processes are found stopped so many times on end. A shell that waits for a
/// child of vfork(2) that is stopped stands still, too.
fn stands_still(scene: &Scene, wanted: u32, which: impl Fn(&Process) -> bool) {
    let begin = Instant::now();
    let mut times = 0;
    while times < wanted {
        let all: Vec<_> = scene.processes().into_iter().filter(|one| which(one)).collect();
        let still = !all.is_empty() && all.iter().all(|one| matches!(one.state, 'T' | 'D'));
        times = if still { times + 1 } else { 0 };
        assert!(begin.elapsed() < PATIENCE, "it runs: {all:#?}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_job_whose_output_nobody_takes_is_suspended_and_goes_on_when_somebody_does() {
    let scene = Scene::new();
    let (mut read, write) = std::io::pipe().unwrap();
    let words = ["-nodes=1", "sh", "-c", "seq 1 2000000; echo end >&2"];
    let job = scene.scrun(&words).output_to(write).start();
    let shell =
        |one: &Process| one.command.starts_with("seq ") || one.command.starts_with("sh -c seq");
    stands_still(&scene, NO_SLICE, shell);
    let mut bytes = Vec::new();
    read.read_to_end(&mut bytes).unwrap();
    let outcome = job.wait();
    assert_eq!(outcome.code, 0, "{outcome}");
    let lines = bytes.split(|byte| *byte == b'\n').count() - 1;
    assert_eq!((lines, bytes.ends_with(b"\n2000000\n")), (2_000_000, true));
}

#[test]
fn sc_sleep_stops_the_whole_job_for_its_time() {
    let scene = Scene::new();
    let Some(program) = turns(&scene) else { return };
    let job = scene.scrun(&["-nodes=2", program.to_str().unwrap(), "3", "sleep"]).start();
    // It is alone: only its sleep stops it.
    stands_still(&scene, 5, |one| one.program() == "turns");
    let outcome = job.wait();
    assert_eq!(outcome.code, 0, "{outcome}");
    assert_eq!(outcome.text().matches("slept 0").count(), 2, "{outcome}");
    assert!(outcome.elapsed >= Duration::from_secs(3), "{outcome}");
}

#[test]
fn who_yields_all_the_time_leaves_the_processor_to_others() {
    let scene = Scene::new();
    let Some(program) = turns(&scene) else { return };
    let Some(cluster) = cluster(&scene, 1, "10") else { return };
    let program = program.to_str().unwrap();
    let yields = start(&cluster, ALICE, "nodes=1", &[program, "3", "yield"]);
    let spins = start(&cluster, BOB, "nodes=1", &[program, "2"]);
    let (spins, yields) = (stretches(&spins.wait()), stretches(&yields.wait()));
    let (begin, end) = (spins[0].0, spins.last().unwrap().1);
    let time = |list: &[(u64, u64)]| -> u64 {
        list.iter().map(|(from, to)| (*to).min(end).saturating_sub((*from).max(begin))).sum()
    };
    assert!(yields.len() > 3, "{yields:?}");
    // In fair shares they would be equal.
    assert!(2 * time(&yields) < time(&spins), "{} of {}", time(&yields), time(&spins));
}

#[test]
fn a_job_that_has_nothing_to_do_leaves_each_of_its_slices_to_others() {
    const SLICE: u64 = 200_000_000;
    let scene = Scene::new();
    let Some(cluster) = cluster(&scene, 1, "200") else { return };
    let Some(turns) = turns(&scene) else { return };
    let turns = turns.to_str().unwrap();
    let mut idle = start(&cluster, ALICE, "nodes=1", &[turns, "60", "idle"]);
    idle.wait_for("up", 1);
    let busy = start(&cluster, BOB, "nodes=1", &[turns, "6"]).wait();
    let stretches = stretches(&busy);
    // By then the other has nothing left to do.
    let begin = stretches[0].0 + 3_000_000_000;
    let gaps = stretches.windows(2).map(|pair| (pair[0].1, pair[1].0));
    let whole = gaps.filter(|(from, to)| *from > begin && to - from > SLICE / 2).count();
    // Seven slices are the other's.
    assert!(whole < 3, "{whole} were not given up: {stretches:?}");
    idle.signal(Signal::SIGTERM);
    assert_ne!(idle.wait().code, 0);
}

#[test]
fn when_scored_is_killed_nothing_of_a_stopped_job_is_left() {
    let scene = Scene::new();
    let Some(mut cluster) = cluster(&scene, 1, "20") else { return };
    let spin = "echo up; (trap '' TERM; setsid sh -c 'while :; do :; done') & while :; do :; done";
    let jobs = [ALICE, BOB].map(|uid| {
        let mut job = cluster.scrun(uid, "a", "nodes=1", spin).start();
        job.wait_for("up", 1);
        job
    });
    // One of them is stopped, whichever.
    cluster.strike("a", Signal::SIGKILL);
    for job in jobs {
        assert_ne!(job.wait().code, 0);
    }
    let begin = Instant::now();
    while let Some(left) = scene.processes().first() {
        assert!(begin.elapsed() < PATIENCE, "{left:?}");
        sleep(Duration::from_millis(10));
    }
    // The directories of the jobs, which the next scored removes.
    cluster.start_host("a");
}

#[test]
fn a_pipeline_loses_nothing_under_slices() {
    let scene = Scene::new();
    let Some(cluster) = cluster(&scene, 2, "10") else { return };
    for name in ["scatter", "system"] {
        if Path::new(&score_tests::binaries::program(name)).exists() {
            cluster.program(name);
        }
    }
    let lines = (0..4_000_000_u32).map(|number| format!("{number:015}\n"));
    let input: String = lines.collect();
    let words = ["-scored=all,nodes=2", "scatter", "==", "system", "cat"];
    let jobs = [ALICE, BOB].map(|uid| {
        let job = cluster.command(uid, "scrun", "a").args(&words).input(input.clone());
        job.watchdog(Duration::from_secs(240)).start()
    });
    for job in jobs {
        let outcome = job.wait();
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        // Every node has all lines, in order.
        for half in halves(&outcome.stdout) {
            assert!(half == input.as_bytes(), "a node has lost or changed something");
        }
    }
}

#[test]
fn remote_memory_between_hosts_loses_nothing_under_slices_and_a_suspension() {
    let scene = Scene::new();
    let Some(built) = scene.program("remote") else { return };
    let hosts = ["b", "a"];
    let database = "b address=127.0.0.1 cores=1 group=all\na address=127.0.0.2 cores=1 group=all\n";
    let Some(cluster) = Cluster::start_as(&scene, &hosts, database, &["-ts", "10"]) else {
        return;
    };
    let program = scene.dir().join("remote");
    std::fs::copy(built, &program).unwrap();
    let words = ["-scored=all,nodes=2x1", program.to_str().unwrap(), "200"];
    let jobs = [ALICE, BOB].map(|uid| {
        let job = cluster.command(uid, "scrun", "a").args(&words);
        job.watchdog(Duration::from_secs(240)).start()
    });
    // One of them is suspended for longer than any time-out of the network.
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

/// What each of two nodes has written: the lines of both are merged, and each has written the same.
fn halves(bytes: &[u8]) -> [Vec<u8>; 2] {
    let mut halves = [Vec::new(), Vec::new()];
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        // Lines are of one length: the node that is behind, or ahead, is the one this continues.
        let number: usize = std::str::from_utf8(line).unwrap().trim().parse().unwrap();
        let at = usize::from(halves[0].len() / line.len() != number);
        halves[at].extend_from_slice(line);
    }
    halves
}

#[test]
fn a_host_that_does_not_answer_is_named_and_never_has_two_jobs() {
    let scene = Scene::new();
    let Some(program) = turns(&scene) else { return };
    let hosts = ["b", "a"];
    let database = "b address=127.0.0.1 cores=1 group=all\na address=127.0.0.2 cores=1 group=all\n";
    let Some(mut cluster) = Cluster::start_as(&scene, &hosts, database, &["-ts", "20"]) else {
        return;
    };
    let program = program.to_str().unwrap();
    let mut jobs = [ALICE, BOB].map(|uid| {
        let options = "-scored=all,nodes=2x1";
        cluster.command(uid, "scrun", "a").args(&[options, program, "8"]).start()
    });
    jobs.iter_mut().for_each(|job| job.wait_for("up", 2));
    // The daemon of one host hears no orders for a while.
    cluster.strike("b", Signal::SIGSTOP);
    let begin = Instant::now();
    while !cluster.log("a").contains("has not been stopped") {
        assert!(begin.elapsed() < PATIENCE, "{}", cluster.log("a"));
        sleep(Duration::from_millis(20));
    }
    assert!(cluster.log("a").contains("on host b"), "{}", cluster.log("a"));
    cluster.strike("b", Signal::SIGCONT);
    let [one, other] = jobs.map(Running::wait);
    let told = one.stderr.contains("host b") || other.stderr.contains("host b");
    assert!(told, "{one}\n{other}");
    assert_in_turns(&stretches(&one), &stretches(&other));
}

#[test]
fn a_process_in_a_debuggers_hands_takes_turns_as_any_other() {
    let scene = Scene::new();
    let (Some(program), Some(tracer)) = (turns(&scene), scene.program("tracer")) else { return };
    let Some(cluster) = cluster(&scene, 1, "20") else { return };
    let program = program.to_str().unwrap();
    let mut traced = start(&cluster, ALICE, "nodes=1", &[program, "6"]);
    traced.wait_for("up", 1);
    let process = scene.wait_for_process("turns", |one| one.program() == "turns");
    let mut tracer = scene.command(tracer).arg(&process.pid.to_string()).start();
    tracer.wait_for("attached", 1);
    let other = start(&cluster, BOB, "nodes=1", &[program, "3"]);
    let (traced, other) = (traced.wait(), other.wait());
    assert_in_turns(&stretches(&traced), &stretches(&other));
    assert_eq!(tracer.wait().code, 0);
}
