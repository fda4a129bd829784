//! The threads of a process, from /proc (proc(5)).

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its thread id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its state as one letter (proc_pid_stat(5)).
    pub state: u8,
    /// Number of its context switches.
    pub context_switches: u64,
    /// The system call that the thread is in.
    pub call: Syscall,
}

/// The system call that a thread is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syscall {
    /// Unknown, because the thread runs.
    Running,
    /// The thread is in no system call.
    None,
    /// Number and arguments. A stopped thread is still in its call.
    Blocked(i64, [u64; 6]),
    /// The kernel does not show the call.
    Unknown,
}

/// Signal handling and timers of a process as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalState {
    /// Whether a debugger traces the process.
    pub traced: bool,
    /// Signals for which it has handlers. Bit 0 is signal 1.
    pub caught_signals: u64,
    /// Whether it has timers that send signals.
    pub has_timers: bool,
}

impl SignalState {
    /// Whether the process may wake itself, or a debugger may change its state.
    pub fn may_wake_itself(&self) -> bool {
        // A handler may do anything, including sending messages.
        let waking_signals = [libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF, libc::SIGIO];
        let catches_waking_signal =
            waking_signals.iter().any(|signal| self.caught_signals & (1 << (signal - 1)) != 0);
        self.traced || self.has_timers || catches_waking_signal
    }
}

/// Reads a file of /proc with as few system calls as possible.
///
/// # Errors
/// The errors of open(2) and read(2). Also an error if the content is not UTF-8.
pub fn read_proc_file(path: &str) -> io::Result<String> {
    let mut text = String::with_capacity(16 << 10);
    File::open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn parse_status(status: &str) -> Option<(String, u8, u64)> {
    let number = |name| status_field(status, name)?.parse::<u64>().ok();
    let voluntary = number("voluntary_ctxt_switches")?;
    let context_switches = voluntary.wrapping_add(number("nonvoluntary_ctxt_switches")?);
    let state = *status_field(status, "State")?.as_bytes().first()?;
    Some((status_field(status, "Name")?.to_owned(), state, context_switches))
}

fn parse_call(line: &str) -> Syscall {
    if line.trim() == "running" {
        return Syscall::Running;
    }
    let mut words = line.split_ascii_whitespace();
    match words.next().and_then(|word| word.parse::<i64>().ok()) {
        Some(-1) => Syscall::None,
        Some(number) => {
            let mut arguments = [0; 6];
            for argument in &mut arguments {
                let word = words.next().and_then(|word| word.strip_prefix("0x"));
                match word.and_then(|word| u64::from_str_radix(word, 16).ok()) {
                    Some(value) => *argument = value,
                    None => return Syscall::Unknown,
                }
            }
            Syscall::Blocked(number, arguments)
        }
        None => Syscall::Unknown,
    }
}

/// All threads of a process. None if the kernel does not show them.
pub fn threads_of(pid: i32) -> Option<Vec<Task>> {
    let directory = format!("/proc/{pid}/task");
    let mut tasks = Vec::new();
    for entry in fs::read_dir(&directory).ok()? {
        let tid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let status = read_proc_file(&format!("{directory}/{tid}/status")).ok()?;
        let (name, state, context_switches) = parse_status(&status)?;
        let line = read_proc_file(&format!("{directory}/{tid}/syscall"));
        let call = line.map_or(Syscall::Unknown, |line| parse_call(&line));
        tasks.push(Task { tid, name, state, context_switches, call });
    }
    tasks.sort_unstable_by_key(|task| task.tid);
    Some(tasks)
}

/// Signal handling and timers of a process. None if the kernel does not show them.
pub fn signal_state(pid: i32) -> Option<SignalState> {
    let status = read_proc_file(&format!("/proc/{pid}/status")).ok()?;
    let traced = status_field(&status, "TracerPid")? != "0";
    let caught_signals = u64::from_str_radix(status_field(&status, "SigCgt")?, 16).ok()?;
    // Some kernels do not have this file.
    let timers = read_proc_file(&format!("/proc/{pid}/timers")).unwrap_or_default();
    Some(SignalState { traced, caught_signals, has_timers: !timers.trim().is_empty() })
}

/// The given processes that have live children. All given processes are stopped.
pub fn pids_with_children(pids: &HashSet<i32>) -> HashSet<i32> {
    let parent_flags: Option<Vec<(i32, bool)>> =
        pids.iter().map(|pid| Some((*pid, is_parent(*pid)?))).collect();
    match parent_flags {
        Some(parent_flags) => parent_flags
            .into_iter()
            .filter(|(_, has_children)| *has_children)
            .map(|(pid, _)| pid)
            .collect(),
        None => pids_with_children_by_scan(pids),
    }
}

/// Whether a process has live children. None if the kernel has no lists of children
/// (CONFIG_PROC_CHILDREN).
fn is_parent(pid: i32) -> Option<bool> {
    let child_pids = children(pid)?;
    // Reading may skip an entry while the child before it exits.
    let is_stable = child_pids.is_empty() || child_pids == children(pid)?;
    Some(!is_stable || child_pids.into_iter().any(|child| parent_if_alive(child).is_some()))
}

fn children(pid: i32) -> Option<Vec<i32>> {
    let directory = format!("/proc/{pid}/task");
    let mut pids = Vec::new();
    for entry in fs::read_dir(&directory).ok()? {
        let tid = entry.ok()?.file_name();
        let list = read_proc_file(&format!("{directory}/{}/children", tid.to_str()?)).ok()?;
        pids.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(pids)
}

/// The parent of a live process.
fn parent_if_alive(pid: i32) -> Option<i32> {
    let stat = read_proc_file(&format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, including parentheses. Count fields from the
    // last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_alive = !matches!(fields.next()?, "Z" | "X");
    fields.next()?.parse().ok().filter(|_| is_alive)
}

fn pids_with_children_by_scan(pids: &HashSet<i32>) -> HashSet<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return pids.clone() };
    let parent = |entry: fs::DirEntry| parent_if_alive(entry.file_name().to_str()?.parse().ok()?);
    entries.flatten().filter_map(parent).filter(|parent| pids.contains(parent)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_with_its_arguments() {
        assert_eq!(parse_call("running\n"), Syscall::Running);
        assert_eq!(parse_call("-1 0x7ffc 0x55\n"), Syscall::None);
        let line = "202 0x7f01 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f02\n";
        assert_eq!(parse_call(line), Syscall::Blocked(202, [0x7f01, 0x189, 0, 0, 0, 0xffff_ffff]));
        for wrong in ["", "202", "202 1 2 3 4 5 6", "x"] {
            assert_eq!(parse_call(wrong), Syscall::Unknown, "{wrong:?}");
        }
    }

    #[test]
    fn a_waiting_thread_is_found_in_its_system_call() {
        let (tid_sender, tid_receiver) = std::sync::mpsc::channel();
        let (stop_sender, stop_receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("waits-here".to_owned());
        let thread = thread.spawn(move || {
            tid_sender.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = stop_receiver.recv();
        });
        let tid = tid_receiver.recv().unwrap().unsigned_abs();
        let self_pid = std::process::id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        // The list of threads is incomplete if a thread of another test ends in the meantime.
        let find_thread = || loop {
            let tasks = threads_of(self_pid).unwrap_or_default();
            if let Some(task) = tasks.into_iter().find(|task| task.tid == tid) {
                return task;
            }
            assert!(std::time::Instant::now() < deadline, "the thread is not found");
        };
        while find_thread().state != b'S' {
            assert!(std::time::Instant::now() < deadline, "{:?}", find_thread());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let task = find_thread();
        assert_eq!(task.name, "waits-here");
        assert!(matches!(task.call, Syscall::Blocked(libc::SYS_futex, _)), "{task:?}");
        assert_eq!(find_thread().context_switches, task.context_switches, "it has not run since");
        drop(stop_sender);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn a_process_with_a_child_is_found() {
        let self_pid = std::process::id() as i32;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(pids_with_children(&HashSet::from([self_pid])), HashSet::from([self_pid]));
        assert_eq!(
            pids_with_children_by_scan(&HashSet::from([self_pid])),
            HashSet::from([self_pid])
        );
        assert!(pids_with_children(&HashSet::from([child.id() as i32])).is_empty());
        assert_eq!(is_parent(i32::MAX), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_with_handlers_of_timer_or_io_signals_may_wake_itself() {
        let state = signal_state(std::process::id() as i32).unwrap();
        assert!(!state.traced && !state.has_timers);
        let caught = |signal: i32| SignalState {
            caught_signals: 1 << (signal - 1),
            ..SignalState::default()
        };
        assert!(caught(libc::SIGALRM).may_wake_itself() && caught(libc::SIGIO).may_wake_itself());
        assert!(
            !caught(libc::SIGHUP).may_wake_itself() && !caught(libc::SIGCHLD).may_wake_itself()
        );
        assert!(SignalState { traced: true, ..SignalState::default() }.may_wake_itself());
    }
}
