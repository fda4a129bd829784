//! The cluster key: 32 random bytes that only the daemons of a cluster hold. A holder of the key
//! can gain root access to every host of the cluster. Therefore a key file is used only if no other
//! user could have read it.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use score_sys::random::random_bytes;
use thiserror::Error;

/// Length of a key in bytes.
const KEY_LEN: usize = 32;
/// The prefix of a key's text.
const PREFIX: &str = "scorekey1-";
/// Length of the text: prefix, key and checksum.
const TEXT_LEN: usize = PREFIX.len() + 2 * KEY_LEN + 8;
/// Only the owner may read and write.
const FILE_MODE: u32 = 0o600;

/// The cluster key. It is never shown: `Debug` hides it, and only [`Key::to_text`] writes it out.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_LEN]);

/// The reason why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TextError {
    /// The text has the wrong length.
    #[error("a key has {TEXT_LEN} characters, this text has {0}: it may be truncated")]
    Length(usize),
    /// The text does not have the prefix of a key.
    #[error("not a cluster key: missing prefix {PREFIX:?}")]
    Prefix,
    /// The text contains a character that is not a hexadecimal digit.
    #[error("character {0} is not a hexadecimal digit")]
    Digit(usize),
    /// The checksum does not match.
    #[error("wrong checksum: a character was changed")]
    Checksum,
}

/// The reason why a key file cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be opened, read or written.
    #[error("key file {0}: {1}")]
    Io(PathBuf, io::Error),
    /// The kernel provides no random bytes for a new key.
    #[error("no random bytes for a key: {0}")]
    Random(io::Error),
    /// The file already exists.
    #[error("key file {0} already exists; remove it first if no host uses it")]
    Exists(PathBuf),
    /// The file is not a regular file.
    #[error("key file {0} is not a regular file")]
    NotRegular(PathBuf),
    /// Other users may read or write the file.
    #[error(
        "key file {0} has mode {1:03o}: other users may have read it; make a new key with mode 600"
    )]
    Mode(PathBuf, u32),
    /// The file belongs to another user.
    #[error("key file {0} belongs to uid {1}: it must belong to root or to uid {2}")]
    Owner(PathBuf, u32, u32),
    /// The content of the file is not a key.
    #[error("key file {0}: {1}")]
    Text(PathBuf, TextError),
}

impl Key {
    /// Generates a new key. In single-user mode the key exists as long as the job and is not stored
    /// in any file.
    ///
    /// # Errors
    /// If the kernel provides no random bytes.
    pub fn generate() -> io::Result<Key> {
        random_bytes().map(Key)
    }

    /// The key that consists of these bytes, for tests and simulations.
    pub const fn from_bytes(bytes: [u8; KEY_LEN]) -> Key {
        Key(bytes)
    }

    /// The bytes of the key, for the handshake and for deriving other keys.
    pub fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// The key as one word of text, with a checksum that reveals a truncated copy.
    pub fn to_text(&self) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{digits}{:08x}", checksum(&self.0))
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// One line with the name of the file and the problem.
    pub fn load(path: &Path) -> Result<Key, FileError> {
        let io_error = |error| FileError::Io(path.to_owned(), error);
        // The file type is checked before the file is opened, because opening a FIFO would wait for
        // a writer. The opened file is checked again.
        if !fs::metadata(path).map_err(io_error)?.is_file() {
            return Err(FileError::NotRegular(path.to_owned()));
        }
        let file = File::open(path).map_err(io_error)?;
        let metadata = file.metadata().map_err(io_error)?;
        let caller = nix::unistd::geteuid().as_raw();
        if !metadata.is_file() {
            return Err(FileError::NotRegular(path.to_owned()));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(FileError::Mode(path.to_owned(), metadata.mode() & 0o777));
        }
        if ![0, caller].contains(&metadata.uid()) {
            return Err(FileError::Owner(path.to_owned(), metadata.uid(), caller));
        }
        let mut bytes = Vec::new();
        file.take(TEXT_LEN as u64 + 64).read_to_end(&mut bytes).map_err(io_error)?;
        let text = String::from_utf8_lossy(&bytes);
        text.trim_end().parse().map_err(|error| FileError::Text(path.to_owned(), error))
    }

    /// Writes a new key file that only its owner can read. Never overwrites a file.
    ///
    /// # Errors
    /// One line with the name of the file and the problem.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        let io_error = |error| FileError::Io(path.to_owned(), error);
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(FILE_MODE).open(path);
        let mut file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => FileError::Exists(path.to_owned()),
            _ => io_error(error),
        })?;
        let result = file
            .set_permissions(fs::Permissions::from_mode(FILE_MODE))
            .and_then(|()| file.write_all(format!("{}\n", self.to_text()).as_bytes()))
            .and_then(|()| file.sync_all());
        result.map_err(|error| {
            // A partial key is useless and would block the next attempt.
            let _ = fs::remove_file(path);
            io_error(error)
        })
    }
}

/// Generates a key and writes it to a new file, for `scored -makekey FILE`.
///
/// # Errors
/// One line with the name of the file and the problem. An existing file is never overwritten.
pub fn make(path: &Path) -> Result<(), FileError> {
    let key = Key::generate().map_err(FileError::Random)?;
    key.save(path)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

impl FromStr for Key {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Key, TextError> {
        let Some(digits) = text.strip_prefix(PREFIX) else {
            let is_truncated = PREFIX.starts_with(text);
            return Err(if is_truncated {
                TextError::Length(text.len())
            } else {
                TextError::Prefix
            });
        };
        if text.len() != TEXT_LEN {
            return Err(TextError::Length(text.chars().count()));
        }
        let mut bytes = [0; KEY_LEN + 4];
        for (index, digit) in digits.chars().enumerate() {
            let error = TextError::Digit(PREFIX.len() + index + 1);
            let value = digit.to_digit(16).ok_or(error)? as u8;
            bytes[index / 2] = bytes[index / 2] << 4 | value;
        }
        let (key, sum) = bytes.split_first_chunk::<KEY_LEN>().expect("KEY_LEN + 4 bytes");
        if sum != checksum(key).to_be_bytes() {
            return Err(TextError::Checksum);
        }
        Ok(Key(*key))
    }
}

/// CRC-32 (reflected, polynomial 0xEDB88320). It protects against mistakes, not against attackers.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = !0u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 };
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory for one test, removed when the test ends.
    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("score-key-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("key")
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_checksum_is_the_standard_crc_32() {
        assert_eq!(checksum(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn two_keys_differ_and_are_not_shown() {
        let (one, two) = (Key::generate().unwrap(), Key::generate().unwrap());
        assert!(one != two);
        assert_eq!(format!("{one:?}"), "Key(hidden)");
    }

    #[test]
    fn a_new_key_is_decoded_unchanged_and_only_its_owner_can_read_it() {
        let directory = TempDir::new("made");
        make(&directory.file()).unwrap();
        let mode = fs::metadata(directory.file()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let key = Key::load(&directory.file()).unwrap();
        assert!(key == key.to_text().parse().unwrap());
    }

    #[test]
    fn a_key_is_never_overwritten() {
        let directory = TempDir::new("twice");
        make(&directory.file()).unwrap();
        let before = fs::read(directory.file()).unwrap();
        assert!(matches!(make(&directory.file()), Err(FileError::Exists(_))));
        assert_eq!(fs::read(directory.file()).unwrap(), before);
    }

    // Promise of `a_key_is_made_for_its_owner_alone_and_never_overwritten`.
    #[test]
    fn a_file_with_public_access_or_of_another_type_is_refused_with_the_reason() {
        let directory = TempDir::new("refused");
        make(&directory.file()).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o666] {
            fs::set_permissions(directory.file(), fs::Permissions::from_mode(mode)).unwrap();
            let reason = Key::load(&directory.file()).unwrap_err().to_string();
            assert!(reason.contains(&format!("mode {mode:03o}")), "{reason}");
        }
        assert!(matches!(Key::load(&directory.0), Err(FileError::NotRegular(_))));
        let missing = Key::load(&directory.0.join("none")).unwrap_err().to_string();
        assert!(missing.contains("none") && missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root can change the owner of a file");
        }
        let directory = TempDir::new("owner");
        make(&directory.file()).unwrap();
        std::os::unix::fs::chown(directory.file(), Some(12_345), None).unwrap();
        let reason = Key::load(&directory.file()).unwrap_err().to_string();
        assert!(reason.contains("uid 12345"), "{reason}");
    }

    // Promise of `a_key_is_made_for_its_owner_alone_and_never_overwritten`.
    #[test]
    fn every_truncated_or_changed_copy_is_noticed() {
        let text = Key::from_bytes(std::array::from_fn(|index| index as u8 * 7)).to_text();
        for length in 0..text.len() {
            assert!(text[..length].parse::<Key>().is_err(), "{length}");
        }
        for index in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[index] = if changed[index] == b'0' { b'1' } else { b'0' };
            assert!(String::from_utf8(changed).unwrap().parse::<Key>().is_err(), "{index}");
        }
        assert_eq!(format!("{text}0").parse::<Key>(), Err(TextError::Length(TEXT_LEN + 1)));
        assert_eq!("hello".parse::<Key>(), Err(TextError::Prefix));
        let foreign = text.replace("scorekey1-0007", "scorekey1-00é");
        assert_eq!(foreign.parse::<Key>(), Err(TextError::Digit(PREFIX.len() + 3)));
    }

    #[test]
    fn a_long_or_binary_file_is_not_a_key() {
        let directory = TempDir::new("long");
        for content in [vec![0xff; 200], vec![b'a'; 1 << 20], Vec::new()] {
            fs::write(directory.file(), content).unwrap();
            fs::set_permissions(directory.file(), fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(Key::load(&directory.file()), Err(FileError::Text(..))));
        }
    }

    #[test]
    fn only_the_beginning_of_a_long_file_is_read() {
        let directory = TempDir::new("beginning");
        make(&directory.file()).unwrap();
        fs::write(directory.file(), format!("{PREFIX}{}", "0".repeat(100 * TEXT_LEN))).unwrap();
        let Err(FileError::Text(_, TextError::Length(read_len))) = Key::load(&directory.file())
        else {
            panic!("the length is not the reason")
        };
        assert!(read_len < 2 * TEXT_LEN, "{read_len}");
    }
}
