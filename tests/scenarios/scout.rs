//! `scout -g GROUP` opens a session: the daemons of the hosts run until the session's shell ends.
//! In the session, `scout COMMAND` runs a command on every host and shows equal output of
//! neighbours once. scrun uses the session's hosts. Other users are refused, and nothing is left
//! afterwards.

use std::collections::HashSet;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use score_tests::terminal::Terminal;
use score_tests::{Job, Outcome, TestEnv, binaries, test_env};

/// Runs `scout` with these arguments.
fn scout(env: &TestEnv, args: &[&str]) -> Job {
    env.command(binaries::program("scout")).args(args).env("SHELL", "/bin/sh")
}

/// Runs a session on four virtual hosts whose shell executes these lines.
fn run_in_session(env: &TestEnv, lines: &str) -> Outcome {
    scout(env, &["-g", "local:4"]).input(lines).run()
}

/// Starts a session whose shell executes `lines`, prints `up` and then waits.
fn start_waiting_session(env: &TestEnv, lines: &str) -> score_tests::Running {
    let input = format!("{lines}\necho $SCORE_SCOUT; echo up; exec sleep 300\n");
    let mut running = scout(env, &["-g", "local:4"]).input(input).start();
    running.wait_for("up\n", 1);
    running
}

fn socket_of(running: &score_tests::Running) -> PathBuf {
    let text = running.stdout();
    let line = text.lines().find(|line| line.ends_with("/socket"));
    line.expect("the shell has printed the socket of the session").into()
}

// Promise (hosts): scout prints equal output of neighbours once, large output under an asterisk,
// and returns the highest exit code and names its hosts.
#[test]
fn equal_output_of_neighbours_is_shown_once() {
    let env = TestEnv::new();
    let lines = "scout echo same\nscout 'echo $((SCORE_SELF_HOST / 2))'\nscout hostname\n\
                 scout 'echo oops >&2'\nscout -sort 'echo $((SCORE_SELF_HOST % 2))'\nscout true\n";
    let outcome = run_in_session(&env, lines).expect_code(0);
    let expected = "local[0-3]:\nsame\nlocal[0-1]:\n0\nlocal[2-3]:\n1\nlocal0:\nlocal0\nlocal1:\n\
                  local1\nlocal2:\nlocal2\nlocal3:\nlocal3\nlocal[0,2]:\n0\nlocal[1,3]:\n1\n";
    assert_eq!(outcome.text(), expected, "{outcome}");
    assert_eq!(outcome.stderr, "local[0-3]:\noops\n", "{outcome}");
}

#[test]
fn one_command_needs_no_shell() {
    let env = TestEnv::new();
    let outcome = scout(&env, &["-g", "local:3", "echo", "a  b;", "pwd"]).run().expect_code(0);
    let expected = format!("local[0-2]:\na b\n{}\n", env.dir().display());
    assert_eq!(outcome.text(), expected, "words are a line for a remote shell: {outcome}");
    let outcome = scout(&env, &["-g", "local:2", "-e", "sh", "-c", "echo $$; exit 9"]).run();
    assert_eq!(outcome.expect_code(9).text().lines().count(), 1, "-e runs locally");
}

// Promise of `equal_output_of_neighbours_is_shown_once`.
#[test]
fn the_highest_exit_code_is_used_and_hosts_are_named() {
    let env = TestEnv::new();
    let lines = "scout 'exit $((SCORE_SELF_HOST == 2 ? 3 : 0))'; echo code $?\n\
                 scout '[ $SCORE_SELF_HOST != 1 ] || kill -9 $$; echo still'; echo code $?\n\
                 scout nosuchprogram; echo code $?\nexit 5\n";
    let outcome = run_in_session(&env, lines).expect_code(5);
    let expected = "code 3\nlocal0:\nstill\nlocal[2-3]:\nstill\ncode 137\ncode 127\n";
    assert_eq!(outcome.text(), expected, "{outcome}");
    let _ = outcome.assert_stderr(&[
        "scout: exit code 3 on local2",
        "scout: exit code 137 (signal 9) on local1",
        "scout: exit code 127 on local[0-3]",
    ]);
}

// Promise of `equal_output_of_neighbours_is_shown_once`.
#[test]
fn much_output_flows_under_the_hosts_name_and_an_asterisk() {
    let env = TestEnv::new();
    let lines = "scout '[ $SCORE_SELF_HOST = 1 ] && seq 200000 || echo few' > out; echo $?\n\
                 scout 'yes' | head -n 3 > /dev/null; echo piped\n";
    let outcome = run_in_session(&env, lines).expect_code(0);
    assert_eq!(outcome.text(), "0\npiped\n", "{outcome}");
    let text = std::fs::read_to_string(env.dir().join("out")).unwrap();
    let numbers = (1..=200_000).map(|number| format!("{number}\n")).collect::<String>();
    assert_eq!(text, format!("local1*:\n{numbers}local0:\nfew\nlocal[2-3]:\nfew\n"));
}

// Promise of `equal_output_of_neighbours_is_shown_once`.
#[test]
fn standard_input_is_sent_to_every_host() {
    let env = TestEnv::new();
    let lines = "seq 3 | scout -stdin cat\nseq 100000 | scout -stdin md5sum\n\
                 echo x | scout -stdin true; echo $?\nscout cat; echo $?\n";
    let outcome = run_in_session(&env, lines).expect_code(0);
    let text = outcome.text();
    assert!(text.starts_with("local[0-3]:\n1\n2\n3\nlocal[0-3]:\n"), "{outcome}");
    assert!(text.ends_with(" -\n0\n0\n") && text.lines().count() == 8, "{outcome}");
}

// Promise of `equal_output_of_neighbours_is_shown_once`.
#[test]
fn json_output_is_one_object_for_each_line() {
    let env = TestEnv::new();
    let lines = "scout -json 'echo $((SCORE_SELF_HOST / 3)); exit $SCORE_SELF_HOST'\nscout -json\n";
    let outcome = run_in_session(&env, lines);
    let expected = "{\"hosts\":[\"local0\",\"local1\",\"local2\"],\"stream\":\"stdout\",\
                  \"text\":\"0\\n\",\"whole\":true}\n\
                  {\"hosts\":[\"local3\"],\"stream\":\"stdout\",\"text\":\"1\\n\",\"whole\":true}\n\
                  {\"code\":0,\"hosts\":[\"local0\"]}\n{\"code\":1,\"hosts\":[\"local1\"]}\n\
                  {\"code\":2,\"hosts\":[\"local2\"]}\n{\"code\":3,\"hosts\":[\"local3\"]}\n\
                  {\"hosts\":[\"local0\",\"local1\",\"local2\",\"local3\"],\"inside\":true}\n";
    assert_eq!(outcome.text(), expected, "{outcome}");
}

// Promise (hosts): scrun in a scout session takes its hosts and starts no daemon.
#[test]
fn scrun_uses_the_hosts_of_the_session_and_starts_no_daemon() {
    let env = TestEnv::new();
    let lines = "scrun -nodes=4x2 system sh -c 'echo $SCORE_SELF_HOST' | sort | uniq -c\n\
                 scrun -nodes=2x1 system hostname | sort\nscrun -nodes=9x1 system true; echo $?\n\
                 scrun -group=local:2,nodes=2x1,message=quiet system hostname | sort\n\
                 SCORE_OPTIONS=group=local:9 scrun -nodes=4x1,message=quiet system true; echo $?\n\
                 scrun -nodes=1x1,message=quiet system sh -c 'echo [$SCORE_SCOUT]'\n";
    let outcome = run_in_session(&env, lines).expect_code(0);
    let text: String = outcome.text().replace(' ', "");
    let expected = "20\n21\n22\n23\nlocal0\nlocal1\n2\nlocal0\nlocal1\n0\n[]\n";
    assert_eq!(text, expected, "{outcome}");
    let _ = outcome.assert_stderr(&["8 nodes on 4 hosts", "9 hosts are needed, 4 are available"]);

    let running = start_waiting_session(&env, "scrun -nodes=4x1 system sleep 300 &");
    env.wait_for_process("process of the job", |process| process.command == "sleep 300");
    // A child that has not executed its program yet looks like the daemon that started it.
    let count_daemons = || env.processes().iter().filter(|process| process.is_scored()).count();
    let deadline = Instant::now() + Duration::from_secs(30);
    while count_daemons() != 4 {
        assert!(Instant::now() < deadline, "one for each host: {:#?}", env.processes());
        sleep(Duration::from_millis(10));
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, 143);
    env.assert_clean();
}

#[test]
fn scout_without_arguments_prints_whether_it_is_inside_a_session() {
    let env = TestEnv::new();
    let outcome = scout(&env, &[]).run().expect_code(1);
    assert_eq!(outcome.text(), "in no scout session\n");
    let outcome = scout(&env, &[]).env("SCORE_SCOUT", "/nowhere/socket").run().expect_code(1);
    let expected = "in no scout session: the scout session at /nowhere/socket no longer exists\n";
    assert_eq!(outcome.text(), expected);
    let _ =
        scout(&env, &["hostname"]).run().expect_code(2).assert_stderr(&["no scout session here"]);
    let job = env.scrun(&["system", "true"]).env("SCORE_SCOUT", "/nowhere/socket");
    let _ = job.run().expect_code(2).assert_stderr(&[
        "SCORE_SCOUT",
        "no longer exists",
        "unset SCORE_SCOUT",
    ]);
    let outcome = run_in_session(&env, "scout; echo $?\n").expect_code(0);
    assert_eq!(outcome.text(), "inside a scout session on 4 hosts: local[0-3]\n0\n");
}

#[test]
fn a_session_inside_a_session_is_refused_unless_it_is_forced() {
    let env = TestEnv::new();
    let lines = "scout -g local:2 hostname; echo $?\nscout -force -g local:2 -e scout; echo $?\n\
                 scout\n";
    let outcome = run_in_session(&env, lines).expect_code(0);
    let expected = "2\ninside a scout session on 2 hosts: local[0-1]\n0\n\
                  inside a scout session on 4 hosts: local[0-3]\n";
    assert_eq!(outcome.text(), expected, "{outcome}");
    let _ = outcome.assert_stderr(&["inside a scout session on 4 hosts", "-force"]);
}

#[test]
fn an_impossible_request_is_refused_by_name() {
    let env = TestEnv::new();
    for (args, code, expected) in [
        (&["-g", "nosuchgroup"][..], 2, "nosuchgroup"),
        (&["-g", "local:0"], 2, "'0' is not a number of virtual hosts"),
        (&["-X", "-g", "local:2"], 2, "-X: X11 forwarding is not supported"),
        (&["-catwalk", "d", "ls"], 2, "-catwalk: Catwalk"),
        (&["-g", "local:2", "-mtu", "none"], 1, "mtu"),
        (&["-g", "local:2", "-e", "/no/such/shell"], 127, "/no/such/shell"),
        (&["-force"], 2, "-g GROUP"),
    ] {
        let outcome = scout(&env, args).run().expect_code(code);
        let _ = outcome.assert_stderr(&[expected]);
    }
    let help = scout(&env, &["-help"]).run().expect_code(0).text();
    assert!(help.starts_with("usage: scout"), "{help}");
}

#[test]
fn a_host_that_does_not_start_is_named_in_time() {
    let env = TestEnv::new();
    let shell = env.write_file("shell", "#!/bin/sh\nexec sleep 300\n");
    let rsh = format!("sh {}", shell.display());
    let started_at = Instant::now();
    let args = ["-g", "far.example", "-timeout", "1", "-rsh", &rsh];
    let file = env.write_file("hosts", "far.example\n");
    let args = [&args[..], &["-file", file.to_str().unwrap()]].concat();
    let outcome = scout(&env, &args).run().expect_code(1);
    let _ = outcome.assert_stderr(&["far.example", "within 1 s"]);
    assert!(started_at.elapsed() < Duration::from_secs(60));
}

// Promise of `interrupts_are_sent_to_the_remote_commands_and_the_shell_continues`.
#[test]
fn no_process_or_file_outlives_a_killed_scout() {
    for signal in [Signal::SIGKILL, Signal::SIGHUP, Signal::SIGTERM] {
        let env = TestEnv::new();
        let running = start_waiting_session(&env, "scout 'sleep 300' &\nscrun system sleep 301 &");
        for command in ["sleep 300", "sleep 301"] {
            env.wait_for_process(command, |process| process.command == command);
        }
        let socket = socket_of(&running);
        assert!(socket.exists());
        running.signal(signal);
        assert_ne!(running.wait().code, 0);
        env.assert_clean();
        assert!(!socket.parent().unwrap().exists(), "{signal}: {}", socket.display());
    }
}

// Promise of `interrupts_are_sent_to_the_remote_commands_and_the_shell_continues`.
#[test]
fn a_killed_scored_is_reported_and_all_its_processes_and_files_are_removed() {
    let env = TestEnv::new();
    // The shell outlives the dying server, whose sockets close one after the other.
    let lines = "scout 'sleep 300'; echo code $?; scout; echo $? reported; sleep 1\n";
    let running = scout(&env, &["-g", "local:4"]).input(lines).start();
    env.wait_for_process("command", |process| process.command == "sleep 300");
    let server = env.wait_for_process("server", |process| process.command.contains("-single"));
    server.signal(Signal::SIGKILL);
    let outcome = running.wait().expect_code(70);
    let text = outcome.text();
    assert!(text.starts_with("code 70\nin no scout session"), "{outcome}");
    assert!(text.ends_with("no longer exists\n1 reported\n"), "{outcome}");
    let _ =
        outcome.assert_stderr(&["scout: the session is lost: scored was killed", "job 1 is lost"]);
    env.assert_clean();
}

// Promise (hosts): In a scout session a lost host is named, and the other hosts continue.
#[test]
fn a_lost_host_is_named_and_other_hosts_continue() {
    let env = TestEnv::new();
    let folder = env.dir().display();
    let lines = format!(
        "scout 'touch {folder}/up-$SCORE_SELF_HOST; \
         until [ -e {folder}/lost ]; do sleep 0.1; done; echo alive'; echo code $?\n\
         scrun -nodes=2x1,message=quiet system hostname | sort\n"
    );
    let mut running = scout(&env, &["-g", "local:4"]).input(lines).start();
    let started_at = Instant::now();
    while !(0..4).all(|host| env.dir().join(format!("up-{host}")).exists()) {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{:#?}", env.processes());
        std::thread::sleep(Duration::from_millis(5));
    }
    let daemon = env.wait_for_process("daemon", |process| process.command.contains("-host local3"));
    daemon.signal(Signal::SIGKILL);
    running.wait_for_stderr("host local3 is lost");
    env.write_file("lost", "");
    let outcome = running.wait().expect_code(0);
    let expected = "local[0-2]:\nalive\ncode 1\nlocal0\nlocal1\n";
    assert_eq!(outcome.text(), expected, "{outcome}");
    let _ = outcome.assert_stderr(&["host local3 is lost", "no exit code from local3"]);
}

/// Arguments of setpriv(1) that make root an ordinary user.
const AS_NOBODY_ARGS: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

// Promise (hosts): A user cannot use another user's scout session, even if file permissions would
// allow it.
#[test]
fn another_user_is_refused_by_a_session() {
    if !geteuid().is_root() || !test_env::is_installed("setpriv") {
        return;
    }
    let env = TestEnv::new();
    let copy = |name: &str| {
        let copy_path = env.dir().join(name);
        std::fs::copy(binaries::program(name), &copy_path).unwrap();
        copy_path.to_str().unwrap().to_owned()
    };
    let (scout_of_nobody, _) = (copy("scout"), copy("scored"));
    let scout_as_nobody = || env.command("setpriv").args(&AS_NOBODY_ARGS).arg(&scout_of_nobody);

    // In this case file permissions refuse the user.
    let running = start_waiting_session(&env, "");
    let socket = socket_of(&running);
    let outcome =
        scout_as_nobody().arg("hostname").env("SCORE_SCOUT", socket.to_str().unwrap()).run();
    let _ = outcome.expect_code(2).assert_stderr(&["Permission denied"]);
    running.signal(Signal::SIGTERM);
    let _ = running.wait().expect_code(143);

    // In this case file permissions allow the access, and the session refuses the user.
    let file = env.write_file("hosts", std::fs::read("/proc/sys/kernel/hostname").unwrap());
    let lines = "echo $SCORE_SCOUT; echo up; exec sleep 300\n";
    let job = scout_as_nobody().args(&["-file", file.to_str().unwrap()]).env("SHELL", "/bin/sh");
    let mut running = job.input(lines).start();
    running.wait_for("up\n", 1);
    let socket = socket_of(&running);
    let outcome = scout(&env, &["hostname"]).env("SCORE_SCOUT", socket.to_str().unwrap()).run();
    let _ = outcome.expect_code(2).assert_stderr(&["belongs to another user"]);
    running.signal(Signal::SIGTERM);
    let _ = running.wait().assert_stderr(&["user 0 tried to enter a scout session of user 65534"]);
}

// Promise (hosts): A scout session lasts as long as its shell, which has job control, ^C and
// suspend; however it ends, no process and no file remains.
#[test]
fn interrupts_are_sent_to_the_remote_commands_and_the_shell_continues() {
    let env = TestEnv::new();
    let timeout = Duration::from_secs(20);
    let mut terminal = Terminal::shell(&env);
    terminal.type_keys("SHELL=$(command -v bash) scout -g local:2\n");
    terminal.wait_for("session on local[0-1]", timeout);
    terminal.type_keys("PS1='inside> '\n");
    let offset = terminal.wait_for("\ninside> ", timeout);
    terminal.type_keys("scout 'trap \"echo caught; exit 3\" INT; while :; do sleep 0.3; done'\n");
    // A shell that sleeps has set its trap.
    let (started_at, mut shells) = (Instant::now(), HashSet::new());
    while shells.len() < 2 {
        let processes = env.processes();
        shells.extend(
            processes.iter().filter(|process| process.command == "sleep 0.3").map(|one| one.parent),
        );
        assert!(started_at.elapsed() < timeout, "{processes:#?}");
        sleep(Duration::from_millis(5));
    }
    terminal.type_keys("\x03");
    // Output of the commands and of scout comes in any order.
    let caught = terminal.wait_for_after(offset, "\ncaught", timeout);
    let offset = terminal.wait_for_after(offset, "exit code 3 on local[0-1]", timeout).max(caught);
    terminal.type_keys("suspend\n");
    let offset = terminal.wait_for_after(offset, "ready> ", timeout);
    terminal.type_keys("fg\n");
    let offset = terminal.wait_for_after(offset, "inside> ", timeout);
    terminal.type_keys("scout echo again\n");
    let offset = terminal.wait_for_after(offset, "again\r\n", timeout);
    terminal.type_keys("exit 4\n");
    let offset = terminal.wait_for_after(offset, "ready> ", timeout);
    terminal.type_keys("echo code $?\n");
    terminal.wait_for_after(offset, "code 4\r\n", timeout);
    terminal.type_keys("exit\n");
    terminal.wait(timeout);
}
