//! The phases of the local part of a job, from its placement to its last report.

use std::time::{Duration, Instant};

use score_proto::job_control::Placement;

use super::job_info::JobInfo;

/// The phase of the local part of a job. Each phase has the data that it needs.
#[derive(Debug)]
pub enum JobPhase {
    /// The start of the job has not been ordered. Contains the job's placement once it is known.
    Waiting(Option<Placement>),
    /// The stages of the job run.
    Running(StartedJob),
    /// Waiting for killed processes until the deadline.
    Killing {
        /// The job, unless its end was ordered before its start.
        job: Option<StartedJob>,
        /// The shepherd stops waiting for exits at this time.
        deadline: Instant,
    },
    /// Reading the rest of the output of the killed processes.
    DrainingOutput(Option<StartedJob>),
    /// The job has ended, and its end has been reported.
    Done,
}

/// A job, from the order to start it to its end.
#[derive(Debug)]
pub struct StartedJob {
    /// The data of the job.
    pub info: JobInfo,
    /// The start of the first stage.
    pub started_at: Option<Instant>,
    /// The exit of the process that exited last.
    pub last_exit_at: Option<Instant>,
    /// Whether the notes on the networks have been reported to the user.
    pub networks_reported: bool,
}

impl StartedJob {
    fn new(info: JobInfo) -> Self {
        Self { info, started_at: None, last_exit_at: None, networks_reported: false }
    }

    /// The time from the start of the first stage to the last exit of a process.
    fn elapsed(&self) -> Option<Duration> {
        Some(self.last_exit_at?.saturating_duration_since(self.started_at?))
    }
}

impl JobPhase {
    /// The job, from the order to start it to its end.
    pub fn job(&self) -> Option<&StartedJob> {
        match self {
            JobPhase::Running(job) => Some(job),
            JobPhase::Killing { job, .. } | JobPhase::DrainingOutput(job) => job.as_ref(),
            JobPhase::Waiting(_) | JobPhase::Done => None,
        }
    }

    /// The same as [`Self::job`], mutable.
    pub fn job_mut(&mut self) -> Option<&mut StartedJob> {
        match self {
            JobPhase::Running(job) => Some(job),
            JobPhase::Killing { job, .. } | JobPhase::DrainingOutput(job) => job.as_mut(),
            JobPhase::Waiting(_) | JobPhase::Done => None,
        }
    }

    /// The data of the job, from the order to start it to its end.
    pub fn job_info(&self) -> Option<&JobInfo> {
        Some(&self.job()?.info)
    }

    /// Stores the placement until the job is started.
    pub fn set_placement(&mut self, placement: Placement) {
        if let JobPhase::Waiting(slot) = self {
            *slot = Some(placement);
        }
    }

    /// Takes the placement to start the job.
    pub fn take_placement(&mut self) -> Option<Placement> {
        let JobPhase::Waiting(slot) = self else { return None };
        slot.take()
    }

    /// Enters [`JobPhase::Running`].
    pub fn start(&mut self, info: JobInfo) {
        if matches!(self, JobPhase::Waiting(_)) {
            *self = JobPhase::Running(StartedJob::new(info));
        }
    }

    /// Enters [`JobPhase::Killing`]: the shepherd waits until the deadline for killed processes to
    /// exit.
    pub fn begin_killing(&mut self, deadline: Instant) {
        *self = match std::mem::replace(self, JobPhase::Done) {
            JobPhase::Waiting(_) => JobPhase::Killing { job: None, deadline },
            JobPhase::Running(job) => JobPhase::Killing { job: Some(job), deadline },
            JobPhase::Killing { job, .. } | JobPhase::DrainingOutput(job) => {
                JobPhase::Killing { job, deadline }
            }
            JobPhase::Done => JobPhase::Done,
        };
    }

    /// When the shepherd stops waiting for killed processes, if it waits for any.
    pub fn kill_deadline(&self) -> Option<Instant> {
        match self {
            JobPhase::Killing { deadline, .. } => Some(*deadline),
            _ => None,
        }
    }

    /// Enters [`JobPhase::DrainingOutput`]: the killed processes have exited, or the deadline has
    /// passed.
    pub fn begin_draining(&mut self) {
        if let JobPhase::Killing { job, .. } = self {
            *self = JobPhase::DrainingOutput(job.take());
        }
    }

    /// Ends the job after its last output, and returns its run time. Returns None in any other
    /// phase than [`JobPhase::DrainingOutput`].
    pub fn finish(&mut self) -> Option<Duration> {
        let JobPhase::DrainingOutput(job) = self else { return None };
        let elapsed = job.as_ref().and_then(StartedJob::elapsed).unwrap_or_default();
        *self = JobPhase::Done;
        Some(elapsed)
    }

    /// Whether the end of the job has been reported.
    pub fn is_done(&self) -> bool {
        matches!(self, JobPhase::Done)
    }
}

#[cfg(test)]
mod tests {
    use score_proto::ids::JobId;
    use score_proto::job_control::JobStart;
    use score_proto::message::JobSpec;
    use score_proto::peer_message::JobIncarnation;

    use super::*;

    fn placement() -> Placement {
        Placement::new(JobIncarnation(1), [("a".to_owned(), None, 2)])
    }

    fn start(phase: &mut JobPhase) {
        let placement = phase.take_placement().unwrap();
        let local_host = placement.self_placement().unwrap().clone();
        let job_start =
            JobStart { job: JobId(1), secret: 1, spec: JobSpec::default(), owner: None };
        phase.start(JobInfo { job_start, placement, local_host, stage: 0 });
    }

    #[test]
    fn a_job_keeps_its_data_until_it_has_finished_and_then_reports_its_run_time() {
        let now = Instant::now();
        let mut phase = JobPhase::Waiting(None);
        assert_eq!(phase.take_placement(), None);
        phase.set_placement(placement());
        start(&mut phase);
        assert!(phase.job_info().is_some());
        let job = phase.job_mut().unwrap();
        job.started_at = Some(now);
        phase.begin_killing(now);
        assert_eq!(phase.finish(), None, "killed processes may still run");
        phase.job_mut().unwrap().last_exit_at = Some(now + Duration::from_secs(3));
        phase.begin_draining();
        assert_eq!(phase.kill_deadline(), None);
        assert!(!phase.is_done());
        assert_eq!(phase.finish(), Some(Duration::from_secs(3)));
        assert!(phase.is_done() && phase.job().is_none());
    }

    #[test]
    fn a_job_whose_end_is_ordered_before_its_start_never_starts() {
        let now = Instant::now();
        let mut phase = JobPhase::Waiting(Some(placement()));
        phase.begin_killing(now);
        assert_eq!((phase.take_placement(), phase.kill_deadline()), (None, Some(now)));
        phase.begin_draining();
        assert_eq!(phase.finish(), Some(Duration::ZERO));
        phase.begin_killing(now);
        assert!(phase.is_done(), "a job ends once");
    }
}
