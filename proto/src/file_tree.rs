//! A directory as one file: a length, a list of the entries of the directory, and the contents of
//! its files one after the other. A directory can thus be copied to the hosts of a job like a
//! program, by the hash of its bytes (`scrun -tool-files`). The list comes from another host.
//! [`FileTree::check`] decides whether it is a valid directory, before anything is created.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::message::OsBytes;

/// Largest number of files, directories and links in a directory and below.
pub const MAX_TREE_ENTRIES: usize = 100_000;
/// Length in bytes of the longest path below the directory, and of the longest target of a link.
pub const MAX_TREE_PATH: usize = 1024;
/// Length in bytes of the longest name in a directory. It is the limit of Linux.
pub const MAX_TREE_NAME: usize = 255;
/// Largest total size of the files of a directory, in bytes.
pub const MAX_TREE_BYTES: u64 = 4 << 30;
/// Size of the longest encoded list in bytes.
pub const MAX_TREE_LIST: usize = 32 << 20;
/// Number of bytes in front of the list. They contain its length.
pub const TREE_PREFIX: usize = 8;
/// Largest size of the whole file in bytes.
pub const MAX_TREE_FILE: u64 = (TREE_PREFIX + MAX_TREE_LIST) as u64 + MAX_TREE_BYTES;
/// Permission bits that are kept. Bits such as set-user-ID are not permitted.
pub const TREE_MODE_MASK: u16 = 0o777;

/// Largest number of links that are followed in the path of one link, as in Linux.
const MAX_FOLLOWED_LINKS: usize = 40;
/// Largest number of names that are examined for all links together.
const MAX_LINK_NAMES: usize = 4_000_000;

/// The entries of a directory and below. Each directory precedes its own entries.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileTree {
    /// The files, directories and links.
    pub entries: Vec<TreeEntry>,
}

/// A file, a directory or a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeEntry {
    /// The path below the directory: names that are separated by one slash each.
    pub path: OsBytes,
    /// The kind of entry.
    pub kind: TreeEntryKind,
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeEntryKind {
    /// A directory.
    Directory {
        /// The permission bits of the directory.
        mode: u16,
    },
    /// A file.
    File {
        /// The permission bits of the file.
        mode: u16,
        /// The length of the file in bytes.
        size: u64,
    },
    /// A symbolic link.
    Link {
        /// The target of the link: a relative path that stays in the directory.
        target: OsBytes,
    },
}

/// Why a directory must not be copied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The bytes are not a list.
    #[error("its list of files cannot be read")]
    Malformed,
    /// The list is too long.
    #[error("its list of files has {0} bytes; the limit is {MAX_TREE_LIST}")]
    ListLength(u64),
    /// There are more entries than [`MAX_TREE_ENTRIES`].
    #[error("it has more than {MAX_TREE_ENTRIES} files, directories and links")]
    TooManyEntries,
    /// There are more bytes than [`MAX_TREE_BYTES`].
    #[error("it has more than {} MB", MAX_TREE_BYTES >> 20)]
    TooManyBytes,
    /// The sizes in the list do not match the number of bytes.
    #[error(
        "its files have {expected} bytes according to its list, but {found} bytes were received"
    )]
    Sum {
        /// The sum of the sizes in the list.
        expected: u64,
        /// The number of bytes.
        found: u64,
    },
    /// Checking the links takes too long.
    #[error("its links lead through too many directories")]
    TooManyNames,
    /// An entry is invalid.
    #[error("{}: {reason}", String::from_utf8_lossy(&path.0).escape_debug())]
    Entry {
        /// The path of the entry.
        path: OsBytes,
        /// The reason.
        reason: &'static str,
    },
}

/// The kind of a path in the directory, for links through it.
#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    Directory,
    File,
    Link(&'a [u8]),
}

impl FileTree {
    /// The length and the list, which precede the contents.
    ///
    /// # Errors
    /// The list is too long.
    pub fn encode(&self) -> Result<Vec<u8>, TreeError> {
        let list = postcard::to_stdvec(self).map_err(|_| TreeError::Malformed)?;
        if list.len() > MAX_TREE_LIST {
            return Err(TreeError::ListLength(list.len() as u64));
        }
        let mut bytes = (list.len() as u64).to_le_bytes().to_vec();
        bytes.extend(list);
        Ok(bytes)
    }

    /// The length of the list after these bytes.
    ///
    /// # Errors
    /// The list is too long.
    pub fn list_length(prefix: [u8; TREE_PREFIX]) -> Result<usize, TreeError> {
        let length = u64::from_le_bytes(prefix);
        let bounded = usize::try_from(length).ok().filter(|length| *length <= MAX_TREE_LIST);
        bounded.ok_or(TreeError::ListLength(length))
    }

    /// Decodes and checks a list. `content_length`: the number of bytes after the list.
    ///
    /// # Errors
    /// The list is not a valid directory.
    pub fn decode(list: &[u8], content_length: u64) -> Result<Self, TreeError> {
        let (tree, rest): (Self, _) =
            postcard::take_from_bytes(list).map_err(|_| TreeError::Malformed)?;
        if !rest.is_empty() {
            return Err(TreeError::Malformed);
        }
        let expected = tree.check()?;
        if expected != content_length {
            return Err(TreeError::Sum { expected, found: content_length });
        }
        Ok(tree)
    }

    /// Checks that the tree can be created in any directory without leaving it. Each path must
    /// occur once and be in a directory of the list, and no link may lead out of the tree. Returns
    /// the sum of the sizes of its files.
    ///
    /// # Errors
    /// The first invalid entry.
    pub fn check(&self) -> Result<u64, TreeError> {
        if self.entries.len() > MAX_TREE_ENTRIES {
            return Err(TreeError::TooManyEntries);
        }
        let mut places: HashMap<&[u8], Place<'_>> = HashMap::new();
        let mut sum: u64 = 0;
        for entry in &self.entries {
            let path = entry.path.0.as_slice();
            let refused = |reason| TreeError::Entry { path: entry.path.clone(), reason };
            check_path(path).map_err(refused)?;
            match parent(path).map(|parent| places.get(parent)) {
                None | Some(Some(Place::Directory)) => {}
                Some(_) => return Err(refused("it is not in a directory of the list")),
            }
            let place = match &entry.kind {
                TreeEntryKind::Directory { mode } | TreeEntryKind::File { mode, .. }
                    if mode & !TREE_MODE_MASK != 0 =>
                {
                    return Err(refused("its mode has more than permission bits"));
                }
                TreeEntryKind::Directory { .. } => Place::Directory,
                TreeEntryKind::File { size, .. } => {
                    sum = sum.saturating_add(*size);
                    Place::File
                }
                TreeEntryKind::Link { target } => Place::Link(&target.0),
            };
            if sum > MAX_TREE_BYTES {
                return Err(TreeError::TooManyBytes);
            }
            if places.insert(path, place).is_some() {
                return Err(refused("it is listed twice"));
            }
        }
        let mut names_left = MAX_LINK_NAMES;
        for entry in &self.entries {
            if let TreeEntryKind::Link { target } = &entry.kind {
                let refused = |reason| TreeError::Entry { path: entry.path.clone(), reason };
                let checked = check_link(&entry.path.0, &target.0, &places, &mut names_left);
                if names_left == 0 {
                    return Err(TreeError::TooManyNames);
                }
                checked.map_err(refused)?;
            }
        }
        Ok(sum)
    }
}

/// The directory of a path. Returns `None` for a path at the top of the tree.
fn parent(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    Some(&path[..slash])
}

fn check_path(path: &[u8]) -> Result<(), &'static str> {
    if path.len() > MAX_TREE_PATH {
        return Err("its path is longer than 1024 bytes");
    }
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." | b".." => return Err("its path has an invalid part"),
            name if name.contains(&0) => return Err("its path has a NUL byte"),
            name if name.len() > MAX_TREE_NAME => return Err("its name is longer than 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}

const LEADS_OUT: &str = "it is a link that leads out of the directory";

/// Follows a link, and each link in its path, as Linux does. A path that does not exist may be
/// created later: `..` then removes its last name.
fn check_link<'a>(
    link: &[u8],
    target: &'a [u8],
    places: &HashMap<&[u8], Place<'a>>,
    names_left: &mut usize,
) -> Result<(), &'static str> {
    let mut position = parent(link).unwrap_or_default().to_vec();
    let mut followed = 1;
    // The names that still have to be followed. The next name is the last one.
    let mut names = Vec::new();
    push_target(&mut names, target)?;
    while let Some(name) = names.pop() {
        *names_left = names_left.saturating_sub(1);
        if position.len() > MAX_TREE_PATH + MAX_TREE_NAME || *names_left == 0 {
            return Err("it is a link to a path that is too long");
        }
        match name {
            b"" | b"." => continue,
            b".." if position.is_empty() => return Err(LEADS_OUT),
            b".." => {
                position.truncate(parent(&position).unwrap_or_default().len());
                continue;
            }
            name => {
                if !position.is_empty() {
                    position.push(b'/');
                }
                position.extend_from_slice(name);
            }
        }
        if let Some(Place::Link(next)) = places.get(position.as_slice()) {
            followed += 1;
            if followed > MAX_FOLLOWED_LINKS {
                return Err("it is a link through more than 40 links, or in a loop");
            }
            position.truncate(parent(&position).unwrap_or_default().len());
            push_target(&mut names, next)?;
        }
    }
    Ok(())
}

/// Adds the names of a link's target, so that they are followed next.
fn push_target<'a>(names: &mut Vec<&'a [u8]>, target: &'a [u8]) -> Result<(), &'static str> {
    if target.first() == Some(&b'/') {
        return Err(LEADS_OUT);
    }
    if target.is_empty() || target.len() > MAX_TREE_PATH || target.contains(&0) {
        return Err(
            "it is a link whose target is empty, longer than 1024 bytes, or has a NUL byte",
        );
    }
    names.extend(target.split(|byte| *byte == b'/').rev());
    Ok(())
}

#[cfg(test)]
#[path = "file_tree_tests.rs"]
mod tests;
