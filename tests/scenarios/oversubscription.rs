//! Several jobs share processors in time. A job that finds no free processor shares one, until
//! every processor has as many jobs as `-rows` allows. Further jobs wait, or are refused with the
//! numbers in the message. A second job never gets memory that a job has requested.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Running, TestEnv};

const OUTPUT_TIMEOUT: Duration = Duration::from_secs(60);

fn terminate(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

fn wait_for_stderr(job: &Running, text: &str) {
    let deadline = Instant::now() + OUTPUT_TIMEOUT;
    while !job.stderr().contains(text) {
        assert!(Instant::now() < deadline, "{text:?} was not printed: {}", job.stderr());
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_processor_has_as_many_jobs_as_rows_and_the_next_job_waits() {
    let env = TestEnv::new();
    let (database, rows) = (Cluster::database(&["a", "b"]), ["-rows", "2"]);
    let Some(cluster) = Cluster::start_with_options(&env, &["a", "b"], &database, &rows) else {
        return;
    };
    let first = cluster.start_long_job(ALICE, "a", "nodes=2x2");
    let whole_host_job = cluster.start_long_job(BOB, "a", "hosts=1");
    wait_for_stderr(&whole_host_job, "also run other jobs, which share the processors in time");
    let third = cluster.start_long_job(BOB, "a", "nodes=2");
    let refused = cluster.scrun(ALICE, "b", "nodes=1", "echo no").run();
    assert_eq!(refused.code, 2, "{refused}");
    let reason = "a processor may have 2 jobs, and 0 of the cluster's hosts have room for 0 more \
                  processes";
    assert!(refused.stderr.contains(reason), "{refused}");
    let waiting = cluster.scrun(ALICE, "b", "nodes=2x1,wait", "echo ran").start();
    wait_for_stderr(&waiting, "is queued");
    // Both hosts had two rows of jobs. Now both have one.
    terminate(first);
    let outcome = waiting.wait();
    assert_eq!((outcome.code, outcome.text().as_str()), (0, "ran\nran\n"), "{outcome}");
    terminate(whole_host_job);
    terminate(third);
}

#[test]
fn a_job_waits_for_memory_that_another_job_has_requested() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a"]) else { return };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    let (total_mb, job_mb) = (kib / 1024, kib / 1024 / 3 * 2);
    let too_large =
        cluster.scrun(ALICE, "a", &format!("nodes=1,wait,memorylimit={}", total_mb + 1), "true");
    let too_large = too_large.run();
    let (expected_request, expected_total) =
        (format!("with {} MB (memorylimit)", total_mb + 1), format!("{total_mb} MB are all"));
    assert!(too_large.code == 2 && too_large.stderr.contains(&expected_request), "{too_large}");
    assert!(too_large.stderr.contains(&expected_total), "{too_large}");
    let holder = cluster.start_long_job(ALICE, "a", &format!("nodes=1,memorylimit={job_mb}"));
    // A processor is free, but its memory is not.
    let refused = cluster.scrun(BOB, "a", &format!("nodes=1,memorylimit={job_mb}"), "true").run();
    assert!(
        refused.code == 2 && refused.stderr.contains("not promised to other jobs"),
        "{refused}"
    );
    let options = format!("nodes=1,wait,memorylimit={job_mb}");
    let waiting = cluster.scrun(BOB, "a", &options, "echo ran").start();
    wait_for_stderr(&waiting, "is queued");
    terminate(holder);
    let outcome = waiting.wait();
    assert_eq!((outcome.code, outcome.text().as_str()), (0, "ran\n"), "{outcome}");
}

// Promise (cluster): `-ts` and `-rows` out of range are refused with the range; without SCHED_RR a
// slice has at least 100 ms.
#[test]
fn a_slice_or_a_number_of_rows_out_of_range_is_refused_with_the_range() {
    let env = TestEnv::new();
    for (args, expected) in [
        (["-ts", "4"], "-ts 4: must be 5 to 60000 milliseconds"),
        (["-ts", "60001"], "-ts 60001: must be 5 to 60000 milliseconds"),
        (["-ts", "1e3"], "-ts 1e3: must be 5 to 60000 milliseconds"),
        (["-rows", "0"], "-rows 0: must be 1 to 64 jobs a processor"),
        (["-rows", "65"], "-rows 65: must be 1 to 64 jobs a processor"),
    ] {
        let outcome = env.command(score_tests::binaries::program("scored")).args(&args).run();
        assert!(outcome.code == 2 && outcome.stderr.contains(expected), "{outcome}");
    }
}
