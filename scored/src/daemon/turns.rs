//! Jobs of this host that take turns by themselves, as the gang scheduler has decided for a while
//! ([`crate::gang`], "Turns"). All that is done at the end of a turn is here: nothing is told to
//! anybody but the thread that switches the next job. What is done about a slice otherwise is cold
//! after each, and took longer than the stop.
//!
//! A job runs only when this process has heard that the one before it stands still. Whatever else
//! is ordered to one of them ends the turns of all: what comes later is as without.

use score_proto::order::{self, Order, Report, Until};

use super::Daemon;
use super::member::Alone;
use super::relay::SHEPHERD;

/// More jobs than this are not had to take turns.
const MOST: u8 = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Turns {
    rota: Option<Rota>,
}

#[derive(Debug)]
struct Rota {
    /// By place; none where the order has not come yet.
    jobs: Vec<Option<u32>>,
    pace_us: u32,
    /// As the first job was told it.
    told: order::Turns,
    /// The turn that runs; none before all orders have come.
    turn: Option<u32>,
}

impl Rota {
    fn begin(&mut self, turn: u32) -> Option<(u32, Order)> {
        if turn >= self.told.turns {
            return None;
        }
        let job = self.job_of(turn)?;
        self.turn = Some(turn);
        let switch = self.told.switch.checked_add(turn.into())?;
        let until = Until::Passed { us: self.told.us, switch };
        Some((job, Order::Run { switch, pace_us: self.pace_us, until }))
    }

    fn job_of(&self, turn: u32) -> Option<u32> {
        self.jobs[turn as usize % self.jobs.len()]
    }
}

impl Turns {
    /// An order for a job of this host: what is to be told instead, and whose shepherd.
    pub fn ordered(&mut self, job: u32, order: Order) -> Option<(u32, Order)> {
        match order {
            Order::Run { until: Until::Turns(told), pace_us, .. } => self.join(job, pace_us, told),
            Order::Run { until: Until::Same, .. } => Some((job, order)),
            Order::Run { .. } | Order::Stop { .. } => {
                self.rota.take_if(|rota| rota.jobs.contains(&Some(job)));
                Some((job, order))
            }
            order => Some((job, order)),
        }
    }

    fn join(&mut self, job: u32, pace_us: u32, told: order::Turns) -> Option<(u32, Order)> {
        if told.at >= told.of || told.of > MOST {
            return None;
        }
        let fresh = || Rota { jobs: vec![None; told.of.into()], pace_us, told, turn: None };
        let same = |rota: &Rota| rota.told.switch == told.switch && rota.told.of == told.of;
        let rota = match self.rota.take_if(|rota| same(rota)) {
            Some(rota) => self.rota.insert(rota),
            None => self.rota.insert(fresh()),
        };
        rota.jobs[usize::from(told.at)] = Some(job);
        if rota.turn.is_some() || rota.jobs.contains(&None) {
            return None;
        }
        rota.begin(0)
    }

    /// Whose turn it is, and the number of the stop that ends it.
    fn awaited(&self) -> Option<(u32, u64)> {
        let rota = self.rota.as_ref()?;
        let turn = rota.turn?;
        Some((rota.job_of(turn)?, rota.told.switch + u64::from(turn)))
    }

    fn jobs(&self) -> impl Iterator<Item = u32> + '_ {
        self.rota.iter().flat_map(|rota| rota.jobs.iter().flatten().copied())
    }

    /// The turn is over: whose is the next, and what it is told. None: it was the last.
    fn next(&mut self) -> Option<(u32, Order)> {
        let rota = self.rota.as_mut()?;
        rota.begin(rota.turn? + 1)
    }
}

impl Daemon {
    /// If the job whose turn it is has stopped, the next one runs. True if that was all that its
    /// shepherd has said. The last stop goes up the job's tree, and so does one after which
    /// somebody has to decide: a job may have nothing to do.
    pub fn pass_turn(&mut self) -> bool {
        let Some((job, switch)) = self.turns.awaited() else { return false };
        let Some(member) = self.members.get_mut(&(job, false)) else { return false };
        let Some(Alone(alone)) = member.hear_of_turn(switch) else { return false };
        let is_ready = |job| {
            let member = self.members.get(&(job, false));
            member.is_some_and(|one| one.shepherd.is_some() && !one.relay.is_hushed())
        };
        let next = if self.turns.jobs().all(is_ready) { self.turns.next() } else { None };
        let registry = self.poll.registry();
        if let Some((next, order)) = next
            && let Some(member) = self.members.get_mut(&(next, false))
            && let Some(shepherd) = &mut member.shepherd
        {
            shepherd.order(&order);
            shepherd.flush(registry);
            return alone;
        }
        self.turns.rota = None;
        let member = self.members.get_mut(&(job, false));
        member.into_iter().for_each(|one| one.relay.reported(SHEPHERD, Report::Stopped { switch }));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(at: u8) -> Order {
        let turns = order::Turns { switch: 10, us: 5000, turns: 3, of: 2, at };
        Order::Run { switch: 9, pace_us: 1500, until: Until::Turns(turns) }
    }

    fn run(switch: u64) -> Order {
        Order::Run { switch, pace_us: 1500, until: Until::Passed { us: 5000, switch } }
    }

    fn begun() -> Turns {
        let mut turns = Turns::default();
        assert_eq!(turns.ordered(7, told(1)), None);
        assert_eq!(turns.awaited(), None, "one is missing");
        assert_eq!(turns.ordered(4, told(0)), Some((4, run(10))));
        turns
    }

    #[test]
    fn jobs_take_turns_in_their_order_until_the_last() {
        let mut turns = begun();
        assert_eq!(turns.awaited(), Some((4, 10)));
        assert_eq!(turns.next(), Some((7, run(11))));
        assert_eq!(turns.awaited(), Some((7, 11)));
        assert_eq!(turns.next(), Some((4, run(12))));
        assert_eq!(turns.next(), None);
    }

    #[test]
    fn whatever_is_ordered_to_one_of_them_ends_the_turns() {
        let stop = Order::Stop { switch: 20, lasting: false };
        let alone = Order::Run { switch: 20, pace_us: 0, until: Until::Ordered };
        for order in [stop.clone(), alone] {
            let mut turns = begun();
            assert_eq!(turns.ordered(7, order.clone()), Some((7, order)));
            assert_eq!((turns.awaited(), turns.next()), (None, None));
            // What is told late has to be told to all.
            assert_eq!(turns.ordered(7, told(1)), None);
        }
        // Neither what other jobs are told, nor what is no order to stop or run.
        let pace = Order::Run { switch: 20, pace_us: 0, until: Until::Same };
        for (job, order) in [(5, stop), (7, pace), (7, Order::Drain)] {
            let mut turns = begun();
            assert_eq!(turns.ordered(job, order.clone()), Some((job, order)));
            assert_eq!(turns.awaited(), Some((4, 10)));
        }
    }

    #[test]
    fn turns_that_cannot_be_are_not_begun() {
        for (of, at, turns) in [(0, 0, 9), (2, 2, 9), (255, 1, 9), (1, 0, 0)] {
            let mut all = Turns::default();
            let told = order::Turns { switch: 1, us: 1, turns, of, at };
            let order = Order::Run { switch: 1, pace_us: 0, until: Until::Turns(told) };
            assert_eq!((all.ordered(1, order), all.awaited()), (None, None), "{told:?}");
        }
    }
}
