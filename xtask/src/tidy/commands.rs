//! Checks that every command has a program, a man page and a test.

use super::Tree;

/// Packages whose programs are for developers, not for users.
const DEVELOPER_PACKAGES: &[&str] = &["xtask", "score-tests", "score-benches", "score-lan"];

/// The names of all commands that users get.
pub fn command_names(tree: &Tree) -> Vec<String> {
    let bins = tree.targets("bin").into_iter();
    bins.filter(|(package, _, _)| !DEVELOPER_PACKAGES.contains(&package.as_str()))
        // A name in Cargo cannot contain `+`, so commands/build.rs gives this program its name.
        .map(|(_, name, _)| if name == "scorecxx" { "scorec++".into() } else { name })
        .collect()
}

/// Commands without a man page, and commands that no scenario or test names.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for name in command_names(tree) {
        let is_man_page = |path: &str| {
            path.rsplit_once('/').is_some_and(|(folder, file)| {
                folder.starts_with("docs/man")
                    && file.rsplit_once('.').is_some_and(|(stem, _)| stem == name)
            })
        };
        if !tree.files.iter().any(|file| is_man_page(&file.path)) {
            findings.push(format!("{name}: no man page docs/man/{name}.N"));
        }
        let is_tested = tree.files_with_extension(&["rs"]).any(|file| {
            (file.path.starts_with("tests/") || file.path.contains("/tests/"))
                && file.lines.iter().any(|line| has_word(line, &name))
        });
        if !is_tested {
            findings.push(format!("{name}: no test names it"));
        }
    }
    findings
}

/// Whether `line` contains `word` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let is_word_char = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '+';
    line.match_indices(word).any(|(start, found)| {
        let before = line[..start].chars().next_back();
        let after = line[start + found.len()..].chars().next();
        !before.is_some_and(is_word_char) && !after.is_some_and(is_word_char)
    })
}

#[cfg(test)]
mod tests {
    use super::has_word;

    #[test]
    fn a_word_is_not_found_inside_another_word() {
        assert!(has_word("run(\"system\")", "system"));
        assert!(!has_word("filesystem", "system"));
        assert!(!has_word("scorec++", "scorec"));
    }
}
