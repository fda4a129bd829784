//! Whole pages of this process's memory.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult};

/// The unit in which the kernel pins and maps memory.
pub const PAGE: usize = 4096;

/// The pages from `start` up to, but not including, `end`. There is at least one page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageRange {
    start: usize,
    end: usize,
}

impl PageRange {
    /// The pages that contain `len` bytes at `address` (manual 3.6: any address and length).
    /// Invalid: `len` is 0, or the range exceeds the address space.
    pub fn pages(address: usize, len: usize) -> PmResult<PageRange> {
        let end = address.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE));
        match end {
            Some(end) if len > 0 => Ok(PageRange { start: address & !(PAGE - 1), end }),
            _ => Err(Error::Invalid),
        }
    }

    /// The range from `start` to `end` without rounding. None: the range is empty.
    pub fn new(start: usize, end: usize) -> Option<PageRange> {
        (start < end).then_some(PageRange { start, end })
    }

    /// The first address.
    pub fn start(&self) -> usize {
        self.start
    }

    /// The address after the last.
    pub fn end(&self) -> usize {
        self.end
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.end - self.start
    }

    /// Whether all of `other` is inside this range.
    pub fn contains(&self, other: PageRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the two share a page.
    #[cfg(test)]
    pub fn overlaps(&self, other: PageRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_rounded_outwards_to_pages() {
        assert_eq!(PageRange::pages(PAGE + 1, 1), Ok(PageRange { start: PAGE, end: 2 * PAGE }));
        assert_eq!(PageRange::pages(2 * PAGE - 1, 2), Ok(PageRange { start: PAGE, end: 3 * PAGE }));
        assert_eq!(PageRange::pages(0, PAGE), Ok(PageRange { start: 0, end: PAGE }));
        for (address, len) in [(PAGE, 0), (usize::MAX, 1), (usize::MAX - 8, 4), (8, usize::MAX)] {
            assert_eq!(PageRange::pages(address, len), Err(Error::Invalid), "{address} {len}");
        }
    }
}
