//! `scdb JOB gdb RANK`: a debugger controls one rank of a running job through gdb's remote
//! protocol. When the debugger detaches or is killed, the rank continues as if it had never been
//! debugged.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::terminal::Terminal;
use score_tests::{Job, Running, TestEnv, binaries, skip, test_env};

/// The time limit of a debugger and of its job. A debugger takes more than a minute to read symbols
/// if many ranks are busy.
pub const DEBUGGER_TIMEOUT: Duration = Duration::from_secs(240);

/// A job of the program `debugged`.
pub struct DebuggedJob<'a> {
    pub env: &'a TestEnv,
    pub job: Running,
}

/// Compiles the program with debug information. Returns `None` if the debugger or a compiler is
/// missing.
fn program(env: &TestEnv, debugger: &str) -> Option<PathBuf> {
    for needed in [debugger, "gcc"] {
        if !test_env::is_installed(needed) {
            skip(&format!("{debugger}_stub"), &format!("{needed} is not installed"));
            return None;
        }
    }
    let program = env.dir().join("debugged");
    let source = binaries::root().join("tests/programs/debugged.c");
    let paths = [source.to_str().unwrap(), "-o", program.to_str().unwrap()];
    let compiler = env.command("gcc").args(&["-g", "-O0", "-Wall", "-Wextra", "-Werror"]);
    let _ = compiler.args(&["-pthread"]).args(&paths).run().expect_code(0);
    Some(program)
}

impl<'a> DebuggedJob<'a> {
    /// Starts a job of two ranks. Returns `None` without the debugger.
    pub fn start(env: &'a TestEnv, debugger: &str) -> Option<Self> {
        Self::start_with(env, debugger, &["-nodes=2"])
    }

    /// Like [`Self::start`], with these options of scrun.
    fn start_with(env: &'a TestEnv, debugger: &str, options: &[&str]) -> Option<Self> {
        let program = program(env, debugger)?;
        let end = env.dir().join("end");
        let words = ["system", program.to_str().unwrap(), end.to_str().unwrap()];
        let mut job = env.scrun(options).args(&words).timeout(DEBUGGER_TIMEOUT).start();
        job.wait_for("up", 2);
        Some(Self { env, job })
    }

    /// The job's address on scdb's command line.
    fn address(&self) -> String {
        self.job.job_address()
    }

    /// Runs scdb on the job.
    pub fn scdb(&self, words: &[&str]) -> Job {
        self.env.command("scdb").args(&[&self.address()]).args(words).timeout(DEBUGGER_TIMEOUT)
    }

    /// Runs gdb on rank 1 with these commands. An error of a command ends gdb.
    pub fn gdb(&self, commands: &str) -> Job {
        self.gdb_with("", commands)
    }

    /// Like [`Self::gdb`], with additional commands before gdb connects.
    pub fn gdb_with(&self, settings: &str, commands: &str) -> Job {
        let stub = binaries::program("scdb");
        let target = format!("target remote | {} {} gdb 1", stub.display(), self.address());
        let text = format!("set pagination off\nset confirm off\n{settings}{target}\n{commands}");
        let script = self.env.write_file("commands.gdb", text);
        let words = ["-nx", "-q", "-batch", "-x", script.to_str().unwrap()];
        self.env.command("gdb").args(&words).timeout(DEBUGGER_TIMEOUT)
    }

    /// Lets the processes end, and checks what they have computed.
    pub fn end(self, answers: [&str; 2]) {
        self.env.write_file("end", "");
        let outcome = self.job.wait().expect_code(0);
        let text = outcome.text();
        let mut lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("answer ")).collect();
        lines.sort_unstable();
        assert_eq!(lines, answers, "{outcome}");
        self.env.assert_clean();
    }
}

#[track_caller]
pub fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

// Promise (tools): gdb and lldb connect to a rank of a running job through scdb, on any host,
// within its slices, only for its owner; if the debugger or scdb leaves or is killed, the rank
// continues unchanged.
#[test]
fn gdb_stops_reads_steps_watches_and_changes_a_rank_and_detaches() {
    let env = TestEnv::new();
    let Some(job) = DebuggedJob::start(&env, "gdb") else { return };
    // The commands use ^C, software and hardware breakpoints, steps, registers, a watchpoint, a
    // step of a thread that sleeps in a system call, a call in the process, and signals.
    let outcome = job
        .gdb(
            "python import threading, os\n\
             python threading.Timer(0.2, lambda: os.kill(os.getpid(), 2)).start()\n\
             continue\nbreak work\ncontinue\nbacktrace\ninfo threads\nprint round > 0\nnext\n\
             next\nprint twice == 2 * round\nprint $fs_base != 0\n\
             set $xmm3.v2_int64[0] = 77\nprint $xmm3.v2_int64[0]\n\
             watch watched\ncontinue\ncontinue\ndelete\n\
             tbreak await_assistance\ncontinue\nnext\nnext\nprint assisted > seen\n\
             thbreak work\ncontinue\nfinish\nthread 2\nstepi\necho stepped\\n\n\
             print (int)getpid() > 0\nbreak on_signal\nsignal SIGUSR1\ndelete\nthread 1\n\
             python os.kill(gdb.selected_thread().ptid[1], 10)\ncontinue\n\
             print answer = 42\nprint stop = 1\ndetach\n",
        )
        .run();
    let text = outcome.expect_code(0).text();
    let mut rest = &text[..];
    for part in [
        "received signal SIGINT",
        "Breakpoint 1, work (round=",
        "#1  0x",
        " in main (count=2, arguments=",
        "(helper)",
        "$1 = 1",
        "$2 = 1",
        "$3 = 1",
        "$4 = 77",
        "Hardware watchpoint 2: watched",
        "Old value = ",
        "Temporary breakpoint 3, await_assistance (",
        "$5 = 1",
        "Temporary breakpoint 4, work (round=",
        "Value returned is $6 =",
        "stepped",
        "$7 = 1",
        "Breakpoint 5, on_signal (",
        "received signal SIGUSR1",
        "$8 = 42",
        "[Inferior 1 (process ",
    ] {
        let place = rest.find(part).unwrap_or_else(|| panic!("no {part:?} in\n{rest}\n{text}"));
        rest = &rest[place..];
    }
    job.end(["answer 0, 0 signals right", "answer 42, 2 signals right"]);
}

// Promise of `the_variables_of_each_thread_of_this_process_are_found`.
#[test]
fn gdb_reads_and_changes_the_thread_local_variables_of_each_thread() {
    let env = TestEnv::new();
    let Some(job) = DebuggedJob::start(&env, "gdb") else { return };
    let commands = "tbreak assist\ncontinue\nprint mark\nset variable mark = 7\nprint mark\n\
                    print &mark\nthread 1\nprint mark\nprint (int)errno >= 0\ndetach\n";
    for settings in ["", "set remote noack-packet off\n"] {
        let text = job.gdb_with(settings, commands).run().expect_code(0).text();
        assert_has(&text, &["$2 = 7", "$3 = (volatile int *) 0x", "$4 = 1", "$5 = 1"]);
        // The first gdb has changed the variable of the second thread.
        assert_has(&text, &[if settings.is_empty() { "$1 = 2" } else { "$1 = 7" }]);
    }
    // This starts a gdb for each rank.
    let values = job.scdb(&["print", "mark"]).run().expect_code(0);
    assert_eq!(values.text(), "ranks 0-1: 1\n");
    job.end(["answer 0, 0 signals right", "answer 0, 0 signals right"]);
}

// Promise of `gdb_stops_reads_steps_watches_and_changes_a_rank_and_detaches`.
#[test]
fn a_killed_gdb_does_not_change_the_rank() {
    let env = TestEnv::new();
    let Some(job) = DebuggedJob::start(&env, "gdb") else { return };
    // While no debugger is connected, nothing stops the rank.
    let terminal = Terminal::open(&env, "scdb", &[&job.address(), "gdb", "1"]);
    terminal.wait_for("standard input is a terminal, not a debugger", DEBUGGER_TIMEOUT);
    assert_eq!(terminal.wait(DEBUGGER_TIMEOUT), 1);
    let note = env.dir().join("stopped");
    let gdb = job
        .gdb(&format!(
            "break work\nwatch watched\ncontinue\ncontinue\n\
             python open('{}', 'w'), __import__('time').sleep(1000)\n",
            note.display()
        ))
        .start();
    let deadline = Instant::now() + DEBUGGER_TIMEOUT;
    while !note.exists() {
        assert!(Instant::now() < deadline, "{}{}", gdb.stdout(), gdb.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    // The first scdb has control.
    let second = job.scdb(&["gdb", "1"]).run().expect_code(1);
    let _ = second
        .assert_stderr(&["scdb: rank 1: a gdb of scdb JOB gdb has control of it; detach that gdb"]);
    let _ = job.scdb(&["gdb", "2"]).run().expect_code(1).assert_stderr(&["scdb: "]);
    gdb.signal(Signal::SIGKILL);
    let _ = gdb.wait();
    // The rank runs to its end.
    let next = job.gdb("print answer = 7\nprint stop = 1\ncontinue\n").run().expect_code(0);
    assert_has(&next.text(), &["[Inferior 1 (process ", ") exited normally]"]);
    job.end(["answer 0, 0 signals right", "answer 7, 0 signals right"]);
}

/// Nothing is installed on the other host, and no ssh is used, because the daemons relay the
/// messages.
// Promise of `gdb_stops_reads_steps_watches_and_changes_a_rank_and_detaches`.
#[test]
fn gdb_attaches_to_a_rank_of_another_virtual_host_and_a_killed_scdb_is_cleaned_up() {
    let env = TestEnv::new();
    let options = ["-group=local:2", "-nodes=2x1"];
    let Some(job) = DebuggedJob::start_with(&env, "gdb", &options) else { return };
    let commands = "break work\ncontinue\nbacktrace\ninfo sharedlibrary\nnext\n\
                    print twice == 2 * round\ndelete\nprint answer = 42\ndetach\n";
    let text = job.gdb(commands).run().expect_code(0).text();
    assert_has(&text, &["Breakpoint 1, work (round=", " in main (count=2", "libc.so", "$1 = 1"]);
    assert_has(&text, &["[Inferior 1 (process ", "detached]"]);

    let [stopped, killed] = ["stopped", "killed"].map(|name| env.dir().join(name));
    let gdb = job
        .gdb(&format!(
            "break work\nwatch watched\ncontinue\ncontinue\n\
             python import os, time\npython open('{}', 'w')\n\
             python while not os.path.exists('{}'): time.sleep(0.005)\ncontinue\n",
            stopped.display(),
            killed.display()
        ))
        .start();
    let deadline = Instant::now() + DEBUGGER_TIMEOUT;
    while !stopped.exists() {
        assert!(Instant::now() < deadline, "{}{}", gdb.stdout(), gdb.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    let scdb = env.wait_for_process("scdb", |process| process.program() == "scdb");
    kill(Pid::from_raw(scdb.pid), Signal::SIGKILL).unwrap();
    env.write_file("killed", "");
    let _ = gdb.wait().expect_code(1);
    // The rank runs to its end.
    let next = job.gdb("print stop = 1\ncontinue\n").run().expect_code(0);
    assert_has(&next.text(), &["[Inferior 1 (process ", ") exited normally]"]);
    job.end(["answer 0, 0 signals right", "answer 42, 0 signals right"]);
}

// Promise of `gdb_stops_reads_steps_watches_and_changes_a_rank_and_detaches`.
#[test]
fn gdb_attaches_in_slices_only_to_a_rank_of_its_own_user() {
    let env = TestEnv::new();
    let Some(program) = program(&env, "gdb") else { return };
    // Rank 1 runs on host b, the server. The debugger runs on host a.
    let database = "a address=127.0.0.1 cores=1 group=all\nb address=127.0.0.2 cores=1 group=all\n";
    let cluster = Cluster::start_with_options(&env, &["a", "b"], database, &["-ts", "10"]);
    let Some(cluster) = cluster else { return };
    let _ = cluster.program("scored-toolctl");
    let end = env.dir().join("end");
    let start = |uid| {
        let words = [program.to_str().unwrap(), end.to_str().unwrap()];
        let job = cluster.command(uid, "scrun", "a").args(&["-scored=all,nodes=2"]);
        let mut job = job.args(&words).timeout(DEBUGGER_TIMEOUT).start();
        job.wait_for("up", 2);
        job
    };
    let [alices, bobs] = [ALICE, BOB].map(start);
    let number = |job: &Running| {
        let line = job.stderr();
        line.split("job ").nth(1).and_then(|it| it.split(':').next()).unwrap().to_owned()
    };
    let (scdb, socket) = (cluster.program("scdb"), cluster.socket("a"));
    let text = format!(
        "set pagination off\nset confirm off\ntarget remote | setpriv --reuid={ALICE} \
         --regid={ALICE} --clear-groups {} {} gdb 1 -socket {}\nbreak work\nbreak assist\n\
         continue 5\ncontinue 5\ncontinue 5\nwatch watched\ncontinue 5\nprint answer = 5\ndetach\n",
        scdb.display(),
        number(&alices),
        socket.display()
    );
    let script = env.write_file("slices.gdb", text);
    let gdb = env.command("gdb").args(&["-nx", "-q", "-batch", "-x", script.to_str().unwrap()]);
    let text = gdb.timeout(DEBUGGER_TIMEOUT).run().expect_code(0).text();
    assert_has(&text, &["Hardware watchpoint 3: watched", "= 5", "detached]"]);
    // The answer for another user's job is the same as for a job that does not exist.
    for (uid, job) in [(BOB, number(&alices)), (0, number(&alices)), (ALICE, "77".to_owned())] {
        let outcome = cluster.command(uid, "scdb", "a").args(&[&job, "gdb", "1"]).run();
        let expected = format!("scdb: you have no job {job}; scps lists");
        let _ = outcome.expect_code(1).assert_stderr(&[&expected]);
    }
    env.write_file("end", "");
    let ends = [(alices, "answer 5, 0 signals right"), (bobs, "answer 0, 0 signals right")];
    for (job, answer) in ends {
        let outcome = job.wait().expect_code(0);
        assert_has(&outcome.text(), &[answer]);
    }
}

// Promise of `gdb_stops_reads_steps_watches_and_changes_a_rank_and_detaches`.
#[test]
fn lldb_stops_reads_and_changes_a_rank_and_detaches() {
    let env = TestEnv::new();
    let Some(job) = DebuggedJob::start(&env, "lldb") else { return };
    let mut stub = job.scdb(&["gdb", "1", "-listen"]).start();
    stub.wait_for("\n", 1);
    let connect = format!("process connect unix-connect://{}", stub.stdout().trim_end());
    let mut words = vec!["-x", "-b"];
    for command in [
        &connect,
        "breakpoint set -n work",
        "continue",
        "bt",
        "thread list",
        "next",
        "next",
        "p (int)(twice == 2 * round)",
        "watchpoint set variable watched",
        "continue",
        "continue",
        "watchpoint delete 1",
        "breakpoint delete 1",
        "expression answer = 42",
        "expression stop = 1",
        "detach",
    ] {
        words.extend(["-o", command]);
    }
    let text =
        env.command("lldb").args(&words).timeout(DEBUGGER_TIMEOUT).run().expect_code(0).text();
    assert_has(&text, &["stop reason = breakpoint", "main(count=2", "(int) $0 = 1", "detached"]);
    let _ = stub.wait().expect_code(0);
    job.end(["answer 0, 0 signals right", "answer 42, 0 signals right"]);
}
