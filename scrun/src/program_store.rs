//! The programs and directories that other hosts request, by the hash of their content. scrun reads
//! them with the user's permissions when a host requests them.

use crate::mpi;
use crate::usage::{StartError, printable};
use score_client::{FolderArchive, read_full_at};
use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::{ContentHash, FileDigest, HostKind, JobSpec, MAX_IO_CHUNK, ProgramKind};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The source of the bytes that a host may request.
#[derive(Debug)]
enum Source {
    File(PathBuf),
    Folder(FolderArchive),
}

/// The files that hosts may request.
#[derive(Debug, Default)]
pub struct ProgramStore(HashMap<ContentHash, Source>);

impl ProgramStore {
    /// Adds the content hashes of a job's programs, if the job runs on other hosts or its hosts are
    /// not yet known.
    ///
    /// # Errors
    /// A program that cannot be read.
    pub fn add_content_hashes(
        spec: &mut JobSpec,
        are_hosts_undecided: bool,
    ) -> Result<ProgramStore, StartError> {
        let mut store = ProgramStore::default();
        let mut digests = HashMap::new();
        let are_all_local = spec.hosts.iter().all(|host| host.kind == HostKind::Local);
        if spec.hosts.len() < 2 && are_all_local && !are_hosts_undecided {
            return Ok(store);
        }
        for element in spec.stages.iter_mut().flat_map(|stage| &mut stage.elements) {
            if matches!(element.kind, ProgramKind::System { .. }) {
                continue;
            }
            let path = Path::new(OsStr::from_bytes(&element.path.0)).to_path_buf();
            if matches!(element.kind, ProgramKind::Mpi(_)) && mpi::is_run_by_python(&path) {
                continue;
            }
            let content = match digests.get(&path) {
                Some(content) => *content,
                None => digest(&path).map_err(|error| {
                    let line = format!("{}: {error}", printable(path.as_os_str()));
                    StartError::plain(EXIT_USAGE, line)
                })?,
            };
            digests.insert(path.clone(), content);
            store.0.insert(content.hash, Source::File(path));
            element.digest = Some(content);
        }
        Ok(store)
    }

    /// Adds the directory for the job's tools.
    pub fn add_tool_files(
        &mut self,
        spec: &mut JobSpec,
        (folder, content): (FolderArchive, FileDigest),
    ) {
        self.0.insert(content.hash, Source::Folder(folder));
        spec.tool_files = Some(Box::new(content));
    }

    /// Reads a chunk of a program or directory. Returns no bytes at its end, if it is not part of
    /// the job, or if it cannot be read.
    pub fn read(&self, hash: &ContentHash, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length.min(MAX_IO_CHUNK)];
        let read = match self.0.get(hash) {
            Some(Source::File(path)) => {
                File::open(path).and_then(|file| read_full_at(&file, &mut bytes, offset))
            }
            Some(Source::Folder(folder)) => folder.read_at(&mut bytes, offset),
            None => Ok(0),
        };
        bytes.truncate(read.unwrap_or(0));
        bytes
    }
}

fn digest(path: &Path) -> io::Result<FileDigest> {
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
    Ok(FileDigest { hash: *hasher.finalize().as_bytes(), size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chunks_of_a_program_have_its_hash() {
        let executable = std::env::current_exe().unwrap();
        let content = digest(&executable).unwrap();
        let store = ProgramStore(HashMap::from([(content.hash, Source::File(executable))]));
        let mut hasher = blake3::Hasher::new();
        let mut offset = 0;
        loop {
            let chunk = store.read(&content.hash, offset, MAX_IO_CHUNK);
            if chunk.is_empty() {
                break;
            }
            assert!(chunk.len() <= MAX_IO_CHUNK);
            hasher.update(&chunk);
            offset += chunk.len() as u64;
        }
        assert_eq!((offset, *hasher.finalize().as_bytes()), (content.size, content.hash));
        assert!(store.read(&[0; 32], 0, 1).is_empty());
    }
}
