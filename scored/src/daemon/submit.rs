//! Job requests of sessions: a request either starts a job or is refused with a reason. Requests
//! come from scruns. The daemons that come up on a job's hosts are handled here, too.

use std::net::SocketAddr;
use std::time::Instant;

use score_proto::client_session::JobMessage;
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::message::{ClientMessage, HostKind, JobSpec, Level, ServerMessage};
use score_proto::peer_message::{JoinRequest, SERVER};

use super::daemon_bringup::{BringupProgress, DaemonBringup};
use super::session::{ClientJob, ClientRequest, ClientSession};
use super::{Daemon, LAUNCHER_OUTPUT, LISTENER};
use crate::job::master::MasterEvent;
use crate::job::{exit_code, validate};

/// The largest number of messages of one session that are handled in one turn of the loop. Other
/// sessions wait for no more than these.
const REQUESTS_PER_TICK: usize = 64;

impl Daemon {
    /// Receives the requests of all sessions.
    pub(super) fn receive_from_sessions(&mut self) {
        let mut session_keys: Vec<usize> = self.sessions.keys().copied().collect();
        // Sessions are served in the order in which they connected.
        session_keys.sort_unstable();
        let is_service = self.service.is_some();
        for session_key in session_keys {
            let is_remote = self.sessions.get(&session_key).is_some_and(ClientSession::is_remote);
            // What another host has forwarded was bounded when the link was read.
            let max_requests = if is_remote { usize::MAX } else { REQUESTS_PER_TICK };
            for _ in 0..max_requests {
                let can_read = self.can_read_session(session_key);
                let Some(session) = self.sessions.get_mut(&session_key) else { break };
                let Some((job, request)) = can_read.then(|| session.next_request()).flatten()
                else {
                    break;
                };
                let job_id = session.job_id(job);
                let client_job = ClientJob { session_key, job };
                match request {
                    // Messages of single-user mode: here a job would run as the user of this
                    // daemon, which is root. A service accepts them from no session, local or
                    // forwarded, before or after a login.
                    ClientRequest::Submit(_) | ClientRequest::Open(_) if is_service => {
                        self.refuse(
                            ClientJob::session_itself(session_key),
                            "this scored runs in multi-user mode: log in first, and request jobs"
                                .to_owned(),
                            EXIT_REFUSED,
                        );
                    }
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
                    ClientRequest::ToJob(message) if job_id.is_none() => {
                        self.cancel_before_start(client_job, &message)
                    }
                    ClientRequest::ToJob(message) => {
                        self.step_master(job_id, MasterEvent::FromClient(message))
                    }
                    ClientRequest::ProtocolError => {
                        let jobs = session.job_ids();
                        jobs.into_iter().for_each(|job| self.drop_job(job));
                    }
                }
            }
        }
    }

    /// Whether there is room for what a session's messages cause. A session whose messages go to
    /// the server is not read while the link to the server is slow: then the client waits, and not
    /// this daemon's memory.
    pub(super) fn can_read_session(&self, session_key: usize) -> bool {
        let session = self.sessions.get(&session_key);
        !session.is_some_and(|session| session.is_forwarded) || !self.is_slow(SERVER)
    }

    /// A scrun submits a job.
    pub(super) fn submit(&mut self, client_job: ClientJob, spec: JobSpec) {
        if let Err(reason) = validate::check(&spec) {
            return self.refuse(client_job, reason, EXIT_REFUSED);
        }
        if self.scout.is_some() {
            return self.submit_in_scout(client_job, spec);
        }
        if spec.hosts.iter().all(|host| host.kind == HostKind::Local) && spec.hosts.len() == 1 {
            return self.begin(client_job, spec, None);
        }
        match self.bringup.as_ref().map(|bringup| bringup.endpoints_of(&spec.hosts)) {
            Some(Ok(daemons)) => self.begin(client_job, spec, Some(daemons)),
            Some(Err(reason)) => self.refuse(client_job, reason, EXIT_REFUSED),
            None => self.bring_up(client_job, spec),
        }
    }

    /// Starts daemons on the hosts of a job or of a scout session.
    pub(super) fn bring_up(&mut self, client_job: ClientJob, spec: JobSpec) {
        let registry = self.poll.registry();
        let tokens = [LISTENER, LAUNCHER_OUTPUT];
        let result = DaemonBringup::new(client_job, spec, &self.options, registry, tokens);
        match result {
            Err(reason) => self.refuse(client_job, reason, EXIT_FAILED),
            Ok((bringup, peers, notice)) => {
                self.bringup = Some(bringup);
                self.peers = Some(peers);
                notice.into_iter().for_each(|text| self.notice(client_job, Level::Info, text));
            }
        }
    }

    pub(super) fn refuse(&mut self, client_job: ClientJob, reason: String, code: u8) {
        if let Some(session) = self.sessions.get_mut(&client_job.session_key) {
            session.send(client_job.job, &ServerMessage::Refused { reason, code });
        }
    }

    /// The user cancels the job while it waits for its hosts.
    pub(super) fn cancel_before_start(&mut self, client_job: ClientJob, message: &ClientMessage) {
        let signal = match message {
            ClientMessage::Kill => libc::SIGKILL,
            ClientMessage::Signal(signal @ (libc::SIGINT | libc::SIGHUP | libc::SIGABRT)) => {
                *signal
            }
            _ => return,
        };
        let session = self.sessions.get_mut(&client_job.session_key);
        let (is_pending, session_id) =
            session.map_or((false, None), |one| (one.is_pending(client_job.job), one.id));
        let reason = match is_pending {
            true => "cancelled while the job waited for hosts",
            false => "cancelled before all hosts were up",
        };
        self.refuse(client_job, reason.to_owned(), exit_code::of_signal(signal));
        if let Some(session) = session_id {
            self.cancel_request(session, client_job.job);
        }
    }

    /// Advances the start of the daemons on the job's hosts.
    pub(super) fn advance_bringup(&mut self) {
        let Some(bringup) = &mut self.bringup else { return };
        let progress = bringup.advance(Instant::now());
        self.known_children.borrow_mut().extend(bringup.processes());
        self.report_bringup_progress(progress);
    }

    pub(super) fn report_bringup_progress(&mut self, progress: BringupProgress) {
        let Some(bringup) = &self.bringup else { return };
        let (client_job, has_begun) = (bringup.client_job, bringup.spec.is_none());
        for line in progress.lines {
            self.notice(client_job, Level::Warning, line);
        }
        if !has_begun && !progress.failures.is_empty() {
            self.refuse(client_job, progress.failures.join("\n"), EXIT_FAILED);
        }
    }

    /// A daemon has come up and joins.
    pub(super) fn on_join(&mut self, link_id: usize, join: &JoinRequest) {
        let remote_ip = self.peers.as_ref().and_then(|peers| peers.address(link_id));
        let Some(bringup) = &mut self.bringup else { return };
        // Other daemons connect to the IP address that this daemon sees and to the port in `join`.
        let address = remote_ip.map_or(join.address, |ip| SocketAddr::new(ip, join.address.port()));
        bringup.on_join(&join.name, (address, join.incarnation));
        let Some(daemons) = bringup.daemons() else { return };
        let client_job = bringup.client_job;
        match bringup.spec.take() {
            Some(_) if self.scout.is_some() => self.on_hosts_ready(Some(daemons)),
            Some(spec) => self.begin(client_job, spec, Some(daemons)),
            None => {}
        }
    }
}
