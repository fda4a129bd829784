//! Figures of jobs for those who have the page open: only of the jobs that they may see, and only
//! as long as they ask.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use score_monitor::{Kind, Process, View};
use score_proto::sight::Figures;

use super::super::Daemon;
use super::Role;
use crate::cluster::{JobId, Time};
use crate::job::life::Event;
use crate::job::watchers::Watcher;
use crate::page::view::Shares;

/// How often figures come.
const PERIOD: Duration = Duration::from_secs(1);
/// Means that are kept: of a minute.
const TREND: usize = 60;

/// A job that somebody watches by the page.
#[derive(Debug, Default)]
pub struct Seen {
    /// Its processes.
    pub view: View,
    /// Their means, the oldest first.
    pub trend: VecDeque<Shares>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Watched {
    jobs: BTreeMap<JobId, Seen>,
    /// Until when whom figures are kept for.
    readers: BTreeMap<u32, Time>,
    /// When it is looked again whose jobs are there.
    due: Time,
}

impl Watched {
    /// A user has asked, and asks again within so long.
    pub fn asked(&mut self, uid: u32, now: Time, again: Duration) {
        let until = now + again;
        let known = self.readers.insert(uid, until);
        match known {
            Some(later) if later > until => _ = self.readers.insert(uid, later),
            Some(_) => {}
            // Whoever comes sees something soon.
            None => self.due = now,
        }
    }

    /// What is known of a job.
    pub fn of(&self, job: JobId) -> Option<&Seen> {
        self.jobs.get(&job)
    }

    /// How long nothing has to be done.
    pub fn deadline(&self, now: Time) -> Option<Duration> {
        let idle = self.readers.is_empty() && self.jobs.is_empty();
        (!idle).then(|| self.due.saturating_sub(now))
    }

    /// Figures have come.
    pub fn take(&mut self, job: JobId, figures: &Figures, now: Time) {
        self.jobs.get_mut(&job).into_iter().for_each(|seen| seen.view.take(figures, now));
    }

    /// Forgets readers that have gone, and notes the last period.
    fn tick(&mut self, now: Time) {
        self.due = now + PERIOD;
        self.readers.retain(|_, until| *until > now);
        for seen in self.jobs.values_mut() {
            seen.view.forget(now, PERIOD);
            seen.note();
        }
    }

    /// These are to be watched: those that are not yet, and those that are no longer to be.
    fn change(&mut self, wanted: &BTreeSet<JobId>) -> (Vec<JobId>, Vec<JobId>) {
        let new: Vec<_> =
            wanted.iter().copied().filter(|job| !self.jobs.contains_key(job)).collect();
        let old: Vec<_> = self.jobs.keys().copied().filter(|job| !wanted.contains(job)).collect();
        old.iter().for_each(|job| _ = self.jobs.remove(job));
        new.iter().for_each(|job| _ = self.jobs.insert(*job, Seen::default()));
        (new, old)
    }
}

impl Seen {
    /// The bars of a process.
    pub fn shares(&self, process: &Process) -> Shares {
        Kind::ALL.map(|kind| permille(self.view.share(process, kind)))
    }

    fn note(&mut self) {
        let processes = self.view.processes();
        let count = u32::try_from(processes.len()).unwrap_or(u32::MAX);
        if count == 0 {
            return;
        }
        let mut sums = [0u32; Kind::ALL.len()];
        for process in &processes {
            let shares = self.shares(process);
            sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += u32::from(share));
        }
        if self.trend.len() == TREND {
            self.trend.pop_front();
        }
        self.trend.push_back(sums.map(|sum| u16::try_from(sum / count).unwrap_or(1000)));
    }
}

fn permille(share: f32) -> u16 {
    (share.clamp(0.0, 1.0) * 1000.0).round() as u16
}

impl Daemon {
    /// Has the figures told of the jobs that readers of the page may see, and of no others.
    pub fn watch_for_page(&mut self) {
        let Some(service) = &mut self.service else { return };
        let now = service.now();
        let Role::Server(cluster) = &service.role else { return };
        let Some(page) = &mut service.page else { return };
        if page.watched.deadline(now) != Some(Duration::ZERO) {
            return;
        }
        page.watched.tick(now);
        let readers = &page.watched.readers;
        let all = readers.keys().any(|uid| cluster.is_operator(*uid));
        let led = cluster.list().filter(|job| self.leads.contains_key(&job.job));
        let seen = led.filter(|job| all || readers.contains_key(&job.uid));
        let wanted: BTreeSet<JobId> = seen.map(|job| job.job).collect();
        let (new, old) = page.watched.change(&wanted);
        let period_ms = u32::try_from(PERIOD.as_millis()).unwrap_or(u32::MAX);
        for (jobs, period_ms) in [(new, period_ms), (old, 0)] {
            for job in jobs {
                self.lead(Some(job), Event::Watch(Watcher::Page, period_ms));
            }
        }
    }

    /// Figures for readers of the page.
    pub fn show_on_page(&mut self, job: JobId, figures: &Figures) {
        let Some(service) = &mut self.service else { return };
        let now = service.now();
        service.page.iter_mut().for_each(|page| page.watched.take(job, figures, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::sight::NodeFigures;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    #[test]
    fn jobs_are_watched_as_long_as_somebody_reads() {
        let mut watched = Watched::default();
        assert_eq!(watched.deadline(at(5)), None);
        watched.asked(1000, at(5), at(5));
        assert_eq!(watched.deadline(at(5)), Some(Duration::ZERO));
        watched.tick(at(5));
        assert_eq!(watched.change(&BTreeSet::from([3, 4])), (vec![3, 4], vec![]));
        assert_eq!(watched.change(&BTreeSet::from([4, 5])), (vec![5], vec![3]));
        assert_eq!(watched.deadline(at(5)), Some(PERIOD));
        // A scraper asks rarely, the page often: the longer time counts.
        watched.asked(1000, at(6), at(60));
        watched.asked(1000, at(7), at(5));
        watched.tick(at(65));
        assert_eq!(watched.readers.len(), 1);
        watched.tick(at(66));
        assert!(watched.readers.is_empty() && watched.deadline(at(66)).is_some());
        assert_eq!(watched.change(&BTreeSet::new()), (vec![], vec![4, 5]));
        assert_eq!(watched.deadline(at(67)), None);
    }

    #[test]
    fn the_trend_is_the_mean_of_all_processes_of_a_minute() {
        let mut watched = Watched::default();
        watched.change(&BTreeSet::from([3]));
        let second = 1_000_000_000;
        for now in 1..=70 {
            let node = |node: u32, busy_ns| NodeFigures {
                node,
                at_ns: now * second,
                watched_ns: now * second,
                busy_ns,
                ..NodeFigures::default()
            };
            let nodes = vec![node(0, 0), node(1, now * second)];
            watched.take(3, &Figures { hosts: Vec::new(), nodes }, at(now));
            watched.take(4, &Figures::default(), at(now));
            watched.tick(at(now));
        }
        let seen = watched.of(3).unwrap();
        assert_eq!((seen.trend.len(), seen.trend[59][0]), (TREND, 500));
        assert!(watched.of(4).is_none());
    }
}
