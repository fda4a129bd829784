//! How MPI programs come to use PM: their library uses libfabric, and that loads `libpm-fi.so`, a
//! provider that is installed with scored.

use std::path::{Path, PathBuf};

use score_proto::env;
use score_proto::message::OsBytes;

use super::spawn_queue::environment_value;

/// The provider's file, in a folder that has nothing else, because libfabric loads all that is
/// there.
const PROVIDER_FILE: &str = "libfabric/libpm-fi.so";
/// Where that folder is, seen from the folder of scored: where cargo builds, and where
/// `cargo xtask install` installs.
const BASE_FOLDERS: [&str; 2] = ["", "../lib"];

/// The folder of the provider.
///
/// # Errors
/// One line: it is not on this host.
pub fn folder() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let base = program.parent().unwrap_or(Path::new("/"));
    find(base).ok_or_else(|| {
        format!(
            "there is no {PROVIDER_FILE} in {0} or {0}/../lib on this host: install it there, or \
             set MPIR_CVAR_CH4_NETMOD=ucx to run without PM",
            base.display()
        )
    })
}

fn find(base: &Path) -> Option<PathBuf> {
    let files = BASE_FOLDERS.map(|folder| base.join(folder).join(PROVIDER_FILE));
    let file = files.into_iter().find(|file| file.exists())?;
    file.parent().map(Path::to_path_buf)
}

/// The variables of a process, whose user has set `given`.
pub fn environment(folder: &Path, given: &[OsBytes]) -> Vec<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let values = env::PM_PROVIDER_ENV.map(|(name, value)| format!("{name}={value}").into_bytes());
    let own = Some(folder.as_os_str().as_bytes());
    let folders = [own, environment_value(given, env::PROVIDER_PATH_ENV)];
    let folders = folders.into_iter().flatten().collect::<Vec<_>>().join(&b':');
    let path = [env::PROVIDER_PATH_ENV.as_bytes(), b"=", &folders].concat();
    values.into_iter().chain([path]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_is_where_scored_was_built_or_installed() {
        let base = std::env::temp_dir().join(format!("score-mpi-provider-{}", std::process::id()));
        let bin = base.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        assert_eq!(find(&bin), None);
        for folder in ["lib/libfabric", "bin/libfabric"] {
            let folder = base.join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("libpm-fi.so"), "").unwrap();
            assert_eq!(find(&bin).unwrap().canonicalize().unwrap(), folder);
        }
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_folder_of_the_user_comes_behind_ours() {
        let given = [OsBytes(b"FI_PROVIDER_PATH=/a:/b".to_vec())];
        let text = |variables: Vec<Vec<u8>>| String::from_utf8(variables.join(&b' ')).unwrap();
        let variables = text(environment(Path::new("/p"), &given));
        assert!(variables.ends_with("FI_PROVIDER_PATH=/p:/a:/b"), "{variables}");
        let variables = text(environment(Path::new("/p"), &[]));
        assert_eq!(
            variables,
            "FI_PROVIDER=pm MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER_PATH=/p"
        );
    }
}
