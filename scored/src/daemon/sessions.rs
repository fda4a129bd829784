//! The sessions of a daemon. The loop handles only active sessions, so many idle sessions do not
//! slow it down. Sessions of a user who has used up a limit, such as processing time, are parked
//! until the user may go on. Parked sessions are not active.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use mio::Registry;
use score_job::host::usage::Usage;
use score_job::jobs::{ClientJob, SessionKey};
use score_proto::exit_code::EXIT_REFUSED;
use score_proto::ids::JobId;
use score_proto::message::Level;
use score_proto::server_message::{ConsoleAnswer, ServerMessage};

use super::event_sources::EventSources;
use super::session::ClientSession;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Sessions {
    by_key: HashMap<SessionKey, ClientSession>,
    /// Sessions that may have changed since the last [`Sessions::settle`], or need service without
    /// an event.
    active: BTreeSet<SessionKey>,
    /// Sessions whose users have used up a limit, by uid, in the order in which they are woken.
    /// Keys that are not in `parked_keys` belong to removed sessions.
    parked: HashMap<u32, VecDeque<SessionKey>>,
    parked_keys: HashSet<SessionKey>,
    /// Clients that had not logged in at the last [`Sessions::settle`].
    unauthenticated: BTreeSet<SessionKey>,
    /// The session with the last message to all hosts of a job.
    pub last_control: Option<SessionKey>,
}

impl Sessions {
    /// Refuses a job of a session, or the session itself.
    pub fn refuse(&mut self, client_job: ClientJob, reason: String, code: u8) {
        if let Some(session) = self.get_mut(client_job.session_key) {
            session.send(&ServerMessage::refusal(client_job.job, reason, code));
        }
    }

    /// Refuses a session itself.
    pub fn refuse_session(&mut self, session_key: SessionKey, reason: String, code: u8) {
        self.refuse(ClientJob::session_itself(session_key), reason, code);
    }

    /// Refuses a login and ends its session.
    pub fn refuse_login(&mut self, session_key: SessionKey, reason: &str, code: u8) {
        self.get_mut(session_key).map(ClientSession::take_claim);
        self.refuse_session(session_key, format!("login refused: {reason}"), code);
    }

    /// Handles the end of a job: reports it if the job was never started. A job that has run
    /// reports its own end.
    pub fn on_job_ended(&mut self, client_job: ClientJob, job: JobId, reason: Option<String>) {
        let session = self.get(client_job.session_key);
        if session.is_some_and(|session| session.is_pending(client_job.job)) {
            let reason = reason.unwrap_or_else(|| "it was ended".to_owned());
            let text = format!("job {job} has not been started: {reason}");
            self.refuse(client_job, text, EXIT_REFUSED);
        }
    }

    /// Sends one line to the user of a session.
    pub fn notice(&mut self, client_job: ClientJob, level: Level, text: String) {
        if let Some(session) = self.get_mut(client_job.session_key) {
            session.send(&ServerMessage::notice(client_job.job, level, text));
        }
    }

    /// Sends the metrics of a job to a session that watches the job, and charges its user. The
    /// metrics are dropped if the user has used up a limit, because later metrics replace them.
    pub fn send_metrics(
        &mut self,
        session_key: SessionKey,
        metrics: ConsoleAnswer,
        usage: &mut Usage,
    ) {
        let uid = self.get(session_key).and_then(ClientSession::uid);
        if uid.is_some_and(|uid| !usage.has_session_room(uid) || !usage.has_time(uid)) {
            return;
        }
        let started_at = Instant::now();
        self.answer_console(session_key, metrics);
        uid.into_iter().for_each(|uid| usage.charge_time(uid, started_at.elapsed()));
    }

    /// Answers a request that addresses jobs by their numbers in the cluster.
    pub fn answer_console(&mut self, session_key: SessionKey, answer: ConsoleAnswer) {
        if let Some(session) = self.get_mut(session_key) {
            session.send(&ServerMessage::Console(answer));
        }
    }

    /// Writes as much as the sockets of the active sessions accept, and charges the users with the
    /// memory that the sessions use.
    pub fn flush(&mut self, registry: &Registry, usage: &mut Usage) {
        for session_key in self.active_keys() {
            let Some(session) = self.get_mut(session_key) else { continue };
            session.flush();
            session.update_interest(registry);
            if let Some((uid, before, now)) = session.take_usage_change() {
                usage.change_session_bytes(uid, before, now);
            }
        }
    }

    /// The time until the first session that has exceeded its rate limit may be read again. Of
    /// parked sessions, [`Usage::next_control`] knows it.
    pub fn control_deadline(&self, usage: &Usage, now: Instant) -> Option<Duration> {
        let sessions = self.active().filter(|(_, session)| session.may_have_more());
        let times = sessions.filter_map(|(_, session)| session.next_control_at(usage, now));
        Some(times.min()?.saturating_duration_since(now))
    }

    /// Adds the session of a client that has connected. Returns the session's key.
    ///
    /// # Errors
    /// See [`ClientSession::new`].
    pub fn connect(
        &mut self,
        socket: OwnedFd,
        sources: &mut EventSources,
    ) -> io::Result<SessionKey> {
        let (session_key, token) = sources.allocate_session();
        let session = ClientSession::new(socket, sources.registry(), token)?;
        self.insert(session_key, session);
        Ok(session_key)
    }

    /// Adds a session. The keys of later sessions must be larger.
    pub fn insert(&mut self, session_key: SessionKey, session: ClientSession) {
        self.active.insert(session_key);
        if session.unauthenticated_ids().is_some() {
            self.unauthenticated.insert(session_key);
        }
        self.by_key.insert(session_key, session);
    }

    /// Returns a session for modification. The session becomes active.
    pub fn get_mut(&mut self, session_key: SessionKey) -> Option<&mut ClientSession> {
        let session = self.by_key.get_mut(&session_key)?;
        self.active.insert(session_key);
        Some(session)
    }

    /// Returns all sessions for modification. They become active.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ClientSession> {
        self.active.extend(self.by_key.keys());
        self.by_key.values_mut()
    }

    /// Removes a session.
    pub fn remove(&mut self, session_key: SessionKey) -> Option<ClientSession> {
        self.active.remove(&session_key);
        self.parked_keys.remove(&session_key);
        self.unauthenticated.remove(&session_key);
        self.by_key.remove(&session_key)
    }

    /// Removes a session that has ended, and its charges from the account of its user.
    pub fn end(&mut self, session_key: SessionKey, usage: &mut Usage) -> Option<ClientSession> {
        let mut session = self.remove(session_key)?;
        if let Some((uid, before, now)) = session.take_last_usage_change() {
            usage.change_session_bytes(uid, before, now);
        }
        if let Some(uid) = session.uid() {
            usage.on_forwarded_handled(uid, session.take_forwarded_cost(u64::MAX));
        }
        Some(session)
    }

    /// Returns a session.
    pub fn get(&self, session_key: SessionKey) -> Option<&ClientSession> {
        self.by_key.get(&session_key)
    }

    /// All sessions and their keys, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (SessionKey, &ClientSession)> {
        self.by_key.iter().map(|(session_key, session)| (*session_key, session))
    }

    /// The active sessions and their keys, in the order in which they connected.
    pub fn active(&self) -> impl Iterator<Item = (SessionKey, &ClientSession)> {
        self.active.iter().filter_map(|key| Some((*key, self.by_key.get(key)?)))
    }

    /// The keys of the active sessions, in the order in which they connected.
    pub fn active_keys(&self) -> Vec<SessionKey> {
        self.active.iter().copied().collect()
    }

    /// Clients that have not logged in, and their keys, in the order in which they connected.
    pub fn unauthenticated(&self) -> impl Iterator<Item = (SessionKey, &ClientSession)> {
        let sessions = self.unauthenticated.iter();
        let sessions = sessions.filter_map(|key| Some((*key, self.by_key.get(key)?)));
        sessions.filter(|(_, session)| is_unauthenticated(session))
    }

    /// An upper bound of the number of clients that have not logged in. It includes clients that
    /// have logged in during this turn.
    pub fn max_unauthenticated_count(&self) -> usize {
        self.unauthenticated.len()
    }

    /// The number of sessions.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The number of sessions of tools in single-user mode.
    pub fn tool_session_count(&self) -> usize {
        self.by_key.values().filter(|session| session.is_tool()).count()
    }

    /// Whether there is a session that is not a session of a tool.
    pub fn has_front_end(&self) -> bool {
        self.by_key.values().any(|session| !session.is_tool())
    }

    /// Makes parked sessions active whose users may go on, at most `max_count` of each user.
    pub fn wake(&mut self, may_go_on: impl Fn(u32) -> bool, max_count: usize) {
        let Self { active, parked, parked_keys, .. } = self;
        parked.retain(|uid, session_keys| {
            if may_go_on(*uid) {
                let woken = session_keys.drain(..session_keys.len().min(max_count));
                active.extend(woken.filter(|session_key| parked_keys.remove(session_key)));
            }
            !session_keys.is_empty()
        });
    }

    /// Whether [`Sessions::wake`] would wake a session.
    pub fn can_wake(&self, may_go_on: impl Fn(u32) -> bool) -> bool {
        self.parked.keys().any(|uid| may_go_on(*uid))
    }

    /// Ends a turn of the loop. Sessions without work become idle, and sessions whose users have to
    /// wait are parked.
    pub fn settle(&mut self, may_go_on: impl Fn(u32) -> bool) {
        let Self { by_key, active, parked, parked_keys, unauthenticated, .. } = self;
        active.retain(|session_key| {
            let Some(session) = by_key.get(session_key) else { return false };
            match is_unauthenticated(session) {
                true => unauthenticated.insert(*session_key),
                false => unauthenticated.remove(session_key),
            };
            let waiting_uid = session.uid().filter(|uid| session.only_reads() && !may_go_on(*uid));
            if let Some(uid) = waiting_uid {
                if parked_keys.insert(*session_key) {
                    parked.entry(uid).or_default().push_back(*session_key);
                }
                return false;
            }
            session.goes_on_without_event()
        });
    }
}

fn is_unauthenticated(session: &ClientSession) -> bool {
    session.unauthenticated_ids().is_some() && !session.is_closing()
}

#[cfg(test)]
mod tests {
    use score_proto::message::OsBytes;

    use super::super::session_state::LoginClaim;
    use super::*;
    use crate::sys::credentials::UserIds;

    /// Adds an idle session of a client that has not logged in. Returns the client's end.
    fn client(sessions: &mut Sessions, session_key: SessionKey) -> std::os::unix::net::UnixStream {
        let poll = mio::Poll::new().unwrap();
        let (client, socket) = std::os::unix::net::UnixStream::pair().unwrap();
        let (registry, token) = (poll.registry(), mio::Token(session_key.0));
        let ids = UserIds { uid: 1, gid: 1 };
        let session = ClientSession::unauthenticated(socket.into(), ids, registry, token).unwrap();
        sessions.insert(session_key, session);
        client
    }

    fn active_keys_after_a_turn(sessions: &mut Sessions) -> Vec<SessionKey> {
        let now = std::time::Instant::now();
        for session_key in sessions.active_keys() {
            let session = sessions.get_mut(session_key).unwrap();
            session.next_request(super::super::client_request::Readiness::Ready, now);
            session.flush();
        }
        sessions.settle(|_| true);
        sessions.active_keys()
    }

    #[test]
    fn only_a_session_that_was_changed_is_active_for_a_turn() {
        let mut sessions = Sessions::default();
        let _clients = [client(&mut sessions, SessionKey(7)), client(&mut sessions, SessionKey(3))];
        assert_eq!(sessions.active_keys(), [3, 7].map(SessionKey));
        assert!(active_keys_after_a_turn(&mut sessions).is_empty());
        sessions.get_mut(SessionKey(7)).unwrap().mark_readable();
        assert!(sessions.get_mut(SessionKey(4)).is_none());
        assert_eq!(sessions.active_keys(), [7].map(SessionKey));
        assert!(active_keys_after_a_turn(&mut sessions).is_empty());
        assert_eq!(sessions.iter_mut().count(), 2);
        assert_eq!(
            sessions.active().map(|(key, _)| key).collect::<Vec<_>>(),
            [3, 7].map(SessionKey)
        );
    }

    #[test]
    fn a_session_that_was_read_in_part_or_was_closed_stays_active() {
        let mut sessions = Sessions::default();
        let _clients = [client(&mut sessions, SessionKey(1)), client(&mut sessions, SessionKey(2))];
        assert!(active_keys_after_a_turn(&mut sessions).is_empty());
        sessions.get_mut(SessionKey(1)).unwrap().mark_readable();
        sessions.settle(|_| true);
        assert_eq!(sessions.active_keys(), [1].map(SessionKey));
        sessions.get_mut(SessionKey(2)).unwrap().mark_hung_up();
        assert_eq!(active_keys_after_a_turn(&mut sessions), [2].map(SessionKey));
    }

    #[test]
    fn sessions_of_a_user_without_time_are_parked_and_woken_in_turn() {
        let mut sessions = Sessions::default();
        let _clients = [1, 2, 3].map(|key| client(&mut sessions, SessionKey(key)));
        let keys = |sessions: &Sessions| sessions.active_keys();
        assert!(active_keys_after_a_turn(&mut sessions).is_empty());
        for _ in 0..3 {
            // A session that is marked again is not parked twice.
            for key in [3, 1, 2] {
                sessions.get_mut(SessionKey(key)).unwrap().mark_readable();
            }
            sessions.settle(|_| false);
            assert!(keys(&sessions).is_empty() && !sessions.can_wake(|_| false));
        }
        assert!(sessions.can_wake(|uid| uid == 1));
        sessions.wake(|_| false, 2);
        assert!(keys(&sessions).is_empty());
        sessions.wake(|_| true, 2);
        assert_eq!(keys(&sessions), [1, 2].map(SessionKey));
        sessions.settle(|_| false);
        // The third session has not been woken before, so it is first.
        sessions.wake(|_| true, 1);
        assert_eq!(keys(&sessions), [SessionKey(3)]);
        sessions.settle(|_| false);
        sessions.remove(SessionKey(1)).unwrap();
        sessions.get_mut(SessionKey(2)).unwrap().mark_hung_up();
        sessions.settle(|_| false);
        assert_eq!(keys(&sessions), [SessionKey(2)], "a client that has gone is not parked");
        sessions.wake(|_| true, 9);
        assert_eq!(keys(&sessions), [2, 3].map(SessionKey));
        assert!(!sessions.can_wake(|_| true));
    }

    #[test]
    fn clients_are_listed_as_unauthenticated_until_they_send_a_login() {
        let mut sessions = Sessions::default();
        let _clients = [client(&mut sessions, SessionKey(1)), client(&mut sessions, SessionKey(2))];
        sessions.settle(|_| true);
        let claim = LoginClaim { ids: UserIds { uid: 1, gid: 1 }, name: OsBytes(b"name".to_vec()) };
        sessions.get_mut(SessionKey(1)).unwrap().set_claim(claim);
        assert_eq!(
            sessions.unauthenticated().map(|(key, _)| key).collect::<Vec<_>>(),
            [2].map(SessionKey)
        );
        assert_eq!(sessions.max_unauthenticated_count(), 2);
        sessions.settle(|_| true);
        assert_eq!(sessions.max_unauthenticated_count(), 1);
        sessions.get_mut(SessionKey(1)).unwrap().take_claim().unwrap();
        sessions.settle(|_| true);
        assert_eq!(sessions.unauthenticated().count(), 2);
        sessions.remove(SessionKey(1)).unwrap();
        assert_eq!((sessions.unauthenticated().count(), sessions.len()), (1, 1));
    }
}
