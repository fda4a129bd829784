//! Reads the resource notes of a program and of the libraries that it needs (manual 4.1), without
//! running it. Files are not trusted: the amount that is read is bounded. A file that cannot be
//! read as ELF counts as a program without a note.

mod image;
mod library_path;

pub use library_path::LibrarySearchPath;

use crate::mpi_library::{self, MpiLibrary};
use score_proto::elf_note::{NoteError, Request};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of libraries that are read for one program.
const MAX_LIBRARIES: usize = 256;

/// The reason why the notes of a program cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {error}")]
pub struct ProgramNoteError {
    /// The program or library that carries the note.
    pub path: String,
    /// The error in the note.
    pub error: NoteError,
}

/// Reads only the notes in the bytes of one ELF file. For tests and fuzzing.
///
/// # Errors
/// The first note that cannot be honoured.
pub fn request_of_bytes(bytes: &[u8]) -> Result<Request, NoteError> {
    let mut request = Request::default();
    if let Some(info) = image::read(bytes) {
        info.apply(&mut request)?;
    }
    Ok(request)
}

/// The needs of a program, combined with the needs of its libraries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProgramNeeds {
    /// The combined resource request of the program and its libraries.
    pub request: Request,
    /// The MPI library among these libraries, if there is one.
    pub mpi_library: Option<MpiLibrary>,
    /// Whether an OpenMP library is among these libraries.
    pub uses_openmp: bool,
    /// Whether libfabric is among these libraries.
    pub uses_libfabric: bool,
    /// The path of libpmix, if it is among these libraries.
    pub pmix_library: Option<PathBuf>,
}

/// The OpenMP libraries of GCC, LLVM and Intel.
const OPENMP_LIBRARIES: [&[u8]; 4] =
    [b"libgomp.so.1", b"libomp.so.5", b"libomp.so", b"libiomp5.so"];

/// Reads the needs of the program at `path` and of the libraries that it needs.
///
/// # Errors
/// The first note that cannot be honoured.
pub fn needs_of(
    path: &Path,
    loader: &mut LibrarySearchPath,
) -> Result<ProgramNeeds, ProgramNoteError> {
    let (mut request, mut mpi_library) = (Request::default(), None);
    let (mut uses_openmp, mut uses_libfabric) = (false, false);
    let (mut mpi_path, mut pmix_library) = (None, None);
    let mut seen = HashSet::new();
    let Some((program, identity)) = load(path) else { return Ok(ProgramNeeds::default()) };
    seen.insert(identity);
    apply(&program, path, &mut request)?;
    let target = program.target;
    let mut pending: Vec<(PathBuf, image::ElfInfo)> = vec![(path.to_path_buf(), program)];
    let mut names = HashSet::new();
    while let Some((needed_by, info)) = pending.pop() {
        for name in &info.needed {
            if names.len() >= MAX_LIBRARIES || !names.insert(name.clone()) {
                continue;
            }
            uses_openmp |= OPENMP_LIBRARIES.contains(&name.as_slice());
            uses_libfabric |= mpi_library::is_libfabric(name);
            let named = MpiLibrary::of_needed(name).filter(|_| mpi_library.is_none());
            let found =
                loader.candidates(name, &needed_by, &info).into_iter().find_map(|candidate| {
                    let (library, identity) = load(&candidate)?;
                    (library.target == target).then_some((candidate, library, identity))
                });
            let found_path = found.as_ref().map(|(path, ..)| path.clone());
            if named.is_some() {
                (mpi_library, mpi_path) = (named, found_path.clone());
            }
            if name == mpi_library::PMIX_LIBRARY_NAME {
                pmix_library = found_path;
            }
            let Some((library_path, library, identity)) = found else { continue };
            if seen.insert(identity) {
                apply(&library, &library_path, &mut request)?;
                pending.push((library_path, library));
            }
        }
    }
    let mpi_library = mpi_library.map(|library| {
        library.with_needs(mpi_path.as_deref(), uses_libfabric, pmix_library.clone())
    });
    Ok(ProgramNeeds { request, mpi_library, uses_openmp, uses_libfabric, pmix_library })
}

fn apply(
    info: &image::ElfInfo,
    path: &Path,
    request: &mut Request,
) -> Result<(), ProgramNoteError> {
    let name = || crate::usage::printable(path.as_os_str());
    info.apply(request).map_err(|error| ProgramNoteError { path: name(), error })
}

/// Reads a regular file as ELF. The result has the device and inode, which identify the file.
fn load(path: &Path) -> Option<(image::ElfInfo, (u64, u64))> {
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let cache = object::ReadCache::new(File::open(path).ok()?);
    Some((image::read(&cache)?, (metadata.dev(), metadata.ino())))
}

#[cfg(test)]
mod tests;
