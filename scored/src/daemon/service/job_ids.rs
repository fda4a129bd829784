//! Allocates job numbers. A restarted server does not reuse the numbers of its predecessor, because
//! users may still refer to those jobs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown, lchown};
use std::path::{Path, PathBuf};

use score_proto::ids::JobId;

use crate::sys::credentials::UserIds;

/// The directory of persistent state.
const STATE_DIR: &str = "/var/lib/scored";
const NEXT_JOB_FILE: &str = "/var/lib/scored/next-job";
/// The number of job numbers that are reserved in the file at once.
const RESERVED_IDS: u32 = 1000;

/// The range of job numbers of this server.
#[derive(Debug)]
pub struct JobIdAllocator {
    first: JobId,
    /// The file reserves all numbers below this one.
    reserved_end: u32,
}

/// Creates the state directory, and makes the daemon's user its owner.
pub fn prepare_state(user: UserIds) {
    let prepared = fs::create_dir_all(STATE_DIR)
        .and_then(|()| lchown(STATE_DIR, Some(user.uid), Some(user.gid)));
    // The file may not exist yet. An older scored may have created it as root.
    let prepared = prepared.and_then(|()| match give_file(Path::new(NEXT_JOB_FILE), user) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    });
    if let Err(error) = prepared {
        super::warn(&format!("{STATE_DIR}: {error}: a restarted server repeats job numbers"));
    }
}

/// Makes a user the owner of a file in the user's directory. The user could have put a link to a
/// file of root there.
fn give_file(path: &Path, user: UserIds) -> io::Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.nlink() != 1 {
        let reason = format!("{}: not a regular file with one link", path.display());
        return Err(io::Error::other(reason));
    }
    fchown(&file, Some(user.uid), Some(user.gid))
}

impl JobIdAllocator {
    /// Reads the file of the previous server, and reserves numbers for this one.
    pub fn load() -> Self {
        let text = fs::read_to_string(NEXT_JOB_FILE).unwrap_or_default();
        let first = text.trim().parse().ok().filter(|next| (1..i32::MAX as u32).contains(next));
        let reserved_end = first.unwrap_or(1);
        let first = JobId(reserved_end);
        let mut allocator = Self { first, reserved_end };
        allocator.reserve_past(first);
        allocator
    }

    /// The first number that this server may assign.
    pub fn first(&self) -> JobId {
        self.first
    }

    /// Reserves more numbers if a job with this number requires it.
    pub fn reserve_past(&mut self, job: JobId) {
        let JobId(number) = job;
        if number >= self.reserved_end || self.reserved_end - number > 2 * RESERVED_IDS {
            self.reserved_end = number.saturating_add(RESERVED_IDS);
            let new_path = PathBuf::from(format!("{NEXT_JOB_FILE}.new"));
            let result = fs::create_dir_all(STATE_DIR)
                .and_then(|()| fs::write(&new_path, format!("{}\n", self.reserved_end)));
            if let Err(error) = result.and_then(|()| fs::rename(&new_path, NEXT_JOB_FILE)) {
                super::warn(&format!(
                    "{NEXT_JOB_FILE}: {error}: a restarted server repeats job numbers"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_with_one_link_gets_another_owner() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root can change the owner of a file");
        }
        let folder = std::env::temp_dir().join(format!("score-job-ids-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let user = UserIds { uid: 54_321, gid: 54_322 };
        let [file, link, of_root] = ["next-job", "link", "of-root"].map(|name| folder.join(name));
        let owner = |path: &Path| {
            let metadata = fs::metadata(path).unwrap();
            UserIds { uid: metadata.uid(), gid: metadata.gid() }
        };
        fs::write(&file, "7").unwrap();
        give_file(&file, user).unwrap();
        assert_eq!(owner(&file), user);
        fs::write(&of_root, "x").unwrap();
        std::os::unix::fs::symlink(&of_root, &link).unwrap();
        assert!(give_file(&link, user).is_err());
        fs::remove_file(&link).unwrap();
        fs::hard_link(&of_root, &link).unwrap();
        let error = give_file(&link, user).unwrap_err();
        assert!(error.to_string().contains("one link"), "{error}");
        assert!(give_file(&folder, user).is_err());
        assert_eq!(owner(&of_root).uid, 0);
        let missing = give_file(&folder.join("missing"), user).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&folder).unwrap();
    }
}
