//! A program is missing, cannot be run, exits too early, or crashes. scrun prints one line with the
//! node and the cause, and ends the rest of the parallel process. The exit code is the one that a
//! shell would give.

use score_tests::TestEnv;

// Promise (faults): For a program that is missing, cannot run, exits too early or crashes, scrun
// names node and cause; the code is 127, 126 or 128 + signal.
#[test]
fn a_missing_program_is_named_with_exit_code_127() {
    let env = TestEnv::new();
    let _ = env
        .scrun(&["-nodes=2", "no-such-program"])
        .run()
        .expect_code(127)
        .assert_stderr(&["no-such-program"]);
    let _ = env
        .scrun(&["-nodes=2", "./nor-this"])
        .run()
        .expect_code(127)
        .assert_stderr(&["./nor-this"]);
}

#[test]
fn a_missing_program_under_system_is_named_with_exit_code_127() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=2", "system", "no-such-program"]).run();
    let _ = outcome.expect_code(127).assert_stderr(&["no-such-program"]);
}

// Promise of `a_missing_program_is_named_with_exit_code_127`.
#[test]
fn a_program_without_permission_is_named_with_exit_code_126() {
    let env = TestEnv::new();
    env.write_file("plain", "#!/bin/sh\necho never\n");
    let outcome =
        env.scrun(&["-nodes=2", "./plain"]).run().expect_code(126).assert_stderr(&["plain"]);
    assert!(outcome.stdout.is_empty());
    let _ = env.scrun(&["-nodes=2", "/tmp"]).run().expect_code(126).assert_stderr(&["/tmp"]);
}

#[test]
fn an_elf_file_with_a_broken_header_is_named() {
    let env = TestEnv::new();
    let _ = env.write_script("broken", b"\x7fELF\x02\x01\x01garbage and nothing else");
    let outcome = env.scrun(&["-nodes=2", "./broken"]).run().assert_stderr(&["broken"]);
    assert!([126, 127, 2].contains(&outcome.code), "{outcome}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome}");
}

// Promise of `a_missing_program_is_named_with_exit_code_127`.
#[test]
fn leaving_before_score_initialize_ends_the_parallel_process() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("faults") else { return };
    let program = program.to_str().unwrap();
    let outcome = env.scrun(&["-nodes=3", program, "early", "1"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.assert_stderr(&["node 1", "score_initialize"]);
}

// Promise of `a_missing_program_is_named_with_exit_code_127`.
#[test]
fn a_crash_is_named_with_its_node_and_sets_exit_code_128_plus_the_signal() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("faults") else { return };
    let program = program.to_str().unwrap();
    for (fault, code, name) in
        [("segv", 139, "SIGSEGV"), ("abort", 134, "SIGABRT"), ("kill", 137, "SIGKILL")]
    {
        let outcome = env.scrun(&["-nodes=3", program, fault, "2"]).run().expect_code(code);
        let _ = outcome.assert_stderr(&["node 2", name]);
    }
}

#[test]
fn a_script_runs_on_every_node_as_under_system() {
    let env = TestEnv::new();
    let _ = env.write_script("script", "#!/bin/sh\necho $SCORE_SELF_NODE of $SCORE_NUM_NODE\n");
    let outcome = env.scrun(&["-nodes=3", "./script"]).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["0 of 3", "1 of 3", "2 of 3"]);
}

#[test]
fn a_plain_program_is_never_started_by_scrun_itself() {
    let env = TestEnv::new();
    let _ = env.write_script("count", "#!/bin/sh\necho $$ >> \"$1\"\n");
    let log = env.dir().join("log");
    let _ = env.scrun(&["-nodes=2", "./count", log.to_str().unwrap()]).run().expect_code(0);
    assert_eq!(std::fs::read_to_string(log).unwrap().lines().count(), 2);
}
