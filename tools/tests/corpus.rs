//! Every test run replays the inputs that fuzzing has kept: no input makes the codec of tool
//! control panic, and what can be read is written and read the same.

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
