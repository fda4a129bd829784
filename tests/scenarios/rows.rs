//! Several jobs share processors in time: what does not fit beside others runs beside them all the
//! same, until every processor has as many jobs as `-rows` says; the rest waits, or is refused
//! with what there is. Memory that a job has asked for is not given twice.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Running, Scene};

const PATIENCE: Duration = Duration::from_secs(60);

fn end(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

fn until_said(job: &Running, what: &str) {
    let limit = Instant::now() + PATIENCE;
    while !job.stderr().contains(what) {
        assert!(Instant::now() < limit, "{what:?} is not said: {}", job.stderr());
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_processor_has_as_many_jobs_as_rows_and_the_next_one_waits() {
    let scene = Scene::new();
    let (database, rows) = (Cluster::database(&["a", "b"]), ["-rows", "2"]);
    let Some(cluster) = Cluster::start_as(&scene, &["a", "b"], &database, &rows) else { return };
    let first = cluster.hold(ALICE, "a", "nodes=2x2");
    let whole = cluster.hold(BOB, "a", "hosts=1");
    until_said(&whole, "run other jobs, too: they take turns");
    let third = cluster.hold(BOB, "a", "nodes=2");
    let refused = cluster.scrun(ALICE, "b", "nodes=1", "echo no").run();
    assert_eq!(refused.code, 2, "{refused}");
    let why = "a processor may have 2 jobs, and 0 of the cluster have room for 0 more processes";
    assert!(refused.stderr.contains(why), "{refused}");
    let waiting = cluster.scrun(ALICE, "b", "nodes=2x1,wait", "echo ran").start();
    until_said(&waiting, "waits for room");
    // Both hosts had two rows of jobs; now both have one.
    end(first);
    let outcome = waiting.wait();
    assert_eq!((outcome.code, outcome.text().as_str()), (0, "ran\nran\n"), "{outcome}");
    end(whole);
    end(third);
}

#[test]
fn memory_that_is_promised_to_a_job_is_waited_for() {
    let scene = Scene::new();
    let Some(cluster) = Cluster::start(&scene, &["a"]) else { return };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    let (all, most) = (kib / 1024, kib / 1024 / 3 * 2);
    let never = cluster.scrun(ALICE, "a", &format!("nodes=1,wait,memorylimit={}", all + 1), "true");
    let never = never.run();
    let (wanted, there) =
        (format!("with {} MB (memorylimit)", all + 1), format!("{all} MB are all"));
    assert!(never.code == 2 && never.stderr.contains(&wanted), "{never}");
    assert!(never.stderr.contains(&there), "{never}");
    let holder = cluster.hold(ALICE, "a", &format!("nodes=1,memorylimit={most}"));
    // A processor is free, its memory is not.
    let refused = cluster.scrun(BOB, "a", &format!("nodes=1,memorylimit={most}"), "true").run();
    assert!(
        refused.code == 2 && refused.stderr.contains("not promised to other jobs"),
        "{refused}"
    );
    let options = format!("nodes=1,wait,memorylimit={most}");
    let waiting = cluster.scrun(BOB, "a", &options, "echo ran").start();
    until_said(&waiting, "waits for room");
    end(holder);
    let outcome = waiting.wait();
    assert_eq!((outcome.code, outcome.text().as_str()), (0, "ran\n"), "{outcome}");
}

#[test]
fn a_slice_or_a_number_of_rows_out_of_range_is_refused_with_the_range() {
    let scene = Scene::new();
    for (words, what) in [
        (["-ts", "4"], "-ts 4: 5 to 60000 milliseconds are possible"),
        (["-ts", "60001"], "-ts 60001: 5 to 60000 milliseconds are possible"),
        (["-ts", "1e3"], "-ts 1e3: 5 to 60000 milliseconds are possible"),
        (["-rows", "0"], "-rows 0: 1 to 64 jobs a processor are possible"),
        (["-rows", "65"], "-rows 65: 1 to 64 jobs a processor are possible"),
    ] {
        let outcome = scene.command(score_tests::binaries::program("scored")).args(&words).run();
        assert!(outcome.code == 2 && outcome.stderr.contains(what), "{outcome}");
    }
}
