//! gather(6).

use crate::harness::{TestDir, noise};

#[test]
fn output_is_in_node_order_for_any_speed_of_the_nodes() {
    let test_dir = TestDir::new();
    let line = "scrun -nodes=4 system sh -c 'sleep 0.$((3 - SCORE_SELF_NODE)); \
                seq -f $SCORE_SELF_NODE:%g 1000' == gather";
    let expected: String =
        (0..4).flat_map(|node| (1..=1000).map(move |i| format!("{node}:{i}\n"))).collect();
    assert!(test_dir.text(line) == expected);
}

#[test]
fn scattered_and_gathered_bytes_are_returned_once_per_node() {
    let test_dir = TestDir::new();
    let bytes = noise(3_000_001);
    test_dir.write_file("in", &bytes);
    for nodes in [1, 2, 5] {
        let back = test_dir.output(&format!("scrun -nodes={nodes} scatter == cat == gather < in"));
        assert!(back == bytes.repeat(nodes), "{nodes} nodes: {} bytes", back.len());
    }
}

#[test]
fn only_the_chosen_nodes_input_is_gathered_and_the_others_are_drained() {
    let test_dir = TestDir::new();
    let line = "scrun -nodes=4 system sh -c \
                'seq 100000; echo done $SCORE_SELF_NODE >&2' == gather -node 2";
    let output = test_dir.run_shell(line);
    assert!(output.status.success());
    assert_eq!(output.stdout, test_dir.output("seq 100000"));
    let done = String::from_utf8(output.stderr).unwrap();
    assert_eq!(done.matches("done").count(), 4, "{done}");
}

#[test]
fn host_files_are_gathered_once_and_node_files_in_order() {
    let test_dir = TestDir::new();
    let bytes = noise(2_000_000);
    test_dir.write_file("in", &bytes);
    let line = "scrun -nodes=4 scatter -file x :: gather -file x < in";
    assert!(test_dir.output(line) == bytes);
    let line = "scrun -nodes=3 system sh -c 'echo $SCORE_SELF_NODE' =: out :: gather -file out";
    assert_eq!(test_dir.text(line), "0\n1\n2\n");
    let line = format!("{line} -node 1");
    assert_eq!(test_dir.text(&line), "1\n");
    assert!(test_dir.output("scrun -nodes=3 gather -file $PWD/in") == bytes);
    assert!(test_dir.output("scrun -nodes=3 gather -node 2 -file $PWD/in") == bytes);
}

#[test]
fn a_missing_file_is_reported_with_its_node() {
    let stderr = TestDir::new().failure("scrun -nodes=3 gather -file nothing", 1);
    assert!(stderr.contains("gather: node 0: nothing: No such file"), "{stderr}");
}

#[test]
fn endless_writers_end_when_the_reader_closes() {
    let test_dir = TestDir::new();
    assert_eq!(test_dir.text("(scrun -nodes=4 system yes == gather) | head -1"), "y\n");
    assert_eq!(test_dir.text("(scrun -nodes=4 system yes == gather -node 3) | head -1"), "y\n");
}
