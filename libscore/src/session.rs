//! The state that `score_initialize` has set up. It is set once and never changed.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::area::Area;
use crate::control::Control;
use crate::fork_guard::ForkGuard;
use crate::options::Options;
use crate::pm::{Context, Device};
use crate::sync::SharedMapping;

/// A process that is a node of a parallel process.
pub(crate) struct Session {
    pub(crate) fork_guard: ForkGuard,
    pub(crate) control: Control,
    /// The board. Only the shepherd writes it (`score_proto::carea::board`).
    pub(crate) board: SharedMapping,
    pub(crate) area: Area,
    pub(crate) options: Options,
    pub(crate) job: i32,
    pub(crate) dir: PathBuf,
    pub(crate) oversubscribed: bool,
    /// The network sets. They are closed at exit.
    pub(crate) networks: Vec<NetworkSet>,
}

/// The parts of a network set.
pub(crate) struct NetworkSet {
    pub(crate) composite: Context,
    pub(crate) device: Device,
    pub(crate) members: Vec<Context>,
}

static SESSION: OnceLock<Session> = OnceLock::new();

/// Stores the session. Returns `None` if there is a session already.
pub(crate) fn set(session: Session) -> Option<&'static Session> {
    SESSION.set(session).ok()?;
    SESSION.get()
}

/// The session, which a forked child may use only for options, job number and directory.
pub(crate) fn get() -> Option<&'static Session> {
    SESSION.get()
}

/// The kind of the calling process.
pub(crate) enum Caller {
    /// A node of a parallel process.
    Node(&'static Session),
    /// A process that was forked by a node, and that is not a node itself.
    Child,
    /// A process before `score_initialize`, or in local execution (manual 1.4.4).
    Local,
}

/// Determines the kind of the calling process.
pub(crate) fn caller() -> Caller {
    match SESSION.get() {
        Some(session) if session.fork_guard.is_owner() => Caller::Node(session),
        Some(_) => Caller::Child,
        None => Caller::Local,
    }
}

/// The session, if this process is the node itself.
pub(crate) fn of_this_process() -> Option<&'static Session> {
    match caller() {
        Caller::Node(session) => Some(session),
        Caller::Child | Caller::Local => None,
    }
}

/// The value of the leftmost option with this keyword; empty if the option has no value. `None`:
/// the option was not given, or the program runs without scrun.
pub fn option(keyword: &CStr) -> Option<&'static CStr> {
    get()?.options.get(keyword)
}
