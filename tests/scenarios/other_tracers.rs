//! Tracers of other projects trace processes of a job while the tool control service is active:
//! strace, and gdb on a rank under valgrind.

use std::net::TcpListener;
use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::test_env::is_installed;
use score_tests::tool::{TargetJob, Tool};
use score_tests::{TestEnv, skip};
use score_tools::wire::*;

use super::c_tool::compiled_tool;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn strace_and_a_tool_can_share_a_job_but_not_a_process() {
    if !is_installed("strace") {
        return skip("strace", "strace is not installed");
    }
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let mut tool = target_job.attach(b"together", 50);
    let [first, second] = [0, 1].map(|rank| tool.threads(rank)[0]);
    let strace = |pid: u32| env.command("strace").args(&["-f", "-p", &pid.to_string()]);
    let refused = strace(first).timeout(ANSWER_TIMEOUT).run();
    assert_ne!(refused.code, 0, "{refused}");
    let _ = refused.assert_stderr(&["Operation not permitted"]);
    assert_eq!(tool.detach().0, ReturnCode::Success);

    let mut tracer = strace(first).start();
    tracer.wait_for_stderr("nanosleep");
    let mut tool = Tool(target_job.connect());
    // The service refuses the rank that strace traces, but not the other one.
    let mut attach = |rank| {
        let select = ProcessSelect::RankInHeader;
        let request = ToolRequest::Attach(Attach { tag: *b"together", priority: 50, select });
        tool.ask(rank, &request, |header, message| match message {
            ServiceMessage::AttachRefused(reason) => (header.code().unwrap(), reason),
            _ => (header.code().unwrap(), String::new()),
        })
    };
    let (code, reason) = attach(0);
    let line = format!("process {first} is traced by process {} (strace)", tracer.pid());
    assert!(code == ReturnCode::RequestFailed && reason.starts_with(&line), "{code:?} {reason}");
    assert_eq!(attach(1).0, ReturnCode::Success);
    a_refusal_is_explained_to_all(&env, &target_job, &line);
    assert_eq!(tool.control(1, 0).0, ReturnCode::Success);
    tool.wait_for_change(1, target_job.targets[1].counter);
    assert_eq!(tool.threads(1)[0], second);
    drop(tool);
    tracer.signal(Signal::SIGINT);
    let _ = tracer.wait();
    target_job.end(0);
}

/// libscoretools, the console, the stub for gdb and `scdb JOB stacks` name the tracer of rank 0.
fn a_refusal_is_explained_to_all(env: &TestEnv, target_job: &TargetJob, line: &str) {
    let c_tool = env.command(compiled_tool(env, "c_attach"));
    let outcome = c_tool.arg(target_job.socket().to_str().unwrap()).arg("1").run();
    let expected = format!("{}: rank 0: {line}", ReturnCode::RequestFailed.number());
    assert!(outcome.text().starts_with(&expected), "{outcome}");
    let job = target_job.job.job_address();
    let hold = env.write_file("hold", "hold 0\n");
    for words in [&["-batch", hold.to_str().unwrap()][..], &["gdb", "0"], &["stacks"]] {
        let scdb = env.command("scdb").args(&[&job]).args(words).timeout(ANSWER_TIMEOUT);
        let outcome = scdb.run().expect_code(1);
        assert!(outcome.stderr.contains(&format!("rank 0: {line}")), "{words:?}: {outcome}");
    }
}

#[test]
fn gdb_reaches_a_rank_that_runs_under_valgrind() {
    if !is_installed("valgrind") || !is_installed("gdb") {
        return skip("valgrind", "valgrind or gdb is not installed");
    }
    let env = TestEnv::new();
    let Some(program) = env.test_program("tool_target") else { return };
    let program = program.to_str().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // vgdb finds valgrind by the process id that valgrind has in the job's PID namespace.
    let prefix = format!("--vgdb-prefix={}/vgdb", env.dir().display());
    let rank = format!(
        "vgdb {prefix} --port={port} --wait=60 & exec valgrind -q --vgdb=yes {prefix} {program}"
    );
    let mut job = env.scrun(&["-nodes=1", "sh", "-c", &rank]).start();
    job.wait_for("target ", 1);
    let remote = format!("target remote localhost:{port}");
    let commands = [
        "set remotetimeout 30",
        &remote,
        "break tick",
        "continue",
        "print *(long *)&counter >= 0",
        "set var *(long *)&stop = 1",
        "delete",
        "detach",
    ];
    let gdb = env.command("gdb").args(&["-nx", "-q", "-batch"]);
    let gdb = commands.iter().fold(gdb, |gdb, command| gdb.args(&["-ex", command]));
    let outcome = gdb.arg(program).timeout(ANSWER_TIMEOUT).run();
    let text = outcome.text();
    assert!(text.contains("hit Breakpoint 1") && text.contains("$1 = 1"), "{outcome}");
    job.wait_for("ended ", 1);
    let _ = job.wait().expect_code(0);
}
