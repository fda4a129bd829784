//! Reads the resource notes of a program and of the libraries that it needs (manual 4.1), without
//! running it. Files are hostile: what is read is bounded, and what cannot be read as ELF is a
//! program without a note.

mod image;
mod search;

pub use search::Loader;

use score_proto::note::{NoteError, Request};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most libraries that are looked into for one program.
const MAX_LIBRARIES: usize = 256;

/// Why the notes of a program cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {fault}")]
pub struct BadNote {
    /// The program or library that carries the note.
    pub path: String,
    /// What is wrong with it.
    pub fault: NoteError,
}

/// Reads the notes in the bytes of one ELF file, and nothing else: for tests and fuzzing.
///
/// # Errors
/// The first note that cannot be honoured.
pub fn request_of_bytes(bytes: &[u8]) -> Result<Request, NoteError> {
    let mut request = Request::default();
    if let Some(image) = image::read(bytes) {
        image.apply(&mut request)?;
    }
    Ok(request)
}

/// What the program at `path` and the libraries it needs ask for together.
///
/// # Errors
/// The first note that cannot be honoured.
pub fn request_of(path: &Path, loader: &mut Loader) -> Result<Request, BadNote> {
    let mut request = Request::default();
    let mut seen = HashSet::new();
    let Some((program, identity)) = load(path) else { return Ok(request) };
    seen.insert(identity);
    apply(&program, path, &mut request)?;
    let kind = program.kind;
    let mut waiting: Vec<(PathBuf, image::Image)> = vec![(path.to_path_buf(), program)];
    let mut names = HashSet::new();
    while let Some((user, image)) = waiting.pop() {
        for name in &image.needed {
            if names.len() >= MAX_LIBRARIES || !names.insert(name.clone()) {
                continue;
            }
            let found = loader.candidates(name, &user, &image).into_iter().find_map(|candidate| {
                let (library, identity) = load(&candidate)?;
                (library.kind == kind).then_some((candidate, library, identity))
            });
            let Some((place, library, identity)) = found else { continue };
            if seen.insert(identity) {
                apply(&library, &place, &mut request)?;
                waiting.push((place, library));
            }
        }
    }
    Ok(request)
}

fn apply(image: &image::Image, path: &Path, request: &mut Request) -> Result<(), BadNote> {
    let name = || crate::usage::shown(path.as_os_str());
    image.apply(request).map_err(|fault| BadNote { path: name(), fault })
}

/// Reads a regular file as ELF; gives device and inode, too, by which a file is known again.
fn load(path: &Path) -> Option<(image::Image, (u64, u64))> {
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let cache = object::ReadCache::new(File::open(path).ok()?);
    Some((image::read(&cache)?, (metadata.dev(), metadata.ino())))
}

#[cfg(test)]
mod tests;
