//! Macros of `scorehosts.db`, with and without parameters, as in cpp(1). The length of their
//! expansion is bounded.

use std::cell::Cell;
use std::collections::HashMap;

/// Replaces `##` in the text of a macro. No file can contain this character.
const PASTE_MARKER: char = '\u{1}';

/// The largest depth of macros in macros.
const MAX_MACRO_DEPTH: usize = 64;

/// One macro.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Macro {
    parameters: Option<Vec<String>>,
    text: String,
}

impl Macro {
    /// Parses the text after `#define`: `NAME [TEXT]` or `NAME(PARAMETER,...) [TEXT]`.
    pub(crate) fn parse(rest: &str) -> Result<(String, Self), String> {
        let rest = rest.trim();
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
        if !is_name(name) || name == "defined" {
            return Err("#define NAME TEXT is expected".into());
        }
        let (parameters, text) = match rest.strip_prefix('(') {
            None => (None, rest),
            Some(list) => {
                let (list, text) = list.split_once(')').ok_or("its ( is not closed")?;
                let parameters: Vec<String> = match list.trim() {
                    "" => Vec::new(),
                    list => list.split(',').map(|name| name.trim().to_owned()).collect(),
                };
                if let Some(invalid) = parameters.iter().find(|name| !is_name(name)) {
                    return Err(format!(
                        "'{}' is not a valid name of a parameter",
                        crate::error::printable(invalid)
                    ));
                }
                (Some(parameters), text)
            }
        };
        let parts: Vec<&str> = text.split("##").collect();
        if parameters.is_some() && parts.iter().any(|part| part.contains('#')) {
            return Err("# is not supported here (## joins words)".into());
        }
        let trimmed: Vec<&str> = parts.into_iter().map(str::trim).collect();
        let text = trimmed.join(&PASTE_MARKER.to_string());
        Ok((name.to_owned(), Self { parameters, text }))
    }

    /// The replacement text of the macro.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// An invalid use of a macro: byte offset in the line, name, problem.
type MacroError = (usize, String, String);

/// A part of a line.
struct Fragment {
    offset: usize,
    text: String,
    /// Whether the text appears literally in the line.
    verbatim: bool,
}

/// The macros that are defined at a point of the file.
pub(crate) struct Macros {
    definitions: HashMap<String, Macro>,
    budget: Cell<usize>,
}

impl Macros {
    /// No macros. All expansions and included files together have at most this many bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { definitions: HashMap::new(), budget: Cell::new(max_bytes) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Macro> {
        self.definitions.get(name)
    }

    pub(crate) fn define(&mut self, name: String, new: Macro) -> Result<(), String> {
        match self.definitions.insert(name.clone(), new.clone()) {
            Some(old) if old != new => {
                Err(format!("{name} is already defined with another text (#undef it first)"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn undefine(&mut self, name: &str) {
        self.definitions.remove(name);
    }

    /// Counts bytes against the limit of all expansions and included files.
    pub(crate) fn charge_budget(&self, bytes: usize) -> Result<(), String> {
        match self.budget.get().checked_sub(bytes.saturating_add(1)) {
            Some(left) => {
                self.budget.set(left);
                Ok(())
            }
            None => Err("macros and included files exceed the size limit".into()),
        }
    }

    /// The words of a line after macro expansion, each with its byte offset in the original line.
    pub(crate) fn words(&self, line: &str) -> Result<Vec<(String, usize)>, MacroError> {
        let mut words = Vec::new();
        let mut word = (String::new(), 0);
        for fragment in self.fragments(line, &mut Vec::new())? {
            for (index, letter) in fragment.text.char_indices() {
                if letter.is_whitespace() {
                    if !word.0.is_empty() {
                        words.push(std::mem::take(&mut word));
                    }
                    continue;
                }
                if word.0.is_empty() {
                    word.1 = fragment.offset + if fragment.verbatim { index } else { 0 };
                }
                word.0.push(letter);
            }
        }
        if !word.0.is_empty() {
            words.push(word);
        }
        Ok(words)
    }

    fn fragments(&self, text: &str, active: &mut Vec<String>) -> Result<Vec<Fragment>, MacroError> {
        let mut fragments = Vec::new();
        let mut verbatim_start = 0;
        let mut offset = 0;
        while let Some((token, is_word)) = token(&text[offset..]) {
            let end = offset + token.len();
            let known = self.definitions.get_key_value(token).filter(|_| is_word);
            let Some((name, definition)) = known.filter(|(name, _)| !active.contains(name)) else {
                offset = end;
                continue;
            };
            let error_at = |what: String| (offset, name.clone(), what);
            let (args, after) = match &definition.parameters {
                None => (Vec::new(), end),
                Some(_) => match arguments(&text[end..]).map_err(error_at)? {
                    Some((args, length)) => (args, end + length),
                    None => {
                        offset = end;
                        continue;
                    }
                },
            };
            let body = self.substitute(definition, &args, active).map_err(error_at)?;
            if active.len() >= MAX_MACRO_DEPTH {
                return Err(error_at(format!(
                    "more than {MAX_MACRO_DEPTH} macros inside each other"
                )));
            }
            active.push(name.clone());
            let expansion = self.expand_to_string(&body, active).map_err(error_at);
            active.pop();
            fragments.push(Fragment {
                offset: verbatim_start,
                text: text[verbatim_start..offset].to_owned(),
                verbatim: true,
            });
            fragments.push(Fragment { offset, text: expansion?, verbatim: false });
            (offset, verbatim_start) = (after, after);
        }
        fragments.push(Fragment {
            offset: verbatim_start,
            text: text[verbatim_start..].to_owned(),
            verbatim: true,
        });
        Ok(fragments)
    }

    fn expand_to_string(&self, text: &str, active: &mut Vec<String>) -> Result<String, String> {
        let fragments = self.fragments(text, active).map_err(|(_, name, what)| {
            if what.starts_with("in ") { what } else { format!("in {name}: {what}") }
        })?;
        let expanded = fragments.into_iter().map(|fragment| fragment.text).collect::<String>();
        self.charge_budget(expanded.len())?;
        Ok(expanded)
    }

    /// The text of a macro with its arguments inserted.
    fn substitute(
        &self,
        definition: &Macro,
        args: &[&str],
        active: &mut Vec<String>,
    ) -> Result<String, String> {
        let Some(parameters) = &definition.parameters else {
            return Ok(definition.text.replace(PASTE_MARKER, ""));
        };
        let is_empty_call = parameters.is_empty() && args.len() == 1 && args[0].is_empty();
        if args.len() != parameters.len() && !is_empty_call {
            let (given_count, expected_count) = (args.len(), parameters.len());
            return Err(format!(
                "{given_count} arguments are given, {expected_count} are expected"
            ));
        }
        let args = args
            .iter()
            .map(|argument| self.expand_to_string(argument, active))
            .collect::<Result<Vec<_>, _>>()?;
        let mut body = String::new();
        let mut rest = definition.text.as_str();
        while let Some((token, is_word)) = token(rest) {
            let index = parameters.iter().position(|name| is_word && name == token);
            let text = index.map_or(token, |index| args[index].as_str());
            self.charge_budget(text.len())?;
            body.push_str(text);
            rest = &rest[token.len()..];
        }
        Ok(body.replace(PASTE_MARKER, ""))
    }
}

/// The first token of a text, and whether it can be a macro. A token is a name, a number with all
/// attached characters (`0.conf` contains no name), or a single character.
fn token(text: &str) -> Option<(&str, bool)> {
    let first = text.chars().next()?;
    let is_name_char = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let length = |inside: &dyn Fn(char) -> bool| {
        text.find(|letter: char| !inside(letter)).unwrap_or(text.len())
    };
    if first.is_ascii_digit() {
        return Some((&text[..length(&|letter| is_name_char(letter) || letter == '.')], false));
    }
    if is_name_char(first) {
        return Some((&text[..length(&is_name_char)], true));
    }
    Some((&text[..first.len_utf8()], false))
}

/// Parses `(a, b(c, d))` after the name of a macro. Returns the arguments and the length of the
/// text.
fn arguments(text: &str) -> Result<Option<(Vec<&str>, usize)>, String> {
    let blanks = text.len() - text.trim_start().len();
    if !text[blanks..].starts_with('(') {
        return Ok(None);
    }
    let (mut args, mut depth, mut start) = (Vec::new(), 0, blanks + 1);
    for (index, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ',' if depth == 1 => {
                args.push(text[start..index].trim());
                start = index + 1;
            }
            ')' => {
                depth -= 1;
                if depth == 0 {
                    args.push(text[start..index].trim());
                    return Ok(Some((args, index + 1)));
                }
            }
            _ => {}
        }
    }
    Err("the ) of its arguments is missing".into())
}

/// Whether a word can be the name of a macro.
pub(crate) fn is_name(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(defines: &[&str], line: &str) -> Result<String, String> {
        let mut macros = Macros::new(10_000);
        for text in defines {
            let (name, parsed) = Macro::parse(text)?;
            macros.define(name, parsed)?;
        }
        let words = macros.words(line).map_err(|(_, name, what)| format!("{name}: {what}"))?;
        Ok(words.into_iter().map(|(word, _)| word).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn macros_expand_once() {
        assert_eq!(expand(&["A b=1 c=2"], "x A").unwrap(), "x b=1 c=2");
        assert_eq!(expand(&["A B", "B A", "E"], "A E x").unwrap(), "A x");
        assert_eq!(expand(&["A 1"], "AA 0A 1.A A-A x.A").unwrap(), "AA 0A 1.A 1-1 x.1");
        assert_eq!(expand(&["N 4"], "cores=N,N").unwrap(), "cores=4,4");
        assert_eq!(expand(&["N_1 4"], "N_1").unwrap(), "4");
        assert_eq!(expand(&["N 4", "N 4"], "N").unwrap(), "4", "the same definition twice");
    }

    #[test]
    fn macros_have_arguments_and_join_words() {
        let host = "HOST(n, g) comp ## n.x group=g";
        assert_eq!(expand(&[host], "HOST(7, a(b,c))").unwrap(), "comp7.x group=a(b,c)");
        assert_eq!(expand(&[host, "G pcc"], "HOST (N,G)").unwrap(), "compN.x group=pcc");
        assert_eq!(expand(&["F() f"], "F() F").unwrap(), "f F");
        assert_eq!(expand(&["A x##1"], "A").unwrap(), "x1");
    }

    #[test]
    fn words_keep_their_source_offset() {
        let mut macros = Macros::new(100);
        let (name, parsed) = Macro::parse("A b c").unwrap();
        macros.define(name, parsed).unwrap();
        let words = macros.words("x  A y").unwrap();
        let offsets: Vec<usize> = words.iter().map(|(_, offset)| *offset).collect();
        assert_eq!(offsets, [0, 3, 3, 5]);
    }

    #[test]
    fn misuse_is_named_and_growth_is_bounded() {
        for (defines, line, part) in [
            (&["F(a) a"][..], "F(1, 2)", "F: 2 arguments are given, 1 are expected"),
            (&["F() f"], "F(1)", "F: 1 arguments are given, 0 are expected"),
            (&["F(a) a"], "F(1", "F: the ) of its arguments is missing"),
            (&["F(a) #a"], "", "# is not supported"),
            (&["F(1) a"], "", "'1' is not a valid name"),
            (&["F(a.b) a"], "", "'a.b' is not a valid name of a parameter"),
            (&["F(a"], "", "not closed"),
            (&["2 a"], "", "#define NAME TEXT"),
            (&["A 1", "A 2"], "", "A is already defined"),
        ] {
            let error = expand(defines, line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        let double: Vec<String> = (0..60).map(|n| format!("M{n} M{0} M{0}", n + 1)).collect();
        let double: Vec<&str> = double.iter().map(String::as_str).collect();
        assert!(expand(&double, "M0").unwrap_err().contains("exceed the size limit"));
        let empty: Vec<&str> = double.iter().copied().chain(["M60"]).collect();
        assert!(expand(&empty, "M0").unwrap_err().contains("exceed the size limit"));
        let chain: Vec<String> = (0..100).map(|n| format!("M{n} M{}", n + 1)).collect();
        let chain: Vec<&str> = chain.iter().map(String::as_str).collect();
        assert!(expand(&chain, "M0").unwrap_err().contains("more than 64 macros"));
    }
}
