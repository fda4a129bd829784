//! The limits of this machine for jobs. The daemon compares each job with them. It caches them
//! because reading them for each of many short jobs would be slow.
//!
//! RLIMIT_NPROC counts for each user. The limit of this process therefore applies only to jobs of
//! this process's user, in single-user mode. In multi-user mode the kernel applies the limit of the
//! job's user when processes start.

use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use score_job::validate::HostLimits;
use score_proto::job_control::Owner;

use crate::sys::process;

/// How long the cached limits are valid.
const CACHE_TTL: Duration = Duration::from_secs(1);

thread_local! {
    static CACHE: Cell<Option<(Instant, HostLimits)>> = const { Cell::new(None) };
}

fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The value of a line of `/proc/meminfo`, in bytes.
fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The total memory of this machine in bytes, or 0 if it cannot be determined.
pub fn memory() -> u64 {
    meminfo("MemTotal").unwrap_or(0)
}

/// The limits for a job of this owner, or of this process's user if there is no other owner. They
/// were read at most [`CACHE_TTL`] ago.
pub fn limits_for(owner: Option<&Owner>) -> HostLimits {
    let now = Instant::now();
    let cached = CACHE.get().filter(|(read_at, _)| now.duration_since(*read_at) < CACHE_TTL);
    let (read_at, limits) = cached.unwrap_or_else(|| (now, read_limits()));
    CACHE.set(Some((read_at, limits)));
    match owner {
        // The kernel does not apply the limit of processes to root.
        None if !geteuid().is_root() => {
            let own_limit = process::resource_limit(libc::RLIMIT_NPROC).rlim_cur;
            HostLimits { processes: limits.processes.min(own_limit), ..limits }
        }
        _ => limits,
    }
}

/// Reads the limits from the kernel, without those of users.
fn read_limits() -> HostLimits {
    let pids =
        [read_number("/proc/sys/kernel/pid_max"), read_number("/proc/sys/kernel/threads-max")];
    HostLimits {
        processes: pids.into_iter().flatten().min().unwrap_or(u64::MAX),
        descriptors: process::resource_limit(libc::RLIMIT_NOFILE).rlim_max,
        memory: meminfo("MemAvailable").unwrap_or(u64::MAX),
    }
}
