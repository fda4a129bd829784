//! Programs of Open MPI use PMIx. Ranks of all hosts find what a rank has put, with or without a
//! fence. If a rank puts too much, the helper `scored-pmix` hangs, or a rank calls MPI_Abort, the
//! job ends, scrun names the cause, and nothing is left.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::test_env::CLEANUP_TIMEOUT;
use score_tests::{Outcome, Running, TestEnv};

use crate::open_mpi::OpenMpi;

/// Options for one host, and for several hosts.
const LAYOUTS: [&str; 2] = ["-nodes=2", "-group=local:2 -nodes=2x1"];

/// Runs a test with the libpmix of each Open MPI. `check` gets the compiled `pmix.c`.
fn with_each_libpmix(test: &str, check: impl Fn(&TestEnv, &Path)) {
    for open_mpi in OpenMpi::all(test) {
        let env = TestEnv::new();
        let program = open_mpi.compile_pmix(&env);
        check(&env, &program);
    }
}

fn run(env: &TestEnv, program: &Path, options: &str, arguments: &str) -> Outcome {
    env.sh(&format!("scrun {options} {} {arguments}", program.display())).run()
}

/// Starts the program, and waits until its processes have passed a fence.
fn start_waiting(env: &TestEnv, program: &Path, options: &str, seconds: u32) -> Running {
    let mut job =
        env.sh(&format!("exec scrun {options} {} wait {seconds}", program.display())).start();
    job.wait_for("ready", 2);
    job
}

fn is_helper(process: &Process) -> bool {
    process.program() == "scored-pmix"
}

// Promise (MPI): Ranks of all hosts find what a rank of Open MPI has put, with a fence or without;
// too much data, PMIx_Abort, and a helper that hangs end the job, with the cause; nothing is left
// when scrun is killed.
#[test]
fn all_ranks_find_the_data_of_a_rank_without_a_fence() {
    with_each_libpmix("pmix_get", |env, program| {
        // If there are several hosts, the rank is on another host.
        for (options, distance) in
            [("-nodes=3", 0), ("-group=local:2 -nodes=2x2", 2), ("-group=local:3 -nodes=3x1", 1)]
        {
            let size = if distance == 2 { 4 } else { 3 };
            let arguments = format!("get {distance}");
            let outcome = run(env, program, options, &arguments).expect_code(0);
            let found = |rank: u32| (0..size).map(move |of| format!("{rank}: {of} found"));
            let mut expected: Vec<String> = (0..size).flat_map(found).collect();
            if distance > 0 {
                expected.extend((0..size).map(|rank| format!("{rank}: absent not found")));
            }
            expected.sort();
            assert_eq!(outcome.sorted_lines(), expected, "{options}");
        }
    });
}

// Promise of `all_ranks_find_the_data_of_a_rank_without_a_fence`.
#[test]
fn a_rank_that_ends_without_data_does_not_block_other_ranks() {
    with_each_libpmix("pmix_nothing", |env, program| {
        for what in ["nothing", "absent"] {
            let outcome = run(env, program, LAYOUTS[1], what).expect_code(0);
            assert_eq!(outcome.text(), "0: 1 not found\n", "{what}");
        }
    });
}

// Promise of `all_ranks_find_the_data_of_a_rank_without_a_fence`.
#[test]
fn a_get_of_data_that_arrives_too_late_ends_at_its_time_limit() {
    with_each_libpmix("pmix_timeout", |env, program| {
        for options in [LAYOUTS[1], "-group=local:3 -nodes=3x1"] {
            for (seconds, first) in [(1, "too late after that"), (60, "found after less")] {
                let outcome = run(env, program, options, &format!("late {seconds}"));
                let outcome = outcome.expect_code(0);
                assert_eq!(outcome.text(), format!("{first}\nthen found\n"), "{options}");
            }
        }
    });
}

// Promise (MPI): Fences of some ranks of several hosts can be active at the same time without
// affecting each other; their number and their bytes are bounded; a rank that waits for one that
// has exited is named.
#[test]
fn several_fences_of_some_ranks_of_several_hosts_run_at_once() {
    with_each_libpmix("pmix_subsets", |env, program| {
        for (options, size) in [
            ("-nodes=4", 4),
            ("-group=local:2 -nodes=2x2", 4),
            ("-group=local:3 -nodes=3x1", 3),
            ("-group=local:3 -nodes=3x2", 6),
        ] {
            let outcome = run(env, program, options, "subset").expect_code(0);
            let members = |rank: u32| (rank % 2..size).step_by(2);
            let found = |rank| members(rank).map(move |other| format!("{rank}: {other} found"));
            let once: Vec<String> = (0..size).flat_map(found).collect();
            let mut expected = [once.clone(), once.clone(), once].concat();
            expected.sort();
            assert_eq!(outcome.sorted_lines(), expected, "{options}");
            remove_files(env, "in-");
        }
        for options in LAYOUTS {
            let outcome = run(env, program, options, "unknown").expect_code(0);
            assert_eq!(outcome.text(), "1\n1\n", "{options}: the rank does not exist");
        }
        let outcome = run(env, program, "-group=local:3 -nodes=3x1", "leave").expect_code(1);
        let _ = outcome.assert_stderr(&[
            "node 0 waits in a fence or group of PMIx",
            "for node 2, which has exited",
        ]);
    });
}

fn remove_files(env: &TestEnv, prefix: &str) {
    for entry in std::fs::read_dir(env.dir()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

// Promise of `all_ranks_find_the_data_of_a_rank_without_a_fence`.
#[test]
fn data_beyond_the_limit_of_a_process_end_the_job_and_are_reported() {
    with_each_libpmix("pmix_limits", |env, program| {
        let found = ["0: 0 found", "0: 1 found", "1: 0 found", "1: 1 found"];
        // On one host no data goes to other hosts, so ranks may put more.
        for (options, bytes) in [(LAYOUTS[0], 40_000), (LAYOUTS[1], 15_000)] {
            let outcome = run(env, program, options, &format!("fence {bytes}")).expect_code(0);
            assert_eq!(outcome.sorted_lines(), found, "{options}");
        }
        for (bytes, reason) in [
            (40_000, "for others into PMIx, and 16384 are allowed"),
            // This is more than the helper can report.
            (2_000_000, "on one host have put more than 1048576 bytes for others into PMIx"),
        ] {
            let outcome = run(env, program, LAYOUTS[1], &format!("fence {bytes}")).expect_code(1);
            let _ = outcome.assert_stderr(&[reason]);
        }
        let outcome = run(env, program, LAYOUTS[1], "large 15000").expect_code(0);
        assert_eq!(outcome.text(), "0: 1 found\n");
        let outcome = run(env, program, LAYOUTS[1], "large 40000").expect_code(1);
        let _ = outcome.assert_stderr(&["node 1 has put ", "into PMIx, and 16384 are allowed"]);
    });
}

// Promise of `all_ranks_find_the_data_of_a_rank_without_a_fence`.
#[test]
fn an_abort_ends_the_job_with_its_code_and_shows_its_text() {
    with_each_libpmix("pmix_abort", |env, program| {
        for options in LAYOUTS {
            // The exit code is the last eight bits of the argument, but never 0.
            for (argument, code) in [(7, 7), (256, 1), (258, 2)] {
                let outcome = run(env, program, options, &format!("abort {argument}"));
                let outcome = outcome.expect_code(code);
                let call = format!("node 1 called MPI_Abort(.., {argument}): no ");
                let outcome = outcome.assert_stderr(&[&call, "grid", "here"]);
                assert!(!outcome.stderr.contains('\x1b'), "{outcome}");
            }
        }
    });
}

// Promise of `all_ranks_find_the_data_of_a_rank_without_a_fence`.
#[test]
fn a_helper_that_hangs_ends_the_job_and_is_named() {
    with_each_libpmix("pmix_hang", |env, program| {
        for options in LAYOUTS {
            let job = start_waiting(env, program, options, 50);
            env.wait_for_process("helper", is_helper).signal(Signal::SIGSTOP);
            let outcome = job.wait().expect_code(1);
            let host = if options == LAYOUTS[0] { "" } else { "local" };
            let line = format!("scored-pmix, which serves PMIx on host {host}");
            let outcome = outcome.assert_stderr(&[&line, ": it has not answered for 10 s"]);
            assert!(outcome.elapsed < Duration::from_secs(40), "{outcome}");
            env.assert_clean();
        }
    });
}

// Promise of `all_ranks_find_the_data_of_a_rank_without_a_fence`.
#[test]
fn a_helper_does_not_hang_while_its_job_is_stopped() {
    with_each_libpmix("pmix_stop", |env, program| {
        // The program waits longer than SIGTSTP takes on a busy machine. Its wait ends while the
        // job is stopped.
        let job = start_waiting(env, program, LAYOUTS[1], 12);
        job.signal(Signal::SIGTSTP);
        let is_stopped = |process: &Process| is_helper(process) && process.state == 'T';
        env.wait_for_process("stopped helper", is_stopped);
        // This is longer than a helper may take to answer.
        sleep(Duration::from_secs(14));
        job.signal(Signal::SIGCONT);
        let outcome = job.wait().expect_code(0);
        assert_eq!(outcome.text().matches("done").count(), 2, "{outcome}");
        assert!(!outcome.stderr.contains("scored-pmix"), "{outcome}");
    });
}

// Promise of `all_ranks_find_the_data_of_a_rank_without_a_fence`.
#[test]
fn no_process_or_file_remains_after_scrun_is_killed() {
    // Open MPI's shared memory, which only transports other than PM use, also makes files.
    let source = "#include <mpi.h>\n#include <stdio.h>\n#include <unistd.h>\n\
                  int main(int argc, char **argv) {\n\
                  MPI_Init(&argc, &argv);\n\
                  MPI_Barrier(MPI_COMM_WORLD);\n\
                  puts(\"ready\"); fflush(stdout);\n\
                  sleep(50);\n\
                  return 0;\n}\n";
    for open_mpi in OpenMpi::all("pmix_killed_scrun") {
        let env = TestEnv::new();
        let source = env.write_file("sleeper.c", source);
        let program = open_mpi.compile(&env, &source);
        for pml in ["cm", "ob1"] {
            for options in LAYOUTS {
                let line = format!("OMPI_MCA_pml={pml} exec scrun {options} {}", program.display());
                let before = files_of_mpi();
                let mut job = env.sh(&line).start();
                job.wait_for("ready", 2);
                env.wait_for_process("helper", is_helper);
                job.signal(Signal::SIGKILL);
                assert_eq!(job.wait().code, 137);
                let clean = env.wait_until_clean(CLEANUP_TIMEOUT);
                clean.unwrap_or_else(|left| panic!("{pml} {options}: {left:#?}"));
                assert_eq!(files_of_mpi(), before, "{pml} {options}");
            }
        }
    }
}

/// Returns the files in /tmp that libpmix or Open MPI could have made.
fn files_of_mpi() -> Vec<String> {
    let entries = std::fs::read_dir("/tmp").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_mpi = |name: &String| ["ompi", "pmix", "prte"].iter().any(|part| name.contains(part));
    let mut names: Vec<String> = names.filter(is_mpi).collect();
    names.sort();
    names
}
