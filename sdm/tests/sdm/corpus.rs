//! Replays the committed inputs of fuzzing: no line makes the parser panic.

use std::fs;
use std::path::Path;

use score_sdm::gdb::mi::{fuzz, parse_line};

#[test]
fn no_committed_line_of_gdb_makes_the_reader_panic() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/mi");
    let (mut accepted, mut refused) = (0, 0);
    for entry in fs::read_dir(directory).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        fuzz(&bytes);
        let is_read = bytes.split(|byte| *byte == b'\n').all(|line| parse_line(line).is_ok());
        *(if is_read { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(accepted >= 5 && refused >= 5, "{accepted} accepted, {refused} refused");
}
