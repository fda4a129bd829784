//! A program that is missing, cannot be run, leaves too early or crashes: one line with node and
//! cause, the rest of the parallel process ended, and the code a shell would give.

use std::os::unix::fs::PermissionsExt;

use score_tests::Scene;

#[test]
fn a_missing_program_gives_127_and_its_name() {
    let scene = Scene::new();
    let _ =
        scene.scrun(&["-nodes=2", "no-such-program"]).run().expect(127).says(&["no-such-program"]);
    let _ = scene.scrun(&["-nodes=2", "./nor-this"]).run().expect(127).says(&["./nor-this"]);
}

#[test]
fn a_missing_program_under_system_gives_127_and_its_name() {
    let scene = Scene::new();
    let outcome = scene.scrun(&["-nodes=2", "system", "no-such-program"]).run();
    let _ = outcome.expect(127).says(&["no-such-program"]);
}

#[test]
fn a_program_without_permission_gives_126_and_its_name() {
    let scene = Scene::new();
    scene.file("plain", "#!/bin/sh\necho never\n");
    let outcome = scene.scrun(&["-nodes=2", "./plain"]).run().expect(126).says(&["plain"]);
    assert!(outcome.stdout.is_empty());
    let _ = scene.scrun(&["-nodes=2", "/tmp"]).run().expect(126).says(&["/tmp"]);
}

#[test]
fn an_elf_file_with_a_broken_header_is_named() {
    let scene = Scene::new();
    let path = scene.file("broken", b"\x7fELF\x02\x01\x01garbage and nothing else");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = scene.scrun(&["-nodes=2", "./broken"]).run().says(&["broken"]);
    assert!([126, 127, 2].contains(&outcome.code), "{outcome}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome}");
}

#[test]
fn leaving_before_score_initialize_ends_the_parallel_process() {
    let scene = Scene::new();
    let Some(program) = scene.program("faults") else { return };
    let program = program.to_str().unwrap();
    let outcome = scene.scrun(&["-nodes=3", program, "early", "1"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.says(&["node 1", "score_initialize"]);
}

#[test]
fn a_crash_gives_128_and_the_signal_and_names_the_node() {
    let scene = Scene::new();
    let Some(program) = scene.program("faults") else { return };
    let program = program.to_str().unwrap();
    for (way, code, name) in
        [("segv", 139, "SIGSEGV"), ("abort", 134, "SIGABRT"), ("kill", 137, "SIGKILL")]
    {
        let outcome = scene.scrun(&["-nodes=3", program, way, "2"]).run().expect(code);
        let _ = outcome.says(&["node 2", name]);
    }
}

#[test]
fn a_script_runs_on_every_node_as_under_system() {
    let scene = Scene::new();
    let path = scene.file("script", "#!/bin/sh\necho $SCORE_SELF_NODE of $SCORE_NUM_NODE\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = scene.scrun(&["-nodes=3", "./script"]).run().expect(0);
    assert_eq!(outcome.sorted(), ["0 of 3", "1 of 3", "2 of 3"]);
}

#[test]
fn a_plain_program_is_never_started_on_the_users_side() {
    let scene = Scene::new();
    let path = scene.file("count", "#!/bin/sh\necho $$ >> \"$1\"\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let log = scene.dir().join("log");
    let _ = scene.scrun(&["-nodes=2", "./count", log.to_str().unwrap()]).run().expect(0);
    assert_eq!(std::fs::read_to_string(log).unwrap().lines().count(), 2);
}
