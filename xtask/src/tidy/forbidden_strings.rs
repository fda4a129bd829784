//! Words that the tree must not contain. They are concatenated here from halves, so that this file
//! does not match.

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

/// A clock that can jump: time-outs use one that cannot (see clippy.toml, too).
const WALL_CLOCK_CALLS: &[&str] = &[concat!("CLOCK_", "REALTIME"), concat!("gettime", "ofday")];
/// The scenario with a jumping clock needs these calls; the other file reads futex(2) flags of
/// other processes.
const WALL_CLOCK_EXEMPT: &[&str] =
    &["tests/programs/clock.c", "scored/src/shepherd/inspection/thread_rules.rs"];

/// Lines with one of those words.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.ends_with(".lock")) {
        let code = [".rs", ".c", ".h"].iter().any(|end| file.path.ends_with(end));
        for (index, line) in file.lines.iter().enumerate() {
            let unfinished = TODO_MARKERS.iter().filter(|_| code);
            let is_exempt = WALL_CLOCK_EXEMPT.contains(&file.path.as_str());
            let wall_clock = WALL_CLOCK_CALLS.iter().filter(|_| code && !is_exempt);
            let words = unfinished.chain(wall_clock).chain(FORBIDDEN_PATHS_AND_HOSTS);
            for word in words.filter(|word| line.contains(**word)) {
                findings.push(format!("{}:{}: {word:?}", file.path, index + 1));
            }
        }
    }
    findings
}
