//! The state of a session. The state changes only on evidence from the kernel or from a link
//! between daemons. It determines the type of the messages that are decoded. A client therefore
//! cannot send a message that its state does not permit.

use score_client::FramedSocket;
use score_job::cluster::SessionId;
use score_proto::client_session::{JobMessage, SESSION_JOB};
use score_proto::frame::FrameError;
use score_proto::ids::SessionJobId;
use score_proto::job_control::Owner;
use score_proto::message::{
    ConsoleRequest, Greeting, Login, OsBytes, SingleUserRequest, UserRequest,
};

use crate::sys::credentials::UserIds;

/// How often a client's socket is read for one message. If the message is incomplete after that,
/// reading continues in the next turn of the loop.
const MAX_READS: usize = 4;

/// A user who has logged in.
#[derive(Debug)]
pub struct LoggedInUser {
    /// The user, as vouched for by the keeper of the login host.
    pub owner: Owner,
    /// The number of the login in the cluster.
    pub id: SessionId,
}

/// The user that a client claims to be. The keeper has not vouched for it yet.
#[derive(Debug)]
pub struct LoginClaim {
    /// The ids that the kernel reports.
    pub ids: UserIds,
    /// The name that the client claims.
    pub name: OsBytes,
}

/// See the [module](self).
#[derive(Debug)]
pub enum SessionState {
    /// The front end of this daemon's user (single-user mode).
    SingleUser,
    /// A tool of this daemon's user (single-user mode).
    Tool,
    /// A client of a service that has not logged in. The kernel reports the ids.
    Unauthenticated(UserIds),
    /// The keeper looks up the name of the user. The daemon does not read the session meanwhile.
    NameLookup(LoginClaim),
    /// A user whose requests this daemon handles. The client runs on this host. If this daemon is
    /// the server, the client may also run on another host.
    User(LoggedInUser),
    /// A user whose requests are forwarded to the server on another host.
    Forwarded(LoggedInUser),
}

/// A message of a client. Each variant is permitted in certain states only.
#[derive(Debug)]
pub enum ClientMessage {
    /// The first message of each client.
    Greeting(Greeting),
    /// Permitted in [`SessionState::SingleUser`].
    SingleUser(SingleUserRequest),
    /// Permitted in [`SessionState::Tool`].
    Tool(ConsoleRequest),
    /// Permitted in [`SessionState::Unauthenticated`].
    Login(Login),
    /// Permitted in [`SessionState::User`] and [`SessionState::Forwarded`].
    User(UserRequest),
}

impl SessionState {
    /// The user, as reported by the kernel or by the daemon of the user's host. `None` in
    /// single-user mode.
    pub fn uid(&self) -> Option<u32> {
        match self {
            SessionState::SingleUser | SessionState::Tool => None,
            SessionState::Unauthenticated(ids) => Some(ids.uid),
            SessionState::NameLookup(claim) => Some(claim.ids.uid),
            SessionState::User(user) | SessionState::Forwarded(user) => Some(user.owner.uid),
        }
    }

    /// The user who has logged in.
    pub fn user(&self) -> Option<&LoggedInUser> {
        match self {
            SessionState::User(user) | SessionState::Forwarded(user) => Some(user),
            SessionState::SingleUser
            | SessionState::Tool
            | SessionState::Unauthenticated(_)
            | SessionState::NameLookup(_) => None,
        }
    }

    /// Receives the next message of a client that has sent its greeting. Also returns the number of
    /// the job that the message is about.
    ///
    /// # Errors
    /// The client has sent something that its state does not permit.
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
            SessionState::Unauthenticated(_) => link
                .receive_within::<JobMessage<_>>(MAX_READS)?
                .map(|received| (received.job, ClientMessage::Login(received.message))),
            SessionState::NameLookup(_) => None,
            SessionState::User(_) | SessionState::Forwarded(_) => link
                .receive_within::<JobMessage<_>>(MAX_READS)?
                .map(|received| (received.job, ClientMessage::User(received.message))),
        })
    }
}

/// Receives the greeting, which is the first message of a client.
///
/// # Errors
/// The client has sent something else.
pub fn receive_greeting(
    link: &mut FramedSocket,
) -> Result<Option<(SessionJobId, ClientMessage)>, FrameError> {
    let greeting = link.receive_within(MAX_READS)?;
    Ok(greeting.map(|greeting| (SESSION_JOB, ClientMessage::Greeting(greeting))))
}
