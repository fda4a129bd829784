//! What a session is. The state is set when there is evidence of the kernel or of a link for it,
//! and decides which messages exist: what a client may not say in its state cannot be decoded.

use score_job::cluster::SessionId;
use score_proto::client_session::{JobMessage, SESSION_JOB};
use score_proto::frame::FrameError;
use score_proto::ids::SessionJobId;
use score_proto::job_control::Owner;
use score_proto::message::{
    ConsoleRequest, Greeting, Login, OsBytes, SingleUserRequest, UserRequest,
};

use crate::framed_socket::FramedSocket;

/// How often a client's socket is read for one message. A message that has not come by then waits
/// for the next turn of the loop.
const MAX_READS: usize = 4;

/// A user who has logged in.
#[derive(Debug)]
pub struct LoggedInUser {
    /// The user, as the keeper of the login host has vouched.
    pub owner: Owner,
    /// The cluster's number for the login.
    pub id: SessionId,
}

/// The user that a client claims to be, until the keeper has vouched for it.
#[derive(Debug)]
pub struct LoginClaim {
    /// The user id, which the kernel has reported.
    pub uid: u32,
    /// The group id, which the kernel has reported.
    pub gid: u32,
    /// The name that the client claims.
    pub name: OsBytes,
}

/// See the [module](self).
#[derive(Debug)]
pub enum SessionState {
    /// The front end of the user who has started this daemon.
    SingleUser,
    /// A tool of the user who has started this daemon.
    Tool,
    /// A client of a service that has not logged in. The kernel has reported uid and gid.
    Unauthenticated {
        /// The user id.
        uid: u32,
        /// The group id.
        gid: u32,
    },
    /// The keeper looks up the name of the user, and the session is not read.
    NameLookup(LoginClaim),
    /// A user whose requests are handled here. The client is on this host or, in the server, on
    /// another one.
    User(LoggedInUser),
    /// A user whose requests are handled by the server on another host.
    Forwarded(LoggedInUser),
}

/// A message that a client may send in its state.
#[derive(Debug)]
pub enum ClientMessage {
    /// The first message.
    Greeting(Greeting),
    /// In [`SessionState::SingleUser`].
    SingleUser(SingleUserRequest),
    /// In [`SessionState::Tool`].
    Tool(ConsoleRequest),
    /// In [`SessionState::Unauthenticated`].
    Login(Login),
    /// In [`SessionState::User`] and [`SessionState::Forwarded`].
    User(UserRequest),
}

impl SessionState {
    /// The user, as the kernel or the daemon of the user's host has reported. None in single-user
    /// mode.
    pub fn uid(&self) -> Option<u32> {
        match self {
            SessionState::SingleUser | SessionState::Tool => None,
            SessionState::Unauthenticated { uid, .. } => Some(*uid),
            SessionState::NameLookup(claim) => Some(claim.uid),
            SessionState::User(user) | SessionState::Forwarded(user) => Some(user.owner.uid),
        }
    }

    /// The user who has logged in.
    pub fn user(&self) -> Option<&LoggedInUser> {
        match self {
            SessionState::User(user) | SessionState::Forwarded(user) => Some(user),
            SessionState::SingleUser
            | SessionState::Tool
            | SessionState::Unauthenticated { .. }
            | SessionState::NameLookup(_) => None,
        }
    }

    /// Receives the next message of a client that has greeted, and the number of the job that it
    /// is about.
    ///
    /// # Errors
    /// The client has sent something that it may not send in this state.
    pub fn receive(
        &self,
        link: &mut FramedSocket,
    ) -> Result<Option<(SessionJobId, ClientMessage)>, FrameError> {
        Ok(match self {
            SessionState::SingleUser => link
                .receive_within::<JobMessage<_>>(MAX_READS)?
                .map(|received| (received.job, ClientMessage::SingleUser(received.message))),
            SessionState::Tool => link
                .receive_within::<JobMessage<_>>(MAX_READS)?
                .map(|received| (received.job, ClientMessage::Tool(received.message))),
            SessionState::Unauthenticated { .. } => link
                .receive_within::<JobMessage<_>>(MAX_READS)?
                .map(|received| (received.job, ClientMessage::Login(received.message))),
            SessionState::NameLookup(_) => None,
            SessionState::User(_) | SessionState::Forwarded(_) => link
                .receive_within::<JobMessage<_>>(MAX_READS)?
                .map(|received| (received.job, ClientMessage::User(received.message))),
        })
    }
}

/// Receives the first message of a client.
///
/// # Errors
/// It is not a greeting.
pub fn receive_greeting(
    link: &mut FramedSocket,
) -> Result<Option<(SessionJobId, ClientMessage)>, FrameError> {
    let greeting = link.receive_within(MAX_READS)?;
    Ok(greeting.map(|greeting| (SESSION_JOB, ClientMessage::Greeting(greeting))))
}
