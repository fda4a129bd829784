//! scatter(6).

use crate::running::{Place, noise};

#[test]
fn every_node_writes_exactly_what_scrun_has_read() {
    let place = Place::new();
    let bytes = noise(5_000_003);
    place.file("in", &bytes);
    for nodes in [1, 2, 4, 7] {
        let line = format!(
            "scrun -nodes={nodes} scatter == \
             system sh -c 'cat > '$PWD'/out.{nodes}.$SCORE_SELF_NODE' < in"
        );
        assert_eq!(place.text(&line), "");
        for node in 0..nodes {
            let out = place.read(&format!("out.{nodes}.{node}"));
            assert!(out == bytes, "node {node} of {nodes}: {} bytes", out.len());
        }
    }
}

#[test]
fn an_empty_input_is_an_empty_output() {
    assert_eq!(Place::new().text("scrun -nodes=4 scatter == system wc -c"), "0\n".repeat(4));
}

#[test]
fn with_a_node_only_that_one_writes() {
    let place = Place::new();
    let line = "echo here | scrun -nodes=4 scatter -node 2 == \
                system sh -c 'sed s/^/$SCORE_SELF_NODE:/'";
    assert_eq!(place.text(line), "2:here\n");
}

#[test]
fn a_file_in_the_job_directory_is_read_by_the_next_stage() {
    let place = Place::new();
    let bytes = noise(2_000_000);
    place.file("in", &bytes);
    let line = "scrun -nodes=4 scatter -file copy :: system cmp copy $PWD/in < in";
    assert_eq!(place.text(line), "");
    assert!(!place.0.join("copy").exists());
}

#[test]
fn a_file_with_an_absolute_name_stays() {
    let place = Place::new();
    place.file("in", b"some text\n");
    for options in ["", "-node 3"] {
        place.output(&format!("scrun -nodes=4 scatter {options} -file $PWD/out < in"));
        assert_eq!(place.read("out"), b"some text\n");
        std::fs::remove_file(place.0.join("out")).unwrap();
    }
}

#[test]
fn a_file_that_cannot_be_made_ends_all_nodes_with_node_and_cause() {
    let place = Place::new();
    let complaint = place.failure("yes | scrun -nodes=4 scatter -file /nowhere/out", 1);
    assert!(complaint.contains("scatter: node 0: /nowhere/out: No such file"), "{complaint}");
}

#[test]
fn a_full_disk_ends_all_nodes_with_node_and_cause() {
    let place = Place::new();
    let complaint = place.failure("yes | scrun -nodes=4 scatter -file /dev/full", 1);
    assert!(complaint.contains("scatter: node 0: writing /dev/full: No space"), "{complaint}");
}

#[test]
fn a_node_whose_reader_has_gone_keeps_forwarding() {
    let place = Place::new();
    place.file("in", &noise(3_000_000));
    let line = "scrun -nodes=4 scatter == \
                system sh -c 'if [ $SCORE_SELF_NODE = 1 ]; then exec <&-; else wc -c; fi' < in";
    assert_eq!(place.text(line), "3000000\n".repeat(3));
}

#[test]
fn an_endless_input_is_left_alone_when_all_readers_have_gone() {
    let place = Place::new();
    let line = "scrun -nodes=4 scatter == system head -1 < <(yes)";
    assert_eq!(place.text(line), "y\n".repeat(4));
    assert_eq!(place.text("(scrun -nodes=4 scatter < <(yes)) | head -1"), "y\n");
}

#[test]
fn one_slow_reader_holds_the_others_up_but_loses_nothing() {
    let place = Place::new();
    place.file("in", &noise(2_000_000));
    let line = "scrun -nodes=3 scatter == \
                system sh -c 'test $SCORE_SELF_NODE = 2 && sleep 1; wc -c' < in";
    assert_eq!(place.text(line), "2000000\n".repeat(3));
}

/// Seconds of processor time that a line and all its processes have used.
fn processor_time(line: &str) -> f64 {
    let told = Place::new().text(&format!("TIMEFORMAT='%U %S'; {{ time {line}; }} 2>&1"));
    let figures = told.lines().last().unwrap().split(' ');
    figures.map(|figure| figure.parse::<f64>().unwrap()).sum()
}

#[test]
fn while_nothing_comes_no_processor_time_is_used() {
    let waiting = processor_time("scrun -nodes=4 scatter < <(sleep 2)");
    // The clock sees processes that spin, of which others may leave little.
    let spinning = processor_time("scrun -nodes=4 pmtest -pairs");
    assert!(
        waiting < 0.6 && spinning > 2.0 * waiting,
        "waiting {waiting} s, spinning {spinning} s"
    );
}

#[test]
fn wrong_options_are_told_once_and_end_with_2() {
    let place = Place::new();
    for (words, part) in
        [("-node 4", "0 to 3"), ("-node x", "\"x\""), ("-files", "\"-files\""), ("-file", "needs")]
    {
        let complaint = place.failure(&format!("scrun -nodes=4 scatter {words}"), 2);
        assert!(complaint.contains(part), "{complaint}");
        assert_eq!(complaint.matches("scatter:").count(), 1, "{complaint}");
    }
}
