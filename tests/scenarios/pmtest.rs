//! `scrun -nodes=2 pmtest` prints latency, bandwidth and rate, and the floor of the machine. With
//! -json it prints JSON.

use score_tests::TestEnv;
use serde_json::Value;

#[test]
fn json_has_the_promised_fields_for_each_size() {
    let env = TestEnv::new();
    let args = ["-nodes=2,message=quiet", "pmtest", "-latency", "-size", "8,1024", "-json"];
    let outcome = env.scrun(&args).run().expect_code(0);
    let Ok(Value::Array(rows)) = serde_json::from_slice(&outcome.stdout) else {
        panic!("no array: {outcome}")
    };
    assert_eq!(rows.len(), 2, "{outcome}");
    for (row, size) in rows.iter().zip([8, 1024]) {
        assert_eq!(row["size"], size, "{outcome}");
        for name in ["one_way_ns_min", "one_way_ns_median", "one_way_ns_p999", "floor_ns"] {
            assert!(row[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {outcome}");
        }
    }
}

#[test]
fn bandwidth_and_rate_are_measured_when_asked_for() {
    let env = TestEnv::new();
    for (option, field) in [("-bandwidth", "bandwidth_bytes_per_s"), ("-rate", "messages_per_s")] {
        let args = ["-nodes=2,message=quiet", "pmtest", option, "-size", "64", "-json"];
        let outcome = env.scrun(&args).run().expect_code(0);
        let rows: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        assert!(rows[0][field].as_f64().is_some_and(|value| value > 0.0), "{outcome}");
    }
}

#[test]
fn remote_memory_is_measured_and_compared_with_memcpy() {
    let env = TestEnv::new();
    let args = ["-nodes=2,message=quiet", "pmtest", "-rma", "-size", "8,65536", "-rounds", "1"];
    let outcome = env.scrun(&[&args[..], &["-json"]].concat()).run().expect_code(0);
    let rows: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    for (row, size) in rows.as_array().unwrap().iter().zip([8, 65_536]) {
        assert_eq!(row["size"], size, "{outcome}");
        for name in ["write_pmalloc", "read_pmalloc", "memcpy", "write_other", "read_other"] {
            let name = format!("{name}_bytes_per_s");
            assert!(row[&name].as_f64().is_some_and(|value| value > 0.0), "{name}: {outcome}");
        }
    }
    assert!(rows[0]["put_ns_min"].as_f64().is_some_and(|value| value > 0.0), "{outcome}");
}

#[test]
fn remote_memory_between_hosts_is_also_measured() {
    let env = TestEnv::new();
    let args = ["-group=local:2,nodes=2x1,message=quiet", "pmtest", "-rma", "-size", "8,65536"];
    let outcome = env.scrun(&[&args[..], &["-rounds", "1", "-json"]].concat()).run().expect_code(0);
    let rows: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    for name in ["write_pmalloc", "read_pmalloc", "write_other", "read_other"] {
        let name = format!("{name}_bytes_per_s");
        assert!(rows[1][&name].as_f64().is_some_and(|value| value > 0.0), "{name}: {outcome}");
    }
    assert!(rows[0]["put_ns_min"].as_f64().is_some_and(|value| value > 0.0), "{outcome}");
}

/// The network to the other nodes has a smaller message limit than the shared memory of the two
/// nodes that measure.
#[test]
fn nodes_that_do_not_measure_may_be_on_another_host() {
    let env = TestEnv::new();
    let args = ["-group=local:2,nodes=2x2,message=quiet", "pmtest", "-latency", "-size", "4096"];
    let outcome = env.scrun(&[&args[..], &["-rounds", "1", "-json"]].concat()).run().expect_code(0);
    let rows: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert!(rows[0]["one_way_ns_min"].as_f64().is_some_and(|value| value > 0.0), "{outcome}");
}

#[test]
fn one_node_or_a_wrong_option_is_refused_by_name() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=1", "pmtest"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let outcome = env.scrun(&["-nodes=2", "pmtest", "-speed"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.assert_stderr(&["-speed"]);
}
