// Included by the build script of libscore.so.

/// Makes an object with the soname, symbols and version of libpm.so and has the package linked
/// against it: there is one copy of PM in a process, and it is that of libpm.so. (The real libpm.so
/// may not have been linked yet: cargo knows no dependency on another package's shared object.)
fn pm_stub() {
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let map = std::path::Path::new(&package).with_file_name("link").join("pm.map");
    let names = std::fs::read_to_string(&map).expect("ffi-c/link/pm.map is readable");
    let functions: String = names
        .split([';', ':', '\n'])
        .map(str::trim)
        .filter(|name| name.starts_with("pm"))
        .map(|name| format!("void {name}(void) {{}}\n"))
        .collect();
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let (source, stub) = (out.join("pm_stub.c"), out.join("libpm.so"));
    std::fs::write(&source, functions).expect("OUT_DIR is writable");
    let status = std::process::Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
        .args(["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libpm.so.2"])
        .arg(format!("-Wl,--version-script={}", map.display()))
        .arg("-o")
        .args([&stub, &source])
        .status()
        .expect("the C compiler that rustc links with runs");
    assert!(status.success(), "cannot build {}", stub.display());
    println!("cargo:rustc-cdylib-link-arg={}", stub.display());
    // libpm.so.2 lies beside libscore.so, in the build tree as when installed.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN");
    println!("cargo:rerun-if-changed={}", map.display());
    println!("cargo:rerun-if-env-changed=CC");
}
