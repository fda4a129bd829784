//! The daemon of a host that is not the server. It finds its parent and keeps its children. It
//! passes membership changes up and the server's heartbeat down. It cleans up when the server
//! orders a reset or when no heartbeat arrives any more.
//!
//! | event | actions |
//! |---|---|
//! | it starts: `Tick` | `Send(Join)` to the server; if a parent started it, `Send(AttachChild)` |
//! | `Received(AssignParent)` | `SetAddress` of the parent's address, `Send(AttachChild)` |
//! | `AttachChild`, `ChildrenJoined`, `ChildrenLost` of a child | soon one `Send` of all changes |
//! | `Received(Heartbeat)` | `Send(Heartbeat)` to children, `Send(PresenceReport)` to the parent |
//! | a `Heartbeat` for an earlier incarnation or attachment | also `Send(AttachChild)` |
//! | `LinkLost` of the parent, or `ParentLost` | `Send(ParentLost)` to all children, `Send(Join)` |
//! | no heartbeat for 1.5 times the silence limit | the same; the join excludes that parent |
//! | `Reset`, another server, or no heartbeat for twice that limit plus the grace | `ResetHost` |
//! | `ResetDone` with a new incarnation | `Send(Join)` |

use std::collections::BTreeMap;
use std::net::SocketAddr;

use score_proto::ids::HostId;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{
    ChildJoined, ChildLost, DaemonInfo, Heartbeat, Incarnation, JoinRequest, PeerMessage, SERVER,
};

use super::{MonotonicTime, Timeouts};

/// The largest number of changes that wait for a parent. If there are more, the children have to
/// join again.
const MAX_PENDING_CHANGES: usize = 16 * 1024;
/// The largest number of changes in one message.
const MAX_CHANGES_PER_MESSAGE: usize = 1024;

/// The configuration of a daemon at its start.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    /// The name of the host in the cluster's list.
    pub name: String,
    /// The first incarnation of the daemon.
    pub incarnation: Incarnation,
    /// The address at which the daemon accepts links.
    pub address: SocketAddr,
    /// Bytes of memory of this host; 0 if unknown.
    pub memory: u64,
    /// If its parent started the daemon: the daemon's own number and the number of the parent.
    pub host_and_parent: Option<(HostId, HostId)>,
    /// The time limits.
    pub times: Timeouts,
}

/// An event of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEvent {
    /// A message of membership.
    Received {
        /// The sender.
        from: HostId,
        /// The message.
        message: PeerMessage,
    },
    /// The last link to a host is lost, or could not be made.
    LinkLost {
        /// The host.
        host: HostId,
        /// The reason that the link reported.
        reason: String,
    },
    /// The reset of [`MemberAction::ResetHost`] is complete. Carries the daemon's new incarnation.
    ResetDone(Incarnation),
    /// The time [`Member::deadline`] is reached.
    Tick,
}

/// An action for the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberAction {
    /// Send this over the existing link, or open a link. If it cannot be sent, the daemon reports
    /// `LinkLost`.
    Send {
        /// The destination.
        to: HostId,
        /// The message.
        message: PeerMessage,
    },
    /// The address of a host, valid from now on.
    SetAddress {
        /// The host.
        host: HostId,
        /// The address at which the host accepts links.
        address: SocketAddr,
    },
    /// End every job and close every session on this host, and report [`MemberEvent::ResetDone`].
    ResetHost {
        /// The reason.
        reason: String,
    },
    /// A line for the log.
    Log(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The daemon requests a parent from the server at this time, for the first time or again.
    Joining { retry_at: MonotonicTime },
    /// The daemon has a parent. `confirmed`: a message from the parent has arrived.
    Attached { parent: HostId, confirmed: bool },
    /// The daemon cleans up.
    Resetting,
}

/// A daemon.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    state: State,
    host: Option<HostId>,
    server: Option<Incarnation>,
    attach: u32,
    /// An assigned parent that this daemon could not reach.
    unreachable_parent: Option<HostId>,
    /// Incarnation and attachment of each child.
    children: BTreeMap<HostId, (Incarnation, u32)>,
    /// Hosts that the children have reported since the last heartbeat.
    present_hosts: NodeSet,
    pending_joined: Vec<ChildJoined>,
    pending_lost: Vec<ChildLost>,
    /// When the pending changes are sent to the parent.
    flush_at: Option<MonotonicTime>,
    /// The time of the server's last heartbeat.
    last_beat_at: MonotonicTime,
    actions: Vec<MemberAction>,
}

impl Member {
    /// The state of a daemon that has just started and runs no jobs. Call [`Member::on`] with
    /// `Tick` at once.
    pub fn new(config: MemberConfig, now: MonotonicTime) -> Self {
        Self {
            state: State::Joining { retry_at: now },
            host: config.host_and_parent.map(|(host, _)| host),
            server: None,
            attach: 0,
            unreachable_parent: None,
            children: BTreeMap::new(),
            present_hosts: NodeSet::new(),
            pending_joined: Vec::new(),
            pending_lost: Vec::new(),
            flush_at: None,
            last_beat_at: now,
            actions: Vec::new(),
            config,
        }
    }

    /// This daemon's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.config.incarnation
    }

    /// The number of this host, once it was assigned.
    pub fn host(&self) -> Option<HostId> {
        self.host
    }

    /// The parent, if the daemon has one.
    pub fn parent(&self) -> Option<HostId> {
        match self.state {
            State::Attached { parent, .. } => Some(parent),
            _ => None,
        }
    }

    /// Handles one event.
    pub fn on(&mut self, event: MemberEvent, now: MonotonicTime) -> Vec<MemberAction> {
        match event {
            MemberEvent::Received { from, message } => self.on_message(from, message, now),
            MemberEvent::LinkLost { host, reason } => self.on_link_lost(host, reason, now),
            MemberEvent::ResetDone(incarnation) => self.on_reset_done(incarnation, now),
            MemberEvent::Tick => {}
        }
        self.tick(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`MemberEvent::Tick`] is due.
    pub fn deadline(&self) -> MonotonicTime {
        let next = match self.state {
            State::Joining { retry_at } => retry_at,
            State::Attached { .. } => self.flush_at.unwrap_or(MonotonicTime::MAX),
            State::Resetting => MonotonicTime::MAX,
        };
        next.min(self.fence_deadline()).min(self.reparent_deadline())
    }

    /// When the daemon looks for another parent because its parent sends no heartbeat.
    fn reparent_deadline(&self) -> MonotonicTime {
        match self.state {
            State::Attached { .. } => self.last_beat_at + self.config.times.silence * 3 / 2,
            _ => MonotonicTime::MAX,
        }
    }

    /// When the daemon ends all jobs on this host because no heartbeat of the server arrives.
    fn fence_deadline(&self) -> MonotonicTime {
        match (self.server, self.state) {
            (None, _) | (_, State::Resetting) => MonotonicTime::MAX,
            _ => self.last_beat_at + self.config.times.isolation_limit(),
        }
    }

    fn on_message(&mut self, from: HostId, message: PeerMessage, now: MonotonicTime) {
        if let State::Attached { parent, confirmed } = &mut self.state
            && *parent == from
        {
            *confirmed = true;
        }
        match message {
            PeerMessage::AssignParent(_)
            | PeerMessage::Reset { .. }
            | PeerMessage::Refused { .. }
                if from != SERVER =>
            {
                self.log(format!("host {from} sent a message that only the server may send"));
            }
            PeerMessage::Reset { incarnation, reason }
                if incarnation == self.config.incarnation =>
            {
                self.start_reset(&reason, now);
            }
            PeerMessage::Reset { .. } => {}
            // A new child has to find another parent. All other messages concern jobs that are
            // being ended.
            PeerMessage::AttachChild(_) if self.state == State::Resetting => {
                self.send(from, PeerMessage::ParentLost)
            }
            _ if self.state == State::Resetting => {}
            PeerMessage::AssignParent(assignment) => {
                if !self.belongs_to(assignment.server_incarnation, now) {
                    return;
                }
                // Changes that were sent to a parent that has never answered are lost with that
                // parent.
                let parent_unconfirmed = matches!(
                    self.state,
                    State::Attached { parent, confirmed: false } if parent != assignment.parent
                );
                if parent_unconfirmed {
                    self.lose_parent(now);
                }
                self.host = Some(assignment.host);
                self.last_beat_at = now;
                if let Some(address) = assignment.parent_address {
                    self.actions
                        .push(MemberAction::SetAddress { host: assignment.parent, address });
                }
                self.attach_to(assignment.parent);
            }
            // The parent may have been suspended while the server was restarted. Therefore the
            // server incarnation of this heartbeat is not checked.
            PeerMessage::Heartbeat(_) if self.parent() != Some(from) => {
                self.send(from, PeerMessage::DetachChild)
            }
            PeerMessage::Heartbeat(beat) => {
                // The same holds for a parent whose heartbeat names an earlier incarnation of this
                // daemon.
                let names_old_server = beat.child_incarnation != self.config.incarnation
                    && self.server.is_some_and(|server| server != beat.server_incarnation);
                if !names_old_server && self.belongs_to(beat.server_incarnation, now) {
                    self.on_beat(from, beat, now);
                }
            }
            PeerMessage::PresenceReport(hosts) => {
                if self.children.contains_key(&from) && self.present_hosts.union_fits(&hosts) {
                    self.present_hosts.union(&hosts);
                }
            }
            PeerMessage::AttachChild(member) if member.host == from => self.adopt(member, now),
            PeerMessage::ChildrenJoined(all) => {
                self.pending_joined.extend(all);
                self.schedule_flush(now);
            }
            PeerMessage::ChildrenLost(all) => {
                self.pending_lost.extend(all);
                self.schedule_flush(now);
            }
            PeerMessage::DetachChild => _ = self.children.remove(&from),
            PeerMessage::ParentLost if self.parent() == Some(from) => self.lose_parent(now),
            PeerMessage::ParentLost => {}
            PeerMessage::Refused { reason } => {
                self.log(format!("the server refuses this host: {reason}"))
            }
            _ => self.log(format!("host {from}: a message that is not for a daemon")),
        }
    }

    fn on_beat(&mut self, parent: HostId, beat: Heartbeat, now: MonotonicTime) {
        self.last_beat_at = now;
        for child in self.children.keys().copied().collect::<Vec<_>>() {
            self.beat_for(child, beat.server_incarnation)
                .into_iter()
                .for_each(|beat| self.send(child, beat));
        }
        let is_known =
            (beat.child_incarnation, beat.attach_seq) == (self.config.incarnation, self.attach);
        let mut present_hosts = std::mem::take(&mut self.present_hosts);
        if let Some(host) = self.host {
            present_hosts.insert(host.0);
        }
        self.send(parent, PeerMessage::PresenceReport(present_hosts));
        if !is_known {
            self.send(parent, PeerMessage::AttachChild(self.membership_record()));
        }
    }

    fn beat_for(&self, child: HostId, server: Incarnation) -> Option<PeerMessage> {
        let (child, attach) = *self.children.get(&child)?;
        Some(PeerMessage::Heartbeat(Heartbeat {
            server_incarnation: server,
            child_incarnation: child,
            attach_seq: attach,
        }))
    }

    fn membership_record(&self) -> DaemonInfo {
        DaemonInfo {
            host: self.host.unwrap_or(SERVER),
            incarnation: self.config.incarnation,
            address: self.config.address,
            server_incarnation: self.server,
            attach_seq: self.attach,
            memory: self.config.memory,
        }
    }

    fn adopt(&mut self, member: DaemonInfo, now: MonotonicTime) {
        let Some(parent) = self.host else {
            return self.send(member.host, PeerMessage::ParentLost);
        };
        let child = member.host;
        let known = self.children.get(&child).copied();
        if known.is_some_and(|(known_incarnation, known_attach)| {
            known_incarnation == member.incarnation && known_attach >= member.attach_seq
        }) {
            return;
        }
        self.children.insert(child, (member.incarnation, member.attach_seq));
        self.pending_joined.push(ChildJoined { daemon: member, parent });
        self.schedule_flush(now);
        let beat = self.server.and_then(|server| self.beat_for(child, server));
        beat.into_iter().for_each(|beat| self.send(child, beat));
    }

    /// Whether the jobs on this host belong to this server. If they belong to another server, this
    /// host resets itself.
    fn belongs_to(&mut self, server: Incarnation, now: MonotonicTime) -> bool {
        match self.server {
            Some(known) if known != server => {
                self.start_reset("the server was restarted", now);
                false
            }
            _ => {
                self.server = Some(server);
                true
            }
        }
    }

    fn attach_to(&mut self, parent: HostId) {
        if let Some(old_parent) = self.parent().filter(|old| *old != parent) {
            self.send(old_parent, PeerMessage::DetachChild);
        }
        self.attach += 1;
        self.unreachable_parent = None;
        self.state = State::Attached { parent, confirmed: false };
        self.send(parent, PeerMessage::AttachChild(self.membership_record()));
    }

    fn on_link_lost(&mut self, host: HostId, reason: String, now: MonotonicTime) {
        if let Some((incarnation, attach)) = self.children.remove(&host) {
            self.pending_lost.push(ChildLost { host, incarnation, attach_seq: attach, reason });
            self.schedule_flush(now);
        }
        match self.state {
            State::Attached { parent, confirmed } if parent == host => {
                self.lose_parent(now);
                self.unreachable_parent = (!confirmed).then_some(parent);
            }
            State::Joining { .. } if host == SERVER => {
                let retry_delay = self.config.times.silence / 20;
                self.state = State::Joining { retry_at: now + retry_delay };
            }
            _ => {}
        }
    }

    /// The parent is lost. Each child also looks for a new parent, and reports its own changes
    /// there.
    fn lose_parent(&mut self, now: MonotonicTime) {
        for child in std::mem::take(&mut self.children).into_keys() {
            self.send(child, PeerMessage::ParentLost);
        }
        self.pending_joined.clear();
        self.pending_lost.clear();
        self.present_hosts = NodeSet::new();
        self.flush_at = None;
        self.state = State::Joining { retry_at: now };
    }

    /// Leaves the parent before there is another one.
    fn leave_parent(&mut self, reason: &str, now: MonotonicTime) {
        if let (Some(parent), Some(host)) = (self.parent(), self.host) {
            let (incarnation, attach) = (self.config.incarnation, self.attach);
            let reason = reason.to_owned();
            self.send(
                parent,
                PeerMessage::ChildrenLost(vec![ChildLost {
                    host,
                    incarnation,
                    attach_seq: attach,
                    reason,
                }]),
            );
            self.send(parent, PeerMessage::DetachChild);
        }
        self.lose_parent(now);
    }

    fn start_reset(&mut self, reason: &str, now: MonotonicTime) {
        if self.state != State::Resetting {
            // No daemon may rely on the jobs of this host from now on, however long the cleanup
            // takes.
            self.leave_parent(reason, now);
            self.state = State::Resetting;
            self.actions.push(MemberAction::ResetHost { reason: reason.to_owned() });
        }
    }

    fn on_reset_done(&mut self, incarnation: Incarnation, now: MonotonicTime) {
        if self.state == State::Resetting {
            self.config.incarnation = incarnation;
            (self.server, self.attach, self.unreachable_parent) = (None, 0, None);
            self.config.host_and_parent = None;
            self.state = State::Joining { retry_at: now };
        }
    }

    fn schedule_flush(&mut self, now: MonotonicTime) {
        if self.pending_joined.len() + self.pending_lost.len() > MAX_PENDING_CHANGES {
            return self.lose_parent(now);
        }
        self.flush_at.get_or_insert(now + self.config.times.merge);
    }

    fn tick(&mut self, now: MonotonicTime) {
        if now >= self.fence_deadline() {
            self.start_reset("no heartbeat of the server for too long", now);
        }
        if now >= self.reparent_deadline()
            && let Some(parent) = self.parent()
        {
            self.leave_parent("no heartbeat from its parent", now);
            self.unreachable_parent = Some(parent);
        }
        if let State::Joining { retry_at } = self.state
            && now >= retry_at
        {
            // The request is repeated if no answer arrives in this time.
            self.state = State::Joining { retry_at: now + self.config.times.silence };
            if let Some((_, parent)) = self.config.host_and_parent.take() {
                self.attach_to(parent);
            } else {
                self.send_join();
            }
        }
        if let State::Attached { parent, .. } = self.state
            && self.flush_at.is_some_and(|flush| now >= flush)
        {
            self.flush_at = None;
            let (joined_hosts, lost_hosts) =
                (std::mem::take(&mut self.pending_joined), std::mem::take(&mut self.pending_lost));
            for chunk in joined_hosts.chunks(MAX_CHANGES_PER_MESSAGE) {
                self.send(parent, PeerMessage::ChildrenJoined(chunk.to_vec()));
            }
            for chunk in lost_hosts.chunks(MAX_CHANGES_PER_MESSAGE) {
                self.send(parent, PeerMessage::ChildrenLost(chunk.to_vec()));
            }
        }
    }

    fn send_join(&mut self) {
        let join = JoinRequest {
            name: self.config.name.clone(),
            incarnation: self.config.incarnation,
            address: self.config.address,
            server_incarnation: self.server,
            attach_seq: self.attach,
            unreachable_parent: self.unreachable_parent,
        };
        self.send(SERVER, PeerMessage::Join(join));
    }

    fn send(&mut self, to: HostId, message: PeerMessage) {
        self.actions.push(MemberAction::Send { to, message });
    }

    fn log(&mut self, line: String) {
        self.actions.push(MemberAction::Log(line));
    }
}
