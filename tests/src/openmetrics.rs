//! A strict parser for the OpenMetrics text that scored serves. It checks the grammar of
//! OpenMetrics 1.0, and its rules for names, types and units.

use std::collections::{BTreeMap, BTreeSet};

/// The name of a sample, and its labels in order.
pub type SampleKey = (String, Vec<(String, String)>);

#[derive(Default)]
struct MetricFamily {
    name: String,
    kind: Option<String>,
    unit: Option<String>,
    has_help: bool,
}

/// Parses a whole response.
///
/// # Errors
/// The invalid line and the reason.
pub fn parse(text: &str) -> Result<BTreeMap<SampleKey, f64>, String> {
    let body =
        text.strip_suffix("# EOF\n").ok_or("the text does not end in '# EOF' and a newline")?;
    let (mut samples, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let mut family = MetricFamily::default();
    for line in body.split_terminator('\n') {
        let error = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let mut word = || words.next().ok_or_else(|| error("a word is missing"));
            let (keyword, name, value) = (word()?, word()?, word()?);
            if name != family.name {
                if !seen.insert(name.to_owned()) {
                    return Err(error("the family is not contiguous"));
                }
                family = MetricFamily { name: name.to_owned(), ..MetricFamily::default() };
            }
            describe(&mut family, keyword, value).map_err(error)?;
            continue;
        }
        let (key, value) = parse_sample(line).ok_or_else(|| error("invalid sample"))?;
        check_sample(&family, &key.0, value).map_err(error)?;
        if samples.insert(key, value).is_some() {
            return Err(error("duplicate sample"));
        }
    }
    Ok(samples)
}

fn describe(family: &mut MetricFamily, keyword: &str, value: &str) -> Result<(), &'static str> {
    let name = &family.name;
    if !is_name(name, true) || name.ends_with("_total") {
        return Err("invalid name of a family");
    }
    match keyword {
        "TYPE" if ["counter", "gauge"].contains(&value) => {
            family.kind.replace(value.to_owned()).map_or(Ok(()), |_| Err("two types"))
        }
        "UNIT" if name.ends_with(&format!("_{value}")) => {
            family.unit.replace(value.to_owned()).map_or(Ok(()), |_| Err("two units"))
        }
        "UNIT" => Err("the name does not end in its unit"),
        "HELP" if value.ends_with('.') => {
            if std::mem::replace(&mut family.has_help, true) {
                Err("the family has two help texts")
            } else {
                Ok(())
            }
        }
        _ => Err("unknown keyword or value"),
    }
}

fn check_sample(family: &MetricFamily, sample: &str, value: f64) -> Result<(), &'static str> {
    let expected = match family.kind.as_deref() {
        Some("counter") => format!("{}_total", family.name),
        Some(_) => family.name.clone(),
        None => return Err("the family has no type"),
    };
    let is_counter = family.kind.as_deref() == Some("counter");
    match () {
        () if sample != expected => Err("the sample is not of the family above"),
        () if !family.has_help => Err("the family has no help"),
        () if is_counter && (value < 0.0 || !value.is_finite()) => Err("invalid count"),
        () => Ok(()),
    }
}

fn is_name(name: &str, allow_colon: bool) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_' || (allow_colon && c == ':');
    name.chars().next().is_some_and(is_letter)
        && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

fn parse_sample(line: &str) -> Option<(SampleKey, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(mut labels_text) = rest.strip_prefix('{') {
        loop {
            let (label, after) = labels_text.split_once("=\"")?;
            let (content, after) = parse_quoted(after)?;
            if !is_name(label, false) || labels.iter().any(|(existing, _)| existing == label) {
                return None;
            }
            labels.push((label.to_owned(), content));
            match after.strip_prefix(',') {
                Some(next) => labels_text = next,
                None => break rest = after.strip_prefix('}')?,
            }
        }
    }
    let number = rest.strip_prefix(' ')?;
    let is_plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value = number.parse().ok().filter(|_| is_plain && is_name(name, true))?;
    Some(((name.to_owned(), labels), value))
}

/// Returns the text before the next quote, and the text after it.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut content = String::new();
    let mut chars = text.char_indices();
    while let Some((index, c)) = chars.next() {
        match c {
            '"' => return Some((content, &text[index + 1..])),
            '\\' => content.push(match chars.next()?.1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            }),
            other => content.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# TYPE a_seconds counter\n# UNIT a_seconds seconds\n# HELP a_seconds A.\n\
                        a_seconds_total{b=\"c\\\"\\\\\\n\",d=\"\"} 1.5\na_seconds_total 2\n# EOF\n";

    // Promise of `prometheus_gets_the_metrics_that_the_token_permits`.
    #[test]
    fn a_valid_exposition_is_parsed_and_an_invalid_one_is_refused() {
        let samples = parse(GOOD).unwrap();
        let labels = vec![("b".to_owned(), "c\"\\\n".to_owned()), ("d".to_owned(), String::new())];
        assert_eq!(samples[&("a_seconds_total".to_owned(), labels)], 1.5);
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
            assert!(parse(&text).is_err(), "{text}");
        }
    }
}
