//! A simulated cluster with the real state machines. The network delays, loses and duplicates
//! messages, and breaks links. Hosts die, hang and return, and users submit jobs. Invariants are
//! checked at every step.
//!
//! Jobs run on a small simulation of the daemons' loop. The server orders each host of a job to
//! start or to kill its share. A host whose link to the server breaks kills all of its shares. For
//! the server, the host is lost for these jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{Incarnation, PeerMessage, SERVER};

use crate::cluster::tree_member::{self, Member};
use crate::cluster::{
    ClusterConfig, ClusterEvent, ClusterLimits, HostConfig, HostShare, MonotonicTime, ServerState,
    SessionId, Timeouts,
};

mod driver;
mod faults;

pub use crate::seeded_random::Random;

pub const TIMEOUTS: Timeouts = Timeouts {
    silence: Duration::from_secs(10),
    grace: Duration::from_secs(2),
    cleanup: Duration::from_secs(5),
    merge: Duration::from_millis(3),
};
/// A host that failed permanently is declared down within this time, and its jobs have ended.
pub const DETECTION_BOUND: MonotonicTime = MonotonicTime::from_secs(2 * 10 + 2 + 1);
/// Bytes of memory of each host.
pub const MEMORY: u64 = 100;
/// The time after which an attempt to connect fails without an answer.
const CONNECT_TIMEOUT: MonotonicTime = MonotonicTime::from_secs(3);

#[derive(Debug, Clone)]
pub enum Message {
    Peer(PeerMessage),
    Start {
        job: JobId,
        incarnation: Incarnation,
        share: u32,
        slots: u32,
        run_time: MonotonicTime,
    },
    Kill {
        job: JobId,
        share: u32,
    },
    /// The host has released this share.
    ShareReleased {
        job: JobId,
        share: u32,
        did_run: bool,
    },
}

#[derive(Debug, Clone)]
pub enum SimEvent {
    Deliver {
        from: HostId,
        to: HostId,
        link: u64,
        generation: u64,
        message: Message,
    },
    LinkLost {
        host: HostId,
        peer: HostId,
        generation: u64,
        reason: &'static str,
    },
    LinkSilent {
        pair: (HostId, HostId),
        link: u64,
    },
    Tick {
        host: HostId,
        generation: u64,
    },
    ShareEnded {
        host: HostId,
        generation: u64,
        job: JobId,
    },
    ResetDone {
        host: HostId,
        generation: u64,
    },
    RepeatKill {
        job: JobId,
        generation: u64,
    },
    /// The server notices that the links of a job to a host are broken.
    HostLost {
        host: HostId,
        generation: u64,
        job: JobId,
    },
    /// The host notices the same.
    JobLinkLost {
        host: HostId,
        generation: u64,
        job: JobId,
    },
    /// A fault that began at `since` must have been detected by now.
    CheckDeclaredDown {
        host: HostId,
        incarnation: Incarnation,
        generation: u64,
        since: Option<MonotonicTime>,
    },
}

impl SimEvent {
    /// The daemon of the event, and its generation. `None`: the event is about a link.
    fn daemon(&self) -> Option<(HostId, u64)> {
        match self {
            SimEvent::Deliver { to: host, generation, .. }
            | SimEvent::LinkLost { host, generation, .. }
            | SimEvent::Tick { host, generation }
            | SimEvent::ShareEnded { host, generation, .. }
            | SimEvent::JobLinkLost { host, generation, .. }
            | SimEvent::ResetDone { host, generation } => Some((*host, *generation)),
            SimEvent::RepeatKill { generation, .. }
            | SimEvent::HostLost { generation, .. }
            | SimEvent::CheckDeclaredDown { generation, .. } => Some((SERVER, *generation)),
            SimEvent::LinkSilent { .. } => None,
        }
    }
}

struct Link {
    id: u64,
    /// The time from which one end receives nothing from the other.
    silent_since: Option<MonotonicTime>,
    /// The time at which the last message of each direction arrives.
    last_arrival_at: [MonotonicTime; 2],
    /// Messages that wait because the network is cut.
    blocked: Vec<SimEvent>,
}

struct RunningShare {
    share: u32,
    slots: u32,
    killed: bool,
    /// The links of the job are broken: no order and no report arrives.
    is_cut: bool,
}

pub struct SimHost {
    pub is_alive: bool,
    /// The host does not answer at all, not even with a refusal.
    powered_off: bool,
    pub is_stopped: bool,
    /// Only hosts of the same group can communicate.
    pub group: u8,
    pub extra_latency: MonotonicTime,
    /// Counts the daemons that ran on this host.
    pub generation: u64,
    pub member: Option<Member>,
    running_shares: BTreeMap<JobId, RunningShare>,
    /// Events that arrived while the host was stopped.
    held_events: Vec<SimEvent>,
    /// The time of the last fault of the host; `MonotonicTime::MAX` during a fault.
    pub last_fault_at: MonotonicTime,
    /// The time from which the host is stopped or cut off.
    unreachable_since: Option<MonotonicTime>,
    next_tick_at: MonotonicTime,
}

impl SimHost {
    /// Whether the host has no running share.
    pub fn is_empty(&self) -> bool {
        self.running_shares.is_empty()
    }
}

/// The state of a job in the server's loop.
struct Master {
    shares: Vec<HostShare>,
    /// The shares that are released or lost.
    released: NodeSet,
    killing: bool,
    /// The server has ordered the end of the job.
    end_ordered: bool,
    finished: bool,
}

/// The events of a submission that its user has observed.
#[derive(Debug, Default, PartialEq)]
pub struct Observed {
    pub submitted_at: MonotonicTime,
    /// The job needs all slots of its hosts.
    pub whole_hosts: bool,
    pub queued: bool,
    pub started_at: Option<MonotonicTime>,
    pub refused: bool,
    pub ended: bool,
    /// The server has died, or the user has disconnected.
    pub dropped: bool,
}

/// Counts of events, so that a test can check that it has tested something.
#[derive(Debug, Default)]
pub struct Coverage {
    pub started: u64,
    pub completed: u64,
    pub blamed_hosts: u64,
    pub refused: u64,
    pub declared_down: u64,
    pub resets: u64,
    pub broken_job_links: u64,
}

/// The log lines of the daemons, and the number of messages that the server has received.
#[derive(Debug, Default)]
pub struct SimLog {
    pub lines: Vec<String>,
    /// The reasons why hosts were declared down.
    pub declared_down: Vec<String>,
    pub server_message_count: u64,
}

pub struct Simulation {
    pub now: MonotonicTime,
    pub random: Random,
    last_id: u64,
    events: BTreeMap<(MonotonicTime, u64), SimEvent>,
    links: BTreeMap<(HostId, HostId), Link>,
    pub hosts: Vec<SimHost>,
    pub server: Option<ServerState>,
    masters: BTreeMap<JobId, Master>,
    config: ClusterConfig,
    pub submissions: BTreeMap<(SessionId, SessionJobId), Observed>,
    pub sessions: BTreeSet<SessionId>,
    /// The percentage of membership messages that arrive a second time, later.
    pub duplicate_percent: u64,
    /// The time within which a fault must be detected.
    pub detection_bound: MonotonicTime,
    pub log: SimLog,
    pub coverage: Coverage,
    pub verbose: bool,
}

fn pair(a: HostId, b: HostId) -> (HostId, HostId) {
    (a.min(b), a.max(b))
}

impl Simulation {
    pub fn new(hosts: u32, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let host = |number: u32| HostConfig {
            name: format!("c{number}"),
            slots: if number == 0 { 0 } else { 1 + random.below(8) as u32 },
            spare_for: match number > 2 && random.chance(5) {
                true => NodeSet::from(0..number),
                false => NodeSet::new(),
            },
            defect: false,
        };
        let config = ClusterConfig {
            server_incarnation: Incarnation(1),
            hosts: (0..hosts).map(host).collect(),
            times: TIMEOUTS,
            first_job: JobId(1),
            rows: 1 + random.below(4) as u32,
            memory: MEMORY,
            operators: Vec::new(),
            limits: ClusterLimits { queued_per_user: 40, queued: 100, ..ClusterLimits::default() },
        };
        let empty = || SimHost {
            is_alive: false,
            powered_off: false,
            is_stopped: false,
            group: 0,
            extra_latency: MonotonicTime::ZERO,
            generation: 0,
            member: None,
            running_shares: BTreeMap::new(),
            held_events: Vec::new(),
            last_fault_at: MonotonicTime::ZERO,
            unreachable_since: None,
            next_tick_at: MonotonicTime::MAX,
        };
        Self {
            now: MonotonicTime::ZERO,
            random,
            last_id: 10,
            events: BTreeMap::new(),
            links: BTreeMap::new(),
            hosts: (0..hosts).map(|_| empty()).collect(),
            server: None,
            masters: BTreeMap::new(),
            config,
            submissions: BTreeMap::new(),
            sessions: BTreeSet::new(),
            duplicate_percent: 0,
            detection_bound: DETECTION_BOUND,
            log: SimLog::default(),
            coverage: Coverage::default(),
            verbose: std::env::var_os("SCORE_SIM_TRACE").is_some(),
        }
    }

    fn unique_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn trace(&mut self, line: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{:9.3} {}", self.now.as_secs_f64(), line());
        }
    }

    fn schedule(&mut self, when: MonotonicTime, event: SimEvent) {
        let number = self.unique_id();
        self.events.insert((when, number), event);
    }

    // Hosts and faults.

    pub fn start_server(&mut self) {
        self.config.server_incarnation = Incarnation(self.unique_id());
        self.config.first_job.0 += 1000;
        self.hosts[0].is_alive = true;
        (self.hosts[0].generation, self.hosts[0].powered_off) =
            (self.hosts[0].generation + 1, false);
        self.hosts[0].next_tick_at = MonotonicTime::MAX;
        self.server = Some(ServerState::new(self.config.clone(), self.now));
        self.trace(|| "server starts".to_owned());
        self.schedule_tick(SERVER);
    }

    pub fn start_daemon(&mut self, host: HostId, host_and_parent: Option<(HostId, HostId)>) {
        let incarnation = self.unique_id();
        let config = tree_member::MemberConfig {
            name: format!("c{host}"),
            incarnation: Incarnation(incarnation),
            address: "127.0.0.1:9".parse().unwrap(),
            memory: MEMORY,
            host_and_parent,
            times: TIMEOUTS,
        };
        let found = &mut self.hosts[host.index()];
        (found.is_alive, found.is_stopped, found.generation) = (true, false, found.generation + 1);
        found.powered_off = false;
        found.member = Some(Member::new(config, self.now));
        found.next_tick_at = MonotonicTime::MAX;
        if found.group == 0 && found.last_fault_at == MonotonicTime::MAX {
            found.last_fault_at = self.now;
        }
        if found.group != 0 {
            found.unreachable_since = Some(self.now);
        }
        self.trace(|| format!("c{host} starts as {incarnation}"));
        self.step_member(host, tree_member::MemberEvent::Tick);
    }

    fn can_communicate(&self, (one, two): (HostId, HostId)) -> bool {
        let (one, two) = (&self.hosts[one.index()], &self.hosts[two.index()]);
        one.group == two.group && !one.is_stopped && !two.is_stopped
    }

    fn update_link_silence(&mut self) {
        for pair in self.links.keys().copied().collect::<Vec<_>>() {
            let (can_communicate, now) = (self.can_communicate(pair), self.now);
            let link = self.links.get_mut(&pair).unwrap();
            match (can_communicate, link.silent_since) {
                (false, None) => {
                    link.silent_since = Some(now);
                    let link = link.id;
                    self.schedule(now + TIMEOUTS.silence, SimEvent::LinkSilent { pair, link });
                }
                (true, Some(_)) => {
                    link.silent_since = None;
                    for event in std::mem::take(&mut link.blocked) {
                        self.schedule(now, event);
                    }
                }
                _ => {}
            }
        }
    }

    fn links_of(&self, host: HostId) -> Vec<(HostId, HostId)> {
        self.links.keys().copied().filter(|pair| pair.0 == host || pair.1 == host).collect()
    }

    fn report_link_loss(
        &mut self,
        host: HostId,
        peer: HostId,
        when: MonotonicTime,
        reason: &'static str,
    ) {
        let generation = self.hosts[host.index()].generation;
        self.schedule(when, SimEvent::LinkLost { host, peer, generation, reason });
    }

    // Messages.

    fn send(&mut self, from: HostId, to: HostId, message: Message) {
        let (one, two) = (&self.hosts[from.index()], &self.hosts[to.index()]);
        let latency = MonotonicTime::from_micros(100 + self.random.below(900))
            + one.extra_latency
            + two.extra_latency;
        let key = pair(from, to);
        if !self.links.contains_key(&key) {
            if !two.is_alive && !two.powered_off && one.group == two.group {
                return self.report_link_loss(from, to, self.now + latency, "refused");
            } else if !two.is_alive || !self.can_communicate(key) {
                return self.report_link_loss(from, to, self.now + CONNECT_TIMEOUT, "no answer");
            }
            let id = self.unique_id();
            let last = [self.now + latency; 2];
            self.links.insert(
                key,
                Link { id, silent_since: None, last_arrival_at: last, blocked: Vec::new() },
            );
        }
        let generation = self.hosts[to.index()].generation;
        let is_duplicated = self.random.chance(self.duplicate_percent);
        let duplicate_at = self.now + self.random.time(1, 5000);
        let link = self.links.get_mut(&key).unwrap();
        let last_arrival_at = &mut link.last_arrival_at[usize::from(from < to)];
        *last_arrival_at = (self.now + latency).max(*last_arrival_at);
        let (arrival_at, link) = (*last_arrival_at, link.id);
        let event = SimEvent::Deliver { from, to, link, generation, message: message.clone() };
        self.schedule(arrival_at, event);
        if is_duplicated && matches!(message, Message::Peer(_)) {
            // Link 0 means that the message arrives even if its link is lost.
            self.schedule(
                duplicate_at,
                SimEvent::Deliver { from, to, link: 0, generation, message },
            );
        }
    }

    fn deliver(&mut self, from: HostId, to: HostId, message: Message) {
        self.trace(|| format!("c{from} -> c{to} {message:?}"));
        match message {
            Message::Peer(message) if to == SERVER => {
                self.log.server_message_count += 1;
                self.deliver_to_server(ClusterEvent::Received { from, message });
            }
            Message::Peer(message) => {
                self.step_member(to, tree_member::MemberEvent::Received { from, message })
            }
            Message::ShareReleased { job, share, did_run } => {
                self.on_share_released(job, share, did_run)
            }
            Message::Start { job, incarnation, share, slots, run_time } => {
                self.start_share(to, (job, share, slots), incarnation, run_time);
            }
            Message::Kill { job, share } => match self.hosts[to.index()]
                .running_shares
                .get_mut(&job)
            {
                Some(run) if !run.killed && !run.is_cut => {
                    run.killed = true;
                    let is_slow = self.random.chance(3);
                    let delay = MonotonicTime::from_millis(if is_slow { 8000 } else { 20 });
                    let generation = self.hosts[to.index()].generation;
                    self.schedule(
                        self.now + delay,
                        SimEvent::ShareEnded { host: to, generation, job },
                    );
                }
                Some(_) => {}
                None => self.send(to, SERVER, Message::ShareReleased { job, share, did_run: true }),
            },
        }
    }

    fn step_member(&mut self, host: HostId, event: tree_member::MemberEvent) {
        let now = self.now;
        let Some(member) = &mut self.hosts[host.index()].member else { return };
        for action in member.on(event, now) {
            match action {
                tree_member::MemberAction::Send { to, message } => {
                    self.send(host, to, Message::Peer(message))
                }
                tree_member::MemberAction::ResetHost { reason } => {
                    self.trace(|| format!("c{host} cleans up: {reason}"));
                    self.kill_all(host);
                    let generation = self.hosts[host.index()].generation;
                    let delay = self.random.time(21, 500);
                    self.schedule(now + delay, SimEvent::ResetDone { host, generation });
                }
                tree_member::MemberAction::SetAddress { .. } => {}
                tree_member::MemberAction::Log(line) => self.log.lines.push(line),
            }
        }
        self.schedule_tick(host);
    }

    fn schedule_tick(&mut self, host: HostId) {
        let found = &self.hosts[host.index()];
        let deadline = match (host, &self.server, &found.member) {
            (SERVER, Some(server), _) => server.deadline(),
            (_, _, Some(member)) => member.deadline(),
            _ => return,
        };
        if deadline < found.next_tick_at || found.next_tick_at < self.now {
            let generation = found.generation;
            self.hosts[host.index()].next_tick_at = deadline.max(self.now);
            self.schedule(deadline.max(self.now), SimEvent::Tick { host, generation });
        }
    }

    // Time.

    pub fn run_until(&mut self, end: MonotonicTime) {
        let mut steps = 0u64;
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((when, _), event) = entry.remove_entry();
            self.now = when;
            self.dispatch(event);
            steps += 1;
            assert!(steps < 3_000_000, "the simulation does not become quiescent");
        }
        self.now = end;
    }

    fn end_share_soon(&mut self, host: HostId, generation: u64, job: JobId) {
        let end = self.now + MonotonicTime::from_millis(20);
        self.schedule(end, SimEvent::ShareEnded { host, generation, job });
    }

    fn dispatch(&mut self, event: SimEvent) {
        if let SimEvent::LinkSilent { pair, link } = event {
            return self.on_silence_limit(pair, link);
        }
        let Some((host, generation)) = event.daemon() else { return };
        let found = &mut self.hosts[host.index()];
        if found.generation != generation || !found.is_alive {
            return;
        }
        // The link of a stopped host is silent, and keeps its messages in order.
        let is_on_link = matches!(event, SimEvent::Deliver { link: 1.., .. });
        let is_check = matches!(event, SimEvent::CheckDeclaredDown { .. });
        if found.is_stopped && !is_on_link && !is_check {
            return found.held_events.push(event);
        }
        match event {
            SimEvent::Deliver { from, to, link, ref message, .. } => {
                let can_communicate = self.can_communicate(pair(from, to));
                let known = self.links.get_mut(&pair(from, to));
                match known.filter(|known| known.id == link) {
                    Some(known) if known.silent_since.is_some() => known.blocked.push(event),
                    None if link != 0 || !can_communicate => {}
                    _ => {
                        let message = message.clone();
                        self.deliver(from, to, message);
                    }
                }
            }
            SimEvent::LinkLost { host, peer, reason, .. } => {
                if peer == SERVER {
                    // The jobs of the lost link end, even if there is another link by now.
                    self.kill_all(host);
                }
                if self.links.contains_key(&pair(host, peer)) {
                    return;
                }
                self.trace(|| format!("c{host} has lost its link to c{peer}: {reason}"));
                let reason = reason.to_owned();
                match host {
                    SERVER => self.deliver_to_server(ClusterEvent::LinkLost { host: peer, reason }),
                    _ => self.step_member(
                        host,
                        tree_member::MemberEvent::LinkLost { host: peer, reason },
                    ),
                }
            }
            SimEvent::Tick { host, .. } if self.hosts[host.index()].next_tick_at != self.now => {
                // An earlier tick was scheduled meanwhile, or the host was stopped.
                self.schedule_tick(host);
            }
            SimEvent::Tick { host, .. } => {
                self.hosts[host.index()].next_tick_at = MonotonicTime::MAX;
                match host {
                    SERVER => self.deliver_to_server(ClusterEvent::Tick),
                    _ => self.step_member(host, tree_member::MemberEvent::Tick),
                }
            }
            SimEvent::ShareEnded { host, job, .. } => {
                let run = self.hosts[host.index()].running_shares.remove(&job);
                if let Some(run) = run.filter(|run| !run.is_cut) {
                    let free = Message::ShareReleased { job, share: run.share, did_run: true };
                    self.send(host, SERVER, free);
                }
            }
            SimEvent::ResetDone { host, .. } => {
                if !self.hosts[host.index()].running_shares.is_empty() {
                    let generation = self.hosts[host.index()].generation;
                    return self.schedule(
                        self.now + MonotonicTime::from_millis(50),
                        SimEvent::ResetDone { host, generation },
                    );
                }
                let incarnation = self.unique_id();
                self.coverage.resets += 1;
                self.step_member(
                    host,
                    tree_member::MemberEvent::ResetDone(Incarnation(incarnation)),
                );
            }
            SimEvent::RepeatKill { job, .. } => self.kill_shares(job),
            SimEvent::HostLost { host, job, .. } => self.lose_host(job, host),
            SimEvent::JobLinkLost { host, job, .. } => self.end_share_soon(host, generation, job),
            SimEvent::CheckDeclaredDown { host, incarnation, since, .. } => {
                let fault_ended =
                    since.is_some() && self.hosts[host.index()].unreachable_since != since;
                let server = self.server.as_ref().unwrap();
                let up =
                    server.is_up(host) && server.membership.incarnation(host) == Some(incarnation);
                // A server that was unreachable itself may not have detected the fault.
                let excused = fault_ended || self.hosts[0].last_fault_at > MonotonicTime::ZERO;
                assert!(
                    !up || excused,
                    "c{host} is unreachable and still up after {:?}",
                    self.detection_bound
                );
            }
            SimEvent::LinkSilent { .. } => {}
        }
    }

    fn on_silence_limit(&mut self, pair: (HostId, HostId), id: u64) {
        let now = self.now;
        let is_dead = |link: &Link| {
            link.id == id
                && link
                    .silent_since
                    .is_some_and(|silent_since| silent_since + TIMEOUTS.silence <= now)
        };
        if self.links.get(&pair).is_some_and(is_dead) {
            self.links.remove(&pair);
            self.report_link_loss(pair.0, pair.1, now, "no data received");
            self.report_link_loss(pair.1, pair.0, now, "no data received");
        }
    }

    /// The number of scheduled events, and of messages that wait because the network is cut. The
    /// memory grows with this number.
    pub fn in_flight_count(&self) -> usize {
        self.events.len() + self.links.values().map(|link| link.blocked.len()).sum::<usize>()
    }
}
