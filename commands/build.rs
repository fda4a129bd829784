//! Makes the link scorec++, because cargo does not allow `+` in the name of a program. Strips
//! debugging information from released commands: they are sent to all hosts of a job, and nine
//! tenths of each would be debugging information. Exports the symbols of MPIR from start_tool
//! (`mpir/`).

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bin=start_tool=-Wl,--export-dynamic-symbol=MPIR_*");
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-debug");
    }
    // OUT_DIR is PROFILE/build/PACKAGE-HASH/out. The programs are in PROFILE.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let link = out.ancestors().nth(3).expect("inside the target directory").join("scorec++");
    let _ = std::fs::remove_file(&link);
    if let Err(error) = std::os::unix::fs::symlink("scorecxx", &link) {
        println!("cargo:warning=cannot make {}: {error}", link.display());
    }
}
