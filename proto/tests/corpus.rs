//! Replays the inputs that fuzzing has kept, in every test run. No input may make a decoder panic.

use std::fs;
use std::path::Path;

fn replay(directory: &str, min_count: usize, target: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(directory);
    let mut inputs = 0;
    for entry in fs::read_dir(directory).unwrap() {
        target(&fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs >= min_count, "{inputs} inputs");
}

// Promise of `option_seeds_cause_no_panic`.
#[test]
fn no_committed_frame_makes_a_decoder_panic() {
    replay("frames", 10, score_proto::all_messages::fuzz);
}

#[test]
fn no_committed_set_of_nodes_makes_a_decoder_panic() {
    replay("nodesets", 6, score_proto::nodeset::fuzz);
}
