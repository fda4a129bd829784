//! Stops and resumes the processes of the job on this host, including all descendants.
//!
//! If the shepherd is init of a PID namespace, one call of kill(2) stops all processes at once. No
//! fork can escape it, because the kernel also delivers the signal to a child that is being
//! created. However, the kernel visits all processes of the machine for that call. The known
//! processes are therefore stopped one by one. If no process was created since the last scan, all
//! processes have then stopped. Otherwise the call for the whole namespace follows. The shepherd
//! waits for its children with waitid(2), and checks other processes in /proc.
//!
//! A fork can block in the kernel after it has allocated a process id and before /proc shows the
//! child, for example while another process moves between cgroups. A scan in that time misses the
//! child. A scan is therefore trusted only if a second scan has found the same processes, while all
//! threads of these processes were stopped. Until then, the whole namespace is stopped and resumed.
//!
//! Processes that are held for a debugger have stopped themselves, and a resume must not let them
//! run. While there are held processes, all others are found by scans and stopped one by one.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::sys::process;
use crate::sys::process_stop::{self, ProcStat, StopResult};

/// File with the last process id that the kernel has allocated in this PID namespace.
const NS_LAST_PID_PATH: &str = "/proc/sys/kernel/ns_last_pid";

/// The progress of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopProgress {
    /// All processes have stopped.
    Complete,
    /// Some processes have not stopped yet.
    Pending,
}

/// See the [module](self).
#[derive(Debug)]
pub struct JobProcesses {
    /// Whether the processes have their own PID namespace, with this process as its init.
    has_namespace: bool,
    last_pid_file: Option<File>,
    /// The last process id that the kernel had allocated before the last scan.
    last_pid_at_scan: Option<u64>,
    /// Whether the last scan found every process that existed before it.
    scan_is_exact: bool,
    children: BTreeSet<i32>,
    non_children: Vec<i32>,
    /// Processes that this thread has not stopped and must not resume.
    externally_stopped: HashSet<i32>,
    /// Processes that are held for a debugger, as of the last stop.
    held: HashSet<i32>,
    /// Processes that a tracer has stopped, as found by the last stop.
    held_by_tracer: HashSet<i32>,
    /// Known processes that may not have stopped yet.
    not_yet_stopped: Vec<i32>,
    /// Whether a stopped process may have been stopped by another process than the shepherd. False
    /// after this thread has stopped the whole namespace, because processes that a later scan finds
    /// have not run since then.
    finds_external_stops: bool,
    /// Whether all processes are known and have stopped.
    is_complete: bool,
    /// A process of the job that keeps running: the tool control service. It starts no processes.
    exempt_pid: Option<i32>,
}

impl JobProcesses {
    /// A value without known processes. The first stop finds them.
    pub fn new() -> Self {
        let has_namespace = std::process::id() == 1;
        Self {
            has_namespace,
            last_pid_file: has_namespace.then(|| File::open(NS_LAST_PID_PATH).ok()).flatten(),
            last_pid_at_scan: None,
            scan_is_exact: false,
            children: BTreeSet::new(),
            non_children: Vec::new(),
            externally_stopped: HashSet::new(),
            held: HashSet::new(),
            held_by_tracer: HashSet::new(),
            not_yet_stopped: Vec::new(),
            finds_external_stops: false,
            is_complete: false,
            exempt_pid: None,
        }
    }

    /// Stops all processes. [`JobProcesses::wait_stopped`] waits for them. `is_first_stop`: the job
    /// was running until now. `held`: processes that stop themselves. `exempt_pid`: a process that
    /// keeps running.
    pub fn stop(&mut self, is_first_stop: bool, held: HashSet<i32>, exempt_pid: Option<i32>) {
        self.held = held;
        self.held_by_tracer.clear();
        (self.finds_external_stops, self.is_complete) = (is_first_stop, false);
        self.exempt_pid = exempt_pid;
        // The last scan may have found this process before it was exempt.
        self.children.retain(|pid| Some(*pid) != exempt_pid);
        if is_first_stop {
            self.find_stopped_children();
        }
        match (self.has_namespace && self.held.is_empty(), self.scan_is_exact) {
            (true, true) => {
                self.known_pids().for_each(|pid| process::kill(pid, libc::SIGSTOP));
                // The children were checked a few microseconds ago. Reading the status of each
                // child would take longer than all other steps.
                let candidates = self.non_children.clone();
                self.track_stops(candidates, &HashSet::new());
            }
            (true, false) => self.stop_namespace(&HashSet::new()),
            (false, _) => {
                self.stop_by_scans();
                self.track_stops(self.known_pids().collect(), &HashSet::new());
            }
        }
    }

    fn known_pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.children.iter().chain(&self.non_children).copied()
    }

    /// Stops all processes of the namespace. `already_stopped`: processes that were stopped before.
    fn stop_namespace(&mut self, already_stopped: &HashSet<i32>) {
        process::kill_namespace(libc::SIGSTOP);
        if let Some(exempt_pid) = self.exempt_pid {
            process::kill(exempt_pid, libc::SIGCONT);
        }
        self.rescan();
        // The kernel visits all processes of the machine for that call. A child may have stopped
        // itself in the meantime.
        self.track_stops(self.known_pids().collect(), already_stopped);
        self.finds_external_stops = false;
    }

    /// Starts to track the stop of all known processes. `already_stopped`: processes that were
    /// stopped before. `candidates`: processes that may have been stopped externally.
    fn track_stops(&mut self, candidates: Vec<i32>, already_stopped: &HashSet<i32>) {
        if self.finds_external_stops {
            self.find_external_stops(candidates, already_stopped);
        }
        self.not_yet_stopped =
            self.known_pids().filter(|pid| !self.externally_stopped.contains(pid)).collect();
    }

    /// Resumes all processes except those that were stopped externally.
    pub fn resume(&mut self) {
        if self.has_namespace && !self.is_complete {
            if self.externally_stopped.is_empty() && self.held.is_empty() {
                process::kill_namespace(libc::SIGCONT);
                return;
            }
            self.rescan();
        }
        let is_kept = |pid: &i32| self.externally_stopped.contains(pid) || self.held.contains(pid);
        for pid in self.known_pids().filter(|pid| !is_kept(pid)) {
            process::kill(pid, libc::SIGCONT);
        }
    }

    /// Waits until the remaining children have stopped, or until a signal arrives. Checks other
    /// processes without waiting.
    pub fn wait_stopped(&mut self) -> StopProgress {
        let (children, mut is_interrupted) = (&self.children, false);
        self.not_yet_stopped.retain(|pid| {
            if children.contains(pid) && !is_interrupted {
                match process_stop::wait_for_stop(*pid) {
                    StopResult::Stopped | StopResult::Ended => return false,
                    // A debugger may hold the process, or the process may be in an uninterruptible
                    // wait.
                    StopResult::Interrupted => is_interrupted = true,
                }
            }
            let is_halted =
                |stat: ProcStat| stat.is_halted() || process_stop::is_waiting_for_cpu(*pid, stat);
            let stat = process_stop::read_stat(*pid);
            if stat.is_some_and(ProcStat::is_held_by_tracer) {
                self.held_by_tracer.insert(*pid);
            }
            stat.is_some_and(|stat| !is_halted(stat))
        });
        if !self.not_yet_stopped.is_empty() {
            return StopProgress::Pending;
        }
        // Stopped processes cannot fork any more.
        if self.last_pid_at_scan.is_some() {
            let known: HashSet<i32> = self.known_pids().collect();
            if self.read_last_pid() != self.last_pid_at_scan {
                self.stop_namespace(&known);
                return StopProgress::Pending;
            }
            if !self.scan_is_exact && self.all_threads_stopped() {
                if !self.namespace_pids().iter().all(|pid| known.contains(pid)) {
                    self.stop_namespace(&known);
                    return StopProgress::Pending;
                }
                self.scan_is_exact = true;
            }
        }
        self.is_complete = self.scan_is_exact;
        StopProgress::Complete
    }

    /// Whether every thread of the known processes has stopped. A thread that waits for a disk or
    /// for its processor may be in the middle of a fork.
    fn all_threads_stopped(&self) -> bool {
        self.known_pids().all(process_stop::has_stopped_completely)
    }

    /// Processes that a tracer has stopped, as found by the last stop.
    pub fn held_by_tracer(&self) -> &HashSet<i32> {
        &self.held_by_tracer
    }

    /// Whether none of the remaining processes is a child. [`JobProcesses::wait_stopped`] does not
    /// wait for such processes, so that the caller must poll.
    pub fn needs_polling(&self) -> bool {
        self.not_yet_stopped.first().is_some_and(|pid| !self.children.contains(pid))
    }

    /// Finds children that are stopped although this thread has not stopped them.
    fn find_stopped_children(&mut self) {
        self.externally_stopped
            .retain(|pid| process_stop::read_stat(*pid).is_some_and(|stat| stat.is_stopped()));
        while let Some(child) = process_stop::next_stopped_child() {
            if Some(child) != self.exempt_pid {
                self.externally_stopped.insert(child);
            }
        }
    }

    /// Finds processes that were stopped externally. Called after the signal was sent, because the
    /// signal stays pending in a process that was already stopped.
    ///
    /// A pending signal proves nothing in two cases. The first is a process that this thread has
    /// stopped before. The second is a process that has never run. A process that is being forked
    /// receives a SIGSTOP to the namespace when it is created, even if a SIGCONT to the namespace
    /// follows. The kernel drops that SIGCONT if the parent ignores it.
    fn find_external_stops(&mut self, candidates: Vec<i32>, already_stopped: &HashSet<i32>) {
        let stopped = |pid: i32| {
            process_stop::read_stat(pid)
                .is_some_and(|stat| stat.is_stopped() && !stat.has_never_run())
        };
        let was_stopped_externally = |pid: &i32| {
            !already_stopped.contains(pid)
                && stopped(*pid)
                && process_stop::is_signal_pending(*pid, libc::SIGSTOP)
        };
        self.externally_stopped.extend(candidates.into_iter().filter(was_stopped_externally));
    }

    /// Scans the namespace for processes.
    fn rescan(&mut self) {
        self.last_pid_at_scan = self.read_last_pid();
        self.scan_is_exact = false;
        self.sort_by_parent(self.namespace_pids());
    }

    /// All processes of this PID namespace except its init and the exempt process.
    fn namespace_pids(&self) -> Vec<i32> {
        let entries = fs::read_dir("/proc").into_iter().flatten();
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != 1 && Some(*pid) != self.exempt_pid).collect()
    }

    fn sort_by_parent(&mut self, pids: Vec<i32>) {
        let self_pid = std::process::id() as i32;
        self.children.clear();
        self.non_children.clear();
        for pid in pids {
            match process_stop::read_stat(pid) {
                Some(stat) if stat.parent == self_pid => _ = self.children.insert(pid),
                Some(_) => self.non_children.push(pid),
                None => {}
            }
        }
    }

    fn read_last_pid(&self) -> Option<u64> {
        let mut digits = [0; 24];
        let count = self.last_pid_file.as_ref()?.read_at(&mut digits, 0).ok()?;
        std::str::from_utf8(&digits[..count]).ok()?.trim().parse().ok()
    }

    /// Stops all processes that a scan finds, except held ones, until a scan finds no new
    /// processes. Used for jobs without a namespace, and while processes are held. The next scan
    /// finds a child that was forked between a scan and its signals.
    fn stop_by_scans(&mut self) {
        (self.last_pid_at_scan, self.scan_is_exact) = (None, false);
        let mut stopped = HashSet::new();
        loop {
            let pids =
                if self.has_namespace { self.namespace_pids() } else { process::descendants() };
            let is_new = |pid: &i32| {
                !self.held.contains(pid) && Some(*pid) != self.exempt_pid && stopped.insert(*pid)
            };
            let new_pids: Vec<i32> = pids.into_iter().filter(is_new).collect();
            if new_pids.is_empty() {
                break;
            }
            new_pids.iter().for_each(|pid| process::kill(*pid, libc::SIGSTOP));
        }
        self.sort_by_parent(stopped.into_iter().collect());
    }
}
