//! Suggestions for misspelled names ("did you mean").

/// The number of edits between two words. An edit inserts, deletes or replaces a letter, or swaps
/// two neighbours.
pub fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for i in 1..=left.len() {
        let mut row = vec![i];
        for j in 1..=right.len() {
            let cost = usize::from(left[i - 1] != right[j - 1]);
            let mut best = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + cost);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                let swapped: &Vec<usize> = &before_last;
                best = best.min(swapped[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

/// The longest name that is compared. A longer name gets no suggestion.
const MAX_NAME_CHARS: usize = 24;

/// The candidate that a user most likely meant by `word`, if one is close enough. The limit is one
/// edit for names of up to five letters, and two edits for longer names. Upper case in `word` is
/// replaced by lower case.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_NAME_CHARS {
        return None;
    }
    let lower = word.to_lowercase();
    candidates
        .map(|name| (distance(&lower, name), name))
        .filter(|(edits, name)| *edits <= if name.len() <= 5 { 1 } else { 2 })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_of_two_letters_counts_as_one_edit() {
        for (left, right, edits) in [
            ("nodes", "nodes", 0),
            ("node", "nodes", 1),
            ("ndoes", "nodes", 1),
            ("ondes", "nodes", 1),
            ("modes", "nodes", 1),
            ("", "wait", 4),
            ("mesage", "message", 1),
        ] {
            assert_eq!(distance(left, right), edits, "{left} {right}");
            assert_eq!(distance(right, left), edits, "{right} {left}");
        }
    }

    #[test]
    fn only_near_names_are_offered() {
        let known = || ["nodes", "wait", "memorylimit"].into_iter();
        assert_eq!(nearest("node", known()), Some("nodes"));
        assert_eq!(nearest("NODES", known()), Some("nodes"));
        assert_eq!(nearest("memlimit", known()), None);
        assert_eq!(nearest("memorylimits", known()), Some("memorylimit"));
        assert_eq!(nearest("colour", known()), None);
        assert_eq!(nearest("nos", known()), None, "two edits of a name of five letters");
        assert_eq!(nearest("memorylmt", known()), Some("memorylimit"), "two edits");
    }

    #[test]
    fn a_name_beyond_the_length_limit_has_no_suggestion() {
        let longest = "n".repeat(MAX_NAME_CHARS);
        let offered = nearest(&longest, std::iter::once(longest.as_str()));
        assert_eq!(offered, Some(longest.as_str()));
        let longer = "n".repeat(MAX_NAME_CHARS + 1);
        assert_eq!(nearest(&longer, std::iter::once(longer.as_str())), None);
    }
}
