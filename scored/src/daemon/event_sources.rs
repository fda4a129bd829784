//! The sources of events of the daemon's loop. Each source has a token. Fixed tokens belong to the
//! sockets that exist once; the others are allocated, and this module stores their owners.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use mio::{Events, Poll, Registry, Token};
use score_job::jobs::{LinkId, SessionKey};
use score_proto::ids::JobId;

/// Signals that the daemon receives by signalfd(2).
pub const SIGNALS: Token = Token(0);
/// The port at which other daemons connect.
pub const LISTENER: Token = Token(1);
/// Output of other daemons and of their launchers.
pub const LAUNCHER_OUTPUT: Token = Token(2);
/// The standard input of a daemon that another daemon has started. It is closed when the server
/// ends.
pub const PARENT_STDIN: Token = Token(3);
/// The local socket of a scout session, to which clients connect.
pub const SCOUT_LISTENER: Token = Token(4);
/// The local socket of a service, to which clients connect.
pub const SERVICE_LISTENER: Token = Token(5);
/// The slice timer.
pub const SLICE_TIMER: Token = Token(6);
/// The port of the status page.
pub const HTTP_LISTENER: Token = Token(7);
/// The socket on which the keeper sends events.
pub const KEEPER: Token = Token(8);
/// The socket of single-user mode, to which tools connect.
pub const TOOL_LISTENER: Token = Token(9);
/// The first token that is given to sessions, shepherds and links.
const FIRST_DYNAMIC_TOKEN: usize = 10;

/// The owner of the socket that a token identifies.
#[derive(Debug, Clone, Copy)]
pub enum TokenOwner {
    /// The client of a session.
    Session(SessionKey),
    /// The control socket of this job's shepherd.
    Shepherd(JobId),
    /// The switch thread of this job's shepherd.
    SwitchThread(JobId),
    /// The supervisors of this job's tools.
    Tool(JobId),
    /// Another daemon.
    Peer,
    /// A client of the status page.
    HttpConnection,
}

/// See the [module](self).
#[derive(Debug)]
pub struct EventSources {
    poll: Poll,
    owners: HashMap<Token, TokenOwner>,
    next_token: usize,
}

impl EventSources {
    /// Creates an epoll instance without sources.
    ///
    /// # Errors
    /// See epoll_create(2).
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        Ok(Self { poll, owners: HashMap::new(), next_token: FIRST_DYNAMIC_TOKEN })
    }

    /// The registry at which sockets are registered.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Waits for events, at most for `timeout`. A signal may end the wait without an event.
    ///
    /// # Errors
    /// See epoll_wait(2).
    pub fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result,
        }
    }

    /// Allocates a token. Later tokens are larger.
    pub fn allocate(&mut self, owner: TokenOwner) -> Token {
        let token = self.next();
        self.owners.insert(token, owner);
        token
    }

    /// Allocates the key of a session, and the token of the client's socket.
    pub fn allocate_session(&mut self) -> (SessionKey, Token) {
        let token = self.next();
        let session_key = SessionKey(token.0);
        self.owners.insert(token, TokenOwner::Session(session_key));
        (session_key, token)
    }

    /// Allocates the key of a session without a socket, whose client is on another host.
    pub fn allocate_remote_session(&mut self) -> SessionKey {
        SessionKey(self.next().0)
    }

    fn next(&mut self) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        token
    }

    /// Removes a token whose socket has been closed.
    pub fn release(&mut self, token: Token) {
        self.owners.remove(&token);
    }

    /// Removes the token of a session, if it has one.
    pub fn release_session(&mut self, session_key: SessionKey) {
        self.release(Token(session_key.0));
    }

    /// Removes the token of a link.
    pub fn release_link(&mut self, link_id: LinkId) {
        self.release(Token(link_id.0));
    }

    /// Removes the tokens of the local part of a job.
    pub fn release_job(&mut self, job: JobId) {
        self.owners.retain(|_, owner| match owner {
            TokenOwner::Shepherd(owner)
            | TokenOwner::SwitchThread(owner)
            | TokenOwner::Tool(owner) => *owner != job,
            TokenOwner::Session(_) | TokenOwner::Peer | TokenOwner::HttpConnection => true,
        });
    }

    /// The owner of an allocated token.
    pub fn owner(&self, token: Token) -> Option<TokenOwner> {
        self.owners.get(&token).copied()
    }

    /// Whether there are events, and all come from the slice timer or from switch threads.
    pub fn is_only_slice_or_switch(&self, events: &Events) -> bool {
        let is_switch = |token: Token| token == SLICE_TIMER || self.is_switch_thread(token);
        !events.is_empty() && events.iter().all(|event| is_switch(event.token()))
    }

    /// Whether all events come from switch threads.
    pub fn is_only_switch_threads(&self, events: &Events) -> bool {
        events.iter().all(|event| self.is_switch_thread(event.token()))
    }

    fn is_switch_thread(&self, token: Token) -> bool {
        matches!(self.owners.get(&token), Some(TokenOwner::SwitchThread(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_job_releases_the_tokens_of_its_local_part_only() {
        let mut sources = EventSources::new().unwrap();
        let [one, other] = [1, 2].map(JobId);
        let (session_key, session) = sources.allocate_session();
        let owners = [TokenOwner::Shepherd, TokenOwner::SwitchThread, TokenOwner::Tool];
        let of_one = owners.map(|owner| sources.allocate(owner(one)));
        let of_other = sources.allocate(TokenOwner::SwitchThread(other));
        sources.release_job(one);
        assert!(of_one.iter().all(|token| sources.owner(*token).is_none()));
        assert!(matches!(sources.owner(of_other), Some(TokenOwner::SwitchThread(JobId(2)))));
        assert!(
            matches!(sources.owner(session), Some(TokenOwner::Session(key)) if key == session_key)
        );
        sources.release_session(session_key);
        assert!(sources.owner(session).is_none());
        assert!(sources.allocate_remote_session().0 > of_other.0);
    }
}
