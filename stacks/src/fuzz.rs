//! Entry for fuzzing: any bytes as a file that is mapped into a process.

use gimli::UnwindContext;

use crate::cfi::CfiStep;
use crate::debug_file;
use crate::memory::{MemoryCopy, StackCopy};
use crate::module::{Module, Origin};
use crate::registers::{RBP, Registers};

/// Maximum number of addresses that are looked up in each file.
const MAX_ADDRESSES: usize = 64;
/// Maximum number of frames that are unwound from each address.
const MAX_STEPS: usize = 16;
const STACK_START: u64 = 0x7fff_0000;

/// Reads any bytes as a module. Unwinds from addresses in it over a stack of the same bytes, and
/// looks up names and lines. All of this is bounded, and must not panic.
pub fn fuzz(bytes: &[u8]) {
    let module = Module::read("/lib/fuzz.so", Origin::Memory(bytes.to_vec()));
    let addresses = addresses_of(&module, bytes);
    let piece = MemoryCopy { start: STACK_START, bytes: bytes[..bytes.len().min(4096)].to_vec() };
    let stack = StackCopy { pieces: vec![piece], is_truncated: false };
    let mut context = UnwindContext::new();
    for address in &addresses {
        let mut registers = Registers::new(*address, STACK_START);
        registers.set(RBP, STACK_START + 64);
        for _ in 0..MAX_STEPS {
            let step = module.unwind.step(&mut context, registers.rip(), &registers, &stack);
            let CfiStep::Caller(caller) = step else { break };
            registers = caller.registers;
        }
        if let Some(name) = module.symbols().name_of(*address) {
            let shown = crate::demangle::demangle(&name);
            assert!(shown.len() <= 2 * crate::demangle::MAX_NAME_LEN);
            assert!(!shown.contains(|letter: char| letter.is_control()));
        }
    }
    let _ = (crate::address::entry_point(bytes), crate::address::address_of(bytes, "main"));
    if let Some(debug) = debug_file::own_debug_sections(&module) {
        debug.frames(&addresses);
    }
}

/// Addresses to look up: addresses spread over sections with code, and some addresses that are
/// hardly ever valid.
fn addresses_of(module: &Module, bytes: &[u8]) -> Vec<u64> {
    let mut addresses = vec![0, 1, u64::MAX, u64::MAX / 2, bytes.len() as u64];
    let sections = module.elf.sections.iter().filter(|section| section.is_code());
    for section in sections.take(8) {
        let offsets = (0..8).map(|eighth| section.len / 8 * eighth);
        addresses.extend(offsets.map(|offset| section.address.wrapping_add(offset)));
    }
    addresses.truncate(MAX_ADDRESSES);
    addresses
}
