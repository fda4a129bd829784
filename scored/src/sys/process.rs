//! Existing processes: reaping, signals, limits, and process trees.

// UNSAFETY: fork without exec, wait4, prctl and signal dispositions have no safe wrapper.
#![expect(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::{ForkResult, fork};
use score_proto::job_control::Status;

use super::pidfd::PidFd;

/// Status and resource usage of a child that has exited.
#[derive(Debug, Clone, Copy)]
pub struct Reaped {
    /// The process id in the PID namespace of this process.
    pub pid: i32,
    /// Its exit status.
    pub status: Status,
    /// User time in nanoseconds.
    pub user_ns: u64,
    /// System time in nanoseconds.
    pub system_ns: u64,
    /// Peak resident set size in KiB.
    pub max_rss_kib: u64,
}

/// Result of [`reap`].
#[derive(Debug, Clone, Copy)]
pub enum WaitResult {
    /// A child has exited.
    Exited(Reaped),
    /// There are children, and none has exited.
    AllRunning,
    /// There are no children.
    NoChildren,
}

fn nanoseconds(time: libc::timeval) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(micros * 1000)
}

fn wait(pid: i32, options: i32) -> WaitResult {
    loop {
        let mut status = 0;
        // SAFETY: an all-zero rusage is a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both addresses are ours and valid during the call.
        let result = unsafe { libc::wait4(pid, &mut status, options, &mut usage) };
        match result {
            0 => return WaitResult::AllRunning,
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return WaitResult::NoChildren,
            pid => {
                let status = if libc::WIFSIGNALED(status) {
                    Status::Signaled(libc::WTERMSIG(status))
                } else {
                    Status::Exited(libc::WEXITSTATUS(status) as u8)
                };
                return WaitResult::Exited(Reaped {
                    pid,
                    status,
                    user_ns: nanoseconds(usage.ru_utime),
                    system_ns: nanoseconds(usage.ru_stime),
                    max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
                });
            }
        }
    }
}

/// Forks a process that does this work and exits with its result as the exit code. The caller must
/// have one thread only.
///
/// # Errors
/// The errors of fork(2).
pub fn start_child(work: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: this process has one thread, so the child may use everything that it has.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            // A panic must not unwind into the parent's frames.
            let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(1);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
    }
}

/// Reaps any child that has exited, without waiting.
pub fn reap() -> WaitResult {
    wait(-1, libc::WNOHANG)
}

/// A child that has exited and has not been reaped yet.
pub fn first_exited_child() -> Option<i32> {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, flags).ok()?.pid().map(nix::unistd::Pid::as_raw)
}

/// Whether a child has exited. It is not reaped.
pub fn has_exited(pid: i32) -> bool {
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let status = waitid(Id::Pid(nix::unistd::Pid::from_raw(pid)), flags);
    !matches!(status, Ok(WaitStatus::StillAlive))
}

/// Waits for these children until the timeout. Kills and reaps the remaining ones.
pub fn wait_or_kill(children: &[i32], timeout: Duration) {
    let deadline = Instant::now() + timeout;
    for pid in children {
        while matches!(reap_one(*pid), WaitResult::AllRunning) {
            if Instant::now() > deadline {
                kill(*pid, libc::SIGKILL);
                wait_for(*pid);
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Reaps this child if it has exited, without waiting.
pub fn reap_one(pid: i32) -> WaitResult {
    wait(pid, libc::WNOHANG)
}

/// Waits for one child and reaps it. None: there is no such child.
pub fn wait_for(pid: i32) -> Option<Reaped> {
    match wait(pid, 0) {
        WaitResult::Exited(reaped) => Some(reaped),
        _ => None,
    }
}

/// Sends a signal. It is not an error if the process no longer exists.
pub fn kill(pid: i32, signal: i32) {
    if pid > 0 {
        // SAFETY: kill has no effect on our memory.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Sends a signal to a thread of a process. Returns false if the process has no such thread.
pub fn signal_thread(pid: i32, thread: i32, signal: i32) -> bool {
    // SAFETY: as above.
    pid > 1 && unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, signal) } == 0
}

/// Sends a signal to the process group of `leader`. If `leader` has just been forked and has no
/// group yet, only `leader` gets the signal, which stays pending until it is unblocked.
pub fn kill_group(leader: i32, signal: i32) {
    if leader > 1 {
        // SAFETY: as above.
        unsafe {
            if libc::kill(-leader, signal) < 0 {
                libc::kill(leader, signal);
            }
        }
    }
}

/// Signals every process of this PID namespace except the caller, which must be its init. Returns
/// false if there was none.
pub fn kill_namespace(signal: i32) -> bool {
    if std::process::id() != 1 {
        return false;
    }
    // SAFETY: pid -1 from init reaches only the processes of its own namespace.
    unsafe { libc::kill(-1, signal) == 0 }
}

/// All descendants of this process, from one scan of /proc.
pub fn descendants() -> Vec<i32> {
    descendants_except(&HashSet::new())
}

/// All descendants except the given children and their descendants.
pub fn descendants_except(excluded: &HashSet<i32>) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for (pid, parent) in pids.filter_map(|pid| Some((pid, parent_of(pid)?))) {
        children.entry(parent).or_default().push(pid);
    }
    let mut descendants = Vec::new();
    let mut frontier = vec![std::process::id() as i32];
    while let Some(parent) = frontier.pop() {
        // A parent is removed, so that the loop ends although /proc has changed during the scan.
        let found = children.remove(&parent).unwrap_or_default();
        let wanted = found.into_iter().filter(|pid| !excluded.contains(pid));
        let first_new = descendants.len();
        descendants.extend(wanted);
        frontier.extend_from_slice(&descendants[first_new..]);
    }
    descendants
}

/// Kills the descendants that [`descendants_except`] returns, and reaps those that have ended.
/// Returns whether there were any.
pub fn kill_descendants_except(excluded: &HashSet<i32>) -> bool {
    let found = descendants_except(excluded);
    let own_pid = std::process::id() as i32;
    let parents: HashSet<i32> = found.iter().copied().chain([own_pid]).collect();
    for pid in &found {
        kill_child_of(&parents, *pid);
        reap_one(*pid);
    }
    !found.is_empty()
}

/// Kills a process if its parent is one of these. After a long scan the process id may belong to a
/// process of another user. The process is therefore opened as a descriptor before the check.
fn kill_child_of(parents: &HashSet<i32>, pid: i32) {
    match PidFd::open(pid) {
        Ok(pid_fd) if parent_of(pid).is_some_and(|parent| parents.contains(&parent)) => {
            let _ = pid_fd.send_signal(libc::SIGKILL);
        }
        // The kernel has no pidfd_open(2).
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => kill(pid, libc::SIGKILL),
        // The process has exited, or is another one.
        Ok(_) | Err(_) => {}
    }
}

/// Kills all descendants of this process. The init of a PID namespace kills the namespace. Returns
/// whether there were any.
pub fn kill_all_descendants() -> bool {
    if std::process::id() == 1 {
        return kill_namespace(libc::SIGKILL);
    }
    let pids = descendants();
    for pid in &pids {
        kill(*pid, libc::SIGKILL);
    }
    !pids.is_empty()
}

/// Kills and reaps until no child is left, or until the timeout. The kernel kills the processes of
/// a PID namespace when its init exits, but a subreaper has to kill its descendants itself.
pub fn kill_and_reap_all(timeout: Duration) {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        kill_all_descendants();
        match reap() {
            WaitResult::Exited(_) => {}
            WaitResult::NoChildren => break,
            WaitResult::AllRunning => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, including parentheses. Count fields from the
    // last parenthesis.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Makes the kernel send `signal` to this process when its parent exits.
pub fn die_with_parent(signal: i32) {
    // SAFETY: plain prctl with integer arguments.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) };
}

/// Sets the name of this process that `ps -o comm` and `top` show: at most 15 bytes.
pub fn set_name(name: &CStr) {
    // SAFETY: reads a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Makes orphaned descendants children of this process.
pub fn become_subreaper() {
    // SAFETY: plain prctl with integer arguments.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Leaves the session, terminal and process group of the parent.
pub fn leave_session() {
    // SAFETY: no memory involved; it fails for a group leader, which is then alone in its group.
    unsafe { libc::setsid() };
}

/// Gives every signal its default action, and blocks all signals, because they are read from a
/// descriptor. Rust ignores SIGPIPE, and nohup ignores SIGHUP. The user's programs would inherit
/// both.
///
/// # Errors
/// The errors of sigprocmask(2).
pub fn default_and_block_signals() -> io::Result<()> {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL runs none of our code; fatal faults keep Rust's handler.
        unsafe {
            if signal != libc::SIGSEGV && signal != libc::SIGBUS {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?;
    Ok(())
}

/// The soft and hard limit of a resource.
pub fn resource_limit(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the struct given.
    unsafe { libc::getrlimit(resource, &mut limit) };
    limit
}

/// Lowers a resource limit of this process to the requested limit. Never raises it.
pub fn lower_limit(requested: &score_proto::job_control::Limit) {
    let current = resource_limit(requested.resource);
    let hard = current.rlim_max.min(requested.hard);
    let lowered = libc::rlimit { rlim_cur: requested.soft.min(hard), rlim_max: hard };
    // SAFETY: reads the struct given; an unknown resource is an error.
    unsafe { libc::setrlimit(requested.resource, &lowered) };
}

/// Prevents other processes from tracing this process, and core dumps of it. Does not affect
/// programs that this process executes.
pub fn forbid_dumps() {
    // SAFETY: plain prctl with integer arguments.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// Permits this process to enter the realtime class even after it has given up root privileges.
pub fn allow_realtime() {
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: reads the struct given. Without the permission the class is not entered again.
    unsafe { libc::setrlimit(libc::RLIMIT_RTPRIO, &limit) };
}

/// Raises the soft limit of descriptors to the hard limit. Returns the limits before that.
pub fn raise_descriptor_limit() -> libc::rlimit {
    let original = resource_limit(libc::RLIMIT_NOFILE);
    let raised = libc::rlimit { rlim_cur: original.rlim_max, rlim_max: original.rlim_max };
    // SAFETY: reads the struct given.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) };
    original
}

/// Limits the private memory of this process, and of each process that it starts, in bytes.
pub fn limit_data(bytes: u64) {
    let limit =
        score_proto::job_control::Limit { resource: libc::RLIMIT_DATA, soft: bytes, hard: bytes };
    lower_limit(&limit);
}

/// Processor time of all descendants of this process in nanoseconds: of those that have been waited
/// for, and of those that are alive.
pub fn descendants_cpu_ns() -> u64 {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes the struct given; sysconf touches no memory of ours.
    let ticks = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        u64::try_from(libc::sysconf(libc::_SC_CLK_TCK)).unwrap_or(0).max(1)
    };
    let reaped_ns = nanoseconds(usage.ru_utime).saturating_add(nanoseconds(usage.ru_stime));
    let running_ticks = descendants().into_iter().filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // utime, stime, cutime and cstime: fields 14 to 17, counted from the field after the name.
        let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
        Some(fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>())
    });
    reaped_ns.saturating_add(running_ticks.sum::<u64>().saturating_mul(1_000_000_000 / ticks))
}

/// Memory of all descendants of this process that is not backed by files, in bytes. Shared memory
/// counts once for each process.
pub fn descendants_memory() -> u64 {
    let pids = descendants().into_iter();
    let memory_of = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0)
        };
        (kib("RssAnon:") + kib("VmSwap:")) * 1024
    };
    pids.map(memory_of).sum()
}

/// Sets the umask.
pub fn set_umask(mask: u32) {
    // SAFETY: no memory involved.
    unsafe { libc::umask(mask & 0o777) };
}

/// The process id that the process with id `inner` in PID namespace `namespace` has in the outer
/// namespace. `proc_dir` is the /proc of the outer namespace.
pub fn outer_pid(proc_dir: BorrowedFd<'_>, inner: i32, namespace: u64) -> Option<i32> {
    let by_descriptor = PidFd::open(inner).ok().and_then(|process| process.pid_in(proc_dir));
    // Linux before 5.3 has no such descriptors.
    by_descriptor.or_else(|| find_outer_pid(proc_dir, inner, namespace))
}

/// The same as [`outer_pid`], by a scan of all processes. The last number in the NSpid line of a
/// process is its inner id.
fn find_outer_pid(proc_dir: BorrowedFd<'_>, inner: i32, namespace: u64) -> Option<i32> {
    let base = format!("/proc/self/fd/{}", proc_dir.as_raw_fd());
    for entry in fs::read_dir(&base).ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(status) = fs::read_to_string(format!("{base}/{pid}/status")) else { continue };
        let innermost = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .and_then(|list| list.split_whitespace().last()?.parse::<i32>().ok());
        if innermost == Some(inner) && namespace_of(&format!("{base}/{pid}")) == Some(namespace) {
            return Some(pid);
        }
    }
    None
}

/// The inode number of the PID namespace of the process whose /proc directory is given.
pub fn namespace_of(directory: &str) -> Option<u64> {
    let link = fs::read_link(format!("{directory}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// Starts a shell with two children. Returns also the process ids of the children.
    fn start_tree() -> (Child, Vec<i32>) {
        let script = "sleep 1000 & sleep 1000 & wait";
        let shell = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
        let path = format!("/proc/{0}/task/{0}/children", shell.id());
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut children: Vec<i32> = Vec::new();
        while children.len() < 2 {
            assert!(Instant::now() < deadline, "no children");
            std::thread::sleep(Duration::from_millis(1));
            let text = fs::read_to_string(&path).unwrap();
            children = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        }
        (shell, children)
    }

    #[test]
    fn descendants_are_found_in_every_generation_except_those_of_excluded_children() {
        let (mut shell, children) = start_tree();
        let shell_pid = shell.id() as i32;
        // Other tests of this process may have children.
        let found = descendants();
        assert!(found.contains(&shell_pid), "{found:?}");
        assert!(children.iter().all(|pid| found.contains(pid)), "{found:?}");
        let without_shell = descendants_except(&HashSet::from([shell_pid]));
        let tree = children.iter().chain([&shell_pid]);
        assert!(tree.clone().all(|pid| !without_shell.contains(pid)), "{without_shell:?}");
        let without_child = descendants_except(&HashSet::from([children[0]]));
        assert!(!without_child.contains(&children[0]) && without_child.contains(&children[1]));
        tree.for_each(|pid| kill(*pid, libc::SIGKILL));
        shell.wait().unwrap();
    }

    #[test]
    fn only_a_process_of_one_of_the_parents_is_killed() {
        let (mut shell, children) = start_tree();
        let [own_pid, shell_pid] = [std::process::id() as i32, shell.id() as i32];
        kill_child_of(&HashSet::from([own_pid]), children[0]);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(parent_of(children[0]), Some(shell_pid), "it runs");
        for child in children {
            kill_child_of(&HashSet::from([shell_pid]), child);
        }
        // The shell ends when its children have ended.
        assert!(shell.wait().unwrap().code().is_some());
    }
}
