//! Gives scorec++ its name: a program of cargo's cannot have a `+` in it.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // OUT_DIR is PROFILE/build/PACKAGE-HASH/out; the programs stand in PROFILE.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let link = out.ancestors().nth(3).expect("inside the target directory").join("scorec++");
    let _ = std::fs::remove_file(&link);
    if let Err(error) = std::os::unix::fs::symlink("scorecxx", &link) {
        println!("cargo:warning=cannot make {}: {error}", link.display());
    }
}
