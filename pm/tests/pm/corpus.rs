//! Decodes the inputs that fuzzing has found. No attach message does harm, and an accepted message
//! is encoded to the same bytes.

use std::fs;
use std::path::Path;

use score_pm::testing::AttachMessage;

// Promise of `option_seeds_cause_no_panic`.
#[test]
fn no_committed_attach_message_does_harm() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/attach");
    let (mut accepted, mut refused) = (0, 0);
    for entry in fs::read_dir(directory).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        match AttachMessage::decode(&bytes) {
            Ok(attach) => {
                assert_eq!(attach.encode().as_slice(), bytes);
                accepted += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(accepted >= 3 && refused >= 5, "{accepted} accepted, {refused} refused");
}
