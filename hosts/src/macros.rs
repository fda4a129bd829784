//! Macros of `scorehosts.db`, with and without parameters, as cpp(1) has them; bounded.

use crate::preprocess::is_name;
use std::cell::Cell;
use std::collections::HashMap;

/// Stands for `##` in the text of a macro: no file can hold it.
const PASTE: char = '\u{1}';

/// Macros inside macros.
const DEEPEST: usize = 64;

/// One macro.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Macro {
    parameters: Option<Vec<String>>,
    text: String,
}

impl Macro {
    /// Reads what stands behind `#define`: `NAME [TEXT]` or `NAME(PARAMETER,...) [TEXT]`.
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
                if let Some(odd) = parameters.iter().find(|name| !is_name(name)) {
                    return Err(format!(
                        "'{}' is no name of a parameter",
                        crate::fault::shown(odd)
                    ));
                }
                (Some(parameters), text)
            }
        };
        let parts: Vec<&str> = text.split("##").collect();
        if parameters.is_some() && parts.iter().any(|part| part.contains('#')) {
            return Err("# is not known here (## joins words)".into());
        }
        let last = parts.len() - 1;
        let trimmed = parts.iter().enumerate().map(|(index, part)| {
            let part = if index > 0 { part.trim_start() } else { part };
            if index < last { part.trim_end() } else { part }
        });
        let text = trimmed.collect::<Vec<_>>().join(&PASTE.to_string());
        Ok((name.to_owned(), Self { parameters, text: text.trim().to_owned() }))
    }

    /// What it stands for.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Where a use of a macro is wrong: byte of the line, name, what.
type Bad = (usize, String, String);

/// A part of a line.
struct Piece {
    at: usize,
    text: String,
    /// Stands so in the line.
    verbatim: bool,
}

/// The macros that are known at a place of the file.
pub(crate) struct Macros {
    known: HashMap<String, Macro>,
    left: Cell<usize>,
}

impl Macros {
    /// None yet. All expansions together may make so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { known: HashMap::new(), left: Cell::new(most) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Macro> {
        self.known.get(name)
    }

    pub(crate) fn define(&mut self, name: String, new: Macro) -> Result<(), String> {
        match self.known.insert(name.clone(), new.clone()) {
            Some(old) if old != new => {
                Err(format!("{name} is defined already, and otherwise (#undef comes first)"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn forget(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Counts bytes that come from elsewhere.
    pub(crate) fn spend(&self, bytes: usize) -> Result<(), String> {
        match self.left.get().checked_sub(bytes.saturating_add(1)) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err("macros and included files grow beyond all bounds".into()),
        }
    }

    /// The words of a line after macros, each with the byte of the line that it comes from.
    pub(crate) fn words(&self, line: &str) -> Result<Vec<(String, usize)>, Bad> {
        let mut words = Vec::new();
        let mut word = (String::new(), 0);
        for piece in self.pieces(line, &mut Vec::new())? {
            for (index, letter) in piece.text.char_indices() {
                if letter.is_whitespace() {
                    if !word.0.is_empty() {
                        words.push(std::mem::take(&mut word));
                    }
                    continue;
                }
                if word.0.is_empty() {
                    word.1 = piece.at + if piece.verbatim { index } else { 0 };
                }
                word.0.push(letter);
            }
        }
        if !word.0.is_empty() {
            words.push(word);
        }
        Ok(words)
    }

    fn pieces(&self, text: &str, active: &mut Vec<String>) -> Result<Vec<Piece>, Bad> {
        let mut pieces = Vec::new();
        let mut run = 0;
        let mut at = 0;
        while let Some((token, is_word)) = token(&text[at..]) {
            let end = at + token.len();
            let known = self.known.get_key_value(token).filter(|_| is_word);
            let Some((name, known)) = known.filter(|(name, _)| !active.contains(name)) else {
                at = end;
                continue;
            };
            let bad = |what: String| (at, name.clone(), what);
            let (given, behind) = match &known.parameters {
                None => (Vec::new(), end),
                Some(_) => match arguments(&text[end..]).map_err(bad)? {
                    Some((given, length)) => (given, end + length),
                    None => {
                        at = end;
                        continue;
                    }
                },
            };
            let body = self.body(known, &given, active).map_err(bad)?;
            if active.len() >= DEEPEST {
                return Err(bad(format!("more than {DEEPEST} macros inside each other")));
            }
            active.push(name.clone());
            let inner = self.joined(&body, active).map_err(bad);
            active.pop();
            pieces.push(Piece { at: run, text: text[run..at].to_owned(), verbatim: true });
            pieces.push(Piece { at, text: inner?, verbatim: false });
            (at, run) = (behind, behind);
        }
        pieces.push(Piece { at: run, text: text[run..].to_owned(), verbatim: true });
        Ok(pieces)
    }

    fn joined(&self, text: &str, active: &mut Vec<String>) -> Result<String, String> {
        let pieces = self.pieces(text, active).map_err(|(_, name, what)| {
            if what.starts_with("in ") { what } else { format!("in {name}: {what}") }
        })?;
        let joined = pieces.into_iter().map(|piece| piece.text).collect::<String>();
        self.spend(joined.len())?;
        Ok(joined)
    }

    /// The text of a macro with its arguments in place.
    fn body(
        &self,
        known: &Macro,
        given: &[&str],
        active: &mut Vec<String>,
    ) -> Result<String, String> {
        let Some(parameters) = &known.parameters else {
            return Ok(known.text.replace(PASTE, ""));
        };
        let none = parameters.is_empty() && given.len() == 1 && given[0].is_empty();
        if given.len() != parameters.len() && !none {
            let (has, wants) = (given.len(), parameters.len());
            return Err(format!("{has} arguments are given, {wants} are expected"));
        }
        let given = given
            .iter()
            .map(|argument| self.joined(argument, active))
            .collect::<Result<Vec<_>, _>>()?;
        let mut body = String::new();
        let mut rest = known.text.as_str();
        while let Some((token, is_word)) = token(rest) {
            let index = parameters.iter().position(|name| is_word && name == token);
            let text = index.map_or(token, |index| given[index].as_str());
            self.spend(text.len())?;
            body.push_str(text);
            rest = &rest[token.len()..];
        }
        Ok(body.replace(PASTE, ""))
    }
}

/// The first token of a text, and whether it can be a macro: names, numbers with all that hangs on
/// them (`0.conf` holds no name), single letters else.
fn token(text: &str) -> Option<(&str, bool)> {
    let first = text.chars().next()?;
    let part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let length = |inside: &dyn Fn(char) -> bool| {
        text.find(|letter: char| !inside(letter)).unwrap_or(text.len())
    };
    if first.is_ascii_digit() {
        return Some((&text[..length(&|letter| part(letter) || letter == '.')], false));
    }
    if part(first) {
        return Some((&text[..length(&part)], true));
    }
    Some((&text[..first.len_utf8()], false))
}

/// `(a, b(c, d))` behind the name of a macro: the arguments, and the length of all.
fn arguments(text: &str) -> Result<Option<(Vec<&str>, usize)>, String> {
    let blanks = text.len() - text.trim_start().len();
    if !text[blanks..].starts_with('(') {
        return Ok(None);
    }
    let (mut given, mut depth, mut start) = (Vec::new(), 0, blanks + 1);
    for (index, letter) in text.char_indices().skip_while(|(index, _)| *index < blanks) {
        match letter {
            '(' => depth += 1,
            ',' if depth == 1 => {
                given.push(text[start..index].trim());
                start = index + 1;
            }
            ')' => {
                depth -= 1;
                if depth == 0 {
                    given.push(text[start..index].trim());
                    return Ok(Some((given, index + 1)));
                }
            }
            _ => {}
        }
    }
    Err("the ) of its arguments is missing".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(defines: &[&str], line: &str) -> Result<String, String> {
        let mut macros = Macros::new(10_000);
        for text in defines {
            let (name, parsed) = Macro::parse(text)?;
            macros.define(name, parsed)?;
        }
        let words = macros.words(line).map_err(|(_, name, what)| format!("{name}: {what}"))?;
        Ok(words.into_iter().map(|(word, _)| word).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn macros_stand_for_their_text_once() {
        assert_eq!(with(&["A b=1 c=2"], "x A").unwrap(), "x b=1 c=2");
        assert_eq!(with(&["A B", "B A", "E"], "A E x").unwrap(), "A x");
        assert_eq!(with(&["A 1"], "AA 0A 1.A A-A x.A").unwrap(), "AA 0A 1.A 1-1 x.1");
        assert_eq!(with(&["N 4"], "cores=N,N").unwrap(), "cores=4,4");
    }

    #[test]
    fn macros_take_arguments_and_join_words() {
        let host = "HOST(n, g) comp ## n.x group=g";
        assert_eq!(with(&[host], "HOST(7, a(b,c))").unwrap(), "comp7.x group=a(b,c)");
        assert_eq!(with(&[host, "G pcc"], "HOST (N,G)").unwrap(), "compN.x group=pcc");
        assert_eq!(with(&["F() f"], "F() F").unwrap(), "f F");
        assert_eq!(with(&["A x##1"], "A").unwrap(), "x1");
    }

    #[test]
    fn words_keep_the_place_they_come_from() {
        let mut macros = Macros::new(100);
        let (name, parsed) = Macro::parse("A b c").unwrap();
        macros.define(name, parsed).unwrap();
        let words = macros.words("x  A y").unwrap();
        let places: Vec<usize> = words.iter().map(|(_, at)| *at).collect();
        assert_eq!(places, [0, 3, 3, 5]);
    }

    #[test]
    fn misuse_is_named_and_growth_is_bounded() {
        for (defines, line, part) in [
            (&["F(a) a"][..], "F(1, 2)", "F: 2 arguments are given, 1 are expected"),
            (&["F(a) a"], "F(1", "F: the ) of its arguments is missing"),
            (&["F(a) #a"], "", "# is not known"),
            (&["F(1) a"], "", "'1' is no name"),
            (&["F(a"], "", "not closed"),
            (&["2 a"], "", "#define NAME TEXT"),
            (&["A 1", "A 2"], "", "A is defined already"),
        ] {
            let error = with(defines, line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        let double: Vec<String> = (0..60).map(|n| format!("M{n} M{0} M{0}", n + 1)).collect();
        let double: Vec<&str> = double.iter().map(String::as_str).collect();
        assert!(with(&double, "M0").unwrap_err().contains("beyond all bounds"));
        let empty: Vec<&str> = double.iter().copied().chain(["M60"]).collect();
        assert!(with(&empty, "M0").unwrap_err().contains("beyond all bounds"));
        let chain: Vec<String> = (0..100).map(|n| format!("M{n} M{}", n + 1)).collect();
        let chain: Vec<&str> = chain.iter().map(String::as_str).collect();
        assert!(with(&chain, "M0").unwrap_err().contains("more than 64 macros"));
    }
}
