//! Programs that do not behave like gdb: the rank gets an error, and no process is left running.
//! This test is a program of its own, because it writes a script and executes it at once. A child
//! of another test could hold the script open.

use std::time::{Duration, Instant};

use score_sdm::backend::Backend;
use score_sdm::gdb::Gdb;
use score_sdm::message::{DebugEvent, Operation};
use score_tools::merge::CommandId;

/// The error of a start with this program as gdb.
fn error_of(program: &str) -> String {
    let mut gdb = Gdb::with_program(0, program);
    let (executable, arguments) = ("/bin/true".to_owned(), Vec::new());
    let start = Operation::Start { executable, arguments, stop_in_main: true };
    let started_at = Instant::now();
    gdb.begin(CommandId(1), start, Duration::ZERO);
    loop {
        match gdb.progress(started_at.elapsed()).pop() {
            Some((CommandId(1), DebugEvent::Failed(text))) => {
                assert!(gdb.progress(started_at.elapsed()).is_empty(), "one answer");
                assert_eq!(gdb.descriptors().len(), 1, "only the terminal is left");
                return text;
            }
            Some(other) => panic!("{other:?}"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn a_program_that_is_missing_prints_rubbish_or_ends_at_once_is_an_error_of_the_rank() {
    let missing = error_of("/nonexistent/gdb");
    assert!(missing.contains("cannot start /nonexistent/gdb: No such file"), "{missing}");
    let rubbish = error_of("echo");
    assert!(rubbish.starts_with("gdb printed \"-q -nx --interpreter=mi3"), "{rubbish}");
    let ended = error_of("false");
    assert_eq!(ended, "gdb has ended: exit status: 1");
    // A line without end is cut at the maximum length.
    let folder = std::env::temp_dir().join(format!("sdm-bad-gdb-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let script = folder.join("gdb");
    std::fs::write(&script, "#!/bin/sh\nexec tr '\\0' x < /dev/zero\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let endless = error_of(script.to_str().unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(endless.ends_with("a line of GDB/MI has more than 1048576 bytes"), "{endless}");
}
