//! PMv2: user-level message passing between the processes of a parallel job.
//!
//! The owner (SCore-D's shepherd, or a test) opens a [`Device`], which hands out contexts; a
//! [`Context`] is an end point. User processes attach the contexts that their owner made and join
//! them in one *composite* context. `docs/pm.md` shows both sides; `docs/dev/messages.md` describes
//! the path of a message.
//!
//! Every function of a context takes `&self` and may be called by any thread: two try-locks, one
//! for sending and one for receiving, make contention [`Error::Busy`] and never a wait (manual
//! 2.3.1). In a child after `fork` every call on a context fails with [`Error::Invalid`].

// Loom builds only the modules that it tests, without their other users.
#![cfg_attr(loom, allow(dead_code))]

pub mod config;
#[cfg(not(loom))]
pub mod context;
#[cfg(not(loom))]
mod context_ref;
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
#[doc(hidden)]
pub mod pin;
mod progress_lock;
mod receiver_state;
mod ring;
#[cfg(not(loom))]
mod rma;
#[cfg(not(loom))]
mod role;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod segment;
mod sync;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod threads;
#[cfg(not(loom))]
mod wipe_on_fork;

pub use config::{
    CONTROL_MTU, ContextConfig, Counters, DeviceConfig, MAX_NODE, MIN_MTU, OPT_REMOTE_READ,
    OPT_REMOTE_WRITE, QueueStatus, RMA_MTU,
};
#[cfg(not(loom))]
pub use context::{Context, ContextRef, FastReceive, LiveContext};
/// The RDMA adapter of this host, or why there is none: for `scored -probe`.
#[cfg(not(loom))]
#[doc(hidden)]
pub use device::verbs::probe as verbs_probe;
/// Whether RDMA can be used on this host, or why not: for owners that have an alternative.
#[cfg(not(loom))]
pub mod rdma {
    pub use crate::device::verbs::{Unusable, Usable, probe_adapter};
}
#[cfg(not(loom))]
pub use device::{DEVICE_TYPES, Device, type_list};
pub use error::{Error, PmResult};
#[cfg(not(loom))]
pub use idle::{IdleCallback, set_idle_word};
#[cfg(not(loom))]
pub use rma::{AddrHandle, RemoteStatus};

/// Whether `bytes` have the form of a saved shmem context: for the fuzz targets.
/// The attach message's parser is [`segment::attach::AttachMessage::decode`].
#[cfg(not(loom))]
#[doc(hidden)]
pub fn is_saved_context(bytes: &[u8]) -> bool {
    device::is_saved_context(bytes)
}
