//! The private environment of a scenario: directories, variables, a marker, and the check that no
//! process and no file is left.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::job::Job;
use crate::process::{self, MARKER_ENV, Process};
use crate::{binaries, skip};

/// The time limit for cleaning up after a job. The promised limit is one second. Test machines run
/// several scenarios at once, so a scenario fails only after a longer time.
pub const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

/// A variable that the first process of the virtual machine sets.
pub const IN_VM_ENV: &str = "SCORE_VM";

static NEXT: AtomicU32 = AtomicU32::new(1);

/// Helper programs that this test program has compiled.
static COMPILED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A private environment for one scenario. On drop it checks that no process and no file is left.
pub struct TestEnv {
    marker: String,
    dir: PathBuf,
    files_before: Vec<String>,
    leftovers_ignored: AtomicBool,
}

impl Default for TestEnv {
    fn default() -> Self {
        Self::new()
    }
}

impl TestEnv {
    /// Creates the environment with its directories.
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let marker = format!("{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(format!("score-test-{marker}"));
        for name in ["", "run", "tmp", "home"] {
            fs::create_dir_all(dir.join(name)).expect("the temporary directory can be written");
        }
        Self {
            marker,
            dir,
            files_before: shared_files(),
            leftovers_ignored: AtomicBool::new(false),
        }
    }

    /// The working directory of this scenario's commands.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The marker in the environment of all processes of this scenario.
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// Writes a file in the working directory.
    pub fn write_file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.join(name);
        fs::write(&path, content).expect("the scenario's directory can be written");
        path
    }

    /// Writes an executable file in the working directory, by cp(1): the virtual machine has no
    /// install(1). If this process wrote the file, the child of another test could inherit the open
    /// descriptor for a moment, and executing the file would fail with ETXTBSY.
    pub fn write_script(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let source = self.write_file(".script", content);
        let path = self.dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&self.dir)).expect("the directory can be made");
        fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).expect("the mode is set");
        let copied = Command::new("cp").arg("-p").arg(&source).arg(&path).status();
        assert!(copied.is_ok_and(|status| status.success()), "{}", path.display());
        fs::remove_file(&source).expect("the scenario's directory can be written");
        path
    }

    /// Makes a command in this scenario's environment.
    pub fn command(&self, program: impl AsRef<Path>) -> Job {
        let mut command = Command::new(program.as_ref());
        self.configure(&mut command);
        Job::new(self.marker.clone(), command)
    }

    /// Sets the environment of this scenario for a command.
    pub fn configure(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(&self.dir)
            .env(MARKER_ENV, &self.marker)
            .env("PATH", format!("{}:{path}", binaries::folder().display()))
            .env("XDG_RUNTIME_DIR", self.dir.join("run"))
            .env("TMPDIR", self.dir.join("tmp"))
            .env("LC_ALL", "C")
            .env_remove("SCORE_OPTIONS")
            .env_remove("PM_DEBUG")
            .env_remove("OMP_NUM_THREADS")
            .env_remove("DISPLAY");
    }

    /// Runs `scrun` with these arguments.
    pub fn scrun<S: AsRef<str>>(&self, args: &[S]) -> Job {
        let mut job = self.command(binaries::program("scrun"));
        for arg in args {
            job = job.arg(arg.as_ref());
        }
        job
    }

    /// Runs a command line as a user types it, with the programs under test first in PATH.
    pub fn sh(&self, line: &str) -> Job {
        self.command("/bin/sh").arg("-c").arg(line)
    }

    /// Compiles the helper program `tests/programs/NAME.c` with scorecc. Without a C compiler,
    /// returns `None` and prints a skip.
    pub fn test_program(&self, name: &str) -> Option<PathBuf> {
        // The virtual machine contains the compiled programs.
        if std::env::var_os(IN_VM_ENV).is_some() {
            return Some(binaries::program(name));
        }
        if !is_installed("gcc") {
            skip(name, "gcc is not installed");
            return None;
        }
        let folder = binaries::folder().join("test-programs");
        let program = folder.join(name);
        let mut compiled = COMPILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !compiled.contains(&program) {
            fs::create_dir_all(&folder).expect("the build directory can be written");
            let source = binaries::root().join(format!("tests/programs/{name}.c"));
            let outcome = self
                .command(binaries::program("scorecc"))
                .args(&["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
                .arg(program.to_str().expect("the build directory has a plain name"))
                .arg(source.to_str().expect("the source tree has a plain name"))
                .run();
            assert_eq!(outcome.code, 0, "scorecc {name}.c: {outcome}");
            compiled.push(program.clone());
        }
        Some(program)
    }

    /// Disables the check on drop, because the leftovers have been reported already.
    pub fn ignore_leftovers(&self) {
        self.leftovers_ignored.store(true, Ordering::Relaxed);
    }

    /// The living processes of this scenario.
    pub fn processes(&self) -> Vec<Process> {
        process::with_marker(&self.marker)
    }

    /// Waits until a process of this scenario satisfies `predicate`.
    pub fn wait_for_process(
        &self,
        description: &str,
        predicate: impl Fn(&Process) -> bool,
    ) -> Process {
        let started_at = Instant::now();
        while started_at.elapsed() < Duration::from_secs(20) {
            if let Some(found) = self.processes().into_iter().find(&predicate) {
                return found;
            }
            sleep(Duration::from_millis(5));
        }
        panic!("no {description} within 20 s; there are {:#?}", self.processes());
    }

    /// Processes and files that should not exist. Files in the working directory do not count.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found: Vec<String> = self
            .processes()
            .iter()
            .map(|process| {
                format!("process {} ({}): {}", process.pid, process.state, process.command)
            })
            .collect();
        for folder in ["run", "tmp"] {
            files_below(&self.dir.join(folder), &mut found);
        }
        let after = shared_files().into_iter().filter(|name| !self.files_before.contains(name));
        found.extend(after.filter(|name| !is_mapped(name)));
        found
    }

    /// Waits until no process and no file is left.
    ///
    /// # Errors
    /// The processes and files that are left after `timeout`.
    pub fn wait_until_clean(&self, timeout: Duration) -> Result<Duration, Vec<String>> {
        let started_at = Instant::now();
        loop {
            let left = self.leftovers();
            if left.is_empty() {
                return Ok(started_at.elapsed());
            }
            if started_at.elapsed() > timeout {
                return Err(left);
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Waits until no process and no file is left.
    ///
    /// # Panics
    /// If something is left after [`CLEANUP_TIMEOUT`].
    #[track_caller]
    pub fn assert_clean(&self) {
        let clean = self.wait_until_clean(CLEANUP_TIMEOUT);
        clean.unwrap_or_else(|left| panic!("left after {CLEANUP_TIMEOUT:?}: {left:#?}"));
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        let clean = self.wait_until_clean(CLEANUP_TIMEOUT);
        for left in self.processes() {
            left.signal(Signal::SIGKILL);
        }
        let _ = fs::remove_dir_all(&self.dir);
        if let Err(left) = clean
            && !std::thread::panicking()
            && !self.leftovers_ignored.load(Ordering::Relaxed)
        {
            panic!("left {} s after the scenario's end: {left:#?}", CLEANUP_TIMEOUT.as_secs());
        }
    }
}

/// Adds the files below `folder`, and the directories of jobs.
fn files_below(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files_below(&path, found);
            // The common directory `scored` may stay, but no job's directory in it.
            if path.parent().is_some_and(|parent| parent.ends_with("scored")) {
                found.push(path.display().to_string());
            }
        } else {
            found.push(path.display().to_string());
        }
    }
}

/// Names in shared directories in which a job could leave files.
fn shared_files() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["/dev/shm", "/tmp", "/var/scored"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Other scenarios and programs also create files in /tmp.
            if folder == "/tmp" && !name.starts_with("scored") {
                continue;
            }
            // A job's directory has the process id of its scored in its name. While that process
            // runs, the directory does not count, because the job belongs to another scenario.
            let pid = name.strip_prefix("job-").and_then(|rest| rest.split('-').next());
            // Other entries belong to a service.
            if folder == "/var/scored"
                && pid.is_none_or(|pid| Path::new("/proc").join(pid).exists())
            {
                continue;
            }
            found.push(format!("{folder}/{name}"));
        }
    }
    found
}

/// Whether a process has mapped this file. Processes of this scenario are reported separately, and
/// other scenarios have files of their own in the same directories.
fn is_mapped(path: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| fs::read_to_string(process.path().join("maps")).ok())
        .any(|maps| maps.lines().any(|line| line.split_whitespace().nth(5) == Some(path)))
}

/// Whether PATH has this program.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
