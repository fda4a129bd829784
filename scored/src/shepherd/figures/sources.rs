//! What the kernel says of processes, memory and disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::time::ClockId;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// CPUCLOCK_SCHED of `linux/posix-timers.h`: the time that all threads have run.
const RUN: libc::clockid_t = 2;

/// Processor time of a process, all of its threads, in nanoseconds; 0 when it has gone.
pub fn cpu_ns(pid: i32) -> u64 {
    // clock_getcpuclockid(3) makes the same of it, and asks the kernel once more.
    let clock = ClockId::from_raw(!pid << 3 | RUN);
    let time = nix::time::clock_gettime(clock);
    time.map_or(0, |time| {
        let part = |number: i64| u64::try_from(number).unwrap_or(0);
        part(time.tv_sec()).saturating_mul(1_000_000_000).saturating_add(part(time.tv_nsec()))
    })
}

/// Where the kernel tells the memory of a process.
#[derive(Debug, Default)]
pub struct Memory(Option<File>);

impl Memory {
    /// Resident memory of a process in KiB; 0 when it has gone. `keep`: the file stays open, since
    /// to find it takes several times as long as to read it.
    pub fn kib(&mut self, pid: i32, keep: bool) -> u64 {
        let file = self.0.take().map_or_else(|| File::open(format!("/proc/{pid}/statm")), Ok);
        // Seven numbers: one read, where a file's own functions ask for its length and its end.
        let mut statm = [0; 256];
        let read = file.as_ref().ok().and_then(|file| file.read_at(&mut statm, 0).ok());
        let text = std::str::from_utf8(&statm[..read.unwrap_or(0)]).unwrap_or_default();
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        self.0 = file.ok().filter(|_| keep);
        pages.unwrap_or(0).saturating_mul(PAGE / 1024)
    }

    /// Keeps nothing open.
    pub fn close(&mut self) {
        self.0 = None;
    }
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
    use std::process::{Command, Stdio};

    #[test]
    fn this_process_uses_memory_and_time_and_one_that_has_gone_uses_none() {
        let own = std::process::id() as i32;
        let gone = 200_000_000;
        let memory_kib = |pid| Memory::default().kib(pid, false);
        assert!(memory_kib(own) > 100 && cpu_ns(own) > 0);
        assert_eq!((memory_kib(gone), cpu_ns(gone)), (0, 0));
        assert!(available_kib() > 0 && free_kib(&std::env::temp_dir()) > 0);
        assert_eq!(free_kib(Path::new("/nonexistent")), 0);
    }

    #[test]
    fn a_file_that_stays_open_tells_what_is_new_and_nothing_when_its_process_has_gone() {
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", "read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let (pid, mut memory) = (child.id() as i32, Memory::default());
        while memory.kib(pid, true) == 0 {
            std::thread::yield_now();
        }
        assert!(memory.0.is_some());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(memory.kib(pid, true), 0);
        memory.close();
        assert!(memory.0.is_none());
    }
}
