//! What fuzzing has kept is read again by every test run: no input makes a decoder panic.

use std::fs;
use std::path::Path;

#[test]
fn no_committed_frame_makes_a_decoder_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/frames");
    let mut inputs = 0;
    for entry in fs::read_dir(folder).unwrap() {
        score_proto::frame::fuzz(&fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 10, "{inputs} inputs");
}
