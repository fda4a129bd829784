//! The user types `scrun -nodes=4 scatter == system wc < FILE` and sees four lines, each with the
//! counts of the whole file. A scattered file can be gathered unchanged.

use score_tests::TestEnv;

/// Returns lines of growing length, several megabytes in total.
fn text(lines: usize) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for line in 0..lines {
        let _ = writeln!(text, "line {line} of the text {}", "and on ".repeat(line % 17));
    }
    text
}

// Promise (use): `scrun -nodes=4 scatter == system wc` counts the whole text on every node.
#[test]
fn every_node_counts_the_whole_file() {
    let env = TestEnv::new();
    let text = text(60_000);
    let words = text.split_whitespace().count();
    env.write_file("text", &text);
    let outcome = env.sh("scrun -nodes=4 scatter == system wc < text").run().expect_code(0);
    let lines: Vec<Vec<String>> = outcome
        .text()
        .lines()
        .map(|line| line.split_whitespace().map(String::from).collect())
        .collect();
    let expected = vec![60_000.to_string(), words.to_string(), text.len().to_string()];
    assert_eq!(lines, vec![expected; 4], "{outcome}");
}

// Promise (use): A scattered file is identical on the last node.
#[test]
fn a_file_scattered_into_the_job_returns_identical_from_the_last_node() {
    let env = TestEnv::new();
    let bytes: Vec<u8> =
        (0..3_000_001_u32).map(|n| (n.wrapping_mul(2654435761) >> 24) as u8).collect();
    env.write_file("data", &bytes);
    let line = "scrun -nodes=4 scatter == gather -node 3 < data > back";
    env.sh(line).run().expect_code(0).assert_stderr(&[]).text();
    assert!(std::fs::read(env.dir().join("back")).unwrap() == bytes, "the file differs");
}

#[test]
fn a_file_in_the_job_directory_serves_the_next_element() {
    let env = TestEnv::new();
    let text = text(5_000);
    env.write_file("data", &text);
    let line = "scrun -nodes=3 scatter -file copy :: system md5sum copy < data";
    let outcome = env.sh(line).run().expect_code(0);
    let local_text = env.sh("md5sum < data").run().text();
    let sum = local_text.split_whitespace().next().unwrap();
    let found = outcome.text().lines().filter(|line| line.starts_with(sum)).count();
    assert_eq!(found, 3, "{outcome}");
}

#[test]
fn gather_without_a_node_writes_all_nodes_in_order() {
    let env = TestEnv::new();
    let line = "scrun -nodes=4 system sh -c 'echo I am $SCORE_SELF_NODE' == gather";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.text(), "I am 0\nI am 1\nI am 2\nI am 3\n");
}

#[test]
fn one_node_needs_no_network() {
    let env = TestEnv::new();
    let outcome = env.sh("echo alone | scrun -nodes=1 scatter == system cat").run().expect_code(0);
    assert_eq!(outcome.text(), "alone\n");
}
