//! Devices: the ways that messages take. Learn one, read all: every device's folder has the same
//! files; those of ethernet and verbs are in `net_common/`, but for what makes them differ.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | the context's part of the device, and its [`Transport`] |
//! | `config.rs` | options of `open`, and what `config` answers |
//! | `open.rs` | how contexts come and go |
//! | `send.rs` | reserve, publish, multicast |
//! | `receive.rs` | find, take, release |
//! | `control.rs` | control messages |
//! | `select.rs` | blocking receive |
//! | `rma.rs` | remote memory, where the device has it |
//! | `state.rs` | queue status, reset, save, restore, dump |
//!
//! A worked example: one message through a composite. `Context::get_send_buffer` takes the send
//! lock and calls `DeviceContext::reserve`, which is `Composite::reserve`: it looks the node up, remembers
//! the member, and calls the member's `DeviceContext::reserve`, which is `Shmem::reserve`: that looks the
//! node's ring up and answers a pointer into it. The user writes there. `Context::send` calls
//! `DeviceContext::publish`, which goes the same way and stores the slot's header. On the other side
//! `Context::receive` calls `DeviceContext::find` without a lock, until that answers where something
//! waits; then it takes the receive lock and calls `DeviceContext::take`, which looks again and answers
//! the payload's place. `Context::release_receive_buffer` calls `DeviceContext::release`. Dispatch is by
//! enum, so all of it is one function after inlining.

pub(crate) mod composite;
#[doc(hidden)]
pub mod ethernet;
pub(crate) mod net_common;
pub(crate) mod shmem;
pub(crate) mod verbs;

pub(crate) mod fd_passing;
mod open;
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

/// What a device can do. Whatever it cannot answers NoSys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Nodes are added and removed; otherwise they follow from the channel.
    pub(crate) has_routes: bool,
    /// It can be a member of a composite, be bound to a channel and be attached.
    pub(crate) can_be_member: bool,
}

/// Where a message waits: the member of a composite (else 0) and the source there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadySource {
    pub(crate) member: u32,
    pub(crate) source: u32,
}

/// The way of a context's calls into its device. The context has checked that it lives, and holds
/// the lock that the comment names.
pub(crate) trait Transport {
    /// The type's name.
    const KIND: &'static str;
    /// What it can do.
    const CAPABILITIES: Capabilities;

    /// The own node, where it is set.
    fn self_node(&self) -> PmResult<u32>;
    /// The longest message to `node`.
    fn mtu(&self, node: u32) -> PmResult<usize>;

    /// Send lock. Room for `len` bytes towards `node`; kept until `publish` or `cancel`.
    fn reserve(&self, node: u32, len: usize) -> PmResult<*mut u8>;
    /// Send lock. Room towards all of `nodes`, or none.
    fn reserve_multicast(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8>;
    /// Send lock, after a reservation. Invalid: 0 or longer.
    fn truncate(&self, len: usize) -> PmResult<()>;
    /// Send lock, after a reservation. Cannot fail.
    fn publish(&self);

    /// No lock. Where something may wait: tried by `take`.
    fn find(&self) -> Option<ReadySource>;
    /// Receive lock. NoBuffers: nothing there after all. Io: that source is corrupt.
    fn take(&self, found: ReadySource) -> PmResult<(*mut u8, usize)>;
    /// Receive lock, after `take`.
    fn release(&self);
    /// No lock. A poll found nothing; true when the host has more processes than processors.
    fn count_empty_poll(&self);
    /// No lock. Whether this host has more processes than processors.
    fn is_oversubscribed(&self) -> bool;
    /// No lock. Whether polls that found no message have moved bytes of remote memory since this
    /// was asked last.
    fn take_rma_activity(&self) -> bool {
        false
    }

    /// Own try-lock inside.
    fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()>;
    /// Own try-lock inside.
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32>;

    /// Answers the descriptor to select on.
    fn fd(&self) -> PmResult<RawFd>;
    /// Arms what wakes a sleeper.
    fn before_select(&self) -> PmResult<()>;
    /// Disarms it.
    fn after_select(&self);
    /// Whether it is armed.
    fn is_selecting(&self) -> bool;
    /// No lock, armed, and `find` found nothing: silences the bell, arms again, looks everywhere.
    fn rearm_and_rescan(&self) -> Option<ReadySource>;

    /// Io: a link broke.
    fn is_send_done(&self) -> PmResult<()>;
    /// `has_held_message`: a message was taken and not released.
    fn queue_status(&self, has_held_message: bool) -> QueueStatus;
    /// Both locks. Drops what is queued here.
    fn reset(&self);
    /// Both locks, nothing held.
    fn save(&self, out: &mut Vec<u8>) -> PmResult<()>;
    /// Both locks, nothing held.
    fn restore(&self, saved: &[u8]) -> PmResult<()>;
    /// For people.
    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()>;

    // Remote memory (manual 3.6). No locks: any thread at any time. The context has looked at
    // `options`; a device that has none leaves these functions alone.

    /// Option bits.
    fn options(&self) -> u64 {
        0
    }
    /// The ways that lead to `node`, one bit for each; None: all there are. A composite's are its
    /// members, any other device has one. Invalid: no such node, or the own one.
    fn paths(&self, _node: Option<u32>) -> PmResult<u32> {
        Err(Error::NoSys)
    }
    /// A region was locked for `way`: it may be reached from now on. NoSpace.
    fn publish_region(&self, _path: usize, _region: &Region) -> PmResult<()> {
        Err(Error::NoSys)
    }
    /// It was unlocked.
    fn withdraw_region(&self, _path: usize, _number: RegionId) {}
    /// Carries an operation out, or begins with it. Invalid: node, handle or length. NoBuffers:
    /// too much is under way. What fails later is told by `is_remote_done`.
    fn start_rma(&self, _node: u32, _operation: &RmaOperation) -> PmResult<()> {
        Err(Error::NoSys)
    }
    /// Busy: operations of this direction are under way. Io, once: some have failed.
    fn is_remote_done(&self, _direction: Direction) -> PmResult<()> {
        Err(Error::NoSys)
    }
    /// Memory that peers reach without the help of the kernel.
    fn arena(&self) -> Option<Arc<Arena>> {
        None
    }
}

/// A context's device part. In the context's own page, whose lines a message touches anyway.
#[expect(clippy::large_enum_variant)]
pub(crate) enum DeviceContext {
    Shmem(Shmem),
    Ethernet(NetworkContext<Ethernet>),
    Verbs(NetworkContext<Verbs>),
    Composite(Composite),
}

/// One line per function: the same call on whichever device it is.
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

    /// What it offers a composite. Invalid: not bound. NoSys: it cannot be a member.
    pub(crate) fn member(&self) -> PmResult<Member<'_>> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.endpoint().map(Member::Shmem),
            DeviceContext::Ethernet(ethernet) => ethernet.endpoint().map(Member::Ethernet),
            DeviceContext::Verbs(verbs) => verbs.endpoint().map(Member::Verbs),
            DeviceContext::Composite(_) => Err(Error::NoSys),
        }
    }

    /// Both locks, or lent. NoSys: it cannot be given away.
    pub(crate) fn create_attach_fd(&self) -> PmResult<OwnedFd> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.create_attach_fd(),
            DeviceContext::Ethernet(ethernet) => ethernet.create_attach_fd(),
            DeviceContext::Verbs(verbs) => verbs.create_attach_fd(),
            DeviceContext::Composite(_) => Err(Error::NoSys),
        }
    }
}

/// See the crate's function of this name.
pub(crate) fn is_saved_context(bytes: &[u8]) -> bool {
    shmem::state::SavedState::parse(bytes).is_ok()
        || net_common::is_saved_context::<Ethernet>(bytes)
        || net_common::is_saved_context::<Verbs>(bytes)
}
