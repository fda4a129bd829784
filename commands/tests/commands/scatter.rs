//! scatter(6).

use crate::harness::{TestDir, noise};

#[test]
fn every_node_writes_exactly_the_input_of_scrun() {
    let test_dir = TestDir::new();
    let bytes = noise(5_000_003);
    test_dir.write_file("in", &bytes);
    for nodes in [1, 2, 4, 7] {
        let line = format!(
            "scrun -nodes={nodes} scatter == \
             system sh -c 'cat > '$PWD'/out.{nodes}.$SCORE_SELF_NODE' < in"
        );
        assert_eq!(test_dir.text(&line), "");
        for node in 0..nodes {
            let out = test_dir.read(&format!("out.{nodes}.{node}"));
            assert!(out == bytes, "node {node} of {nodes}: {} bytes", out.len());
        }
    }
}

#[test]
fn an_empty_input_is_an_empty_output() {
    assert_eq!(TestDir::new().text("scrun -nodes=4 scatter == system wc -c"), "0\n".repeat(4));
}

#[test]
fn with_a_node_number_only_this_node_writes() {
    let test_dir = TestDir::new();
    let line = "echo here | scrun -nodes=4 scatter -node 2 == \
                system sh -c 'sed s/^/$SCORE_SELF_NODE:/'";
    assert_eq!(test_dir.text(line), "2:here\n");
}

#[test]
fn a_file_in_the_job_directory_is_read_by_the_next_stage() {
    let test_dir = TestDir::new();
    let bytes = noise(2_000_000);
    test_dir.write_file("in", &bytes);
    let line = "scrun -nodes=4 scatter -file copy :: system cmp copy $PWD/in < in";
    assert_eq!(test_dir.text(line), "");
    assert!(!test_dir.0.join("copy").exists());
}

#[test]
fn a_file_with_an_absolute_path_is_not_removed_with_the_job() {
    let test_dir = TestDir::new();
    test_dir.write_file("in", b"some text\n");
    for options in ["", "-node 3"] {
        test_dir.output(&format!("scrun -nodes=4 scatter {options} -file $PWD/out < in"));
        assert_eq!(test_dir.read("out"), b"some text\n");
        std::fs::remove_file(test_dir.0.join("out")).unwrap();
    }
}

#[test]
fn a_file_that_cannot_be_made_ends_all_nodes_with_node_and_cause() {
    let test_dir = TestDir::new();
    let stderr = test_dir.failure("yes | scrun -nodes=4 scatter -file /nowhere/out", 1);
    assert!(stderr.contains("scatter: node 0: /nowhere/out: No such file"), "{stderr}");
}

#[test]
fn a_full_disk_ends_all_nodes_with_node_and_cause() {
    let test_dir = TestDir::new();
    let stderr = test_dir.failure("yes | scrun -nodes=4 scatter -file /dev/full", 1);
    assert!(stderr.contains("scatter: node 0: writing /dev/full: No space"), "{stderr}");
}

#[test]
fn a_node_whose_reader_has_closed_keeps_forwarding() {
    let test_dir = TestDir::new();
    test_dir.write_file("in", &noise(3_000_000));
    let line = "scrun -nodes=4 scatter == \
                system sh -c 'if [ $SCORE_SELF_NODE = 1 ]; then exec <&-; else wc -c; fi' < in";
    assert_eq!(test_dir.text(line), "3000000\n".repeat(3));
}

#[test]
fn an_endless_input_is_read_until_all_readers_have_closed() {
    let test_dir = TestDir::new();
    let line = "scrun -nodes=4 scatter == system head -1 < <(yes)";
    assert_eq!(test_dir.text(line), "y\n".repeat(4));
    assert_eq!(test_dir.text("(scrun -nodes=4 scatter < <(yes)) | head -1"), "y\n");
}

#[test]
fn one_slow_reader_delays_other_readers_and_no_bytes_are_lost() {
    let test_dir = TestDir::new();
    test_dir.write_file("in", &noise(2_000_000));
    let line = "scrun -nodes=3 scatter == \
                system sh -c 'test $SCORE_SELF_NODE = 2 && sleep 1; wc -c' < in";
    assert_eq!(test_dir.text(line), "2000000\n".repeat(3));
}

/// Seconds of processor time that a line and all its processes have used.
fn processor_time(line: &str) -> f64 {
    let times = TestDir::new().text(&format!("TIMEFORMAT='%U %S'; {{ time {line}; }} 2>&1"));
    let fields = times.lines().last().unwrap().split(' ');
    fields.map(|field| field.parse::<f64>().unwrap()).sum()
}

#[test]
fn waiting_for_input_uses_no_processor_time() {
    let waiting = processor_time("scrun -nodes=4 scatter < <(sleep 2)");
    // Spinning processes use processor time, but other programs on the machine may leave little of
    // it.
    let spinning = processor_time("scrun -nodes=4 pmtest -pairs");
    assert!(
        waiting < 0.6 && spinning > 2.0 * waiting,
        "waiting {waiting} s, spinning {spinning} s"
    );
}

#[test]
fn invalid_options_are_reported_once_with_exit_code_2() {
    let test_dir = TestDir::new();
    for (words, expected) in
        [("-node 4", "0 to 3"), ("-node x", "\"x\""), ("-files", "\"-files\""), ("-file", "needs")]
    {
        let stderr = test_dir.failure(&format!("scrun -nodes=4 scatter {words}"), 2);
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(stderr.matches("scatter:").count(), 1, "{stderr}");
    }
}
