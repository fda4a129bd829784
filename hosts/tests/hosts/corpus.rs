//! Replays the committed seeds of the fuzz targets. None may cause a panic.

use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut seed_count = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        target(&std::fs::read(entry.unwrap().path()).unwrap());
        seed_count += 1;
    }
    assert!(seed_count >= 10, "{name}: only {seed_count} seeds");
}

// Promise of `option_seeds_cause_no_panic`.
#[test]
fn database_seeds_do_no_harm() {
    replay("database", score_hosts::fuzz_database);
}

// Promise of `option_seeds_cause_no_panic`.
#[test]
fn expression_seeds_do_no_harm() {
    replay("expression", score_hosts::fuzz_expression);
}

/// Truncates, doubles and changes the seeds. This is a small fuzzer that runs with every toolchain.
#[test]
fn mutated_seeds_do_no_harm() {
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
                    let index = random as usize % (bytes.len() + 1);
                    match random >> 60 {
                        0..=3 => bytes.truncate(index),
                        4..=7 => {
                            bytes.insert(index, b"+~:@^[]=,#\\/\n "[random as usize >> 8 & 13])
                        }
                        8..=11 => bytes.extend_from_within(index..),
                        _ => bytes.get_mut(index).into_iter().for_each(|byte| *byte ^= 1),
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
