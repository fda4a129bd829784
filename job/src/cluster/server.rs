//! The state of the server, and the dispatch of each event.
//!
//! | file | contents |
//! |---|---|
//! | `membership.rs` | [`Membership`]: the hosts, and which of them are up |
//! | `jobs.rs` | logins and jobs |
//! | `host_selection.rs` | the selection of hosts for a job |
//! | `queries.rs` | queries of the daemon |

mod host_selection;
mod jobs;
mod membership;
mod queries;

use std::collections::BTreeMap;

use score_proto::ids::{HostId, JobId};
use score_proto::peer_message::{DaemonInfo, PeerMessage, SERVER};

use super::pending_queue::PendingQueue;
use super::{ClusterAction, ClusterConfig, ClusterEvent, MonotonicTime, SessionId};
pub use jobs::Summary;
use jobs::{ClusterJob, HeldShare, UserSession, UserUsage};
use membership::Membership;

/// The server's view of its cluster.
#[derive(Debug)]
pub struct ServerState {
    pub(super) config: ClusterConfig,
    pub(super) membership: Membership,
    /// The time of the last event.
    pub(super) now: MonotonicTime,
    pub(super) sessions: BTreeMap<SessionId, UserSession>,
    pub(super) users: BTreeMap<u32, UserUsage>,
    pub(super) spec_bytes: u64,
    pub(super) jobs: BTreeMap<JobId, ClusterJob>,
    /// The shares of lost hosts that stay in use for a time.
    held_shares: Vec<HeldShare>,
    pub(super) pending: PendingQueue,
    pub(super) next_job: JobId,
    /// Slots may have become free: the queue is scheduled at the end of the event.
    pub(super) needs_scheduling: bool,
    pub(super) actions: Vec<ClusterAction>,
}

impl ServerState {
    /// The state of a server that has just started: no other host has joined.
    pub fn new(config: ClusterConfig, now: MonotonicTime) -> Self {
        Self {
            membership: Membership::new(&config, now),
            now,
            sessions: BTreeMap::new(),
            users: BTreeMap::new(),
            spec_bytes: 0,
            jobs: BTreeMap::new(),
            held_shares: Vec::new(),
            pending: PendingQueue::default(),
            next_job: config.first_job.max(JobId(1)),
            needs_scheduling: false,
            actions: Vec::new(),
            config,
        }
    }

    /// Handles one event.
    pub fn on(&mut self, event: ClusterEvent, now: MonotonicTime) -> Vec<ClusterAction> {
        self.now = now;
        match event {
            ClusterEvent::Received { from, message } => self.on_message(from, message, now),
            ClusterEvent::LinkLost { host, reason } => {
                self.membership.on_link_lost(host, reason, now)
            }
            ClusterEvent::Login { session, user } => self.on_login(session, user),
            ClusterEvent::Submit { session, tag, request } => self.on_submit(session, tag, request),
            ClusterEvent::Cancel { session, tag } => self.on_cancel(session, tag, now),
            ClusterEvent::Logout { session } => {
                self.on_logout(session, "its scrun has disconnected", now)
            }
            ClusterEvent::Released { job, hosts } => self.on_released(job, &hosts),
            ClusterEvent::HostsLost { job, hosts } => self.on_hosts_lost(job, &hosts, now),
            ClusterEvent::Finished { job, code } => self.on_finished(job, code, now),
            ClusterEvent::KillJob(permit) => self.on_kill_job(&permit, now),
            ClusterEvent::Tick => {
                self.membership.on_tick(now);
                self.apply_membership(now);
                self.tick_jobs(now);
            }
        }
        self.apply_membership(now);
        if std::mem::take(&mut self.needs_scheduling) {
            self.schedule();
        }
        std::mem::take(&mut self.actions)
    }

    fn on_message(&mut self, from: HostId, message: PeerMessage, now: MonotonicTime) {
        match message {
            PeerMessage::Join(join) => self.membership.on_join(join, now),
            PeerMessage::AttachChild(member) if member.host == from => {
                self.on_joined(member, SERVER, now)
            }
            PeerMessage::ChildrenJoined(children) => {
                children
                    .into_iter()
                    .for_each(|child| self.on_joined(child.daemon, child.parent, now));
            }
            PeerMessage::ChildrenLost(lost_hosts) => {
                lost_hosts.into_iter().for_each(|lost| self.membership.on_lost(lost, now))
            }
            PeerMessage::PresenceReport(hosts) => self.membership.on_present(&hosts, now),
            // The new parent of the child reports the child again.
            PeerMessage::DetachChild => {}
            other => {
                let text: String = format!("{other:?}").chars().take(60).collect();
                self.log(format!("host {from}: unexpected message {text}"));
            }
        }
    }

    fn on_joined(&mut self, member: DaemonInfo, parent: HostId, now: MonotonicTime) {
        self.needs_scheduling |= self.membership.on_joined(member, parent, now);
    }

    /// Takes the actions of the membership. When a host is down, its jobs and sessions end.
    fn apply_membership(&mut self, now: MonotonicTime) {
        for action in self.membership.take_actions() {
            let down = match &action {
                ClusterAction::HostDown { host, reason, .. } => Some((*host, reason.clone())),
                _ => None,
            };
            self.actions.push(action);
            if let Some((host, reason)) = down {
                self.on_host_down(host, &reason, now);
            }
        }
    }

    /// When [`ClusterEvent::Tick`] is due.
    pub fn deadline(&self) -> MonotonicTime {
        let jobs = self.jobs.values().filter_map(ClusterJob::deadline);
        let held_shares = self.held_shares.iter().map(HeldShare::deadline);
        jobs.chain(held_shares).fold(self.membership.deadline(), MonotonicTime::min)
    }

    /// The number of the host with this name.
    pub fn host_named(&self, name: &str) -> Option<HostId> {
        self.membership.host_named(name)
    }

    /// The name of a host.
    pub fn name(&self, host: HostId) -> &str {
        self.membership.name(host)
    }

    /// Whether jobs can be placed on a host now.
    pub fn is_up(&self, host: HostId) -> bool {
        self.membership.is_up(host)
    }

    /// The address at which a host accepts links. The daemons of a job use it to connect to each
    /// other.
    pub fn address(&self, host: HostId) -> Option<std::net::SocketAddr> {
        self.membership.address(host)
    }

    pub(super) fn log(&mut self, line: String) {
        self.actions.push(ClusterAction::Log(line));
    }
}
