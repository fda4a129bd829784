//! Runs shell command lines with the scrun of this build.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory with this build's programs. Builds scrun and scored if they are missing.
pub fn folder() -> &'static Path {
    static BUILT: Once = Once::new();
    let folder = Path::new(env!("CARGO_BIN_EXE_scatter")).parent().unwrap();
    BUILT.call_once(|| {
        if folder.join("scrun").exists() && folder.join("scored").exists() {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "scrun", "-p", "scored", "--target-dir"]);
        cargo.arg(folder.parent().unwrap());
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "scrun and scored cannot be built");
    });
    folder
}

/// A temporary directory for one test.
pub struct TestDir(pub PathBuf);

impl TestDir {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("score-commands-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn write_file(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }

    /// Runs a shell command line in the directory, for at most a minute. scrun prints only errors.
    pub fn run_shell(&self, line: &str) -> Output {
        let path = std::env::var("PATH").unwrap();
        let output = Command::new("timeout")
            .args(["60", "bash", "-c", &format!("set -o pipefail; {line}")])
            .env("PATH", format!("{}:{path}", folder().display()))
            .env("SCORE_OPTIONS", "message=quiet")
            .current_dir(&self.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_ne!(output.status.code(), Some(124), "{line}: no end after a minute");
        output
    }

    /// Runs a line that must succeed without standard error. Returns its output.
    pub fn output(&self, line: &str) -> Vec<u8> {
        let output = self.run_shell(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{line}: {stderr}");
        output.stdout
    }

    pub fn text(&self, line: &str) -> String {
        String::from_utf8(self.output(line)).unwrap()
    }

    /// Runs a line that must fail with this code. Returns its standard error.
    pub fn failure(&self, line: &str, code: i32) -> String {
        let output = self.run_shell(line);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}: {stderr}");
        stderr
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes without a pattern, so that shifted or duplicated parts are detected.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
