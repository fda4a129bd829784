//! The programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

static BUILT: Once = Once::new();

/// scrun's binary. scored is built into the same directory.
pub fn binary() -> PathBuf {
    let scrun = PathBuf::from(env!("CARGO_BIN_EXE_scrun"));
    BUILT.call_once(|| {
        let target = scrun.parent().and_then(Path::parent).expect("TARGET/PROFILE/scrun");
        let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["build", "--quiet", "--package", "scored", "--target-dir"])
            .arg(target)
            .args((!cfg!(debug_assertions)).then_some("--release"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo can be started");
        assert!(status.success(), "scored cannot be built");
    });
    scrun
}

/// Output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
