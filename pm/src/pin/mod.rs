//! The pin-down cache. It keeps registrations of memory with a device after their last use, because
//! registering memory takes longer than most transfers. `docs/dev/pm.md` describes its guarantees.
//!
//! | file | contents |
//! |---|---|
//! | `cache.rs` | the interface of the cache for devices |
//! | `regions.rs` | the regions, their users, and the order of eviction; makes no system calls |
//! | `invalidation_log.rs` | the log in which a thread reports changes of memory; checked by loom |
//! | `mapping_monitor.rs` | the monitor of the process's mappings |
//! | `monitor_thread.rs` | the thread of the monitor |
//! | `uffd.rs` | userfaultfd |
//! | `maps.rs`, `mapping.rs` | the mappings that can be monitored |
//! | `procmap_query.rs` | the kernel's query for the mapping at one address |
//! | `own_mappings.rs` | memory of `pmAlloc`, which needs no monitoring |
//!
//! A hit looks up one region and compares the states of the logs with the cursors of the cache. It
//! does not call the registrar. If the program has, or had, other threads, its memory may be
//! changing at this moment. The lookup then also queries the kernel, unless the memory is PM's own.
//! All other lookups use `lock_slow`.

#[cfg(not(loom))]
mod cache;
mod invalidation_log;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
pub(crate) mod mapping_monitor;
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
pub use cache::{Cache, CacheOptions, Registrar};
#[cfg(not(loom))]
pub use mapping_monitor::probe_memory_monitor;
pub use page_range::{PAGE, PageRange};
#[cfg(not(loom))]
pub use regions::UseId;

/// Registers memory as mapped by PM. The caller has to call `remove_own` before it unmaps this
/// memory. This is for tests; `pmAlloc` registers its memory itself. Invalid: `len` is 0.
#[cfg(all(feature = "testing", not(loom)))]
pub fn add_own(address: usize, len: usize) -> crate::PmResult<()> {
    own_mappings::add(PageRange::pages(address, len)?);
    Ok(())
}

/// Removes memory of `add_own` just before it is unmapped. Invalid: `len` is 0.
#[cfg(all(feature = "testing", not(loom)))]
pub fn remove_own(address: usize, len: usize) -> crate::PmResult<()> {
    mapping_monitor::remove_own_mappings(PageRange::pages(address, len)?);
    Ok(())
}
