//! Whatever dies on whichever host of a job, the user reads which host it was, and a moment later
//! nothing of the job is left on any host.

use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::{Outcome, Running, Scene};

/// On four hosts; its descendants have left their sessions, as daemons do.
const ESCAPE: &str = "scrun -group=local:4,nodes=4x2 system sh -c '\
    setsid sleep 300 & (setsid sh -c \"sleep 301 & sleep 302\" &) ; echo up; exec sleep 303'";

fn start(scene: &Scene) -> Running {
    let mut job = scene.sh(ESCAPE).start();
    job.wait_for("up", 8);
    job
}

fn is_daemon_of(process: &Process, host: &str) -> bool {
    process.is_scored() && process.command.contains(&format!("-host {host} "))
}

/// Sends a signal to one process and waits until everything has gone.
fn strike(signal: Signal, within: Duration, wanted: impl Fn(&Scene, &Process) -> bool) -> Outcome {
    let scene = Scene::new();
    let job = start(&scene);
    let victim = scene.wait_for_process("the victim", |process| wanted(&scene, process));
    victim.signal(signal);
    let clean = scene.wait_until_clean(within);
    let took = clean.unwrap_or_else(|left| panic!("after {signal} of {victim:?}: {left:#?}"));
    eprintln!("everything gone {took:?} after {signal} of {}", victim.command);
    job.wait()
}

const SOON: Duration = Duration::from_secs(3);

#[test]
fn a_daemon_is_killed() {
    let outcome = strike(Signal::SIGKILL, SOON, |_, process| is_daemon_of(process, "local2"));
    assert_ne!(outcome.says(&["host local2 is lost"]).code, 0);
}

#[test]
fn a_daemon_that_hangs_is_named_within_the_limit() {
    let limit = Duration::from_secs(25);
    let outcome = strike(Signal::SIGSTOP, limit, |_, process| is_daemon_of(process, "local1"));
    assert_ne!(outcome.says(&["host local1 is lost", "nothing was heard"]).code, 0);
}

#[test]
fn the_server_is_killed() {
    let outcome = strike(Signal::SIGKILL, SOON, |_, process| {
        process.is_scored() && process.command.contains("-single")
    });
    assert_ne!(outcome.says(&["scored was killed by signal 9"]).code, 0);
}

#[test]
fn a_shepherd_of_another_host_is_killed() {
    let outcome = strike(Signal::SIGKILL, SOON, |scene, process| {
        let all = scene.processes();
        let parent = all.iter().find(|one| one.pid == process.parent);
        process.is_shepherd() && parent.is_some_and(|one| is_daemon_of(one, "local3"))
    });
    let _ = outcome.expect(137).says(&["host local3", "shepherd has died (killed by SIGKILL)"]);
}

#[test]
fn scrun_is_killed() {
    assert_eq!(strike(Signal::SIGKILL, SOON, |_, process| process.is_scrun()).code, 137);
}

#[test]
fn a_process_on_another_host_is_killed() {
    let outcome = strike(Signal::SIGKILL, SOON, |scene, process| {
        let all = scene.processes();
        let parent = |pid| all.iter().find(|one| one.pid == pid);
        let daemon = parent(process.parent).and_then(|shepherd| parent(shepherd.parent));
        process.command == "sleep 303" && daemon.is_some_and(|one| is_daemon_of(one, "local1"))
    });
    let _ = outcome.expect(137).says(&["of sh was killed by SIGKILL"]);
}

#[test]
fn a_job_can_be_cut_off_while_its_hosts_come_up() {
    for pause in [0, 5, 10, 20, 30, 40, 60, 80] {
        let scene = Scene::new();
        let job = scene.sh(ESCAPE).start();
        std::thread::sleep(Duration::from_millis(pause));
        job.signal(Signal::SIGTERM);
        if let Some(scrun) = scene.processes().into_iter().find(Process::is_scrun) {
            scrun.signal(Signal::SIGTERM);
        }
        assert_ne!(job.wait().code, 0);
    }
}
