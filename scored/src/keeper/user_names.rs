//! The names of users who log in. A uid means the same user on all hosts only if it has the same
//! name there. Therefore the keeper of the login host looks up the name, and the name that a client
//! claims is not used. A child process queries the name services, so that the keeper's loop does
//! not block.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::sys::name_lookup::{LookupResult, LookupScope, UserLookup};

/// How long a name is cached.
const USER_NAME_TTL: Duration = Duration::from_secs(60);
/// Like [`USER_NAME_TTL`], for a uid without a name. The time is shorter, because the uid may get a
/// name soon, or a name service may have failed.
const UNKNOWN_USER_TTL: Duration = Duration::from_secs(5);
/// The maximum number of cached names. One user may have many uids (subuid(5)).
const MAX_CACHED_NAMES: usize = 8192;
/// The maximum number of simultaneous look-ups. Each is a process.
const MAX_LOOKUPS: usize = 256;
/// The maximum number of logins that wait for the same look-up.
const MAX_WAITING_LOGINS: usize = 1024;

/// The cached result of a look-up.
#[derive(Debug)]
struct KnownName {
    /// The name. Empty if the name services have no entry for the uid.
    name: Vec<u8>,
    expires_at: Instant,
}

/// A look-up, and the logins that wait for it.
#[derive(Debug)]
struct PendingLookup<Login> {
    lookup: UserLookup,
    logins: Vec<Login>,
}

/// The cached names and the look-ups in progress.
#[derive(Debug)]
pub struct UserNames<Login> {
    /// The cached names, by uid.
    known: HashMap<u32, KnownName>,
    lookups: HashMap<u32, PendingLookup<Login>>,
}

/// A look-up that has ended.
#[derive(Debug)]
pub struct FinishedLookup<Login> {
    /// The logins that waited for it.
    pub logins: Vec<Login>,
    /// The name. Empty if the name services have no entry for the uid.
    pub name: Result<Vec<u8>, String>,
}

impl<Login> Default for UserNames<Login> {
    fn default() -> Self {
        Self { known: HashMap::new(), lookups: HashMap::new() }
    }
}

impl<Login> UserNames<Login> {
    /// The cached name of a user.
    pub fn known(&self, uid: u32, now: Instant) -> Option<Vec<u8>> {
        self.known.get(&uid).filter(|known| now < known.expires_at).map(|known| known.name.clone())
    }

    fn remember(&mut self, uid: u32, name: Vec<u8>, now: Instant) {
        if self.known.len() >= MAX_CACHED_NAMES {
            self.known.retain(|_, known| now < known.expires_at);
        }
        if self.known.len() < MAX_CACHED_NAMES {
            let ttl = if name.is_empty() { UNKNOWN_USER_TTL } else { USER_NAME_TTL };
            self.known.insert(uid, KnownName { name, expires_at: now + ttl });
        }
    }

    /// Looks up the name of a user for a login. Returns the process id of the look-up if one was
    /// started.
    ///
    /// # Errors
    /// One line: there are too many look-ups, or pipe(2) or fork(2) failed.
    pub fn look_up(&mut self, uid: u32, login: Login) -> Result<Option<i32>, String> {
        let is_full = self.lookups.len() >= MAX_LOOKUPS;
        match self.lookups.get_mut(&uid) {
            Some(pending) if pending.logins.len() >= MAX_WAITING_LOGINS => {
                Err("too many logins of this uid wait for the look-up of its name".to_owned())
            }
            Some(pending) => {
                pending.logins.push(login);
                Ok(None)
            }
            None if is_full => {
                Err("too many names of users are being looked up: try again".to_owned())
            }
            None => {
                let lookup = UserLookup::start(uid, LookupScope::Name)?;
                let child = lookup.child_pid();
                self.lookups.insert(uid, PendingLookup { lookup, logins: vec![login] });
                Ok(child)
            }
        }
    }

    /// Takes the look-ups that have ended.
    pub fn take_finished(&mut self) -> Vec<FinishedLookup<Login>> {
        let mut results: Vec<(u32, LookupResult)> = Vec::new();
        for (uid, pending) in &mut self.lookups {
            results.extend(pending.lookup.try_result().map(|result| (*uid, result)));
        }
        let mut finished = Vec::new();
        for (uid, result) in results {
            let Some(PendingLookup { logins, .. }) = self.lookups.remove(&uid) else { continue };
            let name =
                result.map(|entry| entry.map(|entry| entry.name.into_bytes()).unwrap_or_default());
            if let Ok(name) = &name {
                self.remember(uid, name.clone(), Instant::now());
            }
            finished.push(FinishedLookup { logins, name });
        }
        finished
    }

    /// The descriptors that become readable when a look-up has a result.
    pub fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lookups.values().map(|pending| pending.lookup.pipe())
    }

    /// The time at which the first look-up times out.
    pub fn deadline(&self) -> Option<Instant> {
        self.lookups.values().map(|pending| pending.lookup.deadline()).min()
    }

    /// Records that a child of this process has been reaped.
    pub fn on_child_reaped(&mut self, pid: i32) {
        let lookups = self.lookups.values_mut().map(|pending| &mut pending.lookup);
        lookups
            .filter(|lookup| lookup.child_pid() == Some(pid))
            .for_each(UserLookup::on_child_reaped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Vec<u8> {
        text.into()
    }

    #[test]
    fn a_name_is_kept_for_a_minute_and_its_absence_for_some_seconds() {
        let mut names = UserNames::<()>::default();
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
        let mut names = UserNames::<()>::default();
        let start = Instant::now();
        (0..20_000).for_each(|uid| names.remember(uid, name(""), start));
        assert_eq!(names.known.len(), MAX_CACHED_NAMES);
        names.remember(20_000, name("late"), start + USER_NAME_TTL);
        assert_eq!(names.known.len(), 1);
    }
}
