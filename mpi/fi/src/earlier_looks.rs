//! Peeks for a message from any source (`FI_PEEK`) that have found nothing.
//!
//! MPICH first checks its own queue for messages within a process. It makes progress there only
//! after a peek here has found nothing. If the first peek from any source found a message here, a
//! later receive from any source could get a different message, which MPI_Probe does not permit.
//! Therefore the first peek finds nothing.
//!
//! Open MPI has no other queue, and a program may expect that a peek finds a message that an
//! earlier peek has found. Therefore this applies to MPICH only.

use std::collections::VecDeque;

use score_p2p::Selector;

use crate::job;

/// The most peeks that are remembered. A program peeks for one message, or for few alternately.
const MAX_LOOKS: usize = 1000;

/// See the [module](self).
#[derive(Debug)]
pub(crate) enum EarlierLooks {
    /// Each peek may find a message.
    Ignored,
    /// The peeks from any source that have found nothing, oldest first.
    Remembered(VecDeque<Selector>),
}

impl EarlierLooks {
    /// The mode that the MPI library of this process needs.
    pub(crate) fn of_process() -> Self {
        match job::is_of_mpich() {
            true => Self::Remembered(VecDeque::new()),
            false => Self::Ignored,
        }
    }

    /// Whether a peek with this selector may find a message now. It may if it names a source, or if
    /// an earlier peek has found nothing. In the second case the record of the earlier peek is
    /// removed.
    pub(crate) fn may_find(&mut self, selector: Selector) -> bool {
        let Self::Remembered(looks) = self else { return true };
        if selector.source.is_some() {
            return true;
        }
        let position = looks.iter().position(|look| *look == selector);
        position.and_then(|position| looks.remove(position)).is_some()
    }

    /// Notes that a peek with this selector has found nothing.
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
    fn the_second_probe_of_any_source_with_the_same_tag_may_find_a_message() {
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
    fn without_remembered_probes_each_probe_may_find_a_message() {
        let mut looks = EarlierLooks::Ignored;
        let selector = Selector { source: None, tag: 3, ignore: 0 };
        assert!(looks.may_find(selector));
        looks.add(selector);
        assert!(looks.may_find(selector) && looks.may_find(selector));
    }

    #[test]
    fn the_oldest_probes_are_forgotten() {
        let mut looks = EarlierLooks::Remembered(VecDeque::new());
        let selector = |tag| Selector { source: None, tag, ignore: 0 };
        (0..MAX_LOOKS as u64 + 2).for_each(|tag| looks.add(selector(tag)));
        assert!(matches!(&looks, EarlierLooks::Remembered(list) if list.len() == MAX_LOOKS));
        assert!(!looks.may_find(selector(1)) && looks.may_find(selector(2)));
        assert!(looks.may_find(selector(MAX_LOOKS as u64 + 1)));
    }
}
