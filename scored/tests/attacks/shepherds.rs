//! Attacks in which a user stops, traces or kills the shepherd of the user's own job.

use super::driver::service::{ALICE, BOB, Client, Service, run_as, spec};
use super::support::{
    HONEST_WAIT_TIMEOUT, longest_wait, process_of, shepherd_of, wait_for_process,
};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use score_proto::message::JobRequest;
use std::time::{Duration, Instant};

#[test]
fn an_externally_traced_process_does_not_block_the_daemon_after_a_killed_shepherd() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    // The number of seconds makes the command line unique.
    let command = format!("sleep 9{}", std::process::id());
    client.request(ALICE, 1, spec(&format!("echo up; {command}"), &[]));
    client.until_noticed("up");
    let sleeper = wait_for_process(&command);
    let shepherd = shepherd_of(sleeper);
    let wait = longest_wait(&service, || {
        // A thread with the rights of alice traces the process, kills the shepherd, and stays for a
        // while.
        run_as(ALICE, || {
            ptrace::seize(sleeper, ptrace::Options::empty()).unwrap();
            kill(shepherd, Signal::SIGKILL).unwrap();
            std::thread::sleep(Duration::from_secs(6));
        });
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    // The tracer has ended, so the rest of the job can end.
    assert_ne!(client.until_ended(), 0);
    assert_eq!(process_of(&command), None);
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_traced_process_does_not_keep_the_daemons_from_stopping() {
    let Some(service) = Service::start_two_hosts() else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    let command = format!("sleep 7{}", std::process::id());
    client.request(ALICE, 1, spec(&format!("echo up; {command}"), &[]));
    client.until_noticed("up");
    let sleeper = wait_for_process(&command);
    let (is_traced, wait_until_traced) = std::sync::mpsc::channel();
    let tracer = std::thread::spawn(move || {
        run_as(ALICE, || {
            ptrace::seize(sleeper, ptrace::Options::empty()).unwrap();
            is_traced.send(()).unwrap();
            std::thread::sleep(Duration::from_secs(10));
        });
    });
    wait_until_traced.recv().unwrap();
    let stopped_at = Instant::now();
    drop(service);
    let wait = stopped_at.elapsed();
    assert!(wait < Duration::from_secs(6), "the daemons took {wait:?} to stop");
    tracer.join().unwrap();
}

/// The processor time of a process, in ticks.
fn ticks(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Sends a signal to a process repeatedly for some time, with the rights of the user.
fn signal_repeatedly(user: u32, pid: Pid, signal: Signal, duration: Duration) {
    run_as(user, || {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            let _ = kill(pid, signal);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_job_whose_shepherd_is_stopped_by_its_user_loses_its_processors() {
    const PHASE_WINDOW: Duration = Duration::from_secs(4);
    let Some(mut service) = Service::start_with(1, &["-ts", "100"]) else { return };
    let mut clients = Vec::new();
    // The numbers make the command lines unique.
    let [attacker, honest] = [(ALICE, 3), (BOB, 4)].map(|(user, digit)| {
        let command = format!("yes {digit}{}", std::process::id());
        let mut client = Client::connect_as(&service.socket(), user);
        client.request(user, 1, spec(&format!("echo up; exec {command} > /dev/null"), &[]));
        client.until_noticed("up");
        clients.push(client);
        wait_for_process(&command)
    });
    let ticks_in = |phase: &dyn Fn()| {
        let before = ticks(honest);
        phase();
        ticks(honest) - before
    };
    let beside_honest = ticks_in(&|| std::thread::sleep(PHASE_WINDOW));
    let shepherd = shepherd_of(attacker);
    let beside_attacker =
        ticks_in(&|| signal_repeatedly(ALICE, shepherd, Signal::SIGSTOP, PHASE_WINDOW));
    println!(
        "ticks in {PHASE_WINDOW:?}: {beside_attacker} with an attacker, {beside_honest} without"
    );
    assert!(beside_attacker * 4 >= beside_honest, "{beside_attacker} of {beside_honest} ticks");
    // The attacker's job still runs, and ends when it is killed.
    for client in &mut clients {
        assert_eq!(client.code, None, "{}", client.notices);
        client.send(&[JobRequest::Kill]);
        assert_eq!(client.until_ended(), 137, "{}", client.notices);
    }
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_job_that_was_frozen_once_ends_as_soon_as_its_processes() {
    const ROUNDS: u32 = 8;
    let Some(service) = Service::start_with(1, &["-ts", "10"]) else { return };
    let mut other = Client::connect_as(&service.socket(), BOB);
    // The number makes the command line unique.
    let command = format!("yes 5{}", std::process::id());
    other.request(BOB, 1, spec(&format!("echo up; exec {command} > /dev/null"), &[]));
    other.until_noticed("up");
    for round in 0..ROUNDS {
        let command = format!("yes {round}6{}", std::process::id());
        let mut client = Client::connect_as(&service.socket(), ALICE);
        let script = format!("echo up; {command} | head -c 400000000 > /dev/null");
        client.request(ALICE, 1, spec(&script, &[]));
        client.until_noticed("up");
        let shepherd = shepherd_of(wait_for_process(&command));
        // This is longer than the time that the daemon waits for a stop.
        signal_repeatedly(ALICE, shepherd, Signal::SIGSTOP, Duration::from_millis(500));
        assert_eq!(client.until_ended(), 0, "{}", client.notices);
    }
    other.send(&[JobRequest::Kill]);
    assert_eq!(other.until_ended(), 137, "{}", other.notices);
}
