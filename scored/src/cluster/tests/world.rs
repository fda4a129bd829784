//! A simulated cluster: real machines, a network that delays, loses, repeats and breaks, hosts
//! that die, hang and come back, users that submit; and what must hold at every step.
//!
//! Jobs are carried out by a small stand-in for the daemons' loop: the server tells each host of a
//! job to start or to kill its share; a host whose link to the server breaks kills what it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use score_proto::nodeset::NodeSet;
use score_proto::peer::{HostId, Incarnation, Peer, SERVER};

use crate::cluster::member::{self, Member};
use crate::cluster::{
    Cluster, Event, HostSetting, JobId, Limits, SessionId, Setting, Share, Time, Times,
};

mod shell;

pub const TIMES: Times = Times {
    silence: Duration::from_secs(10),
    grace: Duration::from_secs(2),
    cleanup: Duration::from_secs(5),
    merge: Duration::from_millis(3),
};
/// Within this time a host that went for good is given up, and its jobs are over.
pub const LIMIT: Time = Time::from_secs(2 * 10 + 2 + 1);
/// Bytes of each host.
pub const MEMORY: u64 = 100;
/// A dial that gets no answer.
const DIAL: Time = Time::from_secs(3);

/// Numbers that look random and depend on the seed alone.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn time(&mut self, from_ms: u64, to_ms: u64) -> Time {
        Time::from_millis(from_ms + self.below(to_ms - from_ms + 1))
    }
}

#[derive(Debug, Clone)]
pub enum Message {
    Peer(Peer),
    Start {
        job: JobId,
        incarnation: Incarnation,
        share: u32,
        procs: u32,
        length: Time,
    },
    Kill {
        job: JobId,
        share: u32,
    },
    /// The host holds nothing of this share.
    Free {
        job: JobId,
        share: u32,
        ran: bool,
    },
}

#[derive(Debug, Clone)]
pub enum Thing {
    Deliver {
        from: HostId,
        to: HostId,
        link: u64,
        life: u64,
        message: Message,
    },
    Unlinked {
        at: HostId,
        peer: HostId,
        life: u64,
        reason: &'static str,
    },
    Silence {
        pair: (HostId, HostId),
        link: u64,
    },
    Tick {
        host: HostId,
        life: u64,
    },
    ShareOver {
        host: HostId,
        life: u64,
        job: JobId,
    },
    Cleaned {
        host: HostId,
        life: u64,
    },
    KillAgain {
        job: JobId,
        life: u64,
    },
    /// A fault that began `since` then must be known by now.
    Check {
        host: HostId,
        incarnation: Incarnation,
        life: u64,
        since: Option<Time>,
    },
}

struct Link {
    id: u64,
    /// Since when one end does not hear the other.
    bad: Option<Time>,
    /// When the last message of each direction arrives.
    last: [Time; 2],
    /// What waits for a network that is cut.
    stuck: Vec<Thing>,
}

struct Run {
    share: u32,
    procs: u32,
    killed: bool,
}

pub struct Host {
    pub alive: bool,
    /// Nothing answers there, not even a refusal.
    off: bool,
    pub stopped: bool,
    /// Hosts of one group reach each other.
    pub group: u8,
    pub slow: Time,
    /// Counts the daemons that ran here.
    pub life: u64,
    pub member: Option<Member>,
    runs: BTreeMap<JobId, Run>,
    /// What came while it was stopped.
    held: Vec<Thing>,
    /// When a fault has touched it last; `Time::MAX` while one does.
    pub touched: Time,
    /// Since when it is stopped or cut off.
    away: Option<Time>,
    ticking: Time,
}

impl Host {
    /// Whether it runs nothing.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// What the server's loop keeps of a job.
struct Master {
    shares: Vec<Share>,
    free: NodeSet,
    killing: bool,
    finished: bool,
}

/// What a user has seen of a submission.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub since: Time,
    pub queued: bool,
    pub started: Option<Time>,
    pub refused: bool,
    pub ended: bool,
    /// The server died, or the user went.
    pub dropped: bool,
}

/// What has happened, so that a test can see that it tests something.
#[derive(Debug, Default)]
pub struct Tally {
    pub started: u64,
    pub done: u64,
    pub blamed: u64,
    pub refused: u64,
    pub given_up: u64,
    pub cleaned: u64,
}

pub struct World {
    pub now: Time,
    pub random: Random,
    count: u64,
    queue: BTreeMap<(Time, u64), Thing>,
    links: BTreeMap<(HostId, HostId), Link>,
    pub hosts: Vec<Host>,
    pub server: Option<Cluster>,
    masters: BTreeMap<JobId, Master>,
    setting: Setting,
    pub seen: BTreeMap<(SessionId, u64), Seen>,
    pub sessions: BTreeSet<SessionId>,
    /// Percent of the messages of membership that come a second time, later.
    pub repeats: u64,
    /// When a fault must be known.
    pub limit: Time,
    pub heard_by_server: u64,
    pub lines: Vec<String>,
    /// Why hosts were given up.
    pub given_up: Vec<String>,
    pub tally: Tally,
    pub verbose: bool,
}

fn pair(one: HostId, two: HostId) -> (HostId, HostId) {
    (one.min(two), one.max(two))
}

impl World {
    pub fn new(hosts: u32, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let host = |number: u32| HostSetting {
            name: format!("c{number}"),
            slots: if number == 0 { 0 } else { 1 + random.below(8) as u32 },
            spare_for: match number > 2 && random.chance(5) {
                true => NodeSet::from(0..number),
                false => NodeSet::new(),
            },
            defect: false,
        };
        let setting = Setting {
            server: 1,
            hosts: (0..hosts).map(host).collect(),
            times: TIMES,
            first_job: 1,
            rows: 1 + random.below(4) as u32,
            memory: MEMORY,
            oversubscribe: false,
            operators: Vec::new(),
            limits: Limits { queued_of_user: 40, queued: 100, ..Limits::default() },
        };
        let empty = || Host {
            alive: false,
            off: false,
            stopped: false,
            group: 0,
            slow: Time::ZERO,
            life: 0,
            member: None,
            runs: BTreeMap::new(),
            held: Vec::new(),
            touched: Time::ZERO,
            away: None,
            ticking: Time::MAX,
        };
        Self {
            now: Time::ZERO,
            random,
            count: 10,
            queue: BTreeMap::new(),
            links: BTreeMap::new(),
            hosts: (0..hosts).map(|_| empty()).collect(),
            server: None,
            masters: BTreeMap::new(),
            setting,
            seen: BTreeMap::new(),
            sessions: BTreeSet::new(),
            repeats: 0,
            limit: LIMIT,
            heard_by_server: 0,
            lines: Vec::new(),
            given_up: Vec::new(),
            tally: Tally::default(),
            verbose: std::env::var_os("SCORE_SIM_TRACE").is_some(),
        }
    }

    fn unique(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn trace(&mut self, line: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{:9.3} {}", self.now.as_secs_f64(), line());
        }
    }

    fn at(&mut self, when: Time, thing: Thing) {
        let number = self.unique();
        self.queue.insert((when, number), thing);
    }

    // Hosts and faults.

    pub fn start_server(&mut self) {
        self.setting.server = self.unique();
        self.setting.first_job += 1000;
        self.hosts[0].alive = true;
        (self.hosts[0].life, self.hosts[0].off) = (self.hosts[0].life + 1, false);
        self.hosts[0].ticking = Time::MAX;
        self.server = Some(Cluster::new(self.setting.clone(), self.now));
        self.trace(|| "server starts".to_owned());
        self.tick_later(SERVER);
    }

    pub fn start_daemon(&mut self, host: HostId, place: Option<(HostId, HostId)>) {
        let incarnation = self.unique();
        let setting = member::Setting {
            name: format!("c{host}"),
            incarnation,
            address: "127.0.0.1:9".parse().unwrap(),
            memory: MEMORY,
            place,
            times: TIMES,
        };
        let found = &mut self.hosts[host as usize];
        (found.alive, found.stopped, found.life) = (true, false, found.life + 1);
        found.off = false;
        found.member = Some(Member::new(setting, self.now));
        found.ticking = Time::MAX;
        if found.group == 0 && found.touched == Time::MAX {
            found.touched = self.now;
        }
        if found.group != 0 {
            found.away = Some(self.now);
        }
        self.trace(|| format!("c{host} starts as {incarnation}"));
        self.drive(host, member::Event::Tick);
    }

    /// The process dies; `power`: the whole host, and nobody is told.
    pub fn kill(&mut self, host: HostId, power: bool) {
        self.trace(|| format!("c{host} dies, power {power}"));
        self.expect_given_up(host, None);
        let found = &mut self.hosts[host as usize];
        (found.alive, found.stopped, found.touched) = (false, false, Time::MAX);
        (found.life, found.away, found.off) = (found.life + 1, None, power);
        found.member = None;
        found.runs.clear();
        found.held.clear();
        if host == SERVER {
            self.server = None;
            self.masters.clear();
            self.sessions.clear();
            self.seen.values_mut().for_each(|seen| seen.dropped = true);
        }
        for pair in self.pairs_of(host) {
            let other = if pair.0 == host { pair.1 } else { pair.0 };
            let reached = self.hosts[other as usize].group == self.hosts[host as usize].group;
            let link = self.links.remove(&pair).unwrap();
            let since = link.bad.unwrap_or(self.now);
            let when = if power || !reached {
                since + TIMES.silence
            } else {
                self.now + Time::from_millis(1)
            };
            let reason = if power { "nothing was heard from it" } else { "closed" };
            self.unlink(other, host, when.max(self.now), reason);
        }
    }

    /// The incarnation that is there now must be given up in time, unless the fault that begins
    /// now ends before.
    fn expect_given_up(&mut self, host: HostId, since: Option<Time>) {
        if let Some(member) = &self.hosts[host as usize].member {
            let (incarnation, life) = (member.incarnation(), self.hosts[0].life);
            self.at(self.now + self.limit, Thing::Check { host, incarnation, life, since });
        }
    }

    pub fn stop(&mut self, host: HostId, stopped: bool) {
        if !self.hosts[host as usize].alive || self.hosts[host as usize].stopped == stopped {
            return;
        }
        self.trace(|| format!("c{host} stopped {stopped}"));
        let touched = if stopped { Time::MAX } else { self.now };
        let found = &mut self.hosts[host as usize];
        (found.stopped, found.touched) = (stopped, touched);
        self.away(host, stopped);
        let found = &mut self.hosts[host as usize];
        if !stopped {
            for thing in std::mem::take(&mut found.held) {
                self.at(self.now, thing);
            }
            self.tick_later(host);
        }
        self.judge_links();
    }

    pub fn cut(&mut self, host: HostId, group: u8) {
        self.trace(|| format!("c{host} in group {group}"));
        let found = &mut self.hosts[host as usize];
        found.group = group;
        found.touched = if group == 0 { self.now } else { Time::MAX };
        self.away(host, group != 0);
        self.judge_links();
    }

    fn away(&mut self, host: HostId, away: bool) {
        if host == SERVER {
            // Then every host is out of reach.
            let touched = if away { Time::MAX } else { self.now };
            self.hosts.iter_mut().for_each(|host| host.touched = touched);
            return;
        }
        let since = away.then_some(self.now);
        self.hosts[host as usize].away = since;
        if since.is_some() {
            self.expect_given_up(host, since);
        }
    }

    fn hears(&self, (one, two): (HostId, HostId)) -> bool {
        let (one, two) = (&self.hosts[one as usize], &self.hosts[two as usize]);
        one.group == two.group && !one.stopped && !two.stopped
    }

    fn judge_links(&mut self) {
        for pair in self.links.keys().copied().collect::<Vec<_>>() {
            let (hears, now) = (self.hears(pair), self.now);
            let link = self.links.get_mut(&pair).unwrap();
            match (hears, link.bad) {
                (false, None) => {
                    link.bad = Some(now);
                    let link = link.id;
                    self.at(now + TIMES.silence, Thing::Silence { pair, link });
                }
                (true, Some(_)) => {
                    link.bad = None;
                    for thing in std::mem::take(&mut link.stuck) {
                        self.at(now, thing);
                    }
                }
                _ => {}
            }
        }
    }

    fn pairs_of(&self, host: HostId) -> Vec<(HostId, HostId)> {
        self.links.keys().copied().filter(|pair| pair.0 == host || pair.1 == host).collect()
    }

    fn unlink(&mut self, at: HostId, peer: HostId, when: Time, reason: &'static str) {
        let life = self.hosts[at as usize].life;
        self.at(when, Thing::Unlinked { at, peer, life, reason });
    }

    // Messages.

    fn send(&mut self, from: HostId, to: HostId, message: Message) {
        let (one, two) = (&self.hosts[from as usize], &self.hosts[to as usize]);
        let latency = Time::from_micros(100 + self.random.below(900)) + one.slow + two.slow;
        let key = pair(from, to);
        if !self.links.contains_key(&key) {
            if !two.alive && !two.off && one.group == two.group {
                return self.unlink(from, to, self.now + latency, "refused");
            } else if !two.alive || !self.hears(key) {
                return self.unlink(from, to, self.now + DIAL, "no answer");
            }
            let id = self.unique();
            let last = [self.now + latency; 2];
            self.links.insert(key, Link { id, bad: None, last, stuck: Vec::new() });
        }
        let life = self.hosts[to as usize].life;
        let repeat = self.random.chance(self.repeats);
        let late = self.now + self.random.time(1, 5000);
        let link = self.links.get_mut(&key).unwrap();
        let last = &mut link.last[usize::from(from < to)];
        *last = (self.now + latency).max(*last);
        let (when, link) = (*last, link.id);
        let thing = Thing::Deliver { from, to, link, life, message: message.clone() };
        self.at(when, thing);
        if repeat && matches!(message, Message::Peer(_)) {
            // Link 0: it comes whatever has become of its link.
            self.at(late, Thing::Deliver { from, to, link: 0, life, message });
        }
    }

    fn deliver(&mut self, from: HostId, to: HostId, message: Message) {
        self.trace(|| format!("c{from} -> c{to} {message:?}"));
        match message {
            Message::Peer(message) if to == SERVER => {
                self.heard_by_server += 1;
                self.serve(Event::Heard { from, message });
            }
            Message::Peer(message) => self.drive(to, member::Event::Heard { from, message }),
            Message::Free { job, share, ran } => self.share_is_free(from, job, share, ran),
            Message::Start { job, incarnation, share, procs, length } => {
                self.start_share(to, (job, share, procs), incarnation, length);
            }
            Message::Kill { job, share } => match self.hosts[to as usize].runs.get_mut(&job) {
                Some(run) if !run.killed => {
                    run.killed = true;
                    let slow = self.random.chance(3);
                    let pause = Time::from_millis(if slow { 8000 } else { 20 });
                    let life = self.hosts[to as usize].life;
                    self.at(self.now + pause, Thing::ShareOver { host: to, life, job });
                }
                Some(_) => {}
                None => self.send(to, SERVER, Message::Free { job, share, ran: true }),
            },
        }
    }

    fn drive(&mut self, host: HostId, event: member::Event) {
        if let member::Event::Unlinked { host: SERVER, .. } = event {
            self.kill_all(host);
        }
        let now = self.now;
        let Some(member) = &mut self.hosts[host as usize].member else { return };
        for action in member.on(event, now) {
            match action {
                member::Action::Send { to, message } => self.send(host, to, Message::Peer(message)),
                member::Action::Clean { reason } => {
                    self.trace(|| format!("c{host} cleans up: {reason}"));
                    self.kill_all(host);
                    let life = self.hosts[host as usize].life;
                    let pause = self.random.time(21, 500);
                    self.at(now + pause, Thing::Cleaned { host, life });
                }
                member::Action::Book { .. } => {}
                member::Action::Log(line) => self.lines.push(line),
            }
        }
        self.tick_later(host);
    }

    fn tick_later(&mut self, host: HostId) {
        let found = &self.hosts[host as usize];
        let deadline = match (host, &self.server, &found.member) {
            (SERVER, Some(server), _) => server.deadline(),
            (_, _, Some(member)) => member.deadline(),
            _ => return,
        };
        if deadline < found.ticking || found.ticking < self.now {
            let life = found.life;
            self.hosts[host as usize].ticking = deadline.max(self.now);
            self.at(deadline.max(self.now), Thing::Tick { host, life });
        }
    }

    // Time.

    pub fn run_until(&mut self, end: Time) {
        let mut steps = 0u64;
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((when, _), thing) = entry.remove_entry();
            self.now = when;
            self.happen(thing);
            steps += 1;
            assert!(steps < 3_000_000, "the world does not come to rest");
        }
        self.now = end;
    }

    fn happen(&mut self, thing: Thing) {
        let (host, life) = match &thing {
            Thing::Deliver { to, life, .. } => (*to, *life),
            Thing::Unlinked { at, life, .. } => (*at, *life),
            Thing::Tick { host, life }
            | Thing::ShareOver { host, life, .. }
            | Thing::Cleaned { host, life } => (*host, *life),
            Thing::KillAgain { life, .. } | Thing::Check { life, .. } => (SERVER, *life),
            Thing::Silence { pair, link } => return self.silence(*pair, *link),
        };
        let found = &mut self.hosts[host as usize];
        if found.life != life || !found.alive {
            return;
        }
        if found.stopped && !matches!(thing, Thing::Check { .. }) {
            return found.held.push(thing);
        }
        match thing {
            Thing::Deliver { from, to, link, ref message, .. } => {
                let hears = self.hears(pair(from, to));
                let known = self.links.get_mut(&pair(from, to));
                match known.filter(|known| known.id == link) {
                    Some(known) if known.bad.is_some() => known.stuck.push(thing),
                    None if link != 0 || !hears => {}
                    _ => {
                        let message = message.clone();
                        self.deliver(from, to, message);
                    }
                }
            }
            Thing::Unlinked { at, peer, reason, .. } => {
                if self.links.contains_key(&pair(at, peer)) {
                    return;
                }
                self.trace(|| format!("c{at} has lost its link to c{peer}: {reason}"));
                let reason = reason.to_owned();
                match at {
                    SERVER => self.serve(Event::Unlinked { host: peer, reason }),
                    _ => self.drive(at, member::Event::Unlinked { host: peer, reason }),
                }
            }
            Thing::Tick { host, .. } if self.hosts[host as usize].ticking != self.now => {
                // An earlier one has been set since, or it was stopped.
                self.tick_later(host);
            }
            Thing::Tick { host, .. } => {
                self.hosts[host as usize].ticking = Time::MAX;
                match host {
                    SERVER => self.serve(Event::Tick),
                    _ => self.drive(host, member::Event::Tick),
                }
            }
            Thing::ShareOver { host, job, .. } => {
                if let Some(run) = self.hosts[host as usize].runs.remove(&job) {
                    let free = Message::Free { job, share: run.share, ran: true };
                    self.send(host, SERVER, free);
                }
            }
            Thing::Cleaned { host, .. } => {
                if !self.hosts[host as usize].runs.is_empty() {
                    let life = self.hosts[host as usize].life;
                    return self
                        .at(self.now + Time::from_millis(50), Thing::Cleaned { host, life });
                }
                let incarnation = self.unique();
                self.tally.cleaned += 1;
                self.drive(host, member::Event::Cleaned(incarnation));
            }
            Thing::KillAgain { job, .. } => self.kill_shares(job),
            Thing::Check { host, incarnation, since, .. } => {
                let over = since.is_some() && self.hosts[host as usize].away != since;
                let server = self.server.as_ref().unwrap();
                let up = server.is_up(host) && server.incarnation(host) == Some(incarnation);
                // A server that was away itself has learned of nothing.
                let excused = over || self.hosts[0].touched > Time::ZERO;
                assert!(!up || excused, "c{host} is away and still up after {:?}", self.limit);
            }
            Thing::Silence { .. } => {}
        }
    }

    fn silence(&mut self, pair: (HostId, HostId), id: u64) {
        let now = self.now;
        let dead =
            |link: &Link| link.id == id && link.bad.is_some_and(|bad| bad + TIMES.silence <= now);
        if self.links.get(&pair).is_some_and(dead) {
            self.links.remove(&pair);
            self.unlink(pair.0, pair.1, now, "nothing was heard from it");
            self.unlink(pair.1, pair.0, now, "nothing was heard from it");
        }
    }

    /// Messages that are under way or wait somewhere, and memory that grows with them.
    pub fn under_way(&self) -> usize {
        self.queue.len() + self.links.values().map(|link| link.stuck.len()).sum::<usize>()
    }
}
