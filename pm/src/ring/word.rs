//! The header word of a slot: lap number, marks and length in one atomic word.

/// Set by whoever counted the message as received in place of a receiver that has exited.
const CLAIMED: u64 = 1 << 31;
/// The payload lies in the data area.
const LONG: u64 = 1 << 30;
const LENGTH: u64 = LONG - 1;

/// The lap in the upper half makes a word of an earlier round differ from one of this round; all
/// zero is "never written", because laps are counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    #[inline(always)]
    pub(crate) fn new(lap: u32, len: usize, long: bool) -> Word {
        Word(u64::from(lap) << 32 | if long { LONG } else { 0 } | (len as u64 & LENGTH))
    }
    /// How far this word is from the one that the receiver of lap `lap` waits for: 1 when it has
    /// come, 0 when not. Anything else was not written by a sender of ours.
    #[inline(always)]
    pub(crate) fn step(self, lap: u32) -> u32 {
        ((self.0 >> 32) as u32).wrapping_sub(lap.wrapping_sub(1))
    }
    /// The length of a message that is neither claimed nor long, minus 1; above [`super::INLINE`]
    /// for any other word. One comparison then tells the most frequent kind of message.
    #[inline(always)]
    pub(crate) fn short(self) -> usize {
        (self.0 as u32).wrapping_sub(1) as usize
    }
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        (self.0 & LENGTH) as usize
    }
    #[inline(always)]
    pub(crate) fn is_long(self) -> bool {
        self.0 & LONG != 0
    }
    #[inline(always)]
    pub(crate) fn is_claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }
    pub(crate) fn claimed(self) -> Word {
        Word(self.0 | CLAIMED)
    }
}
