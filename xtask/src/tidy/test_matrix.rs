//! Writes docs/dev/test-matrix.md, which lists the promises of SCore and the tests that check each
//! promise. The page is made from comments in front of the attributes of tests:
//! `// Promise (SECTION): TEXT` at the first test of a promise, and `// Promise of NAME.` at other
//! tests. NAME is the first test.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Text, Tree};
use crate::run;

const DOCUMENT: &str = "docs/dev/test-matrix.md";

const HEAD: &str = "\
# Promises and tests

This page is for maintainers. It lists what SCore promises, and the tests that check each promise.
`cargo xtask matrix` writes it from comments at the tests (`// Promise (SECTION): TEXT` at the first
test of a promise, `// Promise of NAME.` at further ones). `cargo xtask tidy` checks that it is up
to date. [compatibility.md](../compatibility.md) has the decisions on questions that the manual
leaves open or contradicts. Promises of speed are ratios within one run, because the machines are
shared. [trials.md](trials.md#what-each-figure-is-and-what-limits-it) names the figures that miss
them.
";

/// The sections of the page, in order.
const SECTIONS: &[&str] = &[
    "use",
    "hosts",
    "jobs on many hosts",
    "several users",
    "cluster",
    "messages",
    "output and input",
    "debug manager",
    "tools",
    "faults",
    "time-sharing",
    "deadlock",
    "MPI",
    "monitors",
    "speed",
];

const PROMISE: &str = "// Promise (";
const FURTHER: &str = "// Promise of ";

/// A comment of a promise at a test.
struct Note {
    file: String,
    test: String,
    subject: Subject,
}

enum Subject {
    /// A promise: its section and its text.
    Promise(String, String),
    /// The test that has the text of the promise.
    Further(String),
}

/// The errors in the comments or in the page.
pub fn check(tree: &Tree) -> Vec<String> {
    let page = match render(tree) {
        Ok(page) => page,
        Err(findings) => return findings,
    };
    let written = tree.files.iter().find(|file| file.path == DOCUMENT);
    let is_equal =
        written.is_some_and(|file| file.lines.iter().map(String::as_str).eq(page.lines()));
    let finding =
        (!is_equal).then(|| format!("{DOCUMENT} is not up to date; run cargo xtask matrix"));
    finding.into_iter().collect()
}

/// `cargo xtask matrix`: writes the page.
///
/// # Errors
/// Returns an error if a comment is wrong, or the page cannot be written.
pub fn write(_args: &[String]) -> Result<(), String> {
    let page = render(&super::read_tree()?).map_err(|findings| findings.join("\n"))?;
    let path = run::source_root().join(DOCUMENT);
    std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))
}

/// The page, or the errors in the comments.
fn render(tree: &Tree) -> Result<String, Vec<String>> {
    let sources = tree.files_with_extension(&["rs"]).filter(|file| !file.path.ends_with(file!()));
    let (notes, mut findings) = read_notes(sources);
    let is_first = |note: &&Note, name: &str| {
        note.test == name && matches!(note.subject, Subject::Promise(..))
    };
    let mut rows: BTreeMap<(usize, &str), Vec<&Note>> = BTreeMap::new();
    let mut texts = Vec::new();
    for note in &notes {
        match &note.subject {
            Subject::Promise(section, text) => texts.push((section, text, note)),
            Subject::Further(name) => {
                let count = notes.iter().filter(|note| is_first(note, name)).count();
                if count != 1 {
                    let Note { file, test, .. } = note;
                    findings.push(format!("{file}: {test}: {count} promises at a test {name:?}"));
                }
            }
        }
    }
    for (section, text, first) in &texts {
        let Some(position) = SECTIONS.iter().position(|known| known == section) else {
            findings.push(format!(
                "{}: {}: unknown section {section:?} (valid: {})",
                first.file,
                first.test,
                SECTIONS.join(", ")
            ));
            continue;
        };
        let further = notes
            .iter()
            .filter(|note| matches!(&note.subject, Subject::Further(name) if *name == first.test));
        rows.entry((position, text)).or_default().extend(std::iter::once(*first).chain(further));
    }
    if !findings.is_empty() {
        return Err(findings);
    }
    let mut page = HEAD.to_owned();
    for (position, section) in SECTIONS.iter().enumerate() {
        let in_section = rows.iter().filter(|((number, _), _)| *number == position);
        let lines: Vec<String> = in_section
            .map(|((_, text), tests)| format!("| {text} | {} |\n", tests_cell(tests)))
            .collect();
        if !lines.is_empty() {
            let heading = section[..1].to_uppercase() + &section[1..];
            let _ = write!(
                page,
                "\n## {heading}\n\n| promise | tests |\n|---|---|\n{}",
                lines.concat()
            );
        }
    }
    Ok(page)
}

/// The tests of a promise, each file once.
fn tests_cell(tests: &[&Note]) -> String {
    let mut files: Vec<(&str, Vec<&str>)> = Vec::new();
    for note in tests {
        match files.iter_mut().find(|(file, _)| *file == note.file) {
            Some((_, names)) => names.push(&note.test),
            None => files.push((&note.file, vec![&note.test])),
        }
    }
    let cells = files.iter().map(|(file, names)| {
        let name = file.rsplit('/').next().unwrap_or(file);
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("[{name}](../../{file}) {}", names.join(", "))
    });
    cells.collect::<Vec<_>>().join("; ")
}

/// The comments of all tests, and the errors about comments without a test.
fn read_notes<'a>(sources: impl Iterator<Item = &'a Text>) -> (Vec<Note>, Vec<String>) {
    let (mut notes, mut findings) = (Vec::new(), Vec::new());
    for file in sources {
        for (index, line) in file.lines.iter().enumerate() {
            let line = line.trim_start();
            if !line.starts_with(PROMISE) && !line.starts_with(FURTHER) {
                continue;
            }
            match read_note(&file.lines[index..]) {
                Some((subject, test)) => {
                    notes.push(Note { file: file.path.clone(), test, subject })
                }
                None => {
                    findings.push(format!("{}:{}: a promise without a test", file.path, index + 1))
                }
            }
        }
    }
    (notes, findings)
}

/// The comment that begins the lines, and the name of the test below it.
fn read_note(lines: &[String]) -> Option<(Subject, String)> {
    let lines = lines.iter().map(|line| line.trim_start());
    let is_new = |line: &str| line.starts_with(PROMISE) || line.starts_with(FURTHER);
    let more = lines.clone().skip(1).take_while(|line| line.starts_with("// ") && !is_new(line));
    let comment: Vec<&str> = lines.clone().take(1).chain(more).map(|line| &line[3..]).collect();
    let comment = comment.join(" ");
    let mut below = lines.skip_while(|line| line.starts_with("//") || line.starts_with("#["));
    let name = below.next()?.split_once("fn ")?.1.split('(').next()?.to_owned();
    let subject = match comment.strip_prefix("Promise of ") {
        Some(first) => Subject::Further(first.trim_end_matches('.').trim_matches('`').to_owned()),
        None => {
            let (section, text) = comment.strip_prefix("Promise (")?.split_once("): ")?;
            Subject::Promise(section.to_owned(), text.trim_end_matches('.').to_owned())
        }
    };
    Some((subject, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &str) -> Option<(Subject, String)> {
        read_note(&text.lines().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_promise_is_read_with_its_test() {
        let text =
            "// Promise (hosts): A job\n// runs.\n// Promise of other.\n#[test]\nfn name() {";
        let Some((Subject::Promise(section, text), test)) = note(text) else { panic!() };
        assert_eq!(
            (section.as_str(), text.as_str(), test.as_str()),
            ("hosts", "A job runs", "name")
        );
        let Some((Subject::Further(first), _)) = note("    // Promise of `x`.\n    fn y() {")
        else {
            panic!()
        };
        assert_eq!(first, "x");
        assert!(note("// Promise (hosts): A job runs.\nstruct Test;").is_none());
    }
}
