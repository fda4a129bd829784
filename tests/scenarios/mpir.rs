//! A debugger for parallel programs without support for SCore starts scrun, or attaches to it.
//! It finds all processes of the job by the symbols of MPIR. If the debugger starts scrun, the
//! processes wait before their first instruction. Here gdb with `tests/programs/mpir_client.py` is
//! the debugger.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::tool::Tool;
use score_tests::{Job, Outcome, Running, TestEnv, binaries, skip, test_env};
use score_toolctl::client::ToolConnection;
use score_tools::wire::{Notice, ReturnCode, SignalReason, StartNotice};

const CLIENT: &str = include_str!("../programs/mpir_client.py");

/// The first lines of a client that starts scrun, up to the table of processes.
pub const TO_TABLE: &str = "run()\nsay('state', state())\nset_flag(1)\nassert go_on()\n\
                        say('state', state())\nsay_table()\nsay_held()\n";

/// A client of MPIR that gdb runs.
pub struct Client<'a> {
    env: &'a TestEnv,
    script: PathBuf,
    log: PathBuf,
}

impl<'a> Client<'a> {
    /// Makes a client that executes these lines. Without gdb, returns `None` and prints a skip.
    pub fn new(env: &'a TestEnv, name: &str, lines: &str) -> Option<Self> {
        if !test_env::is_installed("gdb") {
            skip("mpir", "gdb is not installed");
            return None;
        }
        let script = env.write_file(&format!("{name}.py"), format!("{CLIENT}\n{lines}"));
        let log = env.write_file(&format!("{name}.log"), "");
        Some(Self { env, script, log })
    }

    fn gdb(&self) -> Job {
        let script = self.script.to_str().unwrap();
        let gdb = self.env.command("gdb").args(&["-nx", "-q", "-batch", "-x", script]);
        gdb.env("CLIENT_LOG", self.log.to_str().unwrap())
    }

    /// Lets gdb start this command.
    pub fn start<S: AsRef<str>>(&self, command: &[S]) -> Job {
        self.gdb().arg("--args").args(command)
    }

    /// Lets gdb attach to this process.
    pub fn attach(&self, process: i32) -> Job {
        self.gdb().args(&["-p", &process.to_string()])
    }

    /// Lets gdb start this command as Alice on a host of a cluster.
    fn start_as_alice(&self, cluster: &Cluster<'_>, host: &str, command: &str) -> Job {
        for path in [&self.script, &self.log] {
            assert!(Command::new("chmod").args(["666"]).arg(path).status().unwrap().success());
        }
        let (program, args) = command.split_once(' ').unwrap();
        let gdb = self.env.sh(&format!(
            "cd /; setpriv --reuid={ALICE} --regid={ALICE} --clear-groups -- \
             gdb -nx -q -batch -x {} --args {} {args}",
            self.script.display(),
            cluster.program(program).display()
        ));
        gdb.env("CLIENT_LOG", self.log.to_str().unwrap())
            .env("SCORED_SOCKET", cluster.socket(host).to_str().unwrap())
    }

    /// The output of the client so far, line by line.
    fn said(&self) -> Vec<String> {
        fs::read_to_string(&self.log).unwrap().lines().map(str::to_owned).collect()
    }

    /// The rows of all tables: host, program, process.
    pub fn rows(&self) -> Vec<(String, String, i32)> {
        let said = self.said();
        let row = |line: &String| {
            let words: Vec<&str> = line.strip_prefix("row ")?.split(' ').collect();
            Some((words[0].to_owned(), words[1].to_owned(), words[2].parse().unwrap()))
        };
        said.iter().filter_map(row).collect()
    }

    fn wait_until_said(&self, line: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.said().iter().any(|said| said == line) {
            assert!(Instant::now() < deadline, "no {line:?}: {:#?}", self.said());
            sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn assert_said(&self, line: &str, outcome: &Outcome) {
        assert!(self.said().iter().any(|said| said == line), "{:#?}\n{outcome}", self.said());
    }
}

fn scrun() -> String {
    binaries::program("scrun").to_str().unwrap().to_owned()
}

/// Returns a shell program that writes into a file when it runs.
fn marking_program(env: &TestEnv) -> String {
    let text =
        format!("#!/bin/sh\necho $SCORE_SELF_NODE >> {}/ran\necho done\n", env.dir().display());
    let path = env.write_file("marking", text);
    let status = Command::new("chmod").arg("755").arg(&path).status();
    assert!(status.unwrap().success());
    path.to_str().unwrap().to_owned()
}

// Promise (MPI): A debugger that starts scrun (stripped or not) finds all processes of the stage in
// order by MPIR, each before its first instruction, independent of slices; other jobs have the
// processors meanwhile.
#[test]
fn a_debugger_that_starts_scrun_finds_all_processes_before_their_first_instruction() {
    let host = score_sys::host_name::system_host_name();
    for nodes in [3, 1] {
        let env = TestEnv::new();
        let lines = format!(
            "{TO_TABLE}time.sleep(1)\nsay_held()\nsay('early', os.path.exists('ran'))\n\
             say('job', text(pointer('MPIR_job_id')))\n\
             say('starter', number('MPIR_i_am_starter'), number('MPIR_partial_attach_ok'))\n\
             assert not go_on()\n"
        );
        let Some(client) = Client::new(&env, "client", &lines) else { return };
        let program = marking_program(&env);
        let command = [scrun(), format!("-nodes={nodes}"), program.clone()];
        let outcome = client.start(&command).run().expect_code(0);
        let rows = client.rows();
        assert_eq!(rows.len(), nodes, "{outcome}");
        assert!(rows.iter().all(|row| (&row.0, &row.1) == (&host, &program)), "{rows:?}");
        let held = format!("held {nodes} of {nodes}");
        let said = client.said();
        assert_eq!(said.iter().filter(|line| **line == held).count(), 2, "{said:#?}");
        for line in ["state 0", "state 1", "early False", "starter 1 1", "code 0"] {
            client.assert_said(line, &outcome);
        }
        assert!(said.iter().any(|line| line.starts_with("job ") && line.ends_with(&host)));
        assert_eq!(outcome.text().matches("done\n").count(), nodes, "{outcome}");
        let ran = fs::read_to_string(env.dir().join("ran")).unwrap();
        assert_eq!(ran.lines().count(), nodes);
    }
}

#[test]
fn a_rank_with_an_attached_debugger_stays_stopped_while_other_ranks_run() {
    let env = TestEnv::new();
    let rank_lines = "say('attached')\n\
                      while not os.path.exists('ran') or open('ran').read().count('\\n') < 2:\n    \
                          time.sleep(0.01)\n\
                      time.sleep(0.5)\nsay('ran', *sorted(open('ran').read().split()))\n\
                      gdb.execute('handle SIGCONT nostop noprint pass')\nassert not go_on()\n";
    let Some(rank_client) = Client::new(&env, "rank", rank_lines) else { return };
    let lines = format!(
        "{TO_TABLE}import subprocess\n\
         gdb_line = 'gdb -nx -q -batch -x {} -p %d < /dev/null' % table()[1][2]\n\
         subprocess.Popen(gdb_line, shell=True, env=dict(os.environ, CLIENT_LOG='{log}'))\n\
         while not open('{log}').read(): time.sleep(0.01)\n\
         assert not go_on()\n",
        rank_client.script.display(),
        log = rank_client.log.display()
    );
    let client = Client::new(&env, "client", &lines).unwrap();
    let command = [scrun(), "-nodes=3".to_owned(), marking_program(&env)];
    let outcome = client.start(&command).run().expect_code(0);
    client.assert_said("code 0", &outcome);
    let said = rank_client.said();
    assert_eq!(said, ["attached", "ran 0 2", "code 0"], "{outcome}");
}

// Promise of `a_debugger_that_starts_scrun_finds_all_processes_before_their_first_instruction`.
#[test]
fn a_stripped_scrun_works_for_debuggers_and_score_programs_also_wait() {
    let env = TestEnv::new();
    let Some(client) = Client::new(&env, "client", &format!("{TO_TABLE}assert not go_on()\n"))
    else {
        return;
    };
    let Some(program) = env.test_program("calls") else { return };
    let stripped = env.dir().join("scrun");
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(scrun()).status();
    assert!(strip.unwrap().success());
    let command = [stripped.to_str().unwrap(), "-nodes=4", program.to_str().unwrap(), "barrier"];
    let outcome = client.start(&command).run().expect_code(0);
    client.assert_said("held 4 of 4", &outcome);
    client.assert_said("code 0", &outcome);
    assert_eq!(outcome.text().matches("through\n").count(), 4, "{outcome}");
}

// Promise of `a_debugger_that_starts_scrun_finds_all_processes_before_their_first_instruction`.
#[test]
fn each_element_of_a_pipeline_and_each_stage_has_its_own_rows() {
    let env = TestEnv::new();
    let stage = "assert go_on()\nsay('next', state())\nsay_table()\nsay_held()\n";
    let lines = format!("{TO_TABLE}{stage}{stage}assert not go_on()\n");
    let Some(client) = Client::new(&env, "client", &lines) else { return };
    let words =
        "-nodes=2 system printf one\\n == /bin/cat :: system -host echo two :: /bin/echo three";
    let mut command = vec![scrun()];
    command.extend(words.split(' ').map(str::to_owned));
    let outcome = client.start(&command).run().expect_code(0);
    let programs: Vec<String> = client.rows().into_iter().map(|row| row.1).collect();
    // `system -host` starts one process on each host.
    let expected = ["printf", "printf", "/bin/cat", "/bin/cat", "echo", "/bin/echo", "/bin/echo"];
    assert_eq!(programs, expected, "{outcome}");
    for line in ["held 4 of 4", "next 1", "held 1 of 1", "held 2 of 2", "code 0"] {
        client.assert_said(line, &outcome);
    }
    // gdb also prints lines of its own.
    let text = outcome.text();
    let is_output = |line: &&str| ["one", "two", "three"].contains(line);
    let output: Vec<&str> = text.lines().filter(is_output).collect();
    assert_eq!(output, ["one", "one", "two", "three", "three"]);
}

#[test]
fn hosts_have_the_names_that_the_job_uses() {
    let env = TestEnv::new();
    let Some(client) = Client::new(&env, "client", &format!("{TO_TABLE}assert not go_on()\n"))
    else {
        return;
    };
    let command = [&scrun(), "-group=local:3,nodes=3x2", "system", "sh", "-c", "sleep 0; hostname"];
    let outcome = client.start(&command).run().expect_code(0);
    let hosts: Vec<String> = client.rows().into_iter().map(|row| row.0).collect();
    assert_eq!(hosts, ["local0", "local0", "local1", "local1", "local2", "local2"], "{outcome}");
    client.assert_said("held 6 of 6", &outcome);
    assert_eq!(outcome.text().matches("local").count(), 6, "{outcome}");
}

#[test]
fn in_a_session_of_scout_scrun_is_also_the_starter() {
    let env = TestEnv::new();
    let Some(client) = Client::new(&env, "client", &format!("{TO_TABLE}assert not go_on()\n"))
    else {
        return;
    };
    let line = format!(
        "gdb -nx -q -batch -x {} --args {} -nodes=2x1 /bin/echo done < /dev/null\n",
        client.script.display(),
        scrun()
    );
    let scout = env.command(binaries::program("scout")).args(&["-g", "local:2"]).input(line);
    let outcome = scout.env("CLIENT_LOG", client.log.to_str().unwrap()).run().expect_code(0);
    let hosts: Vec<String> = client.rows().into_iter().map(|row| row.0).collect();
    assert_eq!(hosts, ["local0", "local1"], "{outcome}");
    client.assert_said("held 2 of 2", &outcome);
    client.assert_said("code 0", &outcome);
    assert_eq!(outcome.text().matches("done\n").count(), 2, "{outcome}");
}

/// Starts a job to which a debugger attaches. Its processes end when the file `end` exists.
fn start_job(env: &TestEnv) -> Running {
    let script = format!(
        "echo up; while ! test -e {}/end; do sleep 0.05; done; echo done",
        env.dir().display()
    );
    let mut job = env.scrun(&["-nodes=3", "system", "sh", "-c", &script]).start();
    job.wait_for("up", 3);
    job
}

/// Checks that the job runs to its end as if there had been no debugger.
fn finish_job(env: &TestEnv, job: Running) {
    env.write_file("end", "");
    let outcome = job.wait().expect_code(0);
    assert_eq!(outcome.text().matches("done\n").count(), 3, "{outcome}");
    env.assert_clean();
}

/// Commands that attach, set the flag, and continue to the breakpoint.
pub const ATTACH: &str = "gdb.execute('break MPIR_Breakpoint')\n\
                      say('before', number('MPIR_being_debugged'), state())\nset_flag(1)\n\
                      begun = time.time()\nassert go_on()\nsay('took', time.time() - begun)\n\
                      say('state', state())\nsay_table()\n";

// Promise (MPI): A debugger that attaches finds the processes while they run, and leaves no trace,
// also if it is killed; if a debugger that has started scrun ends, the job ends.
#[test]
fn a_debugger_can_attach_detach_and_attach_again_without_effect_on_the_job() {
    let env = TestEnv::new();
    let lines = format!("{ATTACH}set_flag(0)\ngdb.execute('detach')\n");
    let Some(client) = Client::new(&env, "first", &lines) else { return };
    let job = start_job(&env);
    // The programs that the shells start are in the shells' sessions.
    let is_rank = |process: &Process| {
        process.command.starts_with("sh -c echo up") && process.session == process.pid
    };
    let mut ranks: Vec<i32> =
        env.processes().iter().filter(|&one| is_rank(one)).map(|rank| rank.pid).collect();
    ranks.sort_unstable();
    let clients = [client, Client::new(&env, "second", &lines).unwrap()];
    for client in clients {
        let outcome = client.attach(job.pid()).run().expect_code(0);
        let mut found: Vec<i32> = client.rows().iter().map(|row| row.2).collect();
        found.sort_unstable();
        assert_eq!(found, ranks, "{:#?}\n{outcome}", client.said());
        client.assert_said("state 1", &outcome);
        let took = client.said().iter().find_map(|line| line.strip_prefix("took ")?.parse().ok());
        let took: f64 = took.unwrap();
        println!("from the flag to the table: {:.1} ms", took * 1000.0);
        assert!(took < 30.0, "it took {took} s");
    }
    finish_job(&env, job);
}

// Promise of `a_debugger_can_attach_detach_and_attach_again_without_effect_on_the_job`.
#[test]
fn a_debugger_killed_while_attached_affects_neither_the_job_nor_later_debuggers() {
    let env = TestEnv::new();
    let lines = format!("{ATTACH}say('hangs')\ntime.sleep(1000)\n");
    let Some(client) = Client::new(&env, "killed", &lines) else { return };
    let job = start_job(&env);
    let gdb = client.attach(job.pid()).start();
    client.wait_until_said("hangs");
    gdb.signal(Signal::SIGKILL);
    let _ = gdb.wait();
    // scrun checks the flag every 20 ms.
    sleep(Duration::from_millis(500));
    let lines = format!("{ATTACH}set_flag(0)\ngdb.execute('detach')\n");
    let client = Client::new(&env, "next", &lines).unwrap();
    let outcome = client.attach(job.pid()).run().expect_code(0);
    client.assert_said("before 0 1", &outcome);
    assert_eq!(client.rows().len(), 3, "{outcome}");
    assert!(!outcome.text().contains("SIGTRAP"), "{outcome}");
    finish_job(&env, job);
}

// Promise of `a_debugger_can_attach_detach_and_attach_again_without_effect_on_the_job`.
#[test]
fn a_killed_debugger_ends_the_scrun_that_it_started_and_the_held_job() {
    let env = TestEnv::new();
    let lines = format!("{TO_TABLE}say('hangs')\ntime.sleep(1000)\n");
    let Some(client) = Client::new(&env, "client", &lines) else { return };
    let gdb = client.start(&[&scrun(), "-nodes=3", "system", "sleep", "300"]).start();
    client.wait_until_said("hangs");
    client.wait_until_said("held 3 of 3");
    gdb.signal(Signal::SIGKILL);
    let _ = gdb.wait();
    env.assert_clean();
}

#[test]
fn a_signal_that_ends_scrun_is_shown_to_the_debugger_first() {
    let env = TestEnv::new();
    let lines = format!(
        "gdb.execute('handle SIGTERM nostop noprint pass')\n{TO_TABLE}\
         os.kill(gdb.selected_inferior().pid, 15)\nassert go_on()\nsay('then', state())\n\
         assert not go_on()\n"
    );
    let Some(client) = Client::new(&env, "client", &lines) else { return };
    let outcome = client.start(&[&scrun(), "-nodes=2", "system", "sleep", "300"]).run();
    client.assert_said("then 2", &outcome);
    client.assert_said("code 137", &outcome);
    env.assert_clean();
}

#[test]
fn the_servers_of_the_debugger_run_when_it_sees_the_table() {
    let env = TestEnv::new();
    let servers = "run()\nset_flag(1)\n\
                   write('MPIR_executable_path', b'/bin/sh\\0')\n\
                   write('MPIR_server_arguments', ARGUMENTS)\n\
                   gdb.selected_inferior().write_memory(pointer('MPIR_subset_attach'), SUBSET)\n\
                   assert go_on()\nsay('state', state())\nsay_held()\n\
                   say('server', count_of('sleep 432', WANTED))\n\
                   assert not go_on()\n";
    let good = format!(
        "WANTED = 1\nARGUMENTS = b'-c\\0echo server of job $BG_JOBID; exec sleep 432\\0\\0'\n\
         SUBSET = b'2-$max:2\\0'\n{servers}"
    );
    let Some(client) = Client::new(&env, "good", &good) else { return };
    let command =
        [&scrun(), "-group=local:2,nodes=2x2", "system", "sh", "-c", "sleep 0.5; echo done"];
    let outcome = client.start(&command).run().expect_code(0);
    for line in ["state 1", "held 4 of 4", "server 1", "code 0"] {
        client.assert_said(line, &outcome);
    }
    let output = format!("{}{}", outcome.text(), outcome.stderr);
    assert!(output.contains("tool 1 on local1: server of job 1"), "{outcome}");
    assert!(!output.contains("tool 1 on local0"), "{outcome}");
    for (arguments, subset, expected) in [
        ("b'x' * 4096", "b'\\0'", "MPIR_server_arguments: no empty string closes the list"),
        ("b'\\0'", "b'0-4\\0'", "MPIR_subset_attach: '0-4': the job has 4 ranks"),
        ("b'\\0'", "b'0-3:0\\0'", "MPIR_subset_attach: '0-3:0': a stride of 0"),
    ] {
        let bad = format!("WANTED = 0\nARGUMENTS = {arguments}\nSUBSET = {subset}\n{servers}");
        let client = Client::new(&env, "bad", &bad).unwrap();
        let outcome = client.start(&command).run().expect_code(0);
        client.assert_said("server 0", &outcome);
        client.assert_said("code 0", &outcome);
        assert!(format!("{}{}", outcome.text(), outcome.stderr).contains(expected), "{outcome}");
    }
}

/// Whether a process is stopped now.
fn is_stopped(process: &Process) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('T')
}

// Promise of `a_debugger_that_starts_scrun_finds_all_processes_before_their_first_instruction`.
#[test]
fn slices_neither_start_held_processes_nor_take_time_of_other_jobs() {
    let env = TestEnv::new();
    let lines = format!(
        "{TO_TABLE}say('job', text(pointer('MPIR_job_id')))\n\
         while not os.path.exists('{}/go'): time.sleep(0.01)\n\
         say_held()\nassert not go_on()\n",
        env.dir().display()
    );
    let Some(client) = Client::new(&env, "client", &lines) else { return };
    let database = "a address=127.0.0.1 cores=1 group=all\n";
    let cluster = Cluster::start_with_options(&env, &["a"], database, &["-ts", "10"]);
    let Some(cluster) = cluster else { return };
    let mut other = cluster.scrun(BOB, "a", "nodes=1", "echo up; while :; do :; done").start();
    other.wait_for("up", 1);
    let spinner = env.wait_for_process("the spinner", |process| {
        process.command.starts_with("/bin/sh -c echo up")
    });
    let command = "scrun -scored=all,nodes=1 /bin/sh -c 'echo one; sleep 0.1; echo two'";
    let gdb = client.start_as_alice(&cluster, "a", command).start();
    client.wait_until_said("held 1 of 1");
    // If the jobs took turns of 10 ms, the other job would be stopped in half of the samples.
    let look = |_: &u32| {
        sleep(Duration::from_millis(7));
        is_stopped(&spinner)
    };
    let stopped = (0..200).filter(look).count();
    assert!(stopped < 20, "the other job was stopped in {stopped} of 200 samples");
    fs::write(env.dir().join("go"), "").unwrap();
    let outcome = gdb.wait().expect_code(0);
    let held = client.said().iter().filter(|line| *line == "held 1 of 1").count();
    assert_eq!(held, 2, "{:#?}\n{outcome}", client.said());
    client.assert_said("code 0", &outcome);
    let is_number = |id: &str| id.parse::<u32>().is_ok();
    let said = client.said();
    assert!(said.iter().any(|line| line.strip_prefix("job ").is_some_and(is_number)), "{said:#?}");
    // gdb prints lines of its own about threads of scrun.
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().filter(|line| ["one", "two"].contains(line)).collect();
    assert_eq!(lines, ["one", "two"], "{outcome}");
    other.signal(Signal::SIGTERM);
    let _ = other.wait();
}

/// The first lines of a client that starts start_tool, up to the table.
const START_TOOL: &str = "assert go_on()\nsay('state', state())\nsay_table()\n\
                          say('job', text(pointer('MPIR_job_id')))\n\
                          say('starter', number('MPIR_i_am_starter'))\n\
                          say('server', count_of(TOOL, WANTED))\nassert not go_on()\n";

#[test]
fn a_debugger_of_another_host_finds_a_running_job_by_a_stripped_start_tool() {
    let env = TestEnv::new();
    // No other test sleeps for this time.
    let tool = format!("sleep {}", 400_000 + std::process::id());
    let lines = format!(
        "TOOL, WANTED = '{tool}', 2\nrun()\nsay('state', state())\nset_flag(1)\n{START_TOOL}"
    );
    let Some(client) = Client::new(&env, "client", &lines) else { return };
    let Some(cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let mut job = cluster.scrun(ALICE, "a", "nodes=4", "echo up; exec sleep 300").start();
    job.wait_for("up", 4);
    let listing = cluster.console(ALICE, "a", &["-list"]).text();
    let id = listing.split_whitespace().nth(1).unwrap().trim_end_matches(',');
    let strip = Command::new("strip").arg(cluster.program("start_tool")).status();
    assert!(strip.unwrap().success());
    let arguments = tool.replace("sleep", "");
    let command = format!("start_tool --id {id} --tool sleep --args {arguments}");
    let outcome = client.start_as_alice(&cluster, "b", &command).run().expect_code(0);
    let said = client.said();
    let job_line = format!("job {id}");
    for line in ["state 0", "state 1", "starter 1", "server 2", &job_line, "code 0"] {
        client.assert_said(line, &outcome);
    }
    let rows = client.rows();
    let place = |(host, program, _): &(String, String, i32)| format!("{host} {program}");
    let mut places: Vec<_> = rows.iter().map(place).collect();
    places.sort();
    assert_eq!(places, ["a /bin/sh", "a /bin/sh", "b /bin/sh", "b /bin/sh"], "{said:#?}");
    for (_, _, process) in rows {
        let command = fs::read(format!("/proc/{process}/cmdline")).unwrap();
        assert_eq!(command, b"sleep\x00300\x00");
    }
    assert!(outcome.text().contains("tool sleep has been started with ID 1.\n"), "{outcome}");
    // If the client does not set the flag, there is no table and no stop, and the job runs as
    // usual.
    let quiet = Client::new(&env, "quiet", "run()\nsay('state', state())\nassert not go_on()\n");
    let quiet = quiet.unwrap();
    let outcome = quiet.start_as_alice(&cluster, "b", &command).run().expect_code(0);
    assert_eq!(quiet.said(), ["state 0", "code 0"], "{outcome}");
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
}

#[test]
fn start_tool_starts_the_servers_of_a_debugger_and_names_their_errors() {
    let env = TestEnv::new();
    let tool = format!("sleep {}", 500_000 + std::process::id());
    let servers = format!(
        "TOOL, WANTED = '{tool}', 1\nrun()\nset_flag(1)\n\
         write('MPIR_executable_path', b'/bin/sh\\0')\n\
         write('MPIR_server_arguments', b'-c\\0exec {tool}\\0\\0')\n\
         gdb.selected_inferior().write_memory(pointer('MPIR_subset_attach'), SUBSET)\n{START_TOOL}"
    );
    let client = Client::new(&env, "good", &format!("SUBSET = b'2-max\\0'\n{servers}"));
    let Some(client) = client else { return };
    let options = ["-group=local:2,nodes=2x2", "system", "sh", "-c", "echo up; exec sleep 300"];
    let mut job = env.scrun(&options).start();
    job.wait_for("up", 4);
    let id = job.job_address();
    let start_tool = binaries::program("start_tool");
    let command = [start_tool.to_str().unwrap(), "--id", &id, "--tool", "sleep", "--args", "300"];
    let outcome = client.start(&command).run().expect_code(0);
    for line in ["state 1", &format!("job {id}"), "server 1", "code 0"] {
        client.assert_said(line, &outcome);
    }
    let hosts: Vec<String> = client.rows().into_iter().map(|row| row.0).collect();
    assert_eq!(hosts, ["local0", "local0", "local1", "local1"]);
    let client = Client::new(&env, "bad", &format!("SUBSET = b'4\\0'\n{servers}")).unwrap();
    let outcome = client.start(&command).run();
    // The processes of the first client still run.
    for line in ["state 1", "server 1", "code 1"] {
        client.assert_said(line, &outcome);
    }
    let text = "start_tool: tool 3 (sleep) has been started, but MPIR_subset_attach: '4': the job";
    assert!(format!("{}{}", outcome.text(), outcome.stderr).contains(text), "{outcome}");
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
    env.assert_clean();
}

/// Returns a word of the auxiliary vector of a process.
fn auxiliary(process: i32, number: u64) -> u64 {
    let vector = fs::read(format!("/proc/{process}/auxv")).unwrap();
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    let mut pairs = vector.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.find(|pair| pair.0 == number).unwrap().1
}

/// Returns the byte that is really in memory. Tools get the original byte at a breakpoint.
fn byte_at(process: i32, address: u64) -> u8 {
    let mut byte = [0];
    let memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
    memory.read_exact_at(&mut byte, address).unwrap();
    byte[0]
}

#[test]
fn a_tool_that_has_authority_at_the_start_is_notified_in_the_loader_or_at_the_entry_point() {
    let env = TestEnv::new();
    let lines =
        format!("{TO_TABLE}while not os.path.exists('go'): time.sleep(0.01)\nassert not go_on()\n");
    let Some(client) = Client::new(&env, "client", &lines) else { return };
    let gdb = client.start(&[&scrun(), "-nodes=4", "/bin/echo", "done"]).start();
    client.wait_until_said("held 4 of 4");
    let processes: Vec<i32> = client.rows().iter().map(|row| row.2).collect();
    let folder = fs::read_link(format!("/proc/{}/cwd", processes[0])).unwrap();
    let socket = folder.join(".jobs/1/toolctl_node/0");
    // The shepherd creates the socket when the first process has started.
    let deadline = Instant::now() + Duration::from_secs(30);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "{} is missing", socket.display());
        sleep(Duration::from_millis(5));
    }
    let mut tool = Tool(ToolConnection::connect(&socket, 1, 0).unwrap());
    assert_eq!(tool.attach(b"starting", 50), (ReturnCode::Success, vec![0, 1, 2, 3]));
    let sigtrap = 1 << (Signal::SIGTRAP as u32 - 1);
    for (rank, notify_set, place) in [
        // The last request takes effect.
        (0, sigtrap, StartNotice::EntryPoint),
        (0, sigtrap, StartNotice::DynamicLoader),
        (1, sigtrap, StartNotice::EntryPoint),
        // The tool requests no notices of SIGTRAP for rank 2, and releases authority over rank 3
        // below.
        (2, 0, StartNotice::DynamicLoader),
        (3, sigtrap, StartNotice::DynamicLoader),
    ] {
        let (code, _) = tool.control_from_start(rank, notify_set, (0, place));
        assert_eq!(code, ReturnCode::Success);
    }
    tool.release(3);
    // The addresses of the loader and of the program: AT_BASE and AT_ENTRY.
    let [first, second] = [processes[0], processes[1]];
    let (base, entry) = (auxiliary(first, 7), auxiliary(second, 9));
    let start = base + tool.word(0, base + 24);
    assert_eq!((byte_at(first, start), byte_at(second, entry)), (0xcc, 0xcc));
    assert!(tool.memory(0, start, 1) != [0xcc] && tool.memory(1, entry, 1) != [0xcc]);
    assert_ne!(byte_at(first, auxiliary(first, 9)), 0xcc, "the first request has an effect");
    env.write_file("go", "");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        match tool.next_notice() {
            Some((rank, Notice::Signal(notice))) => {
                assert_eq!(notice.reason, SignalReason::Breakpoint);
                assert_eq!(notice.signal, Signal::SIGTRAP as u32);
                seen.push((rank, notice.instruction));
            }
            Some((_, Notice::Exit(_))) => {}
            other => panic!("{other:?}"),
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [(0, start), (1, entry)]);
    // The C library is not mapped before the loader has run.
    let has_libc = |process: i32| {
        fs::read_to_string(format!("/proc/{process}/maps")).unwrap().contains("/libc.so")
    };
    assert_eq!((has_libc(first), has_libc(second)), (false, true));
    assert!(byte_at(first, start) != 0xcc && byte_at(second, entry) != 0xcc);
    for rank in [0, 1] {
        tool.proceed(rank);
    }
    let outcome = gdb.wait().expect_code(0);
    assert_eq!(outcome.text().matches("done\n").count(), 4, "{outcome}");
    client.assert_said("code 0", &outcome);
}
