//! One ELF file: its SCore notes and what the loader has to know of it.

use object::elf;
use object::endian::Endianness;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadRef, StringTable};
use score_proto::note::{self, NoteError, Request};

/// A segment of notes and a dynamic section longer than this are not read.
const MAX_SEGMENT: u64 = 1 << 20;
/// The most program headers, entries of the dynamic section, and notes that are looked at.
const MAX_ENTRIES: usize = 4096;

/// What makes two files fit together: class, byte order, machine.
pub type Kind = (bool, bool, u16);

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// Class, byte order, machine.
    pub kind: Kind,
    /// SCore's notes: type and words.
    pub notes: Vec<(u32, Vec<u32>)>,
    /// DT_NEEDED names.
    pub needed: Vec<Vec<u8>>,
    /// DT_RPATH.
    pub rpath: Option<Vec<u8>>,
    /// DT_RUNPATH.
    pub runpath: Option<Vec<u8>>,
}

impl Image {
    /// Adds the notes to a request.
    pub fn apply(&self, request: &mut Request) -> Result<(), NoteError> {
        self.notes.iter().try_for_each(|(kind, words)| request.add(*kind, words))
    }
}

/// Reads a file; `None` when it is no ELF file or a damaged one.
pub fn read<'data, R: ReadRef<'data>>(data: R) -> Option<Image> {
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
    wide: bool,
) -> Option<Image> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_phnum(endian) == elf::PN_XNUM {
        return None; // tens of thousands of segments: no program looks like this
    }
    let segments = header.program_headers(endian, data).ok()?;
    let segments = &segments[..segments.len().min(MAX_ENTRIES)];
    let kind = (wide, endian == Endianness::Little, header.e_machine(endian).0);
    let mut image = Image { kind, ..Image::default() };
    for segment in segments {
        notes::<H, R>(segment, endian, data, &mut image);
    }
    for segment in segments {
        dynamic::<H, R>(segment, segments, endian, data, &mut image);
    }
    Some(image)
}

fn notes<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    segment: &H::ProgramHeader,
    endian: Endianness,
    data: R,
    image: &mut Image,
) -> Option<()> {
    if segment.p_filesz(endian).into() > MAX_SEGMENT {
        return None;
    }
    let mut notes = segment.notes(endian, data).ok()??;
    let owner = note::OWNER.strip_suffix(b"\0").unwrap_or(note::OWNER);
    for _ in 0..MAX_ENTRIES {
        let Ok(Some(found)) = notes.next() else { break };
        if found.name() == owner && image.notes.len() < MAX_ENTRIES {
            image.notes.push((found.n_type(endian).0, words(found.desc(), endian)));
        }
    }
    Some(())
}

/// The descriptor's 32-bit words; what is left over makes one more, so that its size is wrong.
fn words(bytes: &[u8], endian: Endianness) -> Vec<u32> {
    let word = |chunk: &[u8]| {
        let mut four = [0; 4];
        four[..chunk.len()].copy_from_slice(chunk);
        if endian == Endianness::Little {
            u32::from_le_bytes(four)
        } else {
            u32::from_be_bytes(four)
        }
    };
    bytes.chunks(4).take(64).map(word).collect()
}

fn dynamic<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    segment: &H::ProgramHeader,
    segments: &[H::ProgramHeader],
    endian: Endianness,
    data: R,
    image: &mut Image,
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
    let start = offset::<H>(segments, endian, value(elf::DT_STRTAB)?)?;
    let size = value(elf::DT_STRSZ)?;
    let strings = StringTable::new(data, start, start.checked_add(size)?);
    let text = |at: u64| {
        let bytes = strings.get(u32::try_from(at).ok()?).ok()?;
        (!bytes.is_empty() && bytes.len() <= 4096).then(|| bytes.to_vec())
    };
    for entry in entries {
        let value: u64 = entry.d_val(endian).into();
        match entry.tag(endian) {
            elf::DT_NULL => break,
            elf::DT_NEEDED => image.needed.extend(text(value)),
            elf::DT_RPATH => image.rpath = text(value),
            elf::DT_RUNPATH => image.runpath = text(value),
            _ => {}
        }
    }
    Some(())
}

/// Where a virtual address stands in the file.
fn offset<H: FileHeader<Endian = Endianness>>(
    segments: &[H::ProgramHeader],
    endian: Endianness,
    address: u64,
) -> Option<u64> {
    segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).find_map(|segment| {
        let within = address.checked_sub(segment.p_vaddr(endian).into())?;
        let inside = within < segment.p_filesz(endian).into();
        inside.then(|| segment.p_offset(endian).into().checked_add(within))?
    })
}
