//! Statistics of the kernel about processes, memory and disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use nix::sys::statvfs::statvfs;
use nix::time::ClockId;
use nix::unistd::{SysconfVar, sysconf};

/// CPUCLOCK_SCHED of `linux/posix-timers.h`: the time that all threads have run.
const CPUCLOCK_SCHED: libc::clockid_t = 2;

/// Processor time of all threads of a process in nanoseconds; 0 after its exit.
pub fn cpu_ns(pid: i32) -> u64 {
    // clock_getcpuclockid(3) computes the same value, with an additional system call.
    let clock = ClockId::from_raw(!pid << 3 | CPUCLOCK_SCHED);
    let time = nix::time::clock_gettime(clock);
    time.map_or(0, |time| {
        let to_u64 = |number: i64| u64::try_from(number).unwrap_or(0);
        to_u64(time.tv_sec()).saturating_mul(1_000_000_000).saturating_add(to_u64(time.tv_nsec()))
    })
}

/// Reads the memory usage of a process.
#[derive(Debug, Default)]
pub struct MemoryReader(Option<File>);

impl MemoryReader {
    /// Resident memory of a process in KiB; 0 after its exit. `keep_open`: leave the file open,
    /// because opening it takes several times as long as reading it.
    pub fn kib(&mut self, pid: i32, keep_open: bool) -> u64 {
        let file = self.0.take().map_or_else(|| File::open(format!("/proc/{pid}/statm")), Ok);
        // One read returns all seven numbers. `read_to_string` would also query the length, and
        // read again to find the end.
        let mut statm = [0; 256];
        let read_len = file.as_ref().ok().and_then(|file| file.read_at(&mut statm, 0).ok());
        let text = std::str::from_utf8(&statm[..read_len.unwrap_or(0)]).unwrap_or_default();
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        self.0 = file.ok().filter(|_| keep_open);
        pages.unwrap_or(0).saturating_mul(page_kib())
    }

    /// Closes the file.
    pub fn close(&mut self) {
        self.0 = None;
    }
}

/// The size of a page in KiB. Some machines have pages of 16 or 64 KiB.
fn page_kib() -> u64 {
    static PAGE_KIB: OnceLock<u64> = OnceLock::new();
    let size =
        || sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| size.try_into().ok());
    *PAGE_KIB.get_or_init(|| size().unwrap_or(4096_u64) / 1024)
}

/// Memory of this host that is available to new programs, in KiB.
pub fn available_kib() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0)
}

/// Disk space at a path that is available to users, in KiB.
pub fn free_kib(path: &Path) -> u64 {
    statvfs(path).map_or(0, |stat| stat.blocks_available().saturating_mul(stat.fragment_size()))
        / 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_running_process_uses_memory_and_time_and_an_exited_process_uses_none() {
        let self_pid = std::process::id() as i32;
        let exited_pid = 200_000_000;
        let memory_kib = |pid| MemoryReader::default().kib(pid, false);
        assert!(memory_kib(self_pid) > 100 && cpu_ns(self_pid) > 0);
        assert_eq!((memory_kib(exited_pid), cpu_ns(exited_pid)), (0, 0));
        assert!(available_kib() > 0 && free_kib(&std::env::temp_dir()) > 0);
        assert_eq!(free_kib(Path::new("/nonexistent")), 0);
    }

    #[test]
    fn a_file_kept_open_shows_current_memory_and_zero_after_the_process_exits() {
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", "read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let (pid, mut memory) = (child.id() as i32, MemoryReader::default());
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
