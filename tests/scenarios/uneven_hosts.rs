//! Jobs run on any number of hosts, which may have different numbers of nodes. A token passes all
//! nodes, messages of random lengths go between all of them, a stream comes back unchanged, and
//! lines of all hosts arrive undivided.

use std::time::Duration;

use score_tests::TestEnv;

/// Runs a ring with these hosts and nodes.
fn run_ring(hosts: u32, nodes: &str, count: u32, rounds: u32) {
    let env = TestEnv::new();
    let Some(program) = env.test_program("ring") else { return };
    let args = [format!("-group=local:{hosts}"), format!("-nodes={nodes}")];
    let job = env.scrun(&args).args(&[program.to_str().unwrap(), &rounds.to_string()]);
    let outcome = job.run().expect_code(0);
    assert_eq!(outcome.text(), format!("{rounds} rounds through {count} nodes\n"), "{outcome}");
    let _ = outcome.assert_stderr(&[&format!("{count} nodes on {hosts} hosts")]);
}

// Promise (use): Jobs run on any number of hosts, with different numbers of nodes: rings, messages
// between all nodes, a stream of 32 MiB to the last host and back, a quarter of a million lines of
// each host.
#[test]
fn a_ring_of_three_hosts_with_unequal_numbers_of_nodes_passes_a_token() {
    run_ring(3, "8", 8, 40);
}

// Promise of `a_ring_of_three_hosts_with_unequal_numbers_of_nodes_passes_a_token`.
#[test]
fn a_ring_of_five_hosts_passes_a_token() {
    run_ring(5, "5x1", 5, 400);
}

// Promise of `a_ring_of_three_hosts_with_unequal_numbers_of_nodes_passes_a_token`.
#[test]
fn a_ring_of_seven_hosts_with_unequal_numbers_of_nodes_passes_a_token() {
    run_ring(7, "10", 10, 20);
}

// Promise of `a_ring_of_three_hosts_with_unequal_numbers_of_nodes_passes_a_token`.
#[test]
fn a_ring_of_seventeen_hosts_passes_a_token() {
    run_ring(17, "17x1", 17, 5);
}

// Promise of `a_ring_of_three_hosts_with_unequal_numbers_of_nodes_passes_a_token`.
#[test]
fn all_nodes_of_five_hosts_exchange_messages() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("traffic") else { return };
    for extra_arg in [None, Some("block")] {
        let args = ["-group=local:5,nodes=5x1", program.to_str().unwrap(), "400", "4711"];
        let outcome = env.scrun(&args).args(extra_arg.as_slice()).run().expect_code(0);
        assert_eq!(outcome.text(), "all in order\n".repeat(5), "{outcome}");
    }
}

/// Returns 32 MiB in which no two chunks are equal.
fn pseudo_random_bytes() -> Vec<u8> {
    let mut state = 1_u64;
    let word = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    (0..8 << 20).map(word).flat_map(u32::to_le_bytes).collect()
}

// Promise of `a_ring_of_three_hosts_with_unequal_numbers_of_nodes_passes_a_token`.
#[test]
fn a_stream_of_32_mib_returns_identical_from_the_last_of_four_hosts() {
    let env = TestEnv::new();
    let bytes = pseudo_random_bytes();
    env.write_file("data", &bytes);
    let line = "scrun -group=local:4,nodes=4x1 scatter == gather -node 3 < data > back";
    let _ = env.sh(line).timeout(Duration::from_secs(120)).run().expect_code(0);
    assert!(std::fs::read(env.dir().join("back")).unwrap() == bytes, "the stream differs");
}

// Promise of `a_ring_of_three_hosts_with_unequal_numbers_of_nodes_passes_a_token`.
#[test]
fn a_quarter_of_a_million_lines_of_each_of_four_hosts_arrive_whole() {
    const LINES: usize = 250_000;
    let env = TestEnv::new();
    let line = format!(
        "scrun -group=local:4,nodes=4x1 system sh -c \
         'exec seq -f \"$SCORE_SELF_NODE:%.0f\" {LINES}' > lines"
    );
    let _ = env.sh(&line).timeout(Duration::from_secs(120)).run().expect_code(0);
    let text = std::fs::read_to_string(env.dir().join("lines")).unwrap();
    let mut next = [1; 4];
    for line in text.lines() {
        let (node, number) = line.split_once(':').unwrap_or_else(|| panic!("{line:?}"));
        let next = &mut next[node.parse::<usize>().unwrap()];
        assert_eq!(number.parse(), Ok(*next), "{line:?}");
        *next += 1;
    }
    assert_eq!(next, [LINES + 1; 4]);
}
