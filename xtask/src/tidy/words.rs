//! Words that must not stand in the tree. They are put together here from halves, so that this
//! file does not find itself.

use super::Tree;

const UNFINISHED: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

const PLACES: &[&str] = &[
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
const JUMPING: &[&str] = &[concat!("CLOCK_", "REALTIME"), concat!("gettime", "ofday")];
/// The scenario of a clock that jumps makes it do so.
const MAKES_IT_JUMP: &str = "tests/programs/clock.c";

/// Lines with one of those words.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.ends_with(".lock")) {
        let code = [".rs", ".c", ".h"].iter().any(|end| file.path.ends_with(end));
        for (index, line) in file.lines.iter().enumerate() {
            let unfinished = UNFINISHED.iter().filter(|_| code);
            let jumping = JUMPING.iter().filter(|_| code && file.path != MAKES_IT_JUMP);
            let words = unfinished.chain(jumping).chain(PLACES);
            for word in words.filter(|word| line.contains(**word)) {
                findings.push(format!("{}:{}: {word:?}", file.path, index + 1));
            }
        }
    }
    findings
}
