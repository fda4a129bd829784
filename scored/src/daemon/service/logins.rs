//! Logins: clients of the local socket, and logins that the daemons of other hosts forward.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use score_proto::client_session::{JobMessage, SESSION_JOB};
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::frame;
use score_proto::job_control::{self, Limit};
use score_proto::message::{ClientMessage, Login, ServerMessage};
use score_proto::peer_message::{HostId, PeerMessage, SERVER, User};

use super::super::session::{ClientJob, ClientSession};
use super::super::{Daemon, TokenOwner};
use super::{Role, info};
use crate::cluster::{self, SessionId};

/// Clients without login at the same time. If there are more, the user with the most of them loses
/// the oldest.
const MAX_UNAUTHENTICATED: usize = 256;
/// A client is not dropped earlier than this.
const EVICTION_GRACE: Duration = Duration::from_secs(1);
/// How long a client may take to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest number of resource limits in a login.
const MAX_RLIMITS: usize = 32;
/// The longest user name, in bytes.
const MAX_USER_NAME_LEN: usize = 256;

impl Daemon {
    /// Accepts clients of the local socket, within [`MAX_UNAUTHENTICATED`].
    pub fn accept_local_clients(&mut self) {
        if self.service.is_none() {
            return;
        }
        let is_timed_out = |session: &ClientSession| session.connected_at.elapsed() > LOGIN_TIMEOUT;
        let timed_out: Vec<usize> = self
            .unauthenticated()
            .filter(|(_, session)| is_timed_out(session))
            .map(|(session_key, _)| session_key)
            .collect();
        timed_out.into_iter().for_each(|session_key| self.drop_unauthenticated(session_key));
        let mut unauthenticated_count = self.unauthenticated().count();
        while unauthenticated_count < MAX_UNAUTHENTICATED || self.evict_unauthenticated() {
            let Some(service) = &mut self.service else { return };
            let Some(client) = service.listener.accept() else { return };
            let session_key = self.next_token;
            let token = self.allocate_token(TokenOwner::Session(session_key));
            let Ok(mut session) = ClientSession::new(client.socket, self.poll.registry(), token)
            else {
                self.token_owners.remove(&token);
                continue;
            };
            session.peer_credentials = Some(client.credentials);
            self.sessions.insert(session_key, session);
            unauthenticated_count += 1;
        }
    }

    /// Clients that have not logged in and whose session is not closing.
    fn unauthenticated(&self) -> impl Iterator<Item = (usize, &ClientSession)> {
        let is_unauthenticated =
            |session: &&ClientSession| session.owner.is_none() && !session.is_closing();
        let sessions = self.sessions.iter().map(|(session_key, session)| (*session_key, session));
        sessions.filter(move |(_, session)| {
            session.peer_credentials.is_some() && is_unauthenticated(session)
        })
    }

    /// Drops a client to make room for another one. False if no client is old enough for that.
    fn evict_unauthenticated(&mut self) -> bool {
        if !self.service.as_ref().is_some_and(|service| service.listener.may_accept) {
            return false;
        }
        let mut by_uid: HashMap<u32, Vec<(Instant, usize)>> = HashMap::new();
        for (session_key, session) in self.unauthenticated() {
            let uid = session.peer_credentials.map_or(0, |(uid, _)| uid);
            by_uid.entry(uid).or_default().push((session.connected_at, session_key));
        }
        let largest_group = by_uid.into_values().max_by_key(Vec::len);
        let oldest = largest_group.and_then(|group| group.into_iter().min());
        match oldest.filter(|(since, _)| since.elapsed() > EVICTION_GRACE) {
            Some((_, session_key)) => {
                self.drop_unauthenticated(session_key);
                true
            }
            None => false,
        }
    }

    fn drop_unauthenticated(&mut self, session_key: usize) {
        let (Some(session), Some(service)) =
            (self.sessions.get_mut(&session_key), &mut self.service)
        else {
            return;
        };
        let uid = session.peer_credentials.map_or(0, |(uid, _)| uid);
        let reason = "no login before the time-out".to_owned();
        session.send(SESSION_JOB, &ServerMessage::Refused { reason, code: EXIT_FAILED });
        let text = format!("uid {uid}: no login before the time-out: connection closed");
        service.warn_rate_limited(true, &text);
    }

    /// The time until a client's login times out or the next client can be accepted, if any.
    pub fn login_deadline(&self) -> Option<Duration> {
        let service = self.service.as_ref()?;
        // Not at once: if descriptors have run out, nothing can be done now.
        let retry_delay = Duration::from_millis(20);
        if service.listener.may_accept && self.unauthenticated().count() < MAX_UNAUTHENTICATED {
            // Some clients have logged in since the limit was reached.
            return Some(if service.listener.can_accept_now() {
                Duration::ZERO
            } else {
                retry_delay
            });
        }
        let since = self.unauthenticated().map(|(_, session)| session.connected_at).min()?;
        let timeout = if service.listener.may_accept { EVICTION_GRACE } else { LOGIN_TIMEOUT };
        Some((since + timeout).saturating_duration_since(Instant::now()).max(retry_delay))
    }

    /// A client logs in.
    pub fn log_in(&mut self, session_key: usize, login: Login) {
        let Some(service) = &mut self.service else {
            return self.refuse(
                ClientJob::session_itself(session_key),
                "this scored serves one user only".to_owned(),
                EXIT_REFUSED,
            );
        };
        let Some(session) = self.sessions.get_mut(&session_key) else { return };
        let Some((uid, gid)) = session.peer_credentials.filter(|_| session.owner.is_none()) else {
            return;
        };
        let refusal = if login.uid != uid {
            let text = format!("uid {uid} has claimed to be uid {}: refused", login.uid);
            service.warn_rate_limited(true, &text);
            Some(format!("login refused: the claimed uid differs from your uid {uid}"))
        } else if login.limits.len() > MAX_RLIMITS || login.name.0.len() > MAX_USER_NAME_LEN {
            Some("the login is too long".to_owned())
        } else {
            service.config.check(&login.cluster).err()
        };
        if let Some(reason) = refusal {
            return self.refuse(ClientJob::session_itself(session_key), reason, EXIT_REFUSED);
        }
        // What the client claims does not count: without limits it would get those of the service.
        let limits = match session.peer_limits() {
            Ok(limits) => limits,
            Err(error) => {
                let reason = format!("login refused: the limits of your process: {error}");
                return self.refuse(ClientJob::session_itself(session_key), reason, EXIT_REFUSED);
            }
        };
        let Login { name, .. } = login;
        session.owner =
            Some(job_control::Owner { uid, gid, name: name.clone(), limits: limits.clone() });
        let user = User { uid, gid, name };
        if service.verbose {
            info(&format!("uid {uid} has logged in"));
        }
        let id = |host, incarnation| SessionId { host, incarnation, number: session_key as u64 };
        match &service.role {
            Role::Server(cluster) => {
                let id = id(SERVER, cluster.server_incarnation());
                session.id = Some(id);
                self.step_server(cluster::ClusterEvent::Login { session: id, user });
            }
            Role::Host(member) if member.parent().is_none() => {
                let server = service.name(SERVER).unwrap_or_default();
                let reason =
                    format!("the scored of this host has no connection to the server, {server}");
                self.refuse(ClientJob::session_itself(session_key), reason, EXIT_FAILED);
            }
            Role::Host(member) => {
                session.id = Some(id(member.host().unwrap_or(SERVER), member.incarnation()));
                session.is_forwarded = true;
                let session = session_key as u64;
                self.send_to_host(SERVER, PeerMessage::Login { session, user, limits });
            }
        }
    }

    /// Forwards a message to the server.
    pub fn forward_to_server(&mut self, session_key: usize, message: &JobMessage<ClientMessage>) {
        match frame::encode_datagram(message) {
            Ok(body) => {
                let session = session_key as u64;
                self.send_to_host(SERVER, PeerMessage::SessionClientMessage { session, body });
            }
            Err(error) => {
                self.refuse(ClientJob::session_itself(session_key), error.to_string(), EXIT_FAILED)
            }
        }
    }

    /// A message about a session: from the session's host to the server, or from the server.
    pub fn on_session_message(&mut self, from: HostId, message: PeerMessage) {
        match message {
            PeerMessage::Login { session, user, limits } => {
                self.log_in_remote(from, session, user, limits)
            }
            PeerMessage::SessionClientMessage { session, body } => {
                let remote = self.remote_session(from, session);
                match (remote, frame::decode_datagram(&body)) {
                    (Some(remote), Ok(message)) => remote.deliver(message),
                    (Some(remote), Err(error)) => {
                        let reason = format!("from scrun: {error}");
                        remote.send(
                            SESSION_JOB,
                            &ServerMessage::Refused { reason, code: EXIT_FAILED },
                        );
                    }
                    (None, _) => {}
                }
            }
            PeerMessage::SessionServerMessage { session, body } if from == SERVER => {
                let local_key = usize::try_from(session).ok();
                let local_session =
                    local_key.and_then(|session_key| self.sessions.get_mut(&session_key));
                if let (Some(local_session), Ok(message)) =
                    (local_session, frame::decode_datagram::<JobMessage<ServerMessage>>(&body))
                    && local_session.is_forwarded
                {
                    local_session.send(message.job, &message.message);
                }
            }
            PeerMessage::SessionEnded { session, reason } => match self
                .remote_session(from, session)
            {
                Some(remote) => remote.mark_closed(),
                None if from == SERVER => {
                    let session_key = usize::try_from(session).unwrap_or(usize::MAX);
                    if self.sessions.get(&session_key).is_some_and(|session| session.is_forwarded) {
                        self.refuse(ClientJob::session_itself(session_key), reason, EXIT_FAILED);
                    }
                }
                None => {}
            },
            _ => {}
        }
    }

    fn remote_session(&mut self, from: HostId, session: u64) -> Option<&mut ClientSession> {
        let session_key = self.service.as_ref()?.remote_sessions.get(&(from, session))?;
        self.sessions.get_mut(session_key)
    }

    fn log_in_remote(&mut self, from: HostId, session: u64, user: User, limits: Vec<Limit>) {
        let session_key = self.next_token;
        self.next_token += 1;
        let Some(service) = &mut self.service else { return };
        let Role::Server(cluster) = &service.role else { return };
        let Some(incarnation) = cluster.incarnation_of(from) else { return };
        let id = SessionId { host: from, incarnation, number: session };
        let User { uid, gid, name } = user.clone();
        let mut remote = ClientSession::remote();
        remote.owner = Some(job_control::Owner { uid, gid, name, limits });
        remote.id = Some(id);
        service.remote_sessions.insert((from, session), session_key);
        self.sessions.insert(session_key, remote);
        self.step_server(cluster::ClusterEvent::Login { session: id, user });
    }

    /// Sends the messages for scruns on other hosts to their hosts.
    pub fn send_outboxes(&mut self) {
        let Some(service) = &self.service else { return };
        let remote_sessions: Vec<_> =
            service.remote_sessions.iter().map(|(key, session_key)| (*key, *session_key)).collect();
        for ((host, session), session_key) in remote_sessions {
            let messages = self.sessions.get_mut(&session_key).map(ClientSession::take_outbox);
            for message in messages.unwrap_or_default() {
                let is_droppable =
                    matches!(message.message, ServerMessage::Metrics(_)) && self.is_slow(host);
                if let Ok(body) = frame::encode_datagram(&message)
                    && !is_droppable
                {
                    self.send_to_host(host, PeerMessage::SessionServerMessage { session, body });
                }
            }
        }
    }

    /// A session has ended, for whatever reason.
    pub fn on_session_end(&mut self, session: &ClientSession) {
        let Some(service) = &mut self.service else { return };
        let Some(id) = session.id else { return };
        service.remote_sessions.remove(&(id.host, id.number));
        if session.is_forwarded {
            let reason = "its scrun has gone".to_owned();
            self.send_to_host(SERVER, PeerMessage::SessionEnded { session: id.number, reason });
        } else {
            self.step_server(cluster::ClusterEvent::Logout { session: id });
        }
    }

    /// The key of a session, by its cluster-wide id.
    pub(super) fn session_key(&self, id: SessionId) -> Option<usize> {
        let service = self.service.as_ref()?;
        match id.host {
            SERVER => usize::try_from(id.number).ok(),
            host => service.remote_sessions.get(&(host, id.number)).copied(),
        }
    }

    /// The job with this tag in a session, by the session's cluster-wide id.
    pub(super) fn client_job(&self, id: SessionId, tag: u64) -> Option<ClientJob> {
        let session_key = self.session_key(id)?;
        Some(ClientJob { session_key, job: u32::try_from(tag).ok()? })
    }

    pub(super) fn refuse_client_job(&mut self, id: SessionId, tag: u64, reason: &str, code: u8) {
        if let Some(client_job) = self.client_job(id, tag) {
            self.refuse(client_job, reason.to_owned(), code);
        }
    }
}
