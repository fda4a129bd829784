//! What this machine allows a job: read when the job is checked, but not for each of many short
//! ones.

use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use crate::job::check::Machine;
use crate::sys::process;

/// How long what was read holds.
const FRESH: Duration = Duration::from_secs(1);

thread_local! {
    static SEEN: Cell<Option<(Instant, Machine)>> = const { Cell::new(None) };
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A line of `/proc/meminfo`, in bytes.
fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// All memory of this machine in bytes; 0 where that cannot be found out.
pub fn memory() -> u64 {
    meminfo("MemTotal").unwrap_or(0)
}

/// What it allows, as of a second ago at most.
pub fn look() -> Machine {
    let now = Instant::now();
    let seen = SEEN.get().filter(|(at, _)| now.duration_since(*at) < FRESH);
    let (at, machine) = seen.unwrap_or_else(|| (now, ask()));
    SEEN.set(Some((at, machine)));
    machine
}

/// Asks the system.
fn ask() -> Machine {
    let nproc = match process::limit(libc::RLIMIT_NPROC).rlim_cur {
        // The kernel exempts root.
        _ if geteuid().is_root() => u64::MAX,
        limit => limit,
    };
    let pids = [number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")];
    let pids = pids.into_iter().flatten().min().unwrap_or(u64::MAX);
    Machine {
        processes: nproc.min(pids),
        descriptors: process::limit(libc::RLIMIT_NOFILE).rlim_max,
        memory: meminfo("MemAvailable").unwrap_or(u64::MAX),
    }
}
