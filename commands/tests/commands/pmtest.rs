//! pmtest(1). Figures themselves are for `cargo xtask bench`: a test machine is busy.

use serde_json::Value;

use crate::running::Place;

fn measure(words: &str) -> Value {
    serde_json::from_slice(&Place::new().output(&format!("scrun {words}"))).unwrap()
}

#[test]
fn json_has_the_fields_of_what_was_measured() {
    let lines = measure("-nodes=2 pmtest -latency -size 8,64,1024 -rounds 1 -json");
    let sizes: Vec<_> = lines.as_array().unwrap().iter().map(|line| &line["size"]).collect();
    assert_eq!(sizes, [8, 64, 1024]);
    for line in lines.as_array().unwrap() {
        let mut names: Vec<_> = line.as_object().unwrap().keys().collect();
        names.sort();
        let expected =
            ["floor_ns", "one_way_ns_median", "one_way_ns_min", "one_way_ns_p999", "size"];
        assert_eq!(names, expected);
        let field = |name: &str| line[name].as_f64().unwrap();
        assert!(field("floor_ns") > 1.0);
        assert!(field("one_way_ns_min") <= field("one_way_ns_median"));
    }
}

#[test]
fn a_bare_ring_is_measured_when_it_is_wanted() {
    let lines = measure("-nodes=2 pmtest -latency -bare -size 8,4096 -rounds 1 -json");
    let bare = |line: usize| lines[line]["one_way_ns_min"].as_f64().unwrap();
    assert!(bare(0) > 1.0 && bare(1) > bare(0), "{lines}");
    let complaint = Place::new().failure("scrun -nodes=2 pmtest -bare -rate", 2);
    assert!(complaint.contains("-bare and -bandwidth, -rate, -pairs exclude"), "{complaint}");
}

#[test]
fn everything_is_measured_when_nothing_is_chosen() {
    let lines = measure("-nodes=2 pmtest -size 512 -rounds 1 -json");
    assert_eq!(lines[0].as_object().unwrap().len(), 7);
    assert!(lines[0]["messages_per_s"].as_f64().unwrap() > 1000.0);
    assert!(lines[0]["bandwidth_bytes_per_s"].as_f64().unwrap() > 1e6);
}

#[test]
fn only_the_bandwidth_splits_what_is_longer_than_a_message() {
    let lines = measure("-nodes=2 pmtest -bandwidth -size 1000000 -json");
    assert!(lines[0]["bandwidth_bytes_per_s"].as_f64().unwrap() > 1e6);
    let complaint = Place::new().failure("scrun -nodes=2 pmtest -latency -size 1000000", 2);
    assert!(complaint.contains("-size 1000000: a message has at most "), "{complaint}");
}

#[test]
fn further_nodes_keep_silent_in_each_of_the_three_ways() {
    for how in ["receive", "barrier", "never"] {
        let words = format!("-nodes=6 pmtest -latency -size 8 -rounds 1 -silent {how} -json");
        assert_eq!(measure(&words).as_array().unwrap().len(), 1, "{how}");
    }
}

#[test]
fn pairs_report_each_pair() {
    let lines = measure("-nodes=4 pmtest -pairs -json");
    let rates: Vec<_> =
        lines.as_array().unwrap().iter().map(|line| line["round_trips_per_s"].as_f64()).collect();
    assert!(rates.len() == 2 && rates.iter().all(|rate| rate.unwrap() > 0.0), "{lines}");
}

#[test]
fn the_table_is_for_people() {
    let text = Place::new().text("scrun -nodes=2 pmtest -rate -size 8");
    assert!(text.contains("M messages/s") && !text.contains("floor"), "{text}");
}

#[test]
fn too_few_nodes_and_wrong_words_end_with_2_and_one_line() {
    let place = Place::new();
    for (words, part) in [
        ("-nodes=1 pmtest", "needs two nodes"),
        ("-nodes=2 pmtest -size 0", "\"0\""),
        ("-nodes=2 pmtest -alone 3", "without scrun"),
        ("-nodes=3 pmtest -pairs", "even number"),
    ] {
        let code = if words.ends_with("pairs") { 1 } else { 2 };
        let complaint = place.failure(&format!("scrun {words}"), code);
        assert!(complaint.contains(part), "{complaint}");
    }
}
