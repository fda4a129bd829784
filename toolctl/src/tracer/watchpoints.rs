//! The assignment of a thread's debug registers to watchpoints. This module does not access the
//! thread.

#![forbid(unsafe_code)]

use super::registers::DebugRegisters;

/// The accesses that a watchpoint detects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Reads and writes.
    ReadWrite,
}

impl WatchKind {
    /// The bits of DR7. The processor has no watchpoint for reads only.
    fn bits(self) -> u64 {
        match self {
            Self::Write => 0b01,
            Self::Read | Self::ReadWrite => 0b11,
        }
    }
}

/// Whether new threads get watchpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WatchPolicy {
    /// A new thread gets the watchpoints of the thread that has created it.
    #[default]
    Propagate,
    /// A new thread gets no watchpoints.
    NoPropagate,
}

/// A watched memory range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchRange {
    /// The first address, which is a multiple of the length.
    pub address: u64,
    /// The length in bytes: 1, 2, 4, 8, 16 or 32.
    pub length: u32,
    /// The accesses that are detected.
    pub kind: WatchKind,
}

/// Why a range cannot be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchError {
    /// The length is not a power of two.
    Length,
    /// The address is not aligned to the length.
    Alignment,
    /// No register is free, or the range is too large.
    NoRegister,
    /// The range overlaps another watchpoint.
    Overlap,
}

#[derive(Debug, Clone)]
struct Watchpoint {
    range: WatchRange,
    /// The debug registers that it uses.
    registers: Vec<usize>,
    /// Its bytes when they were last read.
    bytes: Vec<u8>,
}

/// The watchpoints of a thread.
#[derive(Debug, Clone, Default)]
pub struct Watchpoints {
    set: Vec<Watchpoint>,
    /// The values that a tool has set directly.
    direct: DebugRegisters,
}

/// The bits of DR7 that belong to a register.
fn control_mask(register: usize) -> u64 {
    (0b11 << (register * 2)) | (0b1111 << (16 + register * 4))
}

/// The encoding of a length in DR7.
fn length_bits(length: u32) -> u64 {
    match length {
        1 => 0b00,
        2 => 0b01,
        4 => 0b11,
        _ => 0b10,
    }
}

impl Watchpoints {
    /// Whether no debug register is used.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.direct == DebugRegisters::default()
    }

    /// The ranges of the watchpoints.
    pub fn ranges(&self) -> impl Iterator<Item = WatchRange> {
        self.set.iter().map(|watchpoint| watchpoint.range)
    }

    fn is_used(&self, register: usize) -> bool {
        self.set.iter().any(|watchpoint| watchpoint.registers.contains(&register))
    }

    /// Adds a watchpoint. `bytes` are the current contents of the range.
    ///
    /// # Errors
    /// Returns a [`WatchError`]. Nothing has changed in this case.
    pub fn add(&mut self, range: WatchRange, bytes: Vec<u8>) -> Result<(), WatchError> {
        if !range.length.is_power_of_two() {
            return Err(WatchError::Length);
        }
        if !range.address.is_multiple_of(range.length.into()) {
            return Err(WatchError::Alignment);
        }
        let end = range.address.saturating_add(range.length.into());
        let overlaps = |other: &Watchpoint| {
            let other_end = other.range.address.saturating_add(other.range.length.into());
            other.range.address < end && range.address < other_end
        };
        if self.set.iter().any(overlaps) {
            return Err(WatchError::Overlap);
        }
        let needed = range.length.div_ceil(8) as usize;
        let is_free = |register: &usize| {
            !self.is_used(*register) && self.direct.control & control_mask(*register) == 0
        };
        let registers: Vec<usize> = (0..4).filter(is_free).take(needed).collect();
        if registers.len() < needed {
            return Err(WatchError::NoRegister);
        }
        self.set.push(Watchpoint { range, registers, bytes });
        Ok(())
    }

    /// Removes the watchpoint at an address. Returns false if there is none.
    pub fn remove(&mut self, address: u64) -> bool {
        let count = self.set.len();
        self.set.retain(|watchpoint| watchpoint.range.address != address);
        self.set.len() < count
    }

    /// Sets the registers directly for a tool. Registers that watchpoints use must keep their
    /// values.
    ///
    /// # Errors
    /// Returns `NoRegister` if this would change a register that a watchpoint uses.
    pub fn set_direct(&mut self, wanted: DebugRegisters) -> Result<(), WatchError> {
        let now = self.contents();
        for register in (0..4).filter(|register| self.is_used(*register)) {
            let mask = control_mask(register);
            if wanted.addresses[register] != now.addresses[register]
                || (wanted.control ^ now.control) & mask != 0
            {
                return Err(WatchError::NoRegister);
            }
        }
        let mut direct = wanted;
        for register in (0..4).filter(|register| self.is_used(*register)) {
            direct.addresses[register] = 0;
            direct.control &= !control_mask(register);
        }
        direct.status = 0;
        self.direct = direct;
        Ok(())
    }

    /// The values of the registers.
    pub fn contents(&self) -> DebugRegisters {
        let mut contents = self.direct;
        for watchpoint in &self.set {
            let length = watchpoint.range.length.min(8);
            for (index, register) in watchpoint.registers.iter().enumerate() {
                contents.addresses[*register] = watchpoint.range.address + index as u64 * 8;
                let kind = watchpoint.range.kind.bits() | (length_bits(length) << 2);
                contents.control |= 1 << (register * 2);
                contents.control |= kind << (16 + register * 4);
            }
        }
        contents
    }

    /// The range that a register watches, with its last known bytes.
    pub fn range_of(&self, register: usize) -> Option<(WatchRange, &[u8])> {
        let has_register = |watchpoint: &&Watchpoint| watchpoint.registers.contains(&register);
        self.set.iter().find(has_register).map(|found| (found.range, found.bytes.as_slice()))
    }

    /// Stores the current contents of a range.
    pub fn set_bytes(&mut self, address: u64, bytes: Vec<u8>) {
        let mut all = self.set.iter_mut();
        if let Some(found) = all.find(|watchpoint| watchpoint.range.address == address) {
            found.bytes = bytes;
        }
    }

    /// The register that was hit, if the tool has set it directly: its address, and whether it is
    /// for execution.
    pub fn direct_hit(&self, status: u64) -> Option<(u64, bool)> {
        let is_direct = |register: &usize| {
            status >> register & 1 == 1
                && !self.is_used(*register)
                && self.direct.control & (0b11 << (register * 2)) != 0
        };
        let register = (0..4).find(is_direct)?;
        let kind = self.direct.control >> (16 + register * 4) & 0b11;
        Some((self.direct.addresses[register], kind == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: u64, length: u32) -> WatchRange {
        WatchRange { address, length, kind: WatchKind::Write }
    }

    #[test]
    fn ranges_are_checked_and_allocate_debug_registers() {
        let mut watchpoints = Watchpoints::default();
        for (address, length, error) in [
            (0x1000, 3, WatchError::Length),
            (0x1000, 0, WatchError::Length),
            (0x1002, 4, WatchError::Alignment),
            (0x1000, 64, WatchError::NoRegister),
        ] {
            assert_eq!(watchpoints.add(range(address, length), vec![]), Err(error));
        }
        watchpoints.add(range(0x1000, 16), vec![]).unwrap();
        assert_eq!(watchpoints.add(range(0x1008, 8), vec![]), Err(WatchError::Overlap));
        assert_eq!(watchpoints.add(range(0x2000, 32), vec![]), Err(WatchError::NoRegister));
        watchpoints.add(range(0x2000, 1), vec![]).unwrap();
        watchpoints.add(range(0x2002, 2), vec![]).unwrap();
        assert_eq!(watchpoints.add(range(0x3000, 1), vec![]), Err(WatchError::NoRegister));
        let contents = watchpoints.contents();
        assert_eq!(contents.addresses, [0x1000, 0x1008, 0x2000, 0x2002]);
        assert_eq!(contents.control, 0x5199_0055);
        assert!(watchpoints.remove(0x1000) && !watchpoints.remove(0x1000));
        assert_eq!(watchpoints.contents().control, 0x5100_0050);
    }

    #[test]
    fn registers_of_watchpoints_are_not_set_directly() {
        let mut watchpoints = Watchpoints::default();
        watchpoints.add(range(0x1000, 8), vec![]).unwrap();
        let mut wanted = watchpoints.contents();
        wanted.addresses[1] = 0x4000;
        wanted.control |= 0b100;
        watchpoints.set_direct(wanted).unwrap();
        assert_eq!(watchpoints.contents(), wanted);
        assert_eq!(watchpoints.direct_hit(0b11), Some((0x4000, true)));
        assert_eq!(watchpoints.direct_hit(0b01), None);
        wanted.addresses[0] = 0x5000;
        assert_eq!(watchpoints.set_direct(wanted), Err(WatchError::NoRegister));
        watchpoints.add(range(0x6000, 16), vec![]).unwrap();
        assert_eq!(watchpoints.add(range(0x7000, 1), vec![]), Err(WatchError::NoRegister));
    }
}
