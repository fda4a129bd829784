//! `scdb JOB stacks` shows the stacks of all processes of a running job as one tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::test_env::is_installed;
use score_tests::{Outcome, Running, TestEnv, skip};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The run time of the program in seconds, if it is not killed.
const LONG: &str = "300";
const SERVICE: &str = "scored-toolctl";

/// Copies the program so that every user may run it.
fn copy_program(env: &TestEnv) -> Option<PathBuf> {
    let built = env.test_program("stacks")?;
    let path = env.dir().join("stacks");
    std::fs::copy(built, &path).unwrap();
    Some(path)
}

/// Runs scdb on a job in single-user mode.
fn scdb(env: &TestEnv, job: &Running, args: &[&str]) -> Outcome {
    env.command("scdb")
        .args(&[&job.job_address(), "stacks"])
        .args(args)
        .timeout(ANSWER_TIMEOUT)
        .run()
}

/// Starts the program, and waits until all of its processes run.
fn start(env: &TestEnv, options: &[&str], program: &Path, processes: usize) -> Running {
    let mut job = env.scrun(options).args(&[program.to_str().unwrap(), LONG]).start();
    job.wait_for("up", processes);
    job
}

/// Ends the job as its user does.
fn end(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

/// Returns the line of a frame with its ranks.
fn line_of(text: &str, frame: &str) -> String {
    let line = text.lines().find(|line| line.contains(frame));
    let line = line.unwrap_or_else(|| panic!("no {frame} in\n{text}"));
    line.trim_start_matches(['|', ' ', '`', '-']).to_owned()
}

fn assert_tree(outcome: &Outcome, computing: &str, waiting: &str) {
    assert_eq!(outcome.code, 0, "{outcome}");
    let text = outcome.text();
    let computing = format!("compute_something in stacks  {computing}");
    assert_eq!(line_of(&text, "compute_something"), computing);
    let waiting = format!("wait_for_the_end in stacks  {waiting}");
    assert_eq!(line_of(&text, "wait_for_the_end"), waiting);
    assert!(text.contains("count_down in stacks"), "{text}");
}

// Promise (tools): scdb shows the stacks of all ranks as one tree, on one host and on several.
#[test]
fn stacks_of_all_ranks_are_one_tree_on_one_host_and_on_several() {
    let env = TestEnv::new();
    let Some(program) = copy_program(&env) else { return };
    let shapes = [
        (&["-nodes=6"][..], 6, "[0-2,4-5]", "[3]"),
        (&["-group=local:4", "-nodes=4x2"], 8, "[0-2,4-6]", "[3,7]"),
    ];
    for (options, processes, computing, waiting) in shapes {
        let job = start(&env, options, &program, processes);
        assert_tree(&scdb(&env, &job, &[]), computing, waiting);
        assert_tree(&scdb(&env, &job, &["-ranks", "2-3"]), "[2]", "[3]");
        let dot = scdb(&env, &job, &["-dot"]).expect_code(0).text();
        assert!(dot.starts_with("digraph") && dot.contains("compute_something"), "{dot}");
        let json = scdb(&env, &job, &["-json", "-lines"]).expect_code(0).text();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["programs"], serde_json::json!(["stacks"]));
        assert!(json["stacks"].to_string().contains("compute_something"), "{json}");
        end(job);
    }
}

// Promise of `stacks_of_all_ranks_are_one_tree_on_one_host_and_on_several`.
#[test]
fn programs_of_a_pipeline_have_ranks_one_after_the_other() {
    let env = TestEnv::new();
    let Some(program) = copy_program(&env) else { return };
    let program = program.to_str().unwrap();
    let line = format!("exec scrun -nodes=2 {program} {LONG} == {program} {LONG}");
    let mut job = env.sh(&line).start();
    job.wait_for("up", 2);
    // The right program gets the output of the left one, so the left one may still be starting.
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let text = loop {
        let text = scdb(&env, &job, &[]).expect_code(0).text();
        if line_of(&text, "_start").ends_with("[0-3]") {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
    };
    assert!(text.starts_with("stacks: ranks 0-1\nstacks: ranks 2-3\n"), "{text}");
    let only_right = scdb(&env, &job, &["-ranks", "3"]).expect_code(0).text();
    assert!(line_of(&only_right, "_start").ends_with("[3]"), "{only_right}");
    end(job);
}

// Promise (tools): The tool control service may be killed at any time; a process that cannot be
// traced is named.
#[test]
fn a_kill_of_the_service_at_any_time_does_not_change_the_job() {
    let env = TestEnv::new();
    let Some(program) = copy_program(&env) else { return };
    let words = ["-nodes=4", program.to_str().unwrap(), LONG];
    let mut job = env.scrun(&words).timeout(ANSWER_TIMEOUT * 3).start();
    job.wait_for("up", 4);
    for _ in 0..10 {
        let question = env.command("scdb").args(&[&job.job_address(), "stacks"]).start();
        let service = env.wait_for_process(SERVICE, |process| process.program() == SERVICE);
        service.signal(Signal::SIGKILL);
        // The service was killed before, during or after its work.
        let outcome = question.wait();
        let is_named = outcome.stderr.contains("scored-toolctl has ended");
        assert!(outcome.code == 0 || (outcome.code == 1 && is_named), "{outcome}");
    }
    assert_tree(&scdb(&env, &job, &[]), "[0-2]", "[3]");
    job.signal(Signal::SIGUSR1);
    let outcome = job.wait().expect_code(0);
    assert_eq!(outcome.text().matches("ok").count(), 4, "{outcome}");
}

// Promise of `a_kill_of_the_service_at_any_time_does_not_change_the_job`.
#[test]
fn processes_whose_stacks_cannot_be_read_are_named() {
    let env = TestEnv::new();
    let Some(program) = copy_program(&env) else { return };
    let script = "if [ $SCORE_SELF_NODE = 1 ]; then exit 0; fi; echo up; exec sleep 300";
    let mut job = env.scrun(&["-nodes=3", "/bin/sh", "-c", script]).start();
    job.wait_for("up", 2);
    let asked_since = Instant::now();
    let is_ended = || {
        let outcome = scdb(&env, &job, &["-ranks", "1"]);
        outcome.code == 1 && outcome.stderr.contains("rank 1: it has ended, or has not started")
    };
    while !is_ended() {
        assert!(asked_since.elapsed() < ANSWER_TIMEOUT);
    }
    let outcome = scdb(&env, &job, &["-ranks", "2-3"]).expect_code(1);
    let _ = outcome.assert_stderr(&["rank 3: job 1 has ranks 0 to 2"]);
    end(job);
    if !is_installed("strace") {
        return skip("processes_whose_stacks_cannot_be_read_are_named", "strace is not installed");
    }
    let job = start(&env, &["-nodes=2"], &program, 2);
    let is_rank = |process: &Process| process.command.ends_with(&format!("stacks {LONG}"));
    let ranks: Vec<Process> = env.processes().into_iter().filter(is_rank).collect();
    let rank = ranks.iter().find(|process| process.program() == "stacks").unwrap();
    let mut tracer = Command::new("strace")
        .args(["-f", "-q", "-p", &rank.pid.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_traced = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", rank.pid)).unwrap();
        !status.contains("TracerPid:\t0\n")
    };
    while !is_traced() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let outcome = scdb(&env, &job, &[]).expect_code(1);
    assert!(outcome.text().contains("compute_something in stacks"), "{outcome}");
    let _ = outcome.assert_stderr(&["trace"]);
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    let _ = scdb(&env, &job, &[]).expect_code(0);
    end(job);
}

// Promise of `jobs_in_slices_answer_their_owner_alone_at_any_time`.
#[test]
fn a_suspended_job_answers_and_stays_suspended() {
    let env = TestEnv::new();
    let Some(program) = copy_program(&env) else { return };
    let job = start(&env, &["-nodes=4"], &program, 4);
    job.signal(Signal::SIGTSTP);
    let is_stopped = |process: &Process| process.program() == "stacks" && process.state == 'T';
    let wait_until_stopped = || {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while env.processes().into_iter().filter(is_stopped).count() < 4 {
            assert!(Instant::now() < deadline, "{:#?}", env.processes());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_until_stopped();
    for _ in 0..5 {
        assert_tree(&scdb(&env, &job, &[]), "[0-2]", "[3]");
    }
    // A process stops again when it gets a processor after scdb has left it.
    wait_until_stopped();
    job.signal(Signal::SIGCONT);
    end(job);
}

/// scdb requests the stacks of each job while it runs and while it is stopped. Only the owner gets
/// them.
// Promise (tools): scdb answers only the owner of a job, in any slice and while the job is
// suspended, and the job continues as before.
#[test]
fn jobs_in_slices_answer_their_owner_alone_at_any_time() {
    let env = TestEnv::new();
    let Some(program) = copy_program(&env) else { return };
    let database = "a address=127.0.0.1 cores=4 group=all\n";
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], database, &["-ts", "10"]) else {
        return;
    };
    // The service must be next to the copy of scored that serves the cluster.
    let _ = cluster.program(SERVICE);
    let program = program.to_str().unwrap();
    let start = |uid| {
        let job = cluster.command(uid, "scrun", "a");
        let job = job.args(&["-scored=all,nodes=4", program, LONG]);
        let mut job = job.timeout(ANSWER_TIMEOUT * 3).start();
        job.wait_for("up", 4);
        job.wait_for_stderr("4 nodes on 1 host");
        // "scrun: job 7: 4 nodes on 1 host"
        let number = job.stderr().split([' ', ':']).nth(3).unwrap().to_owned();
        (job, number)
    };
    let [(alices, alices_number), (bobs, bobs_number)] = [start(ALICE), start(BOB)];
    let ask = |uid, job: &str| {
        let job = cluster.command(uid, "scdb", "a").args(&[job, "stacks"]);
        job.timeout(ANSWER_TIMEOUT).run()
    };
    let asked_since = Instant::now();
    while asked_since.elapsed() < Duration::from_secs(3) {
        assert_tree(&ask(ALICE, &alices_number), "[0-2]", "[3]");
        assert_tree(&ask(BOB, &bobs_number), "[0-2]", "[3]");
    }
    // The service runs in the slices of other jobs, so its user must not be able to change its
    // memory.
    let is_service = |process: &Process| process.program() == SERVICE;
    for service in env.processes().iter().filter(|process| is_service(process)) {
        let memory = std::fs::metadata(format!("/proc/{}/mem", service.pid)).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&memory), 0);
    }
    // The answer for another user's job is the same as for a job that does not exist, even for
    // root, who is an operator.
    let numbers = [&alices_number, &bobs_number];
    for (uid, job) in [(ALICE, numbers[1]), (BOB, numbers[0]), (0, numbers[0])] {
        let outcome = ask(uid, job).expect_code(1);
        let _ = outcome.assert_stderr(&[&format!("scdb: you have no job {job}; scps lists")]);
    }
    let _ = ask(ALICE, "1").expect_code(1).assert_stderr(&["scdb: you have no job 1; scps"]);
    for job in [alices, bobs] {
        job.signal(Signal::SIGUSR1);
        let outcome = job.wait().expect_code(0);
        assert_eq!(outcome.text().matches("ok").count(), 4, "{outcome}");
    }
}
