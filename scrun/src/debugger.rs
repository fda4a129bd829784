//! The option `debug`: selects the debugger for processes that fault or call sc_inspectme (manual
//! 2.4.4).

use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use score_proto::debugger::{DEFAULT_DEBUGGERS, DebuggerKind, DebuggerSpec};
use score_proto::message::OsBytes;

use crate::options::ScrunOptions;
use crate::options::value::DDT;
use crate::usage::StartError;

/// The file of gdb commands, in the working directory or installed.
const SCRIPT_NAME: &str = "score.gdb";
/// The installed file, relative to the directory of scrun.
const INSTALLED_SCRIPT: &str = "../share/score/score.gdb";

/// The debuggers that the options request, if any. `directory` is the working directory of the
/// user.
///
/// # Errors
/// If DDT is requested and not installed.
pub fn from_options(
    options: &ScrunOptions,
    directory: &Path,
) -> Result<Option<DebuggerSpec>, StartError> {
    let Some(given) = options.get("debug") else { return Ok(None) };
    if given.value.as_deref() == Some(DDT) {
        return match find_in_path(DDT) {
            Some(_) => {
                Ok(Some(DebuggerSpec { max_count: DEFAULT_DEBUGGERS, kind: DebuggerKind::Ddt }))
            }
            None => {
                let line = "debug=ddt: there is no program ddt in PATH; install DDT, or use \
                            -debug, which starts gdb";
                Err(StartError::usage(given.position, line))
            }
        };
    }
    let count = given.value.as_deref().and_then(|value| value.parse().ok());
    let max_count = count.unwrap_or(DEFAULT_DEBUGGERS);
    Ok(Some(DebuggerSpec { max_count, kind: kind_of_gdb(directory) }))
}

/// Chooses the first available way to run gdb: in an xterm, with the commands in the user's file,
/// on the terminal, or with the installed commands.
fn kind_of_gdb(directory: &Path) -> DebuggerKind {
    if std::env::var_os("DISPLAY").is_some_and(|display| !display.is_empty()) {
        return DebuggerKind::Xterm;
    }
    let script = |path: PathBuf| {
        let is_readable = std::fs::File::open(&path).is_ok();
        is_readable.then(|| DebuggerKind::Script(Some(OsBytes(path.into_os_string().into_vec()))))
    };
    if let Some(of_user) = script(directory.join(SCRIPT_NAME)) {
        return of_user;
    }
    if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        return DebuggerKind::Terminal;
    }
    let installed = std::env::current_exe().ok();
    let installed = installed.and_then(|scrun| script(scrun.parent()?.join(INSTALLED_SCRIPT)));
    installed.unwrap_or(DebuggerKind::Script(None))
}

/// Finds an executable file of this name in the directories of PATH.
fn find_in_path(name: &str) -> Option<PathBuf> {
    use nix::unistd::{AccessFlags, access};
    let path = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
    files.find(|file| {
        file.is_file() && access(file.as_os_str().as_bytes(), AccessFlags::X_OK).is_ok()
    })
}
