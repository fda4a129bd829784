//! Finds the definitions in a Rust file, and the identifiers that it uses. Comments and strings
//! contain no identifiers.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The kind of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A struct, enum, union, trait or type alias.
    Type,
    /// A const or static.
    Constant,
    /// A function with the attribute `#[test]`.
    Test,
}

/// A definition.
#[derive(Debug, PartialEq, Eq)]
pub struct Definition {
    /// The kind.
    pub kind: Kind,
    /// The defined name.
    pub name: String,
    /// Whether other files can use it.
    pub public: bool,
    /// The line, counted from 1.
    pub line: usize,
    /// The identifiers in the type of a constant.
    pub of: Vec<String>,
    /// The value of a constant, if it is one string literal.
    pub text: Option<String>,
}

/// A file.
#[derive(Debug)]
pub struct Source {
    /// The path from the top of the tree.
    pub path: String,
    /// The definitions, in order.
    pub definitions: Vec<Definition>,
    /// All identifiers with their lines, except the names of tests.
    pub identifiers: Vec<(String, usize)>,
}

/// The kind of block around a token, which decides which files can use a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// A file.
    Module,
    /// An impl or a trait, whose types are associated types.
    Associated,
    /// Anything else in braces, also an inline module.
    Body,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// The text has no Rust tokens.
    pub fn parse(path: &str, text: &str) -> Result<Self, String> {
        // A first line that starts with `#!/` is not Rust.
        let text = if text.starts_with("#!/") {
            text.split_once('\n').map_or("", |(_, rest)| rest)
        } else {
            text
        };
        let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
        let mut source =
            Self { path: path.into(), definitions: Vec::new(), identifiers: Vec::new() };
        source.walk(tokens, Scope::Module);
        Ok(source)
    }

    fn walk(&mut self, tokens: TokenStream, scope: Scope) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        // The index at which the item of the next token began.
        let mut start = 0;
        let mut test_name = None;
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) => {
                    if let Some(found) = self.definition(&tokens, start, index, scope) {
                        if found.kind == Kind::Test {
                            test_name = Some(index + 1);
                        }
                        self.definitions.push(found);
                    }
                    if test_name != Some(index) {
                        let line = word.span().start().line;
                        self.identifiers.push((plain(&word.to_string()), line));
                    }
                }
                TokenTree::Group(group) => {
                    let braces = group.delimiter() == Delimiter::Brace;
                    let inner = if braces { opens(&tokens[start..index]) } else { scope };
                    self.walk(group.stream(), inner);
                    if braces {
                        start = index + 1;
                    }
                }
                TokenTree::Punct(mark) if mark.as_char() == ';' => start = index + 1,
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Returns the definition whose keyword is the token at `index`.
    fn definition(
        &self,
        tokens: &[TokenTree],
        start: usize,
        index: usize,
        scope: Scope,
    ) -> Option<Definition> {
        let keyword = tokens[index].to_string();
        let head = &tokens[start..index];
        let kind = match keyword.as_str() {
            "struct" | "enum" | "union" | "trait" => Kind::Type,
            "type" if scope != Scope::Associated => Kind::Type,
            "const" | "static" => Kind::Constant,
            "fn" if has_test_attribute(head) => Kind::Test,
            _ => return None,
        };
        let name = match tokens.get(index + 1)? {
            TokenTree::Ident(name) if name == "mut" => tokens.get(index + 2)?,
            name => name,
        };
        let TokenTree::Ident(name) = name else { return None };
        let name_text = plain(&name.to_string());
        // `const fn`, `const unsafe fn` and `*const T` define no constant. `union` and `type` may
        // be names.
        if ["fn", "unsafe", "extern", "async"].contains(&name_text.as_str()) {
            return None;
        }
        let after = tokens.get(index + 2).map(ToString::to_string).unwrap_or_default();
        let follows = match kind {
            Kind::Type => {
                ["<", "{", ":", ";", "=", "where"].iter().any(|mark| after.starts_with(mark))
                    || after.starts_with('(')
            }
            Kind::Constant => after == ":" || name_text == "mut" || after == name_text,
            Kind::Test => true,
        };
        let public = scope == Scope::Module && head.iter().any(|token| token.to_string() == "pub");
        let (of, text) =
            if kind == Kind::Constant { value(&tokens[index + 2..]) } else { Default::default() };
        follows.then(|| Definition {
            kind,
            name: name_text,
            public,
            line: name.span().start().line,
            of,
            text,
        })
    }
}

/// The identifiers between the `:` and the `=` of a constant, and its value if that is a string.
fn value(tokens: &[TokenTree]) -> (Vec<String>, Option<String>) {
    let ends_type = |token: &TokenTree| match token {
        TokenTree::Punct(mark) => ['=', ';'].contains(&mark.as_char()),
        _ => false,
    };
    let Some(equals) = tokens.iter().position(ends_type) else {
        return Default::default();
    };
    let mut of = Vec::new();
    words_of(&tokens[..equals], &mut of);
    let text = match tokens.get(equals + 1) {
        Some(TokenTree::Literal(literal)) => literal
            .to_string()
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'))
            .map(String::from),
        _ => None,
    };
    (of, text)
}

fn words_of(tokens: &[TokenTree], words: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => words.push(word.to_string()),
            TokenTree::Group(group) => {
                words_of(&group.stream().into_iter().collect::<Vec<_>>(), words);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// The kind of block that begins after these tokens.
fn opens(head: &[TokenTree]) -> Scope {
    let words: Vec<String> = head
        .iter()
        .filter(|token| matches!(token, TokenTree::Ident(_)))
        .map(ToString::to_string)
        .collect();
    let has = |word: &str| words.iter().any(|found| found == word);
    if has("fn") {
        Scope::Body
    } else if has("impl") || has("trait") {
        Scope::Associated
    } else {
        Scope::Body
    }
}

/// Whether an item has the attribute `#[test]`. `head` is the tokens in front of its keyword.
fn has_test_attribute(head: &[TokenTree]) -> bool {
    head.iter().any(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
            group.stream().to_string() == "test"
        }
        _ => false,
    })
}

/// An identifier without `r#`.
fn plain(name: &str) -> String {
    name.strip_prefix("r#").unwrap_or(name).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Source {
        Source::parse("a/src/lib.rs", text).expect("tokens")
    }

    #[test]
    fn definitions_are_found_with_their_kind_and_visibility() {
        let source = parse(
            "pub struct A<T>(T);\nenum B { C }\npub(crate) type D = u8;\n\
             impl Iterator for A { type Item = u8; const E: u8 = 1; }\n\
             fn f() { struct G; let x: *const u8 = y; }\nstatic mut H: u8 = 0;\n",
        );
        let found: Vec<(&str, bool)> =
            source.definitions.iter().map(|one| (one.name.as_str(), one.public)).collect();
        let wanted =
            [("A", true), ("B", false), ("D", true), ("E", false), ("G", false), ("H", false)];
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_type_and_text_of_a_constant_are_read() {
        let source = parse("const A: [Duration; 2] = [X, Y];\npub const B: &str = \"SCORE_B\";\n");
        assert_eq!(source.definitions[0].of, ["Duration"]);
        assert_eq!(source.definitions[1].text.as_deref(), Some("SCORE_B"));
    }

    #[test]
    fn comments_strings_and_names_of_tests_are_no_identifiers() {
        let source =
            parse("// one\n/// two\n#[test]\nfn three() { four(\"five\"); }\nfn six() {}\n");
        let names: Vec<&str> = source.identifiers.iter().map(|(name, _)| name.as_str()).collect();
        for absent in ["one", "two", "three", "five"] {
            assert!(!names.contains(&absent), "{absent}: {names:?}");
        }
        assert!(names.contains(&"four") && names.contains(&"six"), "{names:?}");
    }
}
