//! Splits the output of one process into pieces that can be mixed with the output of other
//! processes. Pieces are whole lines as far as possible.

/// A line of up to this many bytes, without the newline, is never split.
pub const MAX_LINE: usize = 64 * 1024;

/// The unfinished line of one stream.
#[derive(Debug, Default)]
pub struct LineSplitter {
    pending: Vec<u8>,
}

impl LineSplitter {
    /// Adds the next bytes of the stream. Appends to `out` the bytes that can be passed on:
    /// everything up to the last newline, and a line that has grown longer than [`MAX_LINE`].
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let complete_len =
            bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        if complete_len > 0 {
            out.append(&mut self.pending);
            out.extend_from_slice(&bytes[..complete_len]);
        }
        self.pending.extend_from_slice(&bytes[complete_len..]);
        if self.pending.len() > MAX_LINE {
            self.flush(out);
        }
    }

    /// Appends the unfinished line to `out` as it is.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.pending);
        if self.pending.capacity() > 4096 {
            self.pending = Vec::new();
        }
    }

    /// Bytes of the unfinished line.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_whole_lines_are_sent_before_a_flush() {
        let (mut lines, mut out) = (LineSplitter::default(), Vec::new());
        lines.push(b"one\ntw", &mut out);
        assert_eq!(out, b"one\n");
        lines.push(b"o", &mut out);
        assert_eq!((out.as_slice(), lines.pending()), (b"one\n".as_slice(), 3));
        lines.push(b"\nthree", &mut out);
        lines.flush(&mut out);
        assert_eq!(out, b"one\ntwo\nthree");
    }

    #[test]
    fn the_longest_guaranteed_line_is_not_split_and_a_longer_line_is_forwarded() {
        let (mut lines, mut out) = (LineSplitter::default(), Vec::new());
        for _ in 0..MAX_LINE / 1024 {
            lines.push(&[b'x'; 1024], &mut out);
        }
        assert!(out.is_empty());
        lines.push(b"\n", &mut out);
        assert_eq!(out.len(), MAX_LINE + 1);
        out.clear();
        lines.push(&vec![b'y'; 3 * MAX_LINE], &mut out);
        assert_eq!((out.len(), lines.pending()), (3 * MAX_LINE, 0));
    }

    proptest! {
        #[test]
        fn no_output_is_lost_or_reordered_and_no_line_is_split(
            text in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'\n')], 0..400),
            cut in 1usize..50,
        ) {
            let (mut lines, mut all) = (LineSplitter::default(), Vec::new());
            for piece in text.chunks(cut) {
                let mut out = Vec::new();
                lines.push(piece, &mut out);
                prop_assert!(out.is_empty() || out.last() == Some(&b'\n'));
                all.extend(out);
            }
            lines.flush(&mut all);
            prop_assert_eq!(all, text);
        }
    }
}
