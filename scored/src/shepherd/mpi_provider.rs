//! The libraries with which MPI programs use PM. An MPI library uses libfabric, and libfabric loads
//! `libpm-fi.so`, a provider that is installed with scored. `libscore-preload.so` is preloaded in
//! all MPI programs, even if they do not use PM. `libscore-mpi.so` is preloaded for MPICH.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use score_proto::env;
use score_proto::message::{MpiStart, OsBytes};

use super::environment::environment_value;

/// The provider's file. Its directory contains nothing else, because libfabric loads all files of
/// the directory.
const PROVIDER_FILE: &str = "libfabric/libpm-fi.so";
const PRELOAD_FILE: &str = "libscore-preload.so";
/// The file defines all calls of MPI 4.0. If an MPI library lacks a call, a program that looks the
/// call up, such as mpi4py, would find it in this file. The program would then assume that the
/// library has the call. Open MPI lacks some calls, and does not get this file.
const CALLS_FILE: &str = "libscore-mpi.so";
/// Directories of these files, relative to the directory of scored: the build directory of cargo,
/// and the directory into which `cargo xtask install` installs.
const BASE_FOLDERS: [&str; 2] = ["", "../lib"];

/// The directory that contains scored.
fn own_folder() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_path_buf())
}

fn find_file(base: &Path, name: &str) -> Option<PathBuf> {
    BASE_FOLDERS.iter().map(|folder| base.join(folder).join(name)).find(|file| file.exists())
}

/// An environment variable that contains a list of paths. The paths of SCore precede the user's.
fn list(name: &str, own: &[&Path], given: &[OsBytes]) -> Vec<u8> {
    let own = own.iter().map(|path| path.as_os_str().as_bytes());
    let lists = own.chain(environment_value(given, name)).collect::<Vec<_>>().join(&b':');
    [name.as_bytes(), b"=", &lists].concat()
}

/// The preload variable for an MPI process that does not use PM. None: this host has no library to
/// preload.
pub fn preload_without_pm(given: &[OsBytes]) -> Option<Vec<u8>> {
    let file = find_file(&own_folder().ok()?, PRELOAD_FILE)?;
    Some(list(env::PRELOAD_ENV, &[&file], given))
}

/// The libraries of SCore that MPI programs load on this host.
#[derive(Debug, PartialEq, Eq)]
pub struct MpiProvider {
    /// The directory that contains the provider.
    folder: PathBuf,
    preload_file: PathBuf,
    calls_file: PathBuf,
}

impl MpiProvider {
    /// Finds the libraries.
    ///
    /// # Errors
    /// One line: a library is not installed on this host.
    pub fn find() -> Result<Self, String> {
        let base = own_folder().map_err(|error| format!("/proc/self/exe: {error}"))?;
        Self::find_from(&base).ok_or_else(|| {
            format!(
                "{PROVIDER_FILE}, {PRELOAD_FILE} or {CALLS_FILE} is neither in {0} nor in \
                 {0}/../lib on this host: install them there, or set MPIR_CVAR_CH4_NETMOD=ucx to \
                 run without PM",
                base.display()
            )
        })
    }

    fn find_from(base: &Path) -> Option<Self> {
        let find = |name| find_file(base, name);
        let folder = find(PROVIDER_FILE)?.parent()?.to_path_buf();
        let (preload_file, calls_file) = (find(PRELOAD_FILE)?, find(CALLS_FILE)?);
        Some(Self { folder, preload_file, calls_file })
    }

    /// The environment variables for a process. `start`: how its MPI library starts. `given`: the
    /// user's variables.
    pub fn environment(&self, start: MpiStart, given: &[OsBytes]) -> Vec<Vec<u8>> {
        let values = env::pm_provider_env(start)
            .iter()
            .map(|(name, value)| format!("{name}={value}").into_bytes());
        let unless_given = |name: &str, value: &str| {
            let is_given = environment_value(given, name).is_some();
            (!is_given).then(|| format!("{name}={value}").into_bytes())
        };
        let takes_no_signal = unless_given(env::UCX_DEBUG_SIGNAL_ENV, "0");
        let of_open_mpi = [env::OPEN_MPI_YIELD_ENV, env::OPEN_MPI_WINDOWS_ENV]
            .into_iter()
            .filter(|_| start == MpiStart::Pmix)
            .filter_map(|(name, value)| unless_given(name, value));
        let provider_path = list(env::PROVIDER_PATH_ENV, &[&self.folder], given);
        let preloaded: &[&Path] = match start {
            MpiStart::Pmi => &[&self.preload_file, &self.calls_file],
            MpiStart::Pmix => &[&self.preload_file],
        };
        let preload = list(env::PRELOAD_ENV, preloaded, given);
        values.chain([provider_path, preload]).chain(takes_no_signal).chain(of_open_mpi).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_is_found_beside_a_built_or_an_installed_scored() {
        let base = std::env::temp_dir().join(format!("score-mpi-provider-{}", std::process::id()));
        let bin = base.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        assert_eq!(MpiProvider::find_from(&bin), None);
        for folder in ["lib", "bin"] {
            let folder = base.join(folder);
            std::fs::create_dir_all(folder.join("libfabric")).unwrap();
            std::fs::write(folder.join("libfabric/libpm-fi.so"), "").unwrap();
            for file in ["libscore-mpi.so", "libscore-preload.so"] {
                std::fs::write(folder.join(file), "").unwrap();
            }
            let provider = MpiProvider::find_from(&bin).unwrap();
            assert_eq!(provider.folder.canonicalize().unwrap(), folder.join("libfabric"));
            assert_eq!(provider.calls_file.parent().unwrap().canonicalize().unwrap(), folder);
        }
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn values_of_the_user_take_precedence_and_lists_follow_the_lists_of_score() {
        let variables = |start: MpiStart, given: &[&str]| {
            let (folder, preload_file, calls_file) = ("/p".into(), "/l/x.so".into(), "/l/z".into());
            let given: Vec<OsBytes> = given.iter().map(|text| OsBytes((*text).into())).collect();
            let provider = MpiProvider { folder, preload_file, calls_file };
            String::from_utf8(provider.environment(start, &given).join(&b' ')).unwrap()
        };
        let values = "FI_PROVIDER=pm MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1";
        let given = ["FI_PROVIDER_PATH=/a:/b", "LD_PRELOAD=y.so", "UCX_DEBUG_SIGNO=1"];
        assert_eq!(
            variables(MpiStart::Pmi, &given),
            format!("{values} FI_PROVIDER_PATH=/p:/a:/b LD_PRELOAD=/l/x.so:/l/z:y.so")
        );
        assert_eq!(
            variables(MpiStart::Pmi, &[]),
            format!("{values} FI_PROVIDER_PATH=/p LD_PRELOAD=/l/x.so:/l/z UCX_DEBUG_SIGNO=0")
        );
        let of_open_mpi = variables(MpiStart::Pmix, &given);
        let end = " LD_PRELOAD=/l/x.so:y.so OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_osc=^ucx";
        assert!(of_open_mpi.ends_with(end), "{of_open_mpi}");
        let given = ["UCX_DEBUG_SIGNO=1", "OMPI_MCA_mpi_yield_when_idle=0", "OMPI_MCA_osc=rdma"];
        let of_open_mpi = variables(MpiStart::Pmix, &given);
        assert!(of_open_mpi.ends_with(" LD_PRELOAD=/l/x.so"), "{of_open_mpi}");
    }
}
