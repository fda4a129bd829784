//! Tests with a gang scheduler that stops and continues processes while tools act on them, and with
//! killed tracers.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{self, Session};
use score_toolctl::tracer::*;

/// The number of slices that a scheduler has given to its program, and of stops that the scheduler
/// has observed. Ends the program.
fn slices_of(session: &mut Session) -> (i64, i64) {
    let stderr = BufReader::new(session.child.stderr.take().unwrap());
    let mut lines = stderr.lines().map(|line| line.unwrap());
    let first = lines.next().unwrap();
    session.tell("x");
    assert_eq!(lines.next().unwrap(), "scheduled status 1792", "it exits with 7; {first}");
    let numbers: Vec<i64> = first.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

#[test]
fn hits_are_counted_exactly_under_slices_of_10_ms() {
    let Some(mut session) = Session::start(&["schedule", "100", "3"]) else { return };
    session.tracer.attach(session.pid).unwrap();
    let (pid, spot) = (session.pid, session.address("spot"));
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    session.notice();
    session.tracer.resume(pid).unwrap();
    let start = session.variable("spots", 0);
    let (mut hits, began) = (1, Instant::now());
    while began.elapsed() < Duration::from_millis(1500) {
        let notice = session.notice();
        assert_eq!((notice.reason, notice.instruction), (NoticeReason::Breakpoint, spot));
        hits += 1;
        match hits % 3 {
            0 => session.general(notice.tid)[0],
            _ => 0,
        };
        session.tracer.resume(pid).unwrap();
    }
    let passed = session.variable("spots", 0) - start;
    assert!(hits > 100 && passed <= hits && passed >= hits - 5, "{passed} of {hits}");
    let original = session.tracer.read_memory(pid, spot, 1).unwrap()[0];
    session.tracer.reset_breakpoint(pid, spot, original).unwrap();
    session.detach();
    let (slices, _) = slices_of(&mut session);
    assert_eq!(slices, 100);
}

#[test]
fn the_scheduler_sees_its_stops_while_a_tool_reads_and_steps() {
    let Some(mut session) = Session::start(&["schedule", "100", "3"]) else { return };
    session.tracer.attach(session.pid).unwrap();
    let pid = session.pid;
    session.tracer.set_notify(pid, SignalSet::from_bits(u64::MAX)).unwrap();
    let began = Instant::now();
    let mut looks = 0;
    while began.elapsed() < Duration::from_millis(1500) {
        for tid in session.tracer.threads(pid) {
            session.general(tid);
            looks += 1;
        }
        if looks % 64 == 0 {
            session.ask(pid, Request::Allocate(4096)).unwrap();
            let worker = session.thread("worker-0");
            session.tracer.send_signal(pid, worker, libc::SIGUSR1).unwrap();
            assert_eq!(session.notice().signal, libc::SIGUSR1, "no stop is a notice");
            session.tracer.set_continuation(pid, 0, libc::SIGUSR1).unwrap();
            assert_eq!(session.tracer.step(pid, 0), Ok(StepOutcome::Started));
            let step = session.notice();
            assert_eq!((step.tid, step.reason), (worker, NoticeReason::Step));
            session.tracer.resume(pid).unwrap();
        }
    }
    session.assert_no_notice();
    session.detach();
    let (slices, stops) = slices_of(&mut session);
    assert!(stops > slices / 2, "{stops} stops seen in {slices} slices");
}

/// Not a test by itself, but the main function of a tracer that is killed. It works until then.
#[test]
fn tracer_that_is_killed() {
    let Ok(command) = std::env::var("TRACER_COMMAND") else { return };
    let words: Vec<&str> = command.split(' ').collect();
    let (pid, spot): (Pid, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    let mut tracer = Tracer::new(Linux);
    tracer.attach(pid).unwrap();
    if words[0] == "breakpoint" {
        tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    }
    for tid in tracer.threads(pid) {
        match words[0] {
            "hold" => tracer.hold(pid, tid).unwrap(),
            "watch" => {
                let range = WatchRange { address: spot, length: 8, kind: WatchKind::Write };
                _ = tracer.request(pid, Some(tid), Request::SetWatchpoint(range));
            }
            "look" => _ = tracer.request(pid, Some(tid), Request::Snapshot(4096)),
            _ => {}
        }
    }
    loop {
        tracer.handle_events();
        while let Some(event) = tracer.next_event() {
            match (event, words[0]) {
                (Event::Notice(_), _) => _ = tracer.step(pid, 0),
                (Event::Answer { .. }, "look") => {
                    _ = tracer.request(pid, None, Request::Snapshot(4096));
                }
                _ => {}
            }
        }
        if words[0] == "step" {
            _ = tracer.set_notify(pid, SignalSet::of(&[libc::SIGUSR1]));
            _ = tracer.send_signal(pid, pid, libc::SIGUSR1);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill_a_tracer(session: &Session, work: &str, after: Duration) {
    let mut tracer = Command::new(std::env::current_exe().unwrap());
    let symbol = if work == "watch" { "watched" } else { "spot" };
    let command = format!("{work} {} {}", session.pid, session.address(symbol));
    tracer.args(["--exact", "slices::tracer_that_is_killed"]).env("TRACER_COMMAND", command);
    let mut tracer = tracer.stdout(Stdio::null()).process_group(0).spawn().unwrap();
    let start = Instant::now();
    let traced = || {
        let status = procfs::Status::read(session.pid);
        status.is_none_or(|status| status.number::<Pid>("TracerPid") != Some(0))
    };
    while !traced() && start.elapsed() < support::TEST_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(after);
    tracer.kill().unwrap();
    tracer.wait().unwrap();
}

#[test]
fn threads_run_on_when_a_tracer_that_holds_them_is_killed() {
    for (work, after_ms) in [("hold", 20), ("look", 5), ("look", 21), ("look", 33)] {
        let Some(mut session) = Session::start(&["3"]) else { return };
        kill_a_tracer(&session, work, Duration::from_millis(after_ms));
        session.assert_works();
    }
}

#[test]
fn a_killed_tracer_leaves_its_breakpoints_in_the_text() {
    // The kernel detaches the process but restores nothing: int3 remains in the text.
    let Some(mut session) = Session::start(&["0"]) else { return };
    let spot = session.address("spot");
    let original = session.raw_byte(spot);
    kill_a_tracer(&session, "breakpoint", Duration::from_millis(30));
    assert_eq!(session.raw_byte(spot), 0xcc);
    // Another tracer restores the original byte before a thread executes the int3.
    session.tracer.attach(session.pid).unwrap();
    session.tracer.remove_leftovers(session.pid, &[(spot, original)]).unwrap();
    session.detach();
    assert_eq!(session.raw_byte(spot), original);
    session.tell("s");
    session.done();
}

#[test]
fn the_next_tracer_can_use_the_debug_registers_of_a_killed_tracer() {
    // The kernel detaches the process but keeps the debug registers: a hit is a SIGTRAP.
    let Some(mut session) = Session::start(&["1"]) else { return };
    kill_a_tracer(&session, "watch", Duration::from_millis(50));
    session.tell("w");
    assert_eq!(session.child.wait().unwrap().signal(), Some(libc::SIGTRAP));
    let Some(mut session) = Session::start(&["1"]) else { return };
    kill_a_tracer(&session, "watch", Duration::from_millis(50));
    session.tracer.attach(session.pid).unwrap();
    session.tracer.remove_leftovers(session.pid, &[]).unwrap();
    session.pump_for(Duration::from_millis(50));
    session.detach();
    session.tell("w");
    session.done();
    session.assert_works();
}

#[test]
fn detaching_during_hits_and_steps_leaves_no_breakpoint() {
    for round in 0..12 {
        let Some(mut session) = Session::attached("4") else { return };
        let (pid, spot) = (session.pid, session.address("spot"));
        session.set_variable("pace", 0);
        let original = session.raw_byte(spot);
        session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
        for _ in 0..round {
            session.notice();
            if round % 2 == 0 {
                session.tracer.resume(pid).unwrap();
            } else {
                session.tracer.step(pid, 0).map(drop).unwrap_or(());
            }
        }
        let watched = session.address("watched");
        let range = WatchRange { address: watched, length: 8, kind: WatchKind::Write };
        session.ask(pid, Request::SetWatchpoint(range)).unwrap();
        session.detach();
        assert_eq!(session.raw_byte(spot), original);
        session.set_variable_untraced("pace", 200);
        session.tell("w");
        session.done();
        session.assert_works();
    }
}

#[test]
fn a_process_killed_at_any_moment_ends_and_the_tracer_lives() {
    for round in 0..12_u64 {
        let Some(mut session) = Session::attached("4") else { return };
        let (pid, spot) = (session.pid, session.address("spot"));
        session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
        for _ in 0..round {
            session.notice();
            session.tracer.resume(pid).unwrap();
        }
        session.tracer.request(pid, None, Request::Snapshot(4096)).unwrap();
        session.tracer.request(pid, None, Request::Allocate(4096)).unwrap();
        session.child.kill().unwrap();
        let status = session.event("exit", |event| match event {
            Event::Exited { status, .. } => Some(*status),
            _ => None,
        });
        assert_eq!(status, 9);
        assert!(session.tracer.threads(pid).is_empty());
    }
}

/// Not a test by itself, but a tracer of another user, which has no permissions.
#[test]
fn tracer_of_another_user() {
    let Ok(command) = std::env::var("TRACER_COMMAND") else { return };
    let Some(pid) = command.strip_prefix("refused ") else { return };
    let pid = pid.parse().unwrap();
    println!("{:?}", Tracer::new(Linux).attach(pid));
    println!("{:?}", process_data::Reader::open(pid).map(drop));
    println!("{:?}", Tracer::new(Linux).attach(1));
}

#[test]
fn a_filter_of_system_calls_is_named() {
    let Some(session) = Session::start(&["0"]) else { return };
    let mut tracer = Command::new(support::compiled_program().unwrap());
    tracer.arg("filter").arg(std::env::current_exe().unwrap());
    tracer.args(["--exact", "slices::tracer_of_another_user", "--nocapture"]);
    tracer.env("TRACER_COMMAND", format!("refused {}", session.pid));
    let output = tracer.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("Err(Seccomp({}))", session.pid)), "{text}");
}

#[test]
fn a_process_that_is_not_dumpable_is_refused_by_name() {
    let Some(program) = support::compiled_program() else { return };
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to become another user");
    }
    let mut child = Command::new(program);
    let child = child.arg("0").uid(65534).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        return println!("skipped: another user may not execute the program");
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"d\n").unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("done d")));
    let pid = child.id() as Pid;
    let mut tracer = Command::new(std::env::current_exe().unwrap());
    tracer.args(["--exact", "slices::tracer_of_another_user", "--nocapture"]).uid(65534);
    let output = tracer.env("TRACER_COMMAND", format!("refused {pid}")).output();
    child.kill().unwrap();
    child.wait().unwrap();
    let Ok(output) = output else {
        return println!("skipped: another user may not execute the test");
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let refusals = text.matches(&format!("Err(NotDumpable({pid}))")).count();
    assert_eq!(refusals, 2, "{text}");
    assert!(text.contains("Err(OtherUser(1, 0))"), "{text}");
}

/// A new control group of version 2, which is removed at the end.
struct ControlGroup(std::path::PathBuf);

impl ControlGroup {
    fn new() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = mounts.find(|fields| fields.get(2) == Some(&"cgroup2"))?[1].to_owned();
        let path = format!("{mount}/score-toolctl-test-{}", std::process::id());
        std::fs::create_dir(&path).ok()?;
        Some(Self(path.into()))
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The control group may have ended together with its processes.
        _ = std::fs::write(self.0.join("cgroup.freeze"), "0");
        let start = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_frozen_process_can_be_read_and_stays_frozen() {
    let Some(group) = ControlGroup::new() else {
        return println!("skipped: no control group of version 2 can be made");
    };
    let Some(mut session) = Session::attached("2") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    let is_frozen = || {
        let events = std::fs::read_to_string(group.0.join("cgroup.events")).unwrap();
        events.contains("frozen 1").then_some(())
    };
    group.write("cgroup.procs", &pid.to_string());
    for round in 0..10 {
        group.write("cgroup.freeze", "1");
        session.until("freeze", |_| is_frozen());
        let spots = session.variable("spots", 0);
        for tid in session.tracer.threads(pid) {
            session.general(tid);
        }
        session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
        session.pump_for(Duration::from_millis(5));
        session.assert_no_notice();
        assert_eq!(session.variable("spots", 0), spots);
        if round == 9 {
            session.detach();
            assert_eq!(session.variable("spots", 0), spots);
        }
        group.write("cgroup.freeze", "0");
        if round < 9 {
            // A process at a breakpoint also counts as frozen.
            session.notice();
            group.write("cgroup.freeze", "1");
            session.until("freeze", |_| is_frozen());
            let original = session.tracer.read_memory(pid, spot, 1).unwrap()[0];
            session.tracer.reset_breakpoint(pid, spot, original).unwrap();
            while session.tracer.is_suspended(pid) {
                session.tracer.resume(pid).unwrap();
                session.pump_for(Duration::from_millis(2));
            }
            group.write("cgroup.freeze", "0");
        }
        session.forget_events();
    }
    session.assert_works();
}
