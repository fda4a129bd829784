//! The documents for users and operators show true sessions. A session is a block of a document
//! whose first line is ```` ```console ````. This scenario runs the lines after `$ ` in one
//! directory per document, and compares the output with the lines below.
//!
//! - `$ cat NAME` of a file that does not exist creates the file with the lines below.
//! - Processes print in any order, so the lines of a command may come in another order.
//! - `...` stands for any lines. The lines of such a command must come in the order shown.
//! - Times in milliseconds are not compared.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use nix::unistd::geteuid;
use score_tests::{TestEnv, binaries, skip, test_env};

use crate::mpi::mpich;

/// A command of a session, and the output that the document shows.
#[derive(Debug)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
}

/// The longest commands compile a program.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
const SESSION_START: &str = "```console";
const ANY_LINES: &str = "...";

/// Returns the commands of all sessions of a document.
fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_in_session = false;
    for (line, text) in (1..).zip(document.lines()) {
        match text.strip_prefix("$ ") {
            _ if text == SESSION_START => is_in_session = true,
            _ if text == "```" => is_in_session = false,
            Some(command) if is_in_session => {
                steps.push(Step { line, command: command.to_owned(), output: Vec::new() });
            }
            _ if is_in_session => {
                let step = steps.last_mut().expect("a session begins with a command");
                step.output.push(text.to_owned());
            }
            _ => {}
        }
    }
    steps
}

/// Removes the parts of a line that differ from run to run.
fn comparable(line: &str) -> String {
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let is_time = |at: usize| words.get(at + 1).is_some_and(|unit| unit.starts_with("ms"));
    let words = words.iter().enumerate();
    let words = words.map(|(at, word)| if is_time(at) { "N" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether the printed lines match those that the document shows.
fn is_as_shown(shown: &[String], printed: &[String]) -> bool {
    if !shown.iter().any(|line| line == ANY_LINES) {
        let (mut shown, mut printed) = (shown.to_vec(), printed.to_vec());
        shown.sort();
        printed.sort();
        return shown == printed;
    }
    let mut rest = printed;
    let mut may_skip = false;
    for line in shown {
        if line == ANY_LINES {
            may_skip = true;
            continue;
        }
        let found = rest.iter().position(|candidate| candidate == line);
        match found {
            Some(at) if at == 0 || may_skip => rest = &rest[at + 1..],
            _ => return false,
        }
        may_skip = false;
    }
    rest.is_empty() || may_skip
}

/// Writes the pkg-config file of libscoretools, with the paths of the build.
fn write_pkg_config_file(env: &TestEnv) {
    let include = binaries::root().join("ffi-c/include").display().to_string();
    let folder = binaries::folder().display();
    // The run path must take precedence over LD_LIBRARY_PATH, in which cargo names the directory of
    // another build.
    let libs = format!("-L{folder} -Wl,-rpath,{folder},--disable-new-dtags -lscoretools");
    let head = "Name: scoretools\nDescription: tool control\nVersion: 0";
    env.write_file("scoretools.pc", format!("{head}\nCflags: -I{include}\nLibs: {libs}\n"));
}

fn check_document(path: &str) {
    check_document_with_programs(path, None);
}

/// Runs the sessions with the programs of a further directory, which comes first in `PATH`.
fn check_document_with_programs(path: &str, programs: Option<&Path>) {
    if !test_env::is_installed("gcc") {
        skip(path, "gcc is not installed");
        return;
    }
    let document = fs::read_to_string(binaries::root().join(path)).unwrap();
    let steps = steps(&document);
    assert!(!steps.is_empty(), "{path} has no session");
    let env = TestEnv::new();
    write_pkg_config_file(&env);
    let folder = env.dir().to_str().expect("the temporary directory has a plain name");
    let mut search_path: Vec<_> = programs.into_iter().map(Path::to_owned).collect();
    search_path.push(binaries::folder().to_owned());
    search_path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let search_path = std::env::join_paths(search_path).expect("no directory has a colon");
    let search_path = search_path.to_str().expect("the directories of PATH have plain names");
    let mut code = 0;
    for Step { line, command, output } in steps {
        if let Some(name) = command.strip_prefix("cat ")
            && !env.dir().join(name).exists()
        {
            env.write_file(name, output.join("\n") + "\n");
            continue;
        }
        // `$?` must be the exit code of the command before.
        let script = format!("exec 2>&1; (exit {code}); {command}");
        let job = env.command("/bin/sh").args(&["-c", &script]).env("PKG_CONFIG_PATH", folder);
        let outcome = job.env("PATH", search_path).timeout(COMMAND_TIMEOUT).run();
        code = outcome.code;
        let printed: Vec<String> = outcome.text().lines().map(comparable).collect();
        let shown: Vec<String> = output.iter().map(|line| comparable(line)).collect();
        assert!(
            is_as_shown(&shown, &printed),
            "{path}:{line}: $ {command}\nshown: {shown:#?}\nprinted: {printed:#?}"
        );
    }
}

// Promise (use): The sessions in README and in the documents for users and operators are real.
#[test]
fn readme() {
    check_document("README.md");
}

// Promise of `readme`.
#[test]
fn getting_started() {
    check_document("docs/user/getting-started.md");
}

// Promise of `readme`.
#[test]
fn running_jobs() {
    check_document("docs/user/running-jobs.md");
}

// Promise of `readme`.
#[test]
fn pm_guide() {
    check_document("docs/user/pm-guide.md");
}

// Promise of `readme`.
#[test]
fn hangs_and_crashes() {
    check_document("docs/user/hangs-and-crashes.md");
}

// Promise of `readme`.
#[test]
fn writing_tools() {
    const DOCUMENT: &str = "docs/user/writing-tools.md";
    if !test_env::is_installed("pkg-config") {
        return skip(DOCUMENT, "pkg-config is not installed");
    }
    check_document(DOCUMENT);
}

// Promise of `readme`.
#[test]
fn mpi() {
    const DOCUMENT: &str = "docs/user/mpi.md";
    let Some(mpich) = mpich(DOCUMENT) else { return };
    if !test_env::is_installed("mpicc.openmpi") {
        return skip(DOCUMENT, "Debian's libopenmpi-dev is not installed");
    }
    check_document_with_programs(DOCUMENT, Some(&mpich.join("bin")));
}

// Promise of `readme`.
#[test]
fn from_mpi_and_slurm() {
    const DOCUMENT: &str = "docs/user/from-mpi-and-slurm.md";
    let Some(mpich) = mpich(DOCUMENT) else { return };
    check_document_with_programs(DOCUMENT, Some(&mpich.join("bin")));
}

// Promise of `readme`.
#[test]
fn install() {
    const DOCUMENT: &str = "docs/admin/install.md";
    if !geteuid().is_root() {
        return skip(DOCUMENT, "its trial needs root");
    }
    // The users of the trial run the programs in the build directory.
    let is_open = |path: &Path| path.metadata().is_ok_and(|it| it.permissions().mode() & 1 == 1);
    if !binaries::folder().ancestors().all(is_open) {
        return skip(DOCUMENT, "users may not enter the directory of the programs");
    }
    check_document(DOCUMENT);
}

// Promise of `readme`.
#[test]
fn networks() {
    check_document("docs/admin/networks.md");
}

// Promise of `readme`.
#[test]
fn operations() {
    check_document("docs/admin/operations.md");
}

#[test]
fn each_document_with_a_session_has_a_test() {
    let tests = include_str!("documents.rs");
    for folder in ["docs/user", "docs/admin"] {
        for entry in fs::read_dir(binaries::root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let name = format!("\"{folder}/{}\"", path.file_name().unwrap().display());
            assert!(!text.contains(SESSION_START) || tests.contains(&name), "{name} is not run");
        }
    }
}

#[test]
fn lines_are_compared_in_any_order_unless_some_are_left_out() {
    let lines = |text: &str| text.lines().map(comparable).collect::<Vec<_>>();
    assert!(is_as_shown(&lines("b\na"), &lines("a\nb")));
    assert!(!is_as_shown(&lines("b\na"), &lines("a")));
    assert!(is_as_shown(&lines("waits since 106 ms; x"), &lines("waits since 7 ms; x")));
    assert!(is_as_shown(&lines("a\n...\nc"), &lines("a\nb\nb\nc")));
    assert!(!is_as_shown(&lines("a\n...\nc"), &lines("a\nb\nc\nd")));
    assert!(!is_as_shown(&lines("...\nc\nb"), &lines("b\nc")));
    assert!(is_as_shown(&lines("a\n..."), &lines("a")));
}
