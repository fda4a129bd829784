//! Checks documents: links have targets, and man pages render without warnings.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Text, Tree};
use crate::run;

/// Links in Markdown files to files or headings that do not exist.
pub fn links(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in tree.files_with_extension(&["md"]) {
        for (index, line) in file.lines.iter().enumerate() {
            for target in link_targets(line) {
                if let Some(reason) = link_error(tree, file, target) {
                    findings.push(format!("{}:{}: {target}: {reason}", file.path, index + 1));
                }
            }
        }
    }
    findings
}

/// The targets of `[text](target)` in a line.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

fn link_error(tree: &Tree, from: &Text, target: &str) -> Option<&'static str> {
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
    let has_heading = headings
        .map(|line| slug(line.trim_start_matches('#')))
        .any(|heading_slug| heading_slug == anchor);
    if has_heading { None } else { Some("no such heading") }
}

/// The anchor that code hosting sites make from a heading.
fn slug(heading: &str) -> String {
    let kept =
        heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

/// The warnings of groff about the man pages. Empty if groff is not installed.
pub fn man_pages(tree: &Tree) -> Vec<String> {
    if !run::is_installed("groff") {
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
            // Pages include other pages by names relative to this directory.
            .current_dir(tree.root.join("docs/man"))
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() && output.stderr.is_empty() => {}
            Ok(output) => {
                let messages = String::from_utf8_lossy(&output.stderr);
                findings
                    .extend(messages.lines().take(3).map(|line| format!("{}: {line}", page.path)));
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
        assert_eq!(link_targets(line).collect::<Vec<_>>(), ["b.md#c", "https://x/y"]);
        assert_eq!(slug(" A job's life"), "a-jobs-life");
    }
}
