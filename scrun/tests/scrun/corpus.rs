//! Replays the committed seeds of the fuzz targets: none may panic.

use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut seen = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        target(&std::fs::read(entry.unwrap().path()).unwrap());
        seen += 1;
    }
    assert!(seen >= 10, "{name}: only {seen} seeds");
}

// Promise (faults): No committed hostile input harms a parser.
#[test]
fn option_seeds_cause_no_panic() {
    replay("options", scrun::fuzz_options);
}

// Promise of `option_seeds_cause_no_panic`.
#[test]
fn pipeline_seeds_cause_no_panic() {
    replay("pipeline", scrun::fuzz_pipeline);
}

// Promise of `option_seeds_cause_no_panic`.
#[test]
fn elf_seeds_cause_no_panic() {
    replay("elf", scrun::fuzz_elf);
}
