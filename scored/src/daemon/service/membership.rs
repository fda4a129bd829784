//! Passes messages between the links and the cluster state machines, and carries out the actions of
//! the state machines.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use score_job::cluster::{self, tree_member};
use score_job::jobs::{Input, LinkId};
use score_proto::client_session::SESSION_JOB;
use score_proto::exit_code::EXIT_SERVER_LOST;
use score_proto::ids::HostId;
use score_proto::message::Level;
use score_proto::peer_message::{Incarnation, PeerMessage, SERVER};
use score_proto::server_message::ServerMessage;
use score_sys::random::random_u64;

use super::super::Daemon;
use super::super::event_sources::EventSources;
use super::super::peers::Peers;
use super::super::sessions::Sessions;
use super::{LogTopic, Role, Service, info, warn};

/// How long a reset of this host waits for the end of killed shepherds.
const RESET_GRACE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Handles a message about the cluster or a session that has arrived over a link.
    pub fn on_cluster_message(&mut self, link_id: LinkId, message: PeerMessage) {
        let Some(service) = &mut self.service else { return };
        let name = self.peers.as_ref().and_then(|peers| peers.name_of(link_id));
        let from = name.and_then(|name| service.host_named(name));
        match message {
            PeerMessage::Login { .. }
            | PeerMessage::RenewVoucher { .. }
            | PeerMessage::SessionClientMessage { .. }
            | PeerMessage::SessionServerMessage { .. }
            | PeerMessage::ForwardCredit { .. }
            | PeerMessage::SessionEnded { .. } => match from {
                Some(from) => self.on_session_message(from, message),
                None => {
                    service.warn_about(
                        LogTopic::DaemonPort,
                        "login message from a host that is not in the cluster",
                    );
                }
            },
            PeerMessage::Hello(_) | PeerMessage::Order { .. } | PeerMessage::Report { .. } => {}
            message => {
                // A daemon without a number joins by name. Its message gets a number that no host
                // has.
                let from = from.unwrap_or(HostId(u32::MAX));
                match service.is_server() {
                    true => self.step_server(cluster::ClusterEvent::Received { from, message }),
                    false => self.step_member(tree_member::MemberEvent::Received { from, message }),
                }
            }
        }
    }

    /// Passes lost links and clock ticks to the cluster state machine.
    pub fn tick_cluster(&mut self) {
        let Some(service) = &mut self.service else { return };
        let is_server = service.is_server();
        let is_due = service.deadline(Instant::now()).is_zero();
        for (host, reason) in std::mem::take(&mut service.unreachable_hosts) {
            match is_server {
                true => self.step_server(cluster::ClusterEvent::LinkLost { host, reason }),
                false => self.step_member(tree_member::MemberEvent::LinkLost { host, reason }),
            }
        }
        match is_server {
            _ if !is_due => {}
            true => self.step_server(cluster::ClusterEvent::Tick),
            false => self.step_member(tree_member::MemberEvent::Tick),
        }
    }

    /// Handles the loss of a link.
    pub fn on_cluster_link_lost(&mut self, name: Option<&str>, reason: &str) {
        let Some(service) = &mut self.service else { return };
        match name.and_then(|name| Some((name, service.host_named(name)?))) {
            Some((name, host)) => {
                let other_link = self.peers.as_ref().and_then(|peers| peers.link_to(name));
                if other_link.is_none() {
                    service.unreachable_hosts.push((host, reason.to_owned()));
                }
                if host == SERVER && !service.is_server() && other_link.is_none() {
                    service.on_server_lost(reason, &mut self.sessions);
                }
            }
            None => service.warn_about(
                LogTopic::DaemonPort,
                &format!("a connection to the daemons' port was dropped: {reason}"),
            ),
        }
    }

    /// Passes an event to the server's state machine and carries out its actions.
    pub fn step_server(&mut self, event: cluster::ClusterEvent) {
        let Some(service) = &mut self.service else { return };
        let now = service.now();
        let Role::Server(cluster) = &mut service.role else { return };
        for action in cluster.on(event, now) {
            self.apply_server_action(action);
        }
    }

    fn apply_server_action(&mut self, action: cluster::ClusterAction) {
        use cluster::ClusterAction;
        let Some(service) = &mut self.service else { return };
        match action {
            ClusterAction::Send { to, message } => self.send_to_host(to, message),
            ClusterAction::HostUp { host, .. } => {
                info(&format!("host {} is up", service.name(host).unwrap_or("?")));
            }
            ClusterAction::HostDown { host, reason, .. } => {
                warn(&reason);
                if let (Some(name), Some(peers)) = (service.name(host), &mut self.peers) {
                    peers.close_links_to(name, &reason);
                }
            }
            ClusterAction::Queued { session, tag, job } => {
                let client_job = service.client_job(session, tag);
                if let Some((client_job, text)) = client_job.zip(service.queue_text(job)) {
                    self.sessions.notice(client_job, Level::Info, text);
                }
            }
            ClusterAction::Refused { session, tag, reason } => {
                let client_job = service.client_job(session, tag).into_iter();
                client_job.for_each(|one| self.sessions.refuse(one, reason.clone(), 2));
            }
            ClusterAction::Start { session, tag, job, shares: allocations, incarnations } => {
                let client_job = service.client_job(session, tag);
                self.start_job(client_job, job, &allocations, &incarnations);
            }
            ClusterAction::End { job, reason } => {
                let reason = format!("job {job} is ended: {reason}");
                self.jobs.on(Input::Fail { job, code: EXIT_SERVER_LOST, reason });
            }
            ClusterAction::Ended { session, tag, job, code: _, reason } => {
                if let Some(client_job) = service.client_job(session, tag) {
                    self.sessions.on_job_ended(client_job, job, reason);
                }
            }
            ClusterAction::SessionClosed { session, reason } => {
                let client_job = service.client_job(session, SESSION_JOB).into_iter();
                client_job.for_each(|one| self.sessions.refuse(one, reason.clone(), 2));
            }
            ClusterAction::Log(line) => warn(&line),
        }
    }

    /// Passes an event to the state machine of a host that is not the server.
    fn step_member(&mut self, event: tree_member::MemberEvent) {
        let Some(service) = &mut self.service else { return };
        let now = service.now();
        let Role::Host(member) = &mut service.role else { return };
        for action in member.on(event, now) {
            match action {
                tree_member::MemberAction::Send { to, message } => self.send_to_host(to, message),
                tree_member::MemberAction::SetAddress { host, address } => {
                    let service = self.service.as_mut();
                    service.and_then(|service| service.host_addresses.insert(host, address));
                }
                tree_member::MemberAction::ResetHost { reason } => self.reset_host(&reason),
                tree_member::MemberAction::Log(line) => warn(&line),
            }
        }
    }

    /// Ends everything that runs on this host. A new incarnation begins when that is complete.
    fn reset_host(&mut self, reason: &str) {
        warn(&format!("every job of this host is ended: {reason}"));
        self.jobs.on(Input::AbortAllHere);
        self.dispatch_pending();
        for session in self.sessions.iter_mut().filter(|session| session.is_forwarded()) {
            let reason = format!("the cluster was lost: {reason}");
            session.send(&ServerMessage::refusal(SESSION_JOB, reason, EXIT_SERVER_LOST));
        }
        let service = self.service.iter_mut();
        service.for_each(|one| one.reset_deadline = Some(Instant::now() + RESET_GRACE));
        self.finish_reset();
    }

    /// Begins the new incarnation once the jobs of the old one have ended or `RESET_GRACE` has
    /// passed.
    pub(in super::super) fn finish_reset(&mut self) {
        let Some(service) = &mut self.service else { return };
        let Some(deadline) = service.reset_deadline else { return };
        if self.host_jobs.is_ending() && Instant::now() < deadline {
            return;
        }
        service.reset_deadline = None;
        let incarnation = Incarnation(random_u64());
        self.peers.iter_mut().for_each(|peers| peers.reset_incarnation(incarnation));
        self.update_identity();
        self.step_member(tree_member::MemberEvent::ResetDone(incarnation));
    }

    /// Whether messages wait for the link to a host.
    pub(in super::super) fn is_slow_to(&self, to: HostId) -> bool {
        let name = self.service.as_ref().and_then(|service| service.name(to));
        name.zip(self.peers.as_ref()).is_some_and(|(name, peers)| peers.is_slow_to(name))
    }

    /// Sends a message to a host. Connects to the host if there is no link.
    pub fn send_to_host(&mut self, to: HostId, message: PeerMessage) {
        if let (Some(service), Some(peers)) = (&mut self.service, &mut self.peers) {
            service.send(to, message, peers, &mut self.sources);
        }
    }
}

impl Service {
    /// Ends the sessions of this host's users, because the server that led their jobs is lost.
    fn on_server_lost(&self, reason: &str, sessions: &mut Sessions) {
        let name = self.name(SERVER).unwrap_or_default();
        let text = format!("the scored of {name}, the server, is lost: {reason}");
        warn(&text);
        for session in sessions.iter_mut().filter(|session| session.is_forwarded()) {
            session.send(&ServerMessage::notice(SESSION_JOB, Level::Error, text.clone()));
            let reason = "all jobs of this login are ended".to_owned();
            session.send(&ServerMessage::refusal(SESSION_JOB, reason, EXIT_SERVER_LOST));
        }
    }

    fn send(
        &mut self,
        to: HostId,
        message: PeerMessage,
        peers: &mut Peers,
        sources: &mut EventSources,
    ) {
        let Some(name) = self.name(to) else { return };
        let link_id = peers.link_to(name).map_or_else(
            || {
                let address = self.address(to).ok_or("its address is not known")?;
                let linked = peers.connect(name, address, sources);
                linked.map_err(|error| format!("{address}: {error}"))
            },
            Ok,
        );
        match link_id {
            Ok(link_id) => _ = peers.send(link_id, message),
            Err(reason) => self.unreachable_hosts.push((to, reason)),
        }
    }

    /// The address of the daemon of a host, if it is known.
    fn address(&self, host: HostId) -> Option<SocketAddr> {
        match &self.role {
            Role::Server(cluster) => cluster.address(host),
            Role::Host(_) if host == SERVER => Some(self.config.server),
            Role::Host(_) => self.host_addresses.get(&host).copied(),
        }
    }
}
