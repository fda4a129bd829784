//! Logins of clients of the local socket, and of clients that daemons of other hosts forward.

use score_job::cluster::{self, SessionId};
use score_job::host::usage::forward_cost;
use score_proto::client_session::{JobMessage, SESSION_JOB};
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::frame;
use score_proto::ids::HostId;
use score_proto::job_control::Owner;
use score_proto::message::{Login, UserRequest};
use score_proto::peer_message::{PeerMessage, SERVER, User};
use score_proto::server_message::ServerMessage;

use super::super::Daemon;
use super::super::session::ClientSession;
use super::super::session_state::{LoggedInUser, LoginClaim, SessionState};
use super::super::session_transport::RemoteClient;
use super::{LogTopic, Role, info};
use score_job::jobs::SessionKey;

/// The longest user name, in bytes.
const MAX_USER_NAME_LEN: usize = 256;

impl Daemon {
    /// Checks the claims of a login, and requests a voucher for the client.
    pub fn log_in(&mut self, session_key: SessionKey, login: Login) {
        let Some(service) = &mut self.service else {
            return self.sessions.refuse_session(
                session_key,
                "this scored serves one user only".to_owned(),
                EXIT_REFUSED,
            );
        };
        let Some(session) = self.sessions.get_mut(session_key) else { return };
        let Some(ids) = session.unauthenticated_ids() else { return };
        let uid = ids.uid;
        let refusal = if login.uid != uid {
            let text = format!("uid {uid} has claimed to be uid {}: refused", login.uid);
            service.warn_about(LogTopic::User(uid), &text);
            Some(format!("login refused: the claimed uid differs from your uid {uid}"))
        } else if login.name.0.len() > MAX_USER_NAME_LEN {
            Some("the login is too long".to_owned())
        } else {
            service.config.check(&login.cluster).err()
        };
        if let Some(reason) = refusal {
            return self.sessions.refuse_session(session_key, reason, EXIT_REFUSED);
        }
        let claim = LoginClaim { ids, name: login.name };
        if let Err((reason, code)) = service.vouchers.request(session_key, session, claim) {
            self.sessions.refuse_login(session_key, &reason, code);
        }
    }

    /// Completes the login of a session whose user the keeper has verified.
    pub(super) fn accept_login(&mut self, session_key: SessionKey, owner: Owner) {
        let Some(service) = &mut self.service else { return };
        let Some(session) = self.sessions.get_mut(session_key) else { return };
        let Owner { uid, gid, name, voucher, .. } = owner.clone();
        let user = User { uid, gid, name };
        service.vouchers.schedule_renewal(session, &voucher);
        if service.verbose {
            info(&format!("uid {uid} has logged in"));
        }
        let id = |host, incarnation| SessionId { host, incarnation, number: session_key.number() };
        match &service.role {
            Role::Server(cluster) => {
                let id = id(SERVER, cluster.server_incarnation());
                session.log_in(SessionState::User(LoggedInUser { owner, id }));
                self.step_server(cluster::ClusterEvent::Login { session: id, user });
            }
            Role::Host(member) if member.parent().is_none() => {
                let server = service.name(SERVER).unwrap_or_default();
                let reason =
                    format!("the scored of this host has no connection to the server, {server}");
                self.sessions.refuse_session(session_key, reason, EXIT_FAILED);
            }
            Role::Host(member) => {
                let id = id(member.host().unwrap_or(SERVER), member.incarnation());
                session.log_in(SessionState::Forwarded(LoggedInUser { owner, id }));
                let session = session_key.number();
                self.send_to_host(SERVER, PeerMessage::Login { session, voucher });
            }
        }
    }

    /// Forwards a message of a session to the server.
    pub fn forward_to_server(
        &mut self,
        session_key: SessionKey,
        message: &JobMessage<UserRequest>,
    ) {
        match frame::encode_datagram(message) {
            Ok(body) => {
                let cost = forward_cost(body.len());
                if let Some(session) = self.sessions.get_mut(session_key)
                    && let Some(uid) = session.uid()
                {
                    session.on_forwarded(cost);
                    self.usage.on_forwarded(uid, cost);
                }
                let session = session_key.number();
                self.send_to_host(SERVER, PeerMessage::SessionClientMessage { session, body });
            }
            Err(error) => self.sessions.refuse_session(session_key, error.to_string(), EXIT_FAILED),
        }
    }

    /// Handles a message about a session, from the session's host or from the server.
    pub fn on_session_message(&mut self, from: HostId, message: PeerMessage) {
        match message {
            PeerMessage::Login { session, voucher } => self.log_in_remote(from, session, voucher),
            PeerMessage::RenewVoucher { session, voucher } => {
                if let Some(service) = &self.service {
                    service.on_renewed_voucher((from, session), voucher, &mut self.sessions);
                }
            }
            PeerMessage::SessionClientMessage { session, body } => {
                let cost = forward_cost(body.len());
                let remote = self.remote_session(from, session);
                match (remote, frame::decode_datagram(&body)) {
                    (Some(remote), Ok(message)) => {
                        if let Some(remote) = remote.remote_mut() {
                            remote.deliver(message, cost);
                        }
                    }
                    (Some(remote), Err(error)) => {
                        let reason = format!("from scrun: {error}");
                        remote.send(&ServerMessage::refusal(SESSION_JOB, reason, EXIT_FAILED));
                    }
                    // The session has ended, and its window does not exist any more.
                    (None, _) => {}
                }
            }
            PeerMessage::ForwardCredit { session, cost } if from == SERVER => {
                let local_key = SessionKey::from_number(session);
                if let Some(session) = local_key.and_then(|key| self.sessions.get_mut(key))
                    && let Some(uid) = session.uid()
                {
                    let cost = session.take_forwarded_cost(cost);
                    self.usage.on_forwarded_handled(uid, cost);
                }
            }
            PeerMessage::SessionServerMessage { session, body } if from == SERVER => {
                let local_key = SessionKey::from_number(session);
                let local_session =
                    local_key.and_then(|session_key| self.sessions.get_mut(session_key));
                if let (Some(local_session), Ok(message)) =
                    (local_session, frame::decode_datagram::<ServerMessage>(&body))
                    && local_session.is_forwarded()
                {
                    local_session.send(&message);
                }
            }
            PeerMessage::SessionEnded { session, reason } => {
                match self.remote_session(from, session) {
                    Some(remote) => {
                        remote.remote_mut().into_iter().for_each(RemoteClient::mark_closed);
                    }
                    None if from == SERVER => {
                        let Some(session_key) = SessionKey::from_number(session) else { return };
                        if self.sessions.get(session_key).is_some_and(ClientSession::is_forwarded) {
                            self.sessions.refuse_session(session_key, reason, EXIT_FAILED);
                        }
                    }
                    None => {}
                }
            }
            _ => {}
        }
    }

    fn remote_session(&mut self, from: HostId, session: u64) -> Option<&mut ClientSession> {
        let session_key = self.service.as_ref()?.remote_sessions.key(from, session)?;
        self.sessions.get_mut(session_key)
    }

    fn log_in_remote(&mut self, from: HostId, session: u64, voucher: Vec<u8>) {
        let Some(service) = self.service.as_ref().filter(|service| service.is_server()) else {
            return;
        };
        let owner = match service.vouchers.verified_owner(voucher) {
            Ok(owner) => owner,
            Err(reason) => {
                return self.send_to_host(from, PeerMessage::SessionEnded { session, reason });
            }
        };
        let session_key = self.sources.allocate_remote_session();
        let Some(service) = &mut self.service else { return };
        let Role::Server(cluster) = &service.role else { return };
        let Some(incarnation) = cluster.incarnation_of(from) else { return };
        let id = SessionId { host: from, incarnation, number: session };
        let user = User { uid: owner.uid, gid: owner.gid, name: owner.name.clone() };
        let remote = ClientSession::remote(LoggedInUser { owner, id });
        service.remote_sessions.insert(id, session_key);
        self.sessions.insert(session_key, remote);
        self.step_server(cluster::ClusterEvent::Login { session: id, user });
    }

    /// Sends the queued messages for scruns on other hosts to their daemons.
    pub fn send_outboxes(&mut self) {
        if self.service.is_none() {
            return;
        }
        for session_key in self.sessions.active_keys() {
            let id = self.sessions.get(session_key).and_then(ClientSession::id);
            let Some(SessionId { host, number: session, .. }) = id else { continue };
            // All users share the link. Messages that it does not accept now stay in their session.
            while !self.is_slow_to(host)
                && let Some(session_of_host) = self.sessions.get_mut(session_key)
                && let Some(body) = session_of_host.remote_mut().and_then(RemoteClient::pop_outbox)
            {
                self.send_to_host(host, PeerMessage::SessionServerMessage { session, body });
            }
        }
        let credits = self.service.as_mut().map(|service| service.remote_sessions.take_credits());
        for ((host, session), cost) in credits.unwrap_or_default() {
            self.send_to_host(host, PeerMessage::ForwardCredit { session, cost });
        }
    }

    /// Notifies the cluster that a session has ended.
    pub fn on_session_end(&mut self, session: &ClientSession) {
        let Some(service) = &mut self.service else { return };
        let Some(id) = session.id() else { return };
        service.remote_sessions.remove(id);
        if session.is_forwarded() {
            let reason = "its scrun has disconnected".to_owned();
            self.send_to_host(SERVER, PeerMessage::SessionEnded { session: id.number, reason });
        } else {
            self.step_server(cluster::ClusterEvent::Logout { session: id });
        }
    }
}
