//! Messages between hosts. `scatter` delivers its input unchanged to every node of two to sixteen
//! hosts, partly through shared memory and mostly over the network. `pmtest` measures between two
//! hosts.

use score_tests::TestEnv;
use serde_json::Value;
use std::time::Duration;

/// Time limit for sixteen hosts that share the processors of a busy machine.
const JOB_TIMEOUT: Duration = Duration::from_secs(180);

// Promise (messages): Programs that talk by PM run between hosts as on one: scatter to 2 to 16
// hosts, pmtest.
#[test]
fn scatter_gives_every_node_of_several_hosts_the_same_bytes() {
    let env = TestEnv::new();
    for (hosts, nodes, count, size) in
        [("2", "2x1", 2, 1_000_003), ("3", "3x3", 9, 100_003), ("16", "16x2", 32, 10_007)]
    {
        let bytes: Vec<u8> =
            (0..size).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let group = format!("-group=local:{hosts},nodes={nodes},message=quiet");
        let args = [&group, "scatter", "==", "system", "cksum"];
        let outcome = env.scrun(&args).input(bytes).timeout(JOB_TIMEOUT).run().expect_code(0);
        let sums = outcome.sorted_lines();
        assert_eq!(sums.len(), count, "{outcome}");
        let size_suffix = format!(" {size}");
        assert!(sums.iter().all(|sum| *sum == sums[0] && sum.ends_with(&size_suffix)), "{outcome}");
    }
}

// Promise of `scatter_gives_every_node_of_several_hosts_the_same_bytes`.
#[test]
fn pmtest_measures_between_two_hosts_without_a_floor() {
    let env = TestEnv::new();
    let args = ["-group=local:2,nodes=2x1,message=quiet", "pmtest", "-latency", "-rounds", "1"];
    let job = env.scrun(&args).args(&["-size", "8", "-json"]).timeout(JOB_TIMEOUT);
    let outcome = job.run().expect_code(0);
    let Ok(Value::Array(rows)) = serde_json::from_slice(&outcome.stdout) else {
        panic!("no array: {outcome}")
    };
    let [row] = &rows[..] else { panic!("not one row: {outcome}") };
    assert_eq!(row["size"], 8, "{outcome}");
    assert!(row["floor_ns"].is_null(), "{outcome}");
    assert!(row["one_way_ns_min"].as_f64().is_some_and(|min| min > 0.0), "{outcome}");
}
