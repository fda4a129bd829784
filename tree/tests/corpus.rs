//! Replays the inputs that fuzzing has kept. No input makes a link panic or grow.

use std::fs;
use std::path::Path;

#[test]
fn no_committed_input_makes_a_link_panic_or_grow() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/link");
    let mut inputs = 0;
    for entry in fs::read_dir(directory).unwrap() {
        score_tree::link::fuzz(&fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 8, "{inputs} inputs");
}
