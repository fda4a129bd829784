//! Stops processes, and waits until they have stopped.

// UNSAFETY: waitid, timers that signal a thread, and signal dispositions have no safe wrapper.
#![expect(unsafe_code)]

use std::fs::{self, DirEntry, File};
use std::io::{self, Read};
use std::ptr;
use std::time::Duration;

use super::realtime;

/// State of a process, from /proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcStat {
    /// Its state as one letter (proc_pid_stat(5)).
    pub state: u8,
    /// Its parent.
    pub parent: i32,
    /// Number of pages that the process has accessed for the first time.
    pub minor_faults: u64,
    /// Number of threads, including the first one, which may have exited.
    pub threads: u32,
    /// Processor on which its first thread runs, or ran last.
    pub cpu: usize,
}

impl ProcStat {
    /// Whether a signal has stopped the process.
    pub fn is_stopped(self) -> bool {
        self.state == b'T'
    }

    /// Whether a tracer has stopped the process.
    pub fn is_held_by_tracer(self) -> bool {
        self.state == b't'
    }

    /// Whether the process has executed no code since its fork. Code would access the stack, whose
    /// pages are shared with the parent at first. The kernel itself may write the id of the child,
    /// which causes one fault.
    pub fn has_never_run(self) -> bool {
        self.minor_faults <= 1
    }

    /// Whether the process will handle a stop signal before it executes any of its code. A process
    /// that waits for a disk, or for a child of vfork(2), handles the signal later, but before any
    /// of its code.
    pub fn is_halted(self) -> bool {
        match self.state {
            b'T' | b't' | b'D' | b'X' => true,
            b'Z' => self.threads <= 1,
            _ => false,
        }
    }
}

/// Reads the state of a process. None if it no longer exists.
pub fn read_stat(pid: i32) -> Option<ProcStat> {
    let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
    let mut bytes = [0; 1024];
    let count = file.read(&mut bytes).ok()?;
    parse_stat(&bytes[..count])
}

/// Whether every thread of a process is stopped or has exited. True if the process no longer
/// exists. False if the state cannot be read.
pub fn has_stopped_completely(pid: i32) -> bool {
    let is_absent = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
    };
    let has_stopped =
        |thread: io::Result<DirEntry>| match fs::read(thread?.path().join("stat")) {
            Ok(stat) => Ok(parse_stat(&stat)
                .is_some_and(|stat| matches!(stat.state, b'T' | b't' | b'Z' | b'X'))),
            Err(error) if is_absent(&error) => Ok(true),
            Err(error) => Err(error),
        };
    match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(mut threads) => threads.all(|thread| has_stopped(thread).unwrap_or(false)),
        Err(error) => is_absent(&error),
    }
}

fn parse_stat(stat: &[u8]) -> Option<ProcStat> {
    // The name in parentheses may contain anything, including parentheses. Count fields from the
    // last parenthesis.
    let name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // Fields 10, 20 and 39, counted from 1.
    let minor_faults = fields.nth(5)?.parse().ok()?;
    let threads = fields.nth(9)?.parse().ok()?;
    let cpu = fields.nth(18)?.parse().ok()?;
    Some(ProcStat { state, parent, minor_faults, threads, cpu })
}

/// Whether a process that was sent a stop signal waits for its processor. It handles the signal
/// before it runs any of its own code, but only when the kernel schedules it. The calling thread
/// reads the state on that processor, so that the process cannot run in the meantime. False if the
/// process has several threads, because they receive the signal from the first thread that runs.
pub fn is_waiting_for_cpu(pid: i32, earlier: ProcStat) -> bool {
    let is_same_cpu = |stat: ProcStat| stat.threads == 1 && stat.cpu == earlier.cpu;
    let stat_on_its_cpu = || realtime::run_on_cpu(earlier.cpu, || read_stat(pid)).flatten();
    is_same_cpu(earlier) && stat_on_its_cpu().is_some_and(is_same_cpu)
}

/// Whether a signal to a process is pending.
pub fn is_signal_pending(pid: i32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> (signal - 1) & 1 == 1)
}

/// The result of a wait for a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopResult {
    /// The child has stopped, with all of its threads.
    Stopped,
    /// The child has exited.
    Ended,
    /// A signal interrupted the wait.
    Interrupted,
}

/// Waits until a child has stopped or exited. Leaves the event pending.
pub fn wait_for_stop(pid: i32) -> StopResult {
    let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
    match wait_id(libc::P_PID, pid, flags) {
        Ok(Some((_, libc::CLD_STOPPED | libc::CLD_TRAPPED))) => StopResult::Stopped,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => StopResult::Interrupted,
        _ => StopResult::Ended,
    }
}

/// Takes the next stop event of a child, if there is one.
pub fn next_stopped_child() -> Option<i32> {
    wait_id(libc::P_ALL, 0, libc::WSTOPPED | libc::WNOHANG).ok()?.map(|(pid, _)| pid)
}

/// Waits for a child. Returns its process id and the event.
fn wait_id(kind: libc::idtype_t, pid: i32, flags: i32) -> io::Result<Option<(i32, i32)>> {
    // SAFETY: an all-zero siginfo_t is a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes the struct given.
    if unsafe { libc::waitid(kind, pid.cast_unsigned(), &mut info, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid has filled it in as SIGCHLD's, or left it zero.
    let pid = unsafe { info.si_pid() };
    Ok((pid != 0).then_some((pid, info.si_code)))
}

/// Disables SIGCHLD for children that stop or continue.
///
/// # Errors
/// The errors of sigaction(2).
pub fn ignore_stops_of_children() -> io::Result<()> {
    set_disposition(libc::SIGCHLD, libc::SIG_DFL, libc::SA_NOCLDSTOP)
}

fn set_disposition(signal: i32, handler: usize, flags: i32) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value: no mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    // SAFETY: reads the struct given; the handler touches nothing.
    match unsafe { libc::sigaction(signal, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn nothing(_: i32) {}

/// A timer that, while it runs, repeatedly interrupts the system calls of the thread that has
/// created it.
#[derive(Debug)]
pub struct InterruptTimer(libc::timer_t);

impl InterruptTimer {
    /// Creates a timer that does not run.
    ///
    /// # Errors
    /// The errors of timer_create(2).
    pub fn new() -> io::Result<Self> {
        let signal = libc::SIGRTMIN() + 1;
        // Without SA_RESTART, so that calls are interrupted. execve(2) resets the handler.
        set_disposition(signal, nothing as *const () as usize, 0)?;
        // SAFETY: all-zero values are valid; each call reads and writes the structs given.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
            let mut event: libc::sigevent = std::mem::zeroed();
            (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_THREAD_ID, signal);
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = ptr::null_mut();
            match libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) {
                0 => Ok(Self(timer)),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// Starts the timer. It expires after `first`, and then every `period`. Both must be less than
    /// a second.
    pub fn start(&self, first: Duration, period: Duration) {
        self.set([first, period]);
    }

    /// Stops the timer.
    pub fn stop(&self) {
        self.set([Duration::ZERO; 2]);
    }

    fn set(&self, times: [Duration; 2]) {
        let to_timespec =
            |time: Duration| libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        let [it_value, it_interval] = times.map(to_timespec);
        let spec = libc::itimerspec { it_interval, it_value };
        // SAFETY: reads the struct given.
        unsafe { libc::timer_settime(self.0, 0, &spec, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_stat_line_is_parsed_with_any_process_name() {
        let stat =
            |state, parent| Some(ProcStat { state, parent, minor_faults: 2, threads: 3, cpu: 6 });
        let rest = "7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 3 0 99 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 17 6 0";
        assert_eq!(parse_stat(format!("7 (sh) S 1 {rest}").as_bytes()), stat(b'S', 1));
        assert_eq!(parse_stat(format!("7 (a) R 9 (b) T 12 {rest}").as_bytes()), stat(b'T', 12));
        for bad in [&b"7 (sh"[..], b"", b"7 (sh)", b"7 (sh) S", b"7 (sh) S x", b"7 (sh) S 1 7 7"] {
            assert_eq!(parse_stat(bad), None);
        }
        let self_stat = super::read_stat(std::process::id() as i32).unwrap();
        assert_eq!(self_stat.parent, std::os::unix::process::parent_id() as i32);
        assert!(self_stat.threads > 0 && !self_stat.is_halted());
    }

    // Promise (time-sharing): A process that waits for its processor counts as stopped, because it
    // gets the signal before it runs.
    #[test]
    fn a_process_that_waits_for_its_cpu_is_recognised_by_a_thread_pinned_there() {
        let pinned = std::thread::spawn(|| {
            realtime::pin_to_first_cpu();
            let mut spinner =
                Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
            let pid = spinner.id() as i32;
            let stat = super::read_stat(pid).unwrap();
            assert!(is_waiting_for_cpu(pid, stat), "{stat:?}");
            let other_cpu = ProcStat { cpu: stat.cpu + 1, ..stat };
            assert!(!is_waiting_for_cpu(pid, other_cpu), "it is on another processor");
            let multithreaded = ProcStat { threads: 2, ..stat };
            assert!(!is_waiting_for_cpu(pid, multithreaded), "other threads of it may run");
            spinner.kill().unwrap();
            spinner.wait().unwrap();
            assert!(!is_waiting_for_cpu(pid, stat), "it has exited");
        });
        pinned.join().unwrap();
        // A thread that is not pinned could leave the processor again.
        let self_pid = std::process::id() as i32;
        let single = ProcStat { threads: 1, ..super::read_stat(self_pid).unwrap() };
        assert!(!is_waiting_for_cpu(self_pid, single));
    }
}
