//! Functions, inlined functions and source lines from DWARF. The input is not trusted.
//!
//! Reading forged DWARF can take unlimited time and memory, because units share line programs and
//! one byte of such a program can be a row. [`MeteredReader`] counts the reads, and fails when the
//! budget of a query is used up. A row or entry costs at least one read, so memory is also bounded.
//! The reader also fails if the parser calls itself too deeply.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use addr2line::Context;
use gimli::{
    DwarfSections, EndianSlice, Error, LittleEndian, Reader, ReaderOffsetId, Result as GimliResult,
    SectionId,
};

use crate::elf::{Elf, ReadAt};
use crate::frame::SourceLine;

/// Maximum number of reads of all queries to one file in one pass. The C library needs about a
/// million.
const MAX_READS: u64 = 16 << 20;
/// Time limit for the addresses of one file in one pass. The remaining addresses get the names of
/// symbols.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of stack that the parser may use. It calls itself for inlined functions within inlined
/// functions, and a byte each is sufficient to forge these.
const MAX_RECURSION_BYTES: usize = 8 << 20;
/// Maximum number of inlined functions that are shown for one address.
const MAX_INLINED: usize = 32;
/// Maximum number of addresses of one line, such as a line of an inlined function.
const MAX_LINE_ADDRESSES: usize = 64;
const MAX_PATH_LEN: usize = 1024;

/// A function at an address according to DWARF. For inlined functions, the innermost comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DwarfFrame {
    /// The mangled name, or the plain name if there is no mangled one.
    pub symbol: Option<String>,
    /// The location in the source.
    pub source: Option<SourceLine>,
}

/// The sections of a file with debug information.
pub struct DebugSections {
    sections: DwarfSections<Vec<u8>>,
}

impl DebugSections {
    /// Reads the sections. Returns `None` if there is no debug information.
    pub fn read(elf: &Elf, file: &(impl ReadAt + ?Sized), budget: &mut u64) -> Option<Self> {
        elf.section(SectionId::DebugInfo.name())?;
        let needed = |id| {
            let unneeded = [SectionId::DebugMacro, SectionId::DebugMacinfo, SectionId::DebugLoc];
            !unneeded.contains(&id) && id != SectionId::DebugLocLists
        };
        let load = |id: SectionId| -> Result<Vec<u8>, Error> {
            let bytes = needed(id).then(|| elf.read(file, id.name(), budget)).flatten();
            Ok(bytes.unwrap_or_default())
        };
        Some(Self { sections: DwarfSections::load(load).ok()? })
    }

    /// The functions at each of these link-time addresses.
    ///
    /// The query runs in a separate thread. The thread has a sufficient stack, and if it panics,
    /// the caller is not affected.
    pub fn frames(&self, addresses: &[u64]) -> HashMap<u64, Vec<DwarfFrame>> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("stacks-names".to_owned());
            let thread = thread.stack_size(2 * MAX_RECURSION_BYTES);
            let query = thread.spawn_scoped(scope, || self.query(addresses));
            // If there is no thread, or after a panic, the caller uses the names of symbols.
            query.ok().and_then(|query| query.join().ok()).unwrap_or_default()
        })
    }

    /// The link-time addresses at which the code of a source line begins. Also
    /// returns the next line of this file that has code. `file` is the end of the file's path.
    pub fn addresses_of_line(&self, file: &str, line: u32) -> (Vec<u64>, Option<u32>) {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("stacks-lines".to_owned());
            let thread = thread.stack_size(2 * MAX_RECURSION_BYTES);
            let query = thread.spawn_scoped(scope, || self.query_line(file, line));
            query.ok().and_then(|query| query.join().ok()).unwrap_or_default()
        })
    }

    fn query_line(&self, file: &str, line: u32) -> (Vec<u64>, Option<u32>) {
        let budget = ReadBudget { reads_left: Cell::new(MAX_READS), stack_start: stack_address() };
        let dwarf = self.sections.borrow(|bytes| MeteredReader {
            bytes: EndianSlice::new(bytes, LittleEndian),
            budget: &budget,
        });
        let nothing = (Vec::new(), None);
        let Ok(context) = Context::from_dwarf(dwarf) else { return nothing };
        let Ok(rows) = context.find_location_range(0, i64::MAX as u64) else { return nothing };
        let deadline = Instant::now() + QUERY_TIMEOUT;
        let is_file = |path: &str| {
            let before = path.strip_suffix(file);
            before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        let (mut addresses, mut next) = (Vec::new(), None::<u32>);
        // Consecutive rows of one line belong to one address range.
        let mut end_of_last = None;
        for (address, len, row) in rows {
            if Instant::now() >= deadline {
                break;
            }
            let (Some(path), Some(number)) = (row.file, row.line) else { continue };
            if number < line || !is_file(path) {
                continue;
            }
            if number > line {
                next = Some(next.map_or(number, |next| next.min(number)));
                continue;
            }
            if end_of_last != Some(address) && addresses.len() < MAX_LINE_ADDRESSES {
                addresses.push(address);
            }
            end_of_last = Some(address.saturating_add(len));
        }
        (addresses, next)
    }

    fn query(&self, addresses: &[u64]) -> HashMap<u64, Vec<DwarfFrame>> {
        let budget = ReadBudget { reads_left: Cell::new(MAX_READS), stack_start: stack_address() };
        let dwarf = self.sections.borrow(|bytes| MeteredReader {
            bytes: EndianSlice::new(bytes, LittleEndian),
            budget: &budget,
        });
        let Ok(context) = Context::from_dwarf(dwarf) else { return HashMap::new() };
        let deadline = Instant::now() + QUERY_TIMEOUT;
        let in_time = addresses.iter().take_while(|_| Instant::now() < deadline);
        let named = in_time.filter_map(|address| {
            let frames = frames_of(&context, *address);
            (!frames.is_empty()).then_some((*address, frames))
        });
        named.collect()
    }
}

fn frames_of(context: &Context<MeteredReader<'_>>, address: u64) -> Vec<DwarfFrame> {
    let mut found = Vec::new();
    // addr2line adds to an address without an overflow check. No program has code in the kernel's
    // half of the address space.
    if address > i64::MAX as u64 {
        return found;
    }
    let Ok(mut frames) = context.find_frames(address).skip_all_loads() else { return found };
    while let Ok(Some(frame)) = frames.next() {
        let symbol = frame.function.as_ref().and_then(|function| {
            let name = function.raw_name().ok()?;
            Some(name.chars().take(crate::symbols::MAX_SYMBOL_LEN).collect())
        });
        let source = frame.location.as_ref().and_then(|location| {
            let file = location.file?.chars().filter(|letter| !letter.is_control());
            Some(SourceLine { file: file.take(MAX_PATH_LEN).collect(), line: location.line? })
        });
        found.push(DwarfFrame { symbol, source });
        if found.len() == MAX_INLINED {
            break;
        }
    }
    found
}

/// The remaining budget of the readers of one query.
#[derive(Debug)]
struct ReadBudget {
    reads_left: Cell<u64>,
    stack_start: usize,
}

/// Returns an address on the stack of this call.
#[inline]
fn stack_address() -> usize {
    let local = 0u8;
    std::ptr::from_ref(&local).addr()
}

/// A reader that fails when the budget of reads is used up, or when calls are nested too deeply.
#[derive(Debug, Clone, Copy)]
struct MeteredReader<'a> {
    bytes: EndianSlice<'a, LittleEndian>,
    budget: &'a ReadBudget,
}

impl MeteredReader<'_> {
    #[inline]
    fn spend(&self, reads: u64) -> GimliResult<()> {
        let ReadBudget { reads_left, stack_start } = self.budget;
        let is_too_deep = stack_start.saturating_sub(stack_address()) > MAX_RECURSION_BYTES;
        match reads_left.get().checked_sub(reads).filter(|_| !is_too_deep) {
            Some(left) => {
                reads_left.set(left);
                Ok(())
            }
            None => {
                reads_left.set(0);
                Err(Error::UnexpectedEof(self.bytes.offset_id()))
            }
        }
    }
}

impl Reader for MeteredReader<'_> {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    #[inline]
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn empty(&mut self) {
        self.bytes.empty();
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> GimliResult<()> {
        self.bytes.truncate(len)
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.bytes.offset_from(base.bytes)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        self.bytes.offset_id()
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.bytes.lookup_offset_id(id)
    }

    fn find(&self, byte: u8) -> GimliResult<usize> {
        let found = Reader::find(&self.bytes, byte);
        // The search has read all bytes up to the result.
        let len = found.as_ref().map_or(self.bytes.len(), |len| *len);
        self.spend(1 + len as u64 / 16)?;
        found
    }

    #[inline]
    fn skip(&mut self, len: usize) -> GimliResult<()> {
        self.spend(1)?;
        self.bytes.skip(len)
    }

    #[inline]
    fn split(&mut self, len: usize) -> GimliResult<Self> {
        self.spend(1)?;
        let bytes = self.bytes.split(len)?;
        Ok(Self { bytes, budget: self.budget })
    }

    fn to_slice(&self) -> GimliResult<Cow<'_, [u8]>> {
        Ok(Cow::Borrowed(self.bytes.slice()))
    }

    fn to_string(&self) -> GimliResult<Cow<'_, str>> {
        self.spend(1 + self.bytes.len() as u64 / 16)?;
        std::str::from_utf8(self.bytes.slice()).map(Cow::Borrowed).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> GimliResult<Cow<'_, str>> {
        self.spend(1 + self.bytes.len() as u64 / 16)?;
        Ok(String::from_utf8_lossy(self.bytes.slice()))
    }

    #[inline]
    fn read_slice(&mut self, buffer: &mut [u8]) -> GimliResult<()> {
        self.spend(1)?;
        Reader::read_slice(&mut self.bytes, buffer)
    }

    #[inline]
    fn read_u8(&mut self) -> GimliResult<u8> {
        self.spend(1)?;
        Reader::read_u8(&mut self.bytes)
    }
}
