//! The sessions in the server whose clients are on other hosts: their keys, and the costs of their
//! messages that the server has handled.

use std::collections::HashMap;

use score_job::cluster::SessionId;
use score_job::jobs::SessionKey;
use score_proto::ids::HostId;

/// A host and its number of a session.
type HostSession = (HostId, u64);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct RemoteSessions {
    keys: HashMap<HostSession, SessionKey>,
    /// The costs of handled messages that the hosts have not been credited with yet.
    credits: HashMap<HostSession, u64>,
}

impl RemoteSessions {
    /// Adds a session. The key belongs to the session in this daemon.
    pub fn insert(&mut self, id: SessionId, session_key: SessionKey) {
        self.keys.insert((id.host, id.number), session_key);
    }

    /// Removes a session that has ended.
    pub fn remove(&mut self, id: SessionId) {
        self.keys.remove(&(id.host, id.number));
    }

    /// The key of a session.
    pub fn key(&self, host: HostId, number: u64) -> Option<SessionKey> {
        self.keys.get(&(host, number)).copied()
    }

    /// Records the cost of messages that a session's host has forwarded and that the server has
    /// handled.
    pub fn add_credit(&mut self, id: SessionId, cost: u64) {
        if cost > 0 {
            *self.credits.entry((id.host, id.number)).or_default() += cost;
        }
    }

    /// Takes the credits: the cost that each host may forward again.
    pub fn take_credits(&mut self) -> HashMap<HostSession, u64> {
        std::mem::take(&mut self.credits)
    }
}
