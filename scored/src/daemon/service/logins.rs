//! Logins: clients of the local socket, and logins that daemons of other hosts forward.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, send};
use score_job::cluster::{self, SessionId};
use score_job::host::usage::forward_cost;
use score_proto::client_session::{JobMessage, SESSION_JOB};
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::frame;
use score_proto::ids::{HostId, SessionJobId};
use score_proto::job_control::Owner;
use score_proto::message::{Login, UserRequest};
use score_proto::peer_message::{PeerMessage, SERVER, User};
use score_proto::server_message::{ServerMessage, SessionAnswer};

use super::super::Daemon;
use super::super::local_listener::AcceptedClient;
use super::super::session::ClientSession;
use super::super::session_state::{LoggedInUser, LoginClaim, SessionState};
use super::vouchers::renewal_time;
use super::{LogTopic, Role, Service, info};
use score_job::jobs::{ClientJob, SessionKey};

/// Limit of the clients that have not logged in, if the process may have enough descriptors. Each
/// client costs a descriptor and a few KiB. A burst of a quarter as many scruns of one user loses
/// none, however late the scruns are scheduled. The exception is a client whose messages have
/// waited for [`BUSY_EVICTION_GRACE`] while other clients need the room.
const MAX_UNAUTHENTICATED: usize = 4096;
/// Clients that have not logged in may use one in this many descriptors. The rest is for jobs.
const UNAUTHENTICATED_FD_SHARE: u64 = 4;
/// If there is no room, the user with the most clients that have not logged in loses the oldest,
/// unless it is younger than this. A scrun sends its login as soon as it has connected. The daemon
/// reads the login in the turn of the loop in which it accepts the client. The time is thus needed
/// only by a scrun that is interrupted between connecting and sending.
const EVICTION_GRACE: Duration = Duration::from_millis(100);
/// The same for clients that have sent messages which the daemon has not read yet.
const BUSY_EVICTION_GRACE: Duration = Duration::from_secs(2);
/// The maximum number of clients that are dropped in a turn of the loop to make room. The limit
/// lets other work continue, and drops few clients if few are waiting.
const MAX_EVICTED_PER_TICK: usize = 128;
/// One user may have one in this many of the clients that have not logged in. Further ones are
/// refused at once, which is cheap, so that other users need not wait for room.
const MAX_UNAUTHENTICATED_SHARE: usize = 4;
/// How often the clients of each user that have not logged in are counted. Between two counts, a
/// user may exceed the limit by the clients accepted in that time.
const CROWDING_COUNT_INTERVAL: Duration = Duration::from_millis(10);
/// The ratio of the pauses to the time for accepting clients of users without processing time. Such
/// clients thus consume at most a quarter of the daemon's processor, and take no more than that
/// from jobs on the same processor.
const PAUSE_FACTOR: u32 = 3;
/// The shortest pause. It is many times longer than the cost of the wake-up after it.
const MIN_PAUSE_DELAY: Duration = Duration::from_micros(200);
/// The longest pause. Without the limit, a pause would be long if the daemon had been interrupted
/// while it accepted a client.
const MAX_PAUSE_DELAY: Duration = Duration::from_millis(4);
/// The maximum number of clients that are accepted in a turn of the loop.
const MAX_ACCEPTED_PER_TURN: usize = 32;
/// How long a client may take to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest user name, in bytes.
const MAX_USER_NAME_LEN: usize = 256;

/// A client that has not logged in. Older clients sort first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct UnauthenticatedClient {
    connected_at: Instant,
    session_key: SessionKey,
    uid: u32,
}

/// Pauses in accepting clients. The kernel does not say whose client is next in the queue.
/// Therefore the daemon has to accept also clients of users whose processing time is used up. After
/// such clients it pauses for a multiple of the time that it has spent on them.
#[derive(Debug)]
pub struct AcceptPauses {
    end: Instant,
    /// The sum of pauses that are due but were too short so far.
    owed: Duration,
}

impl AcceptPauses {
    /// Creates the state without a pause.
    pub fn new(now: Instant) -> Self {
        Self { end: now, owed: Duration::ZERO }
    }

    /// Adds time that was spent on a client of a user without processing time.
    fn add(&mut self, now: Instant, time_used: Duration) {
        self.owed += time_used * PAUSE_FACTOR;
        if self.owed >= MIN_PAUSE_DELAY {
            self.end = now + std::mem::take(&mut self.owed).min(MAX_PAUSE_DELAY);
        }
    }

    /// The time at which clients are accepted again.
    pub fn end(&self) -> Instant {
        self.end
    }
}

/// Users that have reached their limit of clients that have not logged in. The clients are counted
/// at intervals, because there may be thousands of them.
#[derive(Debug, Default)]
pub struct CrowdingUsers {
    uids: HashSet<u32>,
    counted_at: Option<Instant>,
}

/// The limit of clients that have not logged in, for a process with this descriptor limit.
pub fn max_unauthenticated(descriptor_limit: u64) -> usize {
    let share = usize::try_from(descriptor_limit / UNAUTHENTICATED_FD_SHARE);
    share.unwrap_or(usize::MAX).clamp(1, MAX_UNAUTHENTICATED)
}

/// Selects the clients to drop: repeatedly the oldest client of the user with the most clients,
/// unless it connected after `old_enough`.
fn evicted(
    mut clients: Vec<UnauthenticatedClient>,
    old_enough: Instant,
) -> Vec<UnauthenticatedClient> {
    clients.sort_unstable_by(|one, other| other.cmp(one));
    let mut by_uid: HashMap<u32, Vec<UnauthenticatedClient>> = HashMap::new();
    clients.into_iter().for_each(|client| by_uid.entry(client.uid).or_default().push(client));
    let next = || {
        let largest_group = by_uid.values_mut().max_by_key(|group| group.len())?;
        largest_group.pop_if(|oldest| oldest.connected_at <= old_enough)
    };
    std::iter::from_fn(next).take(MAX_EVICTED_PER_TICK).collect()
}

impl Daemon {
    /// Accepts clients of the local socket while there is room.
    pub fn accept_local_clients(&mut self) {
        let Some(service) = &mut self.service else { return };
        let now = Instant::now();
        service.listener.wake_waiting_clients(now);
        if !service.listener.may_accept || service.accept_pauses.end() > now {
            return;
        }
        let unauthenticated_count = self.sessions.max_unauthenticated_count();
        let room = service.max_unauthenticated.saturating_sub(unauthenticated_count);
        self.find_crowding_users();
        for _ in 0..room.min(MAX_ACCEPTED_PER_TURN) {
            let started_at = Instant::now();
            let Some(service) = &mut self.service else { return };
            if service.accept_pauses.end() > started_at {
                return;
            }
            let Some(client) = service.listener.accept() else { return };
            let (uid, _) = client.credentials;
            match service.crowding_users.uids.contains(&uid) {
                true => self.refuse_client(&client),
                false if client.has_closed() => {}
                false => self.add_client(client),
            }
            let time_used = started_at.elapsed();
            if !self.usage.has_time(uid)
                && let Some(service) = &mut self.service
            {
                service.accept_pauses.add(started_at + time_used, time_used);
            }
            self.usage.charge_time(uid, time_used);
        }
    }

    fn add_client(&mut self, client: AcceptedClient) {
        let (session_key, token) = self.sources.allocate_session();
        let AcceptedClient { socket, credentials } = client;
        match ClientSession::unauthenticated(socket, credentials, self.sources.registry(), token) {
            Ok(mut session) => {
                if !self.usage.has_time(credentials.0) {
                    // The session will not be read in this turn, so mio can report meanwhile
                    // whether it has data.
                    session.wait_until_readable();
                }
                self.sessions.insert(session_key, session);
            }
            Err(_) => self.sources.release(token),
        }
    }

    /// Refuses a client of a user who has reached the limit of clients that have not logged in. The
    /// client gets no session.
    fn refuse_client(&mut self, client: &AcceptedClient) {
        let (uid, _) = client.credentials;
        let count = self.max_unauthenticated_per_user();
        let reason = format!(
            "{count} other clients of yours have connected and not logged in: end them, or try \
             again when they have"
        );
        let refusal = SessionAnswer::Refused { reason, code: EXIT_FAILED };
        let mut bytes = Vec::new();
        if frame::encode(&refusal, &mut bytes).is_ok() {
            // The socket is new, so the message fits unless the client has disconnected.
            let _ = send(client.socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
        }
        let service = self.service.as_mut();
        let text = format!(
            "uid {uid}: connection refused: {count} connections of this user have not logged in"
        );
        service.into_iter().for_each(|one| one.warn_about(LogTopic::User(uid), &text));
    }

    /// Updates the set of users who have reached their limit, if it is time.
    fn find_crowding_users(&mut self) {
        let now = Instant::now();
        let is_due = |users: &CrowdingUsers| {
            users.counted_at.is_none_or(|counted_at| now >= counted_at + CROWDING_COUNT_INTERVAL)
        };
        if !self.service.as_ref().is_some_and(|service| is_due(&service.crowding_users)) {
            return;
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for client in self.unauthenticated() {
            *counts.entry(client.uid).or_default() += 1;
        }
        let max_count = self.max_unauthenticated_per_user();
        counts.retain(|_, count| *count >= max_count);
        let uids = counts.into_keys().collect();
        if let Some(service) = &mut self.service {
            service.crowding_users = CrowdingUsers { uids, counted_at: Some(now) };
        }
    }

    fn max_unauthenticated_per_user(&self) -> usize {
        let max_unauthenticated = self.service.as_ref().map_or(0, |one| one.max_unauthenticated);
        (max_unauthenticated / MAX_UNAUTHENTICATED_SHARE).max(1)
    }

    /// Drops clients whose login has timed out, and others if there is no room for the next client.
    /// Call it after the messages that have arrived have been read.
    pub fn drop_unauthenticated_clients(&mut self) {
        if self.service.is_none() {
            return;
        }
        let is_old = |client: &UnauthenticatedClient| client.connected_at.elapsed() > LOGIN_TIMEOUT;
        let timed_out: Vec<_> = self
            .unauthenticated()
            .take_while(is_old)
            .filter(|client| self.is_silent(client))
            .collect();
        timed_out.into_iter().for_each(|client| self.drop_unauthenticated(client));
        if self.lacks_room() {
            let old_enough = Instant::now().checked_sub(EVICTION_GRACE);
            let clients = self.evictable_clients();
            for client in old_enough.map(|time| evicted(clients, time)).unwrap_or_default() {
                self.drop_unauthenticated(client);
            }
        }
    }

    /// The clients that can be dropped to make room: silent clients, and clients whose messages
    /// have waited long because their user has sent more than the daemon may handle.
    fn evictable_clients(&self) -> Vec<UnauthenticatedClient> {
        let has_waited_long =
            |client: &UnauthenticatedClient| client.connected_at.elapsed() > BUSY_EVICTION_GRACE;
        let clients = self.unauthenticated();
        clients.filter(|client| self.is_silent(client) || has_waited_long(client)).collect()
    }

    /// Clients that have not logged in and whose session is not closing, the oldest first.
    fn unauthenticated(&self) -> impl Iterator<Item = UnauthenticatedClient> {
        self.sessions.unauthenticated().filter_map(|(session_key, session)| {
            let (uid, _) = session.unauthenticated_ids()?;
            let connected_at = session.connected_at;
            Some(UnauthenticatedClient { connected_at, session_key, uid })
        })
    }

    /// Whether everything that a client has sent has been read. Data may wait in the socket,
    /// because the processing time of each user is limited.
    fn is_silent(&self, client: &UnauthenticatedClient) -> bool {
        let session = self.sessions.get(client.session_key);
        session.is_none_or(|session| !session.may_have_more())
    }

    /// Whether a client is waiting that can be accepted only after another one is dropped.
    fn lacks_room(&self) -> bool {
        self.service.as_ref().is_some_and(|service| {
            let listener = &service.listener;
            listener.may_accept
                && (!listener.can_accept_now()
                    || self.sessions.max_unauthenticated_count() >= service.max_unauthenticated)
        })
    }

    fn drop_unauthenticated(&mut self, client: UnauthenticatedClient) {
        let (Some(session), Some(service)) =
            (self.sessions.get_mut(client.session_key), &mut self.service)
        else {
            return;
        };
        let reason = "no login before the time-out".to_owned();
        session.send(&ServerMessage::refusal(SESSION_JOB, reason, EXIT_FAILED));
        let text = format!("uid {}: no login before the time-out: connection closed", client.uid);
        service.warn_about(LogTopic::User(client.uid), &text);
    }

    /// The time until a login times out or the next client can be accepted.
    pub fn login_deadline(&self, now: Instant) -> Option<Duration> {
        let service = self.service.as_ref()?;
        // The retry is delayed, because nothing can be done at once if descriptors have run out.
        let retry_delay = Duration::from_millis(20);
        if service.listener.may_accept && !self.lacks_room() {
            // More clients wait than were accepted in this turn, or there is room again.
            return Some(service.accept_pauses.end().saturating_duration_since(now));
        }
        let connected_at = self.unauthenticated().map(|client| client.connected_at).next();
        let timeout = if service.listener.may_accept { EVICTION_GRACE } else { LOGIN_TIMEOUT };
        let left = connected_at.map(|at| (at + timeout).saturating_duration_since(now));
        let retry = service.listener.may_accept.then_some(retry_delay);
        left.map(|left| left.max(retry_delay)).into_iter().chain(retry).min()
    }

    /// If a client is waiting that can be accepted after the pause: the end of the pause.
    pub fn accept_pause_end(&self) -> Option<Instant> {
        let service = self.service.as_ref()?;
        let is_waiting = service.listener.may_accept && !self.lacks_room();
        is_waiting.then(|| service.accept_pauses.end())
    }

    /// Checks the claims of a login, and requests a voucher for the client.
    pub fn log_in(&mut self, session_key: SessionKey, login: Login) {
        let Some(service) = &mut self.service else {
            return self.refuse(
                ClientJob::session_itself(session_key),
                "this scored serves one user only".to_owned(),
                EXIT_REFUSED,
            );
        };
        let Some(session) = self.sessions.get_mut(session_key) else { return };
        let Some((uid, gid)) = session.unauthenticated_ids() else { return };
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
            return self.refuse(ClientJob::session_itself(session_key), reason, EXIT_REFUSED);
        }
        self.request_voucher(session_key, LoginClaim { uid, gid, name: login.name });
    }

    /// Completes the login of a session whose user the keeper has verified.
    pub(super) fn accept_login(&mut self, session_key: SessionKey, owner: Owner) {
        let Some(service) = &mut self.service else { return };
        let Some(session) = self.sessions.get_mut(session_key) else { return };
        let Owner { uid, gid, name, voucher, .. } = owner.clone();
        let user = User { uid, gid, name };
        let renewal_at = renewal_time(&voucher, Instant::now());
        session.set_renewal_at(renewal_at);
        self.next_renewal_at =
            Some(self.next_renewal_at.map_or(renewal_at, |due| due.min(renewal_at)));
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
                self.refuse(ClientJob::session_itself(session_key), reason, EXIT_FAILED);
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
            Err(error) => {
                self.refuse(ClientJob::session_itself(session_key), error.to_string(), EXIT_FAILED)
            }
        }
    }

    /// Handles a message about a session, from the session's host or from the server.
    pub fn on_session_message(&mut self, from: HostId, message: PeerMessage) {
        match message {
            PeerMessage::Login { session, voucher } => self.log_in_remote(from, session, voucher),
            PeerMessage::RenewVoucher { session, voucher } => {
                self.on_renewed_voucher(from, session, voucher)
            }
            PeerMessage::SessionClientMessage { session, body } => {
                let cost = forward_cost(body.len());
                let remote = self.remote_session(from, session);
                match (remote, frame::decode_datagram(&body)) {
                    (Some(remote), Ok(message)) => remote.deliver(message, cost),
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
            PeerMessage::SessionEnded { session, reason } => match self
                .remote_session(from, session)
            {
                Some(remote) => remote.mark_closed(),
                None if from == SERVER => {
                    let Some(session_key) = SessionKey::from_number(session) else { return };
                    if self.sessions.get(session_key).is_some_and(ClientSession::is_forwarded) {
                        self.refuse(ClientJob::session_itself(session_key), reason, EXIT_FAILED);
                    }
                }
                None => {}
            },
            _ => {}
        }
    }

    pub(super) fn remote_session(
        &mut self,
        from: HostId,
        session: u64,
    ) -> Option<&mut ClientSession> {
        let session_key = self.service.as_ref()?.remote_sessions.get(&(from, session))?;
        self.sessions.get_mut(*session_key)
    }

    fn log_in_remote(&mut self, from: HostId, session: u64, voucher: Vec<u8>) {
        if !self.service.as_ref().is_some_and(Service::is_server) {
            return;
        }
        let owner = match self.verified_owner(voucher) {
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
        service.remote_sessions.insert((from, session), session_key);
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
            // All users share the link. Messages that it does not accept stay in their session.
            while !self.is_slow(host)
                && let Some(session_of_host) = self.sessions.get_mut(session_key)
                && let Some(body) = session_of_host.pop_outbox()
            {
                self.send_to_host(host, PeerMessage::SessionServerMessage { session, body });
            }
        }
        let credits = self.service.as_mut().map(Service::take_forward_credits);
        for ((host, session), cost) in credits.unwrap_or_default() {
            self.send_to_host(host, PeerMessage::ForwardCredit { session, cost });
        }
    }

    /// Notifies the cluster that a session has ended.
    pub fn on_session_end(&mut self, session: &ClientSession) {
        let Some(service) = &mut self.service else { return };
        let Some(id) = session.id() else { return };
        service.remote_sessions.remove(&(id.host, id.number));
        if session.is_forwarded() {
            let reason = "its scrun has disconnected".to_owned();
            self.send_to_host(SERVER, PeerMessage::SessionEnded { session: id.number, reason });
        } else {
            self.step_server(cluster::ClusterEvent::Logout { session: id });
        }
    }

    /// The key of a session, given its id in the cluster.
    pub(super) fn session_key(&self, id: SessionId) -> Option<SessionKey> {
        let service = self.service.as_ref()?;
        match id.host {
            SERVER => SessionKey::from_number(id.number),
            host => service.remote_sessions.get(&(host, id.number)).copied(),
        }
    }

    /// The job with this tag in a session, given the session's id in the cluster.
    pub(super) fn client_job(&self, id: SessionId, tag: SessionJobId) -> Option<ClientJob> {
        let session_key = self.session_key(id)?;
        Some(ClientJob { session_key, job: tag })
    }

    pub(super) fn refuse_client_job(
        &mut self,
        id: SessionId,
        tag: SessionJobId,
        reason: &str,
        code: u8,
    ) {
        if let Some(client_job) = self.client_job(id, tag) {
            self.refuse(client_job, reason.to_owned(), code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_with_the_most_clients_loses_the_oldest_expired_clients() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let key = |ms| SessionKey(ms as usize);
        let client =
            |uid, ms| UnauthenticatedClient { connected_at: at(ms), session_key: key(ms), uid };
        let mut clients: Vec<_> = (0..5).map(|ms| client(1, ms)).collect();
        clients.push(client(2, 0));
        let keys = |old_enough| -> Vec<(u32, usize)> {
            let evicted = evicted(clients.clone(), old_enough);
            evicted.iter().map(|client| (client.uid, client.session_key.0)).collect()
        };
        assert_eq!(keys(at(2)), [(1, 0), (1, 1), (1, 2)]);
        let Some(before) = start.checked_sub(Duration::from_millis(1)) else { return };
        assert_eq!(keys(before), []);
        clients.extend((10..1000).map(|ms| client(3, ms)));
        let evicted = evicted(clients, at(1000));
        assert_eq!(evicted.len(), MAX_EVICTED_PER_TICK);
        assert!(
            evicted.iter().all(|client| client.uid == 3 && client.session_key < SessionKey(200))
        );
    }

    #[test]
    fn the_pauses_between_accepts_add_up_to_a_multiple_of_the_time_used() {
        let start = Instant::now();
        let used = Duration::from_micros(100);
        let mut pauses = AcceptPauses::new(start);
        let mut now = start;
        for _ in 0..1000 {
            now = now.max(pauses.end()) + used;
            pauses.add(now, used);
        }
        let total = now - start;
        let expected = used * 1000 * (1 + PAUSE_FACTOR);
        assert!(total <= expected && expected - total < Duration::from_millis(2), "{total:?}");
        pauses.add(now, Duration::from_secs(1));
        assert_eq!(pauses.end(), now + MAX_PAUSE_DELAY, "others do not wait longer");
    }

    #[test]
    fn clients_without_login_leave_most_descriptors_to_jobs() {
        assert_eq!(max_unauthenticated(u64::MAX), MAX_UNAUTHENTICATED);
        assert_eq!(max_unauthenticated(20_000), MAX_UNAUTHENTICATED);
        assert_eq!(max_unauthenticated(1024), 256);
        assert_eq!(max_unauthenticated(0), 1);
    }
}
