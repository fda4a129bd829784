//! The breakpoints of a process: the addresses of the inserted int3 bytes, and the original bytes
//! of the program. This module does not access the process.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

/// The instruction int3.
pub const INT3: u8 = 0xcc;
/// The most breakpoints of a process.
pub const MAX_BREAKPOINTS: usize = 65_536;

/// The effect of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakpointKind {
    /// A hit causes a notice.
    Normal,
    /// A hit sends SIGTRAP to the handler that the tool has installed, if fast breakpoints are
    /// enabled.
    Fast,
}

#[derive(Debug, Clone, Copy)]
struct Breakpoint {
    original: u8,
    kind: BreakpointKind,
}

/// The breakpoints of a process.
#[derive(Debug, Default)]
pub struct Breakpoints {
    set: BTreeMap<u64, Breakpoint>,
    /// The addresses of former breakpoints. A thread may have executed such a breakpoint before it
    /// was removed.
    removed: BTreeSet<u64>,
    /// The breakpoint whose int3 is removed from memory while a thread executes the original
    /// instruction.
    lifted: Option<u64>,
    /// Whether all int3 bytes are removed from memory, because a child of vfork executes this
    /// memory.
    all_lifted: bool,
}

impl Breakpoints {
    /// The kind of the breakpoint at an address.
    pub fn kind(&self, address: u64) -> Option<BreakpointKind> {
        self.set.get(&address).map(|breakpoint| breakpoint.kind)
    }

    /// The byte of the program at a breakpoint.
    pub fn original(&self, address: u64) -> Option<u8> {
        self.set.get(&address).map(|breakpoint| breakpoint.original)
    }

    /// Whether memory contains int3 for the breakpoint at this address.
    pub fn is_inserted(&self, address: u64) -> bool {
        !self.all_lifted && self.lifted != Some(address) && self.set.contains_key(&address)
    }

    /// Whether a breakpoint at this address has been removed.
    pub fn was_removed(&self, address: u64) -> bool {
        self.removed.contains(&address)
    }

    /// The number of breakpoints.
    pub fn count(&self) -> usize {
        self.set.len()
    }

    /// Adds a breakpoint. The caller must change the memory if [`Self::is_inserted`] returns true.
    pub fn add(&mut self, address: u64, original: u8, kind: BreakpointKind) {
        self.removed.remove(&address);
        self.set.insert(address, Breakpoint { original, kind });
    }

    /// Removes a breakpoint.
    pub fn remove(&mut self, address: u64) {
        if self.set.remove(&address).is_some() {
            // Bounds the set for a tool that sets and removes breakpoints endlessly.
            if self.removed.len() >= MAX_BREAKPOINTS {
                self.removed.pop_first();
            }
            self.removed.insert(address);
        }
    }

    /// The addresses and original bytes of all breakpoints.
    pub fn all(&self) -> Vec<(u64, u8)> {
        self.set.iter().map(|(address, breakpoint)| (*address, breakpoint.original)).collect()
    }

    /// Notes the breakpoint whose int3 is removed for a thread. `None` if there is none.
    pub fn set_lifted(&mut self, address: Option<u64>) {
        self.lifted = address;
    }

    /// The breakpoint whose int3 is removed for a thread.
    pub fn lifted(&self) -> Option<u64> {
        self.lifted
    }

    /// Sets whether all int3 bytes are removed from memory.
    pub fn set_all_lifted(&mut self, all_lifted: bool) {
        self.all_lifted = all_lifted;
    }

    /// Whether all int3 bytes are removed from memory.
    pub fn are_all_lifted(&self) -> bool {
        self.all_lifted
    }

    fn places(&self, address: u64, length: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = address.saturating_add(length as u64);
        let range = if address < end { address..end } else { 0..0 };
        self.set.range(range).map(move |(place, _)| ((place - address) as usize, *place))
    }

    /// The breakpoints in memory that was read: the offset, and the byte of the program that
    /// replaces [`INT3`]. If another byte is there, the program has changed its text itself.
    pub fn hidden(&self, address: u64, length: usize) -> impl Iterator<Item = (usize, u8)> {
        let inserted = self.places(address, length).filter(|(_, place)| self.is_inserted(*place));
        inserted.filter_map(|(offset, place)| Some((offset, self.original(place)?)))
    }

    /// Replaces int3 bytes in memory that was read by the bytes of the program.
    pub fn hide(&self, address: u64, bytes: &mut [u8]) {
        for (offset, original) in self.hidden(address, bytes.len()) {
            if bytes[offset] == INT3 {
                bytes[offset] = original;
            }
        }
    }

    /// Changes bytes to be written so that breakpoints are preserved. The second result must be
    /// passed to [`Self::set_originals`] after the write.
    pub fn overlay(&self, address: u64, bytes: &[u8]) -> (Vec<u8>, Vec<(u64, u8)>) {
        let mut written = bytes.to_vec();
        let mut originals = Vec::new();
        for (offset, place) in self.places(address, bytes.len()) {
            originals.push((place, bytes[offset]));
            if self.is_inserted(place) {
                written[offset] = INT3;
            }
        }
        (written, originals)
    }

    /// Sets the original bytes of breakpoints.
    pub fn set_originals(&mut self, originals: &[(u64, u8)]) {
        for (place, original) in originals {
            if let Some(breakpoint) = self.set.get_mut(place) {
                breakpoint.original = *original;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_see_the_bytes_of_the_program() {
        let mut breakpoints = Breakpoints::default();
        breakpoints.add(102, 0x90, BreakpointKind::Normal);
        breakpoints.add(104, 0x55, BreakpointKind::Fast);
        let mut memory = [1, INT3, INT3, INT3, INT3, 6];
        breakpoints.hide(100, &mut memory);
        assert_eq!(memory, [1, INT3, 0x90, INT3, 0x55, 6]);
        let (written, originals) = breakpoints.overlay(101, &[7, 8, 9]);
        assert_eq!(written, [7, INT3, 9]);
        breakpoints.set_originals(&originals);
        assert_eq!(breakpoints.original(102), Some(8));
        breakpoints.set_lifted(Some(102));
        assert_eq!(breakpoints.overlay(101, &[7, 3, 9]).0, [7, 3, 9]);
        assert!(!breakpoints.is_inserted(102) && breakpoints.is_inserted(104));
        breakpoints.remove(104);
        assert!(breakpoints.was_removed(104) && breakpoints.kind(104).is_none());
        // A byte that the program has changed itself is shown unchanged.
        breakpoints.set_lifted(None);
        let mut changed = [0xaa];
        breakpoints.hide(102, &mut changed);
        assert_eq!(changed, [0xaa]);
        breakpoints.hide(u64::MAX, &mut changed);
    }
}
