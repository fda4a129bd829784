//! Headers, sections and notes of an ELF file for x86-64. The input is not trusted: every read is
//! bounded. Reads copy to a buffer, because a mapped file may be truncated while it is read
//! (SIGBUS).

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::LittleEndian as LE;
use object::elf;
use object::pod;

/// Maximum length of a section, compressed and decompressed, in bytes.
pub const MAX_SECTION_LEN: u64 = 256 << 20;
/// Maximum bytes of memory for all sections of one file.
pub const MAX_FILE_BYTES: u64 = 768 << 20;
const MAX_SECTIONS: usize = 1 << 16;
const MAX_SEGMENTS: usize = 1 << 10;
const MAX_NOTE_BYTES: u64 = 1 << 16;
const MAX_BUILD_ID_LEN: usize = 64;

/// A source that can be read at any offset. It may change during reading.
pub trait ReadAt {
    /// Reads `len` bytes from `offset` on. Returns `None` if fewer bytes are available.
    fn read_at(&self, offset: u64, len: u64) -> Option<Vec<u8>>;
}

impl ReadAt for [u8] {
    fn read_at(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        self.get(start..end).map(<[u8]>::to_vec)
    }
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        // A sparse file can have any length. Allocate memory only for bytes within the length of
        // the file.
        let file_len = self.metadata().ok()?.len();
        if len > MAX_SECTION_LEN || offset.checked_add(len)? > file_len {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

/// A part of the file that is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Link-time address.
    pub address: u64,
    /// The offset of its bytes in the file.
    pub offset: u64,
    /// The number of its bytes in the file.
    pub file_len: u64,
    /// Whether it contains code.
    pub is_executable: bool,
}

/// A section of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: Vec<u8>,
    /// The type, `SHT_*`.
    pub kind: u32,
    /// The flags, `SHF_*`.
    pub flags: u64,
    /// Link-time address.
    pub address: u64,
    /// The offset in the file.
    pub offset: u64,
    /// The length in the file.
    pub len: u64,
    /// The index of the section that it refers to.
    pub link: usize,
}

/// The contents of a file's headers.
#[derive(Debug, Clone, Default)]
pub struct Elf {
    /// The mapped parts.
    pub segments: Vec<Segment>,
    /// The sections.
    pub sections: Vec<Section>,
    /// The build id, which identifies this build.
    pub build_id: Option<Vec<u8>>,
}

impl Elf {
    /// Reads the headers. Returns `None` if this is not an ELF file for x86-64.
    pub fn parse(file: &(impl ReadAt + ?Sized)) -> Option<Self> {
        let header_bytes = file.read_at(0, size_of::<elf::FileHeader64<LE>>() as u64)?;
        let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(&header_bytes).ok()?;
        let ident = &header.e_ident;
        let is_ours = ident.magic == elf::ELFMAG
            && ident.class == elf::ELFCLASS64
            && ident.data == elf::ELFDATA2LSB
            && header.e_machine.get(LE) == elf::EM_X86_64;
        if !is_ours {
            return None;
        }
        let mut parsed = Self::default();
        parsed.read_segments(file, header);
        parsed.read_sections(file, header);
        if parsed.build_id.is_none() {
            let notes = parsed.sections.iter().filter(|section| section.kind == elf::SHT_NOTE.0);
            let found = notes.map(|note| (note.offset, note.len)).collect::<Vec<_>>();
            parsed.build_id = found.iter().find_map(|(at, len)| read_build_id(file, *at, *len));
        }
        Some(parsed)
    }

    fn read_segments(
        &mut self,
        file: &(impl ReadAt + ?Sized),
        header: &elf::FileHeader64<LE>,
    ) -> Option<()> {
        let count = usize::from(header.e_phnum.get(LE)).min(MAX_SEGMENTS);
        let entry_len = size_of::<elf::ProgramHeader64<LE>>();
        let bytes = file.read_at(header.e_phoff.get(LE), (count * entry_len) as u64)?;
        let (headers, _) = pod::slice_from_bytes::<elf::ProgramHeader64<LE>>(&bytes, count).ok()?;
        for header in headers {
            let (offset, file_len) = (header.p_offset.get(LE), header.p_filesz.get(LE));
            let kind = header.p_type.get(LE);
            if kind == elf::PT_LOAD {
                let is_executable = header.p_flags.get(LE).contains(elf::PF_X);
                let address = header.p_vaddr.get(LE);
                self.segments.push(Segment { address, offset, file_len, is_executable });
            } else if kind == elf::PT_NOTE && self.build_id.is_none() {
                self.build_id = read_build_id(file, offset, file_len);
            }
        }
        Some(())
    }

    fn read_sections(
        &mut self,
        file: &(impl ReadAt + ?Sized),
        header: &elf::FileHeader64<LE>,
    ) -> Option<()> {
        let entry_len = size_of::<elf::SectionHeader64<LE>>();
        let start = header.e_shoff.get(LE);
        // Numbers that do not fit into 16 bits are in the first section header.
        let first_bytes = file.read_at(start, entry_len as u64)?;
        let (first, _) = pod::from_bytes::<elf::SectionHeader64<LE>>(&first_bytes).ok()?;
        let count = match header.e_shnum.get(LE) {
            0 => usize::try_from(first.sh_size.get(LE)).ok()?,
            count => usize::from(count),
        };
        let count = (count <= MAX_SECTIONS).then_some(count)?;
        let names_index = match header.e_shstrndx.get(LE) {
            index if index == elf::SHN_XINDEX => first.sh_link.get(LE) as usize,
            index => usize::from(index.0),
        };
        let bytes = file.read_at(start, (count * entry_len) as u64)?;
        let (headers, _) = pod::slice_from_bytes::<elf::SectionHeader64<LE>>(&bytes, count).ok()?;
        let names_header = headers.get(names_index)?;
        let names_len = names_header.sh_size.get(LE).min(MAX_SECTION_LEN >> 4);
        let names = file.read_at(names_header.sh_offset.get(LE), names_len)?;
        self.sections = headers.iter().map(|header| section(header, &names)).collect();
        Some(())
    }

    /// The section with this name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name.as_bytes())
    }

    /// The link-time address of a section.
    pub fn section_address(&self, name: &str) -> Option<u64> {
        self.section(name).map(|section| section.address)
    }

    /// The bytes of a section, decompressed. Their number is deducted from the budget.
    pub fn read(
        &self,
        file: &(impl ReadAt + ?Sized),
        name: &str,
        budget: &mut u64,
    ) -> Option<Vec<u8>> {
        self.section(name).and_then(|section| section.read(file, budget))
    }

    /// The link-time address of the byte at `offset` in the file.
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        // Segments may share a page at their ends. Prefer segments with code.
        let holds = |segment: &&Segment| {
            let within = offset.checked_sub(segment.offset);
            within.is_some_and(|within| within < segment.file_len)
        };
        let mut code = self.segments.iter().filter(|segment| segment.is_executable);
        let segment = code.find(holds).or_else(|| self.segments.iter().find(holds))?;
        segment.address.checked_add(offset - segment.offset)
    }
}

impl Section {
    /// Whether it contains instructions.
    pub fn is_code(&self) -> bool {
        self.flags & elf::SHF_EXECINSTR.0 != 0
    }

    /// The bytes, decompressed. Their number is deducted from the budget.
    pub fn read(&self, file: &(impl ReadAt + ?Sized), budget: &mut u64) -> Option<Vec<u8>> {
        if self.kind == elf::SHT_NOBITS.0 || self.len > MAX_SECTION_LEN {
            return None;
        }
        *budget = budget.checked_sub(self.len)?;
        let bytes = file.read_at(self.offset, self.len)?;
        match self.flags & elf::SHF_COMPRESSED.0 {
            0 => Some(bytes),
            _ => decompress(&bytes, budget),
        }
    }
}

fn section(header: &elf::SectionHeader64<LE>, names: &[u8]) -> Section {
    let name = names.get(header.sh_name.get(LE) as usize..).unwrap_or_default();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    Section {
        name: name[..end.min(256)].to_vec(),
        kind: header.sh_type.get(LE).0,
        flags: header.sh_flags.get(LE).0,
        address: header.sh_addr.get(LE),
        offset: header.sh_offset.get(LE),
        len: header.sh_size.get(LE),
        link: header.sh_link.get(LE) as usize,
    }
}

fn decompress(bytes: &[u8], budget: &mut u64) -> Option<Vec<u8>> {
    use std::io::Read;
    let (header, rest) = pod::from_bytes::<elf::CompressionHeader64<LE>>(bytes).ok()?;
    let len = header.ch_size.get(LE);
    if header.ch_type.get(LE) != elf::ELFCOMPRESS_ZLIB || len > MAX_SECTION_LEN {
        return None;
    }
    *budget = budget.checked_sub(len)?;
    // Memory grows with the decompressed data, and not with the announced length.
    let mut plain = Vec::new();
    flate2::read::ZlibDecoder::new(rest).take(len).read_to_end(&mut plain).ok()?;
    (plain.len() as u64 == len).then_some(plain)
}

/// Finds the build id among the notes at `offset`.
fn read_build_id(file: &(impl ReadAt + ?Sized), offset: u64, len: u64) -> Option<Vec<u8>> {
    let bytes = file.read_at(offset, len.min(MAX_NOTE_BYTES))?;
    let mut rest = bytes.as_slice();
    while let Ok((note, after)) = pod::from_bytes::<elf::NoteHeader64<LE>>(rest) {
        let padded = |len: u32| (len as usize).checked_next_multiple_of(4);
        let name_len = padded(note.n_namesz.get(LE))?;
        let value_len = note.n_descsz.get(LE) as usize;
        let value = after.get(name_len..name_len.checked_add(value_len)?)?;
        let is_gnu = after.starts_with(b"GNU\0") && note.n_namesz.get(LE) == 4;
        if is_gnu && note.n_type.get(LE) == elf::NT_GNU_BUILD_ID {
            return (1..=MAX_BUILD_ID_LEN).contains(&value_len).then(|| value.to_vec());
        }
        rest = after.get(name_len..)?.get(padded(note.n_descsz.get(LE))?..)?;
    }
    None
}
