//! Files that are damaged or forged: the corpus of the fuzz target `modules`, and random damage.
//! These tests are a program of their own, because they limit the memory of the process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use score_stacks::fuzz;

/// Time limit for a file, which is far longer than necessary, even on a busy machine without
/// optimization.
const FILE_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of test cases. It is small by default, and `PROPTEST_CASES` sets it.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

fn corpus() -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/modules");
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn the_corpus_of_modules_does_no_harm() {
    let files = corpus();
    assert!(files.len() >= 5);
    for (path, bytes) in files {
        let started_at = Instant::now();
        fuzz(&bytes);
        assert!(started_at.elapsed() < FILE_TIMEOUT, "{}", path.display());
    }
}

/// 20,000 units that contain all addresses and share a line program of 200,000 rows. Reading it for
/// each unit would need 96 GB.
const FORGED_UNITS: &str = "
    .section .debug_abbrev
    .byte 1, 0x11, 0, 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0, 0, 0
    .section .debug_info
    .rept 20000
    .long 2f - 1f
1:  .short 4
    .long 0
    .byte 8, 1
    .quad 0, -1
    .long 0
2:
    .endr
    .section .debug_line
    .long 4f - 3f
3:  .short 4
    .long 6f - 5f
5:  .byte 1, 1, 1, -5, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1
    .byte 0
    .ascii \"a.c\\0\"
    .byte 0, 0, 0, 0
6:
    .rept 200000
    .byte 0x21
    .endr
    .byte 0, 1, 1
4:
    .text
    .globl _start
_start: nop
";

/// A million nested inlined functions. A parser that calls itself for each of them would overrun
/// its stack.
const NESTED_FUNCTIONS: &str = "
    .section .debug_abbrev
    .byte 1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0, 0
    .byte 2, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0, 0
    .byte 3, 0x1d, 1, 0, 0, 0
    .section .debug_info
    .long 2f - 1f
1:  .short 4
    .long 0
    .byte 8, 1
    .quad 0, -1
    .byte 2
    .quad 0, -1
    .rept 1000000
    .byte 3
    .endr
    .rept 1000002
    .byte 0
    .endr
2:
    .text
    .globl _start
_start: nop
";

/// Reads a forged program. Returns the time that it took, or `None` if gcc is not installed.
fn fuzz_assembly(name: &str, source: &str) -> Option<Duration> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (path, program) = (directory.join(format!("{name}.s")), directory.join(name));
    fs::write(&path, source).unwrap();
    let mut compiler = std::process::Command::new("gcc");
    match compiler.args(["-shared", "-nostdlib", "-o"]).arg(&program).arg(&path).output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
        }
        Err(_) => {
            eprintln!("skipped: gcc is not installed");
            return None;
        }
    }
    let bytes = fs::read(&program).unwrap();
    let started_at = Instant::now();
    fuzz(&bytes);
    Some(started_at.elapsed())
}

#[test]
fn forged_debug_information_uses_bounded_time_and_memory() {
    let Some(elapsed) = fuzz_assembly("forged-units", FORGED_UNITS) else { return };
    assert!(elapsed < FILE_TIMEOUT, "{elapsed:?}");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = peak.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 2 << 20, "{kib} KiB");
}

#[test]
fn forged_functions_within_functions_do_not_overrun_the_stack() {
    let Some(elapsed) = fuzz_assembly("nested-functions", NESTED_FUNCTIONS) else { return };
    assert!(elapsed < FILE_TIMEOUT, "{elapsed:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases())
    })]

    #[test]
    fn damaged_modules_do_no_harm(
        file in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        len in any::<Option<prop::sample::Index>>(),
    ) {
        let files = corpus();
        let mut bytes = files[file.index(files.len())].1.clone();
        for (at, value) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        if let Some(len) = len {
            bytes.truncate(len.index(bytes.len() + 1));
        }
        let started_at = Instant::now();
        fuzz(&bytes);
        prop_assert!(started_at.elapsed() < FILE_TIMEOUT);
    }
}
