//! Selects the database file. Only this module of the crate accesses the disk.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// A function that reads files. Outside tests it is [`read_from_disk`].
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// The environment variable that names the database (score_doc 7, scorehosts.db).
pub const DATABASE_ENV: &str = "SCBDSERV";

/// The database that is used if no other is named.
pub const DEFAULT_DATABASE_PATH: &str = "/etc/score/scorehosts.db";

/// The list of hosts that are out of order, in the directory of the database.
pub const DEFECTIVE_HOSTS_FILE: &str = "scorehosts.defects";

/// The largest length of a database in bytes.
pub const MAX_DATABASE_LEN: u64 = 16 << 20;

/// Reads a whole file.
///
/// # Errors
/// The errors of the file system, and `FileTooLarge` beyond [`MAX_DATABASE_LEN`].
pub fn read_from_disk(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_DATABASE_LEN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_DATABASE_LEN {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {} MiB", MAX_DATABASE_LEN >> 20),
        ));
    }
    Ok(bytes)
}

/// The database to use, if there is one: the value of the option `-file`, otherwise the value of
/// SCBDSERV, otherwise the default if it exists.
///
/// # Errors
/// A value of SCBDSERV that is not a path.
pub fn locate(option: Option<&Path>, variable: Option<&OsStr>) -> Result<Option<PathBuf>, String> {
    if let Some(path) = option {
        return Ok(Some(path.to_owned()));
    }
    match variable.filter(|value| !value.is_empty()) {
        Some(value) if Path::new(value).is_absolute() => Ok(Some(value.into())),
        Some(value) => Err(format!(
            "{DATABASE_ENV}={}: not an absolute path; set it to the path of a scorehosts.db, \
             because cluster database servers are not supported",
            crate::error::printable(&value.to_string_lossy())
        )),
        None => Ok(Some(PathBuf::from(DEFAULT_DATABASE_PATH)).filter(|path| path.exists())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_overrides_the_variable_and_the_variable_must_be_a_path() {
        let option = Some(Path::new("here.db"));
        let variable = Some(OsStr::new("/there.db"));
        assert_eq!(locate(option, variable), Ok(Some("here.db".into())));
        assert_eq!(locate(None, variable), Ok(Some("/there.db".into())));
        let server = locate(None, Some(OsStr::new("serv1:9950"))).unwrap_err();
        assert!(server.contains("SCBDSERV=serv1:9950"), "{server}");
        let default = Path::new(DEFAULT_DATABASE_PATH);
        let found = Some(default.to_owned()).filter(|_| default.exists());
        assert_eq!(locate(None, Some(OsStr::new(""))), Ok(found));
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = read_from_disk(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_file_of_the_largest_length_is_read() {
        let name = format!("score-largest-database-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::File::create(&path).unwrap().set_len(MAX_DATABASE_LEN).unwrap();
        let bytes = read_from_disk(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.unwrap().len() as u64, MAX_DATABASE_LEN);
    }
}
