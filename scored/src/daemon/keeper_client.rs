//! The daemon's interface to its keeper, the process that performs privileged actions
//! (docs/admin/security.md). The daemon blocks until a call is answered, because the keeper answers
//! at once. Results that take longer arrive as events.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use score_keeper::record::{
    Action, Call, Event, JobHandle, MAX_RECORD_LEN, Reply, ShepherdEnd, StartRequest,
};
use score_proto::job_control::Status;
use score_sys::fd_passing;
use socket2::SockRef;

use super::service::forward_warning;
use crate::sys::descriptor;

/// How long the keeper may take to answer a call. After that time the keeper counts as lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the keeper may take to end the jobs when the daemon ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// The keeper client that the daemon and its jobs share.
pub type SharedKeeper = Rc<RefCell<KeeperClient>>;

/// Why the keeper has not carried out a call.
#[derive(Debug)]
pub enum KeeperError {
    /// The call is not permitted.
    Refused(String),
    /// A system call or the keeper failed.
    Failed(io::Error),
}

impl From<io::Error> for KeeperError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl std::fmt::Display for KeeperError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(reason) => f.write_str(reason),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

/// The result of a shepherd that has ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShepherdOutcome {
    /// The exit status, if it is known.
    pub status: Option<Status>,
    /// Whether the kernel killed processes of the job because of lack of memory.
    pub killed_for_memory: bool,
}

/// The keeper's answer to a login.
#[derive(Debug)]
pub struct VouchResult {
    /// The number of the session.
    pub session: u64,
    /// The voucher, or why the keeper has issued none.
    pub voucher: Result<Vec<u8>, String>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct KeeperClient {
    calls: OwnedFd,
    events: OwnedFd,
    is_lost: bool,
    /// Jobs that have not been removed.
    jobs: HashSet<JobHandle>,
    /// The results of those shepherds that have ended.
    outcomes: HashMap<JobHandle, ShepherdOutcome>,
    /// Whether a shepherd has ended since the last check.
    has_new_outcomes: bool,
    vouch_results: VecDeque<VouchResult>,
}

impl KeeperClient {
    /// Creates a client on these sockets. Waits until the keeper is ready. Also returns the key of
    /// the links to other daemons, if there is a cluster key.
    ///
    /// # Errors
    /// One line: why the keeper cannot work.
    pub fn connect(calls: OwnedFd, events: OwnedFd) -> Result<(Self, Option<[u8; 32]>), String> {
        let to_text = |error: io::Error| format!("the keeper has not started: {error}");
        SockRef::from(&calls).set_read_timeout(Some(REPLY_TIMEOUT)).map_err(to_text)?;
        let (bytes, _) = fd_passing::receive(&events, MAX_RECORD_LEN, 0).map_err(to_text)?;
        let link_key = match Event::read(&bytes) {
            Ok(Event::Ready { link_key }) => link_key,
            Ok(Event::Unable { reason }) => return Err(reason),
            _ => return Err("the keeper has not started".to_owned()),
        };
        descriptor::set_nonblocking(events.as_fd()).map_err(to_text)?;
        let client = Self {
            calls,
            events,
            is_lost: false,
            jobs: HashSet::new(),
            outcomes: HashMap::new(),
            has_new_outcomes: false,
            vouch_results: VecDeque::new(),
        };
        Ok((client, link_key))
    }

    /// The socket on which events arrive.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether the keeper has ended or does not answer.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn call(&mut self, call: &Call, descriptors: &[BorrowedFd<'_>]) -> Result<Reply, KeeperError> {
        if self.is_lost {
            return Err(io::Error::from(io::ErrorKind::NotConnected).into());
        }
        let result = fd_passing::send(&self.calls, &call.to_bytes(), descriptors)
            .and_then(|()| fd_passing::receive(&self.calls, MAX_RECORD_LEN, 0));
        match result {
            Err(error) => {
                self.is_lost = true;
                Err(error.into())
            }
            Ok((bytes, _)) => match Reply::read(&bytes) {
                Ok(Reply::Refused { reason }) => Err(KeeperError::Refused(reason)),
                Ok(Reply::Failed { reason }) => Err(io::Error::other(reason).into()),
                Ok(reply) => Ok(reply),
                Err(_) => {
                    self.is_lost = true;
                    Err(io::Error::other("the keeper has ended").into())
                }
            },
        }
    }

    fn expect<T>(&mut self, answer: Option<T>) -> Result<T, KeeperError> {
        self.is_lost |= answer.is_none();
        answer.ok_or_else(|| io::Error::other("the keeper has sent an unexpected reply").into())
    }

    fn expect_done(&mut self, reply: Reply) -> Result<(), KeeperError> {
        self.expect((reply == Reply::Done).then_some(()))
    }

    /// Requests a voucher for the process at the other end of a connection. The voucher arrives as
    /// a [`VouchResult`].
    ///
    /// # Errors
    /// The keeper refuses the request or has failed.
    pub fn vouch(&mut self, session: u64, socket: BorrowedFd<'_>) -> Result<(), KeeperError> {
        let reply = self.call(&Call::Vouch { session }, &[socket])?;
        self.expect_done(reply)
    }

    /// Returns a new voucher for a connection that has an earlier one.
    ///
    /// # Errors
    /// The keeper issues no further voucher or has failed.
    pub fn renew(
        &mut self,
        socket: BorrowedFd<'_>,
        voucher: Vec<u8>,
    ) -> Result<Vec<u8>, KeeperError> {
        let reply = self.call(&Call::Renew { voucher }, &[socket])?;
        let voucher = match reply {
            Reply::Renewed { voucher } => Some(voucher),
            _ => None,
        };
        self.expect(voucher)
    }

    /// Checks a voucher.
    ///
    /// # Errors
    /// The voucher is not valid, or the keeper has failed.
    pub fn verify(&mut self, voucher: Vec<u8>) -> Result<(), KeeperError> {
        let reply = self.call(&Call::Verify { voucher }, &[])?;
        self.expect_done(reply)
    }

    /// Receives the events that have arrived.
    pub fn receive_events(&mut self) {
        while !self.is_lost {
            let event = match fd_passing::receive(&self.events, MAX_RECORD_LEN, 0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => None,
                Ok((bytes, _)) => Event::read(&bytes).ok(),
            };
            match event {
                Some(Event::Vouched { session, voucher }) => {
                    self.vouch_results.push_back(VouchResult { session, voucher: Ok(voucher) });
                }
                Some(Event::NotVouched { session, reason }) => {
                    self.vouch_results.push_back(VouchResult { session, voucher: Err(reason) });
                }
                Some(Event::Ended { job, end, killed_for_memory }) if self.jobs.contains(&job) => {
                    let status = Some(match end {
                        ShepherdEnd::Exited(code) => Status::Exited(code),
                        ShepherdEnd::Signaled(signal) => Status::Signaled(signal.into()),
                    });
                    self.outcomes.insert(job, ShepherdOutcome { status, killed_for_memory });
                    self.has_new_outcomes = true;
                }
                Some(Event::Ended { .. }) => {}
                Some(Event::Logged { line }) => forward_warning(&line),
                Some(Event::Ready { .. } | Event::Unable { .. }) | None => self.is_lost = true,
            }
        }
    }

    /// Whether shepherds have ended since the last call.
    pub fn take_has_new_outcomes(&mut self) -> bool {
        std::mem::take(&mut self.has_new_outcomes)
    }

    /// Takes the answers to logins.
    pub fn take_vouch_results(&mut self) -> VecDeque<VouchResult> {
        std::mem::take(&mut self.vouch_results)
    }

    /// Ends the keeper: waits until it has ended its jobs, at most `SHUTDOWN_TIMEOUT`.
    pub fn close(&mut self) {
        let _ = SockRef::from(&self.calls).shutdown(Shutdown::Write);
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while !self.is_lost && Instant::now() < deadline {
            self.receive_events();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Makes the keeper start a shepherd with these sockets.
///
/// # Errors
/// The shepherd has not been started.
pub fn start(
    keeper: &SharedKeeper,
    request: StartRequest,
    sockets: [&OwnedFd; 2],
) -> Result<KeptJob, KeeperError> {
    let mut client = keeper.borrow_mut();
    let reply = client.call(&Call::Start(request), &sockets.map(OwnedFd::as_fd))?;
    let handle = match reply {
        Reply::Started { job } => Some(job),
        _ => None,
    };
    let handle = client.expect(handle)?;
    client.jobs.insert(handle);
    Ok(KeptJob { keeper: keeper.clone(), handle })
}

/// A job whose shepherd the keeper has started.
#[derive(Debug, Clone)]
pub struct KeptJob {
    keeper: SharedKeeper,
    handle: JobHandle,
}

impl KeptJob {
    /// Makes the keeper perform an action on the job.
    ///
    /// # Errors
    /// The action failed.
    pub fn act(&self, action: Action) -> Result<(), KeeperError> {
        let mut client = self.keeper.borrow_mut();
        if action == Action::Remove {
            client.jobs.remove(&self.handle);
            client.outcomes.remove(&self.handle);
        }
        let reply = client.call(&Call::Act { job: self.handle, action }, &[])?;
        client.expect_done(reply)
    }

    /// Makes the keeper start the supervisor of a tool with this socket.
    ///
    /// # Errors
    /// The supervisor has not been started.
    pub fn start_tool(&self, control: &OwnedFd) -> Result<(), KeeperError> {
        let mut client = self.keeper.borrow_mut();
        let reply = client.call(&Call::StartTool { job: self.handle }, &[control.as_fd()])?;
        client.expect_done(reply)
    }

    /// Whether the shepherd has ended, according to the events received so far. A shepherd counts
    /// as ended if the keeper is lost.
    pub fn has_ended(&self) -> bool {
        let client = self.keeper.borrow();
        client.is_lost || client.outcomes.contains_key(&self.handle)
    }

    /// The result of the shepherd that has ended.
    pub fn outcome(&self) -> ShepherdOutcome {
        self.keeper.borrow().outcomes.get(&self.handle).copied().unwrap_or_default()
    }
}
