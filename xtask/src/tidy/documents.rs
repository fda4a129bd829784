//! Documents: links lead somewhere, man pages render.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Text, Tree};
use crate::run;

/// Links of Markdown files to files or headings that are not there.
pub fn links(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.ending(&["md"]) {
        for (index, line) in file.lines.iter().enumerate() {
            for target in targets(line) {
                if let Some(fault) = fault(tree, file, target) {
                    findings.push(format!("{}:{}: {target}: {fault}", file.path, index + 1));
                }
            }
        }
    }
    findings
}

/// The targets of `[text](target)` in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

fn fault(tree: &Tree, from: &Text, target: &str) -> Option<&'static str> {
    if target.starts_with("http://") || target.starts_with("https://") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = tree.root.join(&from.path);
    let folder = folder.parent().unwrap_or(Path::new(""));
    let file = if path.is_empty() { tree.root.join(&from.path) } else { folder.join(path) };
    if !file.exists() {
        return Some("no such file");
    }
    if anchor.is_empty() || anchor.starts_with('L') {
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let known = headings.map(|line| slug(line.trim_start_matches('#'))).any(|one| one == anchor);
    if known { None } else { Some("no such heading") }
}

/// A heading as forges make an anchor of it.
fn slug(heading: &str) -> String {
    let kept =
        heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

/// Tests that docs/SPECIFICATION.md names behind a link to their file, and that are not there.
pub fn promises(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    let page = tree.files.iter().filter(|file| file.path == "docs/SPECIFICATION.md");
    for line in page.flat_map(|file| &file.lines) {
        for part in line.split("](../").skip(1) {
            let Some((path, rest)) = part.split_once(')') else { continue };
            let names = rest.split("; ").next().unwrap_or(rest).split('`').skip(1).step_by(2);
            let source = tree.files.iter().find(|file| file.path == path);
            for name in names {
                let function = format!("fn {name}(");
                let there = |file: &&Text| file.lines.iter().any(|line| line.contains(&function));
                if source.filter(there).is_none() {
                    findings.push(format!("docs/SPECIFICATION.md: {path} has no test {name}"));
                }
            }
        }
    }
    findings
}

/// What groff says about the man pages; nothing where it is not installed.
pub fn man_pages(tree: &Tree) -> Vec<String> {
    if !run::have("groff") {
        return Vec::new();
    }
    let pages = tree.files.iter().filter(|file| {
        let section = Path::new(&file.path).extension().and_then(|end| end.to_str());
        file.path.starts_with("docs/man/") && section.is_some_and(|end| end.len() == 1)
    });
    let mut findings = Vec::new();
    for page in pages {
        let output = Command::new("groff")
            .args(["-man", "-Tutf8", "-Kutf8", "-ww", "-z"])
            .arg(tree.root.join(&page.path))
            // Pages that stand for another one name it from here.
            .current_dir(tree.root.join("docs/man"))
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() && output.stderr.is_empty() => {}
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                findings.extend(said.lines().take(3).map(|line| format!("{}: {line}", page.path)));
            }
            Err(error) => findings.push(format!("{}: groff: {error}", page.path)),
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_slugs_are_as_forges_make_them() {
        let line = "see [a](b.md#c) and [d](https://x/y)";
        assert_eq!(targets(line).collect::<Vec<_>>(), ["b.md#c", "https://x/y"]);
        assert_eq!(slug(" A job's life"), "a-jobs-life");
    }
}
