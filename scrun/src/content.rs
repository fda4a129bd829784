//! Programs that travel: named by the hash of what they hold, and read with the user's rights when
//! a host asks for them.

use crate::usage::{Refusal, USAGE, shown};
use score_proto::message::{CHUNK, Content, ContentHash, HostKind, JobSpec, Kind};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Pieces of one answer at most: more is asked for again.
const PIECES: u64 = 16;

/// The files that hosts may ask for.
#[derive(Debug, Default)]
pub struct Contents(HashMap<ContentHash, PathBuf>);

impl Contents {
    /// Names the programs of a job by their content, where it runs elsewhere than here, or nobody
    /// knows yet where.
    ///
    /// # Errors
    /// A program that cannot be read.
    pub fn offer(spec: &mut JobSpec, unplaced: bool) -> Result<Contents, Refusal> {
        let mut contents = Contents::default();
        let mut known = HashMap::new();
        let here = spec.hosts.iter().all(|host| host.kind == HostKind::This);
        if spec.hosts.len() < 2 && here && !unplaced {
            return Ok(contents);
        }
        for element in spec.stages.iter_mut().flat_map(|stage| &mut stage.elements) {
            if matches!(element.kind, Kind::System { .. }) {
                continue;
            }
            let path = Path::new(OsStr::from_bytes(&element.path.0)).to_path_buf();
            let content = match known.get(&path) {
                Some(content) => *content,
                None => digest(&path).map_err(|error| {
                    let line = format!("{}: {error}", shown(path.as_os_str()));
                    Refusal::plain(USAGE, line)
                })?,
            };
            known.insert(path.clone(), content);
            contents.0.insert(content.hash, path);
            element.content = Some(content);
        }
        Ok(contents)
    }

    /// A piece of a program: none when it is not one of the job, has ended, or cannot be read.
    pub fn read(&self, hash: &ContentHash, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length.min(CHUNK)];
        let path = self.0.get(hash);
        let read =
            path.map(|path| File::open(path).and_then(|file| full(&file, &mut bytes, offset)));
        bytes.truncate(match read {
            Some(Ok(count)) => count,
            _ => 0,
        });
        bytes
    }

    /// The pieces that answer a wish: where each begins, and its length.
    pub fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
        let chunk = CHUNK as u64;
        (0..length.div_ceil(chunk).min(PIECES)).map(move |piece| {
            let left = length - piece * chunk;
            (offset.saturating_add(piece * chunk), left.min(chunk) as usize)
        })
    }
}

fn full(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match file.read_at(&mut bytes[count..], offset + count as u64)? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}

fn digest(path: &Path) -> io::Result<Content> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let (mut bytes, mut size) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut bytes)? {
            0 => break,
            count => {
                hasher.update(&bytes[..count]);
                size += count as u64;
            }
        }
    }
    Ok(Content { hash: *hasher.finalize().as_bytes(), size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_in_pieces_is_what_was_named() {
        let own = std::env::current_exe().unwrap();
        let content = digest(&own).unwrap();
        let contents = Contents(HashMap::from([(content.hash, own)]));
        let mut hasher = blake3::Hasher::new();
        let mut offset = 0;
        loop {
            let piece = contents.read(&content.hash, offset, CHUNK);
            if piece.is_empty() {
                break;
            }
            assert!(piece.len() <= CHUNK);
            hasher.update(&piece);
            offset += piece.len() as u64;
        }
        assert_eq!((offset, *hasher.finalize().as_bytes()), (content.size, content.hash));
        assert!(contents.read(&[0; 32], 0, 1).is_empty());
    }

    #[test]
    fn an_answer_is_bounded_whatever_is_wished_for() {
        assert_eq!(Contents::pieces(5, 1).collect::<Vec<_>>(), [(5, 1)]);
        let two = [(7, CHUNK), (7 + CHUNK as u64, 3)];
        assert_eq!(Contents::pieces(7, CHUNK as u64 + 3).collect::<Vec<_>>(), two);
        assert_eq!(Contents::pieces(u64::MAX, u64::MAX).count() as u64, PIECES);
    }
}
