//! Debuggers and tracers of other projects work with programs of MPI. They find the ranks by MPIR
//! when they start scrun or attach to it, stop them through the stub, and trace them.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use score_tests::test_env::is_installed;
use score_tests::{TestEnv, binaries, skip};

use crate::gdb_stub::{DEBUGGER_TIMEOUT, DebuggedJob, assert_has};
use crate::mpi::{compile_program_by, mpich};
use crate::mpir::{ATTACH, Client, TO_TABLE};
use crate::open_mpi::OpenMpi;

/// Returns the compilers of the installed MPI libraries, each with an environment variable.
fn compilers(test: &str) -> Vec<(PathBuf, String)> {
    let open_mpi = OpenMpi::all(test);
    let mut all: Vec<_> = open_mpi.iter().map(|it| (it.compiler(), it.environment())).collect();
    all.extend(mpich(test).map(|folder| (folder.join("bin/mpicc"), String::new())));
    all
}

#[test]
fn a_debugger_starts_and_attaches_to_programs_of_each_mpi_and_stops_and_traces_their_ranks() {
    for needed in ["gdb", "lldb", "strace"] {
        if !is_installed(needed) {
            return skip("mpi_debuggers", &format!("{needed} is not installed"));
        }
    }
    for (index, (compiler, variable)) in compilers("mpi_debuggers").iter().enumerate() {
        let env = TestEnv::new();
        let program = compile_program_by(&env, compiler, "mpi_debugged");
        clients_debug(&env, &program, variable, index == 0);
    }
}

/// Debugs the program by each client. lldb takes longest, so it debugs only the program of the
/// first MPI.
fn clients_debug(env: &TestEnv, program: &Path, variable: &str, is_first: bool) {
    // gdb starts faster without the symbols of scrun.
    let scrun = env.dir().join("scrun");
    let built = binaries::program("scrun");
    assert!(Command::new("strip").arg("-o").args([&scrun, &built]).status().unwrap().success());
    let (name, value) = variable.split_once('=').unwrap_or(("NONE", ""));
    let end = env.dir().join("end");
    let words = ["-nodes=2", program.to_str().unwrap(), end.to_str().unwrap()];

    // The ranks have not started yet when the debugger finds them.
    env.write_file("end", "");
    let client = Client::new(env, "start", &format!("{TO_TABLE}assert not go_on()\n")).unwrap();
    let command = [&[scrun.to_str().unwrap()][..], &words].concat();
    let debugger = client.start(&command).env(name, value).timeout(DEBUGGER_TIMEOUT);
    let outcome = debugger.run().expect_code(0);
    client.assert_said("held 2 of 2", &outcome);
    client.assert_said("code 0", &outcome);
    assert_eq!(outcome.text().matches("answer 0\n").count(), 2, "{outcome}");
    std::fs::remove_file(&end).unwrap();

    let job = env.command(&scrun).args(&words).env(name, value);
    let mut job = job.timeout(DEBUGGER_TIMEOUT).start();
    job.wait_for("up", 2);
    let lines = format!("{ATTACH}set_flag(0)\ngdb.execute('detach')\n");
    let client = Client::new(env, "attach", &lines).unwrap();
    let _ = client.attach(job.pid()).timeout(DEBUGGER_TIMEOUT).run().expect_code(0);
    let rows = client.rows();
    assert!(rows.len() == 2 && rows[0].1 == program.to_str().unwrap(), "{rows:?}");

    let tracer = env.command("strace").args(&["-f", "-p", &rows[0].2.to_string()]);
    let mut tracer = tracer.timeout(DEBUGGER_TIMEOUT).start();
    tracer.wait_for_stderr("nanosleep");
    tracer.signal(Signal::SIGINT);
    let _ = tracer.wait();

    let job = DebuggedJob { env, job };
    // An MPI program has about a hundred files, which gdb would transfer through the stub.
    let commands = "break work\ncontinue\nbacktrace\nprint answer = 42\ndelete\ndetach\n";
    let outcome =
        job.gdb_with("set sysroot /\nset auto-solib-add off\n", commands).run().expect_code(0);
    assert_has(&outcome.text(), &["Breakpoint 1, ", " in main (", "$1 = 42"]);
    if is_first {
        lldb_stops(&job);
    }
    job.end(["answer 0", "answer 42"]);
}

/// lldb stops rank 0 in the program.
fn lldb_stops(job: &DebuggedJob<'_>) {
    let mut stub = job.scdb(&["gdb", "0", "-listen"]).start();
    stub.wait_for("\n", 1);
    let connect = format!("process connect unix-connect://{}", stub.stdout().trim_end());
    let mut words = vec!["-x", "-b"];
    let quick = "settings set target.preload-symbols false";
    for command in [quick, &connect, "breakpoint set -n work", "continue", "bt", "detach"] {
        words.extend(["-o", command]);
    }
    let lldb = job.env.command("lldb").args(&words).timeout(DEBUGGER_TIMEOUT);
    assert_has(
        &lldb.run().expect_code(0).text(),
        &["stop reason = breakpoint", "main(", "detached"],
    );
    let _ = stub.wait().expect_code(0);
}

#[test]
fn gdb_reaches_a_rank_of_an_mpi_program_that_runs_under_valgrind() {
    for needed in ["gdb", "valgrind"] {
        if !is_installed(needed) {
            return skip("mpi_valgrind", &format!("{needed} is not installed"));
        }
    }
    // One MPI library is enough, because all take the same path, and valgrind needs seconds to
    // start MPI.
    let Some((compiler, variable)) = compilers("mpi_valgrind").into_iter().next() else { return };
    let (name, value) = variable.split_once('=').unwrap_or(("NONE", ""));
    let env = TestEnv::new();
    let program = compile_program_by(&env, &compiler, "mpi_debugged");
    let program = program.to_str().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let prefix = format!("--vgdb-prefix={}/vgdb", env.dir().display());
    // valgrind runs only rank 1.
    let rank = format!(
        "[ $SCORE_SELF_NODE = 1 ] || exec {program}; \
         vgdb {prefix} --port={port} --wait=60 & exec valgrind -q --vgdb=yes {prefix} {program}"
    );
    let options = ["-nodes=2", "-mpi=openmpi", "sh", "-c", &rank];
    let mut job = env.scrun(&options).env(name, value).timeout(DEBUGGER_TIMEOUT).start();
    job.wait_for("up", 2);
    let remote = format!("target remote localhost:{port}");
    let gdb = env.command("gdb").args(&["-nx", "-q", "-batch"]);
    let commands = ["set remotetimeout 30", &remote, "break work", "continue"];
    let changes = ["set var *(int *)&answer = 42", "set var *(int *)&stop = 1", "delete", "detach"];
    let commands = commands.iter().chain(&changes);
    let gdb = commands.fold(gdb, |gdb, command| gdb.args(&["-ex", command]));
    let outcome = gdb.arg(program).timeout(DEBUGGER_TIMEOUT).run();
    assert_has(&outcome.text(), &["hit Breakpoint 1, ", "work (round="]);
    let outcome = job.wait().expect_code(0);
    let lines = outcome.sorted_lines();
    assert!(["answer 0", "answer 42"].iter().all(|one| lines.contains(&(*one).to_owned())));
}
