//! The folders in which shepherds keep programs for later jobs: one for each user, who owns it and
//! pays for it. A folder goes some time after the user's last job here, and when the daemon ends.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::job_directory::JobDirectory;
use super::leftovers::Leftovers;

/// How long a folder stays after the last job of its user has begun.
const FOLDER_TTL: Duration = Duration::from_secs(15 * 60);

/// The user of a job and the user's group. None: the user of the daemon.
type FolderOwner = Option<(u32, u32)>;

#[derive(Debug)]
struct ProgramFolder {
    directory: JobDirectory,
    last_used_at: Instant,
}

/// The folders of all users.
#[derive(Debug, Default)]
pub struct ProgramFolders {
    folders: HashMap<FolderOwner, ProgramFolder>,
}

impl ProgramFolders {
    /// The folder for the programs of a user, which is made if it does not exist. None: it cannot
    /// be made, and programs are fetched for each job.
    pub fn folder_of(&mut self, owner: FolderOwner) -> Option<PathBuf> {
        let last_used_at = Instant::now();
        if let Some(folder) = self.folders.get_mut(&owner) {
            folder.last_used_at = last_used_at;
            return Some(folder.directory.path().to_owned());
        }
        let directory = create(owner).ok()?;
        let path = directory.path().to_owned();
        self.folders.insert(owner, ProgramFolder { directory, last_used_at });
        Some(path)
    }

    /// When [`ProgramFolders::remove_unused`] has to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.folders.values().map(|folder| folder.last_used_at + FOLDER_TTL).min()
    }

    /// Removes the folders that have not been used for [`FOLDER_TTL`]. A job that still uses one
    /// has its programs in its own directory, too.
    pub fn remove_unused(&mut self, leftovers: &mut Leftovers, now: Instant) {
        let is_unused = |_: &FolderOwner, folder: &mut ProgramFolder| {
            now.saturating_duration_since(folder.last_used_at) >= FOLDER_TTL
        };
        let unused: Vec<_> = self.folders.extract_if(is_unused).collect();
        for (owner, folder) in unused {
            folder.remove(owner, leftovers);
        }
    }

    /// Removes all folders: the daemon ends.
    pub fn remove_all(&mut self, leftovers: &mut Leftovers) {
        for (owner, folder) in self.folders.drain() {
            folder.remove(owner, leftovers);
        }
    }
}

fn create(owner: FolderOwner) -> Result<JobDirectory, String> {
    let Some(owner) = owner else {
        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
        return JobDirectory::create(runtime_dir.as_deref(), &mut |_| {});
    };
    let directory = JobDirectory::create_for_user(&mut |_| {})?;
    directory.chown_to(owner)?;
    Ok(directory)
}

impl ProgramFolder {
    /// What cannot be removed now is removed by the next daemon.
    fn remove(self, owner: FolderOwner, leftovers: &mut Leftovers) {
        let _ = match owner {
            Some(owner) => leftovers.remove(self.directory, owner),
            None => self.directory.remove(),
        };
    }
}
