//! One step of unwinding by call frame information (`.eh_frame`, `.debug_frame`). The input is not
//! trusted.
//!
//! All registers that a function saves are tracked. Therefore functions that address their frame by
//! another register than `rsp` and `rbp` can be unwound, and so can signal frames.

use std::sync::OnceLock;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, Encoding,
    EndianSlice, Evaluation, EvaluationResult, Expression, FrameDescriptionEntry, LittleEndian,
    Location, Register, RegisterRule, UnwindContext, UnwindOffset, UnwindSection, UnwindTableRow,
    Value,
};

use crate::elf::{Elf, ReadAt};
use crate::memory::StackCopy;
use crate::registers::{REGISTER_COUNT, RIP, RSP, Registers};

/// Maximum length of an entry in bytes: the instructions of one function, or those that functions
/// share.
const MAX_ENTRY_LEN: usize = 1 << 20;
/// Maximum number of functions in a table that has no index of its own.
const MAX_INDEX_ENTRIES: usize = 1 << 21;
/// Maximum number of operations of one expression, because an expression with a jump back may not
/// end.
const MAX_OPERATIONS: u32 = 512;
/// The length of a row of `.eh_frame_hdr` in bytes.
const TABLE_ROW_LEN: usize = 8;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const TABLE_ROW_ENCODING: u8 = 0x3b;
/// The registers that a function must preserve: rbx, rbp, r12 to r15.
const PRESERVED: [u16; 6] = [3, 6, 12, 13, 14, 15];

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The tables of one file.
#[derive(Debug, Default)]
pub struct UnwindTables {
    eh_frame: Vec<u8>,
    eh_frame_hdr: Vec<u8>,
    debug_frame: Vec<u8>,
    bases: BaseAddresses,
    eh_frame_address: u64,
    eh_frame_hdr_address: u64,
    /// Built only if `.eh_frame_hdr` has no table, or a table in a form that linkers do not write.
    eh_frame_index: OnceLock<Vec<IndexEntry>>,
    debug_frame_index: OnceLock<Vec<IndexEntry>>,
}

#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    start: u64,
    end: u64,
    offset: usize,
}

/// The frame of the caller.
#[derive(Debug, PartialEq, Eq)]
pub struct CallerFrame {
    /// Its registers. `rip` is the return address of the call.
    pub registers: Registers,
    /// Whether the callee is the code to which a signal handler returns. The caller was then
    /// interrupted at `rip`.
    pub was_interrupted: bool,
}

/// The result of unwinding one function.
#[derive(Debug, PartialEq, Eq)]
pub enum CfiStep {
    /// The tables have no entry for this address.
    NotCovered,
    /// The function has no caller.
    Outermost,
    /// The tables or the stack are damaged, so the caller cannot be found.
    Broken,
    /// The frame of the caller.
    Caller(CallerFrame),
}

impl UnwindTables {
    /// Reads the tables of a file.
    pub fn read(elf: &Elf, file: &(impl ReadAt + ?Sized), budget: &mut u64) -> Self {
        let address = |name| elf.section_address(name).unwrap_or(0);
        let mut read = |name| elf.read(file, name, budget).unwrap_or_default();
        Self {
            eh_frame: read(".eh_frame"),
            eh_frame_hdr: read(".eh_frame_hdr"),
            debug_frame: read(".debug_frame"),
            bases: BaseAddresses::default()
                .set_eh_frame(address(".eh_frame"))
                .set_eh_frame_hdr(address(".eh_frame_hdr"))
                .set_text(address(".text"))
                .set_got(address(".got")),
            eh_frame_address: address(".eh_frame"),
            eh_frame_hdr_address: address(".eh_frame_hdr"),
            ..Self::default()
        }
    }

    /// Finds the caller of the function at `address`, a link-time address.
    pub fn step(
        &self,
        context: &mut UnwindContext<usize>,
        address: u64,
        registers: &Registers,
        stack: &StackCopy,
    ) -> CfiStep {
        let mut eh_frame = EhFrame::from(Bytes::new(&self.eh_frame, LittleEndian));
        eh_frame.set_address_size(8);
        if let Some(offset) = self.eh_frame_offset(&eh_frame, address) {
            let step = self.step_by(&eh_frame, offset, context, address, (registers, stack));
            if step != CfiStep::NotCovered {
                return step;
            }
        }
        if self.debug_frame.is_empty() {
            return CfiStep::NotCovered;
        }
        let mut debug_frame = DebugFrame::from(Bytes::new(&self.debug_frame, LittleEndian));
        debug_frame.set_address_size(8);
        let index = self.debug_frame_index.get_or_init(|| make_index(&debug_frame, &self.bases));
        match find(index, address) {
            Some(offset) => {
                self.step_by(&debug_frame, offset, context, address, (registers, stack))
            }
            None => CfiStep::NotCovered,
        }
    }

    fn eh_frame_offset(&self, eh_frame: &EhFrame<Bytes<'_>>, address: u64) -> Option<usize> {
        if let Some(table) = self.sorted_table() {
            let start_of = |row: &[u8; TABLE_ROW_LEN]| self.header_relative(&row[..4]);
            let after = table.partition_point(|row| start_of(row).is_some_and(|it| it <= address));
            let entry = self.header_relative(&table[..after].last()?[4..])?;
            return usize::try_from(entry.checked_sub(self.eh_frame_address)?).ok();
        }
        find(self.eh_frame_index.get_or_init(|| make_index(eh_frame, &self.bases)), address)
    }

    /// The rows of `.eh_frame_hdr`, in the form that all linkers write. A row is the start of a
    /// function and its entry, as 32-bit numbers relative to the section.
    fn sorted_table(&self) -> Option<&[[u8; TABLE_ROW_LEN]]> {
        let [version, _, count_encoding, row_encoding, ..] = *self.eh_frame_hdr.as_slice() else {
            return None;
        };
        let count_is_u32 = gimli::DwEhPe(count_encoding) == gimli::DW_EH_PE_udata4;
        let rows_are_relative = row_encoding == TABLE_ROW_ENCODING;
        if version != 1 || !count_is_u32 || !rows_are_relative {
            return None;
        }
        let count = u32::from_le_bytes(self.eh_frame_hdr.get(8..12)?.try_into().ok()?) as usize;
        let (rows, _) = self.eh_frame_hdr.get(12..)?.as_chunks::<TABLE_ROW_LEN>();
        rows.get(..count).filter(|rows| !rows.is_empty())
    }

    fn header_relative(&self, bytes: &[u8]) -> Option<u64> {
        let distance = i32::from_le_bytes(bytes.try_into().ok()?);
        self.eh_frame_hdr_address.checked_add_signed(distance.into())
    }

    fn step_by<'a, S: UnwindSection<Bytes<'a>>>(
        &self,
        section: &S,
        offset: usize,
        context: &mut UnwindContext<usize>,
        address: u64,
        (registers, stack): (&Registers, &StackCopy),
    ) -> CfiStep {
        let Ok(function) =
            section.fde_from_offset(&self.bases, S::Offset::from(offset), S::cie_from_offset)
        else {
            return CfiStep::Broken;
        };
        if !function.contains(address) {
            return CfiStep::NotCovered;
        }
        if function.entry_len() > MAX_ENTRY_LEN || function.cie().entry_len() > MAX_ENTRY_LEN {
            return CfiStep::Broken;
        }
        match function.unwind_info_for_address(section, &self.bases, context, address) {
            Ok(row) => CfiFrame { section, function: &function, registers, stack }.caller(row),
            Err(_) => CfiStep::Broken,
        }
    }
}

fn make_index<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    bases: &BaseAddresses,
) -> Vec<IndexEntry> {
    let mut index = Vec::new();
    let mut entries = section.entries(bases);
    // Functions follow their common entry, so cache it to parse it only once.
    let mut shared: Option<CommonInformationEntry<Bytes<'a>>> = None;
    while index.len() < MAX_INDEX_ENTRIES {
        let Ok(Some(entry)) = entries.next() else { break };
        let CieOrFde::Fde(function) = entry else { continue };
        let parsed = function.parse(|section, bases, offset| {
            if let Some(cie) =
                shared.as_ref().filter(|cie| cie.offset() == UnwindOffset::<usize>::into(offset))
            {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            shared = Some(cie.clone());
            Ok(cie)
        });
        let Ok(function) = parsed else { continue };
        let (start, len) = (function.initial_address(), function.len());
        if let Some(end) = start.checked_add(len) {
            index.push(IndexEntry { start, end, offset: function.offset() });
        }
    }
    index.sort_unstable_by_key(|entry| entry.start);
    index
}

fn find(index: &[IndexEntry], address: u64) -> Option<usize> {
    let after = index.partition_point(|entry| entry.start <= address);
    index[..after].last().filter(|entry| address < entry.end).map(|entry| entry.offset)
}

/// A frame whose caller is to be found.
struct CfiFrame<'f, 'a, S> {
    section: &'f S,
    function: &'f FrameDescriptionEntry<Bytes<'a>>,
    registers: &'f Registers,
    stack: &'f StackCopy,
}

impl<'a, S: UnwindSection<Bytes<'a>>> CfiFrame<'_, 'a, S> {
    fn caller(&self, row: &UnwindTableRow<usize>) -> CfiStep {
        // Without a rule, or with an undefined return address, this is the first function of a
        // thread.
        let return_rule = row.register(Register(RIP));
        if matches!(return_rule, None | Some(RegisterRule::Undefined)) {
            return CfiStep::Outermost;
        }
        let Some(cfa) = self.frame_address(row.cfa()) else { return CfiStep::Broken };
        let Some(rip) = return_rule.and_then(|rule| self.value(&rule, RIP, cfa)) else {
            return CfiStep::Broken;
        };
        let mut caller = Registers::new(rip, cfa);
        for number in 0..REGISTER_COUNT as u16 {
            let value = match row.register(Register(number)) {
                _ if number == RIP => continue,
                None if PRESERVED.contains(&number) => self.registers.get(number),
                None => continue,
                Some(rule) => self.value(&rule, number, cfa),
            };
            match value {
                Some(value) => caller.set(number, value),
                None if number == RSP => return CfiStep::Broken,
                None => {}
            }
        }
        let was_interrupted = self.function.is_signal_trampoline();
        CfiStep::Caller(CallerFrame { registers: caller, was_interrupted })
    }

    /// The canonical frame address. Saved registers are addressed relative to it.
    fn frame_address(&self, rule: &CfaRule<usize>) -> Option<u64> {
        match rule {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.registers.get(register.0)?.checked_add_signed(*offset)
            }
            CfaRule::Expression(expression) => {
                self.evaluate(expression.get(self.section).ok()?, None)
            }
        }
    }

    fn value(&self, rule: &RegisterRule<usize>, number: u16, cfa: u64) -> Option<u64> {
        match rule {
            RegisterRule::SameValue => self.registers.get(number),
            RegisterRule::Offset(offset) => self.stack.word(cfa.checked_add_signed(*offset)?),
            RegisterRule::ValOffset(offset) => cfa.checked_add_signed(*offset),
            RegisterRule::Register(register) => self.registers.get(register.0),
            RegisterRule::Expression(expression) => {
                let expression = expression.get(self.section).ok()?;
                self.stack.word(self.evaluate(expression, Some(cfa))?)
            }
            RegisterRule::ValExpression(expression) => {
                self.evaluate(expression.get(self.section).ok()?, Some(cfa))
            }
            RegisterRule::Constant(value) => Some(*value),
            _ => None,
        }
    }

    fn evaluate(&self, expression: Expression<Bytes<'a>>, initial: Option<u64>) -> Option<u64> {
        let encoding: Encoding = self.function.cie().encoding();
        let mut evaluation = Evaluation::new(expression.0, encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(value) = initial {
            evaluation.set_initial_value(value);
        }
        let mut result = evaluation.evaluate().ok()?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = Value::Generic(self.registers.get(register.0)?);
                    evaluation.resume_with_register(value).ok()?
                }
                EvaluationResult::RequiresMemory { address, size, space: None, .. } => {
                    let word = self.stack.word(address)?;
                    let unused_bits = 64u32.checked_sub(u32::from(size) * 8)?;
                    let value = word.checked_shl(unused_bits)? >> unused_bits;
                    evaluation.resume_with_memory(Value::Generic(value)).ok()?
                }
                _ => return None,
            };
        }
        match evaluation.as_result() {
            [piece] => match piece.location {
                Location::Address { address } => Some(address),
                _ => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryCopy;

    const STACK: u64 = 0x1000;

    /// The frame of the caller according to the forged tables of the corpus, at an offset in their
    /// code.
    fn step_at(file: &str, offset: u64, words: &[u64]) -> CfiStep {
        let path = format!("{}/corpus/modules/{file}", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).unwrap();
        let elf = Elf::parse(bytes.as_slice()).unwrap();
        let tables = UnwindTables::read(&elf, bytes.as_slice(), &mut (1 << 20));
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let piece = MemoryCopy { start: STACK, bytes };
        let stack = StackCopy { pieces: vec![piece], is_truncated: false };
        let address = elf.section_address(".text").unwrap() + offset;
        let registers = Registers::new(address, STACK);
        tables.step(&mut UnwindContext::new(), address, &registers, &stack)
    }

    #[test]
    fn an_expression_that_jumps_back_for_ever_ends() {
        assert_eq!(step_at("expressions", 0, &[0; 8]), CfiStep::Broken);
    }

    #[test]
    fn an_expression_reads_only_the_copied_stack() {
        // The frame address is rsp + 8, and the return address is before it.
        let CfiStep::Caller(caller) = step_at("expressions", 2, &[0, STACK + 32, 0, 0x77]) else {
            panic!("no caller");
        };
        assert!(caller.was_interrupted);
        assert_eq!((caller.registers.rip(), caller.registers.rsp()), (0x77, STACK + 32));
        assert_eq!(step_at("expressions", 2, &[0, 0x5000]), CfiStep::Broken);
    }

    #[test]
    fn tables_without_an_index_and_those_for_debuggers_are_read() {
        for file in ["no_index", "debug_frame", "with_debug"] {
            let step = step_at(file, 0, &[0x1234, 0]);
            let CfiStep::Caller(caller) = step else { panic!("{file}: {step:?}") };
            assert_eq!((caller.registers.rip(), caller.registers.rsp()), (0x1234, STACK + 8));
        }
        assert_eq!(step_at("with_debug", 1 << 20, &[0]), CfiStep::NotCovered);
    }
}
