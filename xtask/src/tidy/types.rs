//! Checks the size of types: the named fields of a struct, and the inherent methods of a type over
//! all files of its package. A file limit alone can be kept by moving a part of an `impl` into
//! another file.
//!
//! Tests are not counted. Two kinds of structs may have any number of fields:
//!
//! - A struct with `#[repr(C)]`. The kernel, a C library or shared memory determines its fields.
//! - A record: a struct without a method that takes `&mut self`. Messages, the options of a command
//!   and tables of functions are records. They have no changes of state that a division could
//!   separate.

use std::collections::BTreeMap;
use std::path::Path;

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use super::{Text, Tree};

const MAX_FIELDS: usize = 16;
const MAX_METHODS: usize = 60;

/// The parts of a type that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Fields,
    Methods,
}

/// A type that exceeds a limit: the file that defines it, its name, the part, and the part's count.
type Excess = (String, String, Part, usize);

/// A struct, enum or union.
#[derive(Debug, Default)]
struct TypeDefinition {
    name: String,
    fields: usize,
    is_repr_c: bool,
}

/// The inherent methods in one `impl` block.
#[derive(Debug, Default)]
struct Methods {
    type_name: String,
    count: usize,
    has_mutating: bool,
}

/// The types and `impl` blocks of a file.
#[derive(Debug, Default)]
struct Items {
    definitions: Vec<TypeDefinition>,
    impls: Vec<Methods>,
    /// The names of modules in other files that are compiled for tests only.
    test_modules: Vec<String>,
}

/// A type with its methods from all files of the package.
#[derive(Debug)]
struct Type {
    file: String,
    definition: TypeDefinition,
    methods: usize,
    has_mutating: bool,
}

/// The types that exceed a limit.
pub fn check(tree: &Tree) -> Vec<String> {
    let describe = |(file, name, part, count)| match part {
        Part::Fields => format!("{file}: {name} has {count} fields, at most {MAX_FIELDS}"),
        Part::Methods => format!("{file}: {name} has {count} methods, at most {MAX_METHODS}"),
    };
    excesses(tree).into_iter().map(describe).collect()
}

fn excesses(tree: &Tree) -> Vec<Excess> {
    let files = tree.files_with_extension(&["rs"]).filter(|file| !is_test_file(&file.path));
    let files: Vec<(&str, Items)> =
        files.map(|file| (file.path.as_str(), Items::of_file(file))).collect();
    let test_modules: Vec<String> = files
        .iter()
        .flat_map(|(path, items)| {
            items.test_modules.iter().map(|name| format!("{}/{name}", module_folder(path)))
        })
        .collect();
    let mut packages: BTreeMap<String, Vec<(&str, Items)>> = BTreeMap::new();
    for (path, items) in files {
        let is_test = test_modules
            .iter()
            .any(|module| Path::new(path).with_extension("").starts_with(module));
        if let Some(package) = package_of(tree, path).filter(|_| !is_test) {
            packages.entry(package).or_default().push((path, items));
        }
    }
    packages.into_values().flat_map(types_of_package).flat_map(Type::excesses).collect()
}

/// The directory of the files of a module's children.
fn module_folder(path: &str) -> &str {
    let is_root =
        ["/mod.rs", "/lib.rs", "/main.rs"].iter().find_map(|name| path.strip_suffix(name));
    is_root.or_else(|| path.strip_suffix(".rs")).unwrap_or(path)
}

/// Whether a file contains tests only.
fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
}

/// The directory of the package of a file.
fn package_of(tree: &Tree, path: &str) -> Option<String> {
    let has_manifest = |folder: &&Path| tree.root.join(folder).join("Cargo.toml").is_file();
    let folder = Path::new(path).ancestors().skip(1).find(has_manifest)?;
    Some(folder.display().to_string())
}

/// Adds the methods of all files to the types. If several types have the name, the methods belong
/// to the type whose file is nearest.
fn types_of_package(files: Vec<(&str, Items)>) -> Vec<Type> {
    let (mut types, mut impls): (Vec<Type>, Vec<_>) = (Vec::new(), Vec::new());
    for (file, items) in files {
        impls.extend(items.impls.into_iter().map(|methods| (file, methods)));
        let new = |definition| Type {
            file: file.to_owned(),
            definition,
            methods: 0,
            has_mutating: false,
        };
        types.extend(items.definitions.into_iter().map(new));
    }
    for (file, methods) in impls {
        let named = types.iter_mut().filter(|one| one.definition.name == methods.type_name);
        if let Some(nearest) = named.max_by_key(|one| common_length(&one.file, file)) {
            nearest.methods += methods.count;
            nearest.has_mutating |= methods.has_mutating;
        }
    }
    types
}

/// The number of path components that two modules share, from the top.
fn common_length(one: &str, other: &str) -> usize {
    let [one, other] = [one, other].map(|path| module_folder(path).split('/'));
    one.zip(other).take_while(|(one, other)| one == other).count()
}

impl Type {
    fn excesses(self) -> Vec<Excess> {
        let definition = self.definition;
        let fields = if self.has_mutating && !definition.is_repr_c { definition.fields } else { 0 };
        let counts =
            [(Part::Fields, fields, MAX_FIELDS), (Part::Methods, self.methods, MAX_METHODS)];
        let exceeds = |(_, count, limit): &(Part, usize, usize)| count > limit;
        let excess = |(part, count, _)| (self.file.clone(), definition.name.clone(), part, count);
        counts.into_iter().filter(exceeds).map(excess).collect()
    }
}

impl Items {
    fn of_file(file: &Text) -> Self {
        let mut items = Self::default();
        // The names rule reports files that have no Rust tokens.
        if let Ok(tokens) = file.lines.join("\n").parse::<TokenStream>() {
            items.read(tokens);
        }
        items
    }

    /// Reads the items of a file or an inline module. Types inside functions are not read.
    fn read(&mut self, tokens: TokenStream) {
        let mut head: Vec<TokenTree> = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    if !is_for_tests(&head) {
                        self.read_item(&head, &group);
                    }
                    head.clear();
                }
                TokenTree::Punct(mark) if mark.as_char() == ';' => {
                    self.read_bodiless(&head);
                    head.clear();
                }
                token => head.push(token),
            }
        }
    }

    /// Reads an item without a body. A tuple struct has no named fields, but may have methods.
    fn read_bodiless(&mut self, head: &[TokenTree]) {
        let Some((at, keyword)) = keyword(head, &["struct", "mod", "use", "fn"]) else { return };
        let Some(TokenTree::Ident(name)) = head.get(at + 1) else { return };
        match keyword {
            "mod" if is_for_tests(head) => self.test_modules.push(name.to_string()),
            "struct" if !is_for_tests(head) => {
                self.definitions
                    .push(TypeDefinition { name: name.to_string(), ..TypeDefinition::default() });
            }
            _ => {}
        }
    }

    /// Reads an item with a body.
    fn read_item(&mut self, head: &[TokenTree], body: &Group) {
        let words = ["struct", "enum", "union", "impl", "mod", "fn", "trait", "macro_rules"];
        let Some((at, keyword)) = keyword(head, &words) else { return };
        match (keyword, head.get(at + 1)) {
            ("mod", _) => self.read(body.stream()),
            ("impl", _) => self.impls.extend(inherent_methods(&head[at + 1..], body)),
            ("struct" | "enum" | "union", Some(TokenTree::Ident(name))) => {
                let fields = if keyword == "struct" { named_fields(body.stream()) } else { 0 };
                let is_repr_c =
                    attributes(head).any(|text| text.starts_with("repr") && text.contains('C'));
                self.definitions.push(TypeDefinition { name: name.to_string(), fields, is_repr_c });
            }
            _ => {}
        }
    }
}

/// The position and text of the first of these words.
fn keyword<'a>(head: &[TokenTree], words: &[&'a str]) -> Option<(usize, &'a str)> {
    head.iter().enumerate().find_map(|(index, token)| match token {
        TokenTree::Ident(ident) => Some((index, *words.iter().find(|word| ident == **word)?)),
        _ => None,
    })
}

fn attributes(head: &[TokenTree]) -> impl Iterator<Item = String> {
    head.iter().filter_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
            Some(group.stream().to_string())
        }
        _ => None,
    })
}

/// Whether an attribute restricts an item to tests.
fn is_for_tests(head: &[TokenTree]) -> bool {
    attributes(head).any(|text| {
        text == "test" || text.starts_with("cfg") && text.contains("test") && !text.contains("not")
    })
}

/// The number of named fields: of colons that do not belong to a path.
fn named_fields(tokens: TokenStream) -> usize {
    let mut count = 0;
    let mut follows_colon = false;
    for token in tokens {
        let colon = match token {
            TokenTree::Punct(mark) if mark.as_char() == ':' => Some(mark),
            _ => None,
        };
        // The two colons of a path are joined.
        let is_joint = colon.as_ref().is_some_and(|mark| mark.spacing() == Spacing::Joint);
        count += usize::from(colon.is_some() && !is_joint && !follows_colon);
        follows_colon = is_joint;
    }
    count
}

/// The methods of an `impl` block, unless it implements a trait. `head` follows the `impl`.
fn inherent_methods(head: &[TokenTree], body: &Group) -> Option<Methods> {
    let mut depth = 0;
    let mut type_name = None;
    let mut previous = ' ';
    for token in head {
        match token {
            TokenTree::Punct(mark) => {
                let mark = mark.as_char();
                match mark {
                    '<' => depth += 1,
                    '>' if previous != '-' => depth -= 1,
                    _ => {}
                }
                previous = mark;
                continue;
            }
            TokenTree::Ident(word) if depth == 0 && word == "for" => return None,
            TokenTree::Ident(word) if depth == 0 && word == "where" => break,
            TokenTree::Ident(word) if depth == 0 => type_name = Some(word.to_string()),
            _ => {}
        }
        previous = ' ';
    }
    let mut methods = Methods { type_name: type_name?, ..Methods::default() };
    let mut method_head: Vec<TokenTree> = Vec::new();
    for token in body.stream() {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                if let Some((at, _)) = keyword(&method_head, &["fn"])
                    && !is_for_tests(&method_head)
                {
                    methods.count += 1;
                    methods.has_mutating |= takes_mut_self(&method_head[at..]);
                }
                method_head.clear();
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => method_head.clear(),
            token => method_head.push(token),
        }
    }
    Some(methods)
}

/// Whether the first parameter of a function is `&mut self`.
fn takes_mut_self(head: &[TokenTree]) -> bool {
    let is_parameters = |group: &&Group| group.delimiter() == Delimiter::Parenthesis;
    let mut groups = head.iter().filter_map(|token| match token {
        TokenTree::Group(group) => Some(group),
        _ => None,
    });
    let Some(parameters) = groups.find(is_parameters) else { return false };
    let tokens: Vec<String> =
        parameters.stream().into_iter().map(|token| token.to_string()).collect();
    let first = tokens.split(|token| token == ",").next().unwrap_or_default();
    first.first().is_some_and(|token| token == "&")
        && first.ends_with(&["mut".into(), "self".into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types of a package with these files: name, fields and methods.
    fn types_of(files: &[(&str, &str)]) -> Vec<(String, usize, usize)> {
        let files = files.iter().map(|(path, text)| {
            let lines = text.lines().map(String::from).collect();
            (*path, Items::of_file(&Text { path: (*path).to_owned(), lines }))
        });
        let types = types_of_package(files.collect());
        types
            .into_iter()
            .map(|one| (one.definition.name, one.definition.fields, one.methods))
            .collect()
    }

    #[test]
    fn fields_are_counted_but_not_colons_of_paths_and_attributes() {
        let text = "/// A: b\nstruct A<T: Clone> where T: Copy { #[x(y: z)] pub a: b::C<d::E, F>, g: fn(h: I) -> J }\n\
                    struct K(L);\nenum M { N { o: P } }";
        let expected = [("A", 2, 0), ("K", 0, 0), ("M", 0, 0)];
        assert_eq!(
            types_of(&[("a/src/lib.rs", text)]),
            expected.map(|(name, fields, methods)| (name.to_owned(), fields, methods))
        );
    }

    #[test]
    fn inherent_methods_of_all_files_are_counted_without_tests_and_traits() {
        let one = "struct A { a: u8 }\nimpl<T: Fn() -> u8> A { fn a() {} fn b() { fn c() {} } #[cfg(test)] fn d() {} }\n\
                   impl Clone for A { fn clone() {} }\n#[cfg(test)]\nmod tests { impl A { fn e() {} } }";
        let other = "impl super::A { const F: u8 = 1; fn g(&self) -> impl Fn() {} }";
        let files = [("a/src/lib.rs", one), ("a/src/other.rs", other)];
        assert_eq!(types_of(&files), [("A".to_owned(), 1, 3)]);
    }

    #[test]
    fn methods_belong_to_the_nearest_type_of_their_name() {
        let (define, implement) = ("struct A { a: u8 }", "impl A { fn a() {} }");
        let files = [
            ("s/b.rs", define),
            ("s/c/mod.rs", define),
            ("s/c/d.rs", implement),
            ("s/b/e.rs", implement),
            ("s/b/f.rs", implement),
        ];
        assert_eq!(types_of(&files), [("A".to_owned(), 1, 2), ("A".to_owned(), 1, 1)]);
    }

    #[test]
    fn records_and_c_layouts_have_any_number_of_fields() {
        let fields: String = (0..17).map(|number| format!("f{number}: u8,")).collect();
        let excesses = |attribute: &str, parameters: &str| {
            let text = format!(
                "{attribute} struct A {{ {fields} }} impl A {{ fn a<T>({parameters}) {{}} }}"
            );
            let file = Text { path: "a/src/lib.rs".into(), lines: vec![text] };
            let types = types_of_package(vec![("a/src/lib.rs", Items::of_file(&file))]);
            types.into_iter().flat_map(Type::excesses).map(|one| one.3).collect::<Vec<_>>()
        };
        assert_eq!(excesses("", "&mut self"), [17]);
        assert_eq!(excesses("", "&'a mut self, b: u8"), [17]);
        assert!(excesses("", "&self, b: &mut B").is_empty());
        assert!(excesses("", "mut self").is_empty());
        assert!(excesses("#[repr(C)]", "&mut self").is_empty());
    }
}
