//! What the gang scheduler does with a job, as the job knows it.

use score_proto::job_control::SwitchSeq;

use crate::gang::HoldReason;

/// A request of the job to the gang scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GangRequest {
    /// The job can run: answered by [`crate::master::MasterEvent::Run`].
    Enter,
    /// The job will not run any more.
    Leave,
    /// All hosts have carried out the stop order of this number.
    Stopped(SwitchSeq),
    /// The job must not run until it is released for the same reason. Answered by
    /// [`crate::master::MasterEvent::GangStopped`], perhaps more than once.
    Hold(HoldReason),
    /// Ends a [`GangRequest::Hold`].
    Release(HoldReason),
    /// The job gives up the rest of its slice.
    Yield,
    /// The job wants no slice for this many seconds.
    Sleep(u32),
    /// None of its processes needs a processor.
    Idle,
    /// The job is not idle any more.
    Busy,
}

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduling(State);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No stage has been due.
    NotEntered,
    /// Its user has suspended it before it entered.
    SuspendedBeforeEntry {
        /// It enters when its user resumes it.
        stage_due: bool,
    },
    /// The gang scheduler has it.
    Entered {
        /// It has a slice now.
        has_slice: bool,
        /// All running elements were reported as idle.
        idle_reported: bool,
    },
    /// It has left.
    Left,
}

impl Scheduling {
    /// That of a job whose hosts prepare.
    pub const fn new() -> Self {
        Self(State::NotEntered)
    }

    /// Whether the gang scheduler has it.
    pub fn has_entered(&self) -> bool {
        matches!(self.0, State::Entered { .. })
    }

    /// Whether it has a slice now.
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

    /// There is a stage to run.
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

    /// Its user suspends it.
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

    /// Its user resumes it.
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

    /// All running elements are idle, or one is not. Only changes are reported.
    pub fn report_idle(&mut self, all_idle: bool) -> Option<GangRequest> {
        let State::Entered { idle_reported, .. } = &mut self.0 else { return None };
        let changed = std::mem::replace(idle_reported, all_idle) != all_idle;
        changed.then_some(if all_idle { GangRequest::Idle } else { GangRequest::Busy })
    }

    /// There is nothing more to run.
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
