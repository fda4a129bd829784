//! What this machine allows a job: read when the job is checked.

use std::fs;

use nix::unistd::geteuid;

use crate::job::check::Machine;
use crate::sys::process;

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

/// Asks the system.
pub fn look() -> Machine {
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
