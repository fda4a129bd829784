//! The ELF note by which scrun recognises a program that calls `score_initialize`.

// UNSAFETY: places a constant in the note section.
#![expect(unsafe_code)]

use score_proto::elf_note;

/// An ELF note with a one-word descriptor.
#[repr(C)]
struct Note {
    owner_len: u32,
    descriptor_len: u32,
    kind: u32,
    owner: [u8; 8],
    descriptor: u32,
}

// SAFETY: only scrun reads the section; it consists of complete notes such as this one.
#[unsafe(link_section = ".note.score")]
#[used]
static LIBRARY: Note = Note {
    owner_len: elf_note::OWNER.len() as u32,
    descriptor_len: 4,
    kind: elf_note::LIBSCORE,
    owner: *b"SCore\0\0\0",
    descriptor: score_proto::PROTOCOL_VERSION,
};

/// The protocol version. It is read from the note, so that linking `score_initialize` from an
/// archive also links the note.
pub(crate) fn version() -> u32 {
    std::hint::black_box(&LIBRARY).descriptor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_attribute_has_the_value_that_scrun_expects() {
        assert!(LIBRARY.owner.starts_with(elf_note::OWNER));
        assert_eq!(elf_note::SECTION, ".note.score");
    }
}
