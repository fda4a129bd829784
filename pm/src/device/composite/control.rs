//! Control messages: by the member that reaches the node, from any member.

#![forbid(unsafe_code)]

use super::Composite;
use super::open::Entry;
use crate::error::{Error, Result};
use crate::sync::Ordering;

impl Composite {
    pub(super) fn control_from_members(&self, buffer: &mut [u8], len: &mut usize) -> Result<u32> {
        for (place, member) in self.members() {
            match member.control_receive(buffer, len) {
                Err(Error::NoBuffers) => {}
                Ok(source) => return self.name_of(place, source).ok_or(Error::Io),
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoBuffers)
    }

    /// What the member's node `source` is called here.
    fn name_of(&self, place: u64, source: u32) -> Option<u32> {
        let named = self.table.iter().position(|line| {
            Entry::from_bits(line.load(Ordering::Relaxed))
                .is_some_and(|entry| entry.member() == place && entry.node() == source)
        });
        named.map(|node| node as u32)
    }
}
