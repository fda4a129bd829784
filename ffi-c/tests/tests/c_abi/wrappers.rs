//! scorecc and the other compiler wrappers, and score_compiler_list, as in their manual pages.

use std::path::Path;
use std::process::{Command, Output};

use score_c_tests::{TempDir, all_output, build_dir, compilers, run_ok, source, stdout};

/// A wrapper, without the variables for compilers in the caller's environment.
fn wrapper(name: &str) -> Command {
    let mut command = Command::new(build_dir().join(name));
    command.env_remove("SCORE_BUILD_COMPILERS").env_remove("SCORE_COMPILERS");
    command
}

fn dynamic_section(program: &Path) -> String {
    stdout(Command::new("readelf").arg("-dW").arg(program))
}

/// Compiles standalone.c with a wrapper and these options, and runs it without scrun.
fn compile_and_run(scratch: &TempDir, name: &str, options: &[&str]) -> String {
    let program = scratch.file("program");
    let language = if name == "scorec++" { ["-x", "c++"] } else { ["-x", "c"] };
    let mut command = wrapper(name);
    run_ok(
        command.args(options).args(language).arg(source("standalone.c")).arg("-o").arg(&program),
    );
    assert_eq!(stdout(&mut Command::new(&program)), "node 0 of 1\n", "{name} {options:?}");
    dynamic_section(&program)
}

#[test]
fn by_default_libscore_is_linked_statically_and_libc_dynamically() {
    let scratch = TempDir::new("static");
    let each = [("scorecc", compilers(false)), ("scorec++", compilers(true))];
    for (name, installed) in each {
        for compiler in ["gnu", "clang"].into_iter().take(installed.len()) {
            let section =
                compile_and_run(&scratch, name, &["-Wall", "-Werror", "-compiler", compiler]);
            assert!(section.contains("[libc.so.6]"), "{section}");
            assert!(!section.contains("libscore") && !section.contains("libpm"), "{section}");
        }
    }
}

#[test]
fn nostatic_links_the_shared_objects_and_finds_them_by_an_rpath() {
    let scratch = TempDir::new("nostatic");
    for name in ["scorecc", "scorec++"] {
        let section = compile_and_run(&scratch, name, &["-nostatic"]);
        assert!(section.contains("[libscore.so.6]"), "{section}");
        assert!(section.contains(build_dir().to_str().unwrap()), "{section}");
    }
}

#[test]
fn scorecc_compiles_and_scoreld_links() {
    let scratch = TempDir::new("scoreld");
    let (object, program) = (scratch.file("alone.o"), scratch.file("alone"));
    run_ok(wrapper("scorecc").arg("-c").arg(source("standalone.c")).arg("-o").arg(&object));
    run_ok(wrapper("scoreld").arg(&object).arg("-o").arg(&program));
    assert_eq!(stdout(&mut Command::new(&program)), "node 0 of 1\n");
}

#[test]
fn fortran_programs_call_the_c_functions() {
    if Command::new("gfortran").arg("--version").output().is_err() {
        return score_tests::skip("scoref77 and scoref90", "gfortran is not installed");
    }
    let scratch = TempDir::new("fortran");
    let program = scratch.file("program");
    run_ok(
        wrapper("scoref90")
            .current_dir(scratch.file("."))
            .arg(source("alone.f90"))
            .arg("-o")
            .arg(&program),
    );
    assert_eq!(stdout(&mut Command::new(&program)).trim(), "node 0");
    run_ok(wrapper("scoref77").arg(source("alone.f")).arg("-o").arg(&program));
    assert_eq!(stdout(&mut Command::new(&program)).trim(), "node 0");
}

#[test]
fn show_prints_the_compilers_command_line_and_runs_it() {
    let scratch = TempDir::new("show");
    let object = scratch.file("alone.o");
    let output = run_ok(
        wrapper("scorecc")
            .args(["-show", "-O1", "-c"])
            .arg(source("standalone.c"))
            .arg("-o")
            .arg(&object),
    );
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.starts_with("gcc -O1 -c ") && line.contains(" -I"), "{line}");
    assert!(object.is_file());
}

/// Runs a wrapper with these options and these environment variables.
fn run_wrapper(name: &str, options: &[&str], env: &[(&str, &str)]) -> Output {
    wrapper(name).args(options).envs(env.iter().copied()).output().unwrap()
}

#[test]
fn the_compiler_is_chosen_by_option_then_environment_then_list() {
    let chosen_compiler = |options: &[&str], env: &[(&str, &str)]| {
        let output = run_wrapper("scorecc", &[&["-show", "--version"], options].concat(), env);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        line.split(' ').next().unwrap_or_default().to_string()
    };
    assert_eq!(chosen_compiler(&[], &[]), "gcc");
    assert_eq!(chosen_compiler(&["-compiler=clang"], &[]), "clang");
    assert_eq!(
        chosen_compiler(&["-compiler", "clang"], &[("SCORE_BUILD_COMPILERS", "gnu")]),
        "clang"
    );
    assert_eq!(chosen_compiler(&[], &[("SCORE_BUILD_COMPILERS", "clang,scorecc=gnu")]), "gcc");
    assert_eq!(chosen_compiler(&[], &[("SCORE_BUILD_COMPILERS", "scorec++=gnu clang")]), "clang");
    assert_eq!(chosen_compiler(&["-script", "scorec++"], &[]), "g++");
    assert_eq!(chosen_compiler(&["-compiler-path", "/bin/echo"], &[]), "/bin/echo");
    assert_eq!(
        chosen_compiler(&["-compiler=clang"], &[("SCORE_COMPILERS", "/bin/echo")]),
        "/bin/echo"
    );
    let both_set = [("SCORE_COMPILERS", "scorecc=/bin/true"), ("SCORE_BUILD_COMPILERS", "clang")];
    assert_eq!(chosen_compiler(&[], &both_set), "/bin/true");
}

#[test]
fn an_unsupported_option_is_one_line_that_names_the_word() {
    for (options, named) in [
        (&["-scash", "a.c"][..], "-scash"),
        (&["a.c", "-scash_smp"], "-scash_smp"),
        (&["-compiler", "tendra", "a.c"], "tendra"),
        (&["-script", "scorecp", "a.c"], "scorecp"),
        (&["-compiler"], "-compiler"),
    ] {
        let output = run_wrapper("scorecc", options, &[]);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        let text = all_output(&output);
        assert!(text.lines().count() == 1 && text.contains(named), "{options:?}: {text}");
    }
    let output = run_wrapper("scorecc", &["-compiler-path=/nowhere/cc", "a.c"], &[]);
    assert_eq!(output.status.code(), Some(127));
    assert!(all_output(&output).contains("/nowhere/cc"));
}

#[test]
fn the_exit_code_is_the_compilers() {
    let output = run_wrapper("scorecc", &["-compiler-path", "/bin/false"], &[]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn nockpt_is_accepted_with_a_note() {
    let scratch = TempDir::new("nockpt");
    for option in ["-nockpt", "-nocheckpoint"] {
        let mut command = wrapper("scorecc");
        let output = run_ok(
            command
                .args([option, "-c"])
                .arg(source("standalone.c"))
                .arg("-o")
                .arg(scratch.file("a.o")),
        );
        assert!(all_output(&output).contains(option), "{}", all_output(&output));
    }
}

#[test]
fn an_installed_tree_is_used_from_its_own_location() {
    let scratch = TempDir::new("prefix");
    let copy = |from: &Path, to: &str| {
        let to = scratch.file(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, &to).unwrap();
        to
    };
    let scorecc = copy(&build_dir().join("scorecc"), "bin/scorecc");
    copy(&build_dir().join("libscore.a"), "lib/libscore.a");
    for header in ["pm.h", "score.h", "sc.h"] {
        copy(&score_c_tests::include().join(header), &format!("include/{header}"));
    }
    std::fs::create_dir_all(scratch.file("etc/compilers")).unwrap();
    std::fs::write(scratch.file("etc/compilers/site"), "scorecc own=cc gnu\n").unwrap();
    let program = scratch.file("program");
    let output = run_ok(
        Command::new(&scorecc).arg("-show").arg(source("standalone.c")).arg("-o").arg(&program),
    );
    let line = all_output(&output);
    let lib = format!(" -L{} ", scratch.file("lib").display());
    assert!(line.starts_with("cc ") && line.contains(&lib), "{line}");
    assert_eq!(stdout(&mut Command::new(&program)), "node 0 of 1\n");

    std::fs::write(scratch.file("etc/compilers/site"), "\nscorecc new\n").unwrap();
    let output = Command::new(&scorecc).arg("a.c").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(all_output(&output).contains("etc/compilers/site:2: new"), "{}", all_output(&output));
}

#[test]
fn score_compiler_list_prints_the_values_of_the_compiler_option() {
    let list = |options: &[&str]| stdout(wrapper("score_compiler_list").args(options));
    assert!(list(&["-script", "scorecc"]).starts_with("gnu\nclang\n"));
    assert_eq!(list(&["-script", "scorec++", "-default", "-path"]), "gnu:g++\n");
    assert!(list(&["-script", "scorecc", "-check"]).starts_with("gnu ok\n"));
    assert_eq!(list(&["-all", "-path"]), list(&["-env", "score", "-path"]));
    for name in list(&["-script", "scorecc", "-noalias"]).lines() {
        run_ok(wrapper("scorecc").args(["-compiler", name, "--version"]));
    }
    let output = wrapper("score_compiler_list").arg("-scirpt").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(all_output(&output).contains("-scirpt"));
}

#[test]
fn every_command_prints_its_usage() {
    let commands =
        ["scorecc", "scorec++", "scoref77", "scoref90", "scoreld", "score_compiler_list"];
    for name in commands {
        assert!(stdout(wrapper(name).arg("-help")).starts_with("usage: score"), "{name}");
    }
}
