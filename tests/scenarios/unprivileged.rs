//! An ordinary user needs neither privileges nor a running daemon. Everything works and ends as it
//! does for root.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::{Gid, Uid, chown, geteuid};
use score_tests::process::Process;
use score_tests::{TestEnv, binaries, skip, test_env};

const NOBODY_UID: u32 = 65534;

/// Copies the programs to a directory that every user can enter.
fn copy_programs(env: &TestEnv) -> std::path::PathBuf {
    let folder = env.dir().join("home/bin");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["scrun", "scored", "scatter", "gather", "system"] {
        std::fs::copy(binaries::program(name), folder.join(name)).unwrap();
    }
    folder
}

fn give_to_nobody(path: &Path) {
    chown(path, Some(Uid::from_raw(NOBODY_UID)), Some(Gid::from_raw(NOBODY_UID))).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
}

// Promise (use): A job needs no root rights, no configuration and no daemon; also without user
// namespaces.
#[test]
fn an_unprivileged_user_can_run_a_job_and_no_process_or_file_remains() {
    if !geteuid().is_root() {
        // In this case all other scenarios also run without privileges.
        return;
    }
    if !test_env::is_installed("setpriv") {
        skip("unprivileged", "setpriv of util-linux is not installed");
        return;
    }
    let env = TestEnv::new();
    let bin = copy_programs(&env);
    for folder in ["", "run", "tmp", "home"] {
        give_to_nobody(&env.dir().join(folder));
    }
    let as_nobody = |line: &str| {
        let line = format!("PATH={}:$PATH; {line}", bin.display());
        let args = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", "sh", "-c"];
        env.command("setpriv").args(&args).arg(&line)
    };
    let outcome = as_nobody("id -u; seq 1000 | scrun -nodes=3 scatter == system wc -l").run();
    assert_eq!(outcome.expect_code(0).text(), "65534\n1000\n1000\n1000\n");
    let line = "scrun -nodes=2 system sh -c 'setsid sleep 300 & echo up; exec sleep 301'";
    let mut job = as_nobody(line).start();
    job.wait_for("up", 2);
    env.wait_for_process("shepherd", Process::is_shepherd).signal(nix::sys::signal::SIGKILL);
    env.assert_clean();
    assert_ne!(job.wait().code, 0);
}

// Promise of `an_unprivileged_user_can_run_a_job_and_no_process_or_file_remains`.
#[test]
fn a_machine_without_user_namespaces_still_runs_jobs() {
    // Inside a user namespace the test may set the limit on further namespaces to 0.
    let probe = Command::new("unshare")
        .args(["-Ur", "sh", "-c", "echo 0 > /proc/sys/user/max_user_namespaces"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        skip("no_user_namespaces", "unshare(1) cannot make a namespace to forbid more in");
        return;
    }
    let env = TestEnv::new();
    let limits = "echo 0 > /proc/sys/user/max_user_namespaces; \
                  echo 0 > /proc/sys/user/max_pid_namespaces; ";
    let line = format!("{limits} exec scrun -nodes=3 system echo here");
    let outcome = env.command("unshare").args(&["-Ur", "sh", "-c", &line]).run().expect_code(0);
    assert_eq!(outcome.text(), "here\nhere\nhere\n");
    let line = format!(
        "{limits} exec scrun -nodes=2 system sh -c \
         'setsid sleep 300 & echo up; exec sleep 301'"
    );
    let mut job = env.command("unshare").args(&["-Ur", "sh", "-c", &line]).start();
    job.wait_for("up", 2);
    job.signal(nix::sys::signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
    env.assert_clean();
}
