//! The state of a job in gang scheduling: whether the job has entered, has a slice, and is idle.

use score_proto::job_control::SwitchSeq;

use crate::gang::HoldReason;

/// A request of the job to the gang scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GangRequest {
    /// The job can run. [`crate::master::MasterEvent::Run`] follows.
    Enter,
    /// The job will not run any more.
    Leave,
    /// All hosts have carried out the stop order of this number.
    Stopped(SwitchSeq),
    /// The job must not run until it is released for the same reason.
    /// [`crate::master::MasterEvent::GangStopped`] follows, possibly more than once.
    Hold(HoldReason),
    /// Ends a [`GangRequest::Hold`].
    Release(HoldReason),
    /// The job gives up the rest of its slice.
    Yield,
    /// The job takes no slice for this many seconds.
    Sleep(u32),
    /// No process of the job needs a processor.
    Idle,
    /// The job is not idle any more.
    Busy,
}

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduling(State);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The job has not had a stage to run.
    NotEntered,
    /// The user has suspended the job before it entered.
    SuspendedBeforeEntry {
        /// A stage is due: the job enters when the user resumes it.
        stage_due: bool,
    },
    /// The job has entered the gang scheduler.
    Entered {
        /// The job has a slice now.
        has_slice: bool,
        /// The job was reported as idle.
        idle_reported: bool,
    },
    /// The job has left the gang scheduler.
    Left,
}

impl Scheduling {
    /// The state of a job whose hosts prepare.
    pub const fn new() -> Self {
        Self(State::NotEntered)
    }

    /// Whether the job has entered the gang scheduler and not left it.
    pub fn has_entered(&self) -> bool {
        matches!(self.0, State::Entered { .. })
    }

    /// Whether the job has a slice now.
    pub fn has_slice(&self) -> bool {
        matches!(self.0, State::Entered { has_slice: true, .. })
    }

    /// The gang scheduler runs or stops the job.
    pub fn set_has_slice(&mut self, value: bool) {
        if let State::Entered { has_slice, .. } = &mut self.0 {
            *has_slice = value;
        }
    }

    fn enter(&mut self) -> Option<GangRequest> {
        self.0 = State::Entered { has_slice: false, idle_reported: false };
        Some(GangRequest::Enter)
    }

    /// A stage is ready to run.
    pub fn on_stage_due(&mut self) -> Option<GangRequest> {
        match &mut self.0 {
            State::NotEntered => self.enter(),
            State::SuspendedBeforeEntry { stage_due } => {
                *stage_due = true;
                None
            }
            State::Entered { .. } | State::Left => None,
        }
    }

    /// The user suspends the job.
    pub fn suspend(&mut self) -> Option<GangRequest> {
        match self.0 {
            State::NotEntered => {
                self.0 = State::SuspendedBeforeEntry { stage_due: false };
                None
            }
            State::Entered { .. } => Some(GangRequest::Hold(HoldReason::User)),
            State::SuspendedBeforeEntry { .. } | State::Left => None,
        }
    }

    /// The user resumes the job.
    pub fn resume(&mut self) -> Option<GangRequest> {
        match self.0 {
            State::SuspendedBeforeEntry { stage_due: true } => self.enter(),
            State::SuspendedBeforeEntry { stage_due: false } => {
                self.0 = State::NotEntered;
                None
            }
            State::Entered { .. } => Some(GangRequest::Release(HoldReason::User)),
            State::NotEntered | State::Left => None,
        }
    }

    /// Reports whether all running elements are idle. Returns a request only for a change.
    pub fn report_idle(&mut self, all_idle: bool) -> Option<GangRequest> {
        let State::Entered { idle_reported, .. } = &mut self.0 else { return None };
        let changed = std::mem::replace(idle_reported, all_idle) != all_idle;
        changed.then_some(if all_idle { GangRequest::Idle } else { GangRequest::Busy })
    }

    /// The job has no further stage to run.
    pub fn leave(&mut self) -> Option<GangRequest> {
        let has_entered = self.has_entered();
        self.0 = State::Left;
        has_entered.then_some(GangRequest::Leave)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_was_suspended_first_enters_when_it_is_resumed_and_has_a_stage() {
        let mut scheduling = Scheduling::new();
        assert_eq!((scheduling.suspend(), scheduling.resume()), (None, None));
        assert_eq!((scheduling.suspend(), scheduling.on_stage_due()), (None, None));
        assert_eq!(scheduling.resume(), Some(GangRequest::Enter));
        scheduling.set_has_slice(true);
        assert!(scheduling.has_slice());
        assert_eq!(scheduling.suspend(), Some(GangRequest::Hold(HoldReason::User)));
        assert_eq!(scheduling.resume(), Some(GangRequest::Release(HoldReason::User)));
        assert_eq!(scheduling.leave(), Some(GangRequest::Leave));
        scheduling.set_has_slice(true);
        assert_eq!((scheduling.has_slice(), scheduling.leave()), (false, None));
        assert_eq!((scheduling.resume(), scheduling.on_stage_due()), (None, None));
    }
}
