//! A local listening socket to which clients connect: the socket of a scout session or of a
//! service. The kernel reports the user of each client. A user that the client claims is never
//! trusted.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mio::net::UnixListener;
use mio::{Interest, Registry, Token};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Backlog, listen};

use crate::sys::credentials::{self, UserIds};

/// The length of the kernel's accept queue for a socket of one user. Further clients block in
/// connect(2).
pub const LONG_QUEUE: i32 = 128;
/// The length of the accept queue for a socket of all users. The kernel adds one place. The daemon
/// accepts clients in the order of the queue. In a short queue, a new client therefore waits for
/// few clients of other users.
pub const SHORTEST_QUEUE: i32 = 0;
/// The delay from an accepted client to the wake-up of the waiting clients.
const WAKE_DELAY: Duration = Duration::from_millis(20);
/// How long the queue stays long after the wake-up, so that the woken clients find places in it.
const LONG_QUEUE_WINDOW: Duration = Duration::from_millis(1);
/// How long the keeper of a killed daemon may hold the socket. The keeper first ends the jobs of
/// that daemon.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
const RELEASE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A client that has connected.
#[derive(Debug)]
pub struct AcceptedClient {
    /// The client's socket.
    pub socket: OwnedFd,
    /// The ids of the client.
    pub ids: UserIds,
}

impl AcceptedClient {
    /// Whether the client has already closed the connection, while it waited in the queue.
    pub fn has_closed(&self) -> bool {
        let mut socket = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        let is_hang_up = |events: PollFlags| events.contains(PollFlags::POLLHUP);
        poll(&mut socket, PollTimeout::ZERO).is_ok() && socket[0].revents().is_some_and(is_hang_up)
    }
}

/// A local listening socket.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    queue_len: i32,
    /// Whether a client may be waiting. The flag is needed because mio reports each connection once
    /// only.
    pub may_accept: bool,
    /// Whether the last accept(2) failed because descriptors had run out.
    fds_exhausted: bool,
    wake: Wake,
}

/// The state of the periodic wake-up of clients that wait in connect(2).
#[derive(Debug, Clone, Copy)]
enum Wake {
    /// No client has been accepted since the last wake-up.
    NotDue,
    /// At this time the queue becomes long, which wakes all waiting clients.
    DueAt(Instant),
    /// The queue is long until this time.
    LongQueueUntil(Instant),
}

/// Whether a process listens at `path`.
fn is_served(path: &Path) -> bool {
    // The connect call of mio does not block, even if the queue is full.
    let probe = mio::net::UnixStream::connect(path).map(drop);
    probe.map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |()| true)
}

impl LocalListener {
    /// Listens at `path`, unless another process listens there. `mode` is the permission of the
    /// socket file and thus restricts who can connect. `queue_len` is the length of the accept
    /// queue.
    ///
    /// # Errors
    /// One line that names the path.
    pub fn open(
        path: &Path,
        mode: u32,
        queue_len: i32,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, String> {
        let with_path = |error: io::Error| format!("{}: {error}", path.display());
        // A killed daemon leaves its socket behind.
        if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            let deadline = Instant::now() + RELEASE_TIMEOUT;
            while is_served(path) {
                if Instant::now() >= deadline {
                    return Err(format!(
                        "{}: another scored listens there; end it first",
                        path.display()
                    ));
                }
                sleep(RELEASE_CHECK_INTERVAL);
            }
            match fs::remove_file(path) {
                // The process that has just ended has removed the socket.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(with_path(error));
                }
                _ => {}
            }
        }
        let listener = UnixListener::bind(path).map_err(with_path)?;
        set_queue_len(&listener, queue_len).map_err(with_path)?;
        let mut local_listener = Self {
            listener,
            path: path.to_owned(),
            queue_len,
            may_accept: true,
            fds_exhausted: false,
            wake: Wake::NotDue,
        };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(with_path)?;
        registry
            .register(&mut local_listener.listener, token, Interest::READABLE)
            .map_err(with_path)?;
        Ok(local_listener)
    }

    /// Accepts the next client, if there is one. A client whose user the kernel does not report is
    /// dropped.
    pub fn accept(&mut self) -> Option<AcceptedClient> {
        while self.may_accept {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.fds_exhausted = false;
                    if let Wake::NotDue = self.wake {
                        self.wake = Wake::DueAt(Instant::now() + WAKE_DELAY);
                    }
                    let socket = OwnedFd::from(stream);
                    if let Ok(ids) = credentials::peer_ids(&socket) {
                        return Some(AcceptedClient { socket, ids });
                    }
                }
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    // If descriptors have run out, the waiting clients are accepted later.
                    self.may_accept = error.kind() != io::ErrorKind::WouldBlock;
                    self.fds_exhausted = self.may_accept;
                    return None;
                }
            }
        }
        None
    }

    /// Wakes all clients that wait in connect(2), if that is due, and makes the queue long for a
    /// moment. The kernel wakes only one waiting client for each accepted client. If that client is
    /// killed before it runs, the others would wait until another client connects, although the
    /// queue is empty. If other clients connect all the time, a woken client would find no place in
    /// a short queue.
    pub fn wake_waiting_clients(&mut self, now: Instant) {
        match self.wake {
            Wake::DueAt(due) if due <= now => {
                // The kernel wakes the waiting clients when the queue becomes longer. listen(2) may
                // be called again with another length.
                let _ = set_queue_len(&self.listener, self.queue_len + LONG_QUEUE);
                self.wake = Wake::LongQueueUntil(now + LONG_QUEUE_WINDOW);
            }
            Wake::LongQueueUntil(end) if end <= now => {
                let _ = set_queue_len(&self.listener, self.queue_len);
                self.wake = Wake::NotDue;
            }
            Wake::NotDue | Wake::DueAt(_) | Wake::LongQueueUntil(_) => {}
        }
    }

    /// The time of the next call of [`LocalListener::wake_waiting_clients`].
    pub fn wake_deadline(&self) -> Option<Instant> {
        match self.wake {
            Wake::NotDue => None,
            Wake::DueAt(due) | Wake::LongQueueUntil(due) => Some(due),
        }
    }

    /// The listening socket.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Whether a client may be waiting that can be accepted now.
    pub fn can_accept_now(&self) -> bool {
        self.may_accept && !self.fds_exhausted
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn set_queue_len(listener: &UnixListener, len: i32) -> io::Result<()> {
    Ok(Backlog::new(len).and_then(|backlog| listen(listener, backlog))?)
}

/// Whether the error concerns one client that has disconnected. Another client may be waiting.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    use nix::unistd::Pid;

    use super::*;

    /// Waits until the condition is true. A closed descriptor may stay open for a moment while
    /// another test starts a process, because the child has a copy until it executes its program.
    fn until(mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition() {
            assert!(Instant::now() < deadline, "the condition is not met");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_client_is_identified_by_its_uid_and_the_socket_is_removed_with_the_listener() {
        let directory = std::env::temp_dir().join(format!("score-listener-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("socket");
        let poll = mio::Poll::new().unwrap();
        // A killed daemon leaves its socket in this state.
        drop(UnixListener::bind(&path).unwrap());
        until(|| UnixStream::connect(&path).is_err());
        let mut local_listener =
            LocalListener::open(&path, 0o600, SHORTEST_QUEUE, poll.registry(), Token(0)).unwrap();
        assert!(local_listener.accept().is_none());
        let _stream = UnixStream::connect(&path).unwrap();
        local_listener.may_accept = true;
        let client = local_listener.accept().unwrap();
        assert_eq!(client.ids.uid, nix::unistd::geteuid().as_raw());
        assert!(!client.has_closed());
        // Unread data does not keep a closed connection.
        UnixStream::connect(&path).unwrap().write_all(b"x").unwrap();
        let client = local_listener.accept().unwrap();
        until(|| client.has_closed());
        let error = LocalListener::open(&path, 0o600, SHORTEST_QUEUE, poll.registry(), Token(1))
            .unwrap_err();
        assert!(error.contains("another scored"), "{error}");
        let metadata = fs::metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        // The failed `open` above has taken the only place in the queue.
        assert!(mio::net::UnixStream::connect(&path).is_err());
        drop(local_listener);
        assert!(!path.exists());
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn a_listener_waits_until_an_earlier_listener_has_closed_the_socket() {
        let name = format!("score-listener-next-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let poll = mio::Poll::new().unwrap();
        let earlier = UnixListener::bind(&path).unwrap();
        let ends = std::thread::spawn(|| {
            sleep(Duration::from_millis(100));
            drop(earlier);
        });
        let listener =
            LocalListener::open(&path, 0o600, SHORTEST_QUEUE, poll.registry(), Token(0)).unwrap();
        ends.join().unwrap();
        let _stream = UnixStream::connect(&path).unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    /// Environment variable for [`role`]: the path of the socket.
    const SOCKET_ENV: &str = "SCORE_TEST_LISTENER";

    /// Not a test: a process that connects to the socket.
    #[test]
    fn role() {
        let Some(path) = std::env::var_os(SOCKET_ENV) else { return };
        println!("ready");
        let _stream = UnixStream::connect(path).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_client_that_is_killed_in_its_turn_does_not_delay_other_clients() {
        let directory = std::env::temp_dir().join(format!("score-turns-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("socket");
        let poll = mio::Poll::new().unwrap();
        let mut listener =
            LocalListener::open(&path, 0o600, SHORTEST_QUEUE, poll.registry(), Token(0)).unwrap();
        // All processes share one processor, so that a woken client does not run at once.
        let processors = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let processor = (0..CpuSet::count()).find(|one| processors.is_set(*one).unwrap()).unwrap();
        let mut one_processor = CpuSet::new();
        one_processor.set(processor).unwrap();
        sched_setaffinity(Pid::from_raw(0), &one_processor).unwrap();
        let start_client = || {
            let mut client = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "daemon::local_listener::tests::role", "--nocapture"])
                .env(SOCKET_ENV, &path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(client.stdout.take().unwrap()).lines();
            assert!(lines.map_while(Result::ok).any(|line| line.contains("ready")));
            // The client is now in connect(2). If it is late, this round tests less.
            std::thread::sleep(Duration::from_millis(30));
            client
        };
        for round in 0..5 {
            let _first = UnixStream::connect(&path).unwrap();
            let (mut second, mut third) = (start_client(), start_client());
            let mut accepted_pids = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(10);
            while !accepted_pids.contains(&third.id()) {
                assert!(Instant::now() < deadline, "round {round}: a client waits");
                listener.may_accept = true;
                let client = listener.accept();
                second.kill().unwrap();
                let pid = |client: AcceptedClient| {
                    getsockopt(&client.socket, PeerCredentials).unwrap().pid() as u32
                };
                accepted_pids.extend(client.map(pid));
                listener.wake_waiting_clients(Instant::now());
                std::thread::sleep(Duration::from_millis(1));
            }
            third.kill().unwrap();
            for mut client in [second, third] {
                client.wait().unwrap();
            }
            // A client that was killed late may be in the queue.
            listener.may_accept = true;
            while listener.accept().is_some() {}
        }
        drop(listener);
        fs::remove_dir(&directory).unwrap();
    }
}
