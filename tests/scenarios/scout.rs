//! `scout -g GROUP` opens a session: the hosts' daemons run until its shell ends. Inside, `scout
//! COMMAND` runs a command on every host, equal output of neighbours is shown once, and scrun takes
//! the session's hosts. Nobody else gets in, and nothing stays.

use std::collections::HashSet;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use score_tests::terminal::Terminal;
use score_tests::{Job, Outcome, Scene, binaries, scene};

/// `scout` with these words.
fn scout(scene: &Scene, words: &[&str]) -> Job {
    scene.command(binaries::program("scout")).args(words).env("SHELL", "/bin/sh")
}

/// A session on four virtual hosts whose shell reads these lines.
fn session(scene: &Scene, lines: &str) -> Outcome {
    scout(scene, &["-g", "local:4"]).input(lines).run()
}

/// A session whose shell waits; what `lines` print is there, and `up` is the last of it.
fn waiting(scene: &Scene, lines: &str) -> score_tests::Running {
    let input = format!("{lines}\necho $SCORE_SCOUT; echo up; exec sleep 300\n");
    let mut running = scout(scene, &["-g", "local:4"]).input(input).start();
    running.wait_for("up\n", 1);
    running
}

fn socket_of(running: &score_tests::Running) -> PathBuf {
    let text = running.stdout();
    let line = text.lines().find(|line| line.ends_with("/socket"));
    line.expect("the shell has said where the session is").into()
}

fn clean(scene: &Scene) {
    scene.wait_until_clean(scene::GRACE).unwrap_or_else(|left| panic!("left: {left:#?}"));
}

#[test]
fn equal_output_of_neighbours_is_shown_once() {
    let scene = Scene::new();
    let lines = "scout echo same\nscout 'echo $((SCORE_SELF_HOST / 2))'\nscout hostname\n\
                 scout 'echo oops >&2'\nscout -sort 'echo $((SCORE_SELF_HOST % 2))'\nscout true\n";
    let outcome = session(&scene, lines).expect(0);
    let wanted = "local[0-3]:\nsame\nlocal[0-1]:\n0\nlocal[2-3]:\n1\nlocal0:\nlocal0\nlocal1:\n\
                  local1\nlocal2:\nlocal2\nlocal3:\nlocal3\nlocal[0,2]:\n0\nlocal[1,3]:\n1\n";
    assert_eq!(outcome.text(), wanted, "{outcome}");
    assert_eq!(outcome.stderr, "local[0-3]:\noops\n", "{outcome}");
}

#[test]
fn one_command_needs_no_shell() {
    let scene = Scene::new();
    let outcome = scout(&scene, &["-g", "local:3", "echo", "a  b;", "pwd"]).run().expect(0);
    let wanted = format!("local[0-2]:\na b\n{}\n", scene.dir().display());
    assert_eq!(outcome.text(), wanted, "words are a line for a remote shell: {outcome}");
    let outcome = scout(&scene, &["-g", "local:2", "-e", "sh", "-c", "echo $$; exit 9"]).run();
    assert_eq!(outcome.expect(9).text().lines().count(), 1, "-e runs it here");
}

#[test]
fn the_highest_exit_code_counts_and_hosts_are_named() {
    let scene = Scene::new();
    let lines = "scout 'exit $((SCORE_SELF_HOST == 2 ? 3 : 0))'; echo code $?\n\
                 scout '[ $SCORE_SELF_HOST != 1 ] || kill -9 $$; echo still'; echo code $?\n\
                 scout nosuchprogram; echo code $?\nexit 5\n";
    let outcome = session(&scene, lines).expect(5);
    let wanted = "code 3\nlocal0:\nstill\nlocal[2-3]:\nstill\ncode 137\ncode 127\n";
    assert_eq!(outcome.text(), wanted, "{outcome}");
    let _ = outcome.says(&[
        "scout: exit code 3 on local2",
        "scout: exit code 137 (signal 9) on local1",
        "scout: exit code 127 on local[0-3]",
    ]);
}

#[test]
fn much_output_flows_under_the_hosts_name_and_an_asterisk() {
    let scene = Scene::new();
    let lines = "scout '[ $SCORE_SELF_HOST = 1 ] && seq 200000 || echo few' > out; echo $?\n\
                 scout 'yes' | head -n 3 > /dev/null; echo piped\n";
    let outcome = session(&scene, lines).expect(0);
    assert_eq!(outcome.text(), "0\npiped\n", "{outcome}");
    let text = std::fs::read_to_string(scene.dir().join("out")).unwrap();
    let numbers = (1..=200_000).map(|number| format!("{number}\n")).collect::<String>();
    assert_eq!(text, format!("local1*:\n{numbers}local0:\nfew\nlocal[2-3]:\nfew\n"));
}

#[test]
fn standard_input_goes_to_every_host() {
    let scene = Scene::new();
    let lines = "seq 3 | scout -stdin cat\nseq 100000 | scout -stdin md5sum\n\
                 echo x | scout -stdin true; echo $?\nscout cat; echo $?\n";
    let outcome = session(&scene, lines).expect(0);
    let text = outcome.text();
    assert!(text.starts_with("local[0-3]:\n1\n2\n3\nlocal[0-3]:\n"), "{outcome}");
    assert!(text.ends_with(" -\n0\n0\n") && text.lines().count() == 8, "{outcome}");
}

#[test]
fn programs_get_objects() {
    let scene = Scene::new();
    let lines = "scout -json 'echo $((SCORE_SELF_HOST / 3)); exit $SCORE_SELF_HOST'\nscout -json\n";
    let outcome = session(&scene, lines);
    let wanted = "{\"hosts\":[\"local0\",\"local1\",\"local2\"],\"stream\":\"stdout\",\
                  \"text\":\"0\\n\",\"whole\":true}\n\
                  {\"hosts\":[\"local3\"],\"stream\":\"stdout\",\"text\":\"1\\n\",\"whole\":true}\n\
                  {\"code\":0,\"hosts\":[\"local0\"]}\n{\"code\":1,\"hosts\":[\"local1\"]}\n\
                  {\"code\":2,\"hosts\":[\"local2\"]}\n{\"code\":3,\"hosts\":[\"local3\"]}\n\
                  {\"hosts\":[\"local0\",\"local1\",\"local2\",\"local3\"],\"inside\":true}\n";
    assert_eq!(outcome.text(), wanted, "{outcome}");
}

#[test]
fn scrun_takes_the_sessions_hosts_and_starts_no_daemon() {
    let scene = Scene::new();
    let lines = "scrun -nodes=4x2 system sh -c 'echo $SCORE_SELF_HOST' | sort | uniq -c\n\
                 scrun -nodes=2x1 system hostname | sort\nscrun -nodes=9x1 system true; echo $?\n\
                 scrun -group=local:2,nodes=2x1,message=quiet system hostname | sort\n\
                 SCORE_OPTIONS=group=local:9 scrun -nodes=4x1,message=quiet system true; echo $?\n\
                 scrun -nodes=1x1,message=quiet system sh -c 'echo [$SCORE_SCOUT]'\n";
    let outcome = session(&scene, lines).expect(0);
    let text: String = outcome.text().replace(' ', "");
    let wanted = "20\n21\n22\n23\nlocal0\nlocal1\n2\nlocal0\nlocal1\n0\n[]\n";
    assert_eq!(text, wanted, "{outcome}");
    let _ = outcome.says(&["8 nodes on 4 hosts", "9 hosts are needed, 4 are at hand"]);

    let running = waiting(&scene, "scrun -nodes=4x1 system sleep 300 &");
    scene.wait_for_process("process of the job", |one| one.command == "sleep 300");
    let daemons = scene.processes();
    let daemons = daemons.iter().filter(|one| one.is_scored()).count();
    assert_eq!(daemons, 4, "one for each host: {:#?}", scene.processes());
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, 143);
    clean(&scene);
}

#[test]
fn a_bare_scout_tells_whether_one_is_inside() {
    let scene = Scene::new();
    let outcome = scout(&scene, &[]).run().expect(1);
    assert_eq!(outcome.text(), "in no scout session\n");
    let outcome = scout(&scene, &[]).env("SCORE_SCOUT", "/nowhere/socket").run().expect(1);
    let wanted = "in no scout session: the scout session at /nowhere/socket is gone\n";
    assert_eq!(outcome.text(), wanted);
    let _ = scout(&scene, &["hostname"]).run().expect(2).says(&["no scout session here"]);
    let job = scene.scrun(&["system", "true"]).env("SCORE_SCOUT", "/nowhere/socket");
    let _ = job.run().expect(2).says(&["SCORE_SCOUT", "is gone", "unset SCORE_SCOUT"]);
    let outcome = session(&scene, "scout; echo $?\n").expect(0);
    assert_eq!(outcome.text(), "inside a scout session on 4 hosts: local[0-3]\n0\n");
}

#[test]
fn a_session_inside_a_session_is_refused_unless_it_is_forced() {
    let scene = Scene::new();
    let lines = "scout -g local:2 hostname; echo $?\nscout -force -g local:2 -e scout; echo $?\n\
                 scout\n";
    let outcome = session(&scene, lines).expect(0);
    let wanted = "2\ninside a scout session on 2 hosts: local[0-1]\n0\n\
                  inside a scout session on 4 hosts: local[0-3]\n";
    assert_eq!(outcome.text(), wanted, "{outcome}");
    let _ = outcome.says(&["inside a scout session on 4 hosts", "-force"]);
}

#[test]
fn what_cannot_be_is_named() {
    let scene = Scene::new();
    for (words, code, wanted) in [
        (&["-g", "nosuchgroup"][..], 2, "nosuchgroup"),
        (&["-g", "local:0"], 2, "'0' is no number of virtual hosts"),
        (&["-X", "-g", "local:2"], 2, "-X: X11 forwarding is not built"),
        (&["-catwalk", "d", "ls"], 2, "-catwalk: Catwalk"),
        (&["-g", "local:2", "-mtu", "none"], 1, "mtu"),
        (&["-g", "local:2", "-e", "/no/such/shell"], 127, "/no/such/shell"),
        (&["-force"], 2, "-g GROUP"),
    ] {
        let outcome = scout(&scene, words).run().expect(code);
        let _ = outcome.says(&[wanted]);
    }
    let help = scout(&scene, &["-help"]).run().expect(0).text();
    assert!(help.starts_with("usage: scout"), "{help}");
}

#[test]
fn a_host_that_does_not_come_up_is_named_in_time() {
    let scene = Scene::new();
    let shell = scene.file("shell", "#!/bin/sh\nexec sleep 300\n");
    let rsh = format!("sh {}", shell.display());
    let begin = Instant::now();
    let words = ["-g", "far.example", "-timeout", "1", "-rsh", &rsh];
    let file = scene.file("hosts", "far.example\n");
    let words = [&words[..], &["-file", file.to_str().unwrap()]].concat();
    let outcome = scout(&scene, &words).run().expect(1);
    let _ = outcome.says(&["far.example", "within 1 s"]);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn nothing_outlives_a_scout_that_is_killed() {
    for signal in [Signal::SIGKILL, Signal::SIGHUP, Signal::SIGTERM] {
        let scene = Scene::new();
        let running = waiting(&scene, "scout 'sleep 300' &\nscrun system sleep 301 &");
        for command in ["sleep 300", "sleep 301"] {
            scene.wait_for_process(command, |one| one.command == command);
        }
        let socket = socket_of(&running);
        assert!(socket.exists());
        running.signal(signal);
        assert_ne!(running.wait().code, 0);
        clean(&scene);
        assert!(!socket.parent().unwrap().exists(), "{signal}: {}", socket.display());
    }
}

#[test]
fn a_scored_that_is_killed_is_told_and_leaves_nothing() {
    let scene = Scene::new();
    let lines = "scout 'sleep 300'; echo code $?; scout; echo $? told\n";
    let running = scout(&scene, &["-g", "local:4"]).input(lines).start();
    scene.wait_for_process("command", |one| one.command == "sleep 300");
    let server = scene.wait_for_process("server", |one| one.command.contains("-single"));
    server.signal(Signal::SIGKILL);
    let outcome = running.wait().expect(70);
    let text = outcome.text();
    assert!(text.starts_with("code 70\nin no scout session"), "{outcome}");
    assert!(text.ends_with("is gone\n1 told\n"), "{outcome}");
    let _ = outcome.says(&["scout: the session is lost: scored was killed", "job 1 is lost"]);
    clean(&scene);
}

#[test]
fn a_lost_host_is_named_and_the_others_go_on() {
    let scene = Scene::new();
    let lines = "scout 'sleep 3; echo alive'; echo code $?\n\
                 scrun -nodes=2x1,message=quiet system hostname | sort\n";
    let running = scout(&scene, &["-g", "local:4"]).input(lines).start();
    let commands = |wanted| scene.processes().iter().filter(|one| one.command == wanted).count();
    let begin = Instant::now();
    while commands("sleep 3") < 4 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let host = scene.wait_for_process("daemon", |one| one.command.contains("-host local3"));
    host.signal(Signal::SIGKILL);
    let outcome = running.wait().expect(0);
    let wanted = "local[0-2]:\nalive\ncode 1\nlocal0\nlocal1\n";
    assert_eq!(outcome.text(), wanted, "{outcome}");
    let _ = outcome.says(&["host local3 is lost", "no exit code from local3"]);
}

/// The words that make root an ordinary user.
const NOBODY: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

#[test]
fn another_user_does_not_get_in() {
    if !geteuid().is_root() || !scene::have("setpriv") {
        return;
    }
    let scene = Scene::new();
    let copy = |name: &str| {
        let copy = scene.dir().join(name);
        std::fs::copy(binaries::program(name), &copy).unwrap();
        copy.to_str().unwrap().to_owned()
    };
    let (scout_of_nobody, _) = (copy("scout"), copy("scored"));
    let nobody = || scene.command("setpriv").args(&NOBODY).arg(&scout_of_nobody);

    // Files keep him out.
    let running = waiting(&scene, "");
    let socket = socket_of(&running);
    let outcome = nobody().arg("hostname").env("SCORE_SCOUT", socket.to_str().unwrap()).run();
    let _ = outcome.expect(2).says(&["Permission denied"]);
    running.signal(Signal::SIGTERM);
    let _ = running.wait().expect(143);

    // Whom files do not keep out, the session does.
    let file = scene.file("hosts", std::fs::read("/proc/sys/kernel/hostname").unwrap());
    let lines = "echo $SCORE_SCOUT; echo up; exec sleep 300\n";
    let job = nobody().args(&["-file", file.to_str().unwrap()]).env("SHELL", "/bin/sh");
    let mut running = job.input(lines).start();
    running.wait_for("up\n", 1);
    let socket = socket_of(&running);
    let outcome = scout(&scene, &["hostname"]).env("SCORE_SCOUT", socket.to_str().unwrap()).run();
    let _ = outcome.expect(2).says(&["another user's"]);
    running.signal(Signal::SIGTERM);
    let _ = running.wait().says(&["user 0 tried to enter a scout session of user 65534"]);
}

#[test]
fn interrupts_go_to_the_remote_commands_and_the_shell_goes_on() {
    let scene = Scene::new();
    let wait = Duration::from_secs(20);
    let mut terminal = Terminal::shell(&scene);
    terminal.press("SHELL=$(command -v bash) scout -g local:2\n");
    terminal.wait_for("session on local[0-1]", wait);
    terminal.press("PS1='inside> '\n");
    let at = terminal.wait_for("\ninside> ", wait);
    terminal.press("scout 'trap \"echo caught; exit 3\" INT; while :; do sleep 0.3; done'\n");
    // Both have set their traps.
    let (begin, mut shells) = (Instant::now(), HashSet::new());
    while shells.len() < 2 {
        let all = scene.processes();
        shells.extend(all.iter().filter(|one| one.command == "sleep 0.3").map(|one| one.parent));
        assert!(begin.elapsed() < wait, "{all:#?}");
        sleep(Duration::from_millis(5));
    }
    terminal.press("\x03");
    // What the commands say and what scout says come in any order.
    let caught = terminal.wait_for_after(at, "\ncaught", wait);
    let at = terminal.wait_for_after(at, "exit code 3 on local[0-1]", wait).max(caught);
    terminal.press("suspend\n");
    let at = terminal.wait_for_after(at, "ready> ", wait);
    terminal.press("fg\n");
    let at = terminal.wait_for_after(at, "inside> ", wait);
    terminal.press("scout echo again\n");
    let at = terminal.wait_for_after(at, "again\r\n", wait);
    terminal.press("exit 4\n");
    let at = terminal.wait_for_after(at, "ready> ", wait);
    terminal.press("echo code $?\n");
    terminal.wait_for_after(at, "code 4\r\n", wait);
    terminal.press("exit\n");
    terminal.wait(wait);
}
