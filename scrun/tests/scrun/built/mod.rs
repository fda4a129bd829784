//! The programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// scrun's binary, in a directory with scored. `HARNESS_BIN_DIR` names a directory in which both
/// are built already. Otherwise scored is built next to the scrun of this build.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("HARNESS_BIN_DIR") {
        Some(directory) => Path::new(&directory).join("scrun"),
        None => build(),
    })
}

fn build() -> PathBuf {
    let scrun = PathBuf::from(env!("CARGO_BIN_EXE_scrun"));
    let target = scrun.parent().and_then(Path::parent).expect("TARGET/PROFILE/scrun");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--quiet", "--package", "scored", "--target-dir"])
        .arg(target)
        .args((!cfg!(debug_assertions)).then_some("--release"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "scored cannot be built");
    scrun
}

/// Output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
