//! Which programs of a job are MPI programs, and how they are started.

mod python;

use std::path::Path;

use score_proto::message::{Level, MPICH_LIBRARY_NAMES, ProgramKind};

use crate::elf::LibrarySearchPath;
use crate::options::ScrunOptions;
use python::PythonEnvironment;

/// An MPI library, by the way in which its programs start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpiLibrary {
    /// MPICH and what shares its interface: by PMI.
    Mpich,
    /// Open MPI: by PMIx.
    OpenMpi,
}

/// The value of the option `mpi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MpiOption {
    /// Whatever the program and its libraries need. Or a folder was given: that, too, but with the
    /// MPI library of the folder.
    Auto,
    /// All programs are MPI programs that start by PMI, unless they use libscore.
    Mpich,
    /// There are no MPI programs.
    None,
}

/// The values of the option that are words.
pub const OPTION_VALUES: [&str; 3] = ["auto", "mpich", "none"];

/// Checks a value of the option that is the absolute path of a folder of libraries.
///
/// # Errors
/// There is no MPI library of MPICH's interface in it.
pub fn check_library_folder(folder: &str) -> Result<(), String> {
    match MPICH_LIBRARY_NAMES.iter().any(|name| Path::new(folder).join(name).exists()) {
        true => Ok(()),
        false => {
            let names = MPICH_LIBRARY_NAMES.join(", ");
            Err(format!("'{folder}' has neither of {names} (MPICH's library)"))
        }
    }
}

impl MpiLibrary {
    /// The MPI library of this name (DT_NEEDED), if it is one.
    pub fn of_needed(name: &[u8]) -> Option<Self> {
        match name {
            b"libmpi.so.12" | b"libmpich.so.12" | b"libmpi_abi.so.1" => Some(Self::Mpich),
            b"libmpi.so.40" => Some(Self::OpenMpi),
            _ => None,
        }
    }
}

impl MpiOption {
    fn of(options: &ScrunOptions) -> Self {
        match options.get("mpi").and_then(|given| given.value.as_deref()) {
            Some("mpich") => Self::Mpich,
            Some("none") => Self::None,
            _ => Self::Auto,
        }
    }
}

/// The MPI library that a Python program would use, if this is one.
pub fn library_of_python(program: &Path, loader: &mut LibrarySearchPath) -> Option<MpiLibrary> {
    let environment = PythonEnvironment::current();
    let interpreter = python::interpreter(program, &environment.path)?;
    python::library_of(&interpreter, &environment, loader)
}

/// Whether Python runs this program. Its files are not copied to other hosts: an interpreter finds
/// its modules, and the MPI library, by its own place.
pub fn is_run_by_python(program: &Path) -> bool {
    python::interpreter(program, &PythonEnvironment::current().path).is_some()
}

/// The kind of a program that does not use libscore and needs this MPI library.
pub fn program_kind(options: &ScrunOptions, library: Option<MpiLibrary>) -> ProgramKind {
    match (MpiOption::of(options), library) {
        (MpiOption::Mpich, _) | (MpiOption::Auto, Some(MpiLibrary::Mpich)) => ProgramKind::Mpi,
        (MpiOption::None, _) | (MpiOption::Auto, Some(MpiLibrary::OpenMpi) | None) => {
            ProgramKind::Plain
        }
    }
}

/// What the user should know about the start of this program.
pub fn notice(
    options: &ScrunOptions,
    name: &str,
    library: Option<MpiLibrary>,
) -> Option<(Level, String)> {
    match (MpiOption::of(options), library) {
        (MpiOption::None, _) => None,
        (MpiOption::Mpich, _) | (MpiOption::Auto, Some(MpiLibrary::Mpich)) => {
            let text = format!("{name}: its MPI library uses its own transports, not PM yet");
            Some((Level::Info, text))
        }
        (MpiOption::Auto, Some(MpiLibrary::OpenMpi)) => {
            let text = format!(
                "{name} needs Open MPI (libmpi.so.40), which scrun cannot start yet: each process \
                 is alone in its MPI_COMM_WORLD. Start it by mpiexec, or build it with MPICH"
            );
            Some((Level::Warning, text))
        }
        (MpiOption::Auto, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{OsStr, OsString};

    fn options(words: &[&str]) -> ScrunOptions {
        let words: Vec<OsString> = words.iter().chain(&["program"]).map(OsString::from).collect();
        ScrunOptions::parse(&words, OsStr::new("")).unwrap().0
    }

    #[test]
    fn the_library_decides_unless_the_option_does() {
        let mpich = MpiLibrary::of_needed(b"libmpi.so.12");
        let openmpi = MpiLibrary::of_needed(b"libmpi.so.40");
        assert_eq!(MpiLibrary::of_needed(b"libmpich.so.12"), mpich);
        assert_eq!(MpiLibrary::of_needed(b"libmpi_abi.so.1"), mpich);
        assert_eq!(MpiLibrary::of_needed(b"libc.so.6"), None);
        for (words, library, kind, level) in [
            (&[][..], mpich, ProgramKind::Mpi, Some(Level::Info)),
            (&[], openmpi, ProgramKind::Plain, Some(Level::Warning)),
            (&[], None, ProgramKind::Plain, None),
            (&["-mpi=auto"], mpich, ProgramKind::Mpi, Some(Level::Info)),
            (&["-mpi=mpich"], None, ProgramKind::Mpi, Some(Level::Info)),
            (&["-mpi=none"], mpich, ProgramKind::Plain, None),
            (&["-mpi=none"], openmpi, ProgramKind::Plain, None),
        ] {
            let options = options(words);
            assert_eq!(program_kind(&options, library), kind, "{words:?} {library:?}");
            let notice = notice(&options, "a.out", library);
            assert_eq!(notice.map(|(level, _)| level), level, "{words:?} {library:?}");
        }
    }
}
