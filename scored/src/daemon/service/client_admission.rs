//! The admission of clients at the local socket. All users can connect. Therefore the number of
//! clients that have not logged in is limited, by user and in total, and also the time that the
//! daemon spends on accepting them.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, send};
use score_job::host::usage::Usage;
use score_job::jobs::SessionKey;
use score_proto::client_session::SESSION_JOB;
use score_proto::exit_code::EXIT_FAILED;
use score_proto::frame;
use score_proto::server_message::{ServerMessage, SessionAnswer};

use super::super::event_sources::EventSources;
use super::super::local_listener::{AcceptedClient, LocalListener};
use super::super::session::ClientSession;
use super::super::sessions::Sessions;

/// Limit of the clients that have not logged in, if the process may have enough descriptors. Each
/// client costs a descriptor and a few KiB. One user may start a quarter as many scruns at once.
/// The daemon drops none of them, even if they are scheduled late. The exception is a client whose
/// messages have waited for [`BUSY_EVICTION_GRACE`] while other clients need the room.
const MAX_UNAUTHENTICATED: usize = 4096;
/// Clients that have not logged in may use one in this many descriptors. The rest is for jobs.
const UNAUTHENTICATED_FD_SHARE: u64 = 4;
/// If there is no room, the daemon drops the oldest client of the user with the most clients that
/// have not logged in. It does not drop a client that is younger than this. A scrun sends its login
/// as soon as it has connected. The daemon reads the login in the turn of the loop in which it
/// accepts the client. The time is thus needed only by a scrun that is interrupted between
/// connecting and sending.
const EVICTION_GRACE: Duration = Duration::from_millis(100);
/// Like [`EVICTION_GRACE`], for clients whose messages the daemon has not read yet.
const BUSY_EVICTION_GRACE: Duration = Duration::from_secs(2);
/// The maximum number of clients that are dropped in a turn of the loop to make room. The limit
/// lets other work continue, and drops few clients if few are waiting.
const MAX_EVICTED_PER_TICK: usize = 128;
/// One user may have one in this many of the clients that have not logged in. The daemon refuses
/// further clients at once, which is cheap, so that other users need not wait for room.
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
/// The longest pause. An interruption of the daemon while it accepts a client would otherwise cause
/// a long pause.
const MAX_PAUSE_DELAY: Duration = Duration::from_millis(4);
/// The maximum number of clients that are accepted in a turn of the loop.
const MAX_ACCEPTED_PER_TURN: usize = 32;
/// How long a client may take to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that has not logged in. Older clients sort first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct UnauthenticatedClient {
    connected_at: Instant,
    session_key: SessionKey,
    uid: u32,
}

/// Pauses in accepting clients. The kernel does not report which user's client is next in the
/// queue. Therefore the daemon also has to accept clients of users whose processing time is used
/// up. After such clients the daemon pauses for a multiple of the time that it has spent on them.
#[derive(Debug)]
struct AcceptPauses {
    end: Instant,
    /// The sum of pauses that are due but were too short so far.
    owed: Duration,
}

impl AcceptPauses {
    /// Creates the state without a pause.
    fn new(now: Instant) -> Self {
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
    fn end(&self) -> Instant {
        self.end
    }
}

/// Users that have reached their limit of clients that have not logged in. The clients are counted
/// at intervals, because there may be thousands of them.
#[derive(Debug, Default)]
struct CrowdingUsers {
    uids: HashSet<u32>,
    counted_at: Option<Instant>,
}

/// The limit of clients that have not logged in, for a process with this descriptor limit.
fn max_unauthenticated(descriptor_limit: u64) -> usize {
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

/// A line for the log about a user.
#[derive(Debug)]
pub struct UserLine {
    /// The user.
    pub uid: u32,
    /// The text.
    pub text: String,
}

/// See the [module](self).
#[derive(Debug)]
pub struct ClientAdmission {
    listener: LocalListener,
    /// The maximum number of clients that have not logged in.
    max_unauthenticated: usize,
    pauses: AcceptPauses,
    crowding_users: CrowdingUsers,
}

impl ClientAdmission {
    /// Creates the admission for a process with this descriptor limit.
    pub fn new(listener: LocalListener, descriptor_limit: u64) -> Self {
        Self {
            listener,
            max_unauthenticated: max_unauthenticated(descriptor_limit),
            pauses: AcceptPauses::new(Instant::now()),
            crowding_users: CrowdingUsers::default(),
        }
    }

    /// Records that mio has reported a connection to the local socket.
    pub fn on_listener_ready(&mut self) {
        self.listener.may_accept = true;
    }

    /// Accepts clients while there is room. Returns lines about refused clients.
    pub fn accept_clients(
        &mut self,
        sessions: &mut Sessions,
        sources: &mut EventSources,
        usage: &mut Usage,
    ) -> Vec<UserLine> {
        let now = Instant::now();
        self.listener.wake_waiting_clients(now);
        if !self.listener.may_accept || self.pauses.end() > now {
            return Vec::new();
        }
        let room = self.max_unauthenticated.saturating_sub(sessions.max_unauthenticated_count());
        self.find_crowding_users(sessions);
        let mut lines = Vec::new();
        for _ in 0..room.min(MAX_ACCEPTED_PER_TURN) {
            let started_at = Instant::now();
            if self.pauses.end() > started_at {
                break;
            }
            let Some(client) = self.listener.accept() else { break };
            let uid = client.ids.uid;
            match self.crowding_users.uids.contains(&uid) {
                true => lines.push(self.refuse(&client)),
                false if client.has_closed() => {}
                false => add_client(client, sessions, sources, usage),
            }
            let time_used = started_at.elapsed();
            if !usage.has_time(uid) {
                self.pauses.add(started_at + time_used, time_used);
            }
            usage.charge_time(uid, time_used);
        }
        lines
    }

    /// Refuses a client of a user who has reached the limit of clients that have not logged in. The
    /// client gets no session.
    fn refuse(&self, client: &AcceptedClient) -> UserLine {
        let uid = client.ids.uid;
        let count = self.max_unauthenticated_per_user();
        let reason = format!(
            "uid {uid} has {count} connections that have not logged in: end these clients, or try \
             again later"
        );
        let refusal = SessionAnswer::Refused { reason, code: EXIT_FAILED };
        let mut bytes = Vec::new();
        if frame::encode(&refusal, &mut bytes).is_ok() {
            // The socket is new, so the message fits unless the client has disconnected.
            let _ = send(client.socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
        }
        let text = format!(
            "uid {uid}: connection refused: {count} connections of this user have not logged in"
        );
        UserLine { uid, text }
    }

    /// Updates the set of users who have reached their limit, if [`CROWDING_COUNT_INTERVAL`] has
    /// passed.
    fn find_crowding_users(&mut self, sessions: &Sessions) {
        let now = Instant::now();
        let counted_at = self.crowding_users.counted_at;
        if counted_at.is_some_and(|counted_at| now < counted_at + CROWDING_COUNT_INTERVAL) {
            return;
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for client in unauthenticated(sessions) {
            *counts.entry(client.uid).or_default() += 1;
        }
        let max_count = self.max_unauthenticated_per_user();
        counts.retain(|_, count| *count >= max_count);
        let uids = counts.into_keys().collect();
        self.crowding_users = CrowdingUsers { uids, counted_at: Some(now) };
    }

    fn max_unauthenticated_per_user(&self) -> usize {
        (self.max_unauthenticated / MAX_UNAUTHENTICATED_SHARE).max(1)
    }

    /// Drops clients whose login has timed out, and others if there is no room for the next client.
    /// Call it after the messages that have arrived have been read. Returns lines about the dropped
    /// clients.
    pub fn drop_late_clients(&self, sessions: &mut Sessions) -> Vec<UserLine> {
        let is_old = |client: &UnauthenticatedClient| client.connected_at.elapsed() > LOGIN_TIMEOUT;
        let timed_out: Vec<_> = unauthenticated(sessions)
            .take_while(is_old)
            .filter(|client| is_silent(client, sessions))
            .collect();
        let mut lines: Vec<UserLine> =
            timed_out.into_iter().map(|client| drop_client(client, sessions)).collect();
        if self.lacks_room(sessions)
            && let Some(old_enough) = Instant::now().checked_sub(EVICTION_GRACE)
        {
            let evicted = evicted(evictable_clients(sessions), old_enough);
            lines.extend(evicted.into_iter().map(|client| drop_client(client, sessions)));
        }
        lines
    }

    /// Whether a client is waiting that can be accepted only after another one is dropped.
    fn lacks_room(&self, sessions: &Sessions) -> bool {
        self.listener.may_accept
            && (!self.listener.can_accept_now()
                || sessions.max_unauthenticated_count() >= self.max_unauthenticated)
    }

    /// The time until a login times out or the next client can be accepted.
    pub fn deadline(&self, sessions: &Sessions, now: Instant) -> Option<Duration> {
        // The retry is delayed, because nothing can be done at once if descriptors have run out.
        let retry_delay = Duration::from_millis(20);
        if self.listener.may_accept && !self.lacks_room(sessions) {
            // More clients wait than were accepted in this turn, or there is room again.
            return Some(self.pauses.end().saturating_duration_since(now));
        }
        let connected_at = unauthenticated(sessions).map(|client| client.connected_at).next();
        let timeout = if self.listener.may_accept { EVICTION_GRACE } else { LOGIN_TIMEOUT };
        let left = connected_at.map(|at| (at + timeout).saturating_duration_since(now));
        let retry = self.listener.may_accept.then_some(retry_delay);
        left.map(|left| left.max(retry_delay)).into_iter().chain(retry).min()
    }

    /// The time at which waiting clients have to be woken.
    pub fn wake_deadline(&self) -> Option<Instant> {
        self.listener.wake_deadline()
    }

    /// The end of the pause in accepting clients, if a client waits and there is room for it.
    pub fn pause_end(&self, sessions: &Sessions) -> Option<Instant> {
        let is_waiting = self.listener.may_accept && !self.lacks_room(sessions);
        is_waiting.then(|| self.pauses.end())
    }
}

fn add_client(
    client: AcceptedClient,
    sessions: &mut Sessions,
    sources: &mut EventSources,
    usage: &Usage,
) {
    let (session_key, token) = sources.allocate_session();
    let AcceptedClient { socket, ids } = client;
    match ClientSession::unauthenticated(socket, ids, sources.registry(), token) {
        Ok(mut session) => {
            if !usage.has_time(ids.uid) {
                // The daemon does not read the session in this turn. Until then, mio can report
                // whether the session has data.
                session.wait_until_readable();
            }
            sessions.insert(session_key, session);
        }
        Err(_) => sources.release(token),
    }
}

/// Clients that have not logged in and whose session is not closing, the oldest first.
fn unauthenticated(sessions: &Sessions) -> impl Iterator<Item = UnauthenticatedClient> {
    sessions.unauthenticated().filter_map(|(session_key, session)| {
        let uid = session.unauthenticated_ids()?.uid;
        let connected_at = session.connected_at;
        Some(UnauthenticatedClient { connected_at, session_key, uid })
    })
}

/// The clients that can be dropped to make room: silent clients, and clients whose messages have
/// waited long because their user has sent more than the daemon may handle.
fn evictable_clients(sessions: &Sessions) -> Vec<UnauthenticatedClient> {
    let has_waited_long =
        |client: &UnauthenticatedClient| client.connected_at.elapsed() > BUSY_EVICTION_GRACE;
    let is_evictable =
        |client: &UnauthenticatedClient| is_silent(client, sessions) || has_waited_long(client);
    unauthenticated(sessions).filter(is_evictable).collect()
}

/// Whether everything that a client has sent has been read. Data may wait in the socket, because
/// the processing time of each user is limited.
fn is_silent(client: &UnauthenticatedClient, sessions: &Sessions) -> bool {
    sessions.get(client.session_key).is_none_or(|session| !session.may_have_more())
}

fn drop_client(client: UnauthenticatedClient, sessions: &mut Sessions) -> UserLine {
    let uid = client.uid;
    if let Some(session) = sessions.get_mut(client.session_key) {
        let reason = "the client has not logged in in time; connect again".to_owned();
        session.send(&ServerMessage::refusal(SESSION_JOB, reason, EXIT_FAILED));
    }
    UserLine { uid, text: format!("uid {uid}: no login in time: connection closed") }
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
