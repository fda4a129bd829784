//! The notices of a process: the signals that cause notices, the notices that were not issued yet,
//! and the current notice. A notice suspends all threads of the process until a tool has answered.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::tracer::error::TraceError;
use crate::tracer::{Pid, Tid};

/// A set of signals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// The set of these signals. Ignores numbers outside of 1 to 64.
    pub fn of(signals: &[i32]) -> Self {
        let mut set = Self::default();
        for signal in signals {
            set.insert(*signal);
        }
        set
    }

    /// The set with the bits of a mask. Bit 0 is signal 1.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether the set contains a signal.
    pub fn contains(self, signal: i32) -> bool {
        (1..=64).contains(&signal) && self.0 >> (signal - 1) & 1 == 1
    }

    /// Adds a signal.
    pub fn insert(&mut self, signal: i32) {
        if (1..=64).contains(&signal) {
            self.0 |= 1 << (signal - 1);
        }
    }

    /// Removes a signal. Returns whether the set contained it.
    pub fn remove(&mut self, signal: i32) -> bool {
        let was_there = self.contains(signal);
        if was_there {
            self.0 &= !(1 << (signal - 1));
        }
        was_there
    }
}

/// The reason of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeReason {
    /// A signal in the notify set.
    Signal,
    /// A breakpoint.
    Breakpoint,
    /// A watchpoint that has detected a read.
    WatchRead,
    /// A watchpoint that has detected a write.
    WatchWrite,
    /// The end of a step.
    Step,
}

/// A notice of a thread that has stopped at a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalNotice {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Signal.
    pub signal: i32,
    /// The reason.
    pub reason: NoticeReason,
    /// The address of the instruction.
    pub instruction: u64,
    /// The address of the access, for watchpoints and faults. Otherwise 0.
    pub access: u64,
}

/// The notices of a process.
#[derive(Debug, Default)]
pub struct NoticeQueue {
    /// The signals that cause a notice.
    notify: SignalSet,
    /// The notices that were not issued yet.
    pending: VecDeque<SignalNotice>,
    /// The thread of the current notice, which has not been answered.
    given: Option<Tid>,
    /// The thread of the last notice that was issued.
    last_given: Option<Tid>,
    /// Whether the threads are suspended, for a notice or by a tool.
    is_suspended: bool,
}

impl NoticeQueue {
    /// Sets the signals that cause a notice.
    pub fn set_notify(&mut self, signals: SignalSet) {
        self.notify = signals;
    }

    /// Whether a signal causes a notice.
    pub fn is_notified(&self, signal: i32) -> bool {
        self.notify.contains(signal)
    }

    /// Adds a notice. All threads are suspended from now on.
    pub fn push(&mut self, notice: SignalNotice) {
        self.pending.push_back(notice);
        self.is_suspended = true;
    }

    /// Issues the next notice, if the previous one has been answered.
    pub fn issue(&mut self) -> Option<SignalNotice> {
        if self.given.is_some() {
            return None;
        }
        let notice = self.pending.pop_front()?;
        self.given = Some(notice.tid);
        self.last_given = Some(notice.tid);
        Some(notice)
    }

    /// Whether there are notices that were not issued.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The thread of the current notice.
    pub fn given(&self) -> Option<Tid> {
        self.given
    }

    /// The thread of the last notice that was issued.
    pub fn last_given(&self) -> Option<Tid> {
        self.last_given
    }

    /// The thread of the current notice, if `tid` is this thread or 0.
    pub fn given_thread(&self, tid: Tid) -> Result<Tid, TraceError> {
        let reason = "it is not the thread that gave the last notice";
        match self.given {
            Some(given) if tid == 0 || tid == given => Ok(given),
            _ => Err(TraceError::WrongState(tid, reason)),
        }
    }

    /// Marks the current notice as answered. Returns its thread.
    pub fn take_given(&mut self) -> Option<Tid> {
        self.given.take()
    }

    /// Whether the threads are suspended, for a notice or by a tool.
    pub fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// Suspends all threads without a notice.
    pub fn suspend(&mut self) {
        self.is_suspended = true;
    }

    /// Ends the suspension, unless there are further notices.
    pub fn resume(&mut self) {
        self.is_suspended = self.has_pending();
    }

    /// Removes the notices of a thread that has ended.
    pub fn remove_thread(&mut self, tid: Tid) {
        self.pending.retain(|notice| notice.tid != tid);
        if self.given == Some(tid) {
            self.given = None;
            // The end of this notice must resume the other threads.
            self.resume();
        }
    }

    /// Drops the notices that were not issued.
    pub fn drop_pending(&mut self) {
        self.pending.clear();
    }

    /// Drops all notices and the set of signals that cause notices, and ends the suspension.
    pub fn clear(&mut self) {
        *self = Self { last_given: self.last_given, ..Self::default() };
    }

    /// The notices after an exec: none. The signals that cause a notice remain.
    pub fn after_exec(&self) -> Self {
        Self { notify: self.notify, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(tid: Tid) -> SignalNotice {
        let (signal, reason) = (libc::SIGTRAP, NoticeReason::Breakpoint);
        SignalNotice { pid: 1, tid, signal, reason, instruction: 0, access: 0 }
    }

    #[test]
    fn a_suspension_lasts_until_the_last_notice_is_answered() {
        let mut notices = NoticeQueue::default();
        notices.push(notice(1));
        notices.push(notice(2));
        assert_eq!(notices.issue().map(|notice| notice.tid), Some(1));
        assert_eq!(notices.issue(), None, "the first notice has no answer");
        assert!(notices.given_thread(2).is_err());
        assert_eq!((notices.given_thread(0), notices.given_thread(1)), (Ok(1), Ok(1)));
        assert_eq!(notices.take_given(), Some(1));
        notices.resume();
        assert!(notices.is_suspended() && notices.has_pending());
        assert_eq!(notices.issue().map(|notice| notice.tid), Some(2));
        // The end of the thread also ends its notice.
        notices.remove_thread(2);
        assert!(!notices.is_suspended() && notices.given().is_none());
        assert_eq!(notices.last_given(), Some(2));
    }

    #[test]
    fn the_notify_set_remains_after_an_exec_and_no_notice_does() {
        let mut notices = NoticeQueue::default();
        notices.set_notify(SignalSet::of(&[libc::SIGUSR1]));
        notices.push(notice(1));
        let after = notices.after_exec();
        assert!(after.is_notified(libc::SIGUSR1) && !after.is_notified(libc::SIGUSR2));
        assert!(!after.has_pending() && !after.is_suspended());
        notices.clear();
        assert!(!notices.is_notified(libc::SIGUSR1) && !notices.is_suspended());
    }
}
