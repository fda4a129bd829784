//! One mapping of this process.

#![forbid(unsafe_code)]

use super::page_range::PageRange;

/// One mapping of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    pub(super) span: PageRange,
    /// The mapping is private and has no file.
    pub(super) anonymous: bool,
}
