//! Looks for a message from any source (`FI_PEEK`) that have found nothing.
//!
//! MPICH looks for its messages within a process elsewhere, first, and makes progress there after
//! it has found nothing here. If a message from any source were found here at once, a receive from
//! any source could get another one: MPI_Probe would have lied. So the first look finds nothing.

use std::collections::VecDeque;

use score_p2p::Selector;

/// Looks that are remembered. A program looks for one message, or for few in turn.
const MAX_LOOKS: usize = 1000;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct EarlierLooks(VecDeque<Selector>);

impl EarlierLooks {
    /// Whether a look with this selector may find a message now: it names a source, or it has found
    /// nothing before, which is forgotten.
    pub(crate) fn may_find(&mut self, selector: Selector) -> bool {
        if selector.source.is_some() {
            return true;
        }
        let position = self.0.iter().position(|look| *look == selector);
        position.and_then(|position| self.0.remove(position)).is_some()
    }

    /// A look with this selector has found nothing.
    pub(crate) fn add(&mut self, selector: Selector) {
        if selector.source.is_none() {
            self.0.push_back(selector);
            if self.0.len() > MAX_LOOKS {
                self.0.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_from_any_source_finds_something_the_second_time() {
        let mut looks = EarlierLooks::default();
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
    fn the_oldest_looks_are_forgotten() {
        let mut looks = EarlierLooks::default();
        let selector = |tag| Selector { source: None, tag, ignore: 0 };
        (0..MAX_LOOKS as u64 + 2).for_each(|tag| looks.add(selector(tag)));
        assert_eq!(looks.0.len(), MAX_LOOKS);
        assert!(!looks.may_find(selector(1)) && looks.may_find(selector(2)));
        assert!(looks.may_find(selector(MAX_LOOKS as u64 + 1)));
    }
}
