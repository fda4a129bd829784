//! Hostile input: the message in an attach descriptor.
#![no_main]

use score_pm::testing::AttachMessage;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(attach) = AttachMessage::decode(bytes) {
        assert_eq!(attach.encode().as_slice(), bytes);
    }
});
