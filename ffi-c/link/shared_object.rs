// Included by the build scripts of libpm.so and libscore.so.

/// Has the package's shared object linked by GNU ld with this soname and this version script,
/// and puts a link `soname -> name` beside it, so that programs run from the build tree.
fn shared_object(name: &str, soname: &str, map: &str) {
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let link = std::path::Path::new(&package).parent().expect("in ffi-c").join("link");
    let link = link.display();
    for word in [
        "-fuse-ld=bfd".to_string(),
        // The compiler looks here for ld.bfd first.
        format!("-B{link}"),
        format!("-Wl,-soname,{soname}"),
        format!("-Wl,--version-script={link}/{map}"),
    ] {
        println!("cargo:rustc-cdylib-link-arg={word}");
    }
    for file in ["shared_object.rs", "ld.bfd", map] {
        println!("cargo:rerun-if-changed={link}/{file}");
    }
    // OUT_DIR is PROFILE/build/PACKAGE-HASH/out; cargo puts the object into PROFILE and PROFILE/deps.
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let profile = out.ancestors().nth(3).expect("inside the target directory");
    for folder in [profile.to_path_buf(), profile.join("deps")] {
        let path = folder.join(soname);
        let _ = std::fs::remove_file(&path);
        if let Err(e) = std::os::unix::fs::symlink(name, &path) {
            println!("cargo:warning=cannot make {}: {e}", path.display());
        }
    }
}
