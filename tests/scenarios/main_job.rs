//! The user types `scrun -nodes=4 scatter == system wc < FILE` and sees four lines, each with the
//! counts of the whole file; a file that is scattered comes back identical.

use score_tests::Scene;

/// Lines of growing length, several megabytes in all.
fn text(lines: usize) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for line in 0..lines {
        let _ = writeln!(text, "line {line} of the text {}", "and on ".repeat(line % 17));
    }
    text
}

#[test]
fn every_node_counts_the_whole_file() {
    let scene = Scene::new();
    let text = text(60_000);
    let words = text.split_whitespace().count();
    scene.file("text", &text);
    let outcome = scene.sh("scrun -nodes=4 scatter == system wc < text").run().expect(0);
    let lines: Vec<Vec<String>> = outcome
        .text()
        .lines()
        .map(|line| line.split_whitespace().map(String::from).collect())
        .collect();
    let expected = vec![60_000.to_string(), words.to_string(), text.len().to_string()];
    assert_eq!(lines, vec![expected; 4], "{outcome}");
}

#[test]
fn a_file_scattered_into_the_job_comes_back_identical_from_the_last_node() {
    let scene = Scene::new();
    let bytes: Vec<u8> =
        (0..3_000_001_u32).map(|n| (n.wrapping_mul(2654435761) >> 24) as u8).collect();
    scene.file("data", &bytes);
    let line = "scrun -nodes=4 scatter == gather -node 3 < data > back";
    scene.sh(line).run().expect(0).says(&[]).text();
    assert!(std::fs::read(scene.dir().join("back")).unwrap() == bytes, "the file differs");
}

#[test]
fn a_file_in_the_job_directory_serves_the_next_element() {
    let scene = Scene::new();
    let text = text(5_000);
    scene.file("data", &text);
    let line = "scrun -nodes=3 scatter -file copy :: system md5sum copy < data";
    let outcome = scene.sh(line).run().expect(0);
    let own = scene.sh("md5sum < data").run().text();
    let sum = own.split_whitespace().next().unwrap();
    let found = outcome.text().lines().filter(|line| line.starts_with(sum)).count();
    assert_eq!(found, 3, "{outcome}");
}

#[test]
fn gather_without_a_node_puts_them_in_order() {
    let scene = Scene::new();
    let line = "scrun -nodes=4 system sh -c 'echo I am $SCORE_SELF_NODE' == gather";
    let outcome = scene.sh(line).run().expect(0);
    assert_eq!(outcome.text(), "I am 0\nI am 1\nI am 2\nI am 3\n");
}

#[test]
fn one_node_needs_no_network() {
    let scene = Scene::new();
    let outcome = scene.sh("echo alone | scrun -nodes=1 scatter == system cat").run().expect(0);
    assert_eq!(outcome.text(), "alone\n");
}
