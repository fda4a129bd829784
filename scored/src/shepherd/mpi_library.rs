//! `-mpi=LIBDIR`: MPICH programs run with the MPI library of another directory. All libraries that
//! are compatible with MPICH have the same interface, under two names.
//!
//! The shepherd creates a directory of links in the job's directory, and puts it first in the
//! library path of the processes. For the dynamic loader, the library is then in that directory.
//! The library may look for other libraries in directories next to it (`$ORIGIN/mpich` in the wheel
//! of PyPI, ld.so(8)). These directories are therefore linked as well.
//!
//! The shepherd has the user's rights here, and the user chooses the directory. The number of
//! entries that are read, and the time for reading, are therefore limited: the directory may be on
//! a file server that does not answer.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use score_proto::message::{JobSpec, MPICH_LIBRARY_NAMES};

/// The directory of links in the job's directory.
const LINKS_FOLDER: &str = "mpi-library";

/// Limits on the work in the library's directory.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Number of entries of the directory that are read.
    entries: usize,
    /// Number of subdirectories that are linked.
    folders: usize,
    /// Time for the whole work. The shepherd does nothing else in this time.
    time: Duration,
}

/// A directory with all libraries of a distribution, such as /usr/lib64, has a few thousand entries
/// and a few hundred subdirectories. Reading them takes milliseconds, or a second on a slow file
/// server.
const LIMITS: Limits = Limits { entries: 65_536, folders: 4096, time: Duration::from_secs(5) };

/// The directory that the option `mpi` names, if any.
fn library_folder(spec: &JobSpec) -> Option<&Path> {
    let (_, value) = spec.options.iter().find(|(key, _)| key == "mpi")?;
    value.as_deref().map(Path::new).filter(|path| path.is_absolute())
}

/// Creates the links for a job whose option `mpi` names a directory. Returns the directory of
/// links.
///
/// # Errors
/// One line: this host has no such library, or the links cannot be created.
pub fn link_libraries(spec: &JobSpec, job_directory: &Path) -> Result<Option<PathBuf>, String> {
    let Some(folder) = library_folder(spec) else { return Ok(None) };
    let links_folder = job_directory.join(LINKS_FOLDER);
    make_links_in_time(folder, &links_folder, LIMITS)
        .map_err(|reason| format!("mpi={}: {reason} on this host", folder.display()))?;
    Ok(Some(links_folder))
}

/// Runs [`make_links`] in a separate thread. If a file server blocks the thread, the thread is left
/// running until the shepherd exits.
fn make_links_in_time(folder: &Path, links_folder: &Path, limits: Limits) -> Result<(), String> {
    let (sender, receiver) = channel();
    let (folder, links_folder) = (folder.to_owned(), links_folder.to_owned());
    let make = move || {
        // Fails if the caller no longer waits.
        let _ = sender.send(make_links(&folder, &links_folder, limits));
    };
    let thread = thread::Builder::new().name("mpi-library".to_owned());
    thread.spawn(make).map_err(|error| format!("cannot start a thread: {error}"))?;
    receiver.recv_timeout(limits.time).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => {
            let seconds = limits.time.as_secs_f32();
            let cause = "its file server may be slow";
            Err(format!("the directory was not read within {seconds} s; {cause}"))
        }
        RecvTimeoutError::Disconnected => Err("the directory cannot be read".to_owned()),
    })
}

fn make_links(folder: &Path, links_folder: &Path, limits: Limits) -> Result<(), String> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path}: {error}")
    };
    let libraries = MPICH_LIBRARY_NAMES.map(|name| folder.join(name));
    // is_file() rejects a FIFO, which would block the dynamic loader.
    let Some(library) = libraries.iter().find(|path| path.is_file()) else {
        return Err(format!("no {}", MPICH_LIBRARY_NAMES.join(" and no ")));
    };
    // An earlier stage may have created the directory.
    ignore_existing(fs::create_dir(links_folder)).map_err(failed(links_folder))?;
    let link = |target: &Path, name: &Path| {
        let path = links_folder.join(name);
        ignore_existing(symlink(target, &path)).map_err(failed(&path))
    };
    MPICH_LIBRARY_NAMES.iter().try_for_each(|name| link(library, Path::new(name)))?;
    let file = library.canonicalize().map_err(failed(library))?;
    let Some(folder) = file.parent() else { return Ok(()) };
    let mut folder_count = 0;
    for (count, entry) in fs::read_dir(folder).map_err(failed(folder))?.enumerate() {
        let entry = entry.map_err(failed(folder))?;
        if count == limits.entries {
            let (folder, limit) = (folder.display(), limits.entries);
            return Err(format!("{folder} has more than {limit} entries, which is the limit"));
        }
        if !is_folder(&entry) {
            continue;
        }
        if folder_count == limits.folders {
            let (folder, limit) = (folder.display(), limits.folders);
            return Err(format!("{folder} has more than {limit} directories, which is the limit"));
        }
        folder_count += 1;
        link(&entry.path(), Path::new(&entry.file_name()))?;
    }
    Ok(())
}

/// Whether an entry is a directory or a symbolic link to one. For most entries this needs no system
/// call.
fn is_folder(entry: &fs::DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_symlink() => entry.path().is_dir(),
        Ok(kind) => kind.is_dir(),
        // The entry has been removed in the meantime.
        Err(_) => false,
    }
}

fn ignore_existing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::stat::Mode;
    use nix::unistd::{geteuid, mkfifo};

    use super::*;

    /// Directories for a test. They are removed when this value is dropped.
    struct Folders {
        base: PathBuf,
        library: PathBuf,
        job: PathBuf,
    }

    impl Folders {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("score-mpi-library-{}-{number}", std::process::id());
            let base = std::env::temp_dir().join(name);
            let (library, job) = (base.join("lib"), base.join("job"));
            fs::create_dir_all(&library).unwrap();
            fs::create_dir(&job).unwrap();
            Self { base, library, job }
        }

        fn spec(value: &str) -> JobSpec {
            JobSpec {
                options: vec![("mpi".to_owned(), Some(value.to_owned()))],
                ..JobSpec::default()
            }
        }

        fn link(&self) -> Result<Option<PathBuf>, String> {
            link_libraries(&Self::spec(self.library.to_str().unwrap()), &self.job)
        }

        fn links(&self) -> PathBuf {
            self.job.join(LINKS_FOLDER)
        }
    }

    impl Drop for Folders {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.base);
        }
    }

    #[test]
    fn both_names_of_mpich_link_to_the_library_and_its_subdirectories_are_linked() {
        let folders = Folders::new();
        let library = folders.library.join("libmpich.so.12");
        assert!(folders.link().unwrap_err().contains("no libmpi.so.12"));
        fs::write(&library, "").unwrap();
        fs::create_dir(folders.library.join("mpich")).unwrap();
        fs::write(folders.library.join("mpich/libfabric.so.1"), "").unwrap();
        for _ in 0..2 {
            let links = folders.link().unwrap().unwrap();
            for name in MPICH_LIBRARY_NAMES {
                assert_eq!(fs::read_link(links.join(name)).unwrap(), library);
            }
            assert!(links.join("mpich/libfabric.so.1").exists());
        }
        for other in [Folders::spec("auto"), Folders::spec("lib"), JobSpec::default()] {
            assert_eq!(link_libraries(&other, &folders.job), Ok(None));
        }
    }

    // Promise of `a_program_that_needs_libmpich_uses_pm_with_the_library_of_a_directory`.
    #[test]
    fn only_directories_are_linked_and_no_file_is_opened() {
        let folders = Folders::new();
        let path = |name: &str| folders.library.join(name);
        mkfifo(&path("libmpi.so.12"), Mode::S_IRWXU).unwrap();
        assert!(folders.link().unwrap_err().contains("no libmpi.so.12"), "a FIFO is no library");
        symlink("libmpich.so.12", path("libmpich.so.12")).unwrap();
        assert!(folders.link().unwrap_err().contains("no libmpi.so.12"), "a loop is no library");
        fs::remove_file(path("libmpich.so.12")).unwrap();
        fs::write(path("libmpich.so.12"), "").unwrap();
        symlink("loop", path("loop")).unwrap();
        symlink("nowhere", path("dangling")).unwrap();
        fs::write(path("file"), "").unwrap();
        fs::create_dir(path("folder")).unwrap();
        symlink("folder", path("other")).unwrap();
        let long = "x".repeat(255);
        fs::create_dir(path(&long)).unwrap();
        let links = folders.link().unwrap().unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = fs::read_dir(links).unwrap().map(name).collect();
        names.sort();
        assert_eq!(names, ["folder", "libmpi.so.12", "libmpich.so.12", "other", &long]);
    }

    // Promise of `a_program_that_needs_libmpich_uses_pm_with_the_library_of_a_directory`.
    #[test]
    fn a_directory_that_exceeds_a_limit_is_named() {
        let folders = Folders::new();
        fs::write(folders.library.join("libmpi.so.12"), "").unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(folders.library.join(name)).unwrap();
        }
        let link = |entries, folder_limit| {
            let limits = Limits { entries, folders: folder_limit, ..LIMITS };
            make_links_in_time(&folders.library, &folders.links(), limits)
        };
        assert_eq!(link(4, 3), Ok(()));
        let name = folders.library.display();
        let entries = format!("{name} has more than 3 entries, which is the limit");
        assert_eq!(link(3, 3), Err(entries));
        let linked = format!("{name} has more than 2 directories, which is the limit");
        assert_eq!(link(4, 2), Err(linked));
    }

    // Promise of `a_program_that_needs_libmpich_uses_pm_with_the_library_of_a_directory`.
    #[test]
    fn a_wait_for_an_unresponsive_file_server_ends_and_the_directory_is_named() {
        let folders = Folders::new();
        let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
        let (Ok(fuse), true) = (fuse, geteuid().is_root()) else {
            eprintln!("skipped: mpi_library: FUSE needs root and /dev/fuse");
            return;
        };
        let limits = Limits { time: Duration::from_millis(300), ..LIMITS };
        let (library, links) = (folders.library.clone(), folders.links());
        // In a separate thread, because a thread can have its own mount namespace.
        let wait = move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            // No process reads the requests to this file system.
            let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
            let fuse_type = Some("fuse");
            mount(fuse_type, &library, fuse_type, MsFlags::empty(), Some(data.as_str())).unwrap();
            let before = Instant::now();
            let error = make_links_in_time(&library, &links, limits).unwrap_err();
            assert!(error.contains("not read within 0.3 s"), "{error}");
            assert!(before.elapsed() >= limits.time);
            // Make the requests fail, so that the blocked thread ends.
            drop(fuse);
        };
        thread::spawn(wait).join().unwrap();
    }
}
