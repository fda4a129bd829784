//! A program started without scrun runs as a single node (manual 1.4.4); the commands that need a
//! job say so.

use score_tests::Scene;

#[test]
fn a_program_alone_is_one_node_and_its_calls_work() {
    let scene = Scene::new();
    let Some(program) = scene.program("calls") else { return };
    let run = |mode: &str| scene.command(&program).arg(mode).run().expect(0).text();
    assert_eq!(run("who"), "node 0 of 1, proc 0 of 1, host 0 of 1, networks 0\n");
    assert_eq!(run("barrier"), "through\n");
    assert_eq!(run("files"), "written and read\n");
    assert_eq!(run("broadcast"), "got SIGUSR1\n");
    assert_eq!(run("flush"), "0\n");
}

#[test]
fn commands_of_a_job_say_so_when_started_alone() {
    let scene = Scene::new();
    for line in ["scatter", "gather", "system true", "pmtest"] {
        let outcome = scene.sh(line).run();
        let name = line.split(' ').next().unwrap();
        assert_ne!(outcome.code, 0, "{name}: {outcome}");
        let _ = outcome.says(&[name, "must be invoked by scrun"]);
    }
}
