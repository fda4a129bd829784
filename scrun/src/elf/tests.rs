//! Programs built by gcc, as users build them, and damaged copies of them.

use super::*;
use crate::mpi_library::Transport;
use std::fs;
use std::process::Command;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("scrun-elf-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Compiles C text; `flags` come last.
    fn compile(&self, output: &str, text: &str, flags: &[&str]) -> PathBuf {
        let source = self.path(&format!("{output}.c"));
        fs::write(&source, text).unwrap();
        let path = self.path(output);
        let built = Command::new("gcc")
            .arg("-o")
            .arg(&path)
            .arg(&source)
            .args(flags)
            .current_dir(&self.0)
            .output()
            .expect("gcc is needed for this test");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A note in the form in which the macros of score_resource.h emit it.
fn note(name: &str, kind: u32, words: &[u32]) -> String {
    let list = words.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let (field, value) = match words.len() {
        0 => (String::new(), String::new()),
        n => (format!("unsigned desc[{n}];"), format!(", {{{list}}}")),
    };
    format!(
        "static const struct {{ unsigned namesz, descsz, type; char name[8]; {field} }} {name} \
         __attribute__((used, aligned(4), section(\".note.score\"))) = \
         {{6, {}, {kind}, \"SCore\"{value}}};\n",
        words.len() * 4
    )
}

const MAIN: &str = "int main(void) { return 0; }\n";

fn library_note() -> String {
    note("library", score_proto::elf_note::LIBSCORE, &[1])
}

fn read(path: &Path) -> Request {
    let mut loader = LibrarySearchPath::new("".into(), "/etc/ld.so.conf".into());
    needs_of(path, &mut loader).unwrap().request
}

#[test]
fn a_program_without_notes_requests_no_resources() {
    let scratch = Scratch::new("none");
    let path = scratch.compile("plain", MAIN, &[]);
    assert_eq!(read(&path), Request::default());
    assert_eq!(read(Path::new("/bin/true")), Request::default());
    fs::write(scratch.path("script"), "#!/bin/sh\n").unwrap();
    assert_eq!(read(&scratch.path("script")), Request::default());
    assert_eq!(read(&scratch.path("missing")), Request::default());
}

#[test]
fn notes_are_read_dynamic_static_and_stripped() {
    let scratch = Scratch::new("notes");
    let text = [
        library_note(),
        note("nodes", score_proto::elf_note::NUM_NODES, &[2, 16]),
        note("nockpt", score_proto::elf_note::NOCKPT, &[]),
        MAIN.into(),
    ]
    .concat();
    for (name, flags) in [
        ("dynamic", &["-O1"][..]),
        ("static", &["-static"]),
        ("stripped", &["-s"]),
        ("collected", &["-Wl,--gc-sections"]),
    ] {
        let request = read(&scratch.compile(name, &text, flags));
        assert!(request.uses_libscore && request.nockpt, "{name}");
        assert_eq!(request.nodes, (2, 16), "{name}");
    }
}

#[test]
fn notes_of_needed_libraries_are_read_by_runpath_rpath_and_indirectly() {
    let scratch = Scratch::new("libraries");
    fs::create_dir(scratch.path("lib")).unwrap();
    let shared = ["-shared", "-fPIC"];
    let text = library_note() + "int deep(void) { return 0; }\n";
    scratch.compile("lib/libdeep.so", &text, &shared);
    let text = note("procs", score_proto::elf_note::NUM_PROCS, &[4])
        + "int deep(void); int middle(void) { return deep(); }\n";
    let origin = ["-shared", "-fPIC", "-Llib", "-ldeep", "-Wl,-rpath,$ORIGIN"];
    scratch.compile("lib/libmiddle.so", &text, &origin);
    let main = "int middle(void); int main(void) { return middle(); }\n";
    for (name, flag) in
        [("runpath", "-Wl,--enable-new-dtags"), ("rpath", "-Wl,--disable-new-dtags")]
    {
        let rpath = "-Wl,-rpath,$ORIGIN/lib";
        let link = ["-Llib", "-lmiddle", flag, rpath, "-Wl,--allow-shlib-undefined"];
        let request = read(&scratch.compile(name, main, &link));
        assert!(request.uses_libscore, "{name}");
        assert_eq!(request.procs, Some(4), "{name}");
    }
    let unfound =
        scratch.compile("unfound", main, &["-Llib", "-lmiddle", "-Wl,--allow-shlib-undefined"]);
    assert!(!read(&unfound).uses_libscore);
    let mut loader = LibrarySearchPath::new(scratch.path("lib").into(), "/etc/ld.so.conf".into());
    assert!(needs_of(&unfound, &mut loader).unwrap().request.uses_libscore);
}

#[test]
fn a_needed_mpi_library_is_found_through_another_library() {
    let scratch = Scratch::new("mpi");
    let shared = |name: &str| format!("-Wl,-soname,{name}");
    scratch.compile(
        "libmpi.so.12",
        "int inner(void) { return 0; }\n",
        &["-shared", "-fPIC", &shared("libmpi.so.12")],
    );
    let text = "int inner(void); int outer(void) { return inner(); }\n";
    let options = ["-shared", "-fPIC", "-L.", "-l:libmpi.so.12", &shared("libmpicxx.so.12")];
    scratch.compile("libmpicxx.so.12", text, &options);
    let main = "int outer(void); int main(void) { return outer(); }\n";
    let options = ["-L.", "-l:libmpicxx.so.12", "-Wl,--allow-shlib-undefined"];
    let program = scratch.compile("program", main, &options);
    let mut loader = LibrarySearchPath::new(scratch.path("").into(), "/etc/ld.so.conf".into());
    let needs = needs_of(&program, &mut loader).unwrap();
    assert_eq!(needs.mpi_library, Some(MpiLibrary::Mpich(Transport::Other)));
    assert!(!needs.uses_openmp);
    let plain = needs_of(&scratch.compile("plain", MAIN, &[]), &mut loader).unwrap();
    assert_eq!(plain.mpi_library, None);
    let threads = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n";
    assert!(
        needs_of(&scratch.compile("threads", threads, &["-fopenmp"]), &mut loader)
            .unwrap()
            .uses_openmp
    );
}

#[test]
fn an_error_about_conflicting_notes_names_the_file() {
    let scratch = Scratch::new("bad");
    let text = [
        note("one", score_proto::elf_note::NUM_NODES, &[1, 2]),
        note("two", score_proto::elf_note::NUM_NODES, &[3, 4]),
        MAIN.into(),
    ]
    .concat();
    let path = scratch.compile("exclusive", &text, &[]);
    let error = needs_of(&path, &mut LibrarySearchPath::from_env()).unwrap_err();
    assert_eq!(error.error, NoteError::ExclusiveNodes(1, 2, 3, 4));
    assert!(error.to_string().contains("exclusive"));
}

#[test]
fn truncated_and_corrupted_files_are_read_without_a_panic() {
    let scratch = Scratch::new("damage");
    let text = [library_note(), note("n", score_proto::elf_note::NUM_NODES, &[2, 4]), MAIN.into()];
    let bytes = fs::read(scratch.compile("whole", &text.concat(), &["-s"])).unwrap();
    assert!(request_of_bytes(&bytes).unwrap().uses_libscore);
    for length in (0..bytes.len()).step_by(61).chain(0..128) {
        let _ = request_of_bytes(&bytes[..length]);
    }
    // Sets every byte of the headers, one after the other, to extreme values.
    for offset in 0..bytes.len().min(2048) {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = bytes.clone();
            damaged[offset] = value;
            let _ = request_of_bytes(&damaged);
        }
    }
}

#[test]
fn a_huge_sparse_file_is_not_read_into_memory() {
    let scratch = Scratch::new("sparse");
    let mut bytes = fs::read(scratch.compile("whole", &(library_note() + MAIN), &[])).unwrap();
    let (start, count) =
        (u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize, bytes[56]);
    for segment in 0..usize::from(count) {
        let offset = start + segment * 56 + 32;
        bytes[offset..offset + 8].copy_from_slice(&(1u64 << 39).to_le_bytes());
    }
    let path = scratch.path("sparse");
    fs::write(&path, &bytes).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(read(&path), Request::default());
}

#[test]
fn both_classes_and_byte_orders_are_read() {
    let seed = |name: &str| {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/elf");
        request_of_bytes(&fs::read(corpus.join(name)).unwrap())
    };
    for name in ["wide", "narrow", "big_endian"] {
        let request = seed(name).unwrap();
        assert!(request.uses_libscore, "{name}");
        assert_eq!(request.nodes, (2, 16), "{name}");
    }
    assert_eq!(seed("other_owner"), Ok(Request::default()));
    assert_eq!(seed("unknown_type"), Err(NoteError::Unknown(99)));
    assert_eq!(seed("wrong_size"), Err(NoteError::Size(2, 4)));
}
