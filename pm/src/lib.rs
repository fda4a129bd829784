//! PMv2: user-level message passing between the processes of a parallel job.
//!
//! The owner (a shepherd of SCore-D, or a test) opens a [`Device`], and contexts on it. A
//! [`Context`] is an endpoint of communication. User processes attach the contexts that the owner
//! passes to them, and join them in one *composite* context. `docs/dev/c-abi.md` shows the owner's
//! side, `docs/dev/pm.md` that of a process. `docs/dev/messages.md` describes the path of a
//! message.
//!
//! Every function of a context takes `&self` and may be called by any thread. A context has one
//! lock for sending and one for receiving. If another thread holds the lock, a function returns
//! [`Error::Busy`] and never waits (manual 2.3.1). In a child after `fork` every call on a context
//! fails with [`Error::Invalid`].
//!
//! The comments of functions list errors as `Variant: cause`, with the variants of [`Error`].

// Under loom only the modules with loom tests are built, so that some of their items have no user.
#![cfg_attr(loom, allow(dead_code))]

pub mod config;
#[cfg(not(loom))]
pub mod context;
#[cfg(not(loom))]
mod copy_hazards;
#[cfg(not(loom))]
pub mod debug;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
mod doorbell;
pub mod error;
#[cfg(not(loom))]
mod idle;
mod lock;
#[cfg(not(loom))]
mod membarrier;
mod pin;
mod progress_lock;
mod receiver_state;
mod ring;
#[cfg(not(loom))]
mod rma;
#[cfg(not(loom))]
mod role;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod shared_memory;
mod sync;
#[cfg(all(feature = "testing", not(loom)))]
pub mod testing;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
mod wipe_on_fork;

pub use config::{
    CONTROL_MTU, ContextConfig, Counters, DeviceConfig, MAX_NODE, MIN_MTU, OPT_REMOTE_READ,
    OPT_REMOTE_WRITE, QueueStatus, RMA_MTU,
};
#[cfg(not(loom))]
pub use context::{Context, ContextRef, FastReceive, LiveContext};
/// The sockets that an owner opens for its processes, and the packets on them.
#[cfg(not(loom))]
pub use device::ethernet::wire;
/// Checks whether RDMA can be used on this host. It is for owners that can use another device
/// instead.
#[cfg(not(loom))]
pub mod rdma {
    pub use crate::device::verbs::{
        Unusable, Usable, probe as describe_default_port, probe_adapter,
    };
}
#[cfg(not(loom))]
pub use device::{
    AdapterChoice, CompositeOptions, DEVICE_TYPES, Device, DeviceOptions, EthernetOptions,
    NetworkOptions, ShmemOptions, VerbsOptions, type_list,
};
pub use error::{Error, PmResult};
#[cfg(not(loom))]
pub use idle::{IdleCallback, set_idle_word};
#[cfg(not(loom))]
pub use pin::probe_memory_monitor;
#[cfg(not(loom))]
pub use rma::{AddrHandle, RemoteStatus};
