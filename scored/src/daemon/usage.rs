//! What users use of this daemon's memory by the messages of their sessions, counted for each user
//! in one place. A user who has no room left waits; other users do not notice it.

use std::collections::HashMap;

/// Bytes of unfinished and unsent messages of all sessions of one user. While a user has more, no
/// session of this user is read.
pub const MAX_SESSION_BYTES: u64 = 64 << 20;
/// Bytes of messages that a host has forwarded for one user and that the server has not handled.
pub const FORWARD_WINDOW: u64 = 1 << 20;
/// Added to the length of each forwarded message: many short ones cost more than their bytes.
const FORWARD_OVERHEAD: u64 = 64;

/// What a forwarded message of this length costs in [`FORWARD_WINDOW`].
pub fn forward_cost(len: usize) -> u64 {
    len as u64 + FORWARD_OVERHEAD
}

#[derive(Debug, Default)]
struct SessionUsage {
    session_bytes: u64,
    forwarded_bytes: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Usage {
    by_uid: HashMap<u32, SessionUsage>,
}

impl Usage {
    /// The messages of a session take another number of bytes than before.
    pub fn change_session_bytes(&mut self, uid: u32, before: u64, now: u64) {
        self.change(uid, |usage| {
            usage.session_bytes = usage.session_bytes.saturating_sub(before).saturating_add(now);
        });
    }

    /// A message of this cost was forwarded to the server.
    pub fn on_forwarded(&mut self, uid: u32, cost: u64) {
        self.change(uid, |usage| {
            usage.forwarded_bytes = usage.forwarded_bytes.saturating_add(cost);
        });
    }

    /// The server has handled forwarded messages of this cost, or their session has ended.
    pub fn on_forwarded_handled(&mut self, uid: u32, cost: u64) {
        self.change(uid, |usage| {
            usage.forwarded_bytes = usage.forwarded_bytes.saturating_sub(cost);
        });
    }

    fn change(&mut self, uid: u32, change: impl FnOnce(&mut SessionUsage)) {
        let usage = self.by_uid.entry(uid).or_default();
        change(usage);
        if usage.session_bytes == 0 && usage.forwarded_bytes == 0 {
            self.by_uid.remove(&uid);
        }
    }

    /// Whether the sessions of a user may take more bytes.
    pub fn has_session_room(&self, uid: u32) -> bool {
        self.by_uid.get(&uid).is_none_or(|usage| usage.session_bytes < MAX_SESSION_BYTES)
    }

    /// Whether a message of a user may be forwarded to the server.
    pub fn has_forward_room(&self, uid: u32) -> bool {
        self.by_uid.get(&uid).is_none_or(|usage| usage.forwarded_bytes < FORWARD_WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_room_does_not_concern_another_one() {
        let mut usage = Usage::default();
        usage.change_session_bytes(1, 0, MAX_SESSION_BYTES - 1);
        assert!(usage.has_session_room(1));
        usage.change_session_bytes(1, 0, 1);
        assert!(!usage.has_session_room(1) && usage.has_session_room(2));
        usage.change_session_bytes(1, MAX_SESSION_BYTES - 1, 0);
        assert!(usage.has_session_room(1));
        usage.change_session_bytes(1, 1, 0);
        assert!(usage.by_uid.is_empty());
    }

    #[test]
    fn short_messages_fill_the_window_of_forwarded_ones_too() {
        let mut usage = Usage::default();
        let mut count = 0;
        while usage.has_forward_room(1) {
            usage.on_forwarded(1, forward_cost(1));
            count += 1;
        }
        assert!((10_000..20_000).contains(&count), "{count}");
        usage.on_forwarded_handled(1, forward_cost(1));
        assert!(usage.has_forward_room(1) && usage.has_forward_room(2));
        usage.on_forwarded_handled(1, FORWARD_WINDOW);
        assert!(usage.by_uid.is_empty());
    }
}
