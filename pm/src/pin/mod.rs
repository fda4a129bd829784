//! The pin-down cache: registrations of memory with a device, kept after their last use, because
//! registering takes longer than most transfers. `docs/pm.md` tells what it promises.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | the cache as a device uses it |
//! | `regions.rs` | which regions there are, who uses them, which goes first; pure |
//! | `log.rs` | what happened to memory, from one thread to all; modelled in loom |
//! | `watch.rs` | the process's watch over its memory |
//! | `thread.rs` | the thread that watches |
//! | `uffd.rs` | userfaultfd |
//! | `maps.rs` | which memory can be watched |
//! | `query.rs` | the kernel's answer about one address |
//! | `own.rs` | memory of `pmAlloc`, which needs no watching |
//!
//! A hit looks up one region and compares the words of the logs with what the cache has seen of
//! them; it calls neither the kernel nor the registrar. Only where the program has, or had, other
//! threads, for memory that is not PM's own, it asks the kernel whether memory is changing at this
//! moment. Everything else goes by `lock_slowly`.

#[cfg(not(loom))]
mod cache;
mod log;
#[cfg(not(loom))]
mod maps;
#[cfg(all(test, not(loom)))]
mod model;
#[cfg(not(loom))]
pub(crate) mod own;
#[cfg(not(loom))]
mod query;
#[cfg(not(loom))]
mod regions;
mod span;
#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
mod uffd;
#[cfg(not(loom))]
mod watch;

#[cfg(not(loom))]
pub use cache::{Cache, Counts, Lock, Options, Registrar};
#[cfg(not(loom))]
pub use regions::Id;
pub use span::{PAGE, Span};
#[cfg(not(loom))]
pub use watch::probe;

/// PM has mapped this memory and will say when it goes: for tests; `pmAlloc` says it itself.
/// Invalid: no memory.
#[cfg(not(loom))]
pub fn add_own(address: usize, len: usize) -> crate::Result<()> {
    own::add(Span::pages(address, len)?);
    Ok(())
}

/// What `add_own` was told of goes now. Invalid: no memory.
#[cfg(not(loom))]
pub fn remove_own(address: usize, len: usize) -> crate::Result<()> {
    own::remove(Span::pages(address, len)?);
    Ok(())
}
