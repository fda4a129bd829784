//! The harness of the whole-system scenarios. It runs the real programs in a private environment
//! for each scenario, with a watchdog, and checks that no process and no file is left afterwards.
#![forbid(unsafe_code)]

pub mod binaries;
pub mod browser;
pub mod http;
pub mod job;
pub mod machines;
pub mod netns;
pub mod openmetrics;
pub mod process;
pub mod service;
pub mod terminal;
pub mod test_env;
pub mod testbed;
pub mod tool;
pub mod virtual_display;

pub use job::{Job, Outcome, Running};
pub use test_env::TestEnv;

/// The exit code of a program that has deadlocked.
pub const EXIT_DEADLOCK: i32 = 35;

/// Records that a test cannot run on this machine. `cargo xtask test` lists the test. In CI the
/// test must be listed in .ci/skips.
pub fn skip(name: &str, reason: &str) {
    use std::io::Write;
    eprintln!("SKIPPED {name}: {reason}");
    let Some(path) = std::env::var_os("HARNESS_SKIPS") else { return };
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(path) {
        let _ = writeln!(file, "{name}\t{reason}");
    }
}
