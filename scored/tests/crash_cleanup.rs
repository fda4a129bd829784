//! If any component is killed at any time, SCore soon removes all processes and files of the job.
//! These tests are a separate program, because they count the directories of all jobs.

mod driver;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use driver::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use score_proto::message::*;

/// How long processes and files may outlive their owner. The promise is one second, which `cargo
/// xtask soak kill` verifies. The tests allow more time because the machine may have other load.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

/// A job whose processes have children in other sessions. The environment of each process contains
/// the returned mark.
fn stubborn_job(nodes: u32) -> (JobSpec, String) {
    let mark = mark();
    let script = "setsid sleep 1000 & (setsid sh -c 'trap : TERM HUP; sleep 1001' &); \
                  echo up > file.$SCORE_SELF_NODE; echo up; sleep 1002";
    let mut spec = job(nodes, vec![sh(script), sh("cat; sleep 1003")]);
    spec.environment.push(bytes(&mark));
    (spec, mark)
}

fn children(pid: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

fn assert_removed_within(limit: Duration, what: &str, mut is_removed: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !is_removed() {
        assert!(Instant::now() < end, "{what} is left after {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn sigkill(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Starts the stubborn job and waits until all of its processes run.
fn stubborn_driver(options: ScoredOptions) -> (Driver, String) {
    let (spec, mark) = stubborn_job(2);
    let mut driver = Driver::start_as(spec, options);
    driver.until("two lines", |driver| driver.outcome.text().matches("up").count() == 2);
    assert!(marked(&mark).len() >= 8);
    (driver, mark)
}

fn containment_options() -> [ScoredOptions; 2] {
    [ScoredOptions::default(), ScoredOptions { no_namespace: true, ..ScoredOptions::default() }]
}

#[test]
fn a_killed_shepherd_ends_its_job_and_scored_reports_it() {
    for options in containment_options() {
        let (driver, mark) = stubborn_driver(options);
        let shepherd = children(driver.child.id() as i32);
        assert_eq!(shepherd.len(), 1);
        sigkill(shepherd[0]);
        let start = Instant::now();
        let outcome = driver.finish();
        assert!(start.elapsed() < CLEANUP_TIMEOUT);
        assert_eq!((marked(&mark), outcome.code()), (vec![], 137));
        assert!(outcome.notices().contains("shepherd has died (killed by SIGKILL)"));
    }
}

#[test]
fn a_killed_scored_leaves_no_process_and_the_next_start_removes_its_directory() {
    for options in containment_options() {
        let (mut driver, mark) = stubborn_driver(options);
        let directory = driver.outcome.dir.clone();
        sigkill(driver.child.id() as i32);
        driver.child.wait().unwrap();
        assert_removed_within(CLEANUP_TIMEOUT, "a process", || marked(&mark).is_empty());
        // Another test may have started a scored that has removed the directory already.
        run(job(1, vec![sh("exit 0")]));
        assert!(!Path::new(&directory).exists());
    }
}

#[test]
fn all_processes_and_files_are_removed_when_scrun_disconnects() {
    for options in containment_options() {
        let (mut driver, mark) = stubborn_driver(options);
        let directory = driver.outcome.dir.clone();
        driver.connection.shutdown(std::net::Shutdown::Both).unwrap();
        assert_removed_within(CLEANUP_TIMEOUT, "a process", || marked(&mark).is_empty());
        assert_removed_within(CLEANUP_TIMEOUT, "the directory", || !Path::new(&directory).exists());
        assert_removed_within(CLEANUP_TIMEOUT, "scored", || {
            driver.child.try_wait().unwrap().is_some()
        });
    }
}

#[test]
fn sigterm_ends_scored_as_cleanly_as_scrun_does() {
    let (mut driver, mark) = stubborn_driver(ScoredOptions::default());
    kill(Pid::from_raw(driver.child.id() as i32), Signal::SIGTERM).unwrap();
    assert_removed_within(CLEANUP_TIMEOUT, "scored", || driver.child.try_wait().unwrap().is_some());
    assert_eq!(marked(&mark), []);
    assert!(!Path::new(&driver.outcome.dir).exists());
}

#[test]
fn kill_ends_a_job_whose_output_is_not_read() {
    for options in containment_options() {
        let mark = mark();
        let mut spec = job(4, vec![system(&["yes"])]);
        spec.environment.push(bytes(&mark));
        let mut driver = Driver::start_as(spec, options);
        driver.taking = false;
        driver
            .until("a full window", |driver| driver.untaken + MAX_IO_CHUNK as u64 > OUTPUT_WINDOW);
        driver.send(&JobRequest::Kill);
        let start = Instant::now();
        assert_eq!(driver.finish().code(), 137);
        assert!(start.elapsed() < CLEANUP_TIMEOUT);
        assert_eq!(marked(&mark), []);
    }
}

#[test]
fn a_job_can_be_cut_off_at_any_moment() {
    let directories = || {
        let user = nix::unistd::geteuid();
        let bases = ["/var/scored".to_owned(), format!("/tmp/scored-{user}")];
        bases.iter().flat_map(fs::read_dir).flatten().count()
    };
    for round in 0..60u64 {
        let (spec, mark) = stubborn_job(3);
        let options = containment_options()[usize::from(round % 4 == 3)].clone();
        let mut driver = Driver::start_as(spec, options);
        std::thread::sleep(Duration::from_micros(round * 731 % 40_000));
        let scored = driver.child.id() as i32;
        match round % 3 {
            0 => sigkill(scored),
            1 => driver.connection.shutdown(std::net::Shutdown::Both).unwrap(),
            _ => children(scored).into_iter().for_each(sigkill),
        }
        let end = Instant::now() + TEST_TIMEOUT;
        while !driver.closed && driver.outcome.end.is_none() {
            driver.step();
            assert!(Instant::now() < end);
            // The shepherd may have been started after the first kill.
            if round % 3 == 2 {
                children(scored).into_iter().for_each(sigkill);
            }
        }
        assert_removed_within(CLEANUP_TIMEOUT, "a process", || marked(&mark).is_empty());
        assert_removed_within(CLEANUP_TIMEOUT, "scored", || {
            driver.child.try_wait().unwrap().is_some()
        });
    }
    run(job(1, vec![sh("exit 0")]));
    // Other tests of this file run at the same time. Sixty leftovers would still exceed the limit.
    assert!(directories() < 20, "{} directories are left", directories());
}

#[test]
fn a_stopped_reader_stops_the_writers_and_little_memory_is_held() {
    let script = "for ($i = 0; $i < 2000000; $i++) { print \"$i\\n\" }";
    let mut driver = Driver::start(job(4, vec![system(&["perl", "-e", script])]));
    driver.taking = false;
    driver.until("a full window", |driver| driver.untaken + MAX_IO_CHUNK as u64 > OUTPUT_WINDOW);
    for _ in 0..50 {
        driver.step();
    }
    let scored = driver.child.id() as i32;
    let resident: u64 = children(scored).into_iter().chain([scored]).map(resident_kib).sum();
    assert!(resident > 0 && resident < 32 << 10, "{resident} KiB");
    driver.taking = true;
    driver.take_all();
    let outcome = driver.finish();
    let sum: u64 = outcome.text().lines().map(|line| line.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 4 * (2_000_000 * 1_999_999 / 2));
}

fn resident_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn writers_see_sigpipe_when_scruns_output_is_closed() {
    let mut driver = Driver::start(job(2, vec![system(&["yes"])]));
    driver.until("output", |driver| driver.outcome.out.len() > 1000);
    driver.send(&JobRequest::OutputClosed(Stream::Stdout));
    let outcome = driver.finish();
    assert_eq!((outcome.code(), outcome.notices().as_str()), (128 + 13, ""));
}

#[test]
fn signals_reach_every_process_and_their_groups() {
    let script = "trap 'echo caught; exit 4' INT; echo up; while :; do sleep 0.01; done";
    let mut driver = Driver::start(job(3, vec![sh(script)]));
    driver.until("three lines", |driver| driver.outcome.text().matches("up").count() == 3);
    driver.send(&JobRequest::Signal(libc::SIGINT));
    let outcome = driver.finish();
    assert_eq!((outcome.text().matches("caught").count(), outcome.code()), (3, 4));
}

#[test]
fn a_job_beyond_the_descriptor_limit_is_refused_with_both_numbers() {
    let options = ScoredOptions { descriptors: Some(128), ..ScoredOptions::default() };
    let outcome = Driver::start_as(job(40, vec![sh("exit 0")]), options.clone()).finish();
    let (reason, code) = outcome.refused.expect("refused");
    assert!(reason.contains("224 descriptors") && reason.contains("128"), "{reason}");
    assert_eq!(code, 2);
    let outcome = Driver::start_as(job(10, vec![sh("ulimit -n")]), options).finish();
    assert_eq!(outcome.text(), "128\n".repeat(10));
}

#[test]
fn jobs_of_an_unprivileged_user_are_also_cleaned_up() {
    if !nix::unistd::geteuid().is_root() {
        // All other tests of this file have verified this already.
        return;
    }
    let scratch = TempDir::new("ordinary");
    let user = 65_534;
    let runtime = scratch.path("run");
    fs::create_dir(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(user), Some(user)).unwrap();
    let options = ScoredOptions {
        user: Some(user),
        runtime_dir: Some(runtime.clone()),
        ..ScoredOptions::default()
    };
    for no_namespace in [false, true] {
        let options = ScoredOptions { no_namespace, ..options.clone() };
        let mut spec = job(2, vec![sh("id -u; (setsid sleep 1000 &)")]);
        let mark = mark();
        spec.environment.push(bytes(&mark));
        spec.directory = bytes("/");
        let outcome = Driver::start_as(spec, options.clone()).finish();
        assert_eq!(outcome.text(), format!("{user}\n{user}\n"), "{}", outcome.notices());
        assert!(outcome.dir.starts_with(&runtime));
        assert_eq!(marked(&mark), []);
        let (driver, mark) = stubborn_driver(options);
        children(driver.child.id() as i32).into_iter().for_each(sigkill);
        assert_eq!(driver.finish().code(), 137);
        assert_eq!(marked(&mark), []);
    }
}
