//! gcc and clang build the manual's C program and other programs, statically and dynamically.

use score_tests::{TestEnv, binaries, skip, test_env};

/// Compiles the manual's scatter and sends a text through it.
fn check_scatter_with(compiler: &str, extra_args: &[&str]) {
    if !test_env::is_installed(compiler) {
        skip(compiler, "is not installed");
        return;
    }
    let env = TestEnv::new();
    let example = binaries::root().join("examples/scatter");
    let mut sources: Vec<String> = std::fs::read_dir(example)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .map(|path| path.display().to_string())
        .collect();
    sources.sort();
    let outcome = env
        .command(binaries::program("scorecc"))
        .args(&["-compiler-path", compiler, "-O2", "-Wall", "-o", "scatter-in-c"])
        .args(extra_args)
        .args(&sources)
        .run();
    assert_eq!(outcome.stderr, "", "{compiler} warns");
    let _ = outcome.expect_code(0);
    env.sh("seq 200000 > text; sum < text > sum").run().expect_code(0).text();
    let sum = std::fs::read_to_string(env.dir().join("sum")).unwrap();
    // scatter sends by remote write, by remote read, and in messages.
    for option in ["", "-read", "-messages", "-spin", "-spin -read"] {
        let line = format!("scrun -nodes=4 ./scatter-in-c {option} == system sum < text");
        let outcome = env.sh(&line).run().expect_code(0);
        assert_eq!(outcome.text(), sum.repeat(4), "{option}");
    }
    // Between hosts node 0 reaches some of the other nodes through Ethernet.
    for option in ["", "-read", "-spin"] {
        let group = "-group=local:2,nodes=2x2,message=quiet";
        let line = format!("scrun {group} ./scatter-in-c {option} == system sum < text");
        let outcome = env.sh(&line).run().expect_code(0);
        assert_eq!(outcome.text(), sum.repeat(4), "between hosts {option}");
    }
}

// Promise (use): The manual's C program works, built by gcc and by clang, static and dynamic.
// Promise of `zerocopy_gets_a_network_that_has_it_within_a_host_and_between_hosts`.
#[test]
fn the_manuals_scatter_works_with_gcc() {
    check_scatter_with("gcc", &[]);
}

// Promise of `the_manuals_scatter_works_with_gcc`.
#[test]
fn the_manuals_scatter_works_with_clang() {
    check_scatter_with("clang", &[]);
}

// Promise of `the_manuals_scatter_works_with_gcc`.
#[test]
fn the_manuals_scatter_works_with_shared_libraries() {
    check_scatter_with("gcc", &["-nostatic"]);
}

#[test]
fn scorec_plus_plus_compiles_a_program() {
    if !test_env::is_installed("g++") {
        skip("g++", "is not installed");
        return;
    }
    let env = TestEnv::new();
    env.write_file(
        "hello.cc",
        "#include <cstdio>\n#include <score.h>\n#include <sc.h>\nint main(int argc, char **argv) {\n\
         score_initialize(argc, argv);\nstd::printf(\"%d\\n\", score_self_node);\n}\n",
    );
    let compile = env.command(binaries::program("scorec++"));
    let _ = compile.args(&["-o", "hello", "hello.cc"]).run().expect_code(0);
    let outcome = env.scrun(&["-nodes=3", "./hello"]).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["0", "1", "2"]);
}

#[test]
fn compiling_and_linking_apart_works_as_with_any_compiler() {
    let env = TestEnv::new();
    if !test_env::is_installed("gcc") {
        skip("gcc", "is not installed");
        return;
    }
    env.write_file(
        "a.c",
        "#include <score.h>\nint other(void);\nint main(void) {\nscore_initialize();\n\
                       return other();\n}\n",
    );
    env.write_file("b.c", "int other(void);\nint other(void) { return 17; }\n");
    let scorecc = || env.command(binaries::program("scorecc"));
    let _ = scorecc().args(&["-c", "a.c"]).run().expect_code(0);
    let _ = scorecc().args(&["-c", "b.c"]).run().expect_code(0);
    let _ = env
        .command(binaries::program("scoreld"))
        .args(&["-o", "ab", "a.o", "b.o"])
        .run()
        .expect_code(0);
    assert_eq!(env.scrun(&["-nodes=2", "./ab"]).run().code, 17);
}

#[test]
fn compilers_are_listed_and_an_unsupported_option_is_refused_by_name() {
    let env = TestEnv::new();
    let list = env.command(binaries::program("score_compiler_list"));
    let outcome = list.args(&["-script", "scorecc"]).run().expect_code(0);
    assert!(outcome.text().lines().any(|line| line.contains("gnu")), "{outcome}");
    for name in ["scorecc", "scorec++", "scoref77", "scoref90"] {
        let outcome = env.command(binaries::program(name)).args(&["-scash", "a.c"]).run();
        assert_ne!(outcome.code, 0, "{name}: {outcome}");
        let _ = outcome.assert_stderr(&["-scash"]);
    }
}
