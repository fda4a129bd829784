//! The ranks for which a debugger requests servers (`MPIR_subset_attach`, CDTI 2.1.8). The text
//! consists of elements separated by blanks: `RANK`, `RANK-RANK` or `RANK-RANK:STRIDE`. `max` or
//! `$max` is the last rank.

use score_proto::nodeset::NodeSet;

/// Parses a subset of `ranks` ranks. Returns `None` if the text names no ranks, which means all
/// ranks.
///
/// # Errors
/// The invalid element.
pub fn parse(text: &[u8], ranks: u32) -> Result<Option<NodeSet>, String> {
    let mut subset = NodeSet::new();
    let elements = text.split(u8::is_ascii_whitespace).filter(|element| !element.is_empty());
    for element in elements {
        let wrong = |reason: &str| {
            let element = element.escape_ascii();
            format!("MPIR_subset_attach: '{element}': {reason}")
        };
        let text = std::str::from_utf8(element).map_err(|_| wrong("not a range of ranks"))?;
        let (range, stride) = match text.split_once(':') {
            Some((range, stride)) => (range, Some(stride)),
            None => (text, None),
        };
        let rank = |text: &str| match text {
            "max" | "$max" => ranks.checked_sub(1).ok_or_else(|| wrong("the job has no ranks")),
            digits => number(digits).ok_or_else(|| wrong("not a range of ranks")),
        };
        let (first, last) = match (range.split_once('-'), stride) {
            (Some((first, last)), _) => (rank(first)?, rank(last)?),
            (None, None) => (rank(range)?, rank(range)?),
            (None, Some(_)) => return Err(wrong("a stride needs a range")),
        };
        let stride = match stride.map(number) {
            None => 1,
            Some(None) => return Err(wrong("not a stride")),
            Some(Some(0)) => return Err(wrong("a stride of 0")),
            Some(Some(stride)) => stride,
        };
        if last >= ranks {
            return Err(wrong(&format!("the job has {ranks} ranks, from 0")));
        }
        if first > last {
            return Err(wrong("the first rank is greater than the last one"));
        }
        match stride {
            1 => subset.insert_range(first..last + 1),
            // Ascending ranks are added to a set quickly, so collect them before the union.
            _ => {
                let chosen = (first..=last).step_by(stride as usize).collect();
                subset.union(&chosen);
            }
        }
    }
    Ok(Some(subset).filter(|subset| !subset.is_empty()))
}

/// A decimal number without a sign.
fn number(digits: &str) -> Option<u32> {
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(text: &str, count: u32) -> Vec<u32> {
        parse(text.as_bytes(), count).unwrap().unwrap().iter().collect()
    }

    #[test]
    fn the_example_of_the_interface_selects_its_ranks() {
        assert_eq!(ranks("1 2 4-6 7-$max:2", 16), [1, 2, 4, 5, 6, 7, 9, 11, 13, 15]);
        assert_eq!(ranks("max", 3), [2]);
        assert_eq!(ranks(" 0-max:3\t0 ", 8), [0, 3, 6]);
        assert_eq!(ranks("0-4294967294:4294967295", u32::MAX), [0]);
        assert_eq!(ranks("5-5", 6), [5]);
    }

    #[test]
    fn a_text_without_ranks_means_all() {
        for text in ["", " ", "\t\n "] {
            assert_eq!(parse(text.as_bytes(), 4), Ok(None));
        }
    }

    #[test]
    fn each_wrong_element_is_named() {
        let cases = [
            "4",
            "0-4",
            "max-0",
            "2-1",
            "0-3:0",
            "0-3:",
            "0-3:x",
            "2:1",
            "-1",
            "1-",
            "+1",
            "a",
            "$min",
            "1,2",
            "0--3",
            "0-3:1:1",
            "99999999999",
            "0-$max:-1",
            "\u{fc}",
        ];
        for case in cases {
            let error = parse(format!("0 {case}").as_bytes(), 4).unwrap_err();
            let named = format!("'{}'", case.as_bytes().escape_ascii());
            assert!(error.contains(&named), "{case}: {error}");
        }
        assert!(parse(b"\xff", 4).is_err() && parse(b"max", 0).is_err());
    }
}
