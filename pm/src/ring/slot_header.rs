//! The header word of a slot: the lap's mark, flags and length in one atomic word.

/// The message was counted as received on behalf of a receiver that has exited.
const CLAIMED: u64 = 1 << 31;
/// The payload is in the data area or in a fixed buffer.
const OUT_OF_LINE: u64 = 1 << 30;
const LENGTH_MASK: u64 = OUT_OF_LINE - 1;

/// The lap's mark in the upper half distinguishes the header of an earlier lap from one of this
/// lap. A header of zeroes was never written: 0 is the mark of the lap before the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotHeader(pub(crate) u64);

impl SlotHeader {
    #[inline(always)]
    pub(crate) fn new(mark: u64, len: usize, out_of_line: bool) -> SlotHeader {
        SlotHeader(mark | if out_of_line { OUT_OF_LINE } else { 0 } | (len as u64 & LENGTH_MASK))
    }
    #[inline(always)]
    pub(crate) fn mark(self) -> u64 {
        self.0 >> 32 << 32
    }
    /// The length of a message with this mark that is neither claimed nor long. For any other
    /// header the result is 0 or above [`LENGTH_MASK`]. One comparison thus detects the most
    /// frequent kind.
    #[inline(always)]
    pub(crate) fn inline_len(self, mark: u64) -> usize {
        (self.0 ^ mark) as usize
    }
    /// Like `inline_len`, for a message that is long and not claimed. For any other header the
    /// result is above [`LENGTH_MASK`].
    #[inline(always)]
    pub(crate) fn out_of_line_len(self, mark: u64) -> usize {
        (self.0 ^ mark ^ OUT_OF_LINE) as usize
    }

    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        (self.0 & LENGTH_MASK) as usize
    }
    #[inline(always)]
    pub(crate) fn is_out_of_line(self) -> bool {
        self.0 & OUT_OF_LINE != 0
    }
    #[inline(always)]
    pub(crate) fn is_claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }
    pub(crate) fn claimed(self) -> SlotHeader {
        SlotHeader(self.0 | CLAIMED)
    }
}
