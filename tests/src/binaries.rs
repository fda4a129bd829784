//! Finds the programs under test, which `cargo build --release` builds as users get them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// The directory with scrun and all other programs. `HARNESS_BIN_DIR` names a directory with
/// finished programs. Without the variable, the first call builds all programs.
pub fn folder() -> &'static Path {
    FOLDER.get_or_init(|| match std::env::var_os("HARNESS_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => build(),
    })
}

/// The path of a program.
pub fn program(name: &str) -> PathBuf {
    folder().join(name)
}

/// Copies the files that daemons need for MPI programs into the directory of a copied daemon.
pub fn copy_mpi_files(to: &Path) {
    std::fs::create_dir(to.join("libfabric")).expect("a new directory");
    for name in [
        "libfabric/libpm-fi.so",
        "libscore-mpi.so",
        "libscore-preload.so",
        "libpm.so.2",
        "libscore.so.6",
        "scored-pmix",
    ] {
        std::fs::copy(program(name), to.join(name)).expect(name);
    }
}

/// The top directory of the source tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent")
}

/// Cargo's target directory: the ancestor directory that contains cargo's tag.
fn target_dir() -> PathBuf {
    let exe_path = std::env::current_exe().expect("a running program has a path");
    let mut ancestors = exe_path.ancestors().skip(1);
    let tagged_dir = ancestors.find(|folder| folder.join("CACHEDIR.TAG").exists());
    tagged_dir.map_or_else(|| root().join("target"), Path::to_path_buf)
}

fn build() -> PathBuf {
    eprintln!("building the programs under test (cargo build --release) ...");
    let target = target_dir();
    let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--release", "--workspace", "--quiet"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(root())
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "cargo build --release failed");
    target.join("release")
}
