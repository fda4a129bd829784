//! Removes the directories of jobs whose shepherds were killed. The directories are in root's
//! directory of leftovers, to which users have no access. For each directory, a child process with
//! the rights of its user removes the contents. The user can prevent the removal by writing through
//! an open descriptor, or with files that the user may not remove. The keeper then repeats the
//! removal later. The keeper's loop does not wait for the processes.
//!
//! A directory cannot be moved while the user has mounted a file system on it. It is then removed
//! at its place, and each sweep tries to move it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, ReadDir};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use score_proto::job_control::Status;

use crate::daemon::job_directory::{JobDirectory, LEFTOVERS_DIR, has_job_prefix};
use crate::daemon::shepherd_handle::KnownChildren;
use crate::sys::{credentials::UserIds, process, remove_as_user};

/// How often the directory of leftovers is searched while it is not empty.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// Environment variable for tests: another interval in milliseconds.
const SWEEP_INTERVAL_ENV: &str = "SCORE_TEST_SWEEP_MS";
/// The maximum number of simultaneous removers. Each user has at most one.
const MAX_REMOVERS: usize = 16;
/// The maximum number of directory entries that are read in a turn of the loop.
const MAX_ENTRIES_PER_TURN: usize = 64;
/// The number of failed attempts after which a directory is logged.
const LOGGED_ATTEMPTS: u32 = 10;
/// The interval between two checks of the removers when the keeper ends.
const SHUTDOWN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A directory that is to be removed.
#[derive(Debug)]
struct Leftover {
    owner: UserIds,
    /// The directory and its lock, if it could not be moved to the leftovers.
    unmoved: Option<JobDirectory>,
    failed_attempts: u32,
    state: LeftoverState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftoverState {
    /// The removal failed. The next sweep queues the directory again.
    Failed,
    /// The directory waits for a remover.
    Queued,
    /// A remover runs.
    Removing,
}

/// A process that removes a directory with the rights of its owner.
#[derive(Debug)]
struct Remover {
    uid: u32,
    name: String,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Leftovers {
    interval: Duration,
    by_name: HashMap<String, Leftover>,
    /// The names of the queued directories, by the uid of their owners.
    queues: BTreeMap<u32, VecDeque<String>>,
    removers: HashMap<i32, Remover>,
    /// The uid of the last started remover. The next remover is for the next user.
    last_uid: u32,
    next_sweep_at: Option<Instant>,
    /// The entries that have not been read yet, during a sweep.
    sweep: Option<ReadDir>,
    known_children: KnownChildren,
}

fn path_of(name: &str, leftover: &Leftover) -> PathBuf {
    let moved = || Path::new(LEFTOVERS_DIR).join(name);
    leftover.unmoved.as_ref().map_or_else(moved, |directory| directory.path().to_owned())
}

impl Leftovers {
    /// Creates the state without known leftovers.
    pub fn new(known_children: KnownChildren) -> Self {
        let from_test = std::env::var(SWEEP_INTERVAL_ENV).ok().and_then(|text| text.parse().ok());
        Self {
            interval: from_test.map_or(SWEEP_INTERVAL, Duration::from_millis),
            by_name: HashMap::new(),
            queues: BTreeMap::new(),
            removers: HashMap::new(),
            last_uid: 0,
            next_sweep_at: None,
            sweep: None,
            known_children,
        }
    }

    /// Schedules a search for directories that earlier keepers have left.
    pub fn sweep_soon(&mut self, now: Instant) {
        self.next_sweep_at = Some(now);
    }

    /// Removes the directory of a job that has ended. If it is not empty, it is moved to the
    /// leftovers, and a remover removes it later.
    pub fn remove(&mut self, directory: JobDirectory, owner: UserIds) {
        if directory.remove_if_empty().is_err() {
            let name = directory.name().to_owned();
            let unmoved = directory.set_aside().is_err().then_some(directory);
            self.enqueue(name, owner, unmoved);
            self.next_sweep_at.get_or_insert_with(|| Instant::now() + self.interval);
        }
    }

    fn enqueue(&mut self, name: String, owner: UserIds, unmoved: Option<JobDirectory>) {
        let new = Leftover { owner, unmoved, failed_attempts: 0, state: LeftoverState::Failed };
        let leftover = self.by_name.entry(name.clone()).or_insert(new);
        if leftover.state == LeftoverState::Failed {
            leftover.state = LeftoverState::Queued;
            self.queues.entry(owner.uid).or_default().push_back(name);
        }
    }

    /// The time until the next call of [`Leftovers::advance`].
    pub fn deadline(&self, now: Instant) -> Option<Duration> {
        let is_busy = self.sweep.is_some() || self.next_uid().is_some();
        let due = if is_busy { Some(now) } else { self.next_sweep_at };
        due.map(|due| due.saturating_duration_since(now))
    }

    /// Does the work that is due.
    pub fn advance(&mut self, now: Instant) {
        if self.sweep.is_none() && self.next_sweep_at.is_some_and(|due| due <= now) {
            self.begin_sweep(now);
        }
        self.advance_sweep();
        // At most one remover is started in a turn, because a fork takes long if this process has
        // much memory.
        if let Some(uid) = self.next_uid() {
            self.start_remover(uid);
        }
    }

    fn begin_sweep(&mut self, now: Instant) {
        self.next_sweep_at = Some(now + self.interval);
        for (name, leftover) in &mut self.by_name {
            // If the directory can be moved now, the sweep finds it.
            leftover.unmoved.take_if(|directory| directory.set_aside().is_ok());
            if leftover.unmoved.is_some() && leftover.state == LeftoverState::Failed {
                leftover.state = LeftoverState::Queued;
                self.queues.entry(leftover.owner.uid).or_default().push_back(name.clone());
            }
        }
        match fs::read_dir(LEFTOVERS_DIR) {
            Ok(entries) => self.sweep = Some(entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.end_sweep(),
            // Descriptors have run out. The next sweep tries again.
            Err(_) => {}
        }
    }

    fn advance_sweep(&mut self) {
        let Some(mut sweep) = self.sweep.take() else { return };
        for _ in 0..MAX_ENTRIES_PER_TURN {
            let Some(entry) = sweep.next() else { return self.end_sweep() };
            let Ok(entry) = entry else { continue };
            let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), entry.metadata())
            else {
                continue;
            };
            if metadata.is_dir() && has_job_prefix(name.as_ref()) {
                self.enqueue(name, UserIds { uid: metadata.uid(), gid: metadata.gid() }, None);
            }
        }
        self.sweep = Some(sweep);
    }

    fn end_sweep(&mut self) {
        // The sweep has queued all directories that exist. Another daemon has removed the others.
        self.by_name.retain(|_, leftover| leftover.state != LeftoverState::Failed);
        self.remove_folder_if_empty();
    }

    /// Removes the directory of leftovers if it is empty. There are no further sweeps then.
    fn remove_folder_if_empty(&mut self) {
        if !self.by_name.is_empty() || self.sweep.is_some() {
            return;
        }
        match fs::remove_dir(LEFTOVERS_DIR) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => self.next_sweep_at = None,
        }
    }

    /// The next user for whom a remover may be started. The users alternate.
    fn next_uid(&self) -> Option<u32> {
        if self.removers.len() >= MAX_REMOVERS {
            return None;
        }
        let after_last = self.queues.range((Bound::Excluded(self.last_uid), Bound::Unbounded));
        let mut uids = after_last.chain(self.queues.range(..=self.last_uid)).map(|(uid, _)| *uid);
        uids.find(|uid| self.removers.values().all(|remover| remover.uid != *uid))
    }

    fn dequeue(&mut self, uid: u32) -> Option<String> {
        self.last_uid = uid;
        let queue = self.queues.get_mut(&uid)?;
        let name = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&uid);
        }
        name
    }

    fn start_remover(&mut self, uid: u32) {
        let Some(name) = self.dequeue(uid) else { return };
        let Some(leftover) = self.by_name.get_mut(&name) else { return };
        match remove_as_user::start(&path_of(&name, leftover), leftover.owner) {
            Ok(pid) => {
                leftover.state = LeftoverState::Removing;
                self.known_children.borrow_mut().insert(pid);
                self.removers.insert(pid, Remover { uid, name });
            }
            // The next sweep tries the removal again.
            Err(_) => leftover.state = LeftoverState::Failed,
        }
    }

    /// Handles the exit of a child of the keeper. Returns a line for the log, if there is one.
    pub fn on_child_exit(&mut self, pid: i32, status: Option<Status>) -> Option<String> {
        let remover = self.removers.remove(&pid)?;
        let leftover = self.by_name.get_mut(&remover.name)?;
        if status == Some(Status::Exited(0)) {
            self.by_name.remove(&remover.name);
            self.remove_folder_if_empty();
            return None;
        }
        leftover.state = LeftoverState::Failed;
        leftover.failed_attempts += 1;
        (leftover.failed_attempts == LOGGED_ATTEMPTS).then(|| {
            format!(
                "{} cannot be removed: uid {} writes or mounts there, or may not empty it",
                path_of(&remover.name, leftover).display(),
                remover.uid
            )
        })
    }

    /// Removes as much as possible within this time, before the keeper exits. The next keeper
    /// removes the rest.
    pub fn finish(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while !(self.queues.is_empty() && self.removers.is_empty()) && Instant::now() < deadline {
            self.advance(Instant::now());
            let pids: Vec<i32> = self.removers.keys().copied().collect();
            for pid in pids {
                let status = match process::reap_one(pid) {
                    process::WaitResult::AllRunning => continue,
                    process::WaitResult::Exited(reaped) => Some(reaped.status),
                    process::WaitResult::NoChildren => None,
                };
                self.known_children.borrow_mut().remove(&pid);
                self.on_child_exit(pid, status);
            }
            std::thread::sleep(SHUTDOWN_CHECK_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leftovers_of(owners: &[u32]) -> Leftovers {
        let mut leftovers = Leftovers::new(KnownChildren::default());
        for (index, uid) in owners.iter().enumerate() {
            let (name, owner) = (format!("job-{index}"), UserIds { uid: *uid, gid: *uid });
            leftovers.enqueue(name, owner, None);
        }
        leftovers
    }

    /// Starts the next remover without a process.
    fn start(leftovers: &mut Leftovers, pid: i32) -> Option<u32> {
        let uid = leftovers.next_uid()?;
        let name = leftovers.dequeue(uid)?;
        leftovers.by_name.get_mut(&name)?.state = LeftoverState::Removing;
        leftovers.removers.insert(pid, Remover { uid, name });
        Some(uid)
    }

    #[test]
    fn removals_alternate_between_users_and_each_user_has_one_remover_at_a_time() {
        let mut leftovers = leftovers_of(&[7, 7, 7, 9, 8]);
        let started: Vec<_> = (1..=4).map(|pid| start(&mut leftovers, pid)).collect();
        assert_eq!(started, [Some(7), Some(8), Some(9), None]);
        assert_eq!(leftovers.on_child_exit(1, Some(Status::Signaled(9))), None);
        assert_eq!(start(&mut leftovers, 5), Some(7));
        assert_eq!(leftovers.on_child_exit(99, None), None, "no remover");
    }

    #[test]
    fn the_number_of_removers_is_limited() {
        let mut leftovers = leftovers_of(&(1..100).collect::<Vec<_>>());
        let started = (1..).map_while(|pid| start(&mut leftovers, pid)).count();
        assert_eq!(started, MAX_REMOVERS);
    }

    #[test]
    fn a_failed_removal_of_a_directory_is_retried_and_logged_once() {
        let mut leftovers = leftovers_of(&[7]);
        let mut lines = Vec::new();
        for attempt in 0..30 {
            assert_eq!(start(&mut leftovers, attempt), Some(7));
            assert_eq!(start(&mut leftovers, 1000), None, "not before the next sweep");
            lines.extend(leftovers.on_child_exit(attempt, Some(Status::Exited(1))));
            assert_eq!(lines.len(), usize::from(attempt >= 9), "attempt {attempt}");
            let owner = UserIds { uid: 7, gid: 7 };
            leftovers.enqueue("job-0".to_owned(), owner, None);
        }
        assert!(lines[0].contains("leftovers/job-0 cannot be removed: uid 7"), "{lines:?}");
    }
}
