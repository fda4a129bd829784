//! A strict reader of OpenMetrics text (OpenMetrics 1.0, its grammar and its rules for names,
//! types and units), for what scored serves.

use std::collections::{BTreeMap, BTreeSet};

/// A sample by its name, and its labels in order.
pub type Key = (String, Vec<(String, String)>);

#[derive(Default)]
struct Family {
    name: String,
    kind: Option<String>,
    unit: Option<String>,
    helped: bool,
}

/// Reads a whole answer.
///
/// # Errors
/// The line at fault, and what is wrong with it.
pub fn read(text: &str) -> Result<BTreeMap<Key, f64>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end in '# EOF' and a newline")?;
    let (mut samples, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let mut family = Family::default();
    for line in body.split_terminator('\n') {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let mut word = || words.next().ok_or_else(|| wrong("a word is missing"));
            let (what, name, value) = (word()?, word()?, word()?);
            if name != family.name {
                if !seen.insert(name.to_owned()) {
                    return Err(wrong("the family is not in one piece"));
                }
                family = Family { name: name.to_owned(), ..Family::default() };
            }
            describe(&mut family, what, value).map_err(wrong)?;
            continue;
        }
        let (key, value) = sample(line).ok_or_else(|| wrong("no sample"))?;
        belongs(&family, &key.0, value).map_err(wrong)?;
        if samples.insert(key, value).is_some() {
            return Err(wrong("it stands twice"));
        }
    }
    Ok(samples)
}

fn describe(family: &mut Family, what: &str, value: &str) -> Result<(), &'static str> {
    let name = &family.name;
    if !is_name(name, true) || name.ends_with("_total") {
        return Err("no name for a family");
    }
    match what {
        "TYPE" if ["counter", "gauge"].contains(&value) => {
            family.kind.replace(value.to_owned()).map_or(Ok(()), |_| Err("two types"))
        }
        "UNIT" if name.ends_with(&format!("_{value}")) => {
            family.unit.replace(value.to_owned()).map_or(Ok(()), |_| Err("two units"))
        }
        "UNIT" => Err("the name does not end in its unit"),
        "HELP" if value.ends_with('.') => {
            if std::mem::replace(&mut family.helped, true) {
                Err("two helps")
            } else {
                Ok(())
            }
        }
        _ => Err("unknown"),
    }
}

fn belongs(family: &Family, sample: &str, value: f64) -> Result<(), &'static str> {
    let expected = match family.kind.as_deref() {
        Some("counter") => format!("{}_total", family.name),
        Some(_) => family.name.clone(),
        None => return Err("its family has no type"),
    };
    let counts = family.kind.as_deref() == Some("counter");
    match () {
        () if sample != expected => Err("it is not of the family above"),
        () if !family.helped => Err("its family has no help"),
        () if counts && (value < 0.0 || !value.is_finite()) => Err("no count"),
        () => Ok(()),
    }
}

fn is_name(name: &str, colon: bool) -> bool {
    let letter = |one: char| one.is_ascii_alphabetic() || one == '_' || (colon && one == ':');
    name.chars().next().is_some_and(letter)
        && name.chars().all(|one| letter(one) || one.is_ascii_digit())
}

fn sample(line: &str) -> Option<(Key, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, behind) = inside.split_once("=\"")?;
            let (content, behind) = quoted(behind)?;
            if !is_name(label, false) || labels.iter().any(|(known, _)| known == label) {
                return None;
            }
            labels.push((label.to_owned(), content));
            match behind.strip_prefix(',') {
                Some(next) => inside = next,
                None => break rest = behind.strip_prefix('}')?,
            }
        }
    }
    let number = rest.strip_prefix(' ')?;
    let plain = number.chars().all(|one| one.is_ascii_digit() || one == '.');
    let value = number.parse().ok().filter(|_| plain && is_name(name, true))?;
    Some(((name.to_owned(), labels), value))
}

/// What stands before the next quote, and what behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut content = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((content, &text[at + 1..])),
            '\\' => content.push(match letters.next()?.1 {
                'n' => '\n',
                one @ ('\\' | '"') => one,
                _ => return None,
            }),
            one => content.push(one),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# TYPE a_seconds counter\n# UNIT a_seconds seconds\n# HELP a_seconds A.\n\
                        a_seconds_total{b=\"c\\\"\\\\\\n\",d=\"\"} 1.5\na_seconds_total 2\n# EOF\n";

    #[test]
    fn what_is_right_is_read_and_what_is_wrong_is_named() {
        let read_all = read(GOOD).unwrap();
        let labels = vec![("b".to_owned(), "c\"\\\n".to_owned()), ("d".to_owned(), String::new())];
        assert_eq!(read_all[&("a_seconds_total".to_owned(), labels)], 1.5);
        for (from, to) in [
            ("# EOF\n", ""),
            ("# EOF\n", "# EOF"),
            ("_total 2", " 2"),
            ("_total 2", "_total -2"),
            ("_total 2", "_total 2 "),
            ("_total 2", "_total{} 2"),
            ("# TYPE a_seconds counter\n", ""),
            ("UNIT a_seconds seconds", "UNIT a_seconds bytes"),
            ("d=\"\"", "b=\"\""),
            ("\\n\"", "\\t\""),
            ("_total 2\n", "_total{b=\"c\\\"\\\\\\n\",d=\"\"} 2\n"),
            (" 2\n", " 2\n# TYPE b gauge\n# HELP b B.\n# HELP a_seconds A.\n"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert!(read(&text).is_err(), "{text}");
        }
    }
}
