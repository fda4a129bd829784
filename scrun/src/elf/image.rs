//! One ELF file: its SCore notes and the data that the dynamic loader needs.

use object::elf;
use object::endian::Endianness;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadRef, StringTable};
use score_proto::elf_note::{self, NoteError, Request};

/// Maximum length in bytes of the note segments and dynamic sections that are read.
const MAX_SEGMENT: u64 = 1 << 20;
/// Maximum number of program headers, dynamic section entries and notes that are read.
const MAX_ENTRIES: usize = 4096;

/// Class, byte order and machine. A program and its libraries have the same target.
pub type ElfTarget = (bool, bool, u16);

/// The contents of an ELF file that scrun uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ElfInfo {
    /// Class, byte order, machine.
    pub target: ElfTarget,
    /// SCore's notes: type and words.
    pub notes: Vec<(u32, Vec<u32>)>,
    /// DT_NEEDED names.
    pub needed: Vec<Vec<u8>>,
    /// DT_RPATH.
    pub rpath: Option<Vec<u8>>,
    /// DT_RUNPATH.
    pub runpath: Option<Vec<u8>>,
}

impl ElfInfo {
    /// Adds the notes to a request.
    pub fn apply(&self, request: &mut Request) -> Result<(), NoteError> {
        self.notes.iter().try_for_each(|(kind, words)| request.add(*kind, words))
    }
}

/// Reads a file. Returns `None` if it is not an ELF file or is damaged.
pub fn read<'data, R: ReadRef<'data>>(data: R) -> Option<ElfInfo> {
    let ident: &[u8; 16] = data.read_bytes_at(0, 16).ok()?.try_into().ok()?;
    match (&ident[..4], ident[4]) {
        (b"\x7fELF", class) if class == elf::ELFCLASS32.0 => {
            headers::<elf::FileHeader32<Endianness>, R>(data, false)
        }
        (b"\x7fELF", class) if class == elf::ELFCLASS64.0 => {
            headers::<elf::FileHeader64<Endianness>, R>(data, true)
        }
        _ => None,
    }
}

fn headers<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    data: R,
    is_64_bit: bool,
) -> Option<ElfInfo> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_phnum(endian) == elf::PN_XNUM {
        return None; // no program has tens of thousands of segments
    }
    let segments = header.program_headers(endian, data).ok()?;
    let segments = &segments[..segments.len().min(MAX_ENTRIES)];
    let target = (is_64_bit, endian == Endianness::Little, header.e_machine(endian).0);
    let mut info = ElfInfo { target, ..ElfInfo::default() };
    for segment in segments {
        notes::<H, R>(segment, endian, data, &mut info);
    }
    for segment in segments {
        dynamic::<H, R>(segment, segments, endian, data, &mut info);
    }
    Some(info)
}

fn notes<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    segment: &H::ProgramHeader,
    endian: Endianness,
    data: R,
    info: &mut ElfInfo,
) -> Option<()> {
    if segment.p_filesz(endian).into() > MAX_SEGMENT {
        return None;
    }
    let mut notes = segment.notes(endian, data).ok()??;
    let owner = elf_note::OWNER.strip_suffix(b"\0").unwrap_or(elf_note::OWNER);
    for _ in 0..MAX_ENTRIES {
        let Ok(Some(entry)) = notes.next() else { break };
        if entry.name() == owner && info.notes.len() < MAX_ENTRIES {
            info.notes.push((entry.n_type(endian).0, words(entry.desc(), endian)));
        }
    }
    Some(())
}

/// The descriptor as 32-bit words. Left-over bytes become one more word, so that the size is wrong
/// and the note is rejected.
fn words(bytes: &[u8], endian: Endianness) -> Vec<u32> {
    let word = |chunk: &[u8]| {
        let mut word_bytes = [0; 4];
        word_bytes[..chunk.len()].copy_from_slice(chunk);
        if endian == Endianness::Little {
            u32::from_le_bytes(word_bytes)
        } else {
            u32::from_be_bytes(word_bytes)
        }
    };
    bytes.chunks(4).take(64).map(word).collect()
}

fn dynamic<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    segment: &H::ProgramHeader,
    segments: &[H::ProgramHeader],
    endian: Endianness,
    data: R,
    info: &mut ElfInfo,
) -> Option<()> {
    if segment.p_filesz(endian).into() > MAX_SEGMENT {
        return None;
    }
    let entries = segment.dynamic(endian, data).ok()??;
    let entries = &entries[..entries.len().min(MAX_ENTRIES)];
    let value = |tag: elf::DynamicTag| {
        let found = entries.iter().find(|entry| entry.tag(endian) == tag)?;
        Some(found.d_val(endian).into())
    };
    let start = file_offset::<H>(segments, endian, value(elf::DT_STRTAB)?)?;
    let size = value(elf::DT_STRSZ)?;
    let strings = StringTable::new(data, start, start.checked_add(size)?);
    let string_at = |index: u64| {
        let bytes = strings.get(u32::try_from(index).ok()?).ok()?;
        (!bytes.is_empty() && bytes.len() <= 4096).then(|| bytes.to_vec())
    };
    for entry in entries {
        let value: u64 = entry.d_val(endian).into();
        match entry.tag(endian) {
            elf::DT_NULL => break,
            elf::DT_NEEDED => info.needed.extend(string_at(value)),
            elf::DT_RPATH => info.rpath = string_at(value),
            elf::DT_RUNPATH => info.runpath = string_at(value),
            _ => {}
        }
    }
    Some(())
}

/// Converts a virtual address to an offset in the file.
fn file_offset<H: FileHeader<Endian = Endianness>>(
    segments: &[H::ProgramHeader],
    endian: Endianness,
    address: u64,
) -> Option<u64> {
    segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).find_map(|segment| {
        let segment_offset = address.checked_sub(segment.p_vaddr(endian).into())?;
        let inside = segment_offset < segment.p_filesz(endian).into();
        inside.then(|| segment.p_offset(endian).into().checked_add(segment_offset))?
    })
}
