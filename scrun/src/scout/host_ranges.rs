//! Compresses host names into ranges: `c[0-3,7].org`, in the notation of scorehosts.db.

use std::fmt::Write;

/// A name split at the last number of its first label.
#[derive(Debug, PartialEq, Eq)]
struct NumberedName<'a> {
    prefix: &'a str,
    digits: &'a str,
    suffix: &'a str,
}

fn split_number(name: &str) -> Option<(NumberedName<'_>, u64)> {
    let label = name.find('.').unwrap_or(name.len());
    let end = name[..label].rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |index| index + name[index..].chars().next().map_or(1, char::len_utf8));
    let digits = &name[start..end];
    let number = digits.parse().ok()?;
    Some((NumberedName { prefix: &name[..start], digits, suffix: &name[end..] }, number))
}

/// Whether two numbers can be in one bracket. The first number of a range keeps its leading zeros,
/// which set the width of all numbers of the range.
fn widths_are_compatible(one: &str, other: &str) -> bool {
    let has_leading_zero = |digits: &str| digits.len() > 1 && digits.starts_with('0');
    one.len() == other.len() || !(has_leading_zero(one) || has_leading_zero(other))
}

/// Formats all names, in order. Consecutive names that differ only in their number share a word.
pub fn compress<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut out = String::new();
    let mut names = names.into_iter().peekable();
    while let Some(name) = names.next() {
        if !out.is_empty() {
            out.push(' ');
        }
        let Some((first, number)) = split_number(name) else {
            out.push_str(name);
            continue;
        };
        // First and last number of each run with their digits, and the value of the last.
        let mut runs = vec![(first.digits, first.digits, number)];
        while let Some((next, number)) = names.peek().and_then(|name| split_number(name))
            && (next.prefix, next.suffix) == (first.prefix, first.suffix)
            && runs.last().is_some_and(|run| widths_are_compatible(run.1, next.digits))
        {
            names.next();
            match runs.last_mut() {
                Some(run) if run.2.checked_add(1) == Some(number) => {
                    (run.1, run.2) = (next.digits, number);
                }
                _ => runs.push((next.digits, next.digits, number)),
            }
        }
        if let [(start, end, _)] = runs[..]
            && start == end
        {
            out.push_str(name);
            continue;
        }
        let ranges: Vec<String> = runs
            .iter()
            .map(|(start, end, _)| match start == end {
                true => (*start).to_owned(),
                false => format!("{start}-{end}"),
            })
            .collect();
        // Writing to a String cannot fail.
        let _ = write!(out, "{}[{}]{}", first.prefix, ranges.join(","), first.suffix);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::compress;

    #[test]
    fn consecutive_names_share_a_range() {
        for (names, text) in [
            ("local0", "local0"),
            ("local0 local1 local2 local3", "local[0-3]"),
            ("c0.org c1.org c3.org d.org", "c[0-1,3].org d.org"),
            ("c09 c10 c11", "c[09-11]"),
            ("c9 c10", "c[9-10]"),
            ("c09 c9", "c09 c9"),
            ("c0.a c1.b", "c0.a c1.b"),
            ("n-7-1 n-7-2", "n-7-[1-2]"),
            ("c2 c1 c0", "c[2,1,0]"),
            ("alpha beta", "alpha beta"),
            ("10 11 12", "[10-12]"),
            ("h99999999999999999999999", "h99999999999999999999999"),
            ("é1 é2", "é[1-2]"),
        ] {
            assert_eq!(compress(names.split(' ')), text);
        }
    }
}
