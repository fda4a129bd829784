//! Looks for a message from any source (`FI_PEEK`) that have found nothing.
//!
//! MPICH looks for its messages within a process elsewhere, first, and makes progress there after
//! it has found nothing here. If a message from any source were found here at once, a receive from
//! any source could get another one: MPI_Probe would have lied. So the first look finds nothing.
//!
//! Open MPI has no other place, and a program may expect that a look finds what another look has
//! found. So this is for MPICH only.

use std::collections::VecDeque;

use score_p2p::Selector;

/// Looks that are remembered. A program looks for one message, or for few in turn.
const MAX_LOOKS: usize = 1000;
/// A variable that processes of MPICH have, which start by PMI.
const MPICH_ENV: &str = "PMI_FD";

/// See the [module](self).
#[derive(Debug)]
pub(crate) enum EarlierLooks {
    /// Each look may find something.
    Ignored,
    /// Those from any source that have found nothing, the oldest first.
    Remembered(VecDeque<Selector>),
}

impl EarlierLooks {
    /// What the MPI library of this process needs.
    pub(crate) fn of_process() -> Self {
        match std::env::var_os(MPICH_ENV).is_some() {
            true => Self::Remembered(VecDeque::new()),
            false => Self::Ignored,
        }
    }

    /// Whether a look with this selector may find a message now: it names a source, or it has found
    /// nothing before, which is forgotten.
    pub(crate) fn may_find(&mut self, selector: Selector) -> bool {
        let Self::Remembered(looks) = self else { return true };
        if selector.source.is_some() {
            return true;
        }
        let position = looks.iter().position(|look| *look == selector);
        position.and_then(|position| looks.remove(position)).is_some()
    }

    /// A look with this selector has found nothing.
    pub(crate) fn add(&mut self, selector: Selector) {
        if let Self::Remembered(looks) = self
            && selector.source.is_none()
        {
            looks.push_back(selector);
            if looks.len() > MAX_LOOKS {
                looks.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_from_any_source_finds_something_the_second_time() {
        let mut looks = EarlierLooks::Remembered(VecDeque::new());
        let selector = |tag| Selector { source: None, tag, ignore: 0 };
        assert!(looks.may_find(Selector { source: Some(1), tag: 0, ignore: 0 }));
        for tag in 0..3 {
            assert!(!looks.may_find(selector(tag)));
            looks.add(selector(tag));
        }
        for tag in [1, 0, 2] {
            assert!(looks.may_find(selector(tag)), "{tag}");
            assert!(!looks.may_find(selector(tag)), "{tag}");
        }
    }

    #[test]
    fn libraries_that_look_nowhere_else_find_something_at_once() {
        let mut looks = EarlierLooks::Ignored;
        let selector = Selector { source: None, tag: 3, ignore: 0 };
        assert!(looks.may_find(selector));
        looks.add(selector);
        assert!(looks.may_find(selector) && looks.may_find(selector));
    }

    #[test]
    fn the_oldest_looks_are_forgotten() {
        let mut looks = EarlierLooks::Remembered(VecDeque::new());
        let selector = |tag| Selector { source: None, tag, ignore: 0 };
        (0..MAX_LOOKS as u64 + 2).for_each(|tag| looks.add(selector(tag)));
        assert!(matches!(&looks, EarlierLooks::Remembered(list) if list.len() == MAX_LOOKS));
        assert!(!looks.may_find(selector(1)) && looks.may_find(selector(2)));
        assert!(looks.may_find(selector(MAX_LOOKS as u64 + 1)));
    }
}
