//! The role of this process. SCore-D opens PM devices and passes contexts to user processes (manual
//! 1.2.4). Therefore a process that attaches a context before it opens a device can open only
//! composites.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult};
use std::sync::atomic::{AtomicU8, Ordering};

const NONE: u8 = 0;
const OWNER: u8 = 1;
const USER: u8 = 2;

static ROLE: AtomicU8 = AtomicU8::new(NONE);

/// Called before a device other than a composite is opened. Permission: this is a user process.
pub(crate) fn become_owner() -> PmResult<()> {
    match ROLE.compare_exchange(NONE, OWNER, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) | Err(OWNER) => Ok(()),
        Err(_) => Err(Error::Permission),
    }
}

/// Called after a context was attached. An owner stays an owner (tests attach their own contexts).
pub(crate) fn become_user() {
    let _ = ROLE.compare_exchange(NONE, USER, Ordering::Relaxed, Ordering::Relaxed);
}
