//! The interface of an endpoint. An endpoint is the state that a process keeps for one channel and
//! node. Contexts call their device through this interface, and composites call their members. The
//! interface has one trait for each subject; each device implements a trait in the file of that
//! name.
//!
//! The send lock and the receive lock in comments are the locks of the context. The context takes
//! them before it calls a function.

#![forbid(unsafe_code)]

use crate::config::QueueStatus;
use crate::error::{Error, PmResult};
use crate::rma::{Arena, Direction, Region, RegionId, RemoteStatus, RmaOperation};
use crate::sync::SingleWriterU64;
use std::io::Write;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

/// The whole interface. The calling context has checked that it is open, and holds the lock that
/// the comment of a function requires. A composite has functions of the same names, except those
/// that only composites call.
///
/// [`RmaInterface`] also belongs to the interface. It is not a supertrait here, because each
/// network implements it for its own endpoint, and the code that networks share does not.
pub(crate) trait Endpoint:
    SendInterface + ReceiveInterface + ControlInterface + SelectInterface + StateInterface
{
    /// This endpoint's own node.
    fn self_node(&self) -> u32;
    /// The number of nodes, including its own.
    fn nodes(&self) -> usize;
    /// Bytes of memory that this process shares with others.
    fn size(&self) -> usize;
    /// The longest message to any node, as far as the local links limit it.
    fn max_message_len(&self) -> usize;
    /// The longest message to `node`. Invalid: no such node. Io: the node cannot be reached.
    fn mtu(&self, node: u32) -> PmResult<usize>;

    /// Checks that `node` is another node. Invalid: no such node, or this node itself.
    #[inline(always)]
    fn check_peer(&self, node: u32) -> PmResult<()> {
        let is_valid = (node as usize) < self.nodes() && node != self.self_node();
        if is_valid { Ok(()) } else { Err(Error::Invalid) }
    }
}

/// Sending (`send.rs`). All functions are called under the send lock.
pub(crate) trait SendInterface {
    /// Reserves `len` bytes towards `node` until `publish`.
    fn reserve(&self, node: u32, len: usize) -> PmResult<*mut u8>;
    /// Reserves room towards all of `nodes`, or towards none if one node has no room.
    fn reserve_multicast(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8>;
    /// Shortens the reserved message. Invalid: `len` is 0 or above the reserved length.
    fn truncate(&self, len: usize) -> PmResult<()>;
    /// Sends the reserved message. It cannot fail.
    fn publish(&self);

    // Multicast, for composites.

    /// A number that no multicast of this endpoint has had.
    fn next_multicast_id(&self) -> u64;
    /// Makes later multicasts of this endpoint have numbers above `multicast_id`.
    fn raise_multicast_id(&self, multicast_id: u64);
    /// Whether `reserve` would succeed, and keep succeeding until a message is sent. Invalid also
    /// if an earlier call had this node and this `multicast_id`: the list contains the node twice.
    fn can_reserve(&self, node: u32, len: usize, multicast_id: u64) -> PmResult<()>;
    /// The memory into which the message of a multicast is written, once for all receivers.
    fn staging(&self) -> *mut u8;
    /// Sends `len` bytes at `from` to a node that has room.
    fn send_copy(&self, node: u32, from: *const u8, len: usize);
}

/// Shortens a reserved message. Invalid: `len` is 0 or above the reserved length.
pub(crate) fn shorten(pending_len: &SingleWriterU64, len: usize) -> PmResult<()> {
    if len == 0 || len as u64 > pending_len.get() {
        return Err(Error::Invalid);
    }
    pending_len.set(len as u64);
    Ok(())
}

/// Receiving (`receive.rs`).
pub(crate) trait ReceiveInterface {
    /// Returns a source that may have a message; `take` checks whether it has one. Needs no lock:
    /// any thread may call it at any time.
    fn find(&self) -> Option<u32>;
    /// For composites. Like `find`, but without a system call. Needs no lock.
    fn peek(&self) -> Option<u32>;
    /// Takes the next message of `source`. Called under the receive lock. NoBuffers: the source has
    /// no message. Io: the source is corrupt.
    fn take(&self, source: u32) -> PmResult<(*mut u8, usize)>;
    /// Releases the message that `take` has returned. Called under the receive lock.
    fn release(&self);
    /// Counts a poll that found no message. Needs no lock.
    fn count_empty_poll(&self);
    /// Whether polls that found no message have moved bytes of remote memory since the last call.
    /// Needs no lock.
    fn take_rma_activity(&self) -> bool {
        false
    }
}

/// Control messages (`control.rs`). Each function tries a lock of its own.
pub(crate) trait ControlInterface {
    /// Sends a control message. The owner of a network context sends control messages through its
    /// channels instead.
    fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()>;
    /// Receives a control message and returns its source.
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32>;
}

/// Blocking receive (`select.rs`).
pub(crate) trait SelectInterface {
    /// The descriptor to select on. It stays the same until the context is closed.
    fn fd(&self) -> PmResult<RawFd>;
    /// For composites. Calls `action` with the doorbell's descriptor.
    fn with_doorbell_fd<T>(
        &self,
        action: impl FnOnce(BorrowedFd<'_>) -> PmResult<T>,
    ) -> PmResult<T>;
    /// Arms the doorbell that wakes a sleeping receiver.
    fn before_select(&self) -> PmResult<()>;
    /// Disarms the doorbell.
    fn after_select(&self);
    /// Whether the doorbell is armed.
    fn is_selecting(&self) -> bool;
    /// Drains the doorbell, arms it again, and polls all sources. Called while the doorbell is
    /// armed, after `find` has found no message. Needs no lock.
    ///
    /// The program of figure 3.4 of the manual never reads its descriptors and arms only once.
    /// Therefore every empty poll calls this function: if it finds no message either, the next
    /// message rings the doorbell.
    fn rearm_and_rescan(&self) -> Option<u32>;
}

/// The state of a context (`state.rs`).
pub(crate) trait StateInterface {
    /// Whether all sent messages are in their receivers' queues. Busy: not yet. Io: a link has
    /// failed.
    fn is_send_done(&self) -> PmResult<()>;
    /// `has_held_message`: a message was taken and not released.
    fn queue_status(&self, has_held_message: bool) -> QueueStatus;
    /// Drops all queued messages. Called under both locks.
    fn reset(&self);
    /// Appends the queued messages to `out`. Called under both locks, while no message is held.
    fn save(&self, out: &mut Vec<u8>);
    /// For composites. Checks that `restore` would succeed. Invalid: `saved` is not a saved context
    /// of this node and device.
    fn check_saved(&self, saved: &[u8]) -> PmResult<()>;
    /// Replaces the queued messages by the saved ones. Called under both locks, while no message is
    /// held. Invalid: as for `check_saved`; the queues are unchanged.
    fn restore(&self, saved: &[u8]) -> PmResult<()>;
    /// Prints the state as text.
    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()>;
}

/// Remote memory access (`rma.rs`, manual 3.6). The functions need no lock: any thread may call
/// them at any time. The context has checked `options`.
pub(crate) trait RmaInterface {
    /// Option bits.
    fn options(&self) -> u64;
    /// Publishes a region that was locked. Peers may access it from now on. NoSpace: the table has
    /// no room for the region.
    fn publish_region(&self, region: &Region) -> PmResult<()>;
    /// Withdraws a region that was unlocked.
    fn withdraw_region(&self, number: RegionId);
    /// Completes or starts an operation. Invalid: the node, a handle or the length is invalid.
    /// NoBuffers: too many operations are in flight. `is_remote_done` reports later failures.
    fn start_rma(&self, node: u32, operation: &RmaOperation) -> PmResult<()>;
    /// Whether all operations of this direction are complete. Busy: some are in flight. Io: some
    /// have failed; reported once.
    fn is_remote_done(&self, direction: Direction) -> PmResult<()>;
    /// Makes progress, and returns the progress of the operations on `node`. Invalid: no such node,
    /// or this node itself.
    fn remote_status(&self, node: u32) -> PmResult<RemoteStatus>;
    /// Memory that peers access without a system call.
    fn arena(&self) -> Option<&Arc<Arena>> {
        None
    }
}
