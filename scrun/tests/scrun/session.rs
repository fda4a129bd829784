//! Sessions with a real scored: the behaviour that a user of `scrun` sees.

use crate::built::text;
use crate::harness::{self, Scrun};
use nix::sys::signal::Signal;
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn the_exit_code_is_that_of_a_shell() {
    for (job, code) in [
        (&["system", "true"][..], 0),
        (&["system", "false"], 1),
        (&["system", "sh", "-c", "exit 7"], 7),
        (&["system", "sh", "-c", "kill -9 $$"], 137),
        (&["system", "nosuchprogram"], 127),
        (&["system", "/etc/passwd"], 126),
        (&["system", "sh", "-c", "test $SCORE_SELF_NODE = 0"], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["system", "false", "==", "system", "true"], 1),
        (&["system", "false", "::", "system", "sh", "-c", "exit 9"], 1),
        (&["system", "true", "::", "system", "sh", "-c", "exit 9"], 9),
    ] {
        let output = Scrun::new().args(&["-nodes=2"]).args(job).run();
        assert_eq!(output.code, Some(code), "{job:?}: {}", text(&output.stderr));
    }
}

#[test]
fn the_lines_of_all_nodes_arrive_whole() {
    let output = Scrun::new().args(&["-nodes=4", "system", "seq", "10000"]).run();
    let mut seen = vec![0; 10001];
    for line in text(&output.stdout).lines() {
        seen[line.parse::<usize>().unwrap()] += 1;
    }
    assert_eq!(output.code, Some(0));
    assert!(seen[1..].iter().all(|count| *count == 4));
}

#[test]
fn standard_error_and_output_are_kept_apart() {
    let script = "echo out; echo err >&2";
    let output = Scrun::new().args(&["-nodes=1,message=quiet", "system", "sh", "-c", script]).run();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("out\n".into(), "err\n".into()));
}

#[test]
fn megabytes_pass_from_input_to_output_unchanged() {
    let bytes: Vec<u8> =
        (0..6_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let output = Scrun::new().args(&["-nodes=1", "system", "cat"]).input(bytes.clone()).run();
    assert_eq!(output.code, Some(0), "{}", text(&output.stderr));
    assert!(output.stdout == bytes, "{} bytes came back", output.stdout.len());
}

#[test]
fn standard_input_can_be_a_file_or_empty_or_closed() {
    let file = File::open("/etc/passwd").unwrap();
    let cat = ["-nodes=1", "system", "cat"];
    let output = Scrun::new().args(&cat).stdin(file).run();
    assert_eq!(output.stdout, std::fs::read("/etc/passwd").unwrap());
    assert_eq!(Scrun::new().args(&cat).run().code, Some(0));
    let closed = Scrun::shell("exec \"$0\" -nodes=1 system cat <&-").run();
    assert_eq!((closed.code, closed.stdout.len()), (Some(0), 0));
    // A directory cannot be read: scrun reports it, and the job gets an end of input.
    let directory = Scrun::new().args(&cat).stdin(File::open("/etc").unwrap()).run();
    assert_eq!(directory.code, Some(0));
    assert!(text(&directory.stderr).contains("standard input"), "{}", text(&directory.stderr));
}

#[test]
fn unread_input_does_not_keep_the_job_waiting() {
    let mut running =
        Scrun::new().args(&["-nodes=1", "system", "true"]).stdin(Stdio::piped()).start();
    assert_eq!(running.wait_for(Duration::from_secs(10)), Some(0));
}

#[test]
fn a_job_that_reads_little_ends_and_its_writer_gets_sigpipe() {
    let output = Scrun::shell("yes | \"$0\" -nodes=1 system head -1; echo ${PIPESTATUS[@]}").run();
    assert_eq!(text(&output.stdout), "y\n141 0\n", "{}", text(&output.stderr));
}

#[test]
fn input_is_not_touched_when_the_first_program_reads_a_file() {
    let job = "\"$0\" -nodes=1,message=quiet system cat := /etc/hostname > /dev/null; cat";
    let output = Scrun::shell(job).input(b"untouched".to_vec()).run();
    assert_eq!(text(&output.stdout), "untouched", "{}", text(&output.stderr));
}

#[test]
fn a_killed_scrun_leaves_no_process_and_no_file() {
    let script = "pwd; setsid sleep 61 & echo $!; exec sleep 62";
    let mut running = Scrun::new().args(&["-nodes=2", "system", "sh", "-c", script]).start();
    running.wait_for_lines(4);
    let directory =
        text(&running.output()).lines().find(|line| line.starts_with('/')).map(str::to_owned);
    let directory = directory.unwrap();
    let scored = running.child_named("scored");
    running.signal(Signal::SIGKILL);
    let is_cleaned_up =
        || !std::path::Path::new(&directory).exists() && harness::has_exited(scored);
    let deadline = std::time::Instant::now() + Duration::from_secs(3);
    while !is_cleaned_up() && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_cleaned_up(), "{directory}");
}

#[test]
fn the_users_descriptors_stay_blocking() {
    let script =
        "\"$0\" -nodes=1 system cat; grep flags: /proc/self/fdinfo/0 /proc/self/fdinfo/1 >&2";
    let output = Scrun::shell(script).input(b"x".to_vec()).run();
    let flags: Vec<u32> = text(&output.stderr)
        .lines()
        .filter_map(|line| u32::from_str_radix(line.split_once("flags:")?.1.trim(), 8).ok())
        .collect();
    assert_eq!(flags.len(), 2, "{}", text(&output.stderr));
    assert!(flags.iter().all(|flags| flags & nix::libc::O_NONBLOCK as u32 == 0));
}

#[test]
fn a_reader_that_closes_ends_the_writers_as_in_a_pipeline() {
    let script = "\"$0\" -nodes=2,message=concise system yes | head -1";
    let output = Scrun::shell(script).run();
    assert_eq!((output.code, text(&output.stdout)), (Some(0), "y\n".into()));
    let script = "\"$0\" -nodes=2,message=concise system yes | true; echo ${PIPESTATUS[0]}";
    let output = Scrun::shell(script).run();
    assert_eq!(text(&output.stdout), "141\n", "{}", text(&output.stderr));
}

#[test]
fn a_full_disk_is_one_line_and_code_74() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let yes = ["-nodes=2,message=quiet", "system", "yes"];
    let output = Scrun::new().args(&yes).stdout(full).run();
    assert_eq!(output.code, Some(74), "{}", text(&output.stderr));
    let lines = text(&output.stderr);
    assert_eq!(lines.matches("No space left").count(), 1, "{lines}");
    // An error in the last write is also reported.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let echo = ["-nodes=1,message=quiet", "system", "echo", "x"];
    let output = Scrun::new().args(&echo).stdout(full).run();
    assert_eq!(output.code, Some(74));
    assert_eq!(text(&output.stderr).matches("No space left").count(), 1);
}

#[test]
fn signals_end_the_job_with_the_code_of_a_shell() {
    for (signal, code) in [
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
        (Signal::SIGUSR1, 138),
        (Signal::SIGTERM, 137),
    ] {
        let mut running = Scrun::new()
            .args(&["-nodes=2", "system", "sh", "-c", "echo go; exec sleep 60"])
            .start();
        running.wait_for_output("go\ngo\n");
        running.signal(signal);
        assert_eq!(running.wait_for(Duration::from_secs(10)), Some(code), "{signal}");
    }
}

#[test]
fn broadcast_signals_reach_every_node() {
    let script = "trap 'echo caught; exit 0' USR2; echo ready; while :; do sleep 0.05; done";
    let mut running = Scrun::new().args(&["-nodes=3", "system", "sh", "-c", script]).start();
    running.wait_for_output("ready\nready\nready\n");
    running.signal(Signal::SIGUSR2);
    running.wait_for_output("caught\ncaught\ncaught\n");
    assert_eq!(running.wait_for(Duration::from_secs(10)), Some(0));
}

#[test]
fn three_interrupts_kill_a_job_that_ignores_them() {
    let script = "trap '' INT; echo ready; while :; do sleep 0.05; done";
    let mut running = Scrun::new().args(&["-nodes=2", "system", "sh", "-c", script]).start();
    running.wait_for_output("ready\nready\n");
    for _ in 0..3 {
        running.signal(Signal::SIGINT);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(running.wait_for(Duration::from_secs(10)), Some(137));
}

#[test]
fn sigquit_prints_one_line_and_the_job_continues() {
    let mut running = Scrun::new()
        .args(&["-nodes=1", "system", "sh", "-c", "echo go; read x"])
        .stdin(Stdio::piped())
        .start();
    running.wait_for_output("go\n");
    running.signal(Signal::SIGQUIT);
    running.wait_for_error("SIGQUIT");
    running.close_input();
    assert_eq!(running.wait_for(Duration::from_secs(10)), Some(1));
}

#[test]
fn a_stopped_job_makes_no_progress_until_it_is_continued() {
    let script = "while :; do echo tick; sleep 0.02; done";
    let mut running = Scrun::new().args(&["-nodes=2", "system", "sh", "-c", script]).start();
    running.wait_for_output("tick\ntick\n");
    running.signal(Signal::SIGTSTP);
    running.wait_for_state('T');
    // Output in flight arrives within this time; after it there must be no more.
    std::thread::sleep(Duration::from_millis(300));
    let stopped = running.output_length();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(running.output_length(), stopped);
    running.signal(Signal::SIGCONT);
    running.wait_for_length(stopped + 20);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait_for(Duration::from_secs(10)), Some(137));
}

#[test]
fn a_hangup_that_was_ignored_at_the_start_stays_ignored() {
    let mut running =
        Scrun::shell("trap '' HUP; exec \"$0\" -nodes=1 system sh -c 'echo go; read x; exit 5'")
            .stdin(Stdio::piped())
            .start();
    running.wait_for_output("go\n");
    running.signal(Signal::SIGHUP);
    std::thread::sleep(Duration::from_millis(200));
    running.close_input();
    assert_eq!(running.wait_for(Duration::from_secs(10)), Some(5));
}

#[test]
fn a_killed_scored_is_reported_and_its_directory_removed() {
    let mut running =
        Scrun::new().args(&["-nodes=2", "system", "sh", "-c", "pwd; exec sleep 60"]).start();
    running.wait_for_lines(2);
    let directory = text(&running.output()).lines().next().unwrap().to_owned();
    assert!(std::path::Path::new(&directory).is_dir(), "{directory}");
    nix::sys::signal::kill(running.child_named("scored"), Signal::SIGKILL).unwrap();
    assert_eq!(running.wait_for(Duration::from_secs(5)), Some(70));
    running.wait_for_error("scored was killed by signal 9");
    assert!(!std::path::Path::new(&directory).exists(), "{directory}");
}

#[test]
fn messages_and_statistics_are_shown_as_asked() {
    let stderr = |options: &str| {
        let output = Scrun::new().args(&[options, "system", "true"]).run();
        assert_eq!(output.code, Some(0));
        text(&output.stderr)
    };
    let all = stderr("-nodes=2,wait");
    assert!(all.contains("ineffective options: wait"), "{all}");
    assert!(all.contains("job ") && all.contains("2 nodes"), "{all}");
    assert_eq!(stderr("-nodes=2,wait,message=concise"), "");
    let summary = stderr("-nodes=2,message=quiet,stat");
    assert!(summary.contains("2 processes") && summary.lines().count() == 1, "{summary}");
    let detail = stderr("-nodes=2,message=quiet,statistics=all");
    assert_eq!(detail.lines().count(), 4, "{detail}");
}

#[test]
fn redirects_write_to_the_job_directory_and_later_stages_read_it() {
    let output = Scrun::new()
        .args(&["-nodes=1", "system", "echo", "kept", "=:", "f", "::", "system", "cat", ":=", "f"])
        .run();
    assert_eq!((output.code, text(&output.stdout)), (Some(0), "kept\n".into()));
    let stderr = text(&output.stderr);
    assert_eq!(stderr.matches("removed with the job").count(), 1, "{stderr}");
}

#[test]
fn programs_get_the_environment_and_the_literal_operators() {
    let output = Scrun::new()
        .args(&["-nodes=1", "system", "sh", "-c", "echo $FLAVOUR \"$@\"", "x", "\\==", "\\::"])
        .env("FLAVOUR", "plum")
        .run();
    assert_eq!(text(&output.stdout), "plum == ::\n");
}
