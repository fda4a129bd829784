//! Builds the libraries, and C programs against them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The program is linked with libscore.a, which contains PM.
    Static,
    /// The program is linked with libscore.so and libpm.so, at a fixed address, and copies the
    /// libraries' variables.
    Shared,
}

/// The profile's directory, in which cargo puts the libraries.
static LIBRARIES: LazyLock<PathBuf> =
    LazyLock::new(|| cargo(&["-p", "pm-c", "-p", "score-c", "-p", "score-c-static"]));

/// Runs cargo with the profile of the tests. Returns the profile's directory.
fn cargo(args: &[&str]) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "-q"]).args(args);
    cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile == "release" {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo runs").success(), "{args:?} does not build");
    target.join(profile)
}

/// Builds an example of this package, because `cargo test --test` builds no examples.
pub fn example(name: &str) -> PathBuf {
    cargo(&["-p", "score-runtime", "--example", name]).join("examples").join(name)
}

/// The directory of the headers.
pub fn headers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ffi-c/include")
}

/// A separate directory for the files of this test.
pub fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs a compiler with all warnings as errors.
pub fn compile(compiler: &str, args: &[&str]) {
    let words: Vec<&str> = compiler.split(' ').collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-I"])
        .arg(headers())
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {args:?}:\n{errors}");
}

/// Builds `tests/programs/NAME.c` with the options of `compiler`; each variant is built once in a
/// test process.
pub fn program(name: &str, compiler: &str, link: Link) -> PathBuf {
    static BUILT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let compiler_tag: String =
        compiler.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.join(format!("{name}{compiler_tag}{link:?}"));
    let temporary = directory.join(format!("{name}{compiler_tag}{link:?}-{}", std::process::id()));
    let libraries = &*LIBRARIES;
    // A lock that is held during the build, so that no test starts a program that is still being
    // written.
    let mut built = BUILT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if built.contains(&program) {
        return program;
    }
    let out = temporary.to_str().unwrap();
    let source = source.to_str().unwrap();
    let language = if compiler.contains("++") { "c++" } else { "c" };
    let posix = "-D_POSIX_C_SOURCE=200809L";
    let mut args = vec![posix, "-x", language, source, "-x", "none", "-o", out, "-pthread"];
    let dir = libraries.to_str().unwrap();
    let rpath = format!("-Wl,-rpath,{dir}");
    let archive = libraries.join("libscore.a");
    match link {
        Link::Static => args.extend([archive.to_str().unwrap(), "-lm", "-ldl"]),
        Link::Shared => {
            args.extend(["-no-pie", "-fno-pie", "-L", dir, "-lscore", "-lpm", &rpath]);
        }
    }
    compile(compiler, &args);
    // The file is replaced as a whole, because the program of an earlier test may still run.
    std::fs::rename(&temporary, &program).unwrap();
    built.push(program.clone());
    program
}

/// The program that executes commands, in the variant that most tests use.
pub fn node() -> PathBuf {
    program("node", "gcc -std=c99 -O2", Link::Static)
}
