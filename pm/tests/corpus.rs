//! What fuzzing has kept is read again by every test run: no attach message does harm, and one
//! that is accepted says nothing but what it holds.

use std::fs;
use std::path::Path;

use score_pm::segment::attach::AttachMessage;

#[test]
fn no_committed_attach_message_does_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/attach");
    let (mut accepted, mut refused) = (0, 0);
    for entry in fs::read_dir(folder).unwrap() {
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
