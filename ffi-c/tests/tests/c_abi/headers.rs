//! The headers match the libraries, and compile without a warning in every supported standard.

use std::process::Command;

use score_c_tests::{
    TempDir, compilers, declared_names, exported_names, include, run_ok, source, standard,
};

const HEADERS: [&str; 8] = [
    "pm.h",
    "score.h",
    "sc.h",
    "score_resource.h",
    "score_options.h",
    // The next two headers declare messages, and no function.
    "score_tools.h",
    "score_tools_numbers.h",
    "score_toolctl.h",
];
/// glibc's header of the callbacks of libthread_db.
const CALLBACKS: &str = "/usr/include/proc_service.h";
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Wshadow"];

/// Texts that include the headers: each header alone, but twice, and all headers together.
fn inclusions() -> Vec<String> {
    let mut texts: Vec<String> =
        HEADERS.iter().map(|header| format!("#include <{header}>\n").repeat(2)).collect();
    texts.push(HEADERS.iter().map(|header| format!("#include <{header}>\n")).collect());
    texts
}

fn compile(compiler: &str, standard: &str, language: &str) {
    let scratch = TempDir::new(&format!("headers-{compiler}{standard}"));
    for (index, text) in inclusions().into_iter().enumerate() {
        let file = scratch.file(&format!("{index}.c"));
        std::fs::write(&file, text + "int main(void) { return 0; }\n").unwrap();
        run_ok(
            Command::new(compiler)
                .arg(standard)
                .args(STRICT)
                .arg("-I")
                .arg(include())
                .args(["-fsyntax-only", "-x", language])
                .arg(&file),
        );
    }
}

#[test]
fn each_header_alone_and_all_together_are_clean_c() {
    for compiler in compilers(false) {
        for names in [&["c99"][..], &["c11"], &["c17"], &["c23", "c2x"], &["gnu23", "gnu2x"]] {
            compile(compiler, &standard(compiler, names), "c");
        }
    }
}

#[test]
fn each_header_alone_and_all_together_are_clean_cxx() {
    for compiler in compilers(true) {
        for name in ["c++17", "c++20"] {
            compile(compiler, &format!("-std={name}"), "c++");
        }
    }
}

#[test]
fn the_declared_types_match_the_manual() {
    for compiler in compilers(false) {
        for names in [&["c99"][..], &["c23", "c2x"]] {
            run_ok(
                Command::new(compiler)
                    .arg(standard(compiler, names))
                    .args(STRICT)
                    .arg("-I")
                    .arg(include())
                    .args(["-fsyntax-only"])
                    .arg(source("signatures.c")),
            );
        }
    }
}

// Promise (messages): The C headers declare exactly what the libraries export.
#[test]
fn pm_h_declares_exactly_the_exports_of_libpm() {
    assert_eq!(declared_names("pm.h"), exported_names("pm.map"));
}

// Promise of `pm_h_declares_exactly_the_exports_of_libpm`.
#[test]
fn the_headers_of_libscore_declare_exactly_its_exports() {
    let mut all: Vec<String> =
        HEADERS[1..5].iter().flat_map(|header| declared_names(header)).collect();
    all.sort();
    all.dedup();
    assert_eq!(all, exported_names("score.map"));
}

// Promise of `pm_h_declares_exactly_the_exports_of_libpm`.
#[test]
fn score_toolctl_h_and_proc_service_h_declare_exactly_the_exports_of_libscoretools() {
    let mut all = declared_names("score_toolctl.h");
    all.extend(declared_names(CALLBACKS));
    all.sort();
    assert_eq!(all, exported_names("scoretools.map"));
}
