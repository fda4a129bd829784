//! The disk with the job's directory is full from the start, or becomes full in the middle of a
//! file. scrun prints the host and the reason, the job fails, and nothing is left.

use nix::unistd::geteuid;
use score_tests::{Outcome, TestEnv, skip};

/// Runs a command line whose jobs have their directories on a disk of `kib` KiB.
fn run_on_small_disk(env: &TestEnv, test: &str, kib: u32, line: &str) -> Option<Outcome> {
    if !geteuid().is_root() {
        skip(test, "only root can mount a small disk");
        return None;
    }
    let line = format!(
        "mkdir -p /var/scored && mount -t tmpfs -o size={kib}k,mode=755 none /var/scored && {line}; \
         code=$?; ls -A /var/scored | sed 's/^/left: /'; exit $code"
    );
    Some(env.command("unshare").args(&["-m", "sh", "-c", &line]).run())
}

fn assert_fails(test: &str, kib: u32, line: &str, expected: &[&str]) {
    let env = TestEnv::new();
    env.write_file("data", vec![b'x'; 4 << 20]);
    let Some(outcome) = run_on_small_disk(&env, test, kib, line) else { return };
    assert_ne!(outcome.code, 0, "{outcome}");
    assert!(!outcome.text().contains("left: job-"), "{outcome}");
    let _ = outcome.assert_stderr(expected);
}

/// The size of the program and 1 MiB. The hosts share a disk, and therefore one copy of the
/// program.
fn disk_kib_for_scatter() -> u32 {
    let program =
        std::fs::metadata(score_tests::binaries::program("scatter")).expect("it is built").len();
    u32::try_from(program.div_ceil(1024)).expect("no such program") + 1024
}

// Promise (faults): A disk that is full, or becomes full, is reported with host or node and file;
// the job fails, and nothing is left.
#[test]
fn a_disk_that_fills_while_a_file_is_scattered_is_reported_with_node_and_file() {
    let line = "scrun -group=local:3,nodes=3x1 scatter -file copy < data";
    let expected = &["scatter", "copy", "No space left"];
    assert_fails("full_disk_and_scatter", disk_kib_for_scatter(), line, expected);
}

// Promise of `a_disk_that_fills_while_a_file_is_scattered_is_reported_with_node_and_file`.
#[test]
fn a_disk_without_space_for_the_program_is_reported_with_host_and_file() {
    let line = "scrun -group=local:3,nodes=3x1 scatter -file copy < data";
    assert_fails(
        "full_disk_and_program",
        1024,
        line,
        &["host local", "bin/scatter", "No space left"],
    );
}

// Promise of `a_disk_that_fills_while_a_file_is_scattered_is_reported_with_node_and_file`.
#[test]
fn a_disk_that_fills_while_output_is_redirected_is_reported() {
    let line = "scrun -group=local:3,nodes=3x1 system dd if=/dev/zero bs=64k count=64 =: out";
    assert_fails("full_disk_and_redirect", 1024, line, &["No space left"]);
}

// Promise of `a_disk_that_fills_while_a_file_is_scattered_is_reported_with_node_and_file`.
#[test]
fn a_disk_that_is_full_from_the_start_is_reported() {
    let line = "head -c 10000000 /dev/zero > /var/scored/ballast; \
                scrun -group=local:3,nodes=3x1 scatter -file copy < data";
    assert_fails("full_disk_at_start", 64, line, &["No space left"]);
}

// Promise of `a_disk_that_fills_while_a_file_is_scattered_is_reported_with_node_and_file`.
#[test]
fn other_jobs_run_after_the_disk_was_full() {
    let env = TestEnv::new();
    env.write_file("data", vec![b'x'; 4 << 20]);
    let line = "scrun -group=local:3,nodes=3x1 scatter -file copy < data; \
                scrun -group=local:3,nodes=3x1 system true";
    if let Some(outcome) = run_on_small_disk(&env, "full_disk_and_after", 1024, line) {
        let _ = outcome.expect_code(0);
    }
}
