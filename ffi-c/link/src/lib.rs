//! Links the shared objects with a soname and a named symbol version, so that they export only the
//! names of that version. Links other objects against libpm.so and libscore.so. Build scripts call
//! this crate.
//!
//! rustc hides symbols with a version script without a name. GNU ld refuses such a script together
//! with one that has a name. Therefore this crate makes the compiler use `ffi-c/link/ld.bfd` as its
//! linker, which drops rustc's script and calls the real linker.
#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory ffi-c/link.
fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A shared object of this project against which other objects are linked.
struct Library {
    name: &'static str,
    soname: &'static str,
    map: &'static str,
    /// Prefixes of the names that it exports.
    prefixes: &'static [&'static str],
}

const PM: Library =
    Library { name: "libpm.so", soname: "libpm.so.2", map: "pm.map", prefixes: &["pm"] };
const SCORE: Library = Library {
    name: "libscore.so",
    soname: "libscore.so.6",
    map: "score.map",
    prefixes: &["sc_", "score_"],
};

/// Links the package's shared object with this soname and this version script. Also makes a link
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
    // Cargo puts the object into PROFILE/deps and links or copies it to PROFILE.
    let profile = profile_dir();
    for directory in [profile.clone(), profile.join("deps")] {
        make_link(name, &directory.join(soname));
    }
}

/// Makes a link `folder/link_name -> ../name` in the build tree, for a shared object that programs
/// search for under that name.
pub fn link_in_folder(name: &str, folder: &str, link_name: &str) {
    let folder = profile_dir().join(folder);
    fs::create_dir_all(&folder).expect("the target directory is writable");
    make_link(&format!("../{name}"), &folder.join(link_name));
}

/// Makes a link `link_name -> name` in the build tree, for a shared object with a name that cargo
/// cannot produce.
pub fn link_beside(name: &str, link_name: &str) {
    make_link(name, &profile_dir().join(link_name));
}

fn make_link(target: &str, path: &Path) {
    let _ = fs::remove_file(path);
    if let Err(error) = std::os::unix::fs::symlink(target, path) {
        println!("cargo:warning=cannot make {}: {error}", path.display());
    }
}

/// Links the package's shared object against libpm.so.2, so that a process has one copy of PM. The
/// loader finds libpm.so.2 in the directory of the package's shared object.
pub fn against_pm() {
    against(&PM);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN");
}

/// Links the package's shared object against libscore.so.6.
pub fn against_score() {
    against(&SCORE);
}

/// Makes the loader also search the parent directory for libpm.so.2 and libscore.so.6.
pub fn search_folder_above() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN/..");
}

/// Links the package's shared object against a library that may not have been linked yet, because
/// cargo cannot express a dependency on another package's shared object. Therefore a stub replaces
/// the library. It has the same soname, symbols and version.
fn against(library: &Library) {
    let map = directory().join(library.map);
    let out = out_dir();
    let (source, stub) = (out.join(format!("{}.c", library.name)), out.join(library.name));
    let text = fs::read_to_string(&map).expect("the version script is readable");
    fs::write(&source, functions(&text, library.prefixes)).expect("OUT_DIR is writable");
    let status = Command::new(env::var_os("CC").unwrap_or("cc".into()))
        .args(["-shared", "-fPIC", "-nostdlib"])
        .arg(format!("-Wl,-soname,{}", library.soname))
        .arg(format!("-Wl,--version-script={}", map.display()))
        .arg("-o")
        .args([&stub, &source])
        .status()
        .expect("the C compiler that rustc links with runs");
    assert!(status.success(), "cannot build {}", stub.display());
    println!("cargo:rustc-cdylib-link-arg={}", stub.display());
    println!("cargo:rerun-if-changed={}", map.display());
    println!("cargo:rerun-if-env-changed=CC");
}

/// Returns an empty C function for each name of a version script with one of these prefixes. Names
/// of variables also become functions, because the linker needs only the name.
fn functions(map: &str, prefixes: &[&str]) -> String {
    let names = map.split([';', ':', '\n']).map(str::trim);
    let names = names.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    names.map(|name| format!("void {name}(void) {{}}\n")).collect()
}

/// OUT_DIR is PROFILE/build/PACKAGE-HASH/out.
fn profile_dir() -> PathBuf {
    out_dir().ancestors().nth(3).expect("inside the target directory").to_path_buf()
}

fn out_dir() -> PathBuf {
    Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).to_path_buf()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_stub_has_each_function_of_the_version_script() {
        let map = "PM_2.0 {\nglobal:\n    pmA;\n    pmB;\n    other;\nlocal:\n    *;\n};\n";
        assert_eq!(super::functions(map, &["pm"]), "void pmA(void) {}\nvoid pmB(void) {}\n");
    }
}
