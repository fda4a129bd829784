//! The breakpoints of a process: which bytes of its text are ours, and what the program has there.
//! Nothing here touches the process.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

/// The instruction int3.
pub const INT3: u8 = 0xcc;
/// Breakpoints of a process, at most.
pub const MAX_BREAKPOINTS: usize = 65_536;

/// What a hit gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakpointKind {
    /// A notice.
    Normal,
    /// SIGTRAP for the handler that the tool has installed, if fast breakpoints are enabled.
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
    /// Addresses of former breakpoints: a thread may have executed one before it was removed.
    removed: BTreeSet<u64>,
    /// The one whose byte is out of memory, as a thread executes the instruction there.
    lifted: Option<u64>,
    /// All bytes are out of memory, as a child of vfork executes this memory.
    all_lifted: bool,
}

impl Breakpoints {
    /// The kind of the breakpoint at an address.
    pub fn kind(&self, address: u64) -> Option<BreakpointKind> {
        self.set.get(&address).map(|breakpoint| breakpoint.kind)
    }

    /// The byte that the program has where a breakpoint is.
    pub fn original(&self, address: u64) -> Option<u8> {
        self.set.get(&address).map(|breakpoint| breakpoint.original)
    }

    /// Whether memory has int3 for the breakpoint at this address.
    pub fn is_inserted(&self, address: u64) -> bool {
        !self.all_lifted && self.lifted != Some(address) && self.set.contains_key(&address)
    }

    /// Whether there was a breakpoint at an address, which has been removed.
    pub fn was_removed(&self, address: u64) -> bool {
        self.removed.contains(&address)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.set.len()
    }

    /// Adds one. Memory is to be changed by the caller, if [`Self::is_inserted`] says so.
    pub fn add(&mut self, address: u64, original: u8, kind: BreakpointKind) {
        self.removed.remove(&address);
        self.set.insert(address, Breakpoint { original, kind });
    }

    /// Forgets one.
    pub fn remove(&mut self, address: u64) {
        if self.set.remove(&address).is_some() {
            // A bound, for a tool that sets and removes for ever.
            if self.removed.len() >= MAX_BREAKPOINTS {
                self.removed.pop_first();
            }
            self.removed.insert(address);
        }
    }

    /// Address and original byte of all of them.
    pub fn all(&self) -> Vec<(u64, u8)> {
        self.set.iter().map(|(address, breakpoint)| (*address, breakpoint.original)).collect()
    }

    /// The byte of this breakpoint is out of memory from now on, or of none (None).
    pub fn set_lifted(&mut self, address: Option<u64>) {
        self.lifted = address;
    }

    /// The one that is out of memory for a thread.
    pub fn lifted(&self) -> Option<u64> {
        self.lifted
    }

    /// Whether all bytes are out of memory.
    pub fn set_all_lifted(&mut self, all_lifted: bool) {
        self.all_lifted = all_lifted;
    }

    /// Whether all bytes are out of memory.
    pub fn are_all_lifted(&self) -> bool {
        self.all_lifted
    }

    fn places(&self, address: u64, length: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = address.saturating_add(length as u64);
        let range = if address < end { address..end } else { 0..0 };
        self.set.range(range).map(move |(place, _)| ((place - address) as usize, *place))
    }

    /// Changes bytes read from memory to those that the program has there.
    pub fn hide(&self, address: u64, bytes: &mut [u8]) {
        for (offset, place) in self.places(address, bytes.len()) {
            // The program may have changed its text itself: then its byte is already there.
            if let Some(breakpoint) = self.set.get(&place)
                && self.is_inserted(place)
                && bytes[offset] == INT3
            {
                bytes[offset] = breakpoint.original;
            }
        }
    }

    /// Changes bytes that are about to be written so that the breakpoints stay. The second result
    /// is for [`Self::set_originals`], after they have been written.
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

    /// Sets the bytes that the program has where breakpoints are.
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
        // A byte that the program has changed itself is shown as it is.
        breakpoints.set_lifted(None);
        let mut changed = [0xaa];
        breakpoints.hide(102, &mut changed);
        assert_eq!(changed, [0xaa]);
        breakpoints.hide(u64::MAX, &mut changed);
    }
}
