//! Words that must not stand in the tree. They are put together here from halves, so that this
//! file does not find itself.

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

/// A clock that can jump: time-outs go by one that cannot (see clippy.toml, too).
const WALL_CLOCK_CALLS: &[&str] = &[concat!("CLOCK_", "REALTIME"), concat!("gettime", "ofday")];
/// The scenario of a clock that jumps makes it do so.
const WALL_CLOCK_EXEMPT: &str = "tests/programs/clock.c";

/// Lines with one of those words.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.ends_with(".lock")) {
        let code = [".rs", ".c", ".h"].iter().any(|end| file.path.ends_with(end));
        for (index, line) in file.lines.iter().enumerate() {
            let unfinished = TODO_MARKERS.iter().filter(|_| code);
            let wall_clock =
                WALL_CLOCK_CALLS.iter().filter(|_| code && file.path != WALL_CLOCK_EXEMPT);
            let words = unfinished.chain(wall_clock).chain(FORBIDDEN_PATHS_AND_HOSTS);
            for word in words.filter(|word| line.contains(**word)) {
                findings.push(format!("{}:{}: {word:?}", file.path, index + 1));
            }
        }
    }
    findings
}
