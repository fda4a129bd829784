//! Detects whether all processes of an element are idle. Arms processes to send a notification when
//! that changes.
//!
//! As long as one thread is busy, the element is not idle. The process of that thread is armed to
//! send a notification when the thread becomes idle, and no other process is polled. When all
//! processes are idle, all are armed. A state is armed only if it has lasted for a while
//! ([`super::poll_backoff`]), because a process that changes often would send notifications all the
//! time.

use std::time::Duration;

use score_proto::idle_notify;
use score_proto::ids::ProcessIndex;
use score_proto::job_control::SwitchSeq;
use score_proto::observation::IdleSummary;

use super::ObservedElement;
use super::poll_backoff::{self, NotifySource};
use crate::sys::process_stop;

/// Largest number of attempts to arm processes without a concurrent change of state. After that,
/// the element is polled.
const MAX_ARM_ATTEMPTS: usize = 4;

/// The processes whose C-Areas are armed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Armed {
    /// No process.
    #[default]
    Disarmed,
    /// The process with this index.
    One(ProcessIndex),
    /// All processes.
    All,
}

/// The result of a check.
enum IdleCheck {
    /// All processes are idle: summary, and the time at which the last process became idle.
    AllIdle(IdleSummary, u64),
    /// A debugger holds some processes, and the others are idle.
    SomeHeld,
    /// A thread has been busy for a while: process and slot.
    ThreadBusy(ProcessIndex, usize),
    /// Some process is not idle.
    SomeBusy,
}

impl ObservedElement {
    /// Checks whether the element is idle, and arms processes if possible.
    pub(super) fn poll_idle(
        &mut self,
        job_time_ns: u64,
        poll_interval: Duration,
    ) -> (IdleSummary, NotifySource) {
        let settle_ns =
            u64::try_from(poll_backoff::settle_time(poll_interval).as_nanos()).unwrap_or(u64::MAX);
        let settled_before_ns = job_time_ns.saturating_sub(settle_ns);
        let mut all_armed = false;
        for _ in 0..MAX_ARM_ATTEMPTS {
            match self.check_idle(settled_before_ns) {
                IdleCheck::AllIdle(summary, _) if all_armed => {
                    return (summary, NotifySource::AllProcesses);
                }
                IdleCheck::AllIdle(_, since_ns) if since_ns <= settled_before_ns => {
                    self.arm(Armed::All, idle_notify::ON_BUSY);
                    all_armed = true;
                }
                IdleCheck::AllIdle(summary, _) => {
                    self.arm(Armed::Disarmed, idle_notify::NONE);
                    return (summary, NotifySource::NoProcess);
                }
                IdleCheck::ThreadBusy(index, slot) => {
                    self.arm(Armed::One(index), idle_notify::idle(slot));
                    all_armed = false;
                    if self.careas.area(index).is_some_and(|area| area.is_slot_busy(slot)) {
                        return (IdleSummary::BUSY, NotifySource::BusyThread);
                    }
                }
                IdleCheck::SomeHeld => {
                    self.arm(Armed::Disarmed, idle_notify::NONE);
                    return (IdleSummary::HELD, NotifySource::Debugger);
                }
                IdleCheck::SomeBusy => break,
            }
        }
        self.arm(Armed::Disarmed, idle_notify::NONE);
        (IdleSummary::BUSY, NotifySource::NoProcess)
    }

    /// The report that is due after a poll with this result. A report is due if the result has
    /// changed, or if all processes are still idle after another stop.
    pub(super) fn take_report(
        &mut self,
        summary: IdleSummary,
        stop_seq: SwitchSeq,
    ) -> Option<IdleSummary> {
        let is_due = self.last_reported.is_none_or(|(last_summary, last_stop_seq)| {
            last_summary != summary || (summary.needs_no_processor() && last_stop_seq != stop_seq)
        });
        is_due.then(|| {
            self.last_reported = Some((summary, stop_seq));
            IdleSummary { stop_seq, ..summary }
        })
    }

    /// Checks all processes, or as many as needed to find a busy thread. All are idle only if there
    /// was an instant at which all were idle: no process became busy between its own check and the
    /// last check.
    fn check_idle(&self, settled_before_ns: u64) -> IdleCheck {
        let (mut summary, mut since_ns) = (IdleSummary::EMPTY, 0);
        let (mut some_busy, mut some_held) = (false, false);
        let mut busy_transitions = 0u64;
        for index in self.careas.processes() {
            let has_exited =
                self.processes.get(index.index()).is_some_and(|process| process.has_exited);
            let Some(area) = self.careas.area(index) else { return IdleCheck::SomeBusy };
            let may_be_idle = has_exited || area.may_be_idle();
            let mut sample = if may_be_idle { self.claim(index) } else { Default::default() };
            if !sample.idle && self.is_held(index) {
                some_held = true;
                busy_transitions = busy_transitions.wrapping_add(self.claim(index).turns);
            } else if !sample.idle {
                match area.busy_slot(settled_before_ns) {
                    Some(slot) => return IdleCheck::ThreadBusy(index, slot),
                    None => some_busy = true,
                }
            } else if !some_busy {
                busy_transitions = busy_transitions.wrapping_add(sample.turns);
                self.add_counters(index, &mut sample);
                let (sent, received) = (sample.sent, sample.received);
                summary = summary.combine(IdleSummary {
                    sent,
                    received,
                    outstanding_rma: sample.remote_in_flight,
                    ..IdleSummary::EMPTY
                });
                since_ns = if has_exited { since_ns } else { since_ns.max(area.idle_since()) };
            }
        }
        if some_busy || self.busy_transitions() != busy_transitions {
            IdleCheck::SomeBusy
        } else if some_held {
            IdleCheck::SomeHeld
        } else {
            IdleCheck::AllIdle(summary, since_ns)
        }
    }

    /// Whether a debugger holds a process now, and held it at the last stop of the job.
    fn is_held(&self, index: ProcessIndex) -> bool {
        let pid = self.processes.get(index.index()).map_or(0, |process| process.pid);
        self.held_pids.contains(&pid)
            && process_stop::read_stat(pid).is_some_and(|stat| stat.is_held_by_tracer())
            && process_stop::has_stopped_completely(pid)
    }

    /// Number of times that threads of all processes became busy.
    fn busy_transitions(&self) -> u64 {
        self.careas.processes().fold(0, |sum, index| sum.wrapping_add(self.claim(index).turns))
    }

    /// Disarms the processes that were armed before, and arms `target`.
    fn arm(&mut self, target: Armed, change: u32) {
        if self.armed != target {
            self.arm_notification(idle_notify::NONE);
        }
        self.armed = target;
        self.arm_notification(change);
    }

    fn arm_notification(&self, change: u32) {
        let arm = |index| {
            if let Some(area) = self.careas.area(index) {
                area.arm_notification(change);
            }
        };
        match self.armed {
            Armed::Disarmed => {}
            Armed::One(index) => arm(index),
            Armed::All => self.careas.processes().for_each(arm),
        }
    }
}

#[cfg(test)]
#[path = "idle_detection_tests.rs"]
mod tests;
