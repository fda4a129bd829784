//! The manual's C program and our own, built by gcc and by clang, statically and dynamically.

use score_tests::{Scene, binaries, scene, skip};

/// Compiles the manual's scatter and sends a text through it.
fn scatter_by(compiler: &str, more: &[&str]) {
    if !scene::have(compiler) {
        skip(compiler, "is not installed");
        return;
    }
    let scene = Scene::new();
    let example = binaries::root().join("examples/scatter");
    let mut sources: Vec<String> = std::fs::read_dir(example)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .map(|path| path.display().to_string())
        .collect();
    sources.sort();
    let outcome = scene
        .command(binaries::program("scorecc"))
        .args(&["-compiler-path", compiler, "-O2", "-Wall", "-o", "scatter-in-c"])
        .args(more)
        .args(&sources)
        .run();
    assert_eq!(outcome.stderr, "", "{compiler} warns");
    let _ = outcome.expect(0);
    scene.sh("seq 200000 > text; sum < text > sum").run().expect(0).text();
    let sum = std::fs::read_to_string(scene.dir().join("sum")).unwrap();
    // By remote write, by remote read, in messages.
    for how in ["", "-read", "-messages", "-spin", "-spin -read"] {
        let line = format!("scrun -nodes=4 ./scatter-in-c {how} == system sum < text");
        let outcome = scene.sh(&line).run().expect(0);
        assert_eq!(outcome.text(), sum.repeat(4), "{how}");
    }
    // Between hosts, where node 0 reaches some of the others by ethernet.
    for how in ["", "-read", "-spin"] {
        let group = "-group=local:2,nodes=2x2,message=quiet";
        let line = format!("scrun {group} ./scatter-in-c {how} == system sum < text");
        let outcome = scene.sh(&line).run().expect(0);
        assert_eq!(outcome.text(), sum.repeat(4), "between hosts {how}");
    }
}

#[test]
fn the_manuals_scatter_by_gcc() {
    scatter_by("gcc", &[]);
}

#[test]
fn the_manuals_scatter_by_clang() {
    scatter_by("clang", &[]);
}

#[test]
fn the_manuals_scatter_with_shared_libraries() {
    scatter_by("gcc", &["-nostatic"]);
}

#[test]
fn scorec_plus_plus_compiles_a_program() {
    if !scene::have("g++") {
        skip("g++", "is not installed");
        return;
    }
    let scene = Scene::new();
    scene.file(
        "hello.cc",
        "#include <cstdio>\n#include <score.h>\n#include <sc.h>\nint main(int argc, char **argv) {\n\
         score_initialize(argc, argv);\nstd::printf(\"%d\\n\", score_self_node);\n}\n",
    );
    let compile = scene.command(binaries::program("scorec++"));
    let _ = compile.args(&["-o", "hello", "hello.cc"]).run().expect(0);
    let outcome = scene.scrun(&["-nodes=3", "./hello"]).run().expect(0);
    assert_eq!(outcome.sorted(), ["0", "1", "2"]);
}

#[test]
fn compiling_and_linking_apart_works_as_with_any_compiler() {
    let scene = Scene::new();
    if !scene::have("gcc") {
        skip("gcc", "is not installed");
        return;
    }
    scene.file(
        "a.c",
        "#include <score.h>\nint other(void);\nint main(void) {\nscore_initialize();\n\
                       return other();\n}\n",
    );
    scene.file("b.c", "int other(void);\nint other(void) { return 17; }\n");
    let scorecc = || scene.command(binaries::program("scorecc"));
    let _ = scorecc().args(&["-c", "a.c"]).run().expect(0);
    let _ = scorecc().args(&["-c", "b.c"]).run().expect(0);
    let _ = scene
        .command(binaries::program("scoreld"))
        .args(&["-o", "ab", "a.o", "b.o"])
        .run()
        .expect(0);
    assert_eq!(scene.scrun(&["-nodes=2", "./ab"]).run().code, 17);
}

#[test]
fn the_compiler_commands_list_and_refuse_by_name() {
    let scene = Scene::new();
    let list = scene.command(binaries::program("score_compiler_list"));
    let outcome = list.args(&["-script", "scorecc"]).run().expect(0);
    assert!(outcome.text().lines().any(|line| line.contains("gnu")), "{outcome}");
    for name in ["scorecc", "scorec++", "scoref77", "scoref90"] {
        let outcome = scene.command(binaries::program(name)).args(&["-scash", "a.c"]).run();
        assert_ne!(outcome.code, 0, "{name}: {outcome}");
        let _ = outcome.says(&["-scash"]);
    }
}
