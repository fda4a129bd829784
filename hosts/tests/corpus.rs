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

#[test]
fn database_seeds_do_no_harm() {
    replay("database", score_hosts::fuzz_database);
}

#[test]
fn expression_seeds_do_no_harm() {
    replay("expression", score_hosts::fuzz_expression);
}

/// Seeds cut short, doubled and with bytes changed: a small fuzzer that every toolchain can run.
#[test]
fn seeds_that_were_tampered_with_do_no_harm_either() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for name in ["database", "expression"] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("doubling") || path.ends_with("includes_itself") {
                continue; // Slow by design, and bounded: once is enough.
            }
            let seed = std::fs::read(path).unwrap();
            for _ in 0..40 {
                let mut bytes = seed.clone();
                for _ in 0..3 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let at = random as usize % (bytes.len() + 1);
                    match random >> 60 {
                        0..=3 => bytes.truncate(at),
                        4..=7 => bytes.insert(at, b"+~:@^[]=,#\\/\n "[random as usize >> 8 & 13]),
                        8..=11 => bytes.extend_from_within(at..),
                        _ => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1),
                    }
                }
                if name == "database" {
                    score_hosts::fuzz_database(&bytes);
                } else {
                    score_hosts::fuzz_expression(&bytes);
                }
            }
        }
    }
}
