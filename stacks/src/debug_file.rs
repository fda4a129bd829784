//! Finds the file with the debug information of a stripped program, by the build id or by the name
//! and check sum in the program.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::dwarf::DebugSections;
use crate::elf::{Elf, MAX_FILE_BYTES, ReadAt};
use crate::module::{Module, Origin};

/// The directory in which distributions install debug information.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Finds the separate file with the debug information of `module`, if there is one.
pub fn find(module: &Module) -> Option<(Elf, File)> {
    by_build_id(module).or_else(|| by_link(module))
}

fn by_build_id(module: &Module) -> Option<(Elf, File)> {
    let id = module.elf.build_id.as_ref().filter(|id| id.len() > 1)?;
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (directory, rest) = digits.split_at(2);
    let installed = PathBuf::from(format!("{DEBUG_ROOT}/.build-id/{directory}/{rest}.debug"));
    let mut candidates = vec![installed];
    // The cache of gdb or another client of debuginfod.
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    let fetched = std::env::var_os("DEBUGINFOD_CACHE_PATH").map(PathBuf::from);
    let fetched = fetched.or_else(|| Some(cache?.join("debuginfod_client")));
    candidates.extend(fetched.map(|path| path.join(&digits).join("debuginfo")));
    candidates.iter().find_map(|path| {
        let (elf, file) = open(path)?;
        (elf.build_id.as_ref() == Some(id)).then_some((elf, file))
    })
}

/// Finds the file by `.gnu_debuglink`: a file name, zeros up to a multiple of four, and a check
/// sum.
fn by_link(module: &Module) -> Option<(Elf, File)> {
    let Origin::File(_, program) = &module.origin else { return None };
    let link = module.elf.read(&module.origin, ".gnu_debuglink", &mut (1 << 12))?;
    let end = link.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&link[..end]).ok().filter(|name| !name.contains('/'))?;
    let sum = link.get((end + 1).next_multiple_of(4)..)?.first_chunk::<4>()?;
    let directory = program.parent()?;
    let in_root = Path::new(DEBUG_ROOT).join(directory.strip_prefix("/").unwrap_or(directory));
    let places = [directory.to_owned(), directory.join(".debug"), in_root];
    places.iter().find_map(|place| {
        let (elf, file) = open(&place.join(name))?;
        (check_sum(&file)? == u32::from_le_bytes(*sum)).then_some((elf, file))
    })
}

fn open(path: &Path) -> Option<(Elf, File)> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let elf = Elf::parse(&file)?;
    elf.section(".debug_info")?;
    Some((elf, file))
}

/// The CRC-32 of a whole file. `None` if the file is longer than the limit for reading it.
fn check_sum(file: &File) -> Option<u32> {
    let len = file.metadata().ok()?.len();
    if len > MAX_FILE_BYTES {
        return None;
    }
    let mut sum = flate2::Crc::new();
    let mut buffer = vec![0; 1 << 18];
    let mut offset = 0;
    while offset < len {
        let read = FileExt::read_at(file, &mut buffer, offset).ok().filter(|read| *read > 0)?;
        sum.update(&buffer[..read]);
        offset += read as u64;
    }
    Some(sum.sum())
}

/// Reads the debug information in the file of a module itself.
pub fn own_debug_sections(module: &Module) -> Option<DebugSections> {
    DebugSections::read(&module.elf, &module.origin, &mut MAX_FILE_BYTES.clone())
}

/// Reads the debug information of a module, from its own file or from the file that was split from
/// it.
pub fn debug_sections(module: &Module) -> Option<DebugSections> {
    own_debug_sections(module).or_else(|| {
        let (elf, file) = find(module)?;
        DebugSections::read(&elf, &file, &mut MAX_FILE_BYTES.clone())
    })
}

/// Reads the symbols of the file that was split from a module without symbols.
pub fn split_symbols(module: &Module) -> Option<crate::symbols::SymbolTable> {
    let (elf, file) = find(module)?;
    let reader: &dyn ReadAt = &file;
    Some(crate::symbols::SymbolTable::read(&elf, reader, &mut MAX_FILE_BYTES.clone()))
}
