//! Jobs of this host that take turns by themselves, as the gang scheduler has decided for a while
//! ([`crate::gang`], "Turns"). All that is done at the end of a turn is here: nothing is told to
//! anybody but the thread that switches the next job. What is done about a slice otherwise is cold
//! after each, and took longer than the stop.
//!
//! A job runs only when this process has heard that the one before it stands still. Whatever else
//! is ordered to one of them ends the turns of all: what comes later is as without.

use score_proto::job_control::{self, Order, Report, StopCondition};

use super::Daemon;
use super::host_job::OnlyReport;
use super::tree_node::SHEPHERD_CHILD;

/// More jobs than this are not had to take turns.
const MAX_ROTATION_JOBS: u8 = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct HostRotation {
    rotation: Option<ActiveRotation>,
}

#[derive(Debug)]
struct ActiveRotation {
    /// By place; none where the order has not come yet.
    jobs: Vec<Option<u32>>,
    pace_us: u32,
    /// As the first job was told it.
    params: job_control::LocalRotation,
    /// The turn that runs; none before all orders have come.
    current_turn: Option<u32>,
}

impl ActiveRotation {
    fn start_turn(&mut self, turn: u32) -> Option<(u32, Order)> {
        if turn >= self.params.turn_count {
            return None;
        }
        let job = self.job_of(turn)?;
        self.current_turn = Some(turn);
        let switch_seq = self.params.first_switch_seq.checked_add(turn.into())?;
        let until = StopCondition::After { run_us: self.params.turn_us, switch_seq };
        Some((
            job,
            Order::Run { switch_seq, idle_check_interval_us: self.pace_us, stop_condition: until },
        ))
    }

    fn job_of(&self, turn: u32) -> Option<u32> {
        self.jobs[turn as usize % self.jobs.len()]
    }
}

impl HostRotation {
    /// An order for a job of this host: what is to be told instead, and whose shepherd.
    pub fn on_order(&mut self, job: u32, order: Order) -> Option<(u32, Order)> {
        match order {
            Order::Run {
                stop_condition: StopCondition::LocalRotation(params),
                idle_check_interval_us: pace_us,
                ..
            } => self.join(job, pace_us, params),
            Order::Run { stop_condition: StopCondition::Unchanged, .. } => Some((job, order)),
            Order::Run { .. } | Order::Stop { .. } => {
                self.rotation.take_if(|rotation| rotation.jobs.contains(&Some(job)));
                Some((job, order))
            }
            order => Some((job, order)),
        }
    }

    fn join(
        &mut self,
        job: u32,
        pace_us: u32,
        params: job_control::LocalRotation,
    ) -> Option<(u32, Order)> {
        if params.position >= params.job_count || params.job_count > MAX_ROTATION_JOBS {
            return None;
        }
        let new_rotation = || ActiveRotation {
            jobs: vec![None; params.job_count.into()],
            pace_us,
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

    /// Whose turn it is, and the number of the stop that ends it.
    fn expected_stop(&self) -> Option<(u32, u64)> {
        let rotation = self.rotation.as_ref()?;
        let turn = rotation.current_turn?;
        Some((rotation.job_of(turn)?, rotation.params.first_switch_seq + u64::from(turn)))
    }

    fn jobs(&self) -> impl Iterator<Item = u32> + '_ {
        self.rotation.iter().flat_map(|rotation| rotation.jobs.iter().flatten().copied())
    }

    /// The turn is over: whose is the next, and what it is told. None: it was the last.
    fn next_turn(&mut self) -> Option<(u32, Order)> {
        let rotation = self.rotation.as_mut()?;
        rotation.start_turn(rotation.current_turn? + 1)
    }
}

impl Daemon {
    /// If the job whose turn it is has stopped, the next one runs. True if that was all that its
    /// shepherd has said. The last stop goes up the job's tree, and so does one after which
    /// somebody has to decide: a job may have nothing to do.
    pub fn advance_rotation(&mut self) -> bool {
        let Some((job, switch_seq)) = self.host_rotation.expected_stop() else { return false };
        let Some(host_job) = self.host_jobs.get_mut(&(job, false)) else { return false };
        let Some(OnlyReport(is_only_report)) = host_job.read_rotation_stop(switch_seq) else {
            return false;
        };
        let is_ready = |job| {
            let host_job = self.host_jobs.get(&(job, false));
            host_job.is_some_and(|host_job| {
                host_job.shepherd.is_some() && !host_job.tree_node.is_idle()
            })
        };
        let next = if self.host_rotation.jobs().all(is_ready) {
            self.host_rotation.next_turn()
        } else {
            None
        };
        let registry = self.poll.registry();
        if let Some((next, order)) = next
            && let Some(host_job) = self.host_jobs.get_mut(&(next, false))
            && let Some(shepherd) = &mut host_job.shepherd
        {
            shepherd.queue_order(&order);
            shepherd.flush(registry);
            return is_only_report;
        }
        self.host_rotation.rotation = None;
        let host_job = self.host_jobs.get_mut(&(job, false));
        host_job.into_iter().for_each(|host_job| {
            host_job.tree_node.on_report(SHEPHERD_CHILD, Report::Stopped { switch_seq })
        });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotation_order(index: u8) -> Order {
        let params = job_control::LocalRotation {
            first_switch_seq: 10,
            turn_us: 5000,
            turn_count: 3,
            job_count: 2,
            position: index,
        };
        Order::Run {
            switch_seq: 9,
            idle_check_interval_us: 1500,
            stop_condition: StopCondition::LocalRotation(params),
        }
    }

    fn run_order(switch_seq: u64) -> Order {
        Order::Run {
            switch_seq,
            idle_check_interval_us: 1500,
            stop_condition: StopCondition::After { run_us: 5000, switch_seq },
        }
    }

    fn started_rotation() -> HostRotation {
        let mut host_rotation = HostRotation::default();
        assert_eq!(host_rotation.on_order(7, rotation_order(1)), None);
        assert_eq!(host_rotation.expected_stop(), None, "one is missing");
        assert_eq!(host_rotation.on_order(4, rotation_order(0)), Some((4, run_order(10))));
        host_rotation
    }

    #[test]
    fn jobs_take_turns_in_their_order_until_the_last() {
        let mut host_rotation = started_rotation();
        assert_eq!(host_rotation.expected_stop(), Some((4, 10)));
        assert_eq!(host_rotation.next_turn(), Some((7, run_order(11))));
        assert_eq!(host_rotation.expected_stop(), Some((7, 11)));
        assert_eq!(host_rotation.next_turn(), Some((4, run_order(12))));
        assert_eq!(host_rotation.next_turn(), None);
    }

    #[test]
    fn a_run_or_stop_order_to_one_job_ends_the_rotation() {
        let stop = Order::Stop { switch_seq: 20, is_lasting: false };
        let unlimited_run = Order::Run {
            switch_seq: 20,
            idle_check_interval_us: 0,
            stop_condition: StopCondition::OnOrder,
        };
        for order in [stop.clone(), unlimited_run] {
            let mut host_rotation = started_rotation();
            assert_eq!(host_rotation.on_order(7, order.clone()), Some((7, order)));
            assert_eq!((host_rotation.expected_stop(), host_rotation.next_turn()), (None, None));
            // What is told late has to be told to all.
            assert_eq!(host_rotation.on_order(7, rotation_order(1)), None);
        }
        // Neither what other jobs are told, nor what is no order to stop or run.
        let unchanged = Order::Run {
            switch_seq: 20,
            idle_check_interval_us: 0,
            stop_condition: StopCondition::Unchanged,
        };
        for (job, order) in [(5, stop), (7, unchanged), (7, Order::Drain)] {
            let mut host_rotation = started_rotation();
            assert_eq!(host_rotation.on_order(job, order.clone()), Some((job, order)));
            assert_eq!(host_rotation.expected_stop(), Some((4, 10)));
        }
    }

    #[test]
    fn an_invalid_rotation_is_not_started() {
        for (of, at, turns) in [(0, 0, 9), (2, 2, 9), (255, 1, 9), (1, 0, 0)] {
            let mut host_rotation = HostRotation::default();
            let params = job_control::LocalRotation {
                first_switch_seq: 1,
                turn_us: 1,
                turn_count: turns,
                job_count: of,
                position: at,
            };
            let order = Order::Run {
                switch_seq: 1,
                idle_check_interval_us: 0,
                stop_condition: StopCondition::LocalRotation(params),
            };
            assert_eq!(
                (host_rotation.on_order(1, order), host_rotation.expected_stop()),
                (None, None),
                "{params:?}"
            );
        }
    }
}
