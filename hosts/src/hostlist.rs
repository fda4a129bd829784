//! Names with numbers in brackets: `comp[0-15,20]`, `rack[1-2]n[01-16]`. They are an extension in
//! scorehosts.db and in expressions. Slurm writes its lists of nodes in the same form.

use crate::MAX_HOSTS;

/// Whether the name contains brackets.
pub fn is_range(name: &str) -> bool {
    name.contains(['[', ']'])
}

/// All names of the range, in order. If the name has no brackets, the name itself.
///
/// # Errors
/// The problem and the expected form, also if there are more names than [`MAX_HOSTS`].
pub fn expand(name: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        let Some((inside, after)) = after.split_once(']') else {
            return Err("'[' is not closed ([0-15,20] is expected)".into());
        };
        if before.contains(']') {
            break;
        }
        let numbers = numbers(inside)?;
        if names.len() * numbers.len() > MAX_HOSTS {
            return Err(format!("more than {MAX_HOSTS} names"));
        }
        let append_numbers = |name: &String| {
            let stem = format!("{name}{before}");
            numbers.iter().map(move |number| format!("{stem}{number}")).collect::<Vec<_>>()
        };
        names = names.iter().flat_map(append_numbers).collect();
        rest = after;
    }
    if rest.contains(']') {
        return Err("']' without '[' ([0-15,20] is expected)".into());
    }
    if !rest.is_empty() {
        names.iter_mut().for_each(|name| name.push_str(rest));
    }
    Ok(names)
}

/// Expands `0-15,20`. If the first number of a part has leading zeros, all numbers of the part are
/// padded to its length.
fn numbers(inside: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for part in inside.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (Some(first), Some(last)) = (number(low), number(high)) else {
            return Err(format!("'{part}' is neither a number nor a range (0-15 is expected)"));
        };
        if last < first {
            return Err(format!("'{part}' runs backwards"));
        }
        if (last - first) as usize >= MAX_HOSTS - all.len() {
            return Err(format!("more than {MAX_HOSTS} names"));
        }
        let width = if low.starts_with('0') { low.len() } else { 1 };
        all.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

fn number(text: &str) -> Option<u32> {
    let digits = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(name: &str) -> String {
        expand(name).unwrap().join(" ")
    }

    #[test]
    fn brackets_expand_to_all_of_their_numbers() {
        assert_eq!(joined("comp"), "comp");
        assert_eq!(joined("comp[0-3]"), "comp0 comp1 comp2 comp3");
        assert_eq!(joined("c[8-10,3].x.org"), "c8.x.org c9.x.org c10.x.org c3.x.org");
        assert_eq!(joined("n[08-11]"), "n08 n09 n10 n11");
        assert_eq!(joined("n[65535-65537]"), "n65535 n65536 n65537");
        assert_eq!(joined("r[1-2]n[0-1]"), "r1n0 r1n1 r2n0 r2n1");
        assert_eq!(expand("n[0-65535]").unwrap().len(), MAX_HOSTS);
    }

    #[test]
    fn an_invalid_range_is_refused_and_growth_is_bounded() {
        for (name, part) in [
            ("c[0-3", "not closed"),
            ("c0-3]", "']' without '['"),
            ("c]0[1]", "']' without '['"),
            ("c[]", "'' is neither a number"),
            ("c[a-b]", "'a-b' is neither a number"),
            ("c[3-1]", "runs backwards"),
            ("c[-1]", "'-1' is neither a number"),
            ("c[+1]", "'+1' is neither a number"),
            ("c[[1]]", "'[1' is neither a number"),
            ("c[0-65536]", "more than 65536"),
            ("c[0-999][0-999]", "more than 65536"),
            ("c[0-9999999999]", "neither a number"),
        ] {
            let error = expand(name).unwrap_err();
            assert!(error.contains(part), "{name}: {error}");
        }
        // `numbers` itself is bounded, before `expand` combines the numbers of several brackets.
        assert_eq!(numbers("0-65535,7").unwrap_err(), "more than 65536 names");
    }
}
