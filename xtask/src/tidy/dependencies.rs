//! Checks the dependencies. Cargo.toml has one table of them, docs/dev/dependencies.md gives a
//! reason for each, and each is used.

use std::collections::BTreeSet;

use super::Tree;

const DOCUMENT: &str = "docs/dev/dependencies.md";

/// Direct dependencies without a line in the document, lines without a dependency, and unused
/// entries.
pub fn check(tree: &Tree) -> Vec<String> {
    let used = used_dependencies(tree);
    let table = workspace_dependencies(tree);
    let documented = documented_dependencies(tree);
    let mut findings = Vec::new();
    for name in used.difference(&documented) {
        findings.push(format!("{name}: no line in {DOCUMENT}"));
    }
    for name in documented.difference(&used) {
        findings.push(format!("{DOCUMENT}: {name} is no longer a dependency"));
    }
    for name in table.difference(&used) {
        findings.push(format!("Cargo.toml: no package uses {name}"));
    }
    for name in used.difference(&table) {
        findings.push(format!("{name}: not in the table of Cargo.toml"));
    }
    findings.extend(unused_dependencies(tree));
    findings
}

/// Dependencies that a package declares and no source file of it names.
fn unused_dependencies(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for package in tree.metadata["packages"].as_array().into_iter().flatten() {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_string();
        let manifest = text("manifest_path");
        let root_prefix = format!("{}/", tree.root.display());
        let folder =
            manifest.strip_prefix(&root_prefix).unwrap_or_default().trim_end_matches("Cargo.toml");
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            // Some packages only link the archive or object of a crate of this workspace.
            let crate_name = name.replace('-', "_");
            let sources =
                tree.files_with_extension(&["rs"]).filter(|file| file.path.starts_with(folder));
            let names_crate =
                |file: &super::Text| file.lines.iter().any(|line| line.contains(&crate_name));
            if dependency["path"].is_null() && !sources.into_iter().any(names_crate) {
                findings.push(format!("{}: {name} is declared and not used", text("name")));
            }
        }
    }
    findings
}

/// The external dependencies that the packages declare.
fn used_dependencies(tree: &Tree) -> BTreeSet<String> {
    let packages = tree.metadata["packages"].as_array().into_iter().flatten();
    let dependencies =
        packages.flat_map(|package| package["dependencies"].as_array().into_iter().flatten());
    dependencies
        .filter(|dependency| dependency["path"].is_null())
        .filter_map(|dependency| dependency["name"].as_str().map(String::from))
        .collect()
}

/// The names in `[workspace.dependencies]` that are not packages of the workspace.
fn workspace_dependencies(tree: &Tree) -> BTreeSet<String> {
    let manifest = tree.files.iter().find(|file| file.path == "Cargo.toml");
    let lines = manifest.into_iter().flat_map(|file| &file.lines);
    let table = lines.skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let entries = table.take_while(|line| !line.starts_with('['));
    entries
        .filter(|line| !line.starts_with('#') && !line.contains("path ="))
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim().to_string()))
        .collect()
}

/// The names in the first column of the document's table.
fn documented_dependencies(tree: &Tree) -> BTreeSet<String> {
    let document = tree.files.iter().find(|file| file.path == DOCUMENT);
    let lines = document.into_iter().flat_map(|file| &file.lines);
    lines
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split_once('`').map(|(name, _)| name.to_string()))
        .collect()
}
