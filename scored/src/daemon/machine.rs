//! What this machine allows a job: read when the job is checked.

use std::fs;

use nix::unistd::geteuid;

use crate::job::check::Machine;
use crate::sys::process;

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
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
    let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    Machine {
        processes: nproc.min(pids),
        descriptors: process::limit(libc::RLIMIT_NOFILE).rlim_max,
        memory: memory.map_or(u64::MAX, |kib| kib * 1024),
    }
}
