//! gather(6).

use crate::running::{Place, noise};

#[test]
fn nodes_come_in_order_however_fast_they_are() {
    let place = Place::new();
    let line = "scrun -nodes=4 system sh -c 'sleep 0.$((3 - SCORE_SELF_NODE)); \
                seq -f $SCORE_SELF_NODE:%g 1000' == gather";
    let expected: String =
        (0..4).flat_map(|node| (1..=1000).map(move |i| format!("{node}:{i}\n"))).collect();
    assert!(place.text(line) == expected);
}

#[test]
fn what_is_scattered_and_gathered_comes_back_once_per_node() {
    let place = Place::new();
    let bytes = noise(3_000_001);
    place.file("in", &bytes);
    for nodes in [1, 2, 5] {
        let back = place.output(&format!("scrun -nodes={nodes} scatter == cat == gather < in"));
        assert!(back == bytes.repeat(nodes), "{nodes} nodes: {} bytes", back.len());
    }
}

#[test]
fn with_a_node_only_its_input_comes_and_the_others_are_read_to_the_end() {
    let place = Place::new();
    let line = "scrun -nodes=4 system sh -c \
                'seq 100000; echo done $SCORE_SELF_NODE >&2' == gather -node 2";
    let output = place.sh(line);
    assert!(output.status.success());
    assert_eq!(output.stdout, place.output("seq 100000"));
    let done = String::from_utf8(output.stderr).unwrap();
    assert_eq!(done.matches("done").count(), 4, "{done}");
}

#[test]
fn files_of_the_hosts_come_once_and_those_of_the_nodes_in_order() {
    let place = Place::new();
    let bytes = noise(2_000_000);
    place.file("in", &bytes);
    let line = "scrun -nodes=4 scatter -file x :: gather -file x < in";
    assert!(place.output(line) == bytes);
    let line = "scrun -nodes=3 system sh -c 'echo $SCORE_SELF_NODE' =: out :: gather -file out";
    assert_eq!(place.text(line), "0\n1\n2\n");
    let line = format!("{line} -node 1");
    assert_eq!(place.text(&line), "1\n");
    assert!(place.output("scrun -nodes=3 gather -file $PWD/in") == bytes);
    assert!(place.output("scrun -nodes=3 gather -node 2 -file $PWD/in") == bytes);
}

#[test]
fn a_missing_file_is_told_with_its_node() {
    let complaint = Place::new().failure("scrun -nodes=3 gather -file nothing", 1);
    assert!(complaint.contains("gather: node 0: nothing: No such file"), "{complaint}");
}

#[test]
fn endless_writers_end_when_the_reader_goes() {
    let place = Place::new();
    assert_eq!(place.text("(scrun -nodes=4 system yes == gather) | head -1"), "y\n");
    assert_eq!(place.text("(scrun -nodes=4 system yes == gather -node 3) | head -1"), "y\n");
}
