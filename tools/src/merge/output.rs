//! Merging of the output of many processes on its way up a tree. Equal lines become one line with
//! all its ranks, and the lines of each rank stay in order.

use std::time::Duration;

use score_proto::nodeset::NodeSet;
use serde::{Deserialize, Serialize};

use super::MonotonicTime;

/// How long a line waits at a hop for equal lines of other ranks.
pub const MERGE_WINDOW: Duration = Duration::from_millis(20);

/// The longest line, in bytes. A longer line is split.
pub const MAX_LINE_LEN: usize = 4096;

/// The most lines that wait at a hop. Each new line is compared with them.
const MAX_LINES: usize = 512;

/// A line, with its newline if it has one, and the ranks that have written it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputLine {
    /// The ranks.
    pub ranks: NodeSet,
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub line: Vec<u8>,
}

/// Merges lines at one hop.
#[derive(Debug, Default)]
pub struct OutputMerger {
    lines: Vec<OutputLine>,
    deadline: Option<MonotonicTime>,
}

impl OutputMerger {
    /// The time at which waiting lines must be taken.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.deadline
    }

    /// Adds a line from below. The line merges with an equal line, unless one of its ranks has
    /// written that line or a later line. Returns true if no room is left, so that the lines must
    /// be taken now.
    pub fn add(&mut self, line: OutputLine, now: MonotonicTime) -> bool {
        if line.ranks.is_empty() {
            return false;
        }
        self.deadline.get_or_insert(now + MERGE_WINDOW);
        let is_last_of_a_rank = |old: &OutputLine| old.ranks.intersects(&line.ranks);
        let newer = self.lines.iter().rposition(is_last_of_a_rank).map_or(0, |last| last + 1);
        match self.lines[newer..]
            .iter_mut()
            .find(|old| old.line == line.line && old.ranks.union_fits(&line.ranks))
        {
            Some(equal) => equal.ranks.union(&line.ranks),
            None => self.lines.push(line),
        }
        self.lines.len() >= MAX_LINES
    }

    /// Takes all lines, in their order.
    pub fn take(&mut self) -> Vec<OutputLine> {
        self.deadline = None;
        std::mem::take(&mut self.lines)
    }
}

/// Splits the output of a process into lines.
#[derive(Debug, Default)]
pub struct LineCutter {
    partial: Vec<u8>,
}

impl LineCutter {
    /// Adds bytes. Returns the lines that are complete or have reached the greatest length.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in piece.chunks(MAX_LINE_LEN) {
                if self.partial.len() + piece.len() > MAX_LINE_LEN {
                    lines.push(std::mem::take(&mut self.partial));
                }
                self.partial.extend_from_slice(piece);
                if self.partial.ends_with(b"\n") {
                    lines.push(std::mem::take(&mut self.partial));
                }
            }
        }
        lines
    }

    /// The incomplete line, for example a prompt.
    pub fn take_partial(&mut self) -> Option<Vec<u8>> {
        (!self.partial.is_empty()).then(|| std::mem::take(&mut self.partial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(rank: u32, text: &str) -> OutputLine {
        OutputLine { ranks: NodeSet::one(rank), line: text.as_bytes().to_vec() }
    }

    #[test]
    fn equal_lines_of_ranks_are_merged_and_repeated_lines_of_one_rank_are_not() {
        let mut merger = OutputMerger::default();
        let now = Duration::from_secs(1);
        for (rank, text) in [(0, "a"), (1, "a"), (0, "b"), (0, "a"), (1, "b"), (1, "a")] {
            assert!(!merger.add(line(rank, text), now));
        }
        assert_eq!(merger.deadline(), Some(now + MERGE_WINDOW));
        let both = |text: &str| OutputLine { ranks: NodeSet::from(0..2), ..line(0, text) };
        assert_eq!(merger.take(), [both("a"), both("b"), both("a")]);
        assert_eq!(merger.deadline(), None);
    }

    #[test]
    fn many_different_lines_do_not_wait() {
        let mut merger = OutputMerger::default();
        let add = |merger: &mut OutputMerger, n: usize| {
            merger.add(line(0, &n.to_string()), Duration::ZERO)
        };
        let full = (0..).position(|n| add(&mut merger, n)).unwrap();
        assert_eq!(full + 1, MAX_LINES);
        assert_eq!(merger.take().len(), MAX_LINES);
    }

    #[test]
    fn lines_are_cut_at_newlines_and_at_their_greatest_length() {
        let mut cutter = LineCutter::default();
        assert_eq!(cutter.push(b"one\ntw"), [b"one\n".to_vec()]);
        assert_eq!(cutter.push(b"o\nthree"), [b"two\n".to_vec()]);
        assert_eq!(cutter.take_partial(), Some(b"three".to_vec()));
        assert_eq!(cutter.take_partial(), None);
        let long = vec![b'x'; MAX_LINE_LEN * 2 + 7];
        let lines = cutter.push(&long);
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [MAX_LINE_LEN; 2]);
        assert_eq!(cutter.push(b"\n"), [b"xxxxxxx\n".to_vec()]);
    }

    proptest! {
        #[test]
        fn all_lines_of_each_rank_arrive_in_order(
            written in proptest::collection::vec((0u32..5, 0u8..3, any::<bool>()), 0..80)
        ) {
            let mut merger = OutputMerger::default();
            let mut merged = Vec::new();
            for (rank, byte, take) in &written {
                let ranks = NodeSet::one(*rank);
                merger.add(OutputLine { ranks, line: vec![*byte] }, Duration::ZERO);
                if *take {
                    merged.extend(merger.take());
                }
            }
            merged.extend(merger.take());
            for rank in 0..5 {
                let own = merged.iter().filter(|line| line.ranks.contains(rank)).map(|l| l.line[0]);
                let expected = written.iter().filter(|line| line.0 == rank).map(|line| line.1);
                prop_assert!(own.eq(expected), "{merged:?}");
            }
        }
    }
}
