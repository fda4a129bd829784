//! Finds the link-time address of a function or data symbol by its name.

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::elf::{Elf, MAX_FILE_BYTES, ReadAt, Section};

/// The link-time address of the file's entry point. `None` if the file is not a 64-bit ELF file.
pub fn entry_point(file: &(impl ReadAt + ?Sized)) -> Option<u64> {
    let bytes = file.read_at(0, size_of::<elf::FileHeader64<LE>>() as u64)?;
    let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(&bytes).ok()?;
    let ident = &header.e_ident;
    let is_ours = ident.magic == elf::ELFMAG && ident.class == elf::ELFCLASS64;
    is_ours.then(|| header.e_entry.get(LE))
}

/// The address of a symbol that the file defines. A global symbol takes precedence over a local
/// one. Thread-local symbols are not found, because they have no address of their own.
pub fn address_of(file: &(impl ReadAt + ?Sized), name: &str) -> Option<u64> {
    let elf = Elf::parse(file)?;
    let mut budget = MAX_FILE_BYTES;
    let mut local = None;
    for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        let Some(section) = elf.sections.iter().find(|section| section.kind == kind.0) else {
            continue;
        };
        match find(&elf, section, file, name, &mut budget) {
            Some((address, true)) => return Some(address),
            Some((address, false)) => local = Some(address),
            None => {}
        }
    }
    local
}

/// The address of a symbol in a table, and whether the symbol is global.
fn find(
    elf: &Elf,
    table: &Section,
    file: &(impl ReadAt + ?Sized),
    name: &str,
    budget: &mut u64,
) -> Option<(u64, bool)> {
    let bytes = table.read(file, budget)?;
    let names = elf.sections.get(table.link)?.read(file, budget)?;
    let count = bytes.len() / size_of::<elf::Sym64<LE>>();
    let (symbols, _) = pod::slice_from_bytes::<elf::Sym64<LE>>(&bytes, count).ok()?;
    let mut local = None;
    for symbol in symbols {
        let section = symbol.st_shndx.get(LE);
        let is_relative = section != elf::SHN_UNDEF && section != elf::SHN_ABS;
        let has_address = matches!(
            symbol.st_type(),
            elf::STT_NOTYPE
                | elf::STT_OBJECT
                | elf::STT_FUNC
                | elf::STT_COMMON
                | elf::STT_GNU_IFUNC
        );
        if !is_relative || !has_address || !is_named(symbol, &names, name) {
            continue;
        }
        let address = symbol.st_value.get(LE);
        if symbol.st_bind() != elf::STB_LOCAL {
            return Some((address, true));
        }
        local = local.or(Some((address, false)));
    }
    local
}

fn is_named(symbol: &elf::Sym64<LE>, names: &[u8], name: &str) -> bool {
    let Some(rest) = names.get(symbol.st_name.get(LE) as usize..) else { return false };
    rest.strip_prefix(name.as_bytes()).is_some_and(|end| end.first() == Some(&0))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::symbols::SymbolTable;

    #[test]
    fn a_symbol_of_this_program_is_found_with_its_address() {
        let file = File::open("/proc/self/exe").unwrap();
        let main = address_of(&file, "main").unwrap();
        let (elf, mut budget) = (Elf::parse(&file).unwrap(), MAX_FILE_BYTES);
        let functions = SymbolTable::read(&elf, &file, &mut budget);
        assert_eq!(functions.name_of(main).as_deref(), Some("main"));
        // A data symbol, which libc defines and this program only refers to.
        assert!(address_of(&libc_file(), "environ").is_some_and(|address| address != 0));
        assert_eq!(address_of(&file, "environ"), None);
        assert!(entry_point(&file).is_some_and(|entry| entry != 0));
        for name in ["mai", "no such symbol", "", "errno"] {
            assert_eq!(address_of(&file, name), None, "{name}");
        }
    }

    fn libc_file() -> File {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
        let mut libc = paths.filter(|path| path.contains("/libc.so") || path.contains("/libc-"));
        File::open(libc.next().unwrap()).unwrap()
    }

    #[test]
    fn a_file_that_is_not_elf_has_no_symbol() {
        for bytes in [&b""[..], b"\x7fELF", &[0x7f; 200]] {
            assert_eq!((entry_point(bytes), address_of(bytes, "main")), (None, None));
        }
    }
}
