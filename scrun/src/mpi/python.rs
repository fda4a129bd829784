//! Determines the MPI library that a Python program would use, without running anything. mpi4py
//! loads the first library in a fixed list of directories, and this module searches the same
//! directories.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::elf::LibrarySearchPath;
use crate::mpi_library::MpiLibrary;

/// The names that mpi4py tries in each directory, in this order.
const LIBRARY_NAMES: [&str; 3] = ["libmpi.so", "libmpi.so.12", "libmpi.so.40"];
/// Maximum number of bytes of a script's first line that are read. The kernel reads the same number
/// of bytes.
const MAX_SHEBANG_LEN: u64 = 256;

/// The environment variables that determine where mpi4py searches.
#[derive(Debug, Default)]
pub struct PythonEnvironment {
    /// PATH, for `#!/usr/bin/env python3`.
    pub path: OsString,
    /// MPI4PY_LIBMPI: files and directories.
    pub libmpi: Option<OsString>,
    /// The user's base directory: PYTHONUSERBASE, or ~/.local.
    pub user_base: Option<PathBuf>,
}

impl PythonEnvironment {
    /// The variables of this process.
    pub fn current() -> Self {
        let variable = std::env::var_os;
        let home_base = || Some(Path::new(&variable("HOME")?).join(".local"));
        Self {
            path: variable("PATH").unwrap_or_default(),
            libmpi: variable("MPI4PY_LIBMPI").filter(|text| !text.is_empty()),
            user_base: variable("PYTHONUSERBASE").map(PathBuf::from).or_else(home_base),
        }
    }
}

/// The Python interpreter that runs this program: the program itself, or the interpreter that the
/// first line of the script names.
pub fn interpreter(program: &Path, search_path: &OsStr) -> Option<PathBuf> {
    if is_python(program) {
        return Some(program.to_path_buf());
    }
    let mut start = Vec::new();
    File::open(program).ok()?.take(MAX_SHEBANG_LEN).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some(OsStr::new("env")) {
        return is_python(first).then(|| first.to_path_buf());
    }
    // Skip the options of env. `env -S` splits its argument into words, as is done here.
    let name = words.find(|word| !word.starts_with(b"-"))?;
    let name = Path::new(OsStr::from_bytes(name));
    is_python(name).then_some(())?;
    std::env::split_paths(search_path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn is_python(path: &Path) -> bool {
    let version = path.file_name().and_then(|name| name.as_bytes().strip_prefix(b"python"));
    version.is_some_and(|text| text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))
}

/// The library that mpi4py loads in this interpreter, and its path.
pub fn library_of(
    interpreter: &Path,
    environment: &PythonEnvironment,
    loader: &mut LibrarySearchPath,
) -> Option<(MpiLibrary, PathBuf)> {
    let prefixes = prefixes(interpreter, environment);
    if !prefixes.iter().any(|prefix| has_mpi4py(prefix)) {
        return None;
    }
    let is_searched = |prefix: &&PathBuf| *prefix != Path::new("/usr");
    let places: Vec<PathBuf> = match &environment.libmpi {
        Some(list) => std::env::split_paths(list).collect(),
        None => prefixes.iter().filter(is_searched).map(|prefix| prefix.join("lib")).collect(),
    };
    let in_places = places.into_iter().flat_map(|place| match place.is_dir() {
        true => LIBRARY_NAMES.map(|name| place.join(name)).to_vec(),
        false => vec![place],
    });
    let of_loader = LIBRARY_NAMES.iter().flat_map(|name| loader.loaded_by_name(name.as_bytes()));
    in_places.chain(of_loader).find_map(|path| Some((library_at(&path)?, path)))
}

/// The prefixes of the virtual environment, of the user and of the system, if Python uses them.
fn prefixes(interpreter: &Path, environment: &PythonEnvironment) -> Vec<PathBuf> {
    let prefix = |program: &Path| program.parent().and_then(Path::parent).map(Path::to_path_buf);
    let virtual_prefix = prefix(interpreter).filter(|one| one.join("pyvenv.cfg").is_file());
    let includes_others = virtual_prefix.as_ref().is_none_or(|one| includes_system(one));
    let base = interpreter.canonicalize().ok().and_then(|program| prefix(&program));
    let user_base = environment.user_base.clone().filter(|_| includes_others);
    let prefixes = [virtual_prefix, user_base, base.filter(|_| includes_others)];
    prefixes.into_iter().flatten().collect()
}

/// Whether mpi4py is installed below this prefix, in a directory that pip or Debian uses.
fn has_mpi4py(prefix: &Path) -> bool {
    let lib = prefix.join("lib");
    let local = prefix.join("local/lib");
    let versions = [&lib, &local].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    versions.flatten().flatten().any(|entry| {
        entry.file_name().as_bytes().starts_with(b"python")
            && ["site-packages", "dist-packages"]
                .iter()
                .any(|folder| entry.path().join(folder).join("mpi4py").is_dir())
    })
}

/// Whether a virtual environment was made with `--system-site-packages`.
fn includes_system(prefix: &Path) -> bool {
    let text = std::fs::read_to_string(prefix.join("pyvenv.cfg")).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once('='));
    lines.any(|(key, value)| {
        key.trim() == "include-system-site-packages" && value.trim().eq_ignore_ascii_case("true")
    })
}

/// The library at this path. Symbolic links are resolved, and the name of the resolved file
/// determines the kind of library.
fn library_at(path: &Path) -> Option<MpiLibrary> {
    let file = path.canonicalize().ok()?;
    let name = file.file_name()?.as_bytes();
    // The name may have a longer version, as in libmpi.so.12.5.0.
    let mut dots = name.iter().enumerate().filter(|(_, byte)| **byte == b'.');
    let end = dots.nth(2).map_or(name.len(), |(position, _)| position);
    MpiLibrary::of_needed(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::super::Transport;
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("score-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }

        fn library(&self, folder: &str, version: &str) {
            self.write(&format!("{folder}/libmpi.so.{version}.9.1"), "");
            let link = self.0.join(format!("{folder}/libmpi.so.{version}"));
            symlink(format!("libmpi.so.{version}.9.1"), link).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_interpreter_of_a_script_is_the_one_that_its_first_line_names() {
        let folder = Folder::new("shebang");
        let python = folder.write("bin/python3", "");
        let search_path = folder.0.join("bin").into_os_string();
        let interpreter_of = |text: &str| interpreter(&folder.write("script", text), &search_path);
        assert_eq!(interpreter_of("#!/usr/bin/env python3\nimport x"), Some(python.clone()));
        assert_eq!(interpreter_of("#!/usr/bin/env -S python3 -u\n"), Some(python.clone()));
        assert_eq!(
            interpreter_of("#! /opt/py/bin/python3.11 -u\n"),
            Some("/opt/py/bin/python3.11".into())
        );
        for other in
            ["#!/bin/sh\n", "#!/usr/bin/env perl\n", "import x", "#!", "", "#!/usr/bin/env"]
        {
            assert_eq!(interpreter_of(other), None, "{other}");
        }
        assert_eq!(interpreter(&python, OsStr::new("")), Some(python.clone()));
        let other = folder.write("bin/python3-config", "");
        assert_eq!(interpreter(&other, OsStr::new("")), None);
    }

    #[test]
    fn the_library_is_the_first_that_mpi4py_finds() {
        let folder = Folder::new("mpi4py");
        folder.write("real/bin/python3.11", "");
        folder.write("venv/pyvenv.cfg", "home = x\ninclude-system-site-packages = false\n");
        let mpi4py = folder.0.join("venv/lib/python3.11/site-packages/mpi4py");
        fs::create_dir_all(&mpi4py).unwrap();
        fs::create_dir(folder.0.join("venv/bin")).unwrap();
        let python = folder.0.join("venv/bin/python3");
        symlink(folder.0.join("real/bin/python3.11"), &python).unwrap();
        let mut environment = PythonEnvironment {
            user_base: Some(folder.0.join("user")),
            ..PythonEnvironment::default()
        };
        let llp = folder.0.join("llp").into_os_string();
        let mut loader = LibrarySearchPath::new(llp, "/nonexistent".into());
        let mut find = |environment: &PythonEnvironment| {
            library_of(&python, environment, &mut loader).map(|(library, _)| library)
        };
        let open_mpi = MpiLibrary::of_needed(b"libmpi.so.40");
        // The system may or may not have libraries of its own.
        folder.library("llp", "40");
        assert_eq!(find(&environment), open_mpi);
        folder.library("user/lib", "12");
        assert_eq!(find(&environment), open_mpi, "not of a closed environment");
        folder.write("venv/pyvenv.cfg", "include-system-site-packages = true\n");
        assert_eq!(find(&environment), Some(MpiLibrary::Mpich(Transport::Other)));
        folder.library("venv/lib", "40");
        assert_eq!(find(&environment), open_mpi);
        fs::remove_dir(&mpi4py).unwrap();
        assert_eq!(find(&environment), None, "it has no mpi4py");
        fs::create_dir_all(folder.0.join("user/lib/python3.11/site-packages/mpi4py")).unwrap();
        assert_eq!(find(&environment), open_mpi);
        environment.libmpi = Some(folder.0.join("user/lib/libmpi.so.12").into_os_string());
        assert_eq!(find(&environment), Some(MpiLibrary::Mpich(Transport::Other)));
        environment.libmpi = Some(folder.0.join("venv/lib").into_os_string());
        assert_eq!(find(&environment), open_mpi);
    }
}
