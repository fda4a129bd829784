//! How messages get from hop to hop: the network is pluggable (SDM "Overview").
//!
//! [`memory`] simulates a network, [`tcp`] connects by a routing table. The tree of the daemons of
//! a job is a third one, where the client of these daemons is (`commands/src/sdm_tree/`).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use score_tools::merge::MonotonicTime;

use crate::message::{DownMessage, RoutingTable, UpMessage};

pub mod memory;
pub mod tcp;

/// What has arrived.
#[derive(Debug, Clone)]
pub enum TransportEvent {
    /// A message of the parent; of the front end for the master.
    FromParent(DownMessage),
    /// A message of a child.
    FromChild(u32, UpMessage),
    /// A child is connected and has proved who it is.
    ChildConnected(u32),
    /// A child cannot be reached, or not any more, for this reason.
    ChildLost(u32, String),
    /// The parent cannot be reached any more.
    ParentLost(String),
}

/// Connections of one hop to its parent and its children. Messages of one connection stay in
/// order. A message that cannot be delivered ends its connection: none is missing in between.
pub trait Transport {
    /// Begins to connect to children. Each gives a [`TransportEvent::ChildConnected`] or a
    /// [`TransportEvent::ChildLost`].
    fn connect_children(&mut self, children: &[u32], table: &RoutingTable);

    /// Sends to a child that is connected.
    fn send_to_child(&mut self, child: u32, message: DownMessage);

    /// Sends to the parent.
    fn send_to_parent(&mut self, message: UpMessage);

    /// The next event that has arrived; does not wait.
    fn receive(&mut self) -> Option<TransportEvent>;

    /// The time that the hop goes by.
    fn now(&self) -> MonotonicTime;

    /// Waits until something arrives, one of `others` is readable, or it is `until`.
    ///
    /// # Errors
    /// The system cannot wait.
    fn wait(&mut self, until: MonotonicTime, others: &[BorrowedFd<'_>]) -> io::Result<()>;

    /// Whether the parent reads too slowly: no output of the process is read meanwhile.
    fn is_congested(&self) -> bool {
        false
    }

    /// Sends what still waits, if the peers take it at once.
    fn finish(&mut self) {}
}

/// Waits until one of `descriptors` is ready for what it is asked for, one of `others` has input,
/// or `timeout` is over. The timeout is rounded up to milliseconds.
///
/// # Errors
/// The system cannot wait.
pub fn wait_until_ready(
    descriptors: Vec<(BorrowedFd<'_>, PollFlags)>,
    others: &[BorrowedFd<'_>],
    timeout: Duration,
) -> io::Result<()> {
    let others = others.iter().map(|other| (*other, PollFlags::POLLIN));
    let mut all: Vec<PollFd<'_>> =
        descriptors.into_iter().chain(others).map(|(fd, flags)| PollFd::new(fd, flags)).collect();
    let timeout_ms = i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    match poll(&mut all, PollTimeout::try_from(timeout_ms).unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
