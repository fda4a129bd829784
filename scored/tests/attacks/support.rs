//! Functions that several attacks use.

use super::driver::TEST_TIMEOUT;
use super::driver::service::{BOB, Client, Service};
use nix::unistd::Pid;
use score_proto::message::ConsoleRequest;
use std::time::{Duration, Instant};

/// The longest time that a request of another user takes while `attack` runs in another thread.
pub fn longest_wait(service: &Service, attack: impl FnOnce() + Send) -> Duration {
    std::thread::scope(|scope| {
        let attack = scope.spawn(attack);
        let mut longest = Duration::ZERO;
        loop {
            let ended = attack.is_finished();
            for host in ["hosta", "hostb"] {
                let asked_at = Instant::now();
                let mut client = Client::log_in(&service.socket_of(host), BOB);
                client.send(&[ConsoleRequest::List]);
                assert_eq!(client.until_ended(), 0, "{host}: {}", client.notices);
                longest = longest.max(asked_at.elapsed());
            }
            if ended {
                attack.join().unwrap();
                return longest;
            }
        }
    })
}

/// The longest time that a request of another user may take during an attack.
pub const HONEST_WAIT_TIMEOUT: Duration = Duration::from_secs(3);

pub fn wait_for_process(command: &str) -> Pid {
    let started_at = Instant::now();
    loop {
        match process_of(command) {
            Some(pid) => return pid,
            None => assert!(started_at.elapsed() < TEST_TIMEOUT, "no process {command}"),
        }
    }
}

/// The shepherd that is an ancestor of a process.
pub fn shepherd_of(process: Pid) -> Pid {
    let mut pid = process;
    while status_field(pid, "Name:").as_deref() != Some("scored-shepherd") {
        let parent = status_field(pid, "PPid:").and_then(|pid| pid.parse().ok());
        pid = Pid::from_raw(parent.expect("a shepherd above the process"));
    }
    pid
}

/// The process with this command line.
pub fn process_of(command: &str) -> Option<Pid> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let found = pids.find(|pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = line.strip_suffix(&[0]).unwrap_or_default().split(|byte| *byte == 0);
        words.eq(command.split(' ').map(str::as_bytes))
    });
    found.map(Pid::from_raw)
}

pub fn status_field(pid: Pid, key: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().to_owned())
}
