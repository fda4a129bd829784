//! Whose process this is. PM devices are opened by SCore-D and contexts are passed to user
//! processes (manual 1.2.4): a process that begins by attaching opens no devices.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult};
use std::sync::atomic::{AtomicU8, Ordering};

const NONE: u8 = 0;
const OWNER: u8 = 1;
const USER: u8 = 2;

static ROLE: AtomicU8 = AtomicU8::new(NONE);

/// Before a device is opened. Permission: this is a user process.
pub(crate) fn become_owner() -> PmResult<()> {
    match ROLE.compare_exchange(NONE, OWNER, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) | Err(OWNER) => Ok(()),
        Err(_) => Err(Error::Permission),
    }
}

/// After a context was attached. An owner stays one (tests attach what they opened).
pub(crate) fn become_user() {
    let _ = ROLE.compare_exchange(NONE, USER, Ordering::Relaxed, Ordering::Relaxed);
}
