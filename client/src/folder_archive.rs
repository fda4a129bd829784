//! A directory that hosts of a job get for tools (`scrun -tool-files`, `start_tool --files`). It is
//! sent as one archive ([`score_proto::file_tree`]). The archive is never written to disk: when a
//! host requests bytes, they are read from the files of the directory.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use score_proto::file_tree::{
    FileTree, MAX_TREE_BYTES, MAX_TREE_ENTRIES, MAX_TREE_PATH, TREE_MODE_MASK, TreeEntry,
    TreeEntryKind, TreeError,
};
use score_proto::message::{FileDigest, MAX_IO_CHUNK, OsBytes};

/// Number of bytes that are hashed at once.
const HASH_LEN: usize = 1 << 20;
/// Largest number of chunks of one reply. The host requests the rest in a further request.
const MAX_CHUNKS_PER_REPLY: u64 = 16;

/// A file of the directory, and the position of its bytes in the archive.
#[derive(Debug)]
struct Part {
    offset: u64,
    size: u64,
    path: PathBuf,
}

/// The directory as one archive.
#[derive(Debug)]
pub struct FolderArchive {
    list: Vec<u8>,
    parts: Vec<Part>,
    size: u64,
}

impl FolderArchive {
    /// Lists the directory.
    ///
    /// # Errors
    /// The first file that cannot be sent.
    pub fn open(folder: &Path) -> Result<Self, String> {
        let folder = fs::canonicalize(folder).map_err(|error| error.to_string())?;
        let (mut tree, mut parts) = (FileTree::default(), Vec::new());
        // Relative paths of directories that are not yet read.
        let mut directories = vec![PathBuf::new()];
        let mut sum: u64 = 0;
        while let Some(directory) = directories.pop() {
            for name in sorted_names(&folder.join(&directory))
                .map_err(|error| at(&directory, &error.to_string()))?
            {
                let path = directory.join(name);
                let entry = entry(&folder.join(&path), &path).map_err(|error| at(&path, &error))?;
                match &entry.kind {
                    TreeEntryKind::Directory { .. } => directories.push(path),
                    TreeEntryKind::File { size, .. } => {
                        parts.push(Part { offset: sum, size: *size, path: folder.join(path) });
                        sum = sum.saturating_add(*size);
                    }
                    TreeEntryKind::Link { .. } => {}
                }
                tree.entries.push(entry);
                if tree.entries.len() > MAX_TREE_ENTRIES {
                    return Err(TreeError::TooManyEntries.to_string());
                }
                if sum > MAX_TREE_BYTES {
                    return Err(TreeError::TooManyBytes.to_string());
                }
            }
        }
        tree.check().map_err(|error| error.to_string())?;
        let list = tree.encode().map_err(|error| error.to_string())?;
        parts.retain(|part| part.size > 0);
        parts.iter_mut().for_each(|part| part.offset += list.len() as u64);
        Ok(Self { size: list.len() as u64 + sum, list, parts })
    }

    /// Computes the hash and the size of the archive.
    ///
    /// # Errors
    /// The first file that cannot be read.
    pub fn digest(&self) -> Result<FileDigest, String> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.list);
        let mut bytes = vec![0; HASH_LEN];
        for part in &self.parts {
            let shown = printable(&part.path);
            let file = open_file(&part.path).map_err(|error| format!("{shown}: {error}"))?;
            let mut offset = 0;
            while offset < part.size {
                let wanted = (part.size - offset).min(HASH_LEN as u64) as usize;
                match read_full_at(&file, &mut bytes[..wanted], offset) {
                    Ok(count) if count == wanted => {}
                    Ok(_) => return Err(format!("{shown}: the file has become shorter")),
                    Err(error) => return Err(format!("{shown}: {error}")),
                }
                hasher.update(&bytes[..wanted]);
                offset += wanted as u64;
            }
        }
        Ok(FileDigest { hash: *hasher.finalize().as_bytes(), size: self.size })
    }

    /// Reads bytes of the archive from `offset` on. Returns their number, which is lower at the end
    /// of the archive.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn read_at(&self, bytes: &mut [u8], mut offset: u64) -> io::Result<usize> {
        let mut count = 0;
        if let Some(list) = usize::try_from(offset).ok().and_then(|at| self.list.get(at..)) {
            count = list.len().min(bytes.len());
            bytes[..count].copy_from_slice(&list[..count]);
            offset += count as u64;
        }
        let first = self.parts.partition_point(|part| part.offset + part.size <= offset);
        for part in &self.parts[first..] {
            let left = part.offset + part.size - offset;
            let wanted = (bytes.len() - count).min(left.try_into().unwrap_or(usize::MAX));
            if wanted == 0 {
                break;
            }
            let target = &mut bytes[count..count + wanted];
            let read = read_full_at(&open_file(&part.path)?, target, offset - part.offset)?;
            count += read;
            offset += read as u64;
            if read < wanted {
                // The file has become shorter. The host detects this by the hash.
                break;
            }
        }
        Ok(count)
    }
}

/// The chunks that answer a request: the offset and length of each. Their number is bounded.
pub fn chunk_ranges(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    let chunk = MAX_IO_CHUNK as u64;
    (0..length.div_ceil(chunk).min(MAX_CHUNKS_PER_REPLY)).map(move |index| {
        let left = length - index * chunk;
        (offset.saturating_add(index * chunk), left.min(chunk) as usize)
    })
}

/// A path for an error message. It may contain any bytes.
fn printable(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

fn at(path: &Path, reason: &str) -> String {
    match path.as_os_str().is_empty() {
        true => reason.to_owned(),
        false => format!("{}: {reason}", printable(path)),
    }
}

/// Reads until `bytes` is full or the file ends. Returns the number of bytes.
///
/// # Errors
/// See pread(2).
pub fn read_full_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match file.read_at(&mut bytes[count..], offset + count as u64)? {
            0 => break,
            read => count += read,
        }
    }
    Ok(count)
}

/// Opens a file for reading. Does not wait for the other end of a FIFO, and does not follow a
/// symbolic link that has replaced the file.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    File::options().read(true).custom_flags(flags.bits()).open(path)
}

/// The names in a directory, in a fixed order, so that equal directories have equal hashes.
fn sorted_names(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name());
        if names.len() > MAX_TREE_ENTRIES {
            return Err(io::Error::other(TreeError::TooManyEntries));
        }
    }
    names.sort();
    Ok(names)
}

fn entry(path: &Path, relative: &Path) -> Result<TreeEntry, String> {
    let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    let file_type = metadata.file_type();
    let mode = metadata.mode() as u16 & TREE_MODE_MASK;
    let bytes = relative.as_os_str().as_bytes();
    if bytes.len() > MAX_TREE_PATH {
        return Err(format!("its path is longer than {MAX_TREE_PATH} bytes"));
    }
    let kind = match () {
        () if file_type.is_dir() => TreeEntryKind::Directory { mode },
        () if file_type.is_file() => TreeEntryKind::File { mode, size: metadata.len() },
        () if file_type.is_symlink() => {
            let target = fs::read_link(path).map_err(|error| error.to_string())?;
            TreeEntryKind::Link { target: OsBytes(target.as_os_str().as_bytes().to_vec()) }
        }
        () => {
            let what = match () {
                () if file_type.is_socket() => "a socket",
                () if file_type.is_fifo() => "a FIFO",
                () => "a device",
            };
            return Err(format!("{what} cannot be sent"));
        }
    };
    Ok(TreeEntry { path: OsBytes(bytes.to_vec()), kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("score-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("folder/lib")).unwrap();
            Self(path)
        }

        fn folder(&self) -> PathBuf {
            self.0.join("folder")
        }

        #[track_caller]
        fn assert_refused(&self, name: &str, reason: &str) {
            let text = FolderArchive::open(&self.folder()).unwrap_err();
            assert!(text.starts_with(name) && text.contains(reason), "{text}");
            fs::remove_file(self.folder().join(name)).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_archive_can_be_read_in_pieces_of_any_length() {
        let scratch = Scratch::new("pieces");
        for (name, size) in [("a", 0), ("b", 70_000), ("lib/c", 1), ("lib/d", 0), ("z", 5)] {
            let bytes: Vec<u8> = (0..size).map(|number| (number * 7) as u8).collect();
            fs::write(scratch.folder().join(name), bytes).unwrap();
        }
        let archive = FolderArchive::open(&scratch.folder()).unwrap();
        let digest = archive.digest().unwrap();
        for piece in [1000, 65_536, 1 << 20] {
            let (mut bytes, mut whole) = (vec![0; piece], Vec::new());
            loop {
                match archive.read_at(&mut bytes, whole.len() as u64).unwrap() {
                    0 => break,
                    count => whole.extend_from_slice(&bytes[..count]),
                }
            }
            assert_eq!(whole.len() as u64, digest.size);
            assert_eq!(*blake3::hash(&whole).as_bytes(), digest.hash);
        }
        assert_eq!(archive.read_at(&mut [0; 8], u64::MAX).unwrap(), 0);
        // The same directory has the same hash. After a file has grown, the hash differs.
        let again = || FolderArchive::open(&scratch.folder()).unwrap().digest().unwrap();
        assert_eq!(again(), digest);
        fs::write(scratch.folder().join("z"), "123456").unwrap();
        assert_ne!(again().hash, digest.hash);
        // The list was made before the file became shorter.
        fs::write(scratch.folder().join("z"), "1").unwrap();
        assert!(archive.digest().unwrap_err().contains("shorter"));
    }

    #[test]
    fn a_reply_is_bounded_for_any_requested_length() {
        assert_eq!(chunk_ranges(5, 1).collect::<Vec<_>>(), [(5, 1)]);
        let two = [(7, MAX_IO_CHUNK), (7 + MAX_IO_CHUNK as u64, 3)];
        assert_eq!(chunk_ranges(7, MAX_IO_CHUNK as u64 + 3).collect::<Vec<_>>(), two);
        assert_eq!(chunk_ranges(u64::MAX, u64::MAX).count() as u64, MAX_CHUNKS_PER_REPLY);
    }

    #[test]
    fn a_file_that_cannot_be_sent_is_named() {
        let scratch = Scratch::new("refused");
        let folder = scratch.folder();
        symlink("lib", folder.join("inside")).unwrap();
        assert!(FolderArchive::open(&folder).is_ok());
        for target in ["/etc/passwd", "../x", "lib/../../x", "inside/../../x"] {
            symlink(target, folder.join("link")).unwrap();
            scratch.assert_refused("link", "leads out of the");
        }
        let _listener = UnixListener::bind(folder.join("lib/socket")).unwrap();
        scratch.assert_refused("lib/socket", "a socket");
        nix::unistd::mkfifo(&folder.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        scratch.assert_refused("fifo", "a FIFO");
        assert!(FolderArchive::open(Path::new("/dev/null/x")).is_err());
        let sparse = File::create(folder.join("sparse")).unwrap();
        sparse.set_len(MAX_TREE_BYTES + 1).unwrap();
        let error = FolderArchive::open(&folder).unwrap_err();
        assert!(error.contains("more than 4096 MB"), "{error}");
    }
}
