//! The processes of an MPI program all wait for each other. The program ends with exit code 35, and
//! scrun prints for each process the call in which it waits. A program that only looks deadlocked
//! continues: one that computes, polls, reads a file, or waits for its own thread.

use std::path::PathBuf;
use std::time::Duration;

use score_tests::{EXIT_DEADLOCK, TestEnv};

use crate::mpi::{compile_program, mpich};

/// Time limit of a job with several hosts on a busy machine.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);
const HOSTS: [&str; 2] = ["-nodes=2", "-group=local:2 -nodes=2x2"];

/// Compiles `tests/programs/mpi_deadlocks.c` by MPICH of PyPI.
fn compile(env: &TestEnv, test: &str) -> Option<PathBuf> {
    Some(compile_program(env, &mpich(test)?, "mpi_deadlocks"))
}

// Promise (MPI): Each process of a deadlock of MPI calls is named with its call; MPI programs that
// can continue are never reported: computation, loops of MPI_Test and MPI_Iprobe, files, input,
// threads, generalized requests.
#[test]
fn each_process_of_a_deadlock_is_named_with_its_call() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_deadlocks") else { return };
    for (case, expected) in [
        (
            "mismatched_receive",
            &[
                "waits in MPI_Recv(source 1, tag 7, MPI_COMM_WORLD) since",
                "waits in MPI_Recv(source 0, tag 8, MPI_COMM_WORLD) since",
            ][..],
        ),
        (
            "cycle_of_sends",
            &[
                "waits in MPI_Send(destination 1, tag 3, MPI_COMM_WORLD) since",
                "waits in MPI_Send(destination 0, tag 3, MPI_COMM_WORLD) since",
            ],
        ),
        (
            "mismatched_collectives",
            &[
                "node 0 waits in MPI_Recv(any source, any tag, MPI_COMM_WORLD) since",
                "node 1 waits in MPI_Allreduce(MPI_COMM_WORLD) since",
            ],
        ),
        ("missing_request", &["node 0 waits in MPI_Waitall(2 requests) since"]),
        (
            "missing_probe",
            &[
                "node 0 waits in MPI_Probe(source 1, tag 5, MPI_COMM_WORLD) since",
                "node 1 waits in MPI_Mprobe(source 0, tag 6, MPI_COMM_WORLD) since",
            ],
        ),
        ("missing_fence", &["node 1 waits in MPI_Win_fence() since"]),
        ("rank_that_finalizes", &["node 0 waits in MPI_Recv(source 1", "node 1 has ended"]),
        ("idle_thread_and_receive", &["node 0 waits in MPI_Recv", "node 1 waits in MPI_Recv"]),
    ] {
        let line = format!("scrun -nodes=2 {} {case}", program.display());
        let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run();
        let outcome =
            outcome.assert_stderr(&["deadlock: no process of mpi_deadlocks can continue"]);
        let outcome = outcome.assert_stderr(expected).expect_code(EXIT_DEADLOCK);
        // The stacks of all ranks follow, and are shown once.
        let (lines, tree) =
            outcome.stderr.split_once("stacks of mpi_deadlocks:\n").expect("a tree");
        let call = lines.split_once("waits in ").and_then(|(_, rest)| rest.split_once('('));
        let (call, _) = call.expect("a call");
        assert!(tree.contains(call), "{call}: {outcome}");
        assert!(!tree.contains("called sc_inspectme():"), "{outcome}");
    }
    let line = format!("scrun -group=local:2 -nodes=2x2 {} mismatched_receive", program.display());
    let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run().expect_code(EXIT_DEADLOCK);
    let _ = outcome.assert_stderr(&[
        "node 1 on host local0 waits in MPI_Recv(source 2, tag 8, MPI_COMM_WORLD) since",
        "node 3 on host local1 waits in MPI_Recv(source 0, tag 10, MPI_COMM_WORLD) since",
    ]);
}

// Promise of `each_process_of_a_deadlock_is_named_with_its_call`.
#[test]
fn a_program_that_can_continue_is_never_reported() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_no_deadlocks") else { return };
    let cases = [
        "computation",
        "sleep",
        "loop_of_tests",
        "loop_of_probes",
        "loop_in_a_callback",
        "standard_input",
        "files",
        "thread_that_sends",
        "own_requests",
        "exchange",
    ];
    for hosts in HOSTS {
        // All cases run at once. It is even harder to distinguish a process that waits from one
        // that has no processor.
        let jobs = cases.map(|case| {
            let line = format!(
                "mkdir -p {case}; cd {case}; (sleep 3; echo line) | scrun {hosts} {} {case}",
                program.display()
            );
            (case, env.sh(&line).timeout(JOB_TIMEOUT).start())
        });
        for (case, job) in jobs {
            let outcome = job.wait().expect_code(0);
            let nodes = if hosts == HOSTS[0] { 2 } else { 4 };
            assert_eq!(outcome.text(), "ok\n".repeat(nodes), "{case}: {outcome}");
        }
    }
}

// Promise of `each_process_of_a_deadlock_is_named_with_its_call`.
#[test]
fn a_hang_that_cannot_be_proved_is_no_deadlock() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_deadlocks_unproved") else { return };
    // One case uses MPICH's own shared memory within a host, the other a pipe to which another
    // process may write. SCore must not report either. The jobs would run for ever.
    for (variable, case) in
        [("MPIR_CVAR_NOLOCAL=0", "mismatched_receive"), ("OTHER=1", "pipe_and_receive")]
    {
        let line =
            format!("{variable} timeout -s INT 4 scrun -nodes=2 {} {case}", program.display());
        let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run();
        assert!(!outcome.stderr.contains("deadlock:"), "{outcome}");
        assert_ne!(outcome.code, EXIT_DEADLOCK, "{outcome}");
    }
}
