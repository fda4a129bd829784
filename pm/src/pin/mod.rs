//! The pin-down cache: registrations of memory with a device, kept after their last use, because
//! registering takes longer than most transfers. `docs/pm.md` tells what it promises.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | the cache as a device uses it |
//! | `regions.rs` | which regions there are, who uses them, which goes first; pure |
//! | `invalidation_log.rs` | what happened to memory, from one thread to all; modelled in loom |
//! | `mapping_monitor.rs` | the process's watch over its memory |
//! | `monitor_thread.rs` | the thread that watches |
//! | `uffd.rs` | userfaultfd |
//! | `maps.rs` | which memory can be watched |
//! | `procmap_query.rs` | the kernel's answer about one address |
//! | `own_mappings.rs` | memory of `pmAlloc`, which needs no watching |
//!
//! A hit looks up one region and compares the words of the logs with what the cache has seen of
//! them; it calls neither the kernel nor the registrar. Only where the program has, or had, other
//! threads, for memory that is not PM's own, it asks the kernel whether memory is changing at this
//! moment. Everything else goes by `lock_slowly`.

#[cfg(not(loom))]
mod cache;
mod invalidation_log;
#[cfg(not(loom))]
mod mapping_monitor;
#[cfg(not(loom))]
mod maps;
#[cfg(not(loom))]
mod monitor_thread;
#[cfg(not(loom))]
pub(crate) mod own_mappings;
mod page_range;
#[cfg(not(loom))]
mod procmap_query;
#[cfg(not(loom))]
mod regions;
#[cfg(all(test, not(loom)))]
mod regions_model_test;
#[cfg(not(loom))]
mod uffd;

#[cfg(not(loom))]
pub use cache::{Cache, CacheOptions, CacheStats, Registrar, RegistrationRef};
#[cfg(not(loom))]
pub use mapping_monitor::probe;
pub use page_range::{PAGE, PageRange};
#[cfg(not(loom))]
pub use regions::UseId;

/// PM has mapped this memory and will say when it goes: for tests; `pmAlloc` says it itself.
/// Invalid: no memory.
#[cfg(not(loom))]
pub fn add_own(address: usize, len: usize) -> crate::PmResult<()> {
    own_mappings::add(PageRange::pages(address, len)?);
    Ok(())
}

/// What `add_own` was told of goes now. Invalid: no memory.
#[cfg(not(loom))]
pub fn remove_own(address: usize, len: usize) -> crate::PmResult<()> {
    own_mappings::remove(PageRange::pages(address, len)?);
    Ok(())
}
