//! Allocates job numbers. A restarted server does not reuse the numbers of its predecessor, because
//! users may still refer to those jobs.

use std::fs;
use std::io;
use std::path::PathBuf;

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
pub fn prepare_state(UserIds { uid, gid }: UserIds) {
    let give = |path: &str| std::os::unix::fs::lchown(path, Some(uid), Some(gid));
    let prepared = fs::create_dir_all(STATE_DIR).and_then(|()| give(STATE_DIR));
    // The file may not exist yet, or may belong to root after an older scored.
    let prepared = prepared.and_then(|()| match give(NEXT_JOB_FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    });
    if let Err(error) = prepared {
        super::warn(&format!("{STATE_DIR}: {error}: a restarted server repeats job numbers"));
    }
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
