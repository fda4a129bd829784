//! Finds words that the tree must not contain. This file builds each word from two halves, so that
//! it does not match itself.

use super::Tree;

const TODO_MARKERS: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

const FORBIDDEN_PATHS_AND_HOSTS: &[&str] = &[
    concat!("/wor", "k/"),
    concat!("/far", "m/"),
    concat!("/tmp/", "w/"),
    concat!("/tmp/", "t-"),
    concat!("/roo", "t/"),
    concat!("/home", "/"),
    concat!("/.libr", "ary"),
    concat!("deb.deb", "ian.org"),
    concat!("static.cr", "ates"),
    concat!("pypi", ".org"),
];

/// Attributes that hide public items from the documentation. Items that only tests use are behind
/// the feature `testing` of their package instead.
const HIDING_ATTRIBUTES: &[&str] = &[concat!("doc(", "hidden")];

/// Clocks that can jump. Time-outs use a clock that cannot (see also clippy.toml).
const WALL_CLOCK_CALLS: &[&str] = &[concat!("CLOCK_", "REALTIME"), concat!("gettime", "ofday")];
/// Files that may use them: the scenario with a jumping clock, and the reader of other processes'
/// futex(2) flags.
const WALL_CLOCK_EXEMPT: &[&str] =
    &["tests/programs/clock.c", "scored/src/shepherd/inspection/thread_rules.rs"];

/// The lines that contain one of these words.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.ends_with(".lock")) {
        let code = [".rs", ".c", ".h"].iter().any(|end| file.path.ends_with(end));
        for (index, line) in file.lines.iter().enumerate() {
            let unfinished = TODO_MARKERS.iter().filter(|_| code);
            let is_exempt = WALL_CLOCK_EXEMPT.contains(&file.path.as_str());
            let wall_clock = WALL_CLOCK_CALLS.iter().filter(|_| code && !is_exempt);
            let hiding = HIDING_ATTRIBUTES.iter().filter(|_| code);
            let words = unfinished.chain(wall_clock).chain(hiding).chain(FORBIDDEN_PATHS_AND_HOSTS);
            for word in words.filter(|word| line.contains(**word)) {
                findings.push(format!("{}:{}: {word:?}", file.path, index + 1));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Text;

    /// The findings in a tree with one file, which has one line.
    fn findings(path: &str, line: String) -> Vec<String> {
        let files = vec![Text { path: path.to_owned(), lines: vec![line] }];
        check(&Tree { root: "/nonexistent".into(), files, metadata: serde_json::Value::Null })
    }

    #[test]
    fn an_item_that_the_documentation_hides_is_found_in_source_files() {
        let line = || format!("#[{}]", ["doc(", "hidden)"].concat());
        assert_eq!(findings("a/src/lib.rs", line()).len(), 1);
        assert_eq!(findings("README.md", line()), Vec::<String>::new());
        assert_eq!(findings("a/src/lib.rs", "#[doc(inline)]".to_owned()), Vec::<String>::new());
    }
}
