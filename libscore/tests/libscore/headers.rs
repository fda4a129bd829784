//! Tests of the headers with every supported standard and compiler, and of the notes that they
//! create.

use std::path::Path;

use crate::harness::Process;
use crate::harness::build::{self, Link};
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Endianness, elf};
use score_proto::elf_note::{self, Request};

const C: [&str; 4] = ["gcc -std=c99", "gcc -std=c2x", "clang -std=c99", "clang -std=c2x"];
const CXX: [&str; 2] = ["g++ -std=c++17", "clang++ -std=c++17"];

/// Types and words of all SCore notes in a file.
fn notes(path: &Path) -> Vec<(u32, Vec<u32>)> {
    let data = std::fs::read(path).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*data).unwrap();
    let (header, endian) = (file.elf_header(), file.endian());
    let sections = header.sections(endian, &*data).unwrap();
    let mut found = Vec::new();
    for section in sections.iter() {
        let name = sections.section_name(endian, section).unwrap();
        if name != elf_note::SECTION.as_bytes() {
            continue;
        }
        assert_eq!(section.sh_type(endian), elf::SHT_NOTE, "{}", path.display());
        let flags = section.sh_flags(endian);
        assert!(flags.0 & elf::SHF_ALLOC.0 != 0, "in the image");
        assert!(flags.0 & elf::SHF_WRITE.0 == 0, "read-only");
        let mut all = section.notes(endian, &*data).unwrap().expect("notes");
        while let Some(note) = all.next().unwrap() {
            assert_eq!(note.name(), &elf_note::OWNER[..5]);
            let words = note.desc().chunks_exact(4);
            let words = words.map(|word| u32::from_le_bytes(word.try_into().unwrap()));
            found.push((note.n_type(endian).0, words.collect()));
        }
    }
    found
}

/// The declarations of the program `resources.c`, sorted.
fn declared() -> Vec<(u32, Vec<u32>)> {
    let mut all = vec![
        (elf_note::NUM_NODES, vec![2, 16]),
        (elf_note::NUM_NODES, vec![2, 16]),
        (elf_note::NUM_NODES, vec![4, 64]),
        (elf_note::NUM_PROCS, vec![2]),
        (elf_note::NUM_PROCS, vec![2]),
        (elf_note::NUM_PROCS, vec![2]),
        (elf_note::NUM_NETS, vec![1]),
        (elf_note::NUM_NETS, vec![1]),
    ];
    for kind in
        [elf_note::ZEROCOPY, elf_note::HETERO_NODES, elf_note::NOCKPT, elf_note::RUN_LOCALLY]
    {
        all.extend([(kind, vec![]), (kind, vec![]), (kind, vec![])]);
    }
    all.sort();
    all
}

#[test]
fn resource_macros_work_at_file_and_block_scope_alone_and_twice() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/resources.c");
    let source = source.to_str().unwrap();
    let dir = build::scratch("resources");
    let out = dir.join("resources");
    let optimisations: [&[&str]; 4] = [
        &["-O0"],
        &["-O2", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-s"],
        &["-O2", "-flto", "-Wl,--gc-sections", "-s"],
        &["-O2", "-fPIC", "-shared", "-Wl,--gc-sections", "-s"],
    ];
    for compiler in C.iter().chain(&CXX) {
        let language = if compiler.contains("++") { "c++" } else { "c" };
        for options in optimisations {
            // Debian's clang has no link-time plugin for GNU ld.
            if compiler.starts_with("clang") && options.contains(&"-flto") {
                continue;
            }
            let path = out.to_str().unwrap();
            let mut args = vec!["-x", language, source, "-o", path];
            args.extend(options);
            build::compile(compiler, &args);
            let mut found = notes(&out);
            found.sort();
            assert_eq!(found, declared(), "{compiler} {options:?}");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn declarations_of_a_program_are_understood_as_scrun_reads_them() {
    let mut request = Request::default();
    for (kind, words) in notes(&build::node()) {
        request.add(kind, &words).unwrap();
    }
    assert!(request.uses_libscore, "libscore.a brings its note");
    assert_eq!(request.nodes, (1, 16));
}

#[test]
fn both_forms_of_score_initialize_compile_everywhere() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/forms.c");
    let source = source.to_str().unwrap();
    let dir = build::scratch("forms");
    let out = dir.join("forms.o");
    for compiler in C.iter().chain(&CXX) {
        let language = if compiler.contains("++") { "c++" } else { "c" };
        for arguments in ["-DARGUMENTS=0", "-DARGUMENTS=1"] {
            let args = ["-x", language, arguments, "-c", source, "-o", out.to_str().unwrap()];
            build::compile(compiler, &args);
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_library_note_is_in_every_static_program_however_it_is_built() {
    for compiler in [
        "gcc -std=c99 -O2 -flto -ffunction-sections -Wl,--gc-sections -s",
        "gcc -std=c2x -O2 -Wl,--gc-sections -s",
        "clang -std=c2x -O2 -Wl,--gc-sections -s",
        "g++ -std=c++17 -O2 -Wl,--gc-sections -s",
    ] {
        let program = build::program("node", compiler, Link::Static);
        let found = notes(&program);
        let library = (elf_note::LIBSCORE, vec![score_proto::PROTOCOL_VERSION]);
        assert_eq!(found.iter().filter(|note| **note == library).count(), 1, "{compiler}");
        let process = Process::start(&program, &[], None);
        assert_eq!(process.read_line(), "ready");
    }
}

#[test]
fn the_library_note_is_in_the_shared_library_and_not_in_its_programs() {
    let program = build::program("node", "gcc -std=c99 -O2", Link::Shared);
    let is_library = |note: &(u32, Vec<u32>)| note.0 == elf_note::LIBSCORE;
    assert!(!notes(&program).iter().any(is_library));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    assert!(notes(&target.join(profile).join("libscore.so")).iter().any(is_library));
}
