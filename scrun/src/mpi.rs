//! Determines which programs of a job are MPI programs, and how they are started.

mod python;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use score_proto::env;
use score_proto::message::{Level, MPICH_LIBRARY_NAMES, MpiStart, OsBytes, ProgramKind};

use crate::elf::{self, LibrarySearchPath};
use crate::mpi_library::{MpiLibrary, Transport};
use crate::options::ScrunOptions;
use python::PythonEnvironment;

/// Whether the messages of a program are sent over PM.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PmUse {
    Pm,
    /// The MPI library of the program does not use libfabric.
    NoLibfabric,
    /// This environment variable selects another transport than PM.
    Excluded {
        variable: &'static str,
        value: String,
    },
}

/// The value of the option `mpi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MpiOption {
    /// The program and the libraries that it needs determine the kind. If the value is a directory,
    /// the program uses the MPI library in it.
    Auto,
    /// All programs are MPI programs that start by PMI, unless they use libscore.
    Mpich,
    /// All programs are MPI programs that start by PMIx, unless they use libscore.
    OpenMpi,
    /// There are no MPI programs.
    None,
}

/// The words that the option accepts.
pub const OPTION_VALUES: [&str; 4] = ["auto", "mpich", "openmpi", "none"];

/// Checks a value of the option that is the absolute path of a directory of libraries.
///
/// # Errors
/// If the directory has no MPI library with MPICH's interface.
pub fn check_library_folder(folder: &str) -> Result<(), String> {
    match MPICH_LIBRARY_NAMES.iter().any(|name| Path::new(folder).join(name).is_file()) {
        true => Ok(()),
        false => {
            let names = MPICH_LIBRARY_NAMES.join(", ");
            Err(format!("'{folder}': no MPI library with the interface of MPICH ({names})"))
        }
    }
}

impl MpiOption {
    fn of(options: &ScrunOptions) -> Self {
        match options.get("mpi").and_then(|given| given.value.as_deref()) {
            Some("mpich") => Self::Mpich,
            Some("openmpi") => Self::OpenMpi,
            Some("none") => Self::None,
            _ => Self::Auto,
        }
    }
}

/// The MPI library that a Python program would use. `None` if Python does not run `program`, or if
/// mpi4py would find no library.
pub fn library_of_python(program: &Path, loader: &mut LibrarySearchPath) -> Option<MpiLibrary> {
    let environment = PythonEnvironment::current();
    let interpreter = python::interpreter(program, &environment.path)?;
    let (library, path) = python::library_of(&interpreter, &environment, loader)?;
    Some(with_transport_of(library, &path, loader))
}

/// The MPI library that a program uses if it needs `library`. If the option `mpi` names a
/// directory, this is the library of that directory.
pub fn effective_library(
    options: &ScrunOptions,
    library: Option<MpiLibrary>,
    loader: &mut LibrarySearchPath,
) -> Option<MpiLibrary> {
    let value = options.get("mpi").and_then(|given| given.value.as_deref());
    let folder = value.map(Path::new).filter(|path| path.is_absolute());
    match (&library, folder) {
        (Some(MpiLibrary::Mpich(_)), Some(folder)) => {
            let path = MPICH_LIBRARY_NAMES.iter().map(|name| folder.join(name));
            let path = path.into_iter().find(|path| path.is_file())?;
            Some(with_transport_of(MpiLibrary::Mpich(Transport::Other), &path, loader))
        }
        _ => library,
    }
}

/// Adds to `library` how it can send messages. `path` is the path of the library.
fn with_transport_of(
    library: MpiLibrary,
    path: &Path,
    loader: &mut LibrarySearchPath,
) -> MpiLibrary {
    match elf::needs_of(path, loader) {
        Ok(needs) => library.with_needs(Some(path), needs.uses_libfabric, needs.pmix_library),
        Err(_) => library,
    }
}

impl PmUse {
    /// Whether a program with this library uses PM. `variable` reads an environment variable.
    fn of(library: Option<&MpiLibrary>, variable: impl Fn(&str) -> Option<String>) -> Self {
        let usable = library.filter(|library| library.transport() == Transport::Libfabric);
        let Some(library) = usable else { return Self::NoLibfabric };
        let excluded = env::pm_provider_env(library.start()).iter().find_map(|(name, chosen)| {
            let value = variable(name).filter(|value| value != chosen)?;
            Some(Self::Excluded { variable: name, value })
        });
        excluded.unwrap_or(Self::Pm)
    }
}

/// The value of a variable in the processes of the job: `-x` takes precedence over the environment.
fn job_variable(options: &ScrunOptions, name: &str) -> Option<String> {
    let of_option = options.rank_environment().into_iter().find_map(|OsBytes(variable)| {
        let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    });
    let of_process = || Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    of_option.or_else(of_process)
}

/// Whether scored sets up the processes of a program with this MPI library to use PM.
pub fn uses_pm(options: &ScrunOptions, library: Option<&MpiLibrary>) -> bool {
    PmUse::of(library, |name| job_variable(options, name)) == PmUse::Pm
}

/// The libpmix that a program of this kind loads, if it is known.
pub fn pmix_library(kind: ProgramKind, library: Option<&MpiLibrary>) -> Option<OsBytes> {
    match (kind, library?) {
        (ProgramKind::Mpi(MpiStart::Pmix), MpiLibrary::OpenMpi { pmix, .. }) => {
            Some(OsBytes(pmix.as_ref()?.as_os_str().as_bytes().to_vec()))
        }
        _ => None,
    }
}

/// Whether Python runs this program. Its files are not copied to other hosts, because an
/// interpreter finds its modules and the MPI library relative to its own path.
pub fn is_run_by_python(program: &Path) -> bool {
    python::interpreter(program, &PythonEnvironment::current().path).is_some()
}

/// The kind of a program that does not use libscore and needs this MPI library.
pub fn program_kind(options: &ScrunOptions, library: Option<&MpiLibrary>) -> ProgramKind {
    match (MpiOption::of(options), library) {
        (MpiOption::Mpich, _) => ProgramKind::Mpi(MpiStart::Pmi),
        (MpiOption::OpenMpi, _) => ProgramKind::Mpi(MpiStart::Pmix),
        (MpiOption::Auto, Some(library)) => ProgramKind::Mpi(library.start()),
        (MpiOption::None, _) | (MpiOption::Auto, None) => ProgramKind::Plain,
    }
}

/// Returns a message to the user about the start of this program, if there is one.
pub fn notice(
    options: &ScrunOptions,
    name: &str,
    library: Option<&MpiLibrary>,
) -> Option<(Level, String)> {
    match program_kind(options, library) {
        ProgramKind::Mpi(_) => {
            let text = match library {
                None => format!(
                    "{name}: its messages do not go over PM, because its MPI library is not \
                     known; start the program without a script"
                ),
                Some(_) => {
                    let pm_use = PmUse::of(library, |name| job_variable(options, name));
                    pm_notice(name, pm_use)?
                }
            };
            Some((Level::Info, text))
        }
        _ => None,
    }
}

/// The message to the user if the messages of the program are not sent over PM.
fn pm_notice(name: &str, pm_use: PmUse) -> Option<String> {
    match pm_use {
        PmUse::Pm => None,
        PmUse::NoLibfabric => Some(format!(
            "{name}: its messages do not go over PM, because its MPI library does not \
             seem to use libfabric; choose another library with -mpi=LIBDIR"
        )),
        PmUse::Excluded { variable, value } => Some(format!(
            "{name}: its messages do not go over PM, because {variable} is set to '{value}'; \
             unset it"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{OsStr, OsString};

    #[test]
    fn a_variable_with_another_choice_takes_precedence_and_is_named() {
        let mpich = Some(MpiLibrary::Mpich(Transport::Libfabric));
        let open_mpi = MpiLibrary::of_needed(b"libmpi.so.40");
        let open_mpi = open_mpi.map(|library| library.with_needs(None, true, None));
        let with = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        for (library, name, value, is_pm, word) in [
            (mpich.clone(), "HOME", "/", true, ""),
            (mpich.clone(), "FI_PROVIDER", "pm", true, ""),
            (mpich.clone(), "FI_PROVIDER", "tcp", false, "FI_PROVIDER is set to 'tcp'"),
            (mpich.clone(), "MPIR_CVAR_CH4_NETMOD", "ucx", false, "MPIR_CVAR_CH4_NETMOD"),
            (mpich, "MPIR_CVAR_NOLOCAL", "0", false, "MPIR_CVAR_NOLOCAL is set to '0'"),
            (Some(MpiLibrary::Mpich(Transport::Other)), "HOME", "/", false, "-mpi=LIBDIR"),
            (None, "FI_PROVIDER", "pm", false, "libfabric"),
            (open_mpi.clone(), "MPIR_CVAR_NOLOCAL", "0", true, ""),
            (open_mpi, "OMPI_MCA_pml", "ob1", false, "OMPI_MCA_pml is set to 'ob1'"),
        ] {
            let pm_use = PmUse::of(library.as_ref(), with(name, value));
            assert_eq!(pm_use == PmUse::Pm, is_pm, "{name}={value}");
            let text = pm_notice("a.out", pm_use).unwrap_or_default();
            assert!(text.contains(word), "{text}");
        }
    }

    fn options(words: &[&str]) -> ScrunOptions {
        let words: Vec<OsString> = words.iter().chain(&["program"]).map(OsString::from).collect();
        ScrunOptions::parse(&words, OsStr::new("")).unwrap().0
    }

    #[test]
    fn a_variable_of_the_job_excludes_pm() {
        let mpich = Some(MpiLibrary::Mpich(Transport::Libfabric));
        for (words, is_pm) in [
            (&["-x", "FI_PROVIDER=tcp"][..], false),
            (&["-x", "FI_PROVIDER=pm", "-x", "FI_PROVIDER=tcp"], true),
            (&["-x", "FI_PROVIDER_PATH=/lib"], true),
        ] {
            assert_eq!(uses_pm(&options(words), mpich.as_ref()), is_pm, "{words:?}");
        }
    }

    #[test]
    fn the_library_selects_the_mpi_interface_unless_an_option_selects_it() {
        let mpich = MpiLibrary::of_needed(b"libmpi.so.12");
        let openmpi = MpiLibrary::of_needed(b"libmpi.so.40");
        assert_eq!(MpiLibrary::of_needed(b"libmpich.so.12"), mpich);
        assert_eq!(MpiLibrary::of_needed(b"libmpi_abi.so.1"), mpich);
        assert_eq!(MpiLibrary::of_needed(b"libc.so.6"), None);
        let (mpich, openmpi) = (mpich.as_ref(), openmpi.as_ref());
        let (pmi, pmix) = (ProgramKind::Mpi(MpiStart::Pmi), ProgramKind::Mpi(MpiStart::Pmix));
        for (words, library, kind, level) in [
            (&[][..], mpich, pmi, Some(Level::Info)),
            (&[], openmpi, pmix, Some(Level::Info)),
            (&[], None, ProgramKind::Plain, None),
            (&["-mpi=auto"], mpich, pmi, Some(Level::Info)),
            (&["-mpi=mpich"], None, pmi, Some(Level::Info)),
            (&["-mpi=openmpi"], None, pmix, Some(Level::Info)),
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
