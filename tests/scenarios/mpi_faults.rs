//! A failure in an MPI program ends its job, and scrun names the failure: crashes, invalid calls,
//! children that send. Programs that only look wrong lose nothing: children that run other
//! programs, ^Z in the middle of a transfer, many unexpected messages.

use std::path::{Path, PathBuf};
use std::time::Duration;

use score_tests::terminal::Terminal;
use score_tests::{TestEnv, binaries};

use crate::mpi::{compile_program, compile_program_by, mpich};
use crate::open_mpi::OpenMpi;

const HOSTS: [&str; 2] = ["-nodes=2", "-group=local:2 -nodes=2x1"];
/// Time limit of a job on a busy machine.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);

/// Compiles `tests/programs/mpi_faults.c` by MPICH of PyPI.
fn compile(env: &TestEnv, test: &str) -> Option<PathBuf> {
    Some(compile_program(env, &mpich(test)?, "mpi_faults"))
}

// Promise (MPI): A fault of an MPI program is reported with node and signal; children, ^Z and
// 100,000 unexpected messages during transfers lose nothing; forged bytes end the job; starting
// more processes is an error on each rank, and the program continues, with MPICH and Open MPI.
#[test]
fn a_fault_names_the_node_and_its_signal_unless_the_program_handles_it() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_faults_signals") else { return };
    let program = program.display();
    let run = |limit: &str, case: &str| {
        let line = format!("ulimit -S -c {limit}; scrun -nodes=2 {program} {case}");
        env.sh(&line).timeout(JOB_TIMEOUT).run()
    };
    for (case, code, signal) in [
        ("fault", 139, "SIGSEGV"),
        ("signal 4", 132, "SIGILL"),
        ("signal 7", 135, "SIGBUS"),
        ("signal 8", 136, "SIGFPE"),
        ("signal 31", 159, "SIGSYS"),
        ("signal 6", 134, "SIGABRT"),
    ] {
        let outcome = run("0", case).expect_code(code);
        let title = format!("node 1 of mpi_faults got {signal}:\nall ranks [1]\n");
        let end = format!("node 1 of mpi_faults was killed by {signal}");
        let _ = outcome.assert_stderr(&[&title, "main at mpi_faults.c:", &end]);
    }
    let outcome = run("0", "signal 1").expect_code(129);
    let named = "called sc_inspectme() for SIGHUP: its parallel process is ended";
    let _ = outcome.assert_stderr(&["node 1 on host", named, "gdb -p"]);
    // A core file is written after the stacks have been read.
    let outcome = run("1", "fault").expect_code(139);
    let _ = outcome.assert_stderr(&["all ranks [1]", "node 1 of mpi_faults was killed by SIGSEGV"]);
    let outcome = run("0", "own_handler").expect_code(7);
    let _ = outcome.assert_stderr(&["node 1 exited with code 7 before MPI_Finalize()"]);
    let outcome = run("0", "fault_of_child").expect_code(0);
    assert_eq!(outcome.text(), "ok\n".repeat(2), "{outcome}");
}

// Promise of `a_fault_names_the_node_and_its_signal_unless_the_program_handles_it`.
#[test]
fn unexpected_messages_need_little_memory_and_are_not_lost() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_faults_unexpected") else { return };
    let line = format!("scrun -nodes=2 {} unexpected", program.display());
    let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run().expect_code(0);
    assert_eq!(outcome.text(), "ok\n".repeat(2), "{outcome}");
}

// Promise of `a_fault_names_the_node_and_its_signal_unless_the_program_handles_it`.
#[test]
fn unreceived_short_messages_need_bounded_memory_at_their_sender() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_faults_injected") else { return };
    for hosts in HOSTS {
        let line = format!("scrun {hosts} {} injected", program.display());
        let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run().expect_code(0);
        assert_eq!(outcome.text(), "ok\n".repeat(2), "{hosts}: {outcome}");
    }
}

// Promise of `a_fault_names_the_node_and_its_signal_unless_the_program_handles_it`.
#[test]
fn a_fork_during_a_transfer_loses_no_message_and_its_child_cannot_send() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_faults_fork") else { return };
    for hosts in HOSTS {
        for case in ["fork", "child_that_sends"] {
            let line = format!("scrun {hosts} {} {case}", program.display());
            let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run().expect_code(0);
            assert_eq!(outcome.text(), "ok\n".repeat(2), "{hosts} {case}: {outcome}");
        }
    }
}

// Promise of `a_fault_names_the_node_and_its_signal_unless_the_program_handles_it`.
#[test]
fn a_job_that_is_stopped_during_a_transfer_loses_no_message() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_faults_stop") else { return };
    let mut terminal = Terminal::shell(&env);
    terminal.type_keys(&format!("scrun -nodes=2 {} stop\n", program.display()));
    let mut offset = terminal.wait_for("round 100", JOB_TIMEOUT);
    for _ in 0..3 {
        terminal.type_keys("\x1a");
        offset = terminal.wait_for_after(offset, "Stopped", JOB_TIMEOUT);
        terminal.wait_for_after(offset, "ready> ", JOB_TIMEOUT);
        let shown = terminal.bytes_shown();
        terminal.type_keys("fg\n");
        offset = terminal.wait_for_after(shown, "round ", JOB_TIMEOUT);
    }
    offset = terminal.wait_for_after(offset, "ready> ", JOB_TIMEOUT);
    assert_eq!(terminal.text().matches("ok\r\n").count(), 2, "{}", terminal.text());
    terminal.type_keys("echo code $?\n");
    terminal.wait_for_after(offset, "code 0", JOB_TIMEOUT);
    terminal.type_keys("exit\n");
    terminal.wait(JOB_TIMEOUT);
}

// Promise of `a_fault_names_the_node_and_its_signal_unless_the_program_handles_it`.
#[test]
fn bytes_that_are_no_message_of_the_provider_end_the_job() {
    let env = TestEnv::new();
    let Some(program) = compile(&env, "mpi_faults_forge") else { return };
    for hosts in HOSTS {
        let line = format!("scrun {hosts} {} forge", program.display());
        let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run().expect_code(1);
        let _ = outcome.assert_stderr(&["libpm-fi: node 1", "the job cannot continue"]);
    }
}

// Promise of `a_fault_names_the_node_and_its_signal_unless_the_program_handles_it`.
#[test]
fn starting_more_processes_is_an_error_after_which_the_program_continues() {
    let env = TestEnv::new();
    let check = |program: &Path, variables: &str| {
        let run = |line: &str| env.sh(line).timeout(JOB_TIMEOUT).run();
        for hosts in HOSTS {
            let outcome = run(&format!("scrun {hosts} {} spawn", program.display()));
            assert_eq!(outcome.expect_code(0).text(), "ok\n".repeat(2), "{hosts}");
        }
        // The result must be the same if messages do not go over PM.
        let without_pm = "MPIR_CVAR_CH4_NETMOD=ucx OMPI_MCA_pml=ob1";
        let line = format!("{without_pm} scrun -nodes=2,message=quiet {} spawn", program.display());
        assert_eq!(run(&line).expect_code(0).text(), "ok\n".repeat(2));
        let line = format!("{variables} scrun -nodes=2 {} spawn_unhandled", program.display());
        let outcome = run(&line);
        assert!(outcome.code != 0 && outcome.text().is_empty(), "{outcome}");
        let _ =
            outcome.assert_stderr(&["MPI_Comm_spawn: a job under scrun cannot get more processes"]);
    };
    if let Some(mpich) = mpich("mpi_faults_spawn") {
        for compiler in ["mpicc", "mpicc_abi"] {
            let compiler = mpich.join("bin").join(compiler);
            check(&compile_program_by(&env, &compiler, "mpi_faults"), "");
        }
    }
    for open_mpi in OpenMpi::all("mpi_faults_spawn") {
        let source = binaries::root().join("tests/programs/mpi_faults.c");
        check(&open_mpi.compile(&env, &source), &open_mpi.environment());
    }
}

/// Without SCore, Open MPI reports the error only to the root, and the other ranks wait.
#[test]
fn connecting_by_a_port_is_an_error_at_each_rank_of_open_mpi() {
    let env = TestEnv::new();
    for open_mpi in OpenMpi::all("mpi_faults_ports") {
        let source = binaries::root().join("tests/programs/mpi_faults.c");
        let program = open_mpi.compile(&env, &source);
        let variables = open_mpi.environment();
        for hosts in HOSTS {
            let line = format!("{variables} scrun {hosts} {} connect_by_port", program.display());
            let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run();
            assert_eq!(outcome.expect_code(0).text(), "ok\n".repeat(2), "{hosts}");
        }
    }
}
