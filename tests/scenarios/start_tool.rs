//! A tool runs next to a job: one process on each host, as the job's user, outside of the job's PID
//! namespace. It ends with the job, whichever component is killed. It may clean up as long as it
//! touches its status file. Another user does not learn whether the job exists.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use score_tests::test_env::CLEANUP_TIMEOUT;
use score_tests::{Running, TestEnv, binaries};

const RANK: &str = "sleep 300";

/// Starts a job that runs until it is ended. Its processes print their directory.
fn start_job(env: &TestEnv, options: &[&str]) -> Running {
    let mut args = options.to_vec();
    args.extend(["system", "sh", "-c", "pwd; exec sleep 300"]);
    let mut job = env.scrun(&args).start();
    job.wait_for("/job-", 1);
    env.wait_for_process("a rank", |process| process.command == RANK);
    job
}

fn terminate(env: &TestEnv, job: Running) -> String {
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    env.assert_clean();
    outcome.stderr
}

fn start_tool(env: &TestEnv, job: &Running, args: &[&str]) -> score_tests::Outcome {
    let pid = job.pid().to_string();
    let command = env.command(binaries::program("start_tool")).args(&["--pid", &pid]);
    command.args(args).run()
}

fn end_tool(env: &TestEnv, job: &Running, args: &[&str]) -> score_tests::Outcome {
    let pid = job.pid().to_string();
    env.command(binaries::program("end_tool")).args(&["--pid", &pid]).args(args).run()
}

/// Waits until no process has this command line.
fn wait_until_ended(env: &TestEnv, command: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while env.processes().iter().any(|process| process.command == command) {
        assert!(Instant::now() < deadline, "{:#?}", env.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_tool_starts_beside_a_job_and_sees_its_processes() {
    let env = TestEnv::new();
    let mut job = start_job(&env, &["-x", "ONLY=ranks", "-nodes=2"]);
    let rank = env.wait_for_process("a rank", |process| process.command == RANK);
    let script = format!(
        "-c 'echo id $BG_JOBID $BG_TOOLID home $HOME only $ONLY.; cd $SCORE_TOOL_DIR && ls; \
         tr \\\\0 . < /proc/{}/cmdline; echo; readlink /proc/self/ns/pid tools/1; \
         exec sleep 400'",
        rank.pid
    );
    let outcome = start_tool(&env, &job, &["--tool", "/bin/sh", "--args", &script]);
    let outcome = outcome.expect_code(0);
    assert_eq!(outcome.text(), "tool /bin/sh has been started with ID 1.\n");
    job.wait_for_stderr("/bin/sh");
    let own_namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let home = std::env::var("HOME").unwrap_or_default();
    let stderr = job.stderr();
    let expected = [
        format!(": id 1 1 home {home} only .\n"),
        ": sleep.300.\n".to_owned(),
        format!(": {}\n", own_namespace.display()),
        ": toolctl_rank\n".to_owned(),
    ];
    for line in expected {
        let is_marked = |text: &str| text.starts_with("tool 1 on ") && line.trim_end().len() > 2;
        let mut lines = stderr.split_inclusive('\n');
        assert!(lines.any(|text| is_marked(text) && text.ends_with(&line)), "{line:?}: {stderr}");
    }
    env.wait_for_process("the tool", |process| process.command == "sleep 400");
    let directory = std::fs::read_link(format!("/proc/{}/cwd", rank.pid)).unwrap();
    let status = directory.join(".jobs/1/tools/status/1");
    assert!(status.exists());
    let outcome = end_tool(&env, &job, &["--tool", "2"]);
    assert!(outcome.code == 2 && outcome.stderr.contains("no tool 2"), "{outcome}");
    let outcome = end_tool(&env, &job, &["--tool", "1"]).expect_code(0);
    assert_eq!(outcome.text(), "tool 1 has ended: killed by SIGTERM\n");
    wait_until_ended(&env, "sleep 400");
    job.wait_for_stderr("was ended by SIGTERM");
    assert!(!status.exists());
    assert!(std::fs::symlink_metadata(directory.join(".jobs/1/tools/1")).is_err());
    // The number of the tool is not used again.
    let outcome = start_tool(&env, &job, &["--tool", "sleep", "--args", "401"]).expect_code(0);
    assert_eq!(outcome.text(), "tool sleep has been started with ID 2.\n");
    let _ = end_tool(&env, &job, &["--tool", "2", "--signal", "KILL"]).expect_code(0);
    job.wait_for_stderr("tool 2 (sleep)");
    assert!(job.stderr().contains("was ended by SIGKILL"), "{}", job.stderr());
    terminate(&env, job);
}

// Promise of `the_line_names_ended_and_running_hosts`.
#[test]
fn end_tool_says_that_a_tool_still_runs_and_a_further_signal_ends_it() {
    let env = TestEnv::new();
    let mut job = start_job(&env, &["-group=local:2", "-nodes=2"]);
    job.wait_for("/job-", 2);
    let script = "-c 'trap \"\" TERM; echo caught; while sleep .05; do :; done'";
    let _ = start_tool(&env, &job, &["--tool", "sh", "--args", script]).expect_code(0);
    for host in ["local0", "local1"] {
        job.wait_for_stderr(&format!("tool 1 on {host}: caught"));
    }
    let outcome = end_tool(&env, &job, &["--tool", "1"]).expect_code(0);
    assert_eq!(outcome.text(), "SIGTERM was sent to tool 1, which still runs on 2 hosts\n");
    let outcome = end_tool(&env, &job, &["--tool", "1", "--signal", "KILL"]).expect_code(0);
    assert_eq!(outcome.text(), "tool 1 has ended: killed by SIGKILL\n");
    let outcome = end_tool(&env, &job, &["--tool", "1"]);
    assert!(outcome.code == 2 && outcome.stderr.contains("has ended on all hosts"), "{outcome}");
    terminate(&env, job);
}

#[test]
fn a_tool_that_cannot_be_started_is_named_and_a_fifth_tool_is_refused() {
    let env = TestEnv::new();
    let job = start_job(&env, &["-nodes=1"]);
    for (tool, code, text) in [
        ("/none", 127, "/none: not found"),
        ("no-such-tool", 127, "no-such-tool: not found"),
        ("/etc/passwd", 126, "/etc/passwd: Permission denied"),
    ] {
        let outcome = start_tool(&env, &job, &["--tool", tool]);
        assert!(outcome.code == code && outcome.stderr.contains(text), "{outcome}");
    }
    let outcome = start_tool(&env, &job, &["--tool", "sleep", "--hosts", "nowhere"]);
    assert!(outcome.stderr.contains("host nowhere is not a host of the job"), "{outcome}");
    for seconds in 401..405 {
        let arg = seconds.to_string();
        let _ = start_tool(&env, &job, &["--tool", "sleep", "--args", &arg]).expect_code(0);
    }
    let outcome = start_tool(&env, &job, &["--tool", "sleep", "--args", "405"]);
    assert!(outcome.code == 2 && outcome.stderr.contains("has 4 tools already ("), "{outcome}");
    // After a tool has ended by itself, another tool may start, and the job is not affected.
    let tool = env.wait_for_process("a tool", |process| process.command == "sleep 403");
    tool.signal(Signal::SIGKILL);
    wait_until_ended(&env, "sleep 403");
    let deadline = Instant::now() + Duration::from_secs(10);
    while start_tool(&env, &job, &["--tool", "sleep", "--args", "405"]).code != 0 {
        assert!(Instant::now() < deadline, "{}", job.stderr());
    }
    terminate(&env, job);
}

#[test]
fn the_scrun_of_another_user_and_a_missing_scrun_cause_the_same_error() {
    if !geteuid().is_root() {
        return;
    }
    let env = TestEnv::new();
    let job = start_job(&env, &["-nodes=1"]);
    let refused = |pid: i32| {
        let mut command = Command::new(binaries::program("start_tool"));
        command.args(["--pid", &pid.to_string(), "--tool", "true"]).uid(BOB).gid(BOB);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).replace(&pid.to_string(), "PID");
        (output.status.code(), text)
    };
    let of_another = refused(job.pid());
    assert_eq!(of_another, refused(std::process::id() as i32));
    assert!(of_another.1.contains("you have no scrun"), "{of_another:?}");
    terminate(&env, job);
}

#[test]
fn a_stopped_scrun_and_a_session_of_scout_hinder_no_tool() {
    let env = TestEnv::new();
    let job = start_job(&env, &["-nodes=1"]);
    job.signal(Signal::SIGSTOP);
    let _ = start_tool(&env, &job, &["--tool", "sleep", "--args", "400"]).expect_code(0);
    let _ = end_tool(&env, &job, &["--tool", "1"]).expect_code(0);
    wait_until_ended(&env, "sleep 400");
    let address = job.job_address();
    let stacks = env.command(binaries::program("scdb")).args(&[&address, "stacks"]).run();
    assert!(stacks.expect_code(0).text().contains("sleep"));
    job.signal(Signal::SIGCONT);
    terminate(&env, job);
    // The tool must start for the second job of the session.
    let line = "scrun -nodes=1 system true < /dev/null\nscrun -nodes=1 system sh -c 'sleep 300' & \
                until start_tool --pid $! --tool sleep --args 400 2> /dev/null; do\nsleep .05\n\
                done\n\
                end_tool --pid $! --tool 1 && echo ended; kill $!\n";
    let scout = env.command(binaries::program("scout")).args(&["-g", "local:2"]).input(line);
    let outcome = scout.run();
    assert!(outcome.text().contains("tool sleep has been started with ID 1.\n"), "{outcome}");
    assert!(outcome.text().contains("ended\n"), "{outcome}");
}

/// Starts a job with a tool that has left its session like a daemon.
fn job_with_daemonising_tool(env: &TestEnv) -> Running {
    let job = start_job(env, &["-nodes=1"]);
    let script =
        "-c 'setsid sleep 400 & (setsid sh -c \"sleep 401 & sleep 402\" &); exec sleep 403'";
    let _ = start_tool(env, &job, &["--tool", "sh", "--args", script]).expect_code(0);
    for seconds in [400, 401, 402, 403] {
        let command = format!("sleep {seconds}");
        env.wait_for_process(&command, |process| process.command == command);
    }
    job
}

/// The name of a component, and a function that recognizes its process.
type Victim = (&'static str, fn(&Process) -> bool);

fn is_supervisor(process: &Process) -> bool {
    process.has_name("scored-tool")
}

fn is_keeper(process: &Process) -> bool {
    process.has_name("scored-keeper")
}

// Promise of `a_tool_runs_on_all_requested_hosts_or_on_none`.
#[test]
fn no_process_of_a_tool_remains_after_any_component_is_killed() {
    let victims: [Victim; 5] = [
        ("scored", Process::is_scored),
        ("the shepherd", Process::is_shepherd),
        ("scrun", Process::is_scrun),
        ("a rank", |process| process.command == RANK),
        ("both", |process| process.is_scored() || is_supervisor(process)),
    ];
    for (name, is_victim) in victims {
        let env = TestEnv::new();
        let job = job_with_daemonising_tool(&env);
        for process in env.processes().iter().filter(|process| is_victim(process)) {
            process.signal(Signal::SIGKILL);
        }
        if name == "both" {
            // After the death of the tool's parent, only a cgroup can find the tool's children.
            env.processes()
                .iter()
                .filter(|one| one.command.starts_with("sleep 40"))
                .for_each(|process| process.signal(Signal::SIGKILL));
        }
        let clean = env.wait_until_clean(CLEANUP_TIMEOUT);
        clean.unwrap_or_else(|left| panic!("after SIGKILL of {name}: {left:#?}"));
        let _ = job.wait();
    }
}

#[test]
fn the_death_of_a_tool_or_of_its_supervisor_does_not_end_the_job() {
    let env = TestEnv::new();
    for victim in
        [(|process| process.command == "sleep 403") as fn(&Process) -> bool, is_supervisor]
    {
        let mut job = job_with_daemonising_tool(&env);
        env.wait_for_process("the victim", victim).signal(Signal::SIGKILL);
        for seconds in [400, 401, 402, 403] {
            wait_until_ended(&env, &format!("sleep {seconds}"));
        }
        job.wait_for_stderr("was ended by SIGKILL");
        assert!(env.processes().iter().any(|process| process.command == RANK));
        let _ = start_tool(&env, &job, &["--tool", "true"]).expect_code(0);
        terminate(&env, job);
    }
}

// Promise of `a_tool_has_sixty_seconds_from_each_touch_and_ten_minutes_in_all`.
#[test]
fn a_tool_may_clean_up_as_long_as_it_touches_its_file() {
    // The script, the two limits in milliseconds, the shortest time in seconds, and the end.
    let cases = [
        // The tool ends by itself.
        ("for i in 1 2 3 4; do touch $f; sleep 1; done; exit 0", "3000", "60000", 4.0, "done"),
        // The tool does not touch its file.
        ("sleep 60", "600", "60000", 0.5, "SIGKILL"),
        // The tool touches its file for ever.
        ("while :; do touch $f; sleep .1; done", "10000", "3000", 3.0, "SIGKILL"),
    ];
    for (script, silence, cleanup, min, end) in cases {
        let env = TestEnv::new();
        let command = "pwd; until [ -e go ]; do sleep .01; done; exit 3";
        let mut job = env
            .scrun(&["-nodes=1", "system", "sh", "-c", command])
            .env("SCORE_TEST_TOOL_SILENCE_MS", silence)
            .env("SCORE_TEST_TOOL_CLEANUP_MS", cleanup)
            .start();
        job.wait_for("/job-", 1);
        let tool = format!(
            "-c 'f=$SCORE_TOOL_DIR/tools/status/1; trap over=1 TERM; echo ready; \
             until [ $over ]; do sleep .05; done; trap \"\" TERM; ({script}) && echo done'"
        );
        let _ = start_tool(&env, &job, &["--tool", "sh", "--args", &tool]).expect_code(0);
        job.wait_for_stderr("ready");
        let stdout = job.stdout();
        std::fs::write(format!("{}/go", stdout.trim()), "").unwrap();
        let ended_at = Instant::now();
        let outcome = job.wait().expect_code(3);
        let elapsed = ended_at.elapsed().as_secs_f64();
        assert!(elapsed >= min && elapsed < 40.0, "{script}: {elapsed}: {outcome}");
        assert!(outcome.stderr.contains(end), "{script}: {outcome}");
        env.assert_clean();
    }
}

#[test]
fn an_interrupt_ends_tools_that_clean_up() {
    let env = TestEnv::new();
    let command = "pwd; until [ -e go ]; do sleep .01; done";
    let mut job = env.scrun(&["-nodes=1", "system", "sh", "-c", command]).start();
    job.wait_for("/job-", 1);
    let tool = "-c 'trap \"\" TERM; echo ready; exec sleep 400'";
    let _ = start_tool(&env, &job, &["--tool", "sh", "--args", tool]).expect_code(0);
    job.wait_for_stderr("ready");
    std::fs::write(format!("{}/go", job.stdout().trim()), "").unwrap();
    // The job's directory still exists, because it contains the tool's status file.
    env.wait_for_process("the tool", |process| process.command == "sleep 400");
    wait_until_ended(&env, "sh -c pwd; until [ -e go ]; do sleep .01; done");
    std::thread::sleep(Duration::from_millis(300));
    assert!(env.processes().iter().any(|process| process.command == "sleep 400"));
    job.signal(Signal::SIGINT);
    let _ = job.wait();
    env.assert_clean();
}

#[test]
fn a_tool_of_scrun_starts_before_the_first_process() {
    let env = TestEnv::new();
    let wait = "until grep -s toolctl_rank $TMPDIR/seen; do sleep .01; done";
    let line = format!(
        "exec scrun --tool sh --tool-arguments \"-c 'ls \\$SCORE_TOOL_DIR > $TMPDIR/listed; \
         echo up; mv $TMPDIR/listed $TMPDIR/seen; exec sleep 400'\" -x A=b -nodes=2 \
         system sh -c '{wait}; echo $A'"
    );
    let outcome = env.sh(&line).run().expect_code(0);
    assert_eq!(outcome.text().matches("toolctl_rank\n").count(), 2, "{outcome}");
    assert_eq!(outcome.text().matches("b\n").count(), 2, "{outcome}");
    assert!(outcome.stderr.contains(": up\n"), "{outcome}");
    let _ = env.sh("rm $TMPDIR/seen").run().expect_code(0);
    let line = "scrun -tool /none -nodes=1 system echo started";
    let outcome = env.sh(line).run().expect_code(127);
    assert_eq!(outcome.text(), "");
    assert!(outcome.stderr.contains("/none: not found"), "{outcome}");
    let outcome = env.sh("scrun -tool t -tool-arguments \"'a\" -nodes=1 system true").run();
    let outcome = outcome.expect_code(2);
    assert!(outcome.stderr.contains("the quote ' is not closed"), "{outcome}");
}

// Promise (tools): A tool starts for a job on all requested hosts or on none, from any host of the
// cluster, only for the job's owner; it ends with the job, whichever process is killed.
#[test]
fn a_tool_runs_on_all_requested_hosts_or_on_none() {
    let env = TestEnv::new();
    let mut job = start_job(&env, &["-group=local:3", "-nodes=3"]);
    job.wait_for("/job-", 3);
    let count =
        |command: &str| env.processes().iter().filter(|process| process.command == command).count();
    let outcome = start_tool(&env, &job, &["--tool", "sleep", "--args", "400"]).expect_code(0);
    assert_eq!((outcome.text().lines().count(), count("sleep 400")), (1, 3));
    let args = ["--tool", "sleep", "--args", "401", "--hosts", "local2,local0"];
    let _ = start_tool(&env, &job, &args).expect_code(0);
    assert_eq!(count("sleep 401"), 2);
    let outcome = start_tool(&env, &job, &["--tool", "/none"]);
    let is_named = (0..3).any(|host| outcome.stderr.contains(&format!("host local{host}: /none")));
    assert!(outcome.code == 127 && is_named, "{outcome}");
    // The tool fails on one host, and SCore ends it on the others.
    let stdout = job.stdout();
    let broken = stdout.lines().next().unwrap();
    std::fs::remove_dir_all(format!("{broken}/.jobs")).unwrap();
    let outcome = start_tool(&env, &job, &["--tool", "sleep", "--args", "402"]);
    let is_named = outcome.stderr.contains("host local") && outcome.stderr.contains("tools/status");
    assert!(outcome.code == 1 && is_named, "{outcome}");
    wait_until_ended(&env, "sleep 402");
    let _ = end_tool(&env, &job, &["--tool", "1"]).expect_code(0);
    wait_until_ended(&env, "sleep 400");
    assert_eq!(count("sleep 401"), 2);
    terminate(&env, job);
}

// Promise of `a_tool_runs_on_all_requested_hosts_or_on_none`.
#[test]
fn tools_of_users_are_reached_from_every_host_by_their_owner_only() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let mut job = cluster.scrun(ALICE, "a", "nodes=2x1", "pwd; exec sleep 300").start();
    job.wait_for("/job-", 2);
    let listing = cluster.console(ALICE, "a", &["-list"]).text();
    let id = listing.split_whitespace().nth(1).unwrap_or_else(|| panic!("{listing}"));
    let id = id.trim_end_matches(',').to_owned();
    let tool = |uid: u32, host: &str, name: &str, args: &[&str]| {
        cluster.command(uid, name, host).args(args).run()
    };
    let script = "-c 'id -u; cat /proc/self/status | grep CapEff; exec sleep 400'";
    let start = ["--id", &id, "--tool", "sh", "--args", script];
    for uid in [BOB, OPERATOR] {
        let refused = tool(uid, "b", "start_tool", &start);
        let wrong = tool(uid, "b", "start_tool", &["--id", "999", "--tool", "sh"]);
        let text = |outcome: &score_tests::Outcome, id: &str| outcome.stderr.replace(id, "ID");
        assert_eq!(text(&refused, &id), text(&wrong, "999"));
        assert_eq!((refused.code, wrong.code), (1, 1), "{refused}");
        let refused = tool(uid, "a", "end_tool", &["--id", &id, "--tool", "1"]);
        assert!(refused.code == 1 && refused.stderr.contains("you have no job"), "{refused}");
    }
    let outcome = tool(ALICE, "b", "start_tool", &start);
    assert_eq!(
        (outcome.code, outcome.text().as_str()),
        (0, "tool sh has been started with ID 1.\n")
    );
    job.wait_for_stderr("tool 1 on a: CapEff");
    job.wait_for_stderr("tool 1 on b: CapEff");
    assert!(job.stderr().contains("tool 1 on a: 61001\n"), "{}", job.stderr());
    assert!(job.stderr().contains("CapEff:\t0000000000000000\n"), "{}", job.stderr());
    let outcome = tool(ALICE, "a", "end_tool", &["--id", &id, "--tool", "1"]);
    let line = "tool 1 has ended: killed by SIGTERM\n";
    assert_eq!((outcome.code, outcome.text().as_str()), (0, line));
    wait_until_ended(&env, "sleep 400");
    // The tools end with the job.
    assert_eq!(tool(ALICE, "a", "start_tool", &start).code, 0);
    env.wait_for_process("the tool", |process| process.command == "sleep 400");
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
    wait_until_ended(&env, "sleep 400");
}

// Promise of `a_tool_runs_on_all_requested_hosts_or_on_none`.
#[test]
fn no_tool_outlives_the_keeper_the_daemon_or_its_supervisor() {
    let victims: [Victim; 4] = [
        ("keeper", is_keeper),
        ("scored", Process::is_scored),
        ("supervisor", is_supervisor),
        ("shepherd", Process::is_shepherd),
    ];
    for (name, is_victim) in victims {
        let env = TestEnv::new();
        let Some(mut cluster) = Cluster::start(&env, &["a"]) else { return };
        let mut job = cluster.scrun(ALICE, "a", "nodes=1", "pwd; exec sleep 300").start();
        job.wait_for("/job-", 1);
        let pid = job.pid().to_string();
        let script = "-c '(setsid sh -c \"sleep 401 & sleep 402\" &); exec sleep 403'";
        let args = ["--pid", &pid, "--tool", "sh", "--args", script];
        let outcome = cluster.command(ALICE, "start_tool", "a").args(&args).run();
        assert_eq!(outcome.code, 0, "{outcome}");
        for seconds in [401, 402, 403] {
            let command = format!("sleep {seconds}");
            env.wait_for_process(&command, |process| process.command == command);
        }
        env.wait_for_process(name, is_victim).signal(Signal::SIGKILL);
        for seconds in [401, 402, 403] {
            wait_until_ended(&env, &format!("sleep {seconds}"));
        }
        if name == "supervisor" {
            job.signal(Signal::SIGTERM);
        }
        let _ = job.wait();
        if matches!(name, "keeper" | "scored") {
            // The next scored removes the files that are left on the disk. The socket is free when
            // all processes of the killed scored have ended.
            cluster.signal_daemon("a", Signal::SIGKILL);
            let killed_at = Instant::now();
            let is_left = |process: &Process| process.is_scored() || is_keeper(process);
            while env.processes().iter().any(is_left) {
                assert!(killed_at.elapsed() < Duration::from_secs(20), "{:#?}", env.processes());
                std::thread::sleep(Duration::from_millis(5));
            }
            cluster.start_host("a");
        }
    }
}

// Promise of `a_tool_has_sixty_seconds_from_each_touch_and_ten_minutes_in_all`.
#[test]
fn other_jobs_run_while_a_tool_cleans_up_within_the_limit_of_the_operator() {
    let env = TestEnv::new();
    let database = Cluster::database(&["a"]);
    let options = ["-cleanup", "10"];
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], &database, &options) else {
        return;
    };
    let script = "pwd; until [ -e go ]; do sleep .01; done; exit 3";
    let mut job = cluster.scrun(ALICE, "a", "nodes=2", script).start();
    job.wait_for("/job-", 2);
    let pid = job.pid().to_string();
    // The limit of the operator, 10 s, is shorter than the time to touch the status file.
    let tool = "-c 'trap \"\" TERM; echo ready; exec sleep 400'";
    let args = ["--pid", &pid, "--tool", "sh", "--args", tool];
    let outcome = cluster.command(ALICE, "start_tool", "a").args(&args).run();
    assert_eq!(outcome.code, 0, "{outcome}");
    job.wait_for_stderr("ready");
    let directory = job.stdout().lines().next().unwrap().to_owned();
    std::fs::write(format!("{directory}/go"), "").unwrap();
    let ended_at = Instant::now();
    let other = cluster.scrun(BOB, "a", "nodes=2", "echo other").run();
    assert_eq!((other.code, other.text().as_str()), (0, "other\nother\n"), "{other}");
    assert!(env.processes().iter().any(|process| process.command == "sleep 400"));
    let outcome = job.wait();
    assert_eq!(outcome.code, 3, "{outcome}");
    assert!(ended_at.elapsed() >= Duration::from_secs(10), "{outcome}");
    assert!(outcome.stderr.contains("was ended by SIGKILL"), "{outcome}");
    wait_until_ended(&env, "sleep 400");
}
