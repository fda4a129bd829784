//! The rules for names. Each checks the definitions of a file and describes the errors.

use std::collections::{BTreeMap, HashSet};

use super::source::{Definition, Kind, Source};

/// The last words of names of durations, in front of the unit.
const DURATION_ENDINGS: &[&str] =
    &["TIMEOUT", "INTERVAL", "GRACE", "TTL", "WINDOW", "DELAY", "RTT", "RTO", "LATENCY"];
const UNITS: &[&str] = &["NS", "US", "MS", "S"];
/// Constants that are units of time themselves.
const UNIT_CONSTANTS: &[&str] = &["NS", "US", "MS", "SECOND"];
const NUMBERS: &[&str] = &["u8", "u16", "u32", "u64", "u128", "i32", "i64", "f64"];
/// The file that defines all exit codes.
const EXIT_CODES: &str = "proto/src/exit_code.rs";
/// Names that every Rust file can use without `use`.
const PRELUDE: &[&str] = &[
    "AsMut",
    "AsRef",
    "Box",
    "Clone",
    "Copy",
    "Default",
    "DoubleEndedIterator",
    "Drop",
    "Eq",
    "Err",
    "ExactSizeIterator",
    "Extend",
    "Fn",
    "FnMut",
    "FnOnce",
    "From",
    "Future",
    "FromIterator",
    "Into",
    "IntoIterator",
    "IntoFuture",
    "Iterator",
    "None",
    "Ok",
    "Option",
    "Ord",
    "PartialEq",
    "PartialOrd",
    "Result",
    "Send",
    "Sized",
    "Some",
    "String",
    "Sync",
    "ToOwned",
    "ToString",
    "TryFrom",
    "TryInto",
    "Unpin",
    "Vec",
];
/// Pronouns, question words, quantities and moods, which are not allowed as names of types.
const NO_TYPES: &[&str] = &[
    "All",
    "Any",
    "Asked",
    "Both",
    "Each",
    "Everybody",
    "Everything",
    "Found",
    "Given",
    "Gone",
    "Her",
    "Here",
    "Him",
    "How",
    "It",
    "Its",
    "Itself",
    "Many",
    "Mine",
    "Nobody",
    "None",
    "Nothing",
    "Now",
    "One",
    "Other",
    "Others",
    "Ours",
    "Own",
    "Said",
    "Same",
    "Seen",
    "Some",
    "Somebody",
    "Something",
    "Such",
    "That",
    "Their",
    "Them",
    "There",
    "These",
    "They",
    "Thing",
    "This",
    "Those",
    "Told",
    "Us",
    "Wanted",
    "What",
    "When",
    "Where",
    "Whether",
    "Which",
    "Who",
    "Whom",
    "Whose",
    "Why",
    "Wish",
    "Yours",
];

/// Words that the name of a test may not contain, because its subjects and objects are nouns.
const NO_TEST_WORDS: &[&str] = &["nobody", "what", "whatever", "where", "who"];

/// Words that no identifier may contain, each with its replacement.
pub type Words = BTreeMap<String, String>;

/// Reads the table `| word | instead |` of the document.
pub fn word_list(lines: &[String]) -> Words {
    let rows = lines.iter().skip_while(|line| !line.starts_with("| word |")).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .filter_map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            Some((cells.next()?.to_string(), cells.next()?.to_string()))
        })
        .collect()
}

/// The rules, and the definitions of the files that were read so far.
pub struct Rules {
    words: Words,
    findings: Vec<String>,
    /// For each crate and name, the files that define a type of this name, and whether other files
    /// can use it.
    types: BTreeMap<(String, String), Vec<(String, bool)>>,
}

impl Rules {
    /// Rules with this word list.
    pub fn new(words: Words) -> Self {
        Self { words, findings: Vec::new(), types: BTreeMap::new() }
    }

    /// Checks one file. Names of types are compared in [`Rules::findings`].
    pub fn file(&mut self, source: &Source) {
        let path = &source.path;
        let mut known = HashSet::new();
        for (name, line) in &source.identifiers {
            if known.insert(name)
                && let Some(word) =
                    segments(name).into_iter().find(|part| self.words.contains_key(part))
            {
                let instead = &self.words[&word];
                self.findings.push(format!("{path}:{line}: {name}: not \"{word}\" but {instead}"));
            }
        }
        for one in &source.definitions {
            let fault = match one.kind {
                Kind::Type => {
                    let place = (crate_of(path), one.name.clone());
                    self.types.entry(place).or_default().push((path.clone(), one.public));
                    type_fault(&one.name)
                }
                Kind::Constant => constant_fault(path, one),
                Kind::Test => test_fault(&one.name),
            };
            if let Some(fault) = fault {
                self.findings.push(format!("{path}:{}: {}: {fault}", one.line, one.name));
            }
        }
    }

    /// All violations.
    pub fn findings(mut self) -> Vec<String> {
        for ((_, name), places) in &self.types {
            if places.len() > 1 && places.iter().any(|(_, public)| *public) {
                let paths: Vec<&str> = places.iter().map(|(path, _)| path.as_str()).collect();
                let finding = format!("{}: a crate has this type once: {name}", paths.join(", "));
                self.findings.push(finding);
            }
        }
        self.findings
    }
}

/// The rule that the name of a type breaks, if any.
fn type_fault(name: &str) -> Option<String> {
    if PRELUDE.contains(&name) {
        Some("shadows a name of the prelude".into())
    } else if NO_TYPES.contains(&name) {
        Some("a type is called by a noun, not by a pronoun, a question or a mood".into())
    } else {
        None
    }
}

/// The rule that the name of a test breaks, if any.
fn test_fault(name: &str) -> Option<String> {
    let parts = segments(name);
    let word = parts.iter().find(|part| NO_TEST_WORDS.contains(&part.as_str()))?;
    Some(format!("the name of a test contains a noun or a clause with \"if\", not \"{word}\""))
}

/// The rule that the name of a constant breaks, if any.
fn constant_fault(path: &str, one: &Definition) -> Option<String> {
    let has = |words: &[&str]| one.of.iter().any(|found| words.contains(&found.as_str()));
    let name = one.name.as_str();
    let ends_in_unit = name.rsplit('_').next().is_some_and(|last| UNITS.contains(&last))
        && name.contains('_')
        && !name.contains("_PER_");
    let duration = has(&["Duration"]) || (has(NUMBERS) && ends_in_unit);
    if duration && !UNIT_CONSTANTS.contains(&name) && !is_duration_name(name) {
        return Some(format!("a duration ends in _{}", DURATION_ENDINGS.join(", _")));
    }
    let number = has(NUMBERS) || has(&["usize"]);
    if number && ends_in(name, "LIMIT") && name != "HOP_LIMIT" {
        return Some("a limit begins with MAX_ or MIN_".into());
    }
    if number && ends_in(name, "LENGTH") {
        return Some("a length ends in _LEN".into());
    }
    let variable = one.text.as_deref().is_some_and(is_variable);
    if variable && has(&["str"]) && !name.ends_with("_ENV") {
        return Some("the name of an environment variable ends in _ENV".into());
    }
    // Tests use the programs from outside, so they may repeat these constants.
    let outside = path.starts_with("tests/");
    if name.starts_with("EXIT_") && has(&["u8", "i32"]) && path != EXIT_CODES && !outside {
        return Some(format!("exit codes are named in {EXIT_CODES}"));
    }
    None
}

/// Whether the last word of a constant's name is `word`.
fn ends_in(name: &str, word: &str) -> bool {
    name.rsplit('_').next() == Some(word)
}

/// Whether a constant has the name of a duration, such as `_TIMEOUT`, `_INTERVALS` or `_TTL_MS`.
fn is_duration_name(name: &str) -> bool {
    let mut parts: Vec<&str> = name.split('_').collect();
    parts.pop_if(|last| UNITS.contains(last));
    parts.pop_if(|last| *last == "RANGE");
    let last = parts.last().copied().unwrap_or_default();
    parts.len() > 1
        && DURATION_ENDINGS.iter().any(|end| last == *end || last.strip_suffix('S') == Some(end))
}

/// Whether a text looks like the name of one of this project's environment variables.
fn is_variable(text: &str) -> bool {
    let own = ["SCORE", "SCBD", "PM_", "HARNESS_"].iter().any(|start| text.starts_with(start));
    own && text
        .chars()
        .all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_')
}

/// The words of an identifier in lower case: `told` and `networks` of `ToldNetworks`.
fn segments(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for part in name.split('_') {
        let shouted = part.chars().all(|letter| !letter.is_lowercase());
        let mut word = String::new();
        for letter in part.chars() {
            if letter.is_uppercase() && !shouted && !word.is_empty() {
                parts.push(std::mem::take(&mut word));
            }
            word.extend(letter.to_lowercase());
        }
        parts.push(word);
    }
    parts
}

/// The directory of the files that are compiled together with a file, such as `a/src`,
/// `a/src/bin/b` or `a/tests/c`.
fn crate_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let top = ["src", "tests", "benches", "scenarios", "fuzz_targets"];
    let at = parts.iter().position(|part| top.contains(part)).unwrap_or(0);
    // tests/ is also the directory of a package.
    let at = if parts.get(at + 1).is_some_and(|next| ["src", "scenarios"].contains(next)) {
        at + 1
    } else {
        at
    };
    let length = match (parts[at], parts.get(at + 1)) {
        ("src", Some(&"bin")) => at + 3,
        ("src" | "scenarios", _) => at + 1,
        _ => at + 2,
    };
    parts[..length.min(parts.len())].join("/").trim_end_matches(".rs").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in these files.
    fn judge(files: &[(&str, &str)]) -> Vec<String> {
        let words = word_list(&[
            "| word | instead |".into(),
            "|---|---|".into(),
            "| muster | bring-up |".into(),
        ]);
        let mut rules = Rules::new(words);
        for (path, text) in files {
            rules.file(&Source::parse(path, text).expect("tokens"));
        }
        rules.findings()
    }

    #[test]
    fn a_word_of_the_list_is_found_in_every_identifier() {
        for text in ["struct MusterRoll;", "fn f(muster_at: u8) {}", "const MUSTER: u8 = 1;"] {
            let found = judge(&[("a/src/lib.rs", text)]);
            assert!(found.len() == 1 && found[0].contains("bring-up"), "{text}: {found:?}");
        }
        assert!(judge(&[("a/src/lib.rs", "// muster\nfn mustered() {}")]).is_empty());
    }

    #[test]
    fn a_duration_without_its_ending_is_found() {
        for text in [
            "const PATIENCE: Duration = Duration::from_secs(1);",
            "static WAIT: [Duration; 2] = X;",
            "const TIMEOUT: Duration = X;",
            "const LONGEST_NS: u64 = 5;",
        ] {
            let found = judge(&[("a/src/lib.rs", text)]);
            assert!(found.len() == 1 && found[0].contains("_TIMEOUT"), "{text}: {found:?}");
        }
        for text in [
            "const REPLY_TIMEOUT: Duration = X;",
            "const POLL_INTERVALS: [Duration; 2] = X;",
            "const POLL_INTERVAL_RANGE_MS: (u32, u32) = X;",
            "const MS: Duration = X;",
            "const STOPPED_NS: usize = 4;",
            "const LINK_BITS_PER_S: f64 = 1e9;",
        ] {
            assert_eq!(judge(&[("a/src/lib.rs", text)]), [] as [String; 0], "{text}");
        }
    }

    #[test]
    fn limits_and_lengths_have_their_forms() {
        for (text, rule) in [
            ("const POLL_LIMIT: u64 = 5;", "MAX_"),
            ("const LIMIT: usize = 5;", "MAX_"),
            ("const LENGTH: usize = 5;", "_LEN"),
        ] {
            let found = judge(&[("a/src/lib.rs", text)]);
            assert!(found.len() == 1 && found[0].contains(rule), "{text}: {found:?}");
        }
        assert!(judge(&[("a/src/lib.rs", "const MAX_POLLS: u64 = 5;")]).is_empty());
    }

    #[test]
    fn environment_variables_end_in_env_and_exit_codes_are_in_one_file() {
        for (text, rule) in [
            ("const PACE: &str = \"SCORE_TEST_PACE\";", "_ENV"),
            ("const EXIT_USAGE: u8 = 2;", "exit_code.rs"),
        ] {
            let found = judge(&[("a/src/lib.rs", text)]);
            assert!(found.len() == 1 && found[0].contains(rule), "{text}: {found:?}");
        }
        assert!(
            judge(&[("a/src/lib.rs", "const PACE_ENV: &str = \"SCORE_TEST_PACE\";")]).is_empty()
        );
        assert!(judge(&[(EXIT_CODES, "pub const EXIT_USAGE: u8 = 2;")]).is_empty());
    }

    #[test]
    fn a_type_is_a_noun_and_shadows_no_name_of_the_prelude() {
        for text in
            ["struct Whose;", "enum Copy { A }", "pub type Result<T> = X<T>;", "struct Said;"]
        {
            assert_eq!(judge(&[("a/src/lib.rs", text)]).len(), 1, "{text}");
        }
        assert!(judge(&[("a/src/lib.rs", "impl Iterator for A { type Item = u8; }")]).is_empty());
    }

    #[test]
    fn a_pronoun_or_a_question_word_in_the_name_of_a_test_is_found() {
        for name in ["who_asks_is_answered", "a_job_runs_where_it_fits", "nobody_waits", "what"] {
            let text = format!("#[test]\nfn {name}() {{}}");
            let found = judge(&[("a/src/lib.rs", text.as_str())]);
            assert!(found.len() == 1 && found[0].contains("name of a test"), "{name}: {found:?}");
        }
        for text in ["#[test]\nfn a_whole_job_runs_somewhere() {}", "fn who() {}"] {
            assert_eq!(judge(&[("a/src/lib.rs", text)]), [] as [String; 0], "{text}");
        }
    }

    #[test]
    fn a_type_name_occurs_once_in_a_crate_unless_each_is_private() {
        let public = ("a/src/one.rs", "pub struct Peer;");
        let private = ("a/src/two.rs", "struct Peer;");
        let other_crate = ("b/src/two.rs", "pub struct Peer;");
        assert_eq!(judge(&[public, private]).len(), 1);
        assert!(judge(&[private, ("a/src/three.rs", "enum Peer { A }")]).is_empty());
        assert!(judge(&[public, other_crate]).is_empty());
        assert!(judge(&[public, ("a/tests/x.rs", "struct Peer;")]).is_empty());
    }

    #[test]
    fn identifiers_are_split_into_words() {
        assert_eq!(segments("told_networks"), ["told", "networks"]);
        assert_eq!(segments("ToldNetworks"), ["told", "networks"]);
        assert_eq!(segments("TOLD_NETWORKS"), ["told", "networks"]);
    }
}
