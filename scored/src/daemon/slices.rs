//! The gang scheduler in the daemon that leads jobs: what jobs and hosts do is told to
//! [`crate::gang`], what that decides goes to the jobs' masters and on down their trees. See
//! docs/time-sharing.md.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_proto::message::{HostSpec, JobSpec, Level};
use score_proto::order::{Turns, Until};
use score_proto::peer::HostId;

use super::jobs::Post;
use super::member::Above;
use super::{Daemon, service};
use crate::cluster::{JobId, Share, Time};
use crate::gang::{self, Gang, Planned, Setting, Tally, Why};
use crate::job::life::{Bid, Event};
use crate::sys::timer::Timer;

/// How long nobody has taken a job's output when it is suspended for that.
const PATIENT: Duration = Duration::from_secs(1);
/// How often it is looked whether all processes of a job are idle, in microseconds, while another
/// waits for its processors: such a job gives up its slice within 2 ms.
const QUICK: u32 = 1500;
/// Names a variable of scored's environment, for tests: the same, always.
const PACE: &str = "SCORE_TEST_PACE";
/// Bounds of the same while nobody waits: a quarter of a slice.
const SLOW: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// Since when a job's output is blocked.
#[derive(Debug, Clone, Copy)]
struct Blocked {
    since: Instant,
    held: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Slices {
    gang: Gang,
    setting: Setting,
    began: Instant,
    timer: Timer,
    /// When the timer runs out.
    set_to: Option<Instant>,
    /// Jobs that run, and how often their processes are looked at.
    running: BTreeMap<JobId, u32>,
    blocked: BTreeMap<JobId, Blocked>,
    /// Jobs that were late, and have been named.
    named: BTreeSet<JobId>,
    bids: VecDeque<(JobId, Bid)>,
    /// See [`PACE`].
    always: Option<u32>,
    /// How long switches have taken.
    pub tally: Tally,
}

impl Slices {
    /// Single-user mode: jobs of one user run side by side, however many.
    ///
    /// # Errors
    /// As timerfd_create(2).
    pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        Ok(Self {
            gang: Gang::new(Setting::default(), BTreeMap::from([(SINGLE, u32::MAX)])),
            setting: Setting::default(),
            began: Instant::now(),
            timer: Timer::new(registry, token)?,
            set_to: None,
            running: BTreeMap::new(),
            blocked: BTreeMap::new(),
            named: BTreeSet::new(),
            bids: VecDeque::new(),
            always: std::env::var(PACE).ok().and_then(|text| text.parse().ok()),
            tally: Tally::default(),
        })
    }

    /// Which jobs have their processors, in ascending order.
    pub fn running(&self) -> impl Iterator<Item = JobId> + '_ {
        self.gang.running()
    }

    /// Whether a job is suspended: by its user, or because nobody takes its output.
    pub fn is_suspended(&self, job: JobId) -> bool {
        self.gang.is_suspended(job)
    }

    fn now(&self) -> Time {
        self.began.elapsed()
    }

    fn pace(&self) -> u32 {
        if let Some(pace) = self.always {
            return pace;
        }
        if self.gang.is_contended() {
            return QUICK;
        }
        let slow = (self.setting.slice / 4).clamp(SLOW[0], SLOW[1]);
        u32::try_from(slow.as_micros()).unwrap_or(u32::MAX)
    }

    /// When there is something to be done without anything happening.
    fn deadline(&self) -> Option<Instant> {
        let gang = self.gang.deadline().map(|due| self.began + due);
        let waiting = self.blocked.values().filter(|one| !one.held);
        waiting.map(|one| one.since + PATIENT).chain(gang).min()
    }

    /// Has the timer run out when it is time.
    pub fn set_timer(&mut self) {
        let due = self.deadline();
        // What has run out is set again, or it would be the same and be left.
        let now = Instant::now();
        if due != self.set_to || due.is_some_and(|due| due <= now) {
            self.timer.set(due.map(|due| due.saturating_duration_since(now)));
            self.set_to = due;
        }
    }

    /// When a job stops again that begins to run.
    fn until(&mut self, job: JobId, stop: Option<Planned>, now: Time) -> Until {
        let Some(Planned { switch, after }) = stop else { return Until::Ordered };
        self.tally.asked(job, switch, now + after);
        Until::Passed { us: u32::try_from(after.as_micros()).unwrap_or(u32::MAX), switch }
    }

    /// What a bid is to the scheduler.
    fn event(
        &mut self,
        job: JobId,
        bid: Bid,
        place: Option<(Vec<Share>, u8)>,
    ) -> Option<gang::Event> {
        Some(match bid {
            Bid::Enter => {
                let (shares, priority) = place?;
                gang::Event::Enter { job, shares, priority }
            }
            Bid::Leave => {
                self.running.remove(&job);
                self.blocked.remove(&job);
                self.named.remove(&job);
                self.tally.gone(job);
                gang::Event::Leave(job)
            }
            Bid::Stopped(switch) => {
                self.running.remove(&job);
                self.tally.stopped(job, switch, self.now());
                gang::Event::Stopped { job, switch }
            }
            Bid::Hold(why) => gang::Event::Hold(job, why),
            Bid::Release(why) => {
                if why == Why::Output {
                    // If it stays blocked that is found anew.
                    self.blocked.remove(&job);
                }
                gang::Event::Release(job, why)
            }
            Bid::Yield => gang::Event::Yield(job),
            Bid::Sleep(seconds) => {
                gang::Event::Sleep(job, self.now() + Duration::from_secs(seconds.into()))
            }
            Bid::Idle => gang::Event::Idle(job),
            Bid::Busy => gang::Event::Busy(job),
        })
    }
}

/// The host of all jobs of single-user mode.
const SINGLE: HostId = 0;

impl Daemon {
    /// Multi-user mode: jobs take turns on hosts with so many slots each.
    pub fn share_slots(&mut self, slots: BTreeMap<HostId, u32>) {
        let setting = self.setting.gang;
        (self.slices.gang, self.slices.setting) = (Gang::new(setting, slots), setting);
    }

    /// Where a job runs, as the gang scheduler sees it.
    pub fn shares(&self, spec: &JobSpec) -> Vec<Share> {
        let Some(service) = &self.service else {
            return vec![Share { host: SINGLE, procs: 1 }];
        };
        let share = |host: &HostSpec| {
            Some(Share { host: service.host_named(&host.name)?, procs: host.procs })
        };
        spec.hosts.iter().filter_map(share).collect()
    }

    /// A job wants something of the gang scheduler: when what its master does now is done.
    pub fn bid(&mut self, job: JobId, bid: Bid) {
        self.slices.bids.push_back((job, bid));
    }

    /// Carries out what jobs wanted.
    pub fn grant_bids(&mut self) {
        while let Some((job, bid)) = self.slices.bids.pop_front() {
            let lead = self.leads.get(&job).filter(|_| bid == Bid::Enter);
            let place = lead.map(|lead| (lead.shares.clone(), lead.priority));
            if let Some(event) = self.slices.event(job, bid, place) {
                self.gang(event);
            }
        }
    }

    /// Everything that is due by the clock, or because output is taken or not.
    pub fn turn_slices(&mut self) {
        self.look_at_outputs();
        if self.slices.gang.deadline().is_some_and(|due| due <= self.slices.now()) {
            self.gang(gang::Event::Tick);
        }
        self.grant_bids();
    }

    fn gang(&mut self, event: gang::Event) {
        let now = self.slices.now();
        let before = self.slices.pace();
        let actions = self.slices.gang.on(event, now);
        let pace_us = self.slices.pace();
        if pace_us != before {
            self.change_pace(pace_us);
        }
        for action in actions {
            match action {
                gang::Action::Stop { job, switch, lasting } => {
                    self.slices.running.remove(&job);
                    self.slices.tally.asked(job, switch, now);
                    self.lead(Some(job), Event::Stop { switch, lasting });
                }
                gang::Action::Run { job, switch, stop } => {
                    self.slices.running.insert(job, pace_us);
                    let until = self.slices.until(job, stop, now);
                    self.lead(Some(job), Event::Run { switch, pace_us, until });
                }
                gang::Action::Turns { jobs, switch, turns, length } => {
                    let of = u8::try_from(jobs.len()).unwrap_or(u8::MAX);
                    let us = u32::try_from(length.as_micros()).unwrap_or(u32::MAX);
                    for (job, at) in jobs.into_iter().zip(0..) {
                        let until = Until::Turns(Turns { switch, us, turns, of, at });
                        self.slices.running.insert(job, pace_us);
                        self.lead(Some(job), Event::Run { switch, pace_us, until });
                    }
                }
                gang::Action::Turned { jobs, turns, since } => {
                    jobs.iter().for_each(|job| _ = self.slices.running.remove(job));
                    self.slices.tally.turned(turns);
                    self.note_turns(&jobs, turns, self.slices.began + since);
                }
                gang::Action::Held(job) => self.lead(Some(job), Event::Held),
                gang::Action::Late(job) => self.name_late(job),
                gang::Action::Row(_) => {}
            }
        }
        self.note_row();
    }

    /// Somebody waits for processors, or nobody does any more: those that run are looked at more
    /// often, or less.
    fn change_pace(&mut self, pace_us: u32) {
        for job in self.slices.running.keys().copied().collect::<Vec<_>>() {
            let switch = self.slices.gang.number();
            self.lead(Some(job), Event::Run { switch, pace_us, until: Until::Same });
        }
    }

    /// Some host has not stopped a job in time.
    fn name_late(&mut self, job: JobId) {
        if !self.slices.named.insert(job) {
            return;
        }
        let posts: [Post; 2] = [(job, true), (job, false)];
        let mut members = posts.iter().filter_map(|post| self.members.get(post));
        let Some(root) = members.find(|one| one.above == Above::Master) else { return };
        let names = root.relay.placement();
        let name = |range: std::ops::Range<u32>| {
            let first = names.hosts.get(range.start as usize).map_or("?", |place| &place.name);
            match range.len() {
                1 => first.to_owned(),
                more => format!("{first} or one of {} hosts below it", more - 1),
            }
        };
        let hosts: Vec<String> = root.relay.moving().map(name).collect();
        let text = format!(
            "job {job} has not been stopped within {} s on host {}: it runs on, and others wait \
             for its processors",
            self.slices.setting.patience.as_secs(),
            hosts.join(", ")
        );
        if self.service.is_some() {
            service::warn(&text);
        }
        if let Some(lane) = self.leads.get(&job).map(|lead| lead.lane) {
            self.notice(lane, Level::Warning, text);
        }
    }

    /// Suspends jobs whose output nobody takes, and resumes those where somebody does again.
    fn look_at_outputs(&mut self) {
        let now = Instant::now();
        for job in self.leads.keys().copied().collect::<Vec<_>>() {
            let posts: [Post; 2] = [(job, true), (job, false)];
            let mut members = posts.iter().filter_map(|post| self.members.get(post));
            let root = members.find(|one| one.above == Above::Master);
            let is_blocked = root.is_some_and(|root| root.relay.is_blocked());
            let blocked = self.slices.blocked.get(&job).copied();
            match blocked {
                None if is_blocked => {
                    self.slices.blocked.insert(job, Blocked { since: now, held: false });
                }
                Some(Blocked { since, held: false }) if is_blocked && since + PATIENT <= now => {
                    self.slices.blocked.insert(job, Blocked { since, held: true });
                    self.bid(job, Bid::Hold(Why::Output));
                }
                Some(Blocked { held, .. }) if !is_blocked => {
                    self.slices.blocked.remove(&job);
                    if held {
                        self.bid(job, Bid::Release(Why::Output));
                    }
                }
                _ => {}
            }
        }
    }
}
