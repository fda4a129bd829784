//! `-mpi=LIBDIR`: programs of MPICH run on the MPI library of another folder. All these libraries
//! have one interface, under two names. A folder of links in the job's directory comes first in the
//! library path of the processes. To the dynamic loader the library is in that folder, and the
//! library may look for others in folders beside itself (`$ORIGIN/mpich` of the wheel on PyPI,
//! ld.so(8)), so these folders are linked, too.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use score_proto::message::{JobSpec, MPICH_LIBRARY_NAMES};

/// The folder of links in the job's directory.
const LINKS_FOLDER: &str = "mpi-library";

/// The folder that the option `mpi` names, if it names one.
fn library_folder(spec: &JobSpec) -> Option<&Path> {
    let (_, value) = spec.options.iter().find(|(key, _)| key == "mpi")?;
    value.as_deref().map(Path::new).filter(|path| path.is_absolute())
}

/// Makes the links for a job whose option `mpi` names a folder. Returns the folder of links.
///
/// # Errors
/// One line: there is no such library on this host, or the links cannot be made.
pub fn link_libraries(spec: &JobSpec, job_directory: &Path) -> Result<Option<PathBuf>, String> {
    let Some(folder) = library_folder(spec) else { return Ok(None) };
    let libraries = MPICH_LIBRARY_NAMES.map(|name| folder.join(name));
    let Some(library) = libraries.iter().find(|path| path.exists()) else {
        let names = MPICH_LIBRARY_NAMES.join(" and no ");
        return Err(format!("mpi={}: no {names} on this host", folder.display()));
    };
    let links_folder = job_directory.join(LINKS_FOLDER);
    let make_links = || -> io::Result<()> {
        // Made by an earlier stage.
        ignore_existing(fs::create_dir(&links_folder))?;
        MPICH_LIBRARY_NAMES
            .iter()
            .try_for_each(|name| ignore_existing(symlink(library, links_folder.join(name))))?;
        let entries = library.canonicalize()?.parent().map(fs::read_dir).transpose()?;
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            if entry.path().is_dir() {
                ignore_existing(symlink(entry.path(), links_folder.join(entry.file_name())))?;
            }
        }
        Ok(())
    };
    make_links().map_err(|error| format!("{}: {error}", links_folder.display()))?;
    Ok(Some(links_folder))
}

fn ignore_existing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_lead_to_the_library_of_the_folder_and_it_finds_its_own() {
        let base = std::env::temp_dir().join(format!("score-mpi-library-{}", std::process::id()));
        let (folder, job) = (base.join("lib"), base.join("job"));
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir(&job).unwrap();
        let spec = |value: &str| JobSpec {
            options: vec![("mpi".to_owned(), Some(value.to_owned()))],
            ..JobSpec::default()
        };
        let of_folder = spec(folder.to_str().unwrap());
        assert!(link_libraries(&of_folder, &job).unwrap_err().contains("no libmpi.so.12"));
        fs::write(folder.join("libmpich.so.12"), "").unwrap();
        fs::create_dir(folder.join("mpich")).unwrap();
        fs::write(folder.join("mpich/libfabric.so.1"), "").unwrap();
        for _ in 0..2 {
            let links = link_libraries(&of_folder, &job).unwrap().unwrap();
            for name in MPICH_LIBRARY_NAMES {
                let target = fs::read_link(links.join(name)).unwrap();
                assert_eq!(target, folder.join("libmpich.so.12"));
            }
            assert!(links.join("mpich/libfabric.so.1").exists());
        }
        for other in [spec("auto"), spec("lib"), JobSpec::default()] {
            assert_eq!(link_libraries(&other, &job), Ok(None));
        }
        fs::remove_dir_all(&base).unwrap();
    }
}
