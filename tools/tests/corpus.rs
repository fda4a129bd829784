//! Replays the inputs that fuzzing has kept. The codec of tool control must not panic, and each
//! decoded message must be the same after it is encoded and decoded again.

use std::fs;
use std::path::Path;

#[test]
fn no_committed_input_makes_the_codec_panic() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/tool_messages");
    let mut inputs = 0;
    for entry in fs::read_dir(directory).unwrap() {
        score_tools::wire::fuzz(&fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 28, "{inputs} inputs");
}
