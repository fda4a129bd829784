//! score_initialize without SCore-D: the resource request, and local execution (manual 1.4.4).

mod harness;

use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

use harness::Process;
use harness::build::{self, Link};
use score_proto::note::Request;

#[test]
fn the_resource_request_is_written_and_no_user_code_runs() {
    for (args, nodes) in [(&["3", "9"][..], (3, 9)), (&[], Request::default().nodes)] {
        let (read, write) = nix::unistd::pipe().unwrap();
        let mut process = Process::start(&build::node(), args, Some(("SCORE_RESOURCE_FD", &write)));
        drop(write);
        let mut bytes = Vec::new();
        std::fs::File::from(read).read_to_end(&mut bytes).unwrap();
        let mut request = Request::default();
        request.add_written(&bytes).unwrap();
        assert!(request.library);
        assert_eq!(request.nodes, nodes);
        assert_eq!(process.end().code(), Some(0));
        assert!(process.rest().is_empty(), "user code ran");
    }
}

#[test]
fn a_request_that_cannot_be_written_is_an_error() {
    let (read, _write) = nix::unistd::pipe().unwrap();
    let mut process = Process::start(&build::node(), &[], Some(("SCORE_RESOURCE_FD", &read)));
    assert_eq!(process.end().code(), Some(1));
    assert!(process.complaints()[0].contains("cannot write the resource request"));
}

#[test]
fn a_program_alone_is_one_node_whose_calls_act_on_itself() {
    for link in [Link::Static, Link::Shared] {
        let program = build::program("node", "gcc -std=c99 -O2", link);
        let mut process = Process::start(&program, &[], None);
        assert_eq!(process.line(), "ready");
        assert_eq!(process.ask("place"), "node 0/1 proc 0/1 host 0/1 nets 0 closed");
        assert_eq!(process.ask("barrier"), "0");
        assert_eq!(process.ask("job"), "0 0 22");
        assert_eq!(process.ask("option nodes"), "[(none)]");
        assert_eq!(process.ask("idle"), "idle");
        assert_eq!(process.ask("busy"), "busy");
        assert_eq!(process.ask("monitor 1 1"), "set");
        assert_eq!([process.ask("enter"), process.ask("leave")], ["0", "0"]);
        assert_eq!(process.ask("leave"), libc::EINVAL.to_string());
        assert_eq!(process.ask("flush"), "said before");
        assert_eq!(process.line(), "0");
        assert_eq!(process.ask(&format!("broadcast {}", libc::SIGKILL)), libc::EINVAL.to_string());
        process.tell(&format!("broadcast {}", libc::SIGTERM));
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(process.end().signal(), Some(libc::SIGTERM));
    }
}

#[test]
fn ends_have_their_codes() {
    for (command, code) in
        [("sc_exit 300", 300 & 0xff), ("sc_terminate", 0), ("sc_inspectme 11", 128 + 11)]
    {
        let mut process = Process::start(&build::node(), &[], None);
        process.tell(command);
        assert_eq!(process.end().code(), Some(code), "{command}");
    }
}

#[test]
fn alone_it_sleeps_and_gives_way_by_itself() {
    let mut process = Process::start(&build::node(), &[], None);
    assert_eq!(process.line(), "ready");
    let begin = std::time::Instant::now();
    assert_eq!(process.ask("sleep 1"), "0");
    assert!(begin.elapsed() >= std::time::Duration::from_secs(1));
    assert_eq!(process.ask("yield"), "0");
    assert_eq!(process.ask("sleep -5"), libc::EINVAL.to_string());
}

#[test]
fn temporary_files_are_private_and_go_with_the_process_but_not_with_its_child() {
    let dir = build::scratch("tmp");
    let count = |dir: &PathBuf| std::fs::read_dir(dir).unwrap().count();
    let mut command = Command::new(build::node());
    command.env("TMPDIR", &dir).stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    use std::io::Write;
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "create data\nchild").unwrap();
    let start = std::time::Instant::now();
    let made = || {
        let mut entries = std::fs::read_dir(&dir).unwrap();
        let job = entries.next()?.unwrap().path();
        job.join("of-child").exists().then_some(job)
    };
    let job = loop {
        if let Some(job) = made() {
            break job;
        }
        assert!(start.elapsed() < harness::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&job).unwrap().permissions().mode() & 0o777, 0o700);
    writeln!(stdin, "open data").unwrap();
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(count(&dir), 0, "the directory is removed at exit");
    std::fs::remove_dir(&dir).unwrap();
}
