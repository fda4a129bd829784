//! Checks sizes. Soft limits give hints, hard limits give failures.

use super::{Text, Tree};

const FILE_SOFT: usize = 500;
const FILE_HARD: usize = 700;
const FUNCTION_SOFT: usize = 60;
const FUNCTION_HARD: usize = 100;
const LINE_HARD: usize = 100;
/// A hard limit for lines with string literals. rustfmt cannot break a literal, and a table of
/// literals is easier to read with long lines.
const LITERAL_HARD: usize = 140;
/// The hard limit for the keeper in lines of code, without comments and tests. The keeper runs as
/// root.
const KEEPER_HARD: usize = 1500;
const KEEPER_FOLDERS: [&str; 2] = ["keeper/src/", "scored/src/keeper/"];

/// Files, functions and lines that exceed a hard limit.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.files_with_extension(&["rs", "c", "h"]) {
        let length = file.lines.len();
        if length > FILE_HARD {
            findings.push(format!("{}: {length} lines, at most {FILE_HARD}", file.path));
        }
        for (index, line) in file.lines.iter().enumerate() {
            let width = line.chars().count();
            let has_literal = line.contains('"') && !line.trim_start().starts_with("//");
            let limit = if has_literal { LITERAL_HARD } else { LINE_HARD };
            if width > limit {
                let number = index + 1;
                findings.push(format!("{}:{number}: {width} columns, at most {limit}", file.path));
            }
        }
    }
    let pages = tree.files.iter().filter(|file| file.path.starts_with("docs/man/"));
    for file in tree.files_with_extension(&["md"]).chain(pages) {
        let text = file.lines.iter().enumerate().filter(|(index, _)| is_text(&file.lines, *index));
        let long = text.map(|(index, line)| (index + 1, line.chars().count()));
        findings.extend(long.filter(|(_, width)| *width > LINE_HARD).map(|(number, width)| {
            format!("{}:{number}: {width} columns, at most {LINE_HARD}", file.path)
        }));
    }
    findings.extend(long_functions(tree, FUNCTION_HARD));
    let length = keeper_length(tree);
    if length > KEEPER_HARD {
        let folders = KEEPER_FOLDERS.join(" and ");
        findings.push(format!("{folders}: {length} lines of code, at most {KEEPER_HARD}"));
    }
    findings
}

/// Whether a line of Markdown or of a manual page can be broken. Tables, code, requests of roff and
/// single words cannot.
fn is_text(lines: &[String], index: usize) -> bool {
    let line = lines[index].as_str();
    let before = &lines[..=index];
    let count =
        |start: &str| before.iter().filter(|line| line.trim_start().starts_with(start)).count();
    let is_open = |begin, end| count(begin) > count(end);
    let is_code = count("```") % 2 == 1 || line.starts_with("    ");
    let is_verbatim = is_code || is_open(".EX", ".EE") || is_open(".nf", ".fi");
    !is_verbatim && !line.starts_with(['|', '.']) && line.trim_start_matches("- ").contains(' ')
}

/// The number of lines of code in the keeper.
fn keeper_length(tree: &Tree) -> usize {
    let is_part = |file: &&Text| KEEPER_FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    tree.files_with_extension(&["rs"]).filter(is_part).map(|file| code_lines(&file.lines)).sum()
}

/// The number of lines that are neither empty nor comments, up to the tests at the end.
fn code_lines(lines: &[String]) -> usize {
    let code = lines.iter().map(|line| line.trim()).take_while(|line| *line != "#[cfg(test)]");
    code.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Files and functions that exceed a soft limit.
pub fn hints(tree: &Tree) -> Vec<String> {
    let long =
        tree.files_with_extension(&["rs", "c", "h"]).filter(|file| file.lines.len() > FILE_SOFT);
    let files = long.map(|file| format!("{}: {} lines", file.path, file.lines.len()));
    files.chain(long_functions(tree, FUNCTION_SOFT)).collect()
}

fn long_functions(tree: &Tree, limit: usize) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.files_with_extension(&["rs"]) {
        for (line, name, length) in functions(file) {
            if length > limit {
                findings.push(format!("{}:{line}: {name} has {length} lines", file.path));
            }
        }
    }
    findings
}

/// The functions of a file that rustfmt has formatted: line, name and length.
fn functions(file: &Text) -> Vec<(usize, String, usize)> {
    let mut found = Vec::new();
    for (start, line) in file.lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let Some(name) = function_name(code) else { continue };
        let end = format!("{indent}}}");
        // A declaration without a body ends before any closing brace of the same depth.
        let body = file.lines[start..].iter().position(|line| line.ends_with(['{', ';', '}']));
        let has_body = body.is_some_and(|offset| file.lines[start + offset].ends_with('{'));
        if let Some(length) = file.lines[start..].iter().position(|line| *line == end)
            && has_body
        {
            found.push((start + 1, name, length + 1));
        }
    }
    found
}

/// The name in the first line of a function.
fn function_name(code: &str) -> Option<String> {
    let (before, after) = code.split_once("fn ")?;
    let words = ["pub", "const", "unsafe", "extern", "async"];
    let is_function = before.split_whitespace().all(|word| {
        words.iter().any(|known| word.starts_with(known)) || word == "\"C\"" || word.ends_with(')')
    });
    let name: String =
        after.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    (is_function && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_are_counted_without_comments_and_tests() {
        let text = "//! What it is.\n\nfn one() {\n    // Why.\n    two(); // Or not.\n}\n\n\
                    #[cfg(test)]\nmod tests {}\n";
        let lines: Vec<String> = text.lines().map(String::from).collect();
        assert_eq!(code_lines(&lines), 3);
    }

    #[test]
    fn tables_code_and_requests_are_not_measured() {
        let text =
            "some text\n| a cell |\n    some code\n```sh\nsome code\n```\nsome text\n<a-link>";
        let lines: Vec<String> = text.lines().map(String::from).collect();
        let measured: Vec<usize> = (0..lines.len()).filter(|at| is_text(&lines, *at)).collect();
        assert_eq!(measured, [0, 6]);
    }

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let text = "impl A {\n    pub fn one(\n        x: u8,\n    ) -> u8 {\n        x\n    }\n}\n\
                    fn two();\nfn three() {}\nunsafe extern \"C\" fn four() {\n}\n";
        let file = Text { path: String::new(), lines: text.lines().map(String::from).collect() };
        let found = functions(&file);
        assert_eq!(found, [(2, "one".into(), 5), (10, "four".into(), 2)]);
    }
}
