//! The common part of the C ABI tests: the libraries as built by cargo, and C compilers.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The directory ffi-c.
pub fn ffi_c() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in ffi-c")
}

/// The directory of pm.h and score.h.
pub fn include() -> PathBuf {
    ffi_c().join("include")
}

/// A C source of these tests.
pub fn source(name: &str) -> PathBuf {
    ffi_c().join("tests/c").join(name)
}

/// The directory with the libraries and compiler wrappers. If the environment variable
/// `HARNESS_BIN_DIR` is set, it names the directory. Otherwise the first call builds the libraries
/// and wrappers, in the profile of these tests.
pub fn build_dir() -> &'static Path {
    static BUILD_DIR: OnceLock<PathBuf> = OnceLock::new();
    BUILD_DIR.get_or_init(|| match std::env::var_os("HARNESS_BIN_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => build(),
    })
}

fn build() -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a path");
    let directory = exe.ancestors().nth(2).expect("tests run in TARGET/PROFILE/deps");
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(name) => name,
        None => panic!("{} is not a profile", directory.display()),
    };
    let packages = ["pm-c", "score-c", "score-c-static", "score-tools-c", "score-commands"];
    let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--quiet", "--profile", profile, "--target-dir"])
        .arg(directory.parent().expect("in the target directory"))
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .current_dir(ffi_c())
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "cannot build {packages:?}");
    directory.to_path_buf()
}

/// The installed C compilers, or C++ compilers if `is_cxx`. Reports the others as skipped.
pub fn compilers(is_cxx: bool) -> Vec<&'static str> {
    let all = if is_cxx { ["g++", "clang++"] } else { ["gcc", "clang"] };
    let is_installed = |name: &&str| {
        let found = Command::new(name).arg("--version").output().is_ok();
        if !found {
            score_tests::skip(&format!("C ABI with {name}"), "it is not installed");
        }
        found
    };
    all.into_iter().filter(is_installed).collect()
}

/// The first of these names of a standard that the compiler supports. Older compilers use c2x for
/// C23.
pub fn standard(compiler: &str, names: &[&str]) -> String {
    let is_supported = |name: &&&str| {
        let mut command = Command::new(compiler);
        command.arg(format!("-std={name}")).args(["-E", "-x", "c", "/dev/null"]);
        command.output().is_ok_and(|output| output.status.success())
    };
    let name = names.iter().find(is_supported);
    format!("-std={}", name.unwrap_or_else(|| panic!("{compiler} knows none of {names:?}")))
}

/// Runs a command to its end; if it fails, the test fails with all output. The command finds the
/// libraries by its own search path, because the search path that cargo sets for tests contains
/// other builds of them.
pub fn run_ok(command: &mut Command) -> Output {
    command.env_remove("LD_LIBRARY_PATH");
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, all_output(&output));
    output
}

/// The whole output of a command.
pub fn all_output(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A command's standard output.
pub fn stdout(command: &mut Command) -> String {
    String::from_utf8(run_ok(command).stdout).expect("UTF-8")
}

/// A separate directory for a test, removed with the value.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes the directory, in cargo's target directory.
    pub fn new(name: &str) -> Self {
        let exe = std::env::current_exe().expect("a running program has a path");
        let directory = exe.with_file_name(format!("c-abi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("the target directory is writable");
        Self(directory)
    }

    /// The path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The names of the functions (and, for `extern` lines, variables) that a header declares: the word
/// in front of the first parenthesis, outside of comments and preprocessor lines.
pub fn declared_names(header: &str) -> Vec<String> {
    let text = std::fs::read_to_string(include().join(header)).expect("the header is readable");
    let text = without_comments(&text);
    let mut names = Vec::new();
    // Nesting depth of structure braces.
    let mut depth = 0;
    let mut statement = String::new();
    let mut continued = false;
    for line in text.lines() {
        let preprocessor = continued || line.trim_start().starts_with('#');
        continued = preprocessor && line.ends_with('\\');
        if preprocessor {
            continue;
        }
        for letter in line.chars().chain([' ']) {
            match letter {
                '{' if depth > 0 || statement.contains("struct") => depth += 1,
                '}' if depth > 0 => depth -= 1,
                '{' | '}' => statement.clear(),
                ';' if depth == 0 => {
                    names.extend(name_of(&statement));
                    statement.clear();
                }
                _ if depth == 0 => statement.push(letter),
                _ => {}
            }
        }
    }
    names.sort();
    names.dedup();
    names
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        kept.push_str(before);
        rest = after.split_once("*/").expect("comments end").1;
    }
    kept + rest
}

fn name_of(statement: &str) -> Option<String> {
    let statement = statement.trim();
    let is_structure = statement.starts_with("struct") && !statement.contains('(');
    if statement.starts_with("typedef") || is_structure {
        return None;
    }
    let signature = match statement.split_once('(') {
        Some((signature, _)) => signature,
        None => statement.strip_prefix("extern ")?,
    };
    let name = signature.trim().rsplit([' ', '*']).next()?;
    (!name.is_empty()).then(|| name.to_string())
}

/// The names in a version script's `global:` part.
pub fn exported_names(map: &str) -> Vec<String> {
    let path = ffi_c().join("link").join(map);
    let text = std::fs::read_to_string(path).expect("the version script is readable");
    let global = text.split_once("global:").expect("has a global part").1;
    let global = global.split_once("local:").expect("has a local part").0;
    let mut names: Vec<String> =
        global.split(';').map(|name| name.trim().to_string()).filter(|n| !n.is_empty()).collect();
    names.sort();
    names
}
