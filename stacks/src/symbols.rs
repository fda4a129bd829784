//! Symbol tables: find the function that contains an address.

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::demangle::demangle;
use crate::elf::{Elf, ReadAt, Section};

/// Maximum number of symbols that are kept of one table.
const MAX_SYMBOLS: usize = 4 << 20;
/// Maximum length of a symbol name in bytes. Names of C++ can be very long.
pub const MAX_SYMBOL_LEN: usize = 4096;
/// Maximum number of code sections in which symbols without a type count as functions.
const MAX_CODE_SECTIONS: usize = 64;
/// Maximum number of symbols before an address that are checked, if the nearest ones are too short.
const MAX_STEPS_BACK: usize = 16;
/// The length of one entry of the linkage tables on x86-64, in bytes.
const LINKAGE_ENTRY_LEN: u64 = 16;

/// The functions of one file, by address.
#[derive(Debug, Default)]
pub struct SymbolTable {
    /// Sorted by address, with one symbol for each address.
    symbols: Vec<Symbol>,
    names: Vec<u8>,
    /// Functions of other files, in the order of the entries of the linkage table.
    linkage: Vec<u32>,
    linkage_names: Vec<u8>,
    linkage_ranges: Vec<LinkageRange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol {
    address: u64,
    /// If several symbols have the address, the one with the smallest rank is kept.
    rank: u8,
    len: u64,
    name: u32,
}

#[derive(Debug)]
struct LinkageRange {
    start: u64,
    end: u64,
    /// The number of entries at the start that belong to no function.
    reserved: u64,
}

impl SymbolTable {
    /// Reads the table of all symbols or, if it is empty, the table for dynamic linking.
    pub fn read(elf: &Elf, file: &(impl ReadAt + ?Sized), budget: &mut u64) -> Self {
        let mut table = Self::default();
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            if table.read_symbols(elf, file, kind, budget).is_some() && !table.symbols.is_empty() {
                break;
            }
        }
        table
    }

    /// Reads the function to which each entry of the linkage table jumps.
    pub fn read_linkage(&mut self, elf: &Elf, file: &(impl ReadAt + ?Sized), budget: &mut u64) {
        let _ = self.try_read_linkage(elf, file, budget);
    }

    /// Whether there are no symbols.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    fn read_symbols(
        &mut self,
        elf: &Elf,
        file: &(impl ReadAt + ?Sized),
        kind: elf::SectionType,
        budget: &mut u64,
    ) -> Option<()> {
        let section = elf.sections.iter().find(|section| section.kind == kind.0)?;
        let bytes = section.read(file, budget)?;
        self.names = elf.sections.get(section.link)?.read(file, budget)?;
        let count = (bytes.len() / size_of::<elf::Sym64<LE>>()).min(MAX_SYMBOLS);
        let (symbols, _) = pod::slice_from_bytes::<elf::Sym64<LE>>(&bytes, count).ok()?;
        let code_sections = elf.sections.iter().filter(|section| section.is_code());
        let code_sections: Vec<_> = code_sections.take(MAX_CODE_SECTIONS).collect();
        let code = |address: u64| {
            let offset = |section: &&Section| address.checked_sub(section.address);
            code_sections.iter().any(|section| offset(section).is_some_and(|at| at < section.len))
        };
        self.symbols = symbols.iter().filter_map(|symbol| function(symbol, &code)).collect();
        self.symbols.sort_unstable();
        self.symbols.dedup_by_key(|symbol| symbol.address);
        Some(())
    }

    fn try_read_linkage(
        &mut self,
        elf: &Elf,
        file: &(impl ReadAt + ?Sized),
        budget: &mut u64,
    ) -> Option<()> {
        let relocations = elf.read(file, ".rela.plt", budget)?;
        let dynamic = elf.sections.iter().find(|it| it.kind == elf::SHT_DYNSYM.0)?;
        let symbols = dynamic.read(file, budget)?;
        self.linkage_names = elf.sections.get(dynamic.link)?.read(file, budget)?;
        let count = symbols.len() / size_of::<elf::Sym64<LE>>();
        let (symbols, _) = pod::slice_from_bytes::<elf::Sym64<LE>>(&symbols, count).ok()?;
        let count = relocations.len() / size_of::<elf::Rela64<LE>>();
        let (relocations, _) =
            pod::slice_from_bytes::<elf::Rela64<LE>>(&relocations, count).ok()?;
        self.linkage = relocations
            .iter()
            .map(|relocation| {
                let index = relocation.r_info.get(LE) >> 32;
                symbols.get(index as usize).map_or(0, |symbol| symbol.st_name.get(LE))
            })
            .collect();
        // `.plt` begins with an entry that resolves names, and `.plt.sec` does not.
        self.linkage_ranges = [(".plt", 1), (".plt.sec", 0)]
            .iter()
            .filter_map(|(name, reserved)| {
                let section = elf.section(name)?;
                let end = section.address.checked_add(section.len)?;
                Some(LinkageRange { start: section.address, end, reserved: *reserved })
            })
            .collect();
        Some(())
    }

    /// The name of the function that contains `address`, a link-time address.
    pub fn name_of(&self, address: u64) -> Option<String> {
        self.symbol_name(address).or_else(|| self.linkage_name(address))
    }

    /// The address of a function by its symbol or, if there is none, by its name in the source.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let symbol_of = |symbol: &&Symbol| string(&self.names, symbol.name);
        let is_symbol = |symbol: &&Symbol| {
            let rest = self.names.get(symbol.name as usize..);
            let rest = rest.and_then(|rest| rest.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        };
        let is_source_name =
            |symbol: &&Symbol| symbol_of(symbol).is_some_and(|it| demangle(&it) == name);
        let found = self.symbols.iter().find(is_symbol);
        found.or_else(|| self.symbols.iter().find(is_source_name)).map(|symbol| symbol.address)
    }

    fn symbol_name(&self, address: u64) -> Option<String> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let before = self.symbols[..after].iter().rev().take(MAX_STEPS_BACK);
        // A symbol without a length, as in assembly, extends to the next symbol.
        let symbol = before.enumerate().find_map(|(steps, symbol)| {
            let is_hit = match symbol.len {
                0 => steps == 0,
                len => address - symbol.address < len,
            };
            is_hit.then_some(symbol)
        })?;
        string(&self.names, symbol.name)
    }

    fn linkage_name(&self, address: u64) -> Option<String> {
        let range = self.linkage_ranges.iter().find(|it| (it.start..it.end).contains(&address))?;
        let entry = (address - range.start) / LINKAGE_ENTRY_LEN;
        let index = usize::try_from(entry.checked_sub(range.reserved)?).ok()?;
        let name = string(&self.linkage_names, *self.linkage.get(index)?)?;
        Some(format!("{name}@plt"))
    }
}

/// The address and length of a global or static variable.
pub fn variable(
    elf: &Elf,
    file: &(impl ReadAt + ?Sized),
    name: &str,
    budget: &mut u64,
) -> Option<(u64, u64)> {
    [elf::SHT_SYMTAB, elf::SHT_DYNSYM].iter().find_map(|kind| {
        let section = elf.sections.iter().find(|section| section.kind == kind.0)?;
        let bytes = section.read(file, budget)?;
        let names = elf.sections.get(section.link)?.read(file, budget)?;
        let count = (bytes.len() / size_of::<elf::Sym64<LE>>()).min(MAX_SYMBOLS);
        let (symbols, _) = pod::slice_from_bytes::<elf::Sym64<LE>>(&bytes, count).ok()?;
        let is_wanted = |symbol: &&elf::Sym64<LE>| {
            symbol.st_type() == elf::STT_OBJECT
                && symbol.st_shndx.get(LE) != elf::SHN_UNDEF
                && string(&names, symbol.st_name.get(LE))
                    .is_some_and(|it| it == name || demangle(&it) == name)
        };
        let symbol = symbols.iter().find(is_wanted)?;
        Some((symbol.st_value.get(LE), symbol.st_size.get(LE)))
    })
}

fn function(symbol: &elf::Sym64<LE>, is_code: &impl Fn(u64) -> bool) -> Option<Symbol> {
    let kind = symbol.st_type();
    let is_defined = symbol.st_shndx.get(LE) != elf::SHN_UNDEF && symbol.st_name.get(LE) != 0;
    let address = symbol.st_value.get(LE);
    let is_function = kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC;
    if !is_defined || !(is_function || kind == elf::STT_NOTYPE && is_code(address)) {
        return None;
    }
    let len = symbol.st_size.get(LE);
    let is_global = symbol.st_bind() == elf::STB_GLOBAL;
    // Prefer symbols with a length, then functions, then global symbols.
    let rank = u8::from(len == 0) << 2 | u8::from(!is_function) << 1 | u8::from(!is_global);
    Some(Symbol { address, rank, len, name: symbol.st_name.get(LE) })
}

fn string(names: &[u8], offset: u32) -> Option<String> {
    let rest = names.get(offset as usize..)?;
    let limited = &rest[..rest.len().min(MAX_SYMBOL_LEN)];
    let end = limited.iter().position(|byte| *byte == 0).unwrap_or(limited.len());
    (end > 0).then(|| String::from_utf8_lossy(&limited[..end]).into_owned())
}
