//! Tests of score_initialize without SCore-D: the resource request, and local execution (manual
//! 1.4.4).

use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

use crate::harness::build::{self, Link};
use crate::harness::{Process, TEST_TIMEOUT};
use score_proto::elf_note::Request;

#[test]
fn the_resource_request_is_written_and_no_user_code_runs() {
    for (args, nodes) in [(&["3", "9"][..], (3, 9)), (&[], Request::default().nodes)] {
        let (read, write) = nix::unistd::pipe().unwrap();
        let mut process = Process::start(&build::node(), args, Some(("SCORE_RESOURCE_FD", &write)));
        drop(write);
        let mut bytes = Vec::new();
        std::fs::File::from(read).read_to_end(&mut bytes).unwrap();
        let mut request = Request::default();
        request.add_encoded(&bytes).unwrap();
        assert!(request.uses_libscore);
        assert_eq!(request.nodes, nodes);
        assert_eq!(process.wait_for_exit().code(), Some(0));
        assert!(process.remaining_output().is_empty(), "user code ran");
    }
}

#[test]
fn a_request_that_cannot_be_written_is_an_error() {
    let (read, _write) = nix::unistd::pipe().unwrap();
    let mut process = Process::start(&build::node(), &[], Some(("SCORE_RESOURCE_FD", &read)));
    assert_eq!(process.wait_for_exit().code(), Some(1));
    assert!(process.stderr_lines()[0].contains("cannot write the resource request"));
}

#[test]
fn a_program_without_scrun_is_one_node_whose_calls_affect_only_itself() {
    for link in [Link::Static, Link::Shared] {
        let program = build::program("node", "gcc -std=c99 -O2", link);
        let mut process = Process::start(&program, &[], None);
        assert_eq!(process.read_line(), "ready");
        assert_eq!(process.request("place"), "node 0/1 proc 0/1 host 0/1 nets 0 closed");
        assert_eq!(process.request("barrier"), "0");
        assert_eq!(process.request("job"), "0 0 22");
        assert_eq!(process.request("option nodes"), "[(none)]");
        assert_eq!(process.request("idle"), "idle");
        assert_eq!(process.request("busy"), "busy");
        assert_eq!(process.request("monitor 1 1"), "set");
        assert_eq!([process.request("enter"), process.request("leave")], ["0", "0"]);
        assert_eq!(process.request("leave"), libc::EINVAL.to_string());
        assert_eq!(process.request("flush"), "said before");
        assert_eq!(process.read_line(), "0");
        assert_eq!(
            process.request(&format!("broadcast {}", libc::SIGKILL)),
            libc::EINVAL.to_string()
        );
        process.send_line(&format!("broadcast {}", libc::SIGTERM));
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(process.wait_for_exit().signal(), Some(libc::SIGTERM));
    }
}

#[test]
fn every_kind_of_exit_has_its_exit_code() {
    for (command, code) in
        [("sc_exit 300", 300 & 0xff), ("sc_terminate", 0), ("sc_inspectme 11", 128 + 11)]
    {
        let mut process = Process::start(&build::node(), &[], None);
        process.send_line(command);
        assert_eq!(process.wait_for_exit().code(), Some(code), "{command}");
    }
}

#[test]
fn sleep_and_yield_work_without_scored() {
    let mut process = Process::start(&build::node(), &[], None);
    assert_eq!(process.read_line(), "ready");
    let begin = std::time::Instant::now();
    assert_eq!(process.request("sleep 1"), "0");
    assert!(begin.elapsed() >= std::time::Duration::from_secs(1));
    assert_eq!(process.request("yield"), "0");
    assert_eq!(process.request("sleep -5"), libc::EINVAL.to_string());
}

#[test]
fn temporary_files_are_private_and_outlive_a_child_but_not_their_process() {
    let dir = build::scratch("tmp");
    let count = |dir: &PathBuf| std::fs::read_dir(dir).unwrap().count();
    let mut command = Command::new(build::node());
    command.env("TMPDIR", &dir).stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    use std::io::Write;
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "create data\nchild").unwrap();
    let start = std::time::Instant::now();
    let find_job_dir = || {
        let mut entries = std::fs::read_dir(&dir).unwrap();
        let job_dir = entries.next()?.unwrap().path();
        job_dir.join("of-child").exists().then_some(job_dir)
    };
    let job_dir = loop {
        if let Some(job_dir) = find_job_dir() {
            break job_dir;
        }
        assert!(start.elapsed() < TEST_TIMEOUT);
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&job_dir).unwrap().permissions().mode() & 0o777, 0o700);
    writeln!(stdin, "open data").unwrap();
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(count(&dir), 0, "the directory is removed at exit");
    std::fs::remove_dir(&dir).unwrap();
}
