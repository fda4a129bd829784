//! Finds the file of a program by its name. scrun searches PATH as a shell does. It first searches
//! the directory of its own binary for the commands of this package.

use score_proto::exit_code::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND};

use crate::pipeline::{Element, Word};
use crate::usage::{ErrorPosition, StartError, printable};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Commands of this package, which take precedence over PATH. `system` is not in the list, because
/// scrun passes its program to the daemon.
const COMMANDS: [&[u8]; 3] = [b"scatter", b"gather", b"pmtest"];

/// The directories in which programs are searched.
#[derive(Debug, Clone)]
pub struct ProgramSearchPath {
    /// The directory of scrun's own binary.
    pub scrun_directory: Option<PathBuf>,
    /// PATH.
    pub path: OsString,
    /// The working directory.
    pub directory: PathBuf,
}

impl ProgramSearchPath {
    /// The search path of this process.
    pub fn from_env() -> std::io::Result<Self> {
        let executable = std::env::current_exe().ok();
        Ok(Self {
            scrun_directory: executable.and_then(|exe| exe.parent().map(Path::to_path_buf)),
            path: std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            directory: std::env::current_dir()?,
        })
    }
}

/// The program of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// An executable file on this host.
    File(PathBuf),
    /// The built-in `system`: the other words are a sequential program and its arguments. Each host
    /// searches for that program itself.
    System {
        /// Whether `-host` is given: one process per host.
        per_host: bool,
        /// Number of words of the element that belong to `system` itself.
        skip: usize,
    },
}

/// Finds the program of an element.
///
/// # Errors
/// Exit code 2 for a wrong use of `system`, 127 for a program that is not found, 126 for one
/// that cannot be executed.
pub fn resolve(element: &Element, search_path: &ProgramSearchPath) -> Result<Program, StartError> {
    let name = &element.words[0];
    if name.text == b"system" {
        return system(&element.words);
    }
    let refuse = |code, reason: &str| {
        let line = format!("{}: {reason}", printable(OsStr::from_bytes(&name.text)));
        StartError { line, position: ErrorPosition::Argument(name.index, 0), code }
    };
    match find(&name.text, search_path) {
        Ok(path) => Ok(Program::File(path)),
        Err(Errno::ENOENT) if name.text.contains(&b'/') => {
            Err(refuse(EXIT_NOT_FOUND, "no such file"))
        }
        Err(Errno::ENOENT) => Err(refuse(EXIT_NOT_FOUND, "program not found in PATH")),
        Err(Errno::EISDIR) => Err(refuse(EXIT_NOT_EXECUTABLE, "is a directory, not a program")),
        Err(Errno::ENOEXEC) => Err(refuse(EXIT_NOT_EXECUTABLE, "not a regular file")),
        Err(Errno::EPERM) => {
            Err(refuse(EXIT_NOT_EXECUTABLE, "is not readable (scrun has to read it)"))
        }
        Err(Errno::EACCES) => {
            Err(refuse(EXIT_NOT_EXECUTABLE, "is not executable (permission denied)"))
        }
        Err(other) => Err(refuse(EXIT_NOT_EXECUTABLE, other.desc())),
    }
}

fn find(name: &[u8], search_path: &ProgramSearchPath) -> Result<PathBuf, Errno> {
    if COMMANDS.contains(&name)
        && let Some(scrun_directory) = &search_path.scrun_directory
        && let Ok(path) = executable(scrun_directory.join(OsStr::from_bytes(name)))
    {
        return Ok(path);
    }
    if name.contains(&b'/') {
        return executable(search_path.directory.join(OsStr::from_bytes(name)));
    }
    let mut error = Errno::ENOENT;
    for directory in search_path.path.as_bytes().split(|byte| *byte == b':') {
        let directory = search_path.directory.join(OsStr::from_bytes(directory));
        match executable(directory.join(OsStr::from_bytes(name))) {
            Ok(path) => return Ok(path),
            Err(refused @ (Errno::EACCES | Errno::EPERM)) => error = refused,
            Err(_) => {}
        }
    }
    Err(error)
}

/// Returns the path if it is an executable program.
fn executable(path: PathBuf) -> Result<PathBuf, Errno> {
    let kind = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) => return Err(error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)),
    };
    if kind.is_dir() {
        return Err(Errno::EISDIR);
    }
    if !kind.is_file() {
        return Err(Errno::ENOEXEC);
    }
    access(&path, AccessFlags::X_OK)?;
    access(&path, AccessFlags::R_OK).map_err(|_| Errno::EPERM)?;
    // Removes the `.` of ./program, which has no meaning in an absolute path.
    Ok(path.components().collect())
}

/// `system [-host] program [arguments]` (manual, system(6)).
fn system(words: &[Word]) -> Result<Program, StartError> {
    let position_of = |word: &Word| ErrorPosition::Argument(word.index, 0);
    let per_host = words.get(1).is_some_and(|word| word.text == b"-host");
    let skip = if per_host { 2 } else { 1 };
    match words.get(skip) {
        None => {
            let line = "system: no program is named (system [-host] program [arguments])";
            Err(StartError::usage(position_of(&words[skip - 1]), line))
        }
        Some(word) if word.text.starts_with(b"-") || word.text.is_empty() => {
            let text = printable(&OsString::from_vec(word.text.clone()));
            let line = format!("system: '{text}': unknown option (valid: -host)");
            Err(StartError::usage(position_of(word), line))
        }
        Some(_) => Ok(Program::System { per_host, skip }),
    }
}

#[cfg(test)]
mod tests;
