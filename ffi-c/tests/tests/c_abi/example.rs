//! examples/scatter builds as described in its Makefile: by scorecc, and by plain compilers with
//! pkg-config. A scenario (tests/scenarios/compilers.rs) runs it under scrun.

use std::path::PathBuf;
use std::process::Command;

use score_c_tests::{
    TempDir, all_output, build_dir, compilers, ffi_c, include, run_ok, standard, stdout,
};

fn example() -> PathBuf {
    ffi_c().with_file_name("examples").join("scatter")
}

/// Without scrun the program is one node, and reports that.
fn assert_runs_without_scrun(program: PathBuf) {
    let output = Command::new(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(all_output(&output), "Two or more nodes required to run.\n");
}

/// A copy of the example to build in.
fn copy_example(name: &str) -> TempDir {
    let scratch = TempDir::new(name);
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
                    run_ok(
                        Command::new(compiler)
                            .arg(standard(compiler, names))
                            .args(["-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-pedantic"])
                            .args(["-Werror", "-fsyntax-only", "-I"])
                            .arg(include())
                            .arg(&file),
                    );
                }
            }
        }
    }
}

#[test]
fn make_builds_it_with_scorecc() {
    let scratch = copy_example("make");
    let scorecc = format!("CC={}", build_dir().join("scorecc").display());
    let output = run_ok(Command::new("make").arg(scorecc).current_dir(scratch.file(".")));
    assert!(output.stderr.is_empty(), "{}", all_output(&output));
    assert_runs_without_scrun(scratch.file("scatter"));
}

#[test]
fn make_builds_it_with_plain_compilers_and_pkg_config() {
    if Command::new("pkg-config").arg("--version").output().is_err() {
        return score_tests::skip("pkg-config files", "pkg-config is not installed");
    }
    for compiler in compilers(false) {
        let scratch = copy_example(&format!("pkg-config-{compiler}"));
        // An installed tree: PREFIX/include, PREFIX/lib and the .pc files with PREFIX filled in.
        let prefix = scratch.file("prefix");
        std::fs::create_dir_all(prefix.join("lib/pkgconfig")).unwrap();
        std::os::unix::fs::symlink(include(), prefix.join("include")).unwrap();
        for library in ["libpm.so", "libpm.so.2", "libscore.so", "libscore.so.6"] {
            let to = prefix.join("lib").join(library);
            std::os::unix::fs::symlink(build_dir().join(library), to).unwrap();
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
        run_ok(
            Command::new("make")
                .arg(format!("CC={compiler}"))
                .arg(format!("SCORE={}", flags.trim()))
                .current_dir(scratch.file(".")),
        );
        assert_runs_without_scrun(scratch.file("scatter"));
    }
}
