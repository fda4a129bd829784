//! Looks up users in the name services of this host. A child process performs each look-up, because
//! a name service may never answer.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Gid, Uid, User, getgrouplist, pipe2};

use super::{descriptor, process, realtime};

/// How long the name services may take to answer.
const NSS_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer of a look-up in bytes. The kernel accepts 65,536 groups.
const MAX_NSS_ANSWER_LEN: usize = 1 << 20;

/// The entry of the name services of this host for a uid.
#[derive(Debug, PartialEq, Eq)]
pub struct UserEntry {
    /// The user's name.
    pub name: String,
    /// The user's groups, as far as the scope includes them.
    pub groups: Vec<u32>,
}

/// The data that a look-up has to find.
#[derive(Debug, Clone, Copy)]
pub enum LookupScope {
    /// The user's name. `groups` then contains only the group of the entry.
    Name,
    /// The user's name and groups. This group is always included.
    NameAndGroups(Gid),
}

/// The result of a look-up. None: the name services have no entry for the uid. The error is one
/// line.
pub type LookupResult = Result<Option<UserEntry>, String>;

/// A look-up in progress.
#[derive(Debug)]
pub struct UserLookup {
    uid: u32,
    /// None: the child has been reaped.
    child_pid: Option<i32>,
    pipe: File,
    answer: Vec<u8>,
    deadline: Instant,
}

impl UserLookup {
    /// Starts a look-up in a child process. The caller must have one thread only. The caller must
    /// reap the child and then call [`UserLookup::on_child_reaped`], or else call
    /// [`UserLookup::wait`].
    ///
    /// # Errors
    /// One line: the error of pipe2(2) or fork(2).
    pub fn start(uid: u32, scope: LookupScope) -> Result<Self, String> {
        let failed = |error: io::Error| format!("uid {uid}: cannot start a look-up: {error}");
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(|errno| failed(errno.into()))?;
        descriptor::set_nonblocking(reader.as_fd()).map_err(failed)?;
        let child = process::start_child(|| run_child(uid, scope, writer)).map_err(failed)?;
        Ok(Self {
            uid,
            child_pid: Some(child),
            pipe: File::from(reader),
            answer: Vec::new(),
            deadline: Instant::now() + NSS_TIMEOUT,
        })
    }

    /// The child process, unless it has been reaped.
    pub fn child_pid(&self) -> Option<i32> {
        self.child_pid
    }

    /// Records that the child has been reaped. Its process id may belong to another process from
    /// now on.
    pub fn on_child_reaped(&mut self) {
        self.child_pid = None;
    }

    /// The time at which the look-up fails if there is no answer.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// A descriptor that is readable when [`UserLookup::try_result`] may have the result.
    pub fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// The result, if the child has answered or the deadline has passed. Does not wait.
    pub fn try_result(&mut self) -> Option<LookupResult> {
        let uid = self.uid;
        let result = match self.read_answer() {
            Ok(()) => parse_answer(&String::from_utf8_lossy(&self.answer)),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error.to_string()),
            Err(_) if Instant::now() < self.deadline => return None,
            Err(_) => {
                Err(format!("the name services did not answer within {} s", NSS_TIMEOUT.as_secs()))
            }
        };
        Some(result.map_err(|reason| format!("uid {uid}: {reason}")))
    }

    /// Reads up to the end of the answer.
    fn read_answer(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        while self.answer.len() < MAX_NSS_ANSWER_LEN {
            match self.pipe.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(count) => self.answer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("the answer of the name services is too long"))
    }

    /// Waits for the result, and reaps the child.
    ///
    /// # Errors
    /// See [`LookupResult`].
    pub fn wait(mut self) -> LookupResult {
        let result = loop {
            if let Some(result) = self.try_result() {
                break result;
            }
            let remaining = self.deadline.saturating_duration_since(Instant::now());
            // Round up, because the last millisecond would otherwise be spent in a busy loop.
            let timeout = PollTimeout::try_from(remaining + Duration::from_millis(1));
            let mut poll_fds = [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)];
            // An error such as EINTR only ends the wait early. The loop then tries again.
            let _ = poll(&mut poll_fds, timeout.unwrap_or(PollTimeout::MAX));
        };
        if let Some(pid) = self.child_pid.take() {
            process::kill(pid, libc::SIGKILL);
            process::wait_for(pid);
        }
        result
    }
}

impl Drop for UserLookup {
    /// Kills the child. The code that has started the look-up must reap it.
    fn drop(&mut self) {
        self.child_pid.into_iter().for_each(|pid| process::kill(pid, libc::SIGKILL));
    }
}

/// Runs in the child: writes the answer. Returns the exit code.
fn run_child(uid: u32, scope: LookupScope, writer: OwnedFd) -> i32 {
    process::die_with_parent(libc::SIGKILL);
    descriptor::close_all_but(&[&writer]);
    // A name service may compute for long. The parent may be pinned to the processor of gang
    // switches.
    realtime::leave();
    let text = realtime::run_unpinned(|| query_name_services(uid, scope));
    i32::from(File::from(writer).write_all(text.as_bytes()).is_err())
}

/// Runs in the child: returns the answer as text.
fn query_name_services(uid: u32, scope: LookupScope) -> String {
    let user = match User::from_uid(Uid::from_raw(uid)) {
        Err(error) => return format!("failed\n{error}"),
        Ok(None) => return "nobody\n".to_owned(),
        Ok(Some(user)) => user,
    };
    let groups = match scope {
        LookupScope::Name => Ok(vec![user.gid]),
        LookupScope::NameAndGroups(gid) => {
            let name = CString::new(user.name.clone()).unwrap_or_default();
            getgrouplist(&name, gid)
        }
    };
    match groups {
        Err(error) => format!("failed\n{error}"),
        Ok(groups) => {
            let groups: Vec<String> = groups.iter().map(Gid::to_string).collect();
            format!("known\n{}\n{}", user.name, groups.join(" "))
        }
    }
}

fn parse_answer(text: &str) -> LookupResult {
    let mut lines = text.lines();
    match (lines.next(), lines.next(), lines.next()) {
        (Some("nobody"), ..) => Ok(None),
        (Some("known"), Some(name), Some(groups)) => {
            let groups: Result<_, _> = groups.split(' ').map(str::parse).collect();
            let groups = groups.map_err(|_| "malformed list of groups")?;
            Ok(Some(UserEntry { name: name.to_owned(), groups }))
        }
        (Some("failed"), Some(reason), _) => Err(format!("the name services failed: {reason}")),
        _ => Err("the process that looked up its name has failed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_answers_of_the_name_services_are_errors() {
        let entry = UserEntry { name: "a".to_owned(), groups: vec![1, 2] };
        assert_eq!(parse_answer("known\na\n1 2"), Ok(Some(entry)));
        assert_eq!(parse_answer("nobody\n"), Ok(None));
        for wrong in ["", "known\na", "known\na\nx", "failed\nEIO", "what"] {
            assert!(parse_answer(wrong).is_err(), "{wrong:?}");
        }
    }

    /// A look-up whose child has written this answer so far.
    fn lookup_with(answer: &str, deadline: Instant) -> (UserLookup, File) {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        let mut writer = File::from(writer);
        writer.write_all(answer.as_bytes()).unwrap();
        let (pipe, answer) = (File::from(reader), Vec::new());
        (UserLookup { uid: 7, child_pid: None, pipe, answer, deadline }, writer)
    }

    #[test]
    fn a_result_is_complete_once_the_child_has_closed_the_pipe() {
        let (mut lookup, writer) = lookup_with("known\na\n1", Instant::now() + NSS_TIMEOUT);
        assert_eq!(lookup.try_result(), None);
        drop(writer);
        let entry = UserEntry { name: "a".to_owned(), groups: vec![1] };
        assert_eq!(lookup.try_result(), Some(Ok(Some(entry))));
    }

    #[test]
    fn a_name_service_that_does_not_answer_in_time_is_an_error() {
        let (mut lookup, _writer) = lookup_with("known\na\n1", Instant::now());
        let reason = lookup.try_result().unwrap().unwrap_err();
        assert_eq!(reason, "uid 7: the name services did not answer within 10 s");
    }
}
