//! examples/scatter builds as its Makefile says: by scorecc, and by plain compilers with
//! pkg-config. That it runs under scrun is a scenario (tests/scenarios/compilers.rs).
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;

use score_c_tests::{Scratch, both, built, compilers, ffi_c, include, ok, standard, stdout};

fn example() -> PathBuf {
    ffi_c().with_file_name("examples").join("scatter")
}

/// Without scrun it is one node, and says so.
fn runs_alone(program: PathBuf) {
    let output = Command::new(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(both(&output), "Two or more nodes required to run.\n");
}

/// A copy of the example to build in.
fn copied(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    for entry in std::fs::read_dir(example()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "scatter" {
            std::fs::copy(entry.path(), scratch.file(entry.file_name().to_str().unwrap())).unwrap();
        }
    }
    scratch
}

#[test]
fn each_file_is_clean_in_c99_and_c23() {
    for compiler in compilers(false) {
        for names in [&["c99"][..], &["c23", "c2x"]] {
            for entry in std::fs::read_dir(example()).unwrap() {
                let file = entry.unwrap().path();
                if file.extension().is_some_and(|end| end == "c") {
                    ok(Command::new(compiler)
                        .arg(standard(compiler, names))
                        .args(["-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-pedantic"])
                        .args(["-Werror", "-fsyntax-only", "-I"])
                        .arg(include())
                        .arg(&file));
                }
            }
        }
    }
}

#[test]
fn make_builds_it_with_scorecc() {
    let scratch = copied("make");
    let scorecc = format!("CC={}", built().join("scorecc").display());
    let output = ok(Command::new("make").arg(scorecc).current_dir(scratch.file(".")));
    assert!(output.stderr.is_empty(), "{}", both(&output));
    runs_alone(scratch.file("scatter"));
}

#[test]
fn make_builds_it_with_plain_compilers_and_pkg_config() {
    if Command::new("pkg-config").arg("--version").output().is_err() {
        return score_tests::skip("pkg-config files", "pkg-config is not installed");
    }
    for compiler in compilers(false) {
        let scratch = copied(&format!("pkg-config-{compiler}"));
        // An installed tree: PREFIX/include, PREFIX/lib and the .pc files with PREFIX filled in.
        let prefix = scratch.file("prefix");
        std::fs::create_dir_all(prefix.join("lib/pkgconfig")).unwrap();
        std::os::unix::fs::symlink(include(), prefix.join("include")).unwrap();
        for library in ["libpm.so", "libpm.so.2", "libscore.so", "libscore.so.6"] {
            let to = prefix.join("lib").join(library);
            std::os::unix::fs::symlink(built().join(library), to).unwrap();
        }
        for name in ["pm.pc", "score.pc"] {
            let template = ffi_c().join("pkgconfig").join(format!("{name}.in"));
            let text = std::fs::read_to_string(template).unwrap();
            let text = text.replace("@PREFIX@", prefix.to_str().unwrap());
            let text = text.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
            assert!(!text.contains('@'), "{text}");
            std::fs::write(prefix.join("lib/pkgconfig").join(name), text).unwrap();
        }
        let flags = stdout(
            Command::new("pkg-config")
                .args(["--cflags", "--libs", "score"])
                .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
        );
        ok(Command::new("make")
            .arg(format!("CC={compiler}"))
            .arg(format!("SCORE={}", flags.trim()))
            .current_dir(scratch.file(".")));
        runs_alone(scratch.file("scatter"));
    }
}
