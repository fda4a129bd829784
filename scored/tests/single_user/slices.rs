//! Stops and continues a job, with and without a PID namespace. All descendants stop, also those in
//! other sessions. A process that has stopped itself stays stopped.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::driver::*;
use score_proto::message::*;

/// A process, its child, and a grandchild in another session write continuously. Another process
/// stops itself, and writes a file if it is continued.
const SCRIPT: &str = "cd FOLDER; trap '' TSTP TERM INT HUP
write() { while :; do echo x >> $1; sleep 0.01; done; }
(sh -c 'kill -STOP $$; echo woken >> woken') &
(write child & setsid sh -c 'while :; do echo x >> grandchild; sleep 0.01; done') &
write parent";

fn stop_and_continue(name: &str, no_namespace: bool) {
    let scratch = TempDir::new(name);
    let names = ["parent", "child", "grandchild"];
    let script = SCRIPT.replace("FOLDER", &scratch.path("."));
    let size = |name: &&str| fs::metadata(scratch.path(name)).map_or(0, |data| data.len());
    let sizes = || names.each_ref().map(size);
    let options = ScoredOptions { no_namespace, ..ScoredOptions::default() };
    let mut driver = Driver::start_as(job(1, vec![sh(&script)]), options);
    driver.until("output of all processes", |_| sizes().iter().all(|size| *size > 20));
    for _ in 0..3 {
        driver.send(&JobRequest::Suspend);
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            let old_sizes = sizes();
            sleep(Duration::from_millis(300));
            if old_sizes == sizes() {
                break;
            }
            assert!(Instant::now() < end, "a process still writes: {:?}", sizes());
        }
        let old_sizes = sizes();
        driver.send(&JobRequest::Resume);
        let grown =
            |now: [u64; 3]| now.iter().zip(old_sizes).all(|(now, earlier)| *now > earlier + 20);
        driver.until("progress of all processes", |_| grown(sizes()));
    }
    assert!(!fs::exists(scratch.path("woken")).unwrap(), "a self-stopped process was continued");
    driver.send(&JobRequest::Kill);
    assert_eq!(driver.finish().code(), 137);
}

// Promise (time-sharing): Every descendant is stopped while the job is stopped, also without a PID
// namespace; a process that had stopped itself remains stopped; a stopped job can be killed.
#[test]
fn every_descendant_is_stopped_and_continued() {
    stop_and_continue("slices", false);
}

// Promise of `every_descendant_is_stopped_and_continued`.
#[test]
fn every_descendant_is_stopped_and_continued_without_a_namespace() {
    stop_and_continue("slices-bare", true);
}

// Promise of `every_descendant_is_stopped_and_continued`.
#[test]
fn a_job_that_is_killed_while_it_is_stopped_ends() {
    let mut driver = Driver::start(job(2, vec![sh("echo up; while :; do :; done")]));
    driver.until("two lines", |driver| driver.outcome.lines().len() == 2);
    driver.send(&JobRequest::Suspend);
    for _ in 0..10 {
        driver.step();
    }
    driver.send(&JobRequest::Kill);
    assert_eq!(driver.finish().code(), 137);
}
