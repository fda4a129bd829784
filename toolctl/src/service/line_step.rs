//! Steps of a console by lines of the source.

use score_stacks::frame::{Frame, SourceLine, Stack};

/// The most instructions of a step by lines. This ends a step in a loop on one line, or in a long
/// function without line numbers.
const MAX_STEP_INSTRUCTIONS: u32 = 20_000;

/// A step by lines that is in progress.
#[derive(Debug)]
pub(super) struct LineStep {
    /// The line in which the step has begun.
    from: SourceLine,
    /// The number of instructions that may follow.
    left: u32,
}

impl LineStep {
    /// Begins a step at the innermost frame of a stack. `None` if it has no line.
    pub fn begin(stack: &[u8]) -> Option<Self> {
        Some(Self { from: source_line(stack)?, left: MAX_STEP_INSTRUCTIONS - 1 })
    }

    /// Whether the step continues after an instruction that has led to this stack. It continues
    /// through code without line numbers.
    pub fn continues(&mut self, stack: &[u8]) -> bool {
        let is_in_line = source_line(stack).is_none_or(|line| line == self.from);
        let continues = is_in_line && self.left > 0 && !stack.is_empty();
        self.left = self.left.saturating_sub(1);
        continues
    }
}

/// The source line of the innermost frame of an encoded stack.
fn source_line(stack: &[u8]) -> Option<SourceLine> {
    let stack = Stack::decode(stack).ok()?;
    match stack.frames.last()? {
        // Compilers give the line 0 to instructions that belong to no line.
        Frame::Function { source, .. } => source.clone().filter(|source| source.line != 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(source: Option<(&str, u32)>) -> Vec<u8> {
        let source = source.map(|(file, line)| SourceLine { file: file.to_owned(), line });
        let (name, module) = ("f".to_owned(), "m".to_owned());
        let frame = Frame::Function { name, module, source, is_inlined: false };
        Stack { frames: vec![frame] }.encode().unwrap()
    }

    #[test]
    fn a_step_by_lines_ends_in_another_line_or_after_many_instructions() {
        let begin = || LineStep::begin(&stack(Some(("a.c", 7)))).unwrap();
        let mut step = begin();
        for same in [Some(("a.c", 7)), None, Some(("a.c", 0))] {
            assert!(step.continues(&stack(same)), "{same:?}");
        }
        for other in [("a.c", 8), ("a.h", 7)] {
            assert!(!begin().continues(&stack(Some(other))), "{other:?}");
        }
        assert!(!begin().continues(&[]), "the stack could not be read");
        let mut endless = begin();
        let count = (1..).find(|_| !endless.continues(&stack(Some(("a.c", 7)))));
        assert_eq!(count, Some(MAX_STEP_INSTRUCTIONS));
        assert!(LineStep::begin(&stack(None)).is_none());
    }
}
