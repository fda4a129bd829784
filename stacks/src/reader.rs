//! Reads the stacks of many processes of one job on one host.

use std::time::Duration;

use crate::capture::{self, CaptureError, Snapshot};
use crate::frame::{Detail, Stack};
use crate::module::ModuleCache;
use crate::names::NameCache;
use crate::unwind::{UnwoundThread, unwind};

/// The named stack of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStack {
    /// The thread id.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// Whether the thread waits in the kernel and could not be stopped (state D).
    pub is_uninterruptible: bool,
    /// Its frames.
    pub stack: Stack,
}

/// The named stacks of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStacks {
    /// The process id.
    pub pid: i32,
    /// Its threads. The first thread of the process comes first.
    pub threads: Vec<ThreadStack>,
    /// The longest time for which a thread was stopped.
    pub held_for: Duration,
    /// The number of threads that were not captured, because there are too many.
    pub omitted_threads: usize,
}

/// Reads stacks, and caches the tables and names of files, because processes share them.
#[derive(Debug, Default)]
pub struct StackReader {
    modules: ModuleCache,
    names: NameCache,
}

impl StackReader {
    /// A reader with an empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// The stacks of the processes, in the same order. Each process is stopped only while it is
    /// copied. The names of all processes are found together afterwards.
    pub fn stacks_of(
        &mut self,
        pids: &[i32],
        detail: Detail,
    ) -> Vec<Result<ProcessStacks, CaptureError>> {
        let unwound: Vec<_> = pids
            .iter()
            .map(|pid| capture::capture(*pid).map(|snapshot| self.unwind(&snapshot)))
            .collect();
        self.name(unwound, detail)
    }

    /// The stacks in a snapshot, which the caller has made.
    pub fn stacks_in(&mut self, snapshot: &Snapshot, detail: Detail) -> ProcessStacks {
        let process = self.unwind(snapshot);
        self.names.find_names(process.threads.iter());
        self.named(process, detail)
    }

    fn unwind(&mut self, snapshot: &Snapshot) -> UnwoundProcess {
        UnwoundProcess {
            pid: snapshot.pid,
            threads: unwind(snapshot, &mut self.modules),
            held_for: snapshot.held_for,
            omitted_threads: snapshot.omitted_threads,
        }
    }

    fn name(
        &mut self,
        processes: Vec<Result<UnwoundProcess, CaptureError>>,
        detail: Detail,
    ) -> Vec<Result<ProcessStacks, CaptureError>> {
        let threads = processes.iter().flatten().flat_map(|process| &process.threads);
        self.names.find_names(threads);
        let named = processes.into_iter().map(|it| it.map(|process| self.named(process, detail)));
        named.collect()
    }

    fn named(&self, process: UnwoundProcess, detail: Detail) -> ProcessStacks {
        let threads = process.threads.iter().map(|thread| ThreadStack {
            tid: thread.tid,
            name: thread.name.clone(),
            is_uninterruptible: thread.is_uninterruptible,
            stack: self.names.stack(thread, detail),
        });
        ProcessStacks {
            pid: process.pid,
            threads: threads.collect(),
            held_for: process.held_for,
            omitted_threads: process.omitted_threads,
        }
    }
}

struct UnwoundProcess {
    pid: i32,
    threads: Vec<UnwoundThread>,
    held_for: Duration,
    omitted_threads: usize,
}
