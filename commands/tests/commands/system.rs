//! system(6).

use crate::running::{Place, folder};

#[test]
fn the_program_runs_on_every_node_with_its_variables() {
    let place = Place::new();
    let script = "echo $SCORE_SELF_NODE $SCORE_SELF_HOST $SCORE_SELF_PROC \
                  $SCORE_NUM_NODE $SCORE_NUM_HOST $SCORE_NUM_PROC";
    let line = format!("scrun -nodes=3 system sh -c '{script}' | sort");
    assert_eq!(place.text(&line), "0 0 0 3 1 3\n1 0 1 3 1 3\n2 0 2 3 1 3\n");
}

#[test]
fn only_the_first_process_of_a_host_with_host() {
    let place = Place::new();
    assert_eq!(place.text("scrun -nodes=3 system -host sh -c 'echo $SCORE_SELF_NODE'"), "0\n");
}

/// By its path it is a program like others, started on every node; it then execs.
#[test]
fn named_by_its_path_it_does_the_same() {
    let place = Place::new();
    let system = folder().join("system");
    let line = |rest: &str| format!("scrun -nodes=3 system {} {rest}", system.display());
    assert_eq!(place.text(&line("echo here")), "here\n".repeat(3));
    assert_eq!(place.text(&line("-host echo here")), "here\n");
    let complaint = place.failure(&line("no-such-program"), 127);
    assert!(complaint.contains("system: node 0: no-such-program: No such file"), "{complaint}");
    let complaint = place.failure(&line("/dev/null"), 126);
    assert!(complaint.contains("/dev/null: Permission denied"), "{complaint}");
}
