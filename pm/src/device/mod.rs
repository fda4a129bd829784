//! Devices: the kinds of network that carry messages. The directories of all devices have the same
//! files. The files that ethernet and verbs share are in `net_common/`.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the context's part of the device, and its [`Endpoint`] |
//! | `config.rs` | options of `open`, and the result of `config` |
//! | `open.rs` | opening, binding, attaching and closing contexts |
//! | `send.rs` | reserve, publish, multicast |
//! | `receive.rs` | find, take, release |
//! | `control.rs` | control messages |
//! | `select.rs` | blocking receive |
//! | `rma.rs` | remote memory access |
//! | `state.rs` | queue status, reset, save, restore, dump |
//!
//! The functions of the files from `send.rs` on are the device's interface, which `endpoint.rs`
//! declares. An operation has the same name in every device and in the composite, which calls it on
//! its members. To add an operation, declare it in `endpoint.rs` and write it for each endpoint. If
//! contexts call it, also write it for the composite.
//!
//! This is the path of a message through a composite if no shortcut between composite and ring
//! applies. The context's send buffer call takes the send lock and calls `Composite::reserve`. This
//! function looks up the node's route, calls `reserve` on the member's endpoint, and records the
//! member. `ShmemEndpoint::reserve` looks up the node's ring and returns a pointer into it, and the
//! user writes there. The send call calls `publish` on both, which stores the slot's header.
//!
//! The receiver calls `find` without a lock until it returns a source that may have a message. Then
//! it takes the receive lock and calls `take`, which checks again and returns the payload's
//! address. Releasing the receive buffer calls `release`. Dispatch is by enum, so that all of these
//! calls are one function after inlining.

pub(crate) mod composite;
pub(crate) mod ethernet;
pub(crate) mod net_common;
pub(crate) mod shmem;
pub(crate) mod verbs;

mod endpoint;
mod endpoint_holder;
mod endpoint_ref;
pub(crate) mod fd_passing;
mod open;
mod option_words;
mod options;
pub use composite::config::CompositeOptions;
pub use ethernet::config::EthernetOptions;
pub use open::{DEVICE_TYPES, Device, type_list};
pub(crate) use open::{DeviceKind, DeviceState};
pub use option_words::NetworkOptions;
pub use options::DeviceOptions;
pub(crate) use options::refuse_kind;
pub use shmem::config::ShmemOptions;
pub use verbs::config::{AdapterChoice, VerbsOptions};

use crate::config::ContextConfig;
use crate::error::{Error, PmResult};
use crate::rma::{Region, RegionId};
use composite::Composite;
pub(crate) use endpoint::{
    ControlInterface, Endpoint, ReceiveInterface, RmaInterface, SelectInterface, SendInterface,
    StateInterface, shorten,
};
pub(crate) use endpoint_holder::EndpointHolder;
pub(crate) use endpoint_ref::{EndpointRef, on};
use ethernet::Ethernet;
use net_common::{NetworkContext, NetworkDevice};
use shmem::Shmem;
use std::io::Write;
use std::os::fd::OwnedFd;
use verbs::Verbs;

/// Where a message waits: the member of a composite (otherwise 0) and the source in that member.
/// One word, so that it is returned in registers.
#[derive(Clone, Copy)]
pub(crate) struct ReadySource(u64);

impl ReadySource {
    #[inline(always)]
    pub(crate) fn new(member_index: u64, source: u32) -> ReadySource {
        ReadySource(member_index << 32 | u64::from(source))
    }

    #[inline(always)]
    pub(crate) fn member(self) -> u64 {
        self.0 >> 32
    }

    #[inline(always)]
    pub(crate) fn source(self) -> u32 {
        self.0 as u32
    }
}

/// The result of `find` of an endpoint.
impl From<u32> for ReadySource {
    #[inline(always)]
    fn from(source: u32) -> ReadySource {
        ReadySource::new(0, source)
    }
}

/// The argument of `take` of an endpoint.
impl From<ReadySource> for u32 {
    #[inline(always)]
    fn from(found: ReadySource) -> u32 {
        found.source()
    }
}

/// The device part of a context. It is stored in the context's page, and not in a box, because each
/// message touches the lines of that page anyway.
#[expect(clippy::large_enum_variant)]
pub(crate) enum DeviceContext {
    Shmem(Shmem),
    Ethernet(NetworkContext<Ethernet>),
    Verbs(NetworkContext<Verbs>),
    Composite(Composite),
}

/// Makes the same call on any context: on its composite, or on its endpoint in force. `opened`: a
/// network opens its endpoint at the first call. `active`: the macro does not open the endpoint. If
/// there is no endpoint, the result is the error, or the value after `else`. The macro dispatches
/// once; through [`EndpointRef`] there would be two dispatches.
macro_rules! on_device {
    (opened $context:expr, $device:ident => $call:expr) => {
        $crate::device::on_device!(@endpoint, $context, $device => $call, error => Err(error))
    };
    (opened $context:expr, $device:ident => $call:expr, else $none:expr) => {
        $crate::device::on_device!(@endpoint, $context, $device => $call, _error => $none)
    };
    (active $context:expr, $device:ident => $call:expr, else $none:expr) => {
        $crate::device::on_device!(@active_endpoint, $context, $device => $call, _error => $none)
    };
    (@$endpoint:ident, $context:expr, $device:ident => $call:expr, $error:ident => $none:expr) => {
        match $context {
            $crate::device::DeviceContext::Shmem(context) => match context.endpoint() {
                Ok($device) => $call,
                Err($error) => $none,
            },
            $crate::device::DeviceContext::Ethernet(context) => match context.$endpoint() {
                Ok($device) => $call,
                Err($error) => $none,
            },
            $crate::device::DeviceContext::Verbs(context) => match context.$endpoint() {
                Ok($device) => $call,
                Err($error) => $none,
            },
            $crate::device::DeviceContext::Composite($device) => $call,
        }
    };
}
pub(crate) use on_device;

impl DeviceContext {
    /// The endpoint in force. A network opens it at the first call. Invalid: the context is not
    /// bound. Busy: the context was handed over to another process. NoSys: the context is a
    /// composite.
    #[inline(always)]
    pub(crate) fn endpoint(&self) -> PmResult<EndpointRef<'_>> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.endpoint().map(EndpointRef::Shmem),
            DeviceContext::Ethernet(ethernet) => ethernet.endpoint().map(EndpointRef::Ethernet),
            DeviceContext::Verbs(verbs) => verbs.endpoint().map(EndpointRef::Verbs),
            DeviceContext::Composite(_) => Err(Error::NoSys),
        }
    }

    #[inline(always)]
    pub(crate) fn composite(&self) -> Option<&Composite> {
        match self {
            DeviceContext::Composite(composite) => Some(composite),
            DeviceContext::Shmem(_) | DeviceContext::Ethernet(_) | DeviceContext::Verbs(_) => None,
        }
    }

    pub(crate) fn config(&self) -> ContextConfig {
        match self {
            DeviceContext::Shmem(shmem) => shmem.config(),
            DeviceContext::Ethernet(ethernet) => ethernet.config(),
            DeviceContext::Verbs(verbs) => verbs.config(),
            DeviceContext::Composite(composite) => composite.config(),
        }
    }

    /// This context's own node, if it is set.
    pub(crate) fn self_node(&self) -> PmResult<u32> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.endpoint().map(Endpoint::self_node),
            DeviceContext::Ethernet(ethernet) => ethernet.self_node(),
            DeviceContext::Verbs(verbs) => verbs.self_node(),
            DeviceContext::Composite(composite) => composite.self_node(),
        }
    }

    /// The longest message to `node`.
    pub(crate) fn mtu(&self, node: u32) -> PmResult<usize> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.mtu(node),
            _ => on_device!(opened self, device => device.mtu(node)),
        }
    }

    /// Sends a control message for the owner.
    pub(crate) fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.endpoint()?.control_send(node, message),
            DeviceContext::Ethernet(ethernet) => ethernet.control_send(node, message),
            DeviceContext::Verbs(verbs) => verbs.control_send(node, message),
            DeviceContext::Composite(composite) => composite.control_send(node, message),
        }
    }

    /// Prints the state as text.
    pub(crate) fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let state = if let DeviceContext::Shmem(_) = self { "bound" } else { "in use here" };
        on_device!(active self, device => device.dump(out), else writeln!(out, "  not {state}"))
    }

    /// Option bits. The endpoint need not be open.
    #[inline]
    pub(crate) fn options(&self) -> u64 {
        match self {
            DeviceContext::Shmem(_) => shmem::OPTIONS,
            DeviceContext::Ethernet(_) => Ethernet::OPTIONS,
            DeviceContext::Verbs(_) => Verbs::OPTIONS,
            DeviceContext::Composite(composite) => composite.options(),
        }
    }

    /// For remote memory: the paths that lead to `node`, one bit for each. `node` None: all paths.
    /// The paths of a composite are its members; any other device has one path. Invalid: no such
    /// node, or this node itself.
    pub(crate) fn paths(&self, node: Option<u32>) -> PmResult<u32> {
        if let DeviceContext::Composite(composite) = self {
            return composite.paths(node);
        }
        let endpoint = self.endpoint()?;
        node.map_or(Ok(()), |node| on!(endpoint, endpoint => endpoint.check_peer(node)))?;
        Ok(1)
    }

    /// The endpoint of a path. Invalid: the endpoint is not in use, or there is no such member.
    fn path(&self, path: usize) -> PmResult<EndpointRef<'_>> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.endpoint().map(EndpointRef::Shmem),
            DeviceContext::Ethernet(context) => {
                context.active_endpoint().map(EndpointRef::Ethernet)
            }
            DeviceContext::Verbs(context) => context.active_endpoint().map(EndpointRef::Verbs),
            DeviceContext::Composite(composite) => {
                composite.member(path as u64).ok_or(Error::Invalid)
            }
        }
    }

    /// Publishes a region that was locked for a path that `paths` returned.
    pub(crate) fn publish_region(&self, path: usize, region: &Region) -> PmResult<()> {
        on!(self.path(path)?, endpoint => endpoint.publish_region(region))
    }

    /// Withdraws a region that was unlocked.
    pub(crate) fn withdraw_region(&self, path: usize, number: RegionId) {
        if let Ok(endpoint) = self.path(path) {
            on!(endpoint, endpoint => endpoint.withdraw_region(number));
        }
    }

    /// Makes a descriptor with which another process attaches this context. Called under both
    /// locks, unless the context is already handed over. NoSys: a composite cannot be handed over.
    pub(crate) fn create_attach_fd(&self) -> PmResult<OwnedFd> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.create_attach_fd(),
            DeviceContext::Ethernet(ethernet) => ethernet.create_attach_fd(),
            DeviceContext::Verbs(verbs) => verbs.create_attach_fd(),
            DeviceContext::Composite(_) => Err(Error::NoSys),
        }
    }
}
