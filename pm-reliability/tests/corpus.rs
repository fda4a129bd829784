//! Replays the packets that fuzzing has kept: no packet may make the parser panic.

use std::fs;
use std::path::Path;

#[test]
fn no_committed_packet_makes_the_parser_panic() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/packets");
    let (mut accepted, mut refused) = (0, 0);
    for entry in fs::read_dir(directory).unwrap() {
        let packet = fs::read(entry.unwrap().path()).unwrap();
        score_pm_reliability::packet_header::fuzz(&packet);
        let parsed = score_pm_reliability::packet_header::Header::parse(&packet);
        *(if parsed.is_ok() { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(accepted >= 8 && refused >= 10, "{accepted} accepted, {refused} refused");
}
