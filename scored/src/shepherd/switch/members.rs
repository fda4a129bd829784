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
use crate::sys::stop::{self, Look, Waited};

/// Where the kernel says which number it has given last in this PID namespace.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// All stand still.
    All,
    /// Somebody does not yet.
    NotYet,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Members {
    /// They have a PID namespace of their own, and this process is its init.
    has_namespace: bool,
    last_pid: Option<File>,
    /// The last number that had been given when it was looked who is there.
    looked: Option<u64>,
    children: Vec<i32>,
    others: Vec<i32>,
    /// Who was stopped by somebody else, and is not to be continued.
    foreign: HashSet<i32>,
    /// Who has not been seen to stand still.
    moving: Vec<i32>,
    /// Whether this stop is the first since they ran.
    first: bool,
    /// All stand still, and these are all.
    is_complete: bool,
}

impl Members {
    /// Of this process.
    pub fn new() -> Self {
        let has_namespace = std::process::id() == 1;
        Self {
            has_namespace,
            last_pid: has_namespace.then(|| File::open(LAST_PID).ok()).flatten(),
            looked: None,
            children: Vec::new(),
            others: Vec::new(),
            foreign: HashSet::new(),
            moving: Vec::new(),
            first: false,
            is_complete: false,
        }
    }

    /// Stops all; [`Members::watch`] tells when they stand still. `first`: they run so far.
    pub fn stop(&mut self, first: bool) {
        (self.first, self.is_complete) = (first, false);
        if first {
            self.find_stopped();
        }
        match (self.has_namespace, self.looked) {
            (true, Some(_)) => {
                self.known().for_each(|pid| process::kill(pid, libc::SIGSTOP));
                self.wait_for(&[]);
            }
            (true, None) => self.stop_namespace(),
            (false, _) => {
                self.stop_descendants();
                self.wait_for(&[]);
            }
        }
    }

    fn known(&self) -> impl Iterator<Item = i32> + '_ {
        self.children.iter().chain(&self.others).copied()
    }

    /// Whoever is there; some of them may have been stopped before.
    fn stop_namespace(&mut self) {
        let before: Vec<i32> = self.known().collect();
        process::kill_namespace(libc::SIGSTOP);
        self.look_around();
        self.wait_for(&before);
    }

    /// All that are known are to stand still; `before` were stopped already.
    fn wait_for(&mut self, before: &[i32]) {
        if self.first {
            self.find_others_stopped(before);
        }
        self.moving = self.known().filter(|pid| !self.foreign.contains(pid)).collect();
    }

    /// Has all go on that were not stopped by somebody else.
    pub fn go_on(&self) {
        if self.has_namespace && self.foreign.is_empty() && !self.is_complete {
            process::kill_namespace(libc::SIGCONT);
            return;
        }
        for pid in self.known().filter(|pid| !self.foreign.contains(pid)) {
            process::kill(pid, libc::SIGCONT);
        }
    }

    /// Waits for those that move still, as long as no signal comes; others than children are only
    /// looked at.
    pub fn watch(&mut self) -> Standing {
        let (children, mut is_interrupted) = (&self.children, false);
        self.moving.retain(|pid| {
            if children.contains(pid) && !is_interrupted {
                match stop::wait_for_stop(*pid) {
                    Waited::Stopped | Waited::Ended => return false,
                    // It may be held by a debugger, or wait for what cannot be interrupted.
                    Waited::Interrupted => is_interrupted = true,
                }
            }
            let stands = |look: Look| look.stands_still() || stop::waits_for_processor(*pid, look);
            stop::look(*pid).is_some_and(|look| !stands(look))
        });
        if !self.moving.is_empty() {
            return Standing::NotYet;
        }
        // Of those that stand still none forks any more.
        if self.has_namespace && self.looked.is_some() && self.last_given() != self.looked {
            self.stop_namespace();
            return Standing::NotYet;
        }
        self.is_complete = self.looked.is_some();
        Standing::All
    }

    /// Whether some that move still are no children: they have to be looked at again and again.
    pub fn is_blind(&self) -> bool {
        self.moving.first().is_some_and(|pid| !self.children.contains(pid))
    }

    /// Looks who is stopped though nobody here has stopped it.
    fn find_stopped(&mut self) {
        self.foreign.retain(|pid| stop::look(*pid).is_some_and(|look| look.is_stopped()));
        while let Some(child) = stop::take_stopped() {
            self.foreign.insert(child);
        }
    }

    /// The same of those that are no children, behind the signal: who was stopped before does not
    /// take it. Of those that were stopped here already that tells nothing.
    fn find_others_stopped(&mut self, here: &[i32]) {
        let stopped = |pid: &&i32| stop::look(**pid).is_some_and(|look| look.is_stopped());
        let before = |pid: &&i32| {
            !here.contains(pid) && stopped(pid) && stop::is_pending(**pid, libc::SIGSTOP)
        };
        self.foreign.extend(self.others.iter().filter(before));
    }

    /// Looks who is there.
    fn look_around(&mut self) {
        self.looked = self.last_given();
        self.sort(all_of_namespace());
    }

    fn sort(&mut self, found: Vec<i32>) {
        let own = std::process::id() as i32;
        self.children.clear();
        self.others.clear();
        for pid in found {
            match stop::look(pid) {
                Some(look) if look.parent == own => self.children.push(pid),
                Some(_) => self.others.push(pid),
                None => {}
            }
        }
    }

    fn last_given(&self) -> Option<u64> {
        let mut digits = [0; 24];
        let count = self.last_pid.as_ref()?.read_at(&mut digits, 0).ok()?;
        std::str::from_utf8(&digits[..count]).ok()?.trim().parse().ok()
    }

    /// Without a namespace: all that can be found, until a look finds nobody new. Whoever forks
    /// between look and signal is found by the next.
    fn stop_descendants(&mut self) {
        let mut stopped = HashSet::new();
        loop {
            let found = process::descendants();
            let news: Vec<i32> = found.into_iter().filter(|pid| stopped.insert(*pid)).collect();
            if news.is_empty() {
                break;
            }
            news.iter().for_each(|pid| process::kill(*pid, libc::SIGSTOP));
        }
        self.sort(stopped.into_iter().collect());
    }
}

/// All processes of this PID namespace but its init.
fn all_of_namespace() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| *pid != 1).collect()
}
