//! The requests of sessions. This module reads them within the limits of each user, and starts or
//! refuses jobs. It also handles the daemons that join for a job in single-user mode.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use score_job::cluster::ClusterEvent;
use score_job::jobs::{ClientJob, Input, LinkId, SessionKey};
use score_job::{exit_code, validate};
use score_proto::client_session::JobMessage;
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::ids::JobId;
use score_proto::message::{HostKind, JobRequest, JobSpec, Level};
use score_proto::peer_message::{JoinRequest, SERVER};

use super::Daemon;
use super::client_request::{ClientRequest, Readiness};
use super::daemon_bringup::DaemonBringup;
use super::event_sources::{LAUNCHER_OUTPUT, LISTENER};
use super::session::ClientSession;
use super::session_transport::RemoteClient;

/// The maximum number of messages of one session that are handled in a turn of the loop.
const REQUESTS_PER_TURN: usize = 64;
/// The result of an attempt to receive a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Received {
    /// A request was received and handled.
    Request,
    /// Less than a request was received. The attempt also took time.
    Incomplete,
    /// The session was not read, because it has to wait.
    NotRead,
}

impl Daemon {
    /// Receives requests of all sessions. The number of requests per session and the time per user
    /// are limited, so that other users do not wait long.
    pub(super) fn receive_from_sessions(&mut self) {
        let mut user_time_left: HashMap<u32, Duration> = HashMap::new();
        let user_window = self.loop_clock.user_window();
        let now = Instant::now();
        self.usage.refill_time(now, self.host_jobs.owner_uids());
        self.sessions.wake(|uid| self.usage.may_be_read(uid, now), REQUESTS_PER_TURN);
        let has_work = |session: &ClientSession| {
            session.may_have_more() || session.frame_deadline().is_some_and(|due| due <= now)
        };
        let sessions = self.sessions.active().filter(|(_, session)| has_work(session));
        let mut session_keys: Vec<SessionKey> = sessions.map(|(key, _)| key).collect();
        // A user's sessions share the limit on messages to all hosts. The session that has used it
        // comes last, so that the other sessions are also read.
        let last_control = self.sessions.last_control;
        let next = session_keys.partition_point(|key| Some(*key) <= last_control);
        session_keys.rotate_left(next);
        for session_key in session_keys {
            let uid = self.sessions.get(session_key).and_then(ClientSession::uid);
            for _ in 0..REQUESTS_PER_TURN {
                let started_at = Instant::now();
                let time_left = uid.and_then(|uid| user_time_left.get(&uid));
                if time_left.is_some_and(Duration::is_zero) {
                    break;
                }
                let received = self.receive_request(session_key, started_at);
                if let Some(uid) = uid
                    && received != Received::NotRead
                {
                    let time_used = started_at.elapsed();
                    let time_left = user_time_left.entry(uid).or_insert(user_window);
                    *time_left = time_left.saturating_sub(time_used);
                    self.usage.charge_time(uid, time_used);
                }
                if received != Received::Request {
                    break;
                }
            }
        }
        self.loop_clock.set_request_time(now.elapsed());
        let share = self.loop_clock.overhead_share(user_time_left.len());
        user_time_left.into_keys().for_each(|uid| self.usage.charge_time(uid, share));
    }

    /// Receives and handles the next request of a session.
    fn receive_request(&mut self, session_key: SessionKey, now: Instant) -> Received {
        let readiness = self.readiness(session_key, now);
        let Some(session) = self.sessions.get_mut(session_key) else { return Received::NotRead };
        let is_read = readiness == Readiness::Ready && session.is_reading();
        let request = session.next_request(readiness, now);
        let handled_cost = session.remote_mut().map_or(0, RemoteClient::take_handled_cost);
        if let (Some(service), Some(id)) = (&mut self.service, session.id()) {
            service.add_forward_credit(id, handled_cost);
        }
        let Some((job, request)) = request else {
            return if is_read { Received::Incomplete } else { Received::NotRead };
        };
        if request.goes_to_all_hosts() {
            session.take_control(&mut self.usage, now);
            self.sessions.last_control = Some(session_key);
        }
        let Some(session) = self.sessions.get_mut(session_key) else { return Received::NotRead };
        let job_id = session.job_id(job);
        let client_job = ClientJob { session_key, job };
        match request {
            ClientRequest::Submit(spec) => {
                session.add_job(job, None);
                self.submit(client_job, spec);
            }
            ClientRequest::Open(hosts) => self.open_scout(session_key, hosts),
            ClientRequest::Login(login) => self.log_in(session_key, login),
            ClientRequest::Request(allocation, spec) => {
                self.request_job(client_job, allocation, *spec)
            }
            ClientRequest::Console(console) => self.console(session_key, console),
            ClientRequest::Forward(message) => {
                self.forward_to_server(session_key, &JobMessage { job, message })
            }
            ClientRequest::ToJob(message) => match job_id {
                Some(job) => self.jobs.on(Input::FromSession(job, message)),
                None => self.cancel_before_start(client_job, &message),
            },
            ClientRequest::Handled => {}
            ClientRequest::ProtocolError => {
                let jobs = session.job_ids();
                jobs.into_iter().for_each(|job| self.drop_job(job));
            }
        }
        Received::Request
    }

    /// Ends a job whose session has ended. A service kills the job and waits for its end, because
    /// the hosts do not become free for other jobs earlier.
    pub(super) fn drop_job(&mut self, job: JobId) {
        match self.service {
            Some(_) => self.jobs.on(Input::FromSession(job, JobRequest::Kill)),
            None => self.jobs.on(Input::Abort(job)),
        }
    }

    /// Whether the daemon can handle the next message of a session. If it cannot, the client waits.
    /// This bounds the daemon's memory. It also prevents the loss of a link that all users share.
    pub(super) fn readiness(&self, session_key: SessionKey, now: Instant) -> Readiness {
        let Some(session) = self.sessions.get(session_key) else { return Readiness::Blocked };
        let uid = session.uid();
        if uid.is_some_and(|uid| !self.usage.has_session_room(uid)) {
            return Readiness::NoRoom;
        }
        if uid.is_some_and(|uid| !self.usage.has_time(uid)) {
            return Readiness::NoTime;
        }
        let may_forward = |uid| !session.is_forwarded() || self.usage.has_forward_room(uid);
        let has_control_limit = session.next_control_at(&self.usage, now).is_some();
        if has_control_limit || uid.is_some_and(|uid| !may_forward(uid)) {
            return Readiness::Blocked;
        }
        // The message or the login may be forwarded to the server.
        let may_go_to_server = session.is_forwarded() || session.owner().is_none();
        let is_blocked = may_go_to_server && self.is_slow_to(SERVER)
            || session
                .job_ids()
                .into_iter()
                .chain(self.jobs.state().job_of_tool_session(session_key))
                .any(|job| self.is_slow_to_take_orders(job));
        if is_blocked { Readiness::Blocked } else { Readiness::Ready }
    }

    /// Whether many orders for a job wait for a shepherd, or an order waits for a link.
    fn is_slow_to_take_orders(&self, job_id: JobId) -> bool {
        let is_led_here = self.jobs.state().parent_link(job_id).is_none();
        let is_slow = |link| self.peers.as_ref().is_some_and(|peers| peers.is_slow(link));
        is_led_here && self.host_jobs.has_order_backlog(job_id)
            || self.jobs.state().led_links(job_id).any(is_slow)
    }

    /// Starts or refuses a job of single-user mode.
    pub(super) fn submit(&mut self, client_job: ClientJob, mut spec: JobSpec) {
        if let Err(reason) = validate::check(&spec) {
            return self.sessions.refuse(client_job, reason, EXIT_REFUSED);
        }
        if let Some(scout) = &self.single_user.scout {
            return match scout.place(client_job.session_key, &mut spec) {
                Ok(daemons) => self.begin(client_job, spec, daemons),
                Err((reason, code)) => self.sessions.refuse(client_job, reason, code),
            };
        }
        if spec.hosts.iter().all(|host| host.kind == HostKind::Local) && spec.hosts.len() == 1 {
            return self.begin(client_job, spec, None);
        }
        match self.single_user.endpoints_of(&spec) {
            Ok(Some(daemons)) => self.begin(client_job, spec, Some(daemons)),
            Ok(None) => self.bring_up(client_job, spec),
            Err(reason) => self.sessions.refuse(client_job, reason, EXIT_REFUSED),
        }
    }

    /// Starts the daemons of a job or a scout session.
    pub(super) fn bring_up(&mut self, client_job: ClientJob, spec: JobSpec) {
        let registry = self.sources.registry();
        let tokens = [LISTENER, LAUNCHER_OUTPUT];
        let result = DaemonBringup::new(client_job, spec, &self.options, registry, tokens);
        match result {
            Err(reason) => self.sessions.refuse(client_job, reason, EXIT_FAILED),
            Ok((bringup, peers, notice)) => {
                self.single_user.bringup = Some(bringup);
                self.peers = Some(peers);
                self.update_identity();
                notice
                    .into_iter()
                    .for_each(|text| self.sessions.notice(client_job, Level::Info, text));
            }
        }
    }

    /// Cancels a job that has not begun.
    pub(super) fn cancel_before_start(&mut self, client_job: ClientJob, message: &JobRequest) {
        let signal = match message {
            JobRequest::Kill => libc::SIGKILL,
            JobRequest::Signal(signal @ (libc::SIGINT | libc::SIGHUP | libc::SIGABRT)) => *signal,
            _ => return,
        };
        let session = self.sessions.get_mut(client_job.session_key);
        let (is_pending, session_id) =
            session.map_or((false, None), |one| (one.is_pending(client_job.job), one.id()));
        let reason = match is_pending {
            true => "cancelled while the job waited for hosts",
            false => "cancelled before all hosts were up",
        };
        self.sessions.refuse(client_job, reason.to_owned(), exit_code::of_signal(signal));
        if let Some(session) = session_id {
            self.step_server(ClusterEvent::Cancel { session, tag: client_job.job });
        }
    }

    /// Handles the join of a daemon that this daemon has started. After the last join, the job
    /// begins.
    pub(super) fn on_join(&mut self, link_id: LinkId, join: &JoinRequest) {
        let peers = self.peers.as_ref();
        let remote_ip = peers.and_then(|peers| peers.address(link_id));
        let reached_at = peers.and_then(|peers| peers.local_address(link_id));
        let Some(bringup) = &mut self.single_user.bringup else { return };
        // Other daemons connect to the IP address of this link and to the port in `join`.
        let address = remote_ip.map_or(join.address, |ip| SocketAddr::new(ip, join.address.port()));
        bringup.on_join(&join.name, (address, join.incarnation), reached_at);
        let Some(daemons) = bringup.daemons() else { return };
        let client_job = bringup.client_job;
        let Some(spec) = bringup.spec.take() else { return };
        match &mut self.single_user.scout {
            Some(scout) => {
                let registry = self.sources.registry();
                scout.on_hosts_ready(Some(daemons), &mut self.sessions, registry);
            }
            None => self.begin(client_job, spec, Some(daemons)),
        }
    }
}
