//! Devices: the kinds of network that carry messages. Every device's directory has the same files,
//! so learn one and read all. The files that ethernet and verbs share are in `net_common/`.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | the context's part of the device, and its [`Transport`] |
//! | `config.rs` | options of `open`, and what `config` answers |
//! | `open.rs` | opening, binding, attaching and closing contexts |
//! | `send.rs` | reserve, publish, multicast |
//! | `receive.rs` | find, take, release |
//! | `control.rs` | control messages |
//! | `select.rs` | blocking receive |
//! | `rma.rs` | remote memory access, if the device has it |
//! | `state.rs` | queue status, reset, save, restore, dump |
//!
//! A worked example: one message through a composite. The context's send buffer call takes the send
//! lock and calls `Composite::reserve`. This looks up the node's route, remembers the member, and
//! calls `Member::reserve`, which is `ShmemEndpoint::reserve`. That function looks up the node's
//! ring and returns a pointer into it, and the user writes there. The send call goes through
//! `publish` in the same way and stores the slot's header.
//!
//! The receiver calls `Transport::find` without a lock until it returns a source that may have a
//! message. Then it takes the receive lock and calls `Transport::take`, which checks again and
//! returns the payload's address. Releasing the receive buffer calls `Transport::release`. Dispatch
//! is by enum, so all of it is one function after inlining.

pub(crate) mod composite;
#[doc(hidden)]
pub mod ethernet;
pub(crate) mod net_common;
pub(crate) mod shmem;
pub(crate) mod verbs;

mod endpoint_holder;
pub(crate) mod fd_passing;
mod open;
pub(crate) use endpoint_holder::EndpointHolder;
pub use open::{DEVICE_TYPES, Device, type_list};
pub(crate) use open::{DeviceKind, DeviceState, refuse_kind};

use crate::config::QueueStatus;
use crate::error::{Error, PmResult};
use crate::rma::{Arena, Direction, Region, RegionId, RmaOperation};
use composite::{Composite, Member};
use ethernet::Ethernet;
use net_common::NetworkContext;
use shmem::Shmem;
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use verbs::Verbs;

/// What a device can do. Every other call returns NoSys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Nodes are added and removed; otherwise they follow from the channel.
    pub(crate) has_routes: bool,
    /// It can be a member of a composite, be bound to a channel and be attached.
    pub(crate) can_be_member: bool,
}

/// Where a message waits: the member of a composite (otherwise 0) and the source in that member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadySource {
    pub(crate) member: u32,
    pub(crate) source: u32,
}

/// The calls of a context into its device. The context has checked that it is open, and holds the
/// lock that the comment names.
pub(crate) trait Transport {
    /// The type's name.
    const KIND: &'static str;
    /// What it can do.
    const CAPABILITIES: Capabilities;

    /// This context's own node, if it is set.
    fn self_node(&self) -> PmResult<u32>;
    /// The longest message to `node`.
    fn mtu(&self, node: u32) -> PmResult<usize>;

    /// Send lock. Reserves `len` bytes towards `node` until `publish`.
    fn reserve(&self, node: u32, len: usize) -> PmResult<*mut u8>;
    /// Send lock. Reserves room towards all of `nodes`, or towards none.
    fn reserve_multicast(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8>;
    /// Send lock, after a reservation. Invalid: 0 or longer.
    fn truncate(&self, len: usize) -> PmResult<()>;
    /// Send lock, after a reservation. Cannot fail.
    fn publish(&self);

    /// No lock. Where a message may wait: `take` checks it.
    fn find(&self) -> Option<ReadySource>;
    /// Receive lock. NoBuffers: no message waits after all. Io: that source is corrupt.
    fn take(&self, found: ReadySource) -> PmResult<(*mut u8, usize)>;
    /// Receive lock, after `take`.
    fn release(&self);
    /// No lock. Counts a poll that found no message.
    fn count_empty_poll(&self);
    /// No lock. Whether this host has more processes than processors.
    fn is_oversubscribed(&self) -> bool;
    /// No lock. Whether polls that found no message have moved bytes of remote memory since the
    /// last call.
    fn take_rma_activity(&self) -> bool {
        false
    }

    /// Takes its own try-lock.
    fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()>;
    /// Takes its own try-lock.
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32>;

    /// Returns the descriptor to select on.
    fn fd(&self) -> PmResult<RawFd>;
    /// Arms the doorbell that wakes a sleeping receiver.
    fn before_select(&self) -> PmResult<()>;
    /// Disarms the doorbell.
    fn after_select(&self);
    /// Whether the doorbell is armed.
    fn is_selecting(&self) -> bool;
    /// No lock, armed, and `find` found no message: drains the doorbell, arms it again, and polls
    /// all sources.
    fn rearm_and_rescan(&self) -> Option<ReadySource>;

    /// Io: a link is broken.
    fn is_send_done(&self) -> PmResult<()>;
    /// `has_held_message`: a message was taken and not released.
    fn queue_status(&self, has_held_message: bool) -> QueueStatus;
    /// Both locks. Drops all queued messages.
    fn reset(&self);
    /// Both locks, and no message is held.
    fn save(&self, out: &mut Vec<u8>) -> PmResult<()>;
    /// Both locks, and no message is held.
    fn restore(&self, saved: &[u8]) -> PmResult<()>;
    /// Prints the state for people.
    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()>;

    // Remote memory access (manual 3.6). No locks: any thread may call these at any time. The
    // context has checked `options`; a device without remote memory access keeps these defaults.

    /// Option bits.
    fn options(&self) -> u64 {
        0
    }
    /// The paths that lead to `node`, one bit for each; None: all paths. A composite's paths are
    /// its members; any other device has one path. Invalid: no such node, or this node itself.
    fn paths(&self, _node: Option<u32>) -> PmResult<u32> {
        Err(Error::NoSys)
    }
    /// A region was locked for `path`: peers may access it from now on. NoSpace.
    fn publish_region(&self, _path: usize, _region: &Region) -> PmResult<()> {
        Err(Error::NoSys)
    }
    /// The region was unlocked.
    fn withdraw_region(&self, _path: usize, _number: RegionId) {}
    /// Completes or starts an operation. Invalid: node, handle or length. NoBuffers: too many
    /// operations are in flight. `is_remote_done` reports later failures.
    fn start_rma(&self, _node: u32, _operation: &RmaOperation) -> PmResult<()> {
        Err(Error::NoSys)
    }
    /// Busy: operations of this direction are in flight. Io, once: some have failed.
    fn is_remote_done(&self, _direction: Direction) -> PmResult<()> {
        Err(Error::NoSys)
    }
    /// Memory that peers access without a system call.
    fn arena(&self) -> Option<Arc<Arena>> {
        None
    }
}

/// The device part of a context. It is in the context's page, whose lines each message touches
/// anyway.
#[expect(clippy::large_enum_variant)]
pub(crate) enum DeviceContext {
    Shmem(Shmem),
    Ethernet(NetworkContext<Ethernet>),
    Verbs(NetworkContext<Verbs>),
    Composite(Composite),
}

/// One line per function: the same call on any device.
macro_rules! on {
    ($body:expr, $device:ident => $call:expr) => {
        match $body {
            DeviceContext::Shmem($device) => $call,
            DeviceContext::Ethernet($device) => $call,
            DeviceContext::Verbs($device) => $call,
            DeviceContext::Composite($device) => $call,
        }
    };
}
pub(crate) use on;

impl DeviceContext {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            DeviceContext::Shmem(_) => Shmem::KIND,
            DeviceContext::Ethernet(_) => <NetworkContext<Ethernet>>::KIND,
            DeviceContext::Verbs(_) => <NetworkContext<Verbs>>::KIND,
            DeviceContext::Composite(_) => Composite::KIND,
        }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        match self {
            DeviceContext::Shmem(_) => Shmem::CAPABILITIES,
            DeviceContext::Ethernet(_) => <NetworkContext<Ethernet>>::CAPABILITIES,
            DeviceContext::Verbs(_) => <NetworkContext<Verbs>>::CAPABILITIES,
            DeviceContext::Composite(_) => Composite::CAPABILITIES,
        }
    }

    /// NoSys: not a composite.
    pub(crate) fn composite(&self) -> PmResult<&Composite> {
        match self {
            DeviceContext::Composite(composite) if self.capabilities().has_routes => Ok(composite),
            _ => Err(Error::NoSys),
        }
    }

    /// The endpoint that a composite uses. Invalid: not bound. NoSys: it cannot be a member.
    pub(crate) fn member(&self) -> PmResult<Member<'_>> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.endpoint().map(Member::Shmem),
            DeviceContext::Ethernet(ethernet) => ethernet.endpoint().map(Member::Ethernet),
            DeviceContext::Verbs(verbs) => verbs.endpoint().map(Member::Verbs),
            DeviceContext::Composite(_) => Err(Error::NoSys),
        }
    }

    /// Both locks, or the context is handed over. NoSys: a composite cannot be handed over.
    pub(crate) fn create_attach_fd(&self) -> PmResult<OwnedFd> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.create_attach_fd(),
            DeviceContext::Ethernet(ethernet) => ethernet.create_attach_fd(),
            DeviceContext::Verbs(verbs) => verbs.create_attach_fd(),
            DeviceContext::Composite(_) => Err(Error::NoSys),
        }
    }
}

/// See [`crate::is_saved_context`].
pub(crate) fn is_saved_context(bytes: &[u8]) -> bool {
    shmem::state::ShmemSavedState::parse(bytes).is_ok()
        || net_common::is_saved_context::<Ethernet>(bytes)
        || net_common::is_saved_context::<Verbs>(bytes)
}
