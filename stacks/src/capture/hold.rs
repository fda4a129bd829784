//! Stops the threads of a process by ptrace while they are copied. This runs in a separate thread:
//! when that thread ends, the kernel releases every thread that is still traced.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace as calls;
use nix::unistd::Pid;

use super::ptrace::{self, TracedStop};
use super::{CaptureError, MAX_THREADS, Snapshot, ThreadCopy, ThreadSnapshot, copy_stack, procfs};
use crate::memory::ProcessMemory;
use crate::registers::Registers;

/// Time for which stopped threads wait for the others. Afterwards they are copied and continue, so
/// that a thread that gets no processor does not delay the whole process.
const HOLD_WINDOW: Duration = Duration::from_millis(3);
/// Time limit for a thread to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(250);
/// Time after which this module no longer waits for a thread in state D.
const UNINTERRUPTIBLE_GRACE: Duration = Duration::from_millis(2);
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum number of searches for threads that have started in the meantime.
const MAX_LISTINGS: usize = 16;
/// The code segment of 32-bit code.
const COMPATIBILITY_CODE_SEGMENT: u64 = 0x23;

/// A thread that is traced.
struct TracedThread {
    tid: i32,
    interrupted_at: Instant,
    stage: Stage,
}

enum Stage {
    /// The thread was interrupted, and has not stopped yet.
    Stopping,
    /// The thread is stopped.
    Stopped(TracedStop),
    /// The thread continues or has exited.
    Released,
}

struct Holder {
    pid: i32,
    memory: ProcessMemory,
    seen: HashSet<i32>,
    threads: Vec<TracedThread>,
    snapshot: Snapshot,
}

/// Copies all threads of a process.
pub fn capture(pid: i32) -> Result<Snapshot, CaptureError> {
    let mut holder = Holder {
        pid,
        memory: ProcessMemory::new(pid),
        seen: HashSet::new(),
        threads: Vec::new(),
        snapshot: Snapshot { pid, live_tid: pid, is_simultaneous: true, ..Snapshot::default() },
    };
    let result = holder.stop_and_copy();
    // In every case, no thread must be left stopped.
    for thread in &holder.threads {
        if let Stage::Stopped(stop) = thread.stage {
            let _ = ptrace::detach(thread.tid, stop);
        }
    }
    result?;
    for thread in &mut holder.snapshot.threads {
        thread.name = procfs::thread_name(pid, thread.tid);
    }
    holder.snapshot.threads.sort_by_key(|thread| (thread.tid != pid, thread.tid));
    Ok(holder.snapshot)
}

impl Holder {
    fn stop_and_copy(&mut self) -> Result<(), CaptureError> {
        self.seize_new_threads()?;
        let started_at = Instant::now();
        let mut listings = 1;
        let mut has_mappings = false;
        loop {
            let has_progress = self.poll_stops();
            let is_first_part = self.snapshot.is_simultaneous;
            let is_complete = self.count_stopping() == 0;
            // When all threads are stopped, none can start another one. A listing is then complete.
            if is_complete && is_first_part && listings < MAX_LISTINGS {
                listings += 1;
                if self.seize_new_threads()? > 0 {
                    continue;
                }
            }
            let is_late = started_at.elapsed() >= HOLD_WINDOW;
            if is_complete || is_late || !is_first_part {
                if !has_mappings && self.threads.iter().any(is_stopped) {
                    self.snapshot.read_mappings(&self.memory)?;
                    has_mappings = true;
                }
                self.copy_and_release_stopped()?;
                self.snapshot.is_simultaneous &= is_complete;
            }
            if is_complete {
                return self.finish(has_mappings);
            }
            self.give_up_on_unstoppable(started_at.elapsed());
            if !has_progress && self.count_stopping() > 0 {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    fn count_stopping(&self) -> usize {
        self.threads.iter().filter(|thread| matches!(thread.stage, Stage::Stopping)).count()
    }

    /// Seizes the threads that are not yet traced and interrupts them. Returns their number.
    fn seize_new_threads(&mut self) -> Result<usize, CaptureError> {
        let pid = self.pid;
        let mut seized = Vec::new();
        let (mut refusal, mut refused) = (None, Vec::new());
        for tid in procfs::threads(pid) {
            if !self.seen.insert(tid) {
                continue;
            }
            if self.seen.len() > MAX_THREADS {
                self.snapshot.omitted_threads += 1;
                continue;
            }
            match calls::seize(Pid::from_raw(tid), calls::Options::empty()) {
                Ok(()) => seized.push(tid),
                Err(Errno::ESRCH) => {}
                // The kernel gives this error also for a thread that has exited. The first thread
                // may exit before others.
                Err(errno) if procfs::thread_state(pid, tid).is_some_and(|it| it != 'Z') => {
                    refusal = Some(errno);
                    refused.push(tid);
                }
                Err(_) => {}
            }
        }
        if let Some(errno) = refusal
            && seized.is_empty()
            && self.threads.is_empty()
        {
            return Err(procfs::explain_refusal(pid, io::Error::from(errno)));
        }
        if self.threads.is_empty() && seized.is_empty() {
            let has_status = procfs::read(pid, "status").is_ok();
            return Err(match has_status {
                true => CaptureError::Exited { pid },
                false => CaptureError::NoSuchProcess { pid },
            });
        }
        if let Some(first) = seized.first().filter(|_| self.threads.is_empty()) {
            self.memory = ProcessMemory::new(*first);
            self.snapshot.live_tid = *first;
        }
        // Another tracer traces only some of the threads.
        let snapshots = refused.into_iter().map(|tid| ThreadSnapshot {
            tid,
            name: String::new(),
            copy: ThreadCopy::NotStopped,
        });
        self.snapshot.threads.extend(snapshots);
        for tid in &seized {
            let interrupted_at = Instant::now();
            let stage = match calls::interrupt(Pid::from_raw(*tid)) {
                Ok(()) => Stage::Stopping,
                Err(_) => Stage::Released,
            };
            self.threads.push(TracedThread { tid: *tid, interrupted_at, stage });
        }
        Ok(seized.len())
    }

    /// Checks which threads have stopped. Returns whether there was one.
    fn poll_stops(&mut self) -> bool {
        let mut has_progress = false;
        for thread in &mut self.threads {
            if !matches!(thread.stage, Stage::Stopping) {
                continue;
            }
            match ptrace::poll_stop(thread.tid) {
                Ok(Some(stop)) => thread.stage = Stage::Stopped(stop),
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => thread.stage = Stage::Released,
            }
            has_progress = true;
        }
        has_progress
    }

    /// Copies all stopped threads, then lets all of them continue.
    fn copy_and_release_stopped(&mut self) -> Result<(), CaptureError> {
        for index in 0..self.threads.len() {
            let TracedThread { tid, stage: Stage::Stopped(_), .. } = self.threads[index] else {
                continue;
            };
            // An error means that the thread was killed while it was stopped.
            let Ok(regs) = calls::getregs(Pid::from_raw(tid)) else { continue };
            if regs.cs == COMPATIBILITY_CODE_SEGMENT {
                return Err(CaptureError::NotX86_64 { pid: self.pid });
            }
            let registers = Registers::from(&regs);
            let stack = copy_stack(&self.snapshot.mappings, &registers, &self.memory);
            self.add(tid, ThreadCopy::Stopped { registers, stack });
        }
        for thread in &mut self.threads {
            if let Stage::Stopped(stop) = thread.stage {
                let _ = ptrace::detach(thread.tid, stop);
                thread.stage = Stage::Released;
                let held_for = thread.interrupted_at.elapsed();
                self.snapshot.held_for = self.snapshot.held_for.max(held_for);
            }
        }
        Ok(())
    }

    /// Gives up on threads that have exited, that cannot stop, or that have not stopped in time.
    fn give_up_on_unstoppable(&mut self, elapsed: Duration) {
        if elapsed < UNINTERRUPTIBLE_GRACE {
            return;
        }
        for index in 0..self.threads.len() {
            if !matches!(self.threads[index].stage, Stage::Stopping) {
                continue;
            }
            let tid = self.threads[index].tid;
            let copy = match procfs::thread_state(self.pid, tid) {
                None | Some('Z' | 'X') => None,
                Some('D') => Some(self.copy_uninterruptible(tid)),
                Some(_) if elapsed >= STOP_TIMEOUT => Some(ThreadCopy::NotStopped),
                Some(_) => continue,
            };
            self.threads[index].stage = Stage::Released;
            if let Some(copy) = copy {
                self.add(tid, copy);
            }
        }
    }

    /// Copies a thread that waits in the kernel. Such a thread uses neither its stack nor its
    /// registers. The kernel shows the registers of its system call, which are sufficient for the
    /// first frames.
    fn copy_uninterruptible(&mut self, tid: i32) -> ThreadCopy {
        if self.snapshot.mappings.is_empty() {
            // Without mappings the frames are only addresses, which are still useful.
            let _ = self.snapshot.read_mappings(&self.memory);
        }
        match procfs::syscall_registers(self.pid, tid) {
            Some(registers) => {
                let stack = copy_stack(&self.snapshot.mappings, &registers, &self.memory);
                ThreadCopy::Uninterruptible { registers, stack }
            }
            None => ThreadCopy::NotStopped,
        }
    }

    fn add(&mut self, tid: i32, copy: ThreadCopy) {
        self.snapshot.threads.push(ThreadSnapshot { tid, name: String::new(), copy });
    }

    fn finish(&mut self, has_mappings: bool) -> Result<(), CaptureError> {
        if self.snapshot.threads.is_empty() {
            return Err(CaptureError::Exited { pid: self.pid });
        }
        if !has_mappings && self.snapshot.mappings.is_empty() {
            let _ = self.snapshot.read_mappings(&self.memory);
        }
        Ok(())
    }
}

fn is_stopped(thread: &TracedThread) -> bool {
    matches!(thread.stage, Stage::Stopped(_))
}
