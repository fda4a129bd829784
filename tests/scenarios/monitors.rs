//! Monitors. `scrun -monitor` shows on a terminal or in an xterm what each process does.
//! `scmon JOB` shows the user's own jobs of a cluster. `stat=detail` prints the totals at the end.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::TestEnv;
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use score_tests::terminal::Terminal;
use score_tests::virtual_display::VirtualDisplay;
use serde_json::Value;

const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of bytes in 100 messages of 1 to 100 bytes, which `monitor_load` sends.
const BYTES: u64 = 5050;

// Promise (monitors): `scrun -monitor` draws a display on the terminal and restores the terminal;
// if the job uses the terminal, it draws in an xterm; otherwise a line says why there is none.
#[test]
fn the_monitor_draws_on_the_terminal_and_restores_it() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("monitor_load") else { return };
    let line = format!(
        "stty rows 20 cols 100; scrun -nodes=2,monitor=ALL {} 60 > out; echo code $?",
        program.display()
    );
    let mut terminal = Terminal::open(&env, "sh", &["-c", &line]);
    // The monitor shows processes, values of all kinds, bars, and scrun's messages below the chart.
    for shown in ["load", "usr1", "100%", "0%", "200", "█", "2 nodes on 1 host"] {
        terminal.wait_for(shown, EVENT_TIMEOUT);
    }
    terminal.type_keys("q");
    // The monitor leaves the alternate screen, the job continues, and ^C acts on scrun again.
    terminal.wait_for("\u{1b}[?1049l", EVENT_TIMEOUT);
    terminal.type_keys("\u{3}\u{3}\u{3}");
    let _ = terminal.wait(EVENT_TIMEOUT);
    assert!(fs::read(env.dir().join("out")).unwrap().is_empty());
}

// Promise of `the_monitor_draws_on_the_terminal_and_restores_it`.
#[test]
fn a_job_that_uses_the_terminal_gets_an_xterm_or_one_line_with_the_reason() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("monitor_load") else { return };
    let folder = env.dir().join("bin");
    fs::create_dir(&folder).unwrap();
    // A fake xterm, which needs no display and keeps the output of its command.
    let _ = env.write_script("bin/xterm", "#!/bin/sh\nshift 5\nshift\nexec \"$@\" -json > seen\n");
    let run = format!("scrun -nodes=2,monitor=load {} 4", program.display());
    let line = format!("{run}; PATH={}:$PATH DISPLAY=:7 {run}; echo code $?", folder.display());
    let terminal = Terminal::open(&env, "sh", &["-c", &line]);
    terminal.wait_for("monitor: not started", EVENT_TIMEOUT);
    terminal.wait_for("DISPLAY is not set", EVENT_TIMEOUT);
    terminal.wait_for("code 0", EVENT_TIMEOUT);
    let seen = fs::read_to_string(env.dir().join("seen")).unwrap();
    let last: Value = serde_json::from_str(seen.lines().last().unwrap()).unwrap();
    assert_eq!(last["processes"].as_array().unwrap().len(), 2, "{seen}");
    let _ = terminal.wait(EVENT_TIMEOUT);
}

fn count_pixels(pixels: &[[u8; 3]], is_counted: impl Fn([i32; 3]) -> bool) -> usize {
    pixels.iter().filter(|pixel| is_counted(pixel.map(i32::from))).count()
}

// Promise of `the_monitor_draws_on_the_terminal_and_restores_it`.
#[test]
fn an_xterm_shows_busy_processes_in_red_and_closes_with_the_job() {
    let Some(virtual_display) = VirtualDisplay::open("monitor_in_an_xterm") else { return };
    let env = TestEnv::new();
    let Some(program) = env.test_program("monitor_load") else { return };
    let count_red = || {
        count_pixels(&virtual_display.screenshot(), |[red, green, blue]| red - green.max(blue) > 90)
    };
    let count_lit =
        || count_pixels(&virtual_display.screenshot(), |[red, green, blue]| red + green + blue > 0);
    assert_eq!(count_lit(), 0, "an empty screen is black");
    let display = format!("DISPLAY={}", virtual_display.display);
    let job = ["scrun", "-nodes=2,monitor=load", program.to_str().unwrap(), "600"];
    let args = [&[display.as_str()][..], &job].concat();
    let mut terminal = Terminal::open(&env, "env", &args);
    let wait_for = |what: &str, describe: &dyn Fn() -> String, is_reached: &dyn Fn() -> bool| {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while !is_reached() {
            let (red, lit) = (count_red(), count_lit());
            assert!(Instant::now() < deadline, "{what}: {red} red, {lit} lit, {}", describe());
            sleep(Duration::from_millis(200));
        }
    };
    // Node 0 computes all the time. Its bar is several hundred columns of nine pixels each.
    wait_for("a red bar", &|| terminal.text(), &|| count_red() > 1000);
    terminal.type_keys("\u{3}");
    assert_eq!(terminal.wait(EVENT_TIMEOUT), -1, "SIGINT ends scrun");
    wait_for("the window closes", &String::new, &|| count_lit() == 0);
}

// Promise of `the_monitor_draws_on_the_terminal_and_restores_it`.
#[test]
fn a_display_that_closes_ends_the_monitor_and_the_job_continues() {
    let Some(virtual_display) = VirtualDisplay::open("monitor_without_its_screen") else { return };
    let env = TestEnv::new();
    let Some(program) = env.test_program("monitor_load") else { return };
    let display = format!("DISPLAY={}", virtual_display.display);
    let job = ["scrun", "-nodes=2,monitor=load", program.to_str().unwrap(), "600"];
    let args = [&[display.as_str()][..], &job].concat();
    let mut terminal = Terminal::open(&env, "env", &args);
    let count_running = |name: &str| {
        let is_named = |program: &str| program.rsplit('/').next() == Some(name);
        let processes = env.processes();
        processes
            .iter()
            .filter(|process| process.command.split(' ').next().is_some_and(is_named))
            .count()
    };
    let wait_for = |name: &str, count: usize| {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while count_running(name) != count {
            assert!(Instant::now() < deadline, "{} {name}", count_running(name));
            sleep(Duration::from_millis(50));
        }
    };
    wait_for("scmon", 1);
    sleep(Duration::from_secs(1));
    drop(virtual_display);
    wait_for("scmon", 0);
    assert_eq!(count_running("monitor_load"), 2);
    terminal.type_keys("\u{3}");
    assert_eq!(terminal.wait(EVENT_TIMEOUT), -1, "SIGINT ends scrun");
}

// Promise (monitors): An unknown monitor is refused with the list.
#[test]
fn an_unknown_monitor_is_refused_with_the_list() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=2,monitor=cpu", "system", "true"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.assert_stderr(&["load, comm, memory, disk, usr0, usr1, all, ALL"]);
    let outcome = env.sh("scmon -show cpu 7").run().expect_code(2);
    let _ = outcome.assert_stderr(&["load, comm, memory, disk, usr0, usr1, all, ALL"]);
    let outcome = env.sh("scmon -help").run().expect_code(0);
    assert!(outcome.text().starts_with("usage: scmon"), "{outcome}");
}

// Promise of `the_monitor_draws_on_the_terminal_and_restores_it`.
#[test]
fn without_a_terminal_the_job_runs_and_one_line_reports_the_absence_of_a_monitor() {
    let env = TestEnv::new();
    let args = ["setsid", "-w", "scrun", "-nodes=2,monitor", "system", "echo", "ran"];
    let outcome = env.sh(&args.join(" ")).run().expect_code(0);
    assert_eq!(outcome.text(), "ran\nran\n");
    let _ = outcome.assert_stderr(&["neither a terminal nor a DISPLAY"]);
}

// Promise (monitors): `stat=detail` reports messages and bytes of every process exactly, and its
// busy share.
#[test]
fn the_messages_and_bytes_of_a_job_are_reported_exactly_at_its_end() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("monitor_load") else { return };
    for (group, nodes) in [(None, 4), (Some("local:2"), 4)] {
        let mut options = format!("-nodes={nodes},stat=detail");
        options.extend(group.map(|group| format!(",group={group}")));
        let outcome = env.scrun(&[&options, program.to_str().unwrap(), "3"]).run().expect_code(0);
        let text = &outcome.stderr;
        let total = format!("200 messages ({} bytes) sent, 200 ({0} bytes) received", 2 * BYTES);
        assert!(text.contains(&total), "{outcome}");
        for node in 0..nodes {
            let line = text.lines().find(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.len() == 12 && words[1] == node.to_string()
            });
            let words: Vec<&str> = line.unwrap().split_whitespace().collect();
            let (sent, received) = (&words[6..8], &words[8..10]);
            let busy: f64 = words[4].trim_end_matches('%').parse().unwrap();
            let (active, passive) = if node % 2 == 0 { (sent, received) } else { (received, sent) };
            assert_eq!((active, passive), (&["100", "5050"][..], &["0", "0"][..]), "{outcome}");
            assert!(if node % 2 == 0 { busy > 90.0 } else { busy < 30.0 }, "{outcome}");
        }
    }
}

// Promise (monitors): Monitors show an idle process as idle and a busy one as busy, and bytes and
// user monitors exactly; users see only their own jobs, operators all.
#[test]
fn scmon_shows_users_their_own_jobs_and_operators_all_jobs() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("monitor_load") else { return };
    let Some(cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let copy = env.dir().join("program");
    fs::copy(program, &copy).unwrap();
    let job = cluster
        .command(ALICE, "scrun", "a")
        .args(&["-scored=all,nodes=2x1", copy.to_str().unwrap(), "120"])
        .start();
    let number = wait_for_running_job(&cluster);
    let scmon = |uid, args: &[&str]| cluster.command(uid, "scmon", "a").args(args).arg(&number);
    let refused = scmon(BOB, &["-once"]).run().expect_code(1);
    let _ = refused.assert_stderr(&["another user's"]);
    let missing = cluster.command(BOB, "scmon", "b").args(&["-json", "4711"]).run().expect_code(1);
    let _ = missing.assert_stderr(&["there is no job 4711"]);

    for uid in [ALICE, OPERATOR] {
        let mut monitor = scmon(uid, &["-json", "-period", "200"]).start();
        let deadline = Instant::now() + EVENT_TIMEOUT;
        let report = loop {
            monitor.wait_for("\n", monitor.stdout().lines().count() + 1);
            let text = monitor.stdout();
            let last = text.lines().rfind(|line| line.ends_with('}'));
            let line: Value = serde_json::from_str(last.unwrap_or("{}")).unwrap_or_default();
            if is_settled(&line) {
                break line;
            }
            assert!(Instant::now() < deadline, "{text}");
        };
        assert_report(&report);
        monitor.signal(Signal::SIGTERM);
        let _ = monitor.wait();
    }
    let table = scmon(ALICE, &["-once", "-show", "ALL"]).run().expect_code(0).text();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("host/node") && lines[0].ends_with("usr1"), "{table}");
    assert!(lines.len() == 5 && lines[4].trim_start().starts_with('1'), "{table}");
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
}

/// Waits until a job runs. Returns the number of the job.
fn wait_for_running_job(cluster: &Cluster<'_>) -> String {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        let outcome = cluster.command(OPERATOR, "scps", "a").arg("-json").run();
        let listing: Value = serde_json::from_slice(&outcome.stdout).unwrap_or_default();
        if listing["jobs"][0]["state"] == "running" {
            return listing["jobs"][0]["job"].to_string();
        }
        assert!(Instant::now() < deadline, "{outcome}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_settled(line: &Value) -> bool {
    let load = |node: usize| line["processes"][node]["load"].as_f64();
    // The shepherd samples memory twice a second. At the first sample a process may not have called
    // exec yet.
    let memory = line["processes"][0]["memory_kib"].as_u64();
    load(0).is_some_and(|load| load > 0.95)
        && load(1).is_some_and(|load| load < 0.05)
        && memory.is_some_and(|kib| kib > 100)
}

/// Checks the report of one idle and one busy process on two hosts.
fn assert_report(line: &Value) {
    let (busy, idle) = (&line["processes"][0], &line["processes"][1]);
    assert_eq!((&busy["sent"], &busy["sent_bytes"]), (&100.into(), &BYTES.into()), "{line}");
    assert_eq!((&idle["received"], &idle["received_bytes"]), (&100.into(), &BYTES.into()));
    assert_eq!((&busy["received"], &idle["sent"]), (&0.into(), &0.into()), "{line}");
    assert_eq!((&busy["usr0"], &idle["usr0"]), (&10.into(), &11.into()), "{line}");
    assert_eq!((&busy["usr1"], &idle["host"]), (&200.into(), &1.into()), "{line}");
    assert!(busy["memory_kib"].as_u64().unwrap() > 100, "{line}");
    let mut names = [0, 1].map(|host| line["hosts"][host]["name"].as_str().unwrap());
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    let scale = line["hosts"][1]["disk_scale_kib"].as_u64();
    assert!(scale.is_some_and(|kib| kib > 0), "{line}");
}
