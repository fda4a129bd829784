//! The directories in which shepherds keep programs for later jobs. Each user has and owns one
//! directory. The daemon, or the keeper in multi-user mode, removes a directory some time after the
//! start of the last job of its user. Helper processes remove all directories when this process
//! ends, even if it is killed.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::job_directory::JobDirectory;
use super::shepherd_handle::KnownChildren;
use crate::sys::credentials::UserIds;
use crate::sys::remove_on_close;

/// How long a directory is kept after the last job of its user began.
const FOLDER_TTL: Duration = Duration::from_secs(15 * 60);

/// The ids of a job's user. `None`: the user of the daemon.
type FolderOwner = Option<UserIds>;

#[derive(Debug)]
struct ProgramFolder {
    /// The directory. Its lock protects it from removal as a leftover.
    directory: JobDirectory,
    last_used_at: Instant,
    /// A process that removes the directory when the descriptor is closed.
    removal: (i32, OwnedFd),
}

/// The directories of all users.
#[derive(Debug, Default)]
pub struct ProgramFolders {
    folders: HashMap<FolderOwner, ProgramFolder>,
}

impl ProgramFolders {
    /// Returns the directory for the programs of a user, and creates it if it does not exist.
    /// Returns `None` if that fails. Shepherds then fetch the programs for each job.
    pub fn folder_of(
        &mut self,
        owner: FolderOwner,
        known_children: &KnownChildren,
    ) -> Option<PathBuf> {
        let last_used_at = Instant::now();
        if let Some(folder) = self.folders.get_mut(&owner) {
            folder.last_used_at = last_used_at;
            return Some(folder.directory.path().to_owned());
        }
        let folder = ProgramFolder::create(owner, last_used_at).ok()?;
        let path = folder.directory.path().to_owned();
        known_children.borrow_mut().insert(folder.removal.0);
        self.folders.insert(owner, folder);
        Some(path)
    }

    /// The time of the next call of [`ProgramFolders::remove_unused`].
    pub fn deadline(&self) -> Option<Instant> {
        self.folders.values().map(|folder| folder.last_used_at + FOLDER_TTL).min()
    }

    /// Removes the directories that have not been used for [`FOLDER_TTL`]. A running job is not
    /// affected, because its own directory also contains its programs.
    pub fn remove_unused(&mut self, now: Instant) {
        self.folders
            .retain(|_, folder| now.saturating_duration_since(folder.last_used_at) < FOLDER_TTL);
    }
}

impl ProgramFolders {
    /// Makes the helper processes remove all directories. This process ends without waiting for the
    /// helpers.
    pub fn close(&mut self, known_children: &KnownChildren) {
        for (_, folder) in self.folders.drain() {
            known_children.borrow_mut().remove(&folder.removal.0);
        }
    }
}

impl ProgramFolder {
    fn create(owner: FolderOwner, last_used_at: Instant) -> Result<Self, String> {
        let directory = match owner {
            None => {
                let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
                JobDirectory::create(runtime_dir.as_deref(), &mut |_| {})
            }
            Some(_) => JobDirectory::create_for_user(&mut |_| {}),
        }?;
        let started = remove_on_close::start(directory.path(), owner, directory.own_base());
        let removal = started.map_err(|error| error.to_string())?;
        if let Some(owner) = owner {
            directory.chown_to(owner)?;
        }
        Ok(Self { directory, last_used_at, removal })
    }
}
