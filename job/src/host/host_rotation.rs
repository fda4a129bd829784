//! Rotation: jobs of this host take their slices alternately, as the gang scheduler has decided for
//! a bounded time ([`crate::gang`]). At the end of a turn the daemon uses only this module and
//! `jobs/rotation_turns.rs`. It sends one message, to the switch thread of the next job's shepherd.
//! It does not use the code for an ordinary slice, which is not in the processor caches after a
//! turn.
//!
//! A job starts only after this daemon has received the report that the previous job has stopped.
//! Any other order to stop or run one of the jobs ends the rotation for all of them
//! (`Jobs::on_switch_order`). An order that only changes the interval of the idle check does not.

use score_proto::ids::JobId;
use score_proto::job_control::{self, StopCondition, SwitchOrder, SwitchSeq};

/// The largest number of jobs in a rotation.
const MAX_ROTATION_JOBS: u8 = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct HostRotation {
    rotation: Option<ActiveRotation>,
}

#[derive(Debug)]
struct ActiveRotation {
    /// The jobs by position. None: the order for the position has not arrived yet.
    jobs: Vec<Option<JobId>>,
    idle_check_interval_us: u32,
    /// The parameters that came with the first order.
    params: job_control::LocalRotation,
    /// The current turn. None until all orders have arrived.
    current_turn: Option<u32>,
}

impl ActiveRotation {
    fn start_turn(&mut self, turn: u32) -> Option<(JobId, SwitchOrder)> {
        if turn >= self.params.turn_count {
            return None;
        }
        let job = self.job_of(turn)?;
        self.current_turn = Some(turn);
        let switch_seq = self.params.first_switch_seq.checked_add(turn)?;
        let stop_condition = StopCondition::After { run_us: self.params.turn_us, switch_seq };
        let idle_check_interval_us = self.idle_check_interval_us;
        Some((job, SwitchOrder::Run { idle_check_interval_us, stop_condition }))
    }

    fn job_of(&self, turn: u32) -> Option<JobId> {
        self.jobs[turn as usize % self.jobs.len()]
    }
}

impl HostRotation {
    /// Ends the rotation, independent of the current turn.
    pub fn end(&mut self) {
        self.rotation = None;
    }

    /// The daemon itself has stopped a job. If the job is part of the rotation, the rotation ends.
    pub fn end_with(&mut self, job: JobId) {
        self.rotation.take_if(|rotation| rotation.jobs.contains(&Some(job)));
    }

    /// A job gets its order to take part. Returns the order for the job of the first turn, if all
    /// jobs have got their orders.
    pub fn join(
        &mut self,
        job: JobId,
        idle_check_interval_us: u32,
        params: job_control::LocalRotation,
    ) -> Option<(JobId, SwitchOrder)> {
        if params.position >= params.job_count || params.job_count > MAX_ROTATION_JOBS {
            return None;
        }
        let new_rotation = || ActiveRotation {
            jobs: vec![None; params.job_count.into()],
            idle_check_interval_us,
            params,
            current_turn: None,
        };
        let is_same = |rotation: &ActiveRotation| {
            rotation.params.first_switch_seq == params.first_switch_seq
                && rotation.params.job_count == params.job_count
        };
        let rotation = match self.rotation.take_if(|rotation| is_same(rotation)) {
            Some(rotation) => self.rotation.insert(rotation),
            None => self.rotation.insert(new_rotation()),
        };
        rotation.jobs[usize::from(params.position)] = Some(job);
        if rotation.current_turn.is_some() || rotation.jobs.contains(&None) {
            return None;
        }
        rotation.start_turn(0)
    }

    /// The job whose turn it is, and the number of the stop that ends the turn.
    pub fn expected_stop(&self) -> Option<(JobId, SwitchSeq)> {
        let rotation = self.rotation.as_ref()?;
        let turn = rotation.current_turn?;
        Some((rotation.job_of(turn)?, rotation.params.first_switch_seq.checked_add(turn)?))
    }

    /// The jobs that have joined the rotation.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.rotation.iter().flat_map(|rotation| rotation.jobs.iter().flatten().copied())
    }

    /// The turn is over. Returns the job of the next turn and its order; None after the last turn.
    pub fn next_turn(&mut self) -> Option<(JobId, SwitchOrder)> {
        let rotation = self.rotation.as_mut()?;
        rotation.start_turn(rotation.current_turn? + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(rotation: &mut HostRotation, job: JobId, position: u8) -> Option<(JobId, SwitchOrder)> {
        let params = job_control::LocalRotation {
            first_switch_seq: SwitchSeq(10),
            turn_us: 5000,
            turn_count: 3,
            job_count: 2,
            position,
        };
        rotation.join(job, 1500, params)
    }

    fn run_order(stop: u64) -> SwitchOrder {
        let switch_seq = SwitchSeq(stop);
        SwitchOrder::Run {
            idle_check_interval_us: 1500,
            stop_condition: StopCondition::After { run_us: 5000, switch_seq },
        }
    }

    fn started_rotation() -> HostRotation {
        let mut host_rotation = HostRotation::default();
        assert_eq!(join(&mut host_rotation, JobId(7), 1), None);
        assert_eq!(host_rotation.expected_stop(), None, "the order of job 4 is missing");
        assert_eq!(join(&mut host_rotation, JobId(4), 0), Some((JobId(4), run_order(10))));
        host_rotation
    }

    #[test]
    fn jobs_run_in_their_order_until_the_end_of_the_rotation() {
        let mut host_rotation = started_rotation();
        assert_eq!(host_rotation.expected_stop(), Some((JobId(4), SwitchSeq(10))));
        assert_eq!(host_rotation.next_turn(), Some((JobId(7), run_order(11))));
        assert_eq!(host_rotation.expected_stop(), Some((JobId(7), SwitchSeq(11))));
        assert_eq!(host_rotation.next_turn(), Some((JobId(4), run_order(12))));
        assert_eq!(host_rotation.next_turn(), None);
    }

    #[test]
    fn a_rotation_that_has_ended_needs_the_orders_for_all_its_jobs_again() {
        let mut host_rotation = started_rotation();
        host_rotation.end_with(JobId(5));
        assert_eq!(host_rotation.expected_stop(), Some((JobId(4), SwitchSeq(10))));
        host_rotation.end_with(JobId(7));
        assert_eq!((host_rotation.expected_stop(), host_rotation.next_turn()), (None, None));
        assert_eq!(join(&mut host_rotation, JobId(7), 1), None);
    }

    #[test]
    fn an_invalid_rotation_is_not_started() {
        for (job_count, position, turn_count) in [(0, 0, 9), (2, 2, 9), (255, 1, 9), (1, 0, 0)] {
            let mut host_rotation = HostRotation::default();
            let params = job_control::LocalRotation {
                first_switch_seq: SwitchSeq(1),
                turn_us: 1,
                turn_count,
                job_count,
                position,
            };
            assert_eq!(
                (host_rotation.join(JobId(1), 0, params), host_rotation.expected_stop()),
                (None, None),
                "{params:?}"
            );
        }
    }
}
