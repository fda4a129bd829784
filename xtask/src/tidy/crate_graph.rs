//! Checks that the dependencies between packages match the table in docs/ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};

use super::Tree;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";
const TABLE_HEADING: &str = "| directory | contents | may use |";

/// For the directory of each package, the directories of the packages that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Differences between the table and the manifests of the workspace.
pub fn check(tree: &Tree) -> Vec<String> {
    let packages = declared_graph(tree);
    let document = tree.files.iter().find(|file| file.path == DOCUMENT);
    let table = documented_graph(document.map_or(&[], |file| &file.lines));
    let mut findings = Vec::new();
    for (folder, used) in &packages {
        let Some(allowed) = table.get(folder) else {
            findings.push(format!("{DOCUMENT}: no line for {folder}/"));
            continue;
        };
        for dependency in used.difference(allowed) {
            findings.push(format!("{folder}/Cargo.toml: {DOCUMENT} does not allow {dependency}"));
        }
        let unused = allowed.difference(used).filter(|folder| packages.contains_key(*folder));
        findings.extend(unused.map(|name| format!("{DOCUMENT}: {folder}/ does not use {name}")));
    }
    findings
}

/// The dependencies of the packages' libraries and programs, without those of tests and build
/// scripts.
fn declared_graph(tree: &Tree) -> Graph {
    let root = tree.root.display().to_string();
    let relative = |path: &str| {
        let path = path.strip_prefix(&root).unwrap_or(path);
        path.trim_end_matches("Cargo.toml").trim_matches('/').to_owned()
    };
    let packages = tree.metadata["packages"].as_array().into_iter().flatten();
    let entry = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let ours = dependencies
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["path"].as_str().map(relative));
        (relative(package["manifest_path"].as_str().unwrap_or_default()), ours.collect())
    };
    packages.map(entry).collect()
}

/// The dependencies in the table: the first column, and the names in backquotes in the third.
fn documented_graph(lines: &[String]) -> Graph {
    let rows = lines.iter().skip_while(|line| *line != TABLE_HEADING).skip(2);
    let cells = rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|'));
    cells
        .filter_map(|mut cells| {
            let folder = cells.nth(1)?.trim().trim_matches('`').trim_end_matches('/');
            let used = cells.nth(1)?.split('`').skip(1).step_by(2);
            Some((folder.to_owned(), used.map(String::from).collect()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_a_directory_and_the_directories_that_it_may_use() {
        let lines =
            [TABLE_HEADING, "|---|---|---|", "| `a/b/` | `x`, y | `c`, `d/e` as rlib |", ""];
        let graph = documented_graph(&lines.map(String::from));
        let used = ["c", "d/e"].map(String::from).into();
        assert_eq!(graph, Graph::from([("a/b".to_owned(), used)]));
    }
}
