//! The simulated daemons: they carry out the effects of their [`Jobs`].

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use score_proto::ids::{HostId, JobId};
use score_proto::job_control::{HostPlacement, JobOrder, Placement, Remains, ShepherdOrder};
use score_proto::peer_message::{Incarnation, JobIncarnation};

use super::shepherd::Shepherd;
use super::{Event, MonotonicTime, SERVER_HOST, SLOTS, World};
use crate::gang::GangConfig;
use crate::jobs::{Effect, HostIdentity, Input, Jobs, LinkId, LocalReport};

/// The shortest time to the next tick.
const MIN_TICK_DELAY: Duration = Duration::from_micros(100);
const SLICE_WINDOW: Duration = Duration::from_millis(40);

pub struct Host {
    index: usize,
    pub jobs: Jobs,
    pub incarnation: u64,
    /// The next tick that is scheduled.
    pub tick_at: Option<MonotonicTime>,
    pub shepherds: BTreeMap<JobId, Shepherd>,
}

fn name_of(index: usize) -> String {
    format!("h{index}")
}

impl Host {
    pub fn new(index: usize) -> Self {
        let jobs = Jobs::new(None);
        let mut host =
            Self { index, jobs, incarnation: 0, tick_at: None, shepherds: BTreeMap::new() };
        host.restart();
        host
    }

    /// The daemon and its jobs have died. Another daemon starts in its place.
    pub fn restart(&mut self) {
        self.incarnation += 1;
        self.jobs = Jobs::new(None);
        let (name, incarnation) = (name_of(self.index), Incarnation(self.incarnation));
        self.jobs.set_identity(HostIdentity { name, incarnation });
        self.tick_at = None;
        self.shepherds.clear();
    }

    /// Makes this host the server of this many hosts.
    pub fn lead(&mut self, host_count: usize) {
        let config = GangConfig { slice: SLICE_WINDOW, ..GangConfig::default() };
        self.jobs
            .set_gang(config, (0..host_count as u32).map(|host| (HostId(host), SLOTS)).collect());
    }
}

impl World {
    /// A placement on these hosts, with these numbers of processes.
    pub fn placement(&mut self, shares: &[(usize, u32)]) -> Placement {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let hosts = shares.iter().map(|(host, procs)| {
            (name_of(*host), Some((address, Incarnation(self.hosts[*host].incarnation))), *procs)
        });
        Placement::new(JobIncarnation(u64::from(self.next_job.0) << 32), hosts.collect::<Vec<_>>())
    }

    /// Carries out the effects of a daemon until there are none.
    pub fn settle(&mut self, host: usize) {
        loop {
            let effects = self.hosts[host].jobs.take_effects(self.now);
            if effects.is_empty() {
                break;
            }
            effects.into_iter().for_each(|effect| self.carry_out(host, effect));
        }
        let Host { jobs, tick_at, incarnation, .. } = &mut self.hosts[host];
        let deadlines = [jobs.gang().deadline(), jobs.deadline()];
        let Some(due) = deadlines.into_iter().flatten().min() else { return };
        let due = due.max(self.now + MIN_TICK_DELAY);
        if tick_at.is_none_or(|tick_at| due < tick_at) {
            *tick_at = Some(due);
            let tick = Event::Tick(host, *incarnation);
            self.at(due - self.now, tick);
        }
    }

    fn carry_out(&mut self, host: usize, effect: Effect) {
        match effect {
            Effect::ToClient(job, _, message) => self.on_client_message(job, message),
            Effect::Connect(connection, placement) => {
                let result = Ok(self.connect(host, &placement));
                self.hosts[host].jobs.on(Input::Connected { connection, result }, self.now);
            }
            Effect::SendOrder(link, tag, order) => {
                let arrival = self.now + self.short_delay();
                if let Some((to, arrival)) = self.links.send(link, host, arrival) {
                    self.at(arrival - self.now, Event::Order(link, to, tag, order));
                }
            }
            Effect::SendReport(link, tag, report) => {
                let arrival = self.now + self.short_delay();
                if let Some((to, arrival)) = self.links.send(link, host, arrival) {
                    self.at(arrival - self.now, Event::Report(link, to, tag, report));
                }
            }
            Effect::Launch(launch) => self.launch(host, &launch),
            Effect::ToShepherd(job, order) => match self.hosts[host].shepherds.contains_key(&job) {
                true => self.on_shepherd_order(host, job, order),
                // The job ends before it has begun on this host.
                false if order == ShepherdOrder::Job(JobOrder::Finish) => {
                    let closed = Input::Local(job, LocalReport::Closed);
                    self.hosts[host].jobs.on(closed, self.now);
                }
                false => {}
            },
            Effect::ToSwitchThread(job, order) => self.on_switch_order(host, job, order),
            Effect::AbortHere(job) => _ = self.hosts[host].shepherds.remove(&job),
            Effect::EndedHere(job) => {
                let shepherd = self.hosts[host].shepherds.remove(&job);
                assert!(shepherd.is_none_or(|one| one.has_ended()), "{job} is left on {host}");
            }
            Effect::Finished(job, _) => {
                let user_job = self.jobs.get(&job);
                assert!(user_job.is_some_and(|one| one.code.is_some()), "nobody knows of {job}");
                // Now the server gives the slots of these hosts to other jobs.
                for host in user_job.iter().flat_map(|one| &one.hosts) {
                    let shepherd = self.hosts[*host].shepherds.get(&job);
                    let is_over = shepherd.is_none_or(|one| one.has_ended());
                    assert!(is_over || self.lost_hosts.contains(&(job, *host)), "{job} on {host}");
                }
            }
            Effect::HostsLost(lost) if lost.remains == Remains::Processes => {
                let hosts = &self.jobs[&lost.job].hosts;
                let hosts = lost.hosts.map(|index| (lost.job, hosts[index as usize]));
                self.lost_hosts.extend(hosts);
            }
            Effect::RowStarted => self.counts.switches += 1,
            Effect::ToSession(..)
            | Effect::RefuseSession(..)
            | Effect::PageMetrics(..)
            | Effect::PageStacks(..)
            | Effect::HostsLost(_)
            | Effect::RemoveDirectories(_)
            | Effect::StopTimedOut(..)
            | Effect::Rotated(..) => {}
        }
    }

    fn connect(&mut self, from: usize, placement: &HostPlacement) -> LinkId {
        let to = placement.name[1..].parse().unwrap();
        self.links.connect(from, to)
    }

    /// Causes a fault: a daemon dies, a link is lost, or a shepherd dies.
    pub fn fault(&mut self) {
        self.counts.faults += 1;
        let host = self.random.below(self.hosts.len() as u64) as usize;
        match self.random.below(3) {
            0 => {
                let links = self.links.of_host(host);
                let index = self.random.below(links.len() as u64) as usize;
                links.get(index).into_iter().for_each(|link| self.lose_link(*link));
            }
            1 => self.restart(host),
            _ => {
                let jobs: Vec<JobId> = self.hosts[host].shepherds.keys().copied().collect();
                let index = self.random.below(jobs.len() as u64) as usize;
                let Some(job) = jobs.get(index).copied() else { return };
                self.mark_faulted(|user_job| user_job.job == job);
                self.kill_shepherd(host, job);
            }
        }
    }

    fn lose_link(&mut self, link: LinkId) {
        let ends = self.links.lose(link);
        self.mark_users_of(ends);
        for end in ends {
            let delay = self.random.time(0, 400);
            self.at(delay, Event::LinkLost(link, end));
        }
    }

    /// Marks the jobs that may use a link with these ends as faulted.
    pub fn mark_users_of(&mut self, ends: [usize; 2]) {
        let may_use = |hosts: &[usize], end| end == SERVER_HOST || hosts.contains(&end);
        self.mark_faulted(|user_job| ends.iter().all(|end| may_use(&user_job.hosts, *end)));
    }

    fn restart(&mut self, host: usize) {
        self.mark_faulted(|user_job| host == SERVER_HOST || user_job.hosts.contains(&host));
        for link in self.links.of_host(host) {
            self.links.notice_loss(link, host);
            self.lose_link(link);
        }
        self.hosts[host].restart();
        if host == SERVER_HOST {
            let host_count = self.hosts.len();
            self.hosts[host].lead(host_count);
            self.lose_all_sessions();
        }
    }
}
