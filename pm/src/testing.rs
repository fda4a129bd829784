//! The parts of this crate that its tests, a benchmark and a fuzz target call. They are public only
//! with the feature `testing`.

pub use crate::segment::attach::AttachMessage;

/// The pin-down cache.
pub mod pin {
    pub use crate::pin::{Cache, CacheOptions, PAGE, PageRange, Registrar, add_own, remove_own};
}

/// PM's own threads.
pub mod threads {
    pub use crate::threads::{is_only_app_thread, spawn};
}
