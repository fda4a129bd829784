//! Checks that the build uses every source file: each is a target, or a module that another file
//! declares.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::Tree;

/// The `.rs` files that no target reaches.
pub fn orphans(tree: &Tree) -> Vec<String> {
    let mut pending: Vec<(PathBuf, PathBuf)> = Vec::new();
    for (_, _, source) in tree.targets("") {
        let module_dir = source.parent().unwrap_or(Path::new("")).to_path_buf();
        pending.push((source, module_dir));
    }
    // fuzz/ is a separate workspace, whose manifest names the file of each target.
    for file in tree.files.iter().filter(|file| file.path.starts_with("fuzz/fuzz_targets/")) {
        pending.push((tree.root.join(&file.path), tree.root.join("fuzz/fuzz_targets")));
    }
    let mut reached = HashSet::new();
    while let Some((source, module_dir)) = pending.pop() {
        let Ok(source) = source.canonicalize() else { continue };
        let Ok(text) = std::fs::read_to_string(&source) else { continue };
        let source_dir = source.parent().unwrap_or(Path::new("")).to_path_buf();
        if !reached.insert(source) {
            continue;
        }
        for (name, path) in declared_modules(&text) {
            if let Some(path) = path {
                let file = source_dir.join(path);
                pending.push((file.clone(), file.parent().unwrap_or(&source_dir).to_path_buf()));
            } else {
                let folder = module_dir.join(&name);
                pending.push((module_dir.join(format!("{name}.rs")), folder.clone()));
                pending.push((folder.join("mod.rs"), folder));
            }
        }
    }
    let files = tree.files_with_extension(&["rs"]).filter(|file| {
        let path = tree.root.join(&file.path);
        !reached.contains(&path.canonicalize().unwrap_or(path))
            && !compiled_by_name(tree, &file.path)
    });
    files.map(|file| format!("{}: no target or module names it", file.path)).collect()
}

/// Whether a build script passes this file to the compiler by its name.
fn compiled_by_name(tree: &Tree, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let quoted = format!("{name}\"");
    tree.files_with_extension(&["rs"])
        .any(|file| file.lines.iter().any(|line| line.contains(&quoted)))
}

/// The modules that a source text declares in other files: the name, and `#[path]` if given.
fn declared_modules(text: &str) -> Vec<(String, Option<String>)> {
    let mut modules = Vec::new();
    let mut path = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.strip_suffix("\"]").map(String::from);
            continue;
        }
        if let Some(name) = line.strip_suffix(';').and_then(module_name) {
            modules.push((name.to_string(), path.take()));
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            path = None;
        }
    }
    modules
}

/// The name in `mod name`, `pub mod name`, `pub(crate) mod name`.
fn module_name(declaration: &str) -> Option<&str> {
    let (visibility, name) = match declaration.split_once("mod ") {
        Some((visibility, name)) => (visibility.trim(), name.trim()),
        None => return None,
    };
    let is_visibility = visibility.is_empty() || visibility.starts_with("pub");
    let is_identifier = name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    (is_visibility && is_identifier && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_found_with_their_paths() {
        let text = "mod a;\npub(crate) mod b;\n#[path = \"x/y.rs\"]\nmod c;\nlet mod_d = 1;\n";
        let found = declared_modules(text);
        assert_eq!(found[0], ("a".into(), None));
        assert_eq!(found[1], ("b".into(), None));
        assert_eq!(found[2], ("c".into(), Some("x/y.rs".into())));
        assert_eq!(found.len(), 3);
    }
}
