//! Checks the rules for names in docs/dev/names.md that a program can check. [`source`] finds the
//! definitions in a file, [`rules`] checks their names.

mod rules;
mod source;

use super::Tree;
use rules::Rules;
use source::Source;

const DOCUMENT: &str = "docs/dev/names.md";

/// The names that break a rule of docs/dev/names.md.
pub fn check(tree: &Tree) -> Vec<String> {
    let document = tree.files.iter().find(|file| file.path == DOCUMENT);
    let words = document.map(|file| rules::word_list(&file.lines)).unwrap_or_default();
    if words.is_empty() {
        return vec![format!("{DOCUMENT}: no word list: a table whose first column is `word`")];
    }
    let mut findings = Vec::new();
    let mut rules = Rules::new(words);
    for file in tree.files_with_extension(&["rs"]) {
        match Source::parse(&file.path, &file.lines.join("\n")) {
            Ok(source) => rules.file(&source),
            Err(error) => findings.push(format!("{}: cannot be read: {error}", file.path)),
        }
    }
    findings.extend(rules.findings());
    findings
}
