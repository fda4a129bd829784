//! Four nodes write lines as fast as they can. No line is lost or split, however long it is.

use std::collections::BTreeMap;

use score_tests::TestEnv;

/// docs/dev/test-matrix.md promises a million lines. This test counts a tenth of them, or
/// `HARNESS_LINES`.
fn line_count() -> usize {
    let count = std::env::var("HARNESS_LINES").ok().and_then(|text| text.parse().ok());
    count.unwrap_or(100_000)
}

// Promise (output and input): A million lines of each of four writers: none lost, none split (CI:
// 100,000).
#[test]
fn no_line_of_four_writers_is_lost_or_split() {
    let env = TestEnv::new();
    let count = line_count();
    let line = format!("scrun -nodes=4 system sh -c 'seq -f \"$SCORE_SELF_NODE:%.0f\" {count}'");
    let outcome = env.sh(&line).run().expect_code(0);
    let text = outcome.text();
    let mut next: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        let (node, number) = line.split_once(':').unwrap_or_else(|| panic!("split: {line:?}"));
        let expected = next.entry(node).or_insert(1);
        assert_eq!(number.parse::<usize>().ok(), Some(*expected), "node {node}: {line:?}");
        *expected += 1;
    }
    let counts: Vec<(&str, usize)> = next.into_iter().collect();
    assert_eq!(counts, ["0", "1", "2", "3"].map(|node| (node, count + 1)));
}

// Promise (output and input): A line of up to 64 KiB written by one write() is never split.
#[test]
fn a_line_of_64_kib_is_never_split() {
    let env = TestEnv::new();
    // dd writes each block by one write(). A block is one line of 65,536 bytes.
    env.sh("for n in 0 1 2 3; do yes $n | tr -d '\\n' | head -c 65535 > l$n; echo >> l$n; done")
        .run();
    let dir = env.dir().display();
    let line = format!(
        "scrun -nodes=4 system sh -c 'for i in $(seq 40); do \
         dd if={dir}/l$SCORE_SELF_NODE bs=64k count=1 status=none; done'"
    );
    let outcome = env.sh(&line).run().expect_code(0);
    let text = outcome.text();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let first = line.chars().next().unwrap();
        assert_eq!(line.len(), 65_535, "a line of {} bytes", line.len());
        assert!(line.chars().all(|letter| letter == first), "lines of two nodes are mixed");
        *counts.entry(first).or_insert(0) += 1;
    }
    let counts: Vec<(char, i32)> = counts.into_iter().collect();
    assert_eq!(counts, [('0', 40), ('1', 40), ('2', 40), ('3', 40)]);
}

#[test]
fn standard_error_is_kept_apart_and_whole() {
    let env = TestEnv::new();
    let line = "scrun -nodes=4,message=quiet system sh -c \
                'seq 5000; seq 5000 | sed s/^/e/ >&2' 2> errors | sort | uniq -c | wc -l";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.text().trim(), "5000");
    let errors = std::fs::read_to_string(env.dir().join("errors")).unwrap();
    assert_eq!(errors.lines().count(), 20_000);
    assert!(errors.lines().all(|line| line.starts_with('e')));
}

#[test]
fn a_last_line_without_newline_arrives() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=1", "system", "printf", "no newline"]).run().expect_code(0);
    assert_eq!(outcome.text(), "no newline");
}
