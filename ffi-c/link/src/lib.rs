//! Links the shared objects with a soname and a named symbol version, exporting only the names of
//! that version, and links libscore.so against libpm.so. Called by the build scripts of both
//! packages.
//!
//! rustc hides symbols with a version script without a name. GNU ld refuses such a script together
//! with one that has a name. Therefore the compiler is told to use `ffi-c/link/ld.bfd` as its
//! linker, which drops rustc's script and calls the real linker.
#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory ffi-c/link, relative to the package that is being built.
fn directory() -> PathBuf {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    package.with_file_name("link")
}

/// Links the package's shared object with this soname and this version script, and makes a link
/// `soname -> name` in the same directory, so that programs run from the build tree.
pub fn shared_object(name: &str, soname: &str, map: &str) {
    let directory = directory();
    let link = directory.display();
    for word in [
        "-fuse-ld=bfd".to_string(),
        // The compiler searches this directory for ld.bfd first.
        format!("-B{link}"),
        format!("-Wl,-soname,{soname}"),
        format!("-Wl,--version-script={link}/{map}"),
    ] {
        println!("cargo:rustc-cdylib-link-arg={word}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    for file in ["ld.bfd", map] {
        println!("cargo:rerun-if-changed={link}/{file}");
    }
    // OUT_DIR is PROFILE/build/PACKAGE-HASH/out; cargo puts the object into PROFILE/deps and links
    // or copies it to PROFILE.
    let out = out_dir();
    let profile = out.ancestors().nth(3).expect("inside the target directory");
    for directory in [profile.to_path_buf(), profile.join("deps")] {
        let path = directory.join(soname);
        let _ = fs::remove_file(&path);
        if let Err(error) = std::os::unix::fs::symlink(name, &path) {
            println!("cargo:warning=cannot make {}: {error}", path.display());
        }
    }
}

/// Links the package's shared object against libpm.so.2, so that a process has one copy of PM, in
/// libpm.so. libpm.so may not have been linked yet, because cargo knows no dependency on another
/// package's shared object. Therefore a stub with its soname, symbols and version takes its place.
pub fn against_pm() {
    let map = directory().join("pm.map");
    let out = out_dir();
    let (source, stub) = (out.join("stub.c"), out.join("libpm.so"));
    let text = fs::read_to_string(&map).expect("ffi-c/link/pm.map is readable");
    fs::write(&source, functions(&text)).expect("OUT_DIR is writable");
    let status = Command::new(env::var_os("CC").unwrap_or("cc".into()))
        .args(["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libpm.so.2"])
        .arg(format!("-Wl,--version-script={}", map.display()))
        .arg("-o")
        .args([&stub, &source])
        .status()
        .expect("the C compiler that rustc links with runs");
    assert!(status.success(), "cannot build {}", stub.display());
    println!("cargo:rustc-cdylib-link-arg={}", stub.display());
    // libpm.so.2 is in the same directory as libscore.so, in the build tree as when installed.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN");
    println!("cargo:rerun-if-changed={}", map.display());
    println!("cargo:rerun-if-env-changed=CC");
}

/// An empty C function for each name of a version script.
fn functions(map: &str) -> String {
    let names = map.split([';', ':', '\n']).map(str::trim);
    let names = names.filter(|name| name.starts_with("pm"));
    names.map(|name| format!("void {name}(void) {{}}\n")).collect()
}

fn out_dir() -> PathBuf {
    Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).to_path_buf()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_stub_has_each_function_of_the_version_script() {
        let source =
            super::functions("PM_2.0 {\nglobal:\n    pmA;\n    pmB;\nlocal:\n    *;\n};\n");
        assert_eq!(source, "void pmA(void) {}\nvoid pmB(void) {}\n");
    }
}
