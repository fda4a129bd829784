//! Output goes to a file and input comes from a file, as table 1.5 of the manual describes.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::{TestEnv, skip};

#[test]
fn only_the_first_process_of_a_host_writes_to_an_absolute_path() {
    let env = TestEnv::new();
    let file = env.dir().join("out");
    let name = file.to_str().unwrap();
    let job = env.scrun(&["-nodes=3", "system", "sh", "-c", "echo $SCORE_SELF_NODE", "=:", name]);
    assert_eq!(job.run().expect_code(0).text(), "");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "0\n");
}

#[test]
fn append_has_two_spellings() {
    let env = TestEnv::new();
    let file = env.dir().join("log");
    let name = file.to_str().unwrap();
    for (operator, word) in [("=:", "one"), ("=::", "two"), (":=:", "three")] {
        let _ =
            env.scrun(&["-nodes=1", "system", "echo", word, operator, name]).run().expect_code(0);
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "one\ntwo\nthree\n");
}

#[test]
fn every_node_reads_input_from_an_absolute_path() {
    let env = TestEnv::new();
    let file = env.write_file("in", "three short words\n");
    let job = env.scrun(&["-nodes=3", "system", "wc", "-w", ":=", file.to_str().unwrap()]);
    assert_eq!(job.run().expect_code(0).sorted_lines(), ["3", "3", "3"]);
}

#[test]
fn a_missing_input_file_is_named_with_its_host() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=2", "system", "cat", ":=", "/no/such/file"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.assert_stderr(&["/no/such/file"]);
    let outcome = env.scrun(&["-nodes=2", "system", "cat", ":=", "nowhere"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.assert_stderr(&["nowhere"]);
}

#[test]
fn an_output_file_that_cannot_be_opened_is_named() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=2", "system", "echo", "x", "=:", "/no/such/folder/f"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.assert_stderr(&["/no/such/folder/f"]);
}

/// A mounted file system whose server never answers.
struct HangingMount {
    folder: PathBuf,
    _server: File,
}

impl HangingMount {
    /// Mounts the file system. If this is not possible, returns `None` and prints a skip.
    fn mount(env: &TestEnv) -> Option<Self> {
        let folder = env.dir().join("hanging");
        std::fs::create_dir(&folder).unwrap();
        let server = File::options().read(true).write(true).open("/dev/fuse");
        let mounted = server.map_err(|error| error.to_string()).and_then(|server| {
            let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some("hanging"), &folder, Some("fuse"), flags, Some(data.as_str()))
                .map_err(|error| error.to_string())?;
            Ok(server)
        });
        match mounted {
            Ok(server) => Some(Self { folder, _server: server }),
            Err(reason) => {
                skip("a_file_system_that_hangs", &format!("no FUSE file system: {reason}"));
                None
            }
        }
    }
}

impl Drop for HangingMount {
    fn drop(&mut self) {
        let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
    }
}

// Promise (output and input): A redirection to a file system that hangs blocks only its own node,
// and ^C still works.
#[test]
fn a_file_system_that_hangs_blocks_neither_the_other_nodes_nor_an_interrupt() {
    let env = TestEnv::new();
    let Some(hanging) = HangingMount::mount(&env) else { return };
    let file = hanging.folder.join("file");
    for (operator, nodes_up) in [("=:", 1), (":=", 0)] {
        let script = "echo up $SCORE_SELF_NODE >&2; exec sleep 300";
        let args = ["-nodes=2", "system", "sh", "-c", script, operator, file.to_str().unwrap()];
        let job = env.scrun(&args).start();
        let started_at = Instant::now();
        // Only the first process of a host opens an output file with an absolute name. Each process
        // opens an input file.
        while job.stderr().matches("up 1").count() < nodes_up {
            assert!(started_at.elapsed() < Duration::from_secs(30), "{}", job.stderr());
            sleep(Duration::from_millis(10));
        }
        let is_opening = |process: &Process| {
            let wchan_path = format!("/proc/{}/wchan", process.pid);
            std::fs::read_to_string(wchan_path).is_ok_and(|name| name.contains("fuse"))
        };
        env.wait_for_process("process that hangs", is_opening);
        job.signal(Signal::SIGINT);
        let outcome = job.wait();
        // The signal kills scrun, as its shell expects.
        assert!([130, -2].contains(&outcome.code), "{outcome}");
        assert!(!outcome.stderr.contains("up 0"), "{outcome}");
        env.assert_clean();
    }
}
