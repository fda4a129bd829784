//! The processes of the job on this host, at whatever remove, and what they do when they are
//! stopped.
//!
//! Where the shepherd is init of a PID namespace, one call stops all of them at once, and no fork
//! gets past it: the kernel begins one anew that a signal has come before. But for that call the
//! kernel goes through all processes of the machine. So those that are known are stopped one by
//! one, and when they stand still, all are if no process has begun since they were looked for; else
//! that call follows. Children of the shepherd are waited for by waitid(2); others are looked at in
//! /proc.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::sys::process;
use crate::sys::process_stop::{self, ProcStat, StopResult};

/// Where the kernel says which number it has given last in this PID namespace.
const NS_LAST_PID_PATH: &str = "/proc/sys/kernel/ns_last_pid";

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopProgress {
    /// All stand still.
    Complete,
    /// Somebody does not yet.
    Pending,
}

/// See the [module](self).
#[derive(Debug)]
pub struct JobProcesses {
    /// They have a PID namespace of their own, and this process is its init.
    has_namespace: bool,
    last_pid_file: Option<File>,
    /// The last number that had been given when it was looked who is there.
    last_pid_at_scan: Option<u64>,
    children: Vec<i32>,
    non_children: Vec<i32>,
    /// Who was stopped by somebody else, and is not to be continued.
    externally_stopped: HashSet<i32>,
    /// Who has not been seen to stand still.
    not_yet_stopped: Vec<i32>,
    /// Whether this stop is the first since they ran.
    is_first_stop: bool,
    /// All stand still, and these are all.
    is_complete: bool,
}

impl JobProcesses {
    /// Of this process.
    pub fn new() -> Self {
        let has_namespace = std::process::id() == 1;
        Self {
            has_namespace,
            last_pid_file: has_namespace.then(|| File::open(NS_LAST_PID_PATH).ok()).flatten(),
            last_pid_at_scan: None,
            children: Vec::new(),
            non_children: Vec::new(),
            externally_stopped: HashSet::new(),
            not_yet_stopped: Vec::new(),
            is_first_stop: false,
            is_complete: false,
        }
    }

    /// Stops all; [`JobProcesses::wait_stopped`] tells when they stand still. `first`: they run so far.
    pub fn stop(&mut self, is_first_stop: bool) {
        (self.is_first_stop, self.is_complete) = (is_first_stop, false);
        if is_first_stop {
            self.find_stopped_children();
        }
        match (self.has_namespace, self.last_pid_at_scan) {
            (true, Some(_)) => {
                self.known_pids().for_each(|pid| process::kill(pid, libc::SIGSTOP));
                self.track_stops(&[]);
            }
            (true, None) => self.stop_namespace(),
            (false, _) => {
                self.stop_descendants();
                self.track_stops(&[]);
            }
        }
    }

    fn known_pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.children.iter().chain(&self.non_children).copied()
    }

    /// Whoever is there; some of them may have been stopped before.
    fn stop_namespace(&mut self) {
        let already_stopped: Vec<i32> = self.known_pids().collect();
        process::kill_namespace(libc::SIGSTOP);
        self.rescan();
        self.track_stops(&already_stopped);
    }

    /// All that are known are to stand still; `before` were stopped already.
    fn track_stops(&mut self, already_stopped: &[i32]) {
        if self.is_first_stop {
            self.find_stopped_non_children(already_stopped);
        }
        self.not_yet_stopped =
            self.known_pids().filter(|pid| !self.externally_stopped.contains(pid)).collect();
    }

    /// Has all go on that were not stopped by somebody else.
    pub fn resume(&self) {
        if self.has_namespace && self.externally_stopped.is_empty() && !self.is_complete {
            process::kill_namespace(libc::SIGCONT);
            return;
        }
        for pid in self.known_pids().filter(|pid| !self.externally_stopped.contains(pid)) {
            process::kill(pid, libc::SIGCONT);
        }
    }

    /// Waits for those that move still, as long as no signal comes; others than children are only
    /// looked at.
    pub fn wait_stopped(&mut self) -> StopProgress {
        let (children, mut is_interrupted) = (&self.children, false);
        self.not_yet_stopped.retain(|pid| {
            if children.contains(pid) && !is_interrupted {
                match process_stop::wait_for_stop(*pid) {
                    StopResult::Stopped | StopResult::Ended => return false,
                    // It may be held by a debugger, or wait for what cannot be interrupted.
                    StopResult::Interrupted => is_interrupted = true,
                }
            }
            let is_halted =
                |stat: ProcStat| stat.is_halted() || process_stop::is_waiting_for_cpu(*pid, stat);
            process_stop::read_stat(*pid).is_some_and(|stat| !is_halted(stat))
        });
        if !self.not_yet_stopped.is_empty() {
            return StopProgress::Pending;
        }
        // Of those that stand still none forks any more.
        if self.has_namespace
            && self.last_pid_at_scan.is_some()
            && self.read_last_pid() != self.last_pid_at_scan
        {
            self.stop_namespace();
            return StopProgress::Pending;
        }
        self.is_complete = self.last_pid_at_scan.is_some();
        StopProgress::Complete
    }

    /// Whether some that move still are no children: they have to be looked at again and again.
    pub fn needs_polling(&self) -> bool {
        self.not_yet_stopped.first().is_some_and(|pid| !self.children.contains(pid))
    }

    /// Looks who is stopped though nobody here has stopped it.
    fn find_stopped_children(&mut self) {
        self.externally_stopped
            .retain(|pid| process_stop::read_stat(*pid).is_some_and(|stat| stat.is_stopped()));
        while let Some(child) = process_stop::next_stopped_child() {
            self.externally_stopped.insert(child);
        }
    }

    /// The same of those that are no children, behind the signal: who was stopped before does not
    /// take it. Of those that were stopped here already that tells nothing.
    fn find_stopped_non_children(&mut self, already_stopped: &[i32]) {
        let stopped =
            |pid: &&i32| process_stop::read_stat(**pid).is_some_and(|stat| stat.is_stopped());
        let was_stopped_externally = |pid: &&i32| {
            !already_stopped.contains(pid)
                && stopped(pid)
                && process_stop::is_signal_pending(**pid, libc::SIGSTOP)
        };
        self.externally_stopped.extend(self.non_children.iter().filter(was_stopped_externally));
    }

    /// Looks who is there.
    fn rescan(&mut self) {
        self.last_pid_at_scan = self.read_last_pid();
        self.sort_by_parent(namespace_pids());
    }

    fn sort_by_parent(&mut self, found: Vec<i32>) {
        let self_pid = std::process::id() as i32;
        self.children.clear();
        self.non_children.clear();
        for pid in found {
            match process_stop::read_stat(pid) {
                Some(stat) if stat.parent == self_pid => self.children.push(pid),
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

    /// Without a namespace: all that can be found, until a look finds nobody new. Whoever forks
    /// between look and signal is found by the next.
    fn stop_descendants(&mut self) {
        let mut stopped = HashSet::new();
        loop {
            let found = process::descendants();
            let new_pids: Vec<i32> = found.into_iter().filter(|pid| stopped.insert(*pid)).collect();
            if new_pids.is_empty() {
                break;
            }
            new_pids.iter().for_each(|pid| process::kill(*pid, libc::SIGSTOP));
        }
        self.sort_by_parent(stopped.into_iter().collect());
    }
}

/// All processes of this PID namespace but its init.
fn namespace_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != 1).collect()
}
