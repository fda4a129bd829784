//! The imports between the files of a crate have no cycles: no file uses itself through other
//! files. A module and the modules inside it count as one file, because a parent declares and
//! re-exports the definitions of its children. Tests may use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Tree;

/// The names of the modules from the root of a crate to a module.
type ModulePath = Vec<String>;

/// The modules that each module uses, each with a path by which it does.
type Arrows = BTreeMap<ModulePath, BTreeMap<ModulePath, Vec<String>>>;

/// Longest chain of re-exports that is followed.
const MAX_REEXPORTS: usize = 16;

/// A module of a crate, with the imports and paths in its text.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Names that `use` brings into the module, with the path that each stands for.
    imports: BTreeMap<String, Vec<String>>,
    /// All paths that the module names, from the root of the crate.
    used_paths: Vec<Vec<String>>,
}

/// The modules of one target.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// The import cycles in each target.
pub fn circles(tree: &Tree) -> Vec<String> {
    let mut findings = BTreeSet::new();
    for (_, _, root) in tree.targets("") {
        let mut target = Crate::default();
        let folder = root.parent().unwrap_or(Path::new("")).to_path_buf();
        target.read(&root, &folder, &ModulePath::new());
        let short =
            |file: &Path| file.strip_prefix(&tree.root).unwrap_or(file).display().to_string();
        let arrows = target.arrows();
        for circle in strongly_connected(&arrows) {
            let uses = circle.iter().flat_map(|module| {
                let inside = arrows[module].iter().filter(|(used, _)| circle.contains(*used));
                inside.map(|(_, path)| {
                    format!("{} uses {}", short(&target.modules[module].file), path.join("::"))
                })
            });
            let uses: Vec<String> = uses.collect();
            findings.insert(format!("import cycle: {}", uses.join("; ")));
        }
    }
    findings.into_iter().collect()
}

impl Crate {
    /// Reads a file and the files of the modules that it declares. `folder` has those files.
    fn read(&mut self, file: &Path, folder: &Path, path: &ModulePath) {
        let Ok(text) = std::fs::read_to_string(file) else { return };
        let Ok(tokens) = text.parse::<TokenStream>() else { return };
        self.modules.entry(path.clone()).or_default().file = file.to_path_buf();
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        self.walk(&tokens, folder, path);
    }

    /// Reads the tokens of a module, or of a part of it.
    fn walk(&mut self, tokens: &[TokenTree], folder: &Path, path: &ModulePath) {
        let mut index = 0;
        // Whether the attributes in front of this token restrict its item to tests.
        let mut is_test = false;
        while let Some(token) = tokens.get(index) {
            index += 1;
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    if let Some(TokenTree::Group(attribute)) = tokens.get(index) {
                        is_test |= is_cfg_test(attribute.stream());
                        index += 1;
                    }
                }
                TokenTree::Group(group) => {
                    if !is_test {
                        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.walk(&inner, folder, path);
                    }
                    is_test &= group.delimiter() != Delimiter::Brace;
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => is_test = false,
                TokenTree::Ident(ident) if ident == "mod" => {
                    let name = ident_at(tokens, index).unwrap_or_default();
                    if let Some(TokenTree::Group(body)) = tokens.get(index + 1) {
                        if !is_test {
                            let inner: Vec<TokenTree> = body.stream().into_iter().collect();
                            self.walk_inline(&name, &inner, folder, path);
                        }
                    } else if !is_test {
                        self.read_child(&name, folder, path);
                    }
                    (index, is_test) = (index + 2, false);
                }
                TokenTree::Ident(ident) if ident == "use" && !is_test => {
                    let end = tokens[index..].iter().position(is_semicolon).unwrap_or(0) + index;
                    for (name, segments) in expand_use(&tokens[index..end], &[]) {
                        self.add_path(path, &segments, Some(name));
                    }
                    index = end;
                }
                TokenTree::Ident(ident) if !is_test && is_relative(&ident.to_string()) => {
                    let segments = read_path(&tokens[index - 1..]);
                    index += 3 * (segments.len() - 1);
                    self.add_path(path, &segments, None);
                }
                _ => {}
            }
        }
    }

    /// A module in braces belongs to the file around it.
    fn walk_inline(&mut self, name: &str, tokens: &[TokenTree], folder: &Path, path: &ModulePath) {
        let file = self.modules[path].file.clone();
        let inner = [path.as_slice(), &[name.to_owned()]].concat();
        self.modules.entry(inner.clone()).or_default().file = file;
        self.walk(tokens, &folder.join(name), &inner);
    }

    fn read_child(&mut self, name: &str, folder: &Path, path: &ModulePath) {
        let child = [path.as_slice(), &[name.to_owned()]].concat();
        let inner_folder = folder.join(name);
        for file in [folder.join(format!("{name}.rs")), inner_folder.join("mod.rs")] {
            self.read(&file, &inner_folder, &child);
        }
    }

    /// Records a path that a module names. `name` is the name that `use` gives it in the module.
    fn add_path(&mut self, module: &ModulePath, segments: &[String], name: Option<String>) {
        let mut start = module.clone();
        let mut rest = segments;
        match rest.first().map(String::as_str) {
            Some("crate") => start.clear(),
            Some("self") => {}
            Some("super") => drop(start.pop()),
            // A module declared here, or another crate. `definer` finds only the former.
            Some(_) => {
                let path = [module.as_slice(), rest].concat();
                self.note(module, path, name);
                return;
            }
            None => return,
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|segment| segment == "super") {
            start.pop();
            rest = &rest[1..];
        }
        self.note(module, [start.as_slice(), rest].concat(), name);
    }

    fn note(&mut self, module: &ModulePath, path: Vec<String>, name: Option<String>) {
        let module = self.modules.entry(module.clone()).or_default();
        if let Some(name) = name {
            module.imports.insert(name, path.clone());
        }
        module.used_paths.push(path);
    }

    /// The module that defines the item of a path, through re-exports.
    fn definer(&self, path: &[String], depth: usize) -> Option<ModulePath> {
        let mut module = ModulePath::new();
        for (index, segment) in path.iter().enumerate() {
            let child = [module.as_slice(), std::slice::from_ref(segment)].concat();
            if self.modules.contains_key(&child) {
                module = child;
                continue;
            }
            let import = self.modules.get(&module)?.imports.get(segment);
            return match import {
                Some(target) if depth < MAX_REEXPORTS && target.as_slice() != &path[..=index] => {
                    self.definer(&[target, &path[index + 1..]].concat(), depth + 1)
                }
                _ => Some(module),
            };
        }
        Some(module)
    }

    /// For each module, the modules that it uses, with a path for each. Uses between a module and
    /// the modules inside it are left out.
    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (path, module) in &self.modules {
            for used in &module.used_paths {
                let Some(target) = self.definer(used, 0) else { continue };
                if !target.starts_with(path) && !path.starts_with(&target) {
                    arrows.entry(path.clone()).or_default().insert(target, used.clone());
                }
            }
        }
        arrows
    }
}

/// Whether an attribute restricts an item to tests.
fn is_cfg_test(attribute: TokenStream) -> bool {
    let text = attribute.to_string();
    text == "test" || (text.starts_with("cfg") && text.contains("test") && !text.contains("not"))
}

fn is_semicolon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';')
}

fn is_relative(word: &str) -> bool {
    matches!(word, "crate" | "super" | "self")
}

fn ident_at(tokens: &[TokenTree], index: usize) -> Option<String> {
    match tokens.get(index) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

/// The names that `::` joins, from the first token on.
fn read_path(tokens: &[TokenTree]) -> Vec<String> {
    let mut segments: Vec<String> = ident_at(tokens, 0).into_iter().collect();
    let is_colon = |index: usize| {
        let token = tokens.get(index);
        matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
    };
    let mut index = 1;
    while is_colon(index) && is_colon(index + 1) {
        let Some(segment) = ident_at(tokens, index + 2) else { break };
        segments.push(segment);
        index += 3;
    }
    segments
}

/// The names that a `use` brings into the module, each with its path.
fn expand_use(tokens: &[TokenTree], prefix: &[String]) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for part in tokens.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ',')) {
        let segments = [prefix, &read_path(part)].concat();
        match part.last() {
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                found.extend(expand_use(&inner, &segments));
            }
            Some(TokenTree::Punct(_)) => found.push(("*".to_owned(), segments)),
            Some(TokenTree::Ident(name)) => {
                let mut path = segments;
                let name = match name.to_string() {
                    own if own == "self" => {
                        path.pop();
                        path.last().cloned().unwrap_or_default()
                    }
                    other => other,
                };
                found.push((name, path));
            }
            _ => {}
        }
    }
    found
}

/// The groups of at least two nodes that reach each other.
fn strongly_connected(arrows: &Arrows) -> Vec<BTreeSet<ModulePath>> {
    let reachable = |start: &ModulePath| {
        let (mut seen, mut pending) = (BTreeSet::new(), vec![start]);
        while let Some(node) = pending.pop() {
            let next = arrows.get(node).into_iter().flat_map(BTreeMap::keys);
            pending.extend(next.filter(|node| seen.insert((*node).clone())));
        }
        seen
    };
    let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
        arrows.keys().map(|node| (node, reachable(node))).collect();
    let mut groups = BTreeSet::new();
    for (node, others) in reached.iter().filter(|(node, others)| others.contains(**node)) {
        let is_mutual =
            |other: &&ModulePath| reached.get(*other).is_some_and(|set| set.contains(*node));
        groups.insert(others.iter().filter(is_mutual).cloned().collect::<BTreeSet<_>>());
    }
    groups.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The import cycles between modules with these texts.
    fn circles_of(modules: &[(&str, &str)]) -> Vec<BTreeSet<ModulePath>> {
        let mut target = Crate::default();
        for (name, text) in modules {
            let path: ModulePath =
                name.split("::").filter(|part| !part.is_empty()).map(String::from).collect();
            target.modules.entry(path.clone()).or_default();
            let tokens: Vec<TokenTree> = text.parse::<TokenStream>().unwrap().into_iter().collect();
            target.walk(&tokens, Path::new("/nonexistent"), &path);
        }
        strongly_connected(&target.arrows())
    }

    #[test]
    fn a_cycle_is_found_over_imports_paths_and_reexports() {
        let circle =
            [("", "pub use b::B;"), ("a", "use crate::{x, B};"), ("b", "fn f(_: super::a::A) {}")];
        let names = |name: &str| vec![name.to_owned()];
        assert_eq!(circles_of(&circle), [BTreeSet::from([names("a"), names("b")])]);
    }

    #[test]
    fn parent_modules_child_modules_and_tests_can_use_each_other() {
        let family = [("a", "pub use b::B; struct A;"), ("a::b", "use super::A;")];
        assert!(circles_of(&family).is_empty());
        let test = "struct A; #[cfg(test)] mod tests { use crate::b::B; }";
        assert!(circles_of(&[("a", test), ("b", "use crate::a::A;")]).is_empty());
    }
}
