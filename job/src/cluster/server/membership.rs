//! Membership: which hosts are up, which parent each has, and which are declared down.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | Absent | never joined, or found no parent in time | Join, Joined |
//! | Joining | it has requested a parent and was assigned one | Joined: Up; time: Down or Absent |
//! | Up | a parent holds a link to it | Lost, LinkLost, Join: it has no parent |
//! | Suspect | its link, or one above it, was lost | Join, Joined; time: Down |
//! | Down | declared down; its jobs are ended | Join under a new incarnation |
//!
//! An incarnation that was declared down never joins again. Its daemon has to clean up and join
//! under a new incarnation.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use score_proto::ids::HostId;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{
    ChildLost, DaemonInfo, Heartbeat, Incarnation, JoinRequest, ParentAssignment, PeerMessage,
    SERVER,
};
use score_tree::range_tree::Subtree;

use crate::cluster::{
    ClusterAction, ClusterConfig, HostConfig, JobRequest, MonotonicTime, SlotUse, Timeouts,
};

/// The largest number of fenced incarnations that are remembered per host.
const MAX_FENCED_INCARNATIONS: usize = 8;
/// A host that was not reported for this multiple of the silence limit is lost. A report rises by
/// one level at each heartbeat, and heartbeats are sent three times per silence limit.
const LOST_AFTER_SILENCE_LIMITS: u32 = 4;
/// The largest number of hosts that are moved to a nearer parent in one step.
const REBALANCE_BATCH: usize = 64;

/// A host.
#[derive(Debug)]
pub struct ClusterHost {
    pub config: HostConfig,
    state: HostState,
    /// The daemon of the host, unless the host is Absent.
    pub member: Option<DaemonInfo>,
    parent: HostId,
    /// The time at which the parent last reported the host.
    last_reported_at: MonotonicTime,
    /// A parent that the host could not reach. The host is offered only ancestors above this
    /// parent.
    unreachable_parent: Option<HostId>,
    /// Incarnations that were declared down.
    fenced: VecDeque<Incarnation>,
    /// Slots that jobs occupy, in all rows.
    pub used_slots: u32,
    /// Bytes of memory that are promised to jobs.
    pub promised_memory: u64,
}

/// The part of a host that a job has.
#[derive(Debug, Clone, Copy)]
pub struct Reservation {
    pub slots: u32,
    pub memory: u64,
}

#[derive(Debug)]
enum HostState {
    Absent,
    /// `was_up`: the host was already Up under this incarnation and may run jobs.
    Joining {
        deadline: MonotonicTime,
        was_up: bool,
    },
    Up,
    Suspect {
        deadline: MonotonicTime,
        reason: String,
    },
    Down,
}

impl ClusterHost {
    pub fn new(config: HostConfig) -> Self {
        Self {
            config,
            state: HostState::Absent,
            member: None,
            parent: SERVER,
            last_reported_at: MonotonicTime::ZERO,
            unreachable_parent: None,
            fenced: VecDeque::new(),
            used_slots: 0,
            promised_memory: 0,
        }
    }

    /// The part of this host that a job needs for this number of processes.
    pub fn reservation(&self, request: &JobRequest, procs: u32) -> Reservation {
        let slots = match request.slot_use {
            SlotUse::PerProcess => procs,
            SlotUse::WholeHosts => self.config.slots,
        };
        Reservation { slots, memory: request.memory }
    }

    /// A job has this part of the host from now on.
    pub fn allocate(&mut self, reservation: Reservation) {
        self.used_slots += reservation.slots;
        self.promised_memory += reservation.memory;
    }

    /// A job has released this part of the host.
    pub fn release(&mut self, reservation: Reservation) {
        self.used_slots -= reservation.slots;
        self.promised_memory -= reservation.memory;
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, HostState::Up)
    }

    /// Whether jobs may still run on the host.
    fn may_have_jobs(&self) -> bool {
        match self.state {
            HostState::Absent | HostState::Down => false,
            HostState::Joining { was_up, .. } => was_up,
            HostState::Up | HostState::Suspect { .. } => true,
        }
    }

    /// Whether the host can be a parent now or soon.
    fn can_be_parent(&self) -> bool {
        matches!(self.state, HostState::Up | HostState::Joining { .. })
    }

    pub fn deadline(&self) -> Option<MonotonicTime> {
        match self.state {
            HostState::Joining { deadline, .. } | HostState::Suspect { deadline, .. } => {
                Some(deadline)
            }
            _ => None,
        }
    }
}

/// The hosts of a cluster and their states. Its actions include [`ClusterAction::HostDown`], after
/// which the server ends the jobs of the host.
#[derive(Debug)]
pub struct Membership {
    pub hosts: Vec<ClusterHost>,
    names: BTreeMap<String, HostId>,
    server_incarnation: Incarnation,
    /// Bytes of memory of the server's own host; 0 if unknown.
    server_memory: u64,
    times: Timeouts,
    /// A host has joined, so other hosts may have a nearer parent now.
    needs_rebalance: bool,
    next_beat_at: MonotonicTime,
    actions: Vec<ClusterAction>,
}

impl Membership {
    /// No host but the server's own has joined.
    pub fn new(config: &ClusterConfig, now: MonotonicTime) -> Self {
        let names = config.hosts.iter().map(|host| host.name.clone()).zip((0..).map(HostId));
        Self {
            hosts: config.hosts.iter().cloned().map(ClusterHost::new).collect(),
            names: names.collect(),
            server_incarnation: config.server_incarnation,
            server_memory: config.memory,
            times: config.times,
            needs_rebalance: false,
            next_beat_at: now,
            actions: Vec::new(),
        }
    }

    /// The actions since the last call.
    pub fn take_actions(&mut self) -> Vec<ClusterAction> {
        std::mem::take(&mut self.actions)
    }

    /// When [`Membership::on_tick`] is due.
    pub fn deadline(&self) -> MonotonicTime {
        let hosts = self.hosts.iter().filter_map(ClusterHost::deadline);
        hosts.fold(self.next_beat_at, MonotonicTime::min)
    }

    /// The number of the host with this name.
    pub fn host_named(&self, name: &str) -> Option<HostId> {
        self.names.get(name).copied()
    }

    /// The name of a host.
    pub fn name(&self, host: HostId) -> &str {
        self.hosts.get(host.index()).map_or("?", |host| &host.config.name)
    }

    /// Whether jobs can be placed on a host now.
    pub fn is_up(&self, host: HostId) -> bool {
        self.hosts.get(host.index()).is_some_and(|found| host == SERVER || found.is_up())
    }

    /// The address at which a host accepts links.
    pub fn address(&self, host: HostId) -> Option<SocketAddr> {
        Some(self.hosts.get(host.index())?.member.as_ref()?.address)
    }

    /// The incarnation of a host's daemon.
    pub fn incarnation(&self, host: HostId) -> Option<Incarnation> {
        if host == SERVER {
            return Some(self.server_incarnation);
        }
        Some(self.hosts.get(host.index())?.member.as_ref()?.incarnation)
    }

    /// Bytes of memory of a host, if known.
    pub fn memory(&self, host: HostId) -> Option<u64> {
        let bytes = match host {
            SERVER => self.server_memory,
            _ => self.hosts.get(host.index())?.member.as_ref()?.memory,
        };
        (bytes > 0).then_some(bytes)
    }

    fn log(&mut self, line: String) {
        self.actions.push(ClusterAction::Log(line));
    }

    fn send(&mut self, to: HostId, message: PeerMessage) {
        self.actions.push(ClusterAction::Send { to, message });
    }

    /// The nearest ancestor in the tree that can be a parent.
    fn parent_for(&self, host: HostId) -> HostId {
        let unreachable = self.hosts[host.index()].unreachable_parent;
        let is_candidate = |ancestor: &HostId| {
            unreachable.is_none_or(|unreachable| *ancestor < unreachable)
                && self.hosts[ancestor.index()].can_be_parent()
        };
        self.ancestors(host).rev().find(is_candidate).unwrap_or(SERVER)
    }

    /// The positions above a host in the tree, from the root.
    fn ancestors(&self, host: HostId) -> impl DoubleEndedIterator<Item = HostId> + use<> {
        Subtree::whole(self.hosts.len() as u32).ancestors(host.0).into_iter().map(HostId)
    }

    /// All hosts but the server.
    fn host_ids(&self) -> impl Iterator<Item = HostId> + use<> {
        (1..self.hosts.len() as u32).map(HostId)
    }

    fn is_ancestor(&self, ancestor: HostId, host: HostId) -> bool {
        self.ancestors(host).any(|found| found == ancestor)
    }

    /// Whether this daemon has to clean up before it can join.
    fn must_reset(
        &mut self,
        host: HostId,
        incarnation: Incarnation,
        server: Option<Incarnation>,
    ) -> bool {
        let is_other_server = server.is_some_and(|server| server != self.server_incarnation);
        let is_fenced = self.hosts[host.index()].fenced.contains(&incarnation);
        if is_other_server || is_fenced {
            let reason = if is_other_server {
                "it runs jobs of an earlier server".to_owned()
            } else {
                "it was declared down".to_owned()
            };
            self.send(host, PeerMessage::Reset { incarnation, reason });
        }
        is_other_server || is_fenced
    }

    /// A daemon requests a parent.
    pub fn on_join(&mut self, join: JoinRequest, now: MonotonicTime) {
        let Some(host) = self.host_named(&join.name).filter(|host| *host != SERVER) else {
            let name: String = join.name.chars().take(100).collect();
            return self.log(format!("join refused: {name:?} is not a host of this cluster"));
        };
        if self.must_reset(host, join.incarnation, join.server_incarnation) {
            return;
        }
        let deadline = now + self.times.silence + self.times.grace;
        let was_up = self.hosts[host.index()].is_up();
        let found = &mut self.hosts[host.index()];
        let mut same_incarnation = false;
        if let Some(known) = found.member.as_mut().filter(|m| m.incarnation == join.incarnation) {
            if join.attach_seq < known.attach_seq {
                // The host has found a parent since it sent this request.
                return;
            }
            (known.attach_seq, same_incarnation) = (join.attach_seq, true);
        }
        if !same_incarnation && !found.may_have_jobs() {
            let JoinRequest {
                incarnation,
                address,
                server_incarnation: server,
                attach_seq: attach,
                ..
            } = join;
            found.member = Some(DaemonInfo {
                host,
                incarnation,
                address,
                server_incarnation: server,
                attach_seq: attach,
                memory: 0,
            });
            found.state = HostState::Joining { deadline, was_up: false };
            found.unreachable_parent = None;
            same_incarnation = true;
        } else if same_incarnation {
            found.state = HostState::Joining { deadline, was_up: found.may_have_jobs() };
        }
        // A new incarnation is accepted only when it has a parent.
        if let Some(unreachable) = join.unreachable_parent.filter(|parent| *parent != SERVER) {
            let earlier = found.unreachable_parent;
            found.unreachable_parent =
                Some(earlier.map_or(unreachable, |earlier| earlier.min(unreachable)));
        }
        if same_incarnation && was_up {
            self.suspect_descendants(host, self.times.silence, now);
        }
        self.assign_parent(host);
    }

    fn assign_parent(&mut self, host: HostId) {
        let parent = self.parent_for(host);
        let address = self.address(parent);
        let assignment = ParentAssignment {
            host,
            server_incarnation: self.server_incarnation,
            parent,
            parent_address: address,
        };
        self.send(host, PeerMessage::AssignParent(assignment));
    }

    /// A parent, or the server itself, has accepted this daemon as its child. Returns whether jobs
    /// can be placed on the host from now on.
    pub fn on_joined(&mut self, member: DaemonInfo, parent: HostId, now: MonotonicTime) -> bool {
        let host = member.host;
        let is_host = host != SERVER && host.index() < self.hosts.len();
        if !is_host || !self.is_ancestor(parent, host) {
            self.log(format!("host {host} cannot be a child of host {parent}"));
            return false;
        }
        if self.must_reset(host, member.incarnation, member.server_incarnation) {
            return false;
        }
        let found = &self.hosts[host.index()];
        let known = found.member.as_ref().filter(|known| known.incarnation == member.incarnation);
        if known.is_some_and(|known| known.attach_seq >= member.attach_seq) {
            return false;
        }
        if known.is_none() && found.may_have_jobs() {
            let old_incarnation = self.incarnation(host).unwrap_or_default();
            self.declare_down(host, "its scored was restarted", now);
            // If the other daemon is the one that is alive, this message resets it.
            let reason = "another scored of this host has joined".to_owned();
            self.send(host, PeerMessage::Reset { incarnation: old_incarnation, reason });
        }
        let (incarnation, found) = (member.incarnation, &mut self.hosts[host.index()]);
        let is_new = !found.may_have_jobs();
        found.member = Some(member);
        found.state = HostState::Up;
        found.parent = parent;
        found.last_reported_at = now;
        if is_new {
            found.unreachable_parent = None;
            // Hosts that could not reach the previous incarnation may try again.
            for other in
                self.hosts.iter_mut().filter(|other| other.unreachable_parent == Some(host))
            {
                other.unreachable_parent = None;
            }
            self.actions.push(ClusterAction::HostUp { host, incarnation });
        }
        self.needs_rebalance = true;
        true
    }

    /// A parent has lost the link to a child.
    pub fn on_lost(&mut self, lost: ChildLost, now: MonotonicTime) {
        let Some(found) = self.hosts.get(lost.host.index()) else { return };
        let known = found.member.as_ref();
        let is_current = known.is_some_and(|member| {
            member.incarnation == lost.incarnation && member.attach_seq == lost.attach_seq
        });
        if is_current && found.is_up() {
            self.mark_suspect(lost.host, lost.reason, now);
        }
    }

    /// The server has lost the link to a child.
    pub fn on_link_lost(&mut self, host: HostId, reason: String, now: MonotonicTime) {
        let Some(found) = self.hosts.get(host.index()) else { return };
        if found.is_up() && found.parent == SERVER {
            self.mark_suspect(host, reason, now);
        }
    }

    /// Parents report these hosts.
    pub fn on_present(&mut self, hosts: &NodeSet, now: MonotonicTime) {
        for host in hosts.iter() {
            let Some(found) = self.hosts.get_mut(host as usize) else { break };
            found.last_reported_at = now;
        }
    }

    fn mark_suspect(&mut self, host: HostId, reason: String, now: MonotonicTime) {
        let name = self.name(host).to_owned();
        self.log(format!("host {name} is lost: {reason}"));
        let deadline = now + self.times.grace;
        self.hosts[host.index()].state = HostState::Suspect { deadline, reason };
        self.suspect_descendants(host, self.times.silence, now);
    }

    /// All descendants of this host have lost their parent, or will notice the loss within
    /// `detection_time`. Each of them connects to another parent separately.
    fn suspect_descendants(&mut self, host: HostId, detection_time: Duration, now: MonotonicTime) {
        let deadline = now + detection_time + self.times.grace;
        let name = self.name(host).to_owned();
        let mut is_descendant = vec![false; self.hosts.len()];
        is_descendant[host.index()] = true;
        // Each parent has a smaller number than its children.
        for index in host.index() + 1..self.hosts.len() {
            let found = &mut self.hosts[index];
            if is_descendant[found.parent.index()] && found.is_up() {
                is_descendant[index] = true;
                let reason = format!("it did not dial again after {name}, its parent, was lost");
                found.state = HostState::Suspect { deadline, reason };
            }
        }
    }

    /// The server ends all jobs and sessions that depend on this incarnation of the host.
    fn declare_down(&mut self, host: HostId, reason: &str, now: MonotonicTime) {
        let Some(incarnation) = self.incarnation(host) else { return };
        let text = format!("host {}: {reason}", self.name(host));
        let found = &mut self.hosts[host.index()];
        found.state = HostState::Down;
        if found.fenced.len() == MAX_FENCED_INCARNATIONS {
            found.fenced.pop_front();
        }
        found.fenced.push_back(incarnation);
        self.actions.push(ClusterAction::HostDown { host, incarnation, reason: text });
        // A daemon that was suspended and replaced may just have sent a heartbeat. The loss of
        // other daemons is already known.
        self.suspect_descendants(host, self.times.silence * 3 / 2, now);
    }

    /// The server itself did not run for some time. This time is not counted against any host.
    fn extend_deadlines(&mut self, delay: MonotonicTime) {
        for host in &mut self.hosts {
            host.last_reported_at += delay;
            if let HostState::Joining { deadline, .. } | HostState::Suspect { deadline, .. } =
                &mut host.state
            {
                *deadline += delay;
            }
        }
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: MonotonicTime) {
        let delay = now.saturating_sub(self.next_beat_at);
        if delay > self.times.silence / 3 {
            self.extend_deadlines(delay);
        }
        for host in self.host_ids() {
            let found = &mut self.hosts[host.index()];
            match &mut found.state {
                HostState::Suspect { deadline, reason } if *deadline <= now => {
                    let reason = std::mem::take(reason);
                    self.declare_down(host, &reason, now);
                }
                HostState::Joining { deadline, was_up: true } if *deadline <= now => {
                    self.declare_down(host, "it dialled again and found no parent", now);
                }
                HostState::Joining { deadline, was_up: false } if *deadline <= now => {
                    (found.state, found.member) = (HostState::Absent, None);
                }
                _ => {}
            }
        }
        if now >= self.next_beat_at {
            self.next_beat_at = now + self.times.silence / 3;
            let server = self.server_incarnation;
            let report_timeout = self.times.silence * LOST_AFTER_SILENCE_LIMITS;
            for host in self.host_ids() {
                let found = &self.hosts[host.index()];
                if found.is_up() && found.last_reported_at + report_timeout < now {
                    self.mark_suspect(
                        host,
                        "its parent does not report it any more".to_owned(),
                        now,
                    );
                } else if found.is_up()
                    && found.parent == SERVER
                    && let Some(member) = &found.member
                {
                    let (child, attach) = (member.incarnation, member.attach_seq);
                    self.send(
                        host,
                        PeerMessage::Heartbeat(Heartbeat {
                            server_incarnation: server,
                            child_incarnation: child,
                            attach_seq: attach,
                        }),
                    );
                }
            }
        }
        if std::mem::take(&mut self.needs_rebalance) {
            self.rebalance();
        }
    }

    /// Moves hosts back to their own parent if they were adopted while it was unreachable. One call
    /// moves at most one batch.
    fn rebalance(&mut self) {
        let mut move_count = 0;
        for host in self.host_ids() {
            let found = &self.hosts[host.index()];
            if !found.is_up() {
                continue;
            }
            let parent = self.parent_for(host);
            if parent != found.parent && self.hosts[parent.index()].is_up() {
                if move_count == REBALANCE_BATCH {
                    self.needs_rebalance = true;
                    break;
                }
                move_count += 1;
                self.assign_parent(host);
            }
        }
    }
}
