//! Diagnostics on standard error (`PM_DEBUG`, manual 2.4.4 and table 2.4).

#![forbid(unsafe_code)]

use std::io::Write;
use std::sync::atomic::{AtomicI32, Ordering};

/// The level was not read from the environment yet.
const UNSET: i32 = i32::MIN;

static LEVEL: AtomicI32 = AtomicI32::new(UNSET);

/// Messages on unrecoverable errors.
pub const ERROR: i32 = 1;
/// Messages on temporary errors also.
pub const WARNING: i32 = 2;
/// Messages on success also.
pub const INFO: i32 = 3;

/// Sets the level (`pmDebug`); this overrides the environment.
pub fn set_level(level: i32) {
    LEVEL.store(level.max(0), Ordering::Relaxed);
}

/// The level in force: the level of the last `set_level`, otherwise `PM_DEBUG` of the environment,
/// otherwise 0.
pub fn level() -> i32 {
    match LEVEL.load(Ordering::Relaxed) {
        UNSET => {
            let level = std::env::var("PM_DEBUG").ok().and_then(|v| v.trim().parse::<i32>().ok());
            set_level(level.unwrap_or(0));
            LEVEL.load(Ordering::Relaxed)
        }
        level => level,
    }
}

/// Prints one line if the level is at least `min_level`. The message is formatted only then.
#[cold]
pub fn log(min_level: i32, message: impl FnOnce() -> String) {
    if level() >= min_level {
        let tag = match min_level {
            ERROR => "error",
            WARNING => "warning",
            _ => "info",
        };
        // eprintln is not used, because it panics when standard error cannot be written.
        let _ = writeln!(std::io::stderr(), "pm[{}] {tag}: {}", std::process::id(), message());
    }
}

/// Prints one line at every level: a warning that the user must see.
#[cold]
pub fn warn_user(message: &str) {
    let _ = writeln!(std::io::stderr(), "pm[{}] warning: {message}", std::process::id());
}
