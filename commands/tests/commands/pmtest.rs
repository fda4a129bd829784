//! pmtest(1). `cargo xtask bench` checks the measured values, because a test machine is busy.

use serde_json::Value;

use crate::harness::TestDir;

fn measure(words: &str) -> Value {
    serde_json::from_slice(&TestDir::new().output(&format!("scrun {words}"))).unwrap()
}

#[test]
fn json_has_the_fields_of_the_measurement() {
    let results = measure("-nodes=2 pmtest -latency -size 8,64,1024 -rounds 1 -json");
    let sizes: Vec<_> = results.as_array().unwrap().iter().map(|result| &result["size"]).collect();
    assert_eq!(sizes, [8, 64, 1024]);
    for result in results.as_array().unwrap() {
        let mut names: Vec<_> = result.as_object().unwrap().keys().collect();
        names.sort();
        let expected =
            ["floor_ns", "one_way_ns_median", "one_way_ns_min", "one_way_ns_p999", "size"];
        assert_eq!(names, expected);
        let field = |name: &str| result[name].as_f64().unwrap();
        assert!(field("floor_ns") > 1.0);
        assert!(field("one_way_ns_min") <= field("one_way_ns_median"));
    }
}

#[test]
fn a_bare_ring_is_measured_on_request() {
    let results = measure("-nodes=2 pmtest -latency -bare -size 8,4096 -rounds 1 -json");
    let latency_ns = |index: usize| results[index]["one_way_ns_min"].as_f64().unwrap();
    assert!(latency_ns(0) > 1.0 && latency_ns(1) > latency_ns(0), "{results}");
    let stderr = TestDir::new().failure("scrun -nodes=2 pmtest -bare -rate", 2);
    assert!(stderr.contains("-bare and -bandwidth, -rate, -pairs exclude"), "{stderr}");
}

#[test]
fn all_values_are_measured_without_an_option() {
    let results = measure("-nodes=2 pmtest -size 512 -rounds 1 -json");
    assert_eq!(results[0].as_object().unwrap().len(), 7);
    assert!(results[0]["messages_per_s"].as_f64().unwrap() > 1000.0);
    assert!(results[0]["bandwidth_bytes_per_s"].as_f64().unwrap() > 1e6);
}

#[test]
fn only_the_bandwidth_splits_sizes_longer_than_a_message() {
    let results = measure("-nodes=2 pmtest -bandwidth -size 1000000 -json");
    assert!(results[0]["bandwidth_bytes_per_s"].as_f64().unwrap() > 1e6);
    let stderr = TestDir::new().failure("scrun -nodes=2 pmtest -latency -size 1000000", 2);
    assert!(stderr.contains("-size 1000000: a message has at most "), "{stderr}");
}

#[test]
fn idle_nodes_wait_in_each_of_the_three_modes() {
    for mode in ["receive", "barrier", "never"] {
        let words = format!("-nodes=6 pmtest -latency -size 8 -rounds 1 -silent {mode} -json");
        assert_eq!(measure(&words).as_array().unwrap().len(), 1, "{mode}");
    }
}

#[test]
fn pairs_report_each_pair() {
    let results = measure("-nodes=4 pmtest -pairs -json");
    let rates: Vec<_> =
        results.as_array().unwrap().iter().map(|pair| pair["round_trips_per_s"].as_f64()).collect();
    assert!(rates.len() == 2 && rates.iter().all(|rate| rate.unwrap() > 0.0), "{results}");
}

#[test]
fn the_default_output_is_a_table() {
    let text = TestDir::new().text("scrun -nodes=2 pmtest -rate -size 8");
    assert!(text.contains("M messages/s") && !text.contains("floor"), "{text}");
}

#[test]
fn unusable_arguments_are_reported_with_an_exit_code() {
    let test_dir = TestDir::new();
    for (words, expected) in [
        ("-nodes=1 pmtest", "needs two nodes"),
        ("-nodes=2 pmtest -size 0", "\"0\""),
        ("-nodes=2 pmtest -alone 3", "without scrun"),
        ("-nodes=3 pmtest -pairs", "even number"),
    ] {
        let code = if words.ends_with("pairs") { 1 } else { 2 };
        let stderr = test_dir.failure(&format!("scrun {words}"), code);
        assert!(stderr.contains(expected), "{stderr}");
    }
}
