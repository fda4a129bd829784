//! `cargo xtask tidy`: checks the rules that no compiler checks. Each file has functions for one
//! subject, which return the lines of the tree that break a rule. A test of this package also
//! runs them.

mod commands;
mod crate_graph;
mod dependencies;
mod documents;
mod forbidden_strings;
mod imports;
mod modules;
mod names;
mod sizes;
mod test_matrix;
mod types;
mod unsafety;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

/// A tracked text file.
pub struct Text {
    /// The path from the top of the tree, with `/`.
    pub path: String,
    /// The lines of the file.
    pub lines: Vec<String>,
}

/// The source tree, as tidy has read it.
pub struct Tree {
    /// The top directory.
    pub root: PathBuf,
    /// All text files that are tracked, or new and not ignored.
    pub files: Vec<Text>,
    /// The output of `cargo metadata` about the workspace's own packages.
    pub metadata: serde_json::Value,
}

impl Tree {
    /// The files whose name ends in one of `extensions`.
    pub fn files_with_extension<'a>(
        &'a self,
        extensions: &'a [&str],
    ) -> impl Iterator<Item = &'a Text> {
        self.files.iter().filter(|file| {
            Path::new(&file.path)
                .extension()
                .is_some_and(|found| extensions.iter().any(|wanted| found == *wanted))
        })
    }

    /// All targets of one kind, as (package, name, source file).
    pub fn targets(&self, kind: &str) -> Vec<(String, String, PathBuf)> {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
        let mut found = Vec::new();
        for package in self.metadata["packages"].as_array().into_iter().flatten() {
            for target in package["targets"].as_array().into_iter().flatten() {
                let kinds = target["kind"].as_array().into_iter().flatten();
                if kind.is_empty() || kinds.into_iter().any(|target_kind| target_kind == kind) {
                    let source = PathBuf::from(text(&target["src_path"]));
                    found.push((text(&package["name"]), text(&target["name"]), source));
                }
            }
        }
        found
    }
}

/// Reads the tree.
///
/// # Errors
/// Returns an error if git or cargo fails.
fn read_tree() -> Result<Tree, String> {
    let root = run::source_root();
    let git_output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    let mut files = Vec::new();
    for name in git_output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let path = String::from_utf8_lossy(name).into_owned();
        // Files that are no text are skipped, for example corpora. A deleted file may still be
        // listed.
        if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
            files.push(Text { path, lines: text.lines().map(String::from).collect() });
        }
    }
    if files.is_empty() {
        return Err("git lists no file: tidy needs a clone".into());
    }
    let output = run::cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata gave no JSON: {error}"))?;
    Ok(Tree { root, files, metadata })
}

/// A rule: its name, and the function that finds the lines that break it.
type Rule = (&'static str, fn(&Tree) -> Vec<String>);

const RULES: &[Rule] = &[
    ("every source file belongs to a module tree", modules::orphans),
    ("files of a crate use each other in one direction", imports::circles),
    ("every command has a man page and a test that names it", commands::check),
    ("names are the field's (docs/dev/names.md)", names::check),
    ("files, functions and lines fit a screen", sizes::check),
    ("types have at most 16 fields and 60 methods", types::check),
    ("nothing is left to do or hidden, no path of one machine", forbidden_strings::check),
    ("every dependency is used and has its line", dependencies::check),
    ("packages use what docs/ARCHITECTURE.md allows", crate_graph::check),
    ("unsafe code says why", unsafety::unexplained_unsafe),
    ("both ends of a SYNC pair are marked", unsafety::unpaired_sync_comments),
    ("links in documents resolve", documents::links),
    ("docs/dev/test-matrix.md lists the promises at tests", test_matrix::check),
    ("man pages render without a warning", documents::man_pages),
];

/// Checks every rule. `Ok` contains the hints, which are not failures.
///
/// # Errors
/// All findings, one per line.
pub fn check() -> Result<Vec<String>, String> {
    let tree = read_tree()?;
    let mut findings = Vec::new();
    for (name, rule) in RULES {
        for finding in rule(&tree) {
            findings.push(format!("{finding}   [{name}]"));
        }
    }
    if findings.is_empty() {
        Ok(sizes::hints(&tree))
    } else {
        let count = findings.len();
        findings.push(format!("{count} findings"));
        Err(findings.join("\n"))
    }
}

pub use test_matrix::write as write_matrix;

/// The commands that users get.
///
/// # Errors
/// Returns an error if the tree cannot be read.
pub fn command_names() -> Result<Vec<String>, String> {
    Ok(commands::command_names(&read_tree()?))
}

/// `cargo xtask tidy`.
///
/// # Errors
/// The findings.
pub fn run(_args: &[String]) -> Result<(), String> {
    let hints = check().map_err(|findings| format!("the tree is not tidy\n{findings}"))?;
    for hint in &hints {
        println!("hint: {hint}");
    }
    println!("tidy: {} rules hold", RULES.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tree_is_tidy() {
        if let Err(findings) = super::check() {
            panic!("{findings}");
        }
    }
}
