//! Devices: the ways that messages take. Learn one, read all: every device's folder has the same
//! files; those of ethernet and verbs are in `network/`, but for what makes them differ.
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
//! | `remote.rs` | remote memory, where the device has it |
//! | `state.rs` | queue status, reset, save, restore, dump |
//!
//! A worked example: one message through a composite. `Context::get_send_buffer` takes the send
//! lock and calls `Body::reserve`, which is `Composite::reserve`: it looks the node up, remembers
//! the member, and calls the member's `Body::reserve`, which is `Shmem::reserve`: that looks the
//! node's ring up and answers a pointer into it. The user writes there. `Context::send` calls
//! `Body::publish`, which goes the same way and stores the slot's header. On the other side
//! `Context::receive` calls `Body::find` without a lock, until that answers where something
//! waits; then it takes the receive lock and calls `Body::take`, which looks again and answers
//! the payload's place. `Context::release_receive_buffer` calls `Body::release`. Dispatch is by
//! enum, so all of it is one function after inlining.

pub(crate) mod composite;
#[doc(hidden)]
pub mod ethernet;
pub(crate) mod network;
pub(crate) mod shmem;
pub(crate) mod verbs;

mod open;
pub(crate) mod passing;
pub use open::{DEVICE_TYPES, Device, type_list};
pub(crate) use open::{Owner, OwnerKind, refuse_kind};

use crate::config::QueueStatus;
use crate::error::{Error, Result};
use crate::remote::{Arena, Direction, Number, Operation, Region};
use composite::{Composite, Member};
use ethernet::Ethernet;
use network::Bound;
use shmem::Shmem;
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use verbs::Verbs;

/// What a device can do. Whatever it cannot answers NoSys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Nodes are added and removed; otherwise they follow from the channel.
    pub(crate) routes: bool,
    /// It can be a member of a composite, be bound to a channel and be attached.
    pub(crate) member: bool,
}

/// Where a message waits: the member of a composite (else 0) and the source there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
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
    fn own(&self) -> Result<u32>;
    /// The longest message to `node`.
    fn mtu(&self, node: u32) -> Result<usize>;

    /// Send lock. Room for `len` bytes towards `node`; kept until `publish` or `cancel`.
    fn reserve(&self, node: u32, len: usize) -> Result<*mut u8>;
    /// Send lock. Room towards all of `nodes`, or none.
    fn reserve_many(&self, nodes: &[u32], len: usize) -> Result<*mut u8>;
    /// Send lock, after a reservation. Invalid: 0 or longer.
    fn truncate(&self, len: usize) -> Result<()>;
    /// Send lock, after a reservation. Cannot fail.
    fn publish(&self);

    /// No lock. Where something may wait: tried by `take`.
    fn find(&self) -> Option<Found>;
    /// Receive lock. NoBuffers: nothing there after all. Io: that source is corrupt.
    fn take(&self, found: Found) -> Result<(*mut u8, usize)>;
    /// Receive lock, after `take`.
    fn release(&self);
    /// No lock. A poll found nothing; true when the host has more processes than processors.
    fn count_empty_poll(&self);
    /// No lock. Whether this host has more processes than processors.
    fn oversubscribed(&self) -> bool;
    /// No lock. Whether polls that found no message have moved bytes of remote memory since this
    /// was asked last.
    fn has_moved(&self) -> bool {
        false
    }

    /// Own try-lock inside.
    fn control_send(&self, node: u32, message: &[u8]) -> Result<()>;
    /// Own try-lock inside.
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> Result<u32>;

    /// Answers the descriptor to select on.
    fn fd(&self) -> Result<RawFd>;
    /// Arms what wakes a sleeper.
    fn before_select(&self) -> Result<()>;
    /// Disarms it.
    fn after_select(&self);
    /// Whether it is armed.
    fn is_selecting(&self) -> bool;
    /// No lock, armed, and `find` found nothing: silences the bell, arms again, looks everywhere.
    fn look_again(&self) -> Option<Found>;

    /// Io: a link broke.
    fn is_send_done(&self) -> Result<()>;
    /// `held`: a message was taken and not released.
    fn queue_status(&self, held: bool) -> QueueStatus;
    /// Both locks. Drops what is queued here.
    fn reset(&self);
    /// Both locks, nothing held.
    fn save(&self, out: &mut Vec<u8>) -> Result<()>;
    /// Both locks, nothing held.
    fn restore(&self, saved: &[u8]) -> Result<()>;
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
    fn ways(&self, _node: Option<u32>) -> Result<u32> {
        Err(Error::NoSys)
    }
    /// A region was locked for `way`: it may be reached from now on. NoSpace.
    fn publish_region(&self, _way: usize, _region: &Region) -> Result<()> {
        Err(Error::NoSys)
    }
    /// It was unlocked.
    fn withdraw_region(&self, _way: usize, _number: Number) {}
    /// Carries an operation out, or begins with it. Invalid: node, handle or length. NoBuffers:
    /// too much is under way. What fails later is told by `is_remote_done`.
    fn remote(&self, _node: u32, _operation: &Operation) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Busy: operations of this direction are under way. Io, once: some have failed.
    fn is_remote_done(&self, _direction: Direction) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Memory that peers reach without the help of the kernel.
    fn arena(&self) -> Option<Arc<Arena>> {
        None
    }
}

/// A context's device part. In the context's own page, whose lines a message touches anyway.
#[expect(clippy::large_enum_variant)]
pub(crate) enum Body {
    Shmem(Shmem),
    Ethernet(Bound<Ethernet>),
    Verbs(Bound<Verbs>),
    Composite(Composite),
}

/// One line per function: the same call on whichever device it is.
macro_rules! on {
    ($body:expr, $device:ident => $call:expr) => {
        match $body {
            Body::Shmem($device) => $call,
            Body::Ethernet($device) => $call,
            Body::Verbs($device) => $call,
            Body::Composite($device) => $call,
        }
    };
}
pub(crate) use on;

impl Body {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Body::Shmem(_) => Shmem::KIND,
            Body::Ethernet(_) => <Bound<Ethernet>>::KIND,
            Body::Verbs(_) => <Bound<Verbs>>::KIND,
            Body::Composite(_) => Composite::KIND,
        }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        match self {
            Body::Shmem(_) => Shmem::CAPABILITIES,
            Body::Ethernet(_) => <Bound<Ethernet>>::CAPABILITIES,
            Body::Verbs(_) => <Bound<Verbs>>::CAPABILITIES,
            Body::Composite(_) => Composite::CAPABILITIES,
        }
    }

    /// NoSys: not a composite.
    pub(crate) fn composite(&self) -> Result<&Composite> {
        match self {
            Body::Composite(composite) if self.capabilities().routes => Ok(composite),
            _ => Err(Error::NoSys),
        }
    }

    /// What it offers a composite. Invalid: not bound. NoSys: it cannot be a member.
    pub(crate) fn member(&self) -> Result<Member<'_>> {
        match self {
            Body::Shmem(shmem) => shmem.endpoint().map(Member::Shmem),
            Body::Ethernet(ethernet) => ethernet.endpoint().map(Member::Ethernet),
            Body::Verbs(verbs) => verbs.endpoint().map(Member::Verbs),
            Body::Composite(_) => Err(Error::NoSys),
        }
    }

    /// Both locks, or lent. NoSys: it cannot be given away.
    pub(crate) fn create_attach_fd(&self) -> Result<OwnedFd> {
        match self {
            Body::Shmem(shmem) => shmem.create_attach_fd(),
            Body::Ethernet(ethernet) => ethernet.create_attach_fd(),
            Body::Verbs(verbs) => verbs.create_attach_fd(),
            Body::Composite(_) => Err(Error::NoSys),
        }
    }
}

/// See the crate's function of this name.
pub(crate) fn is_saved_context(bytes: &[u8]) -> bool {
    shmem::state::State::parse(bytes).is_ok()
        || network::is_saved_context::<Ethernet>(bytes)
        || network::is_saved_context::<Verbs>(bytes)
}
