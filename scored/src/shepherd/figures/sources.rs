//! What the kernel says of processes, memory and disk.

use std::fs;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::time::ClockId;
use nix::unistd::Pid;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Processor time of a process, all of its threads, in nanoseconds; 0 when it has gone.
pub fn cpu_ns(pid: i32) -> u64 {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid));
    let time = clock.and_then(nix::time::clock_gettime);
    time.map_or(0, |time| {
        let part = |number: i64| u64::try_from(number).unwrap_or(0);
        part(time.tv_sec()).saturating_mul(1_000_000_000).saturating_add(part(time.tv_nsec()))
    })
}

/// Resident memory of a process in KiB; 0 when it has gone.
pub fn memory_kib(pid: i32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(PAGE / 1024)
}

/// Memory of this host that new programs can have, in KiB.
pub fn available_kib() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0)
}

/// Disk space at a path that a user can have, in KiB.
pub fn free_kib(path: &Path) -> u64 {
    statvfs(path).map_or(0, |found| found.blocks_available().saturating_mul(found.fragment_size()))
        / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_time_and_one_that_has_gone_uses_none() {
        let own = std::process::id() as i32;
        let gone = 200_000_000;
        assert!(memory_kib(own) > 100 && cpu_ns(own) > 0);
        assert_eq!((memory_kib(gone), cpu_ns(gone)), (0, 0));
        assert!(available_kib() > 0 && free_kib(&std::env::temp_dir()) > 0);
        assert_eq!(free_kib(Path::new("/nonexistent")), 0);
    }
}
