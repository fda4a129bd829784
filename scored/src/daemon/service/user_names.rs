//! Names of the users who log in. A uid is the same user on all hosts only if it has the same name
//! there, so the daemon that takes the login looks the name up: what the client says does not
//! count. A child process asks the name services, and the loop goes on meanwhile.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::job_control::Owner;
use score_proto::message::OsBytes;

use super::super::{Daemon, TokenOwner};
use crate::sys::name_lookup::{LookupResult, LookupScope, UserLookup};
use score_job::jobs::ClientJob;

/// How long a name is not looked up again.
const USER_NAME_TTL: Duration = Duration::from_secs(60);
/// The same for a uid without name: it may get one soon, or a name service was out of order.
const UNKNOWN_USER_TTL: Duration = Duration::from_secs(5);
/// Names that are kept at most. A user may have many uids (subuid(5)).
const MAX_CACHED_NAMES: usize = 8192;
/// Look-ups at the same time: each is a process.
const MAX_LOOKUPS: usize = 256;
/// Logins that wait for the same look-up.
const MAX_WAITING_LOGINS: usize = 1024;

/// The answer of an earlier look-up.
#[derive(Debug)]
struct KnownName {
    /// The name, empty if the name services do not know the uid.
    name: OsBytes,
    expires_at: Instant,
}

/// A look-up, and the sessions that wait for it.
#[derive(Debug)]
struct PendingLookup {
    lookup: UserLookup,
    token: Token,
    session_keys: Vec<usize>,
}

/// Names of users of this host: those that are known, and those that are being looked up.
#[derive(Debug, Default)]
pub struct UserNames {
    /// By uid.
    known: HashMap<u32, KnownName>,
    lookups: HashMap<u32, PendingLookup>,
}

/// A look-up that has ended.
#[derive(Debug)]
struct FinishedLookup {
    token: Token,
    session_keys: Vec<usize>,
    /// The name, empty if the name services do not know the uid.
    name: Result<OsBytes, String>,
}

impl UserNames {
    /// The name of a user, if it was looked up a short time ago.
    fn known(&self, uid: u32, now: Instant) -> Option<OsBytes> {
        self.known.get(&uid).filter(|known| now < known.expires_at).map(|known| known.name.clone())
    }

    fn remember(&mut self, uid: u32, name: OsBytes, now: Instant) {
        if self.known.len() >= MAX_CACHED_NAMES {
            self.known.retain(|_, known| now < known.expires_at);
        }
        if self.known.len() < MAX_CACHED_NAMES {
            let ttl = if name.0.is_empty() { UNKNOWN_USER_TTL } else { USER_NAME_TTL };
            self.known.insert(uid, KnownName { name, expires_at: now + ttl });
        }
    }

    /// Adds a session to those that wait for the name of this user. False: it is not being looked
    /// up.
    fn join(&mut self, uid: u32, session_key: usize) -> Result<bool, String> {
        let is_full = self.lookups.len() >= MAX_LOOKUPS;
        match self.lookups.get_mut(&uid) {
            None if is_full => {
                Err("too many names of users are being looked up: try again".to_owned())
            }
            None => Ok(false),
            Some(pending) if pending.session_keys.len() >= MAX_WAITING_LOGINS => {
                Err("too many logins of yours wait for the look-up of your name".to_owned())
            }
            Some(pending) => {
                pending.session_keys.push(session_key);
                Ok(true)
            }
        }
    }

    /// Starts to look a name up. Returns the process that does it.
    fn start(
        &mut self,
        uid: u32,
        session_key: usize,
        (registry, token): (&Registry, Token),
    ) -> Result<Option<i32>, String> {
        let lookup = UserLookup::start(uid, LookupScope::Name)?;
        registry
            .register(&mut SourceFd(&lookup.pipe().as_raw_fd()), token, Interest::READABLE)
            .map_err(|error| format!("uid {uid}: no look-up can be made: {error}"))?;
        let child = lookup.child_pid();
        self.lookups.insert(uid, PendingLookup { lookup, token, session_keys: vec![session_key] });
        Ok(child)
    }

    /// Takes the look-ups that have ended.
    fn take_finished(&mut self, registry: &Registry) -> Vec<FinishedLookup> {
        let mut results: Vec<(u32, LookupResult)> = Vec::new();
        for (uid, pending) in &mut self.lookups {
            results.extend(pending.lookup.try_result().map(|result| (*uid, result)));
        }
        let mut finished = Vec::new();
        for (uid, result) in results {
            let Some(PendingLookup { lookup, token, session_keys }) = self.lookups.remove(&uid)
            else {
                continue;
            };
            // A child that was forked meanwhile may hold the pipe for a moment: closing it does not
            // end its registration then.
            let _ = registry.deregister(&mut SourceFd(&lookup.pipe().as_raw_fd()));
            let name = result.map(|entry| {
                OsBytes(entry.map(|entry| entry.name.into_bytes()).unwrap_or_default())
            });
            if let Ok(name) = &name {
                self.remember(uid, name.clone(), Instant::now());
            }
            finished.push(FinishedLookup { token, session_keys, name });
        }
        finished
    }

    /// When the first look-up fails if there is no answer.
    pub fn deadline(&self) -> Option<Instant> {
        self.lookups.values().map(|pending| pending.lookup.deadline()).min()
    }

    /// A child of this process has been reaped.
    pub fn on_child_reaped(&mut self, pid: i32) {
        let lookups = self.lookups.values_mut().map(|pending| &mut pending.lookup);
        lookups
            .filter(|lookup| lookup.child_pid() == Some(pid))
            .for_each(UserLookup::on_child_reaped);
    }

    /// Kills the processes of all look-ups and returns their numbers.
    pub fn abandon_lookups(&mut self) -> Vec<i32> {
        let lookups = std::mem::take(&mut self.lookups);
        lookups.values().filter_map(|pending| pending.lookup.child_pid()).collect()
    }
}

impl Daemon {
    /// Completes the login of a session once the name of its user is known.
    pub(super) fn complete_login_with_name(&mut self, session_key: usize, uid: u32) {
        let Some(service) = &mut self.service else { return };
        if let Some(name) = service.user_names.known(uid, Instant::now()) {
            return self.complete_login(session_key, name);
        }
        let started = match service.user_names.join(uid, session_key) {
            Ok(true) => return,
            Ok(false) => self.start_name_lookup(session_key, uid),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = started {
            self.refuse_login(session_key, &reason, EXIT_FAILED);
        }
    }

    fn start_name_lookup(&mut self, session_key: usize, uid: u32) -> Result<(), String> {
        let token = self.allocate_token(TokenOwner::NameLookup);
        let Some(service) = &mut self.service else { return Ok(()) };
        let source = (self.poll.registry(), token);
        let started = service.user_names.start(uid, session_key, source);
        if started.is_err() {
            self.token_owners.remove(&token);
        }
        self.known_children.borrow_mut().extend(started?);
        Ok(())
    }

    /// Completes the logins of users whose names have been looked up.
    pub fn finish_name_lookups(&mut self) {
        let Some(service) = &mut self.service else { return };
        for finished in service.user_names.take_finished(self.poll.registry()) {
            self.token_owners.remove(&finished.token);
            if let (Err(reason), Some(service)) = (&finished.name, &mut self.service) {
                service.warn_rate_limited(true, reason);
            }
            for session_key in finished.session_keys {
                match &finished.name {
                    Ok(name) => self.complete_login(session_key, name.clone()),
                    Err(reason) => self.refuse_login(session_key, reason, EXIT_FAILED),
                }
            }
        }
    }

    fn complete_login(&mut self, session_key: usize, name: OsBytes) {
        let session = self.sessions.get_mut(&session_key);
        let Some(claim) = session.and_then(|session| session.take_claim()) else { return };
        if claim.name.0.is_empty() || claim.name == name {
            return self.accept_login(session_key, Owner { name, ..claim });
        }
        let quoted = |name: &OsBytes| String::from_utf8_lossy(&name.0).into_owned();
        let (uid, claimed, name) = (claim.uid, quoted(&claim.name), quoted(&name));
        let text = format!("uid {uid}, {name:?}, has claimed to be {claimed:?}: refused");
        self.service.iter_mut().for_each(|service| service.warn_rate_limited(true, &text));
        let reason = format!("the claimed name {claimed:?} differs from your name {name:?}");
        self.refuse_login(session_key, &reason, EXIT_REFUSED);
    }

    /// Refuses a login: the last message of its session.
    pub(super) fn refuse_login(&mut self, session_key: usize, reason: &str, code: u8) {
        let session = self.sessions.get_mut(&session_key);
        session.map(|session| session.take_claim());
        let reason = format!("login refused: {reason}");
        self.refuse(ClientJob::session_itself(session_key), reason, code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> OsBytes {
        OsBytes(text.into())
    }

    #[test]
    fn a_name_is_kept_for_a_minute_and_its_absence_for_some_seconds() {
        let mut names = UserNames::default();
        let start = Instant::now();
        names.remember(1, name("daemon"), start);
        names.remember(2, name(""), start);
        let known = |uid, seconds| names.known(uid, start + Duration::from_secs(seconds));
        assert_eq!((known(1, 0), known(2, 0)), (Some(name("daemon")), Some(name(""))));
        assert_eq!((known(1, 59), known(2, 6)), (Some(name("daemon")), None));
        assert_eq!((known(1, 60), known(3, 0)), (None, None));
    }

    #[test]
    fn the_uids_of_one_user_do_not_fill_the_memory() {
        let mut names = UserNames::default();
        let start = Instant::now();
        (0..20_000).for_each(|uid| names.remember(uid, name(""), start));
        assert_eq!(names.known.len(), MAX_CACHED_NAMES);
        names.remember(20_000, name("late"), start + USER_NAME_TTL);
        assert_eq!(names.known.len(), 1);
    }
}
