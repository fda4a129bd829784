//! The interface of the network between hops, which is pluggable (SDM "Overview").
//!
//! [`memory`] simulates a network, and [`tcp`] connects by a routing table. A third transport, the
//! tree of a job's daemons, is next to the client of these daemons (`commands/src/sdm_tree/`).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use score_tools::merge::MonotonicTime;

use crate::message::{DownMessage, RoutingTable, UpMessage};

pub mod memory;
pub mod tcp;

/// An event of the network.
#[derive(Debug, Clone)]
pub enum TransportEvent {
    /// A message from the parent. The parent of the master is the front end.
    FromParent(DownMessage),
    /// A message from a child.
    FromChild(u32, UpMessage),
    /// A child is connected and has proved its identity.
    ChildConnected(u32),
    /// A child cannot be reached, or its connection is lost, for this reason.
    ChildLost(u32, String),
    /// The connection to the parent is lost, for this reason.
    ParentLost(String),
}

/// The connections of one hop to its parent and its children. Messages of one connection stay in
/// order. A message that cannot be delivered ends its connection, so no message is missing in
/// between.
pub trait Transport {
    /// Begins to connect to children. Each child later causes a [`TransportEvent::ChildConnected`]
    /// or a [`TransportEvent::ChildLost`].
    fn connect_children(&mut self, children: &[u32], table: &RoutingTable);

    /// Sends a message to a connected child.
    fn send_to_child(&mut self, child: u32, message: DownMessage);

    /// Sends a message to the parent.
    fn send_to_parent(&mut self, message: UpMessage);

    /// The next event that has arrived. Does not wait.
    fn receive(&mut self) -> Option<TransportEvent>;

    /// The current time of the hop.
    fn now(&self) -> MonotonicTime;

    /// Waits until an event of the network arrives, one of `others` is readable, or the time is
    /// `until`.
    ///
    /// # Errors
    /// If waiting fails.
    fn wait(&mut self, until: MonotonicTime, others: &[BorrowedFd<'_>]) -> io::Result<()>;

    /// Whether the parent reads too slowly. The server does not read the output of its process in
    /// this case.
    fn is_congested(&self) -> bool {
        false
    }

    /// Sends the remaining messages, as far as the peers accept them at once.
    fn finish(&mut self) {}
}

/// Waits until one of `descriptors` is ready for its flags, one of `others` is readable, or
/// `timeout` has passed. The timeout is rounded up to milliseconds.
///
/// # Errors
/// If poll(2) fails.
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
