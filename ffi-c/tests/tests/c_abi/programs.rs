//! C programs with the real libraries: every function of pm.h, with every compiler, linked both
//! ways.

use std::path::Path;
use std::process::Command;

use score_c_tests::{TempDir, build_dir, compilers, include, run_ok, source, stdout};

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-g"];

/// Compiles a program. The words of `library` follow the name of the source file.
fn compile(compiler: &str, name: &str, library: &[String], to: &Path) {
    let mut command = Command::new(compiler);
    command.args(WARNINGS).arg("-I").arg(include()).arg("-o").arg(to);
    if compiler.ends_with("++") {
        command.args(["-x", "c++"]);
    }
    run_ok(command.arg(source(name)).args(["-x", "none"]).args(library));
}

fn shared() -> Vec<String> {
    let directory = build_dir().display();
    vec![format!("-L{directory}"), format!("-Wl,-rpath,{directory}"), "-lpm".into()]
}

fn archive() -> Vec<String> {
    vec![
        format!("{}/libpm.a", build_dir().display()),
        "-lpthread".into(),
        "-ldl".into(),
        "-lm".into(),
    ]
}

fn assert_conforms(library: &[String], name: &str) {
    for compiler in compilers(false).into_iter().chain(compilers(true)) {
        let scratch = TempDir::new(&format!("{name}-{compiler}"));
        let program = scratch.file("conformance");
        compile(compiler, "conformance.c", library, &program);
        assert_eq!(stdout(&mut Command::new(&program)), "conforms\n", "{compiler}");
    }
}

// Promise of `every_misuse_fails_as_the_manual_page_documents`.
#[test]
fn every_function_of_libpm_so_conforms_to_its_manual_page() {
    assert_conforms(&shared(), "shared");
}

#[test]
fn every_function_of_libpm_a_conforms_to_its_manual_page() {
    assert_conforms(&archive(), "archive");
}

// Promise of `a_flood_of_one_node_does_not_starve_another_node`.
#[test]
fn two_nodes_over_ethernet_exchange_messages_sleep_and_fork() {
    for (library, name) in [(shared(), "shared"), (archive(), "archive")] {
        let scratch = TempDir::new(&format!("ethernet-{name}"));
        let program = scratch.file("ethernet");
        compile("cc", "ethernet.c", &library, &program);
        assert_eq!(stdout(&mut Command::new(&program)), "conforms\n");
    }
}

#[test]
fn libpm_so_can_be_opened_at_run_time_and_has_its_version() {
    let scratch = TempDir::new("dynamic");
    let program = scratch.file("dynamic");
    compile("cc", "dynamic.c", &["-ldl".into()], &program);
    let library = build_dir().join("libpm.so.2");
    assert_eq!(stdout(Command::new(&program).arg(library)), "composite shmem\n");
}

#[test]
fn debug_output_that_cannot_be_written_does_not_end_the_program() {
    let scratch = TempDir::new("full");
    let program = scratch.file("words");
    compile("cc", "debug_output.c", &shared(), &program);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(&program);
    assert_eq!(stdout(command.env("PM_DEBUG", "3").stderr(full)), "ENODEV\n");
    let output = run_ok(command.stderr(std::process::Stdio::piped()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("carrier-pigeon"), "{output:?}");
}
