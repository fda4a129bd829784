//! The keeper: the process of multi-user mode that runs as root. It performs privileged actions for
//! its daemon, which has no privileges, and decides whether each action is permitted. It reads only
//! the records of [`score_keeper`] and has no network. docs/admin/security.md says what a daemon
//! can make the keeper do.
//!
//! | file | contents |
//! |---|---|
//! | `kept_jobs.rs` | directories, cgroups and shepherds of jobs |
//! | `leftovers.rs` | removal of the directories of killed shepherds |
//! | `user_names.rs` | the names of users who log in |
//! | `vouchers.rs` | vouchers, which identify clients |

mod kept_jobs;
mod leftovers;
mod user_names;
mod vouchers;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_keeper::record::{Call, Event, MAX_RECORD_LEN, Reply, StartRequest};
use score_keeper::voucher;
use score_sys::fd_passing;
use score_tree::key::Key;

use crate::daemon::service::warn;
use crate::daemon::shepherd_handle::KnownChildren;
use crate::sys::process::{self, WaitResult};
use crate::sys::realtime::{self, Inherit};
use crate::sys::{credentials, descriptor};
use kept_jobs::KeptJobs;
use score_job::host::rate_limit::TokenBucket;
use vouchers::VoucherIssuer;

/// The name of the process.
const PROCESS_NAME: &std::ffi::CStr = c"scored-keeper";
/// The largest number of descriptors in a call.
const MAX_CALL_FDS: usize = 2;
/// The maximum number of calls that are answered before the keeper does other work.
const CALLS_PER_TURN: usize = 64;
/// The maximum number of events that wait for the daemon. Each login and each job causes at most
/// one, apart from the few lines that the keeper logs.
const MAX_QUEUED_EVENTS: usize = 1 << 19;
/// How long the jobs may take to end when the keeper ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(800);
/// Rate limit of logged refusals: this many at once, then one in each interval.
const LOG_BURST: u32 = 10;
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The options of a keeper.
#[derive(Debug)]
pub struct KeeperOptions {
    /// The socket for calls.
    pub calls: OwnedFd,
    /// The socket for events.
    pub events: OwnedFd,
    /// The local socket at which users connect.
    pub listener: OwnedFd,
    /// The path of the local socket.
    pub socket: PathBuf,
    /// The path of the cluster key, if the cluster has more than one host.
    pub key: Option<PathBuf>,
    /// The name of this host.
    pub host: String,
    /// The uid of the daemon. This user may not have jobs.
    pub daemon_uid: u32,
    /// The network interfaces on which jobs may have raw sockets.
    pub interfaces: Vec<String>,
    /// `-nonamespace`
    pub no_namespace: bool,
}

/// Why the keeper's loop ends.
enum LoopEnd {
    /// The daemon has ended.
    DaemonEnded,
    /// The daemon has violated the protocol.
    Misbehaved(String),
}

struct Keeper {
    calls: OwnedFd,
    events: OwnedFd,
    /// Events that the socket has not accepted yet.
    queue: VecDeque<Vec<u8>>,
    /// The local socket of users. The keeper holds it open so that its file identifies this socket
    /// only.
    listener: OwnedFd,
    daemon_uid: u32,
    signals: SignalFd,
    issuer: VoucherIssuer,
    jobs: KeptJobs,
    known_children: KnownChildren,
    log_limit: TokenBucket,
}

/// Serves a daemon until the daemon ends. Then ends the jobs and removes their remains.
///
/// # Errors
/// The error of a system call that failed before the keeper was ready.
pub fn run(options: KeeperOptions) -> io::Result<()> {
    process::set_name(PROCESS_NAME);
    // A core dump would contain the key of the cluster.
    process::forbid_dumps();
    process::leave_session();
    process::default_and_block_signals()?;
    process::become_subreaper();
    descriptor::reserve_low()?;
    descriptor::close_on_exec_from(3);
    let socket_path = options.socket.clone();
    let events = options.events.try_clone()?;
    match Keeper::new(options) {
        Err(reason) => fd_passing::try_send(&events, &Event::Unable { reason }.to_bytes(), &[]),
        Ok(keeper) => {
            drop(events);
            // A new daemon that waits for this path can use the path only after this call.
            credentials::remove_bound_file(&keeper.serve(), &socket_path);
            Ok(())
        }
    }
}

impl Keeper {
    fn new(options: KeeperOptions) -> Result<Self, String> {
        let to_text = |error: io::Error| error.to_string();
        let cluster_key = match &options.key {
            None => None,
            Some(path) => Some(Key::load(path).map_err(|error| {
                format!("{error} (scored -makekey FILE makes one; every host needs the same)")
            })?),
        };
        let link_key = cluster_key.as_ref().map(|key| voucher::link_key(key.bytes()));
        let voucher_key = cluster_key.map_or_else(|| Key::generate().map_err(to_text), Ok)?;
        let socket_file = credentials::bound_file(&options.listener).map_err(|error| {
            format!("{}: its file: {error} (CAP_NET_ADMIN is needed)", options.socket.display())
        })?;
        let known_children = KnownChildren::default();
        let issuer = VoucherIssuer::new(
            voucher_key.bytes(),
            socket_file,
            &options.host,
            known_children.clone(),
        );
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), flags)
            .map_err(|errno| errno.to_string())?;
        let (jobs, errors) =
            KeptJobs::new(options.no_namespace, options.interfaces, known_children.clone());
        // Use the realtime class, because a daemon in that class waits for the answers.
        let _ = realtime::enter(Inherit::Normal);
        let mut keeper = Self {
            calls: options.calls,
            events: options.events,
            queue: VecDeque::new(),
            listener: options.listener,
            daemon_uid: options.daemon_uid,
            signals,
            issuer,
            jobs,
            known_children,
            log_limit: TokenBucket::new(LOG_BURST, LOG_INTERVAL, Instant::now()),
        };
        keeper.report(&Event::Ready { link_key });
        for error in errors {
            keeper.log(&format!("left by an earlier scored: {error}"));
        }
        Ok(keeper)
    }

    /// Runs the loop. Returns the local socket of users when the loop has ended.
    fn serve(mut self) -> OwnedFd {
        let end = loop {
            let served = self.send_events().and_then(|()| {
                self.wait();
                self.answer_calls()
            });
            if let Err(end) = served {
                break end;
            }
            self.reap();
            let events = self.issuer.finish_lookups();
            events.iter().for_each(|event| self.report(event));
            self.jobs.advance(Instant::now());
        };
        if let LoopEnd::Misbehaved(reason) = end {
            warn(&format!("the keeper ends all jobs: {reason}"));
        }
        self.shut_down();
        self.listener
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let wants_write = !self.queue.is_empty();
        let event_flags = if wants_write { PollFlags::POLLOUT } else { PollFlags::empty() };
        let mut polled = vec![
            PollFd::new(self.calls.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.events.as_fd(), event_flags),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        let names = self.issuer.names();
        polled.extend(names.pipes().map(|pipe| PollFd::new(pipe, PollFlags::POLLIN)));
        let now = Instant::now();
        let deadline = self.jobs.deadline(now).into_iter().chain(names.deadline()).min();
        let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
            let left = deadline.saturating_duration_since(now);
            let rounded_up = if left.is_zero() { left } else { left + Duration::from_millis(1) };
            PollTimeout::try_from(rounded_up).unwrap_or(PollTimeout::MAX)
        });
        // An error such as EINTR has the effect of an early time-out.
        let _ = poll(&mut polled, timeout);
    }

    fn answer_calls(&mut self) -> Result<(), LoopEnd> {
        for _ in 0..CALLS_PER_TURN {
            let (bytes, descriptors) =
                match fd_passing::try_receive(&self.calls, MAX_RECORD_LEN, MAX_CALL_FDS) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(LoopEnd::Misbehaved(format!("a call: {error}"))),
                    Ok((bytes, _)) if bytes.is_empty() => return Err(LoopEnd::DaemonEnded),
                    Ok(received) => received,
                };
            let call =
                Call::read(&bytes).ok().filter(|call| call.descriptor_count() == descriptors.len());
            let Some(call) = call else {
                return Err(LoopEnd::Misbehaved("the daemon has sent a malformed call".to_owned()));
            };
            let reply = self.answer(call, &descriptors);
            let sent = fd_passing::try_send(&self.calls, &reply.to_bytes(), &[]);
            sent.map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => {
                    LoopEnd::Misbehaved("the daemon does not read its answers".to_owned())
                }
                _ => LoopEnd::DaemonEnded,
            })?;
        }
        Ok(())
    }

    /// Carries out a call and returns the reply.
    fn answer(&mut self, call: Call, descriptors: &[OwnedFd]) -> Reply {
        match (call, descriptors) {
            (Call::Vouch { session }, [socket]) => {
                let result = self.issuer.vouch(session, socket);
                let result = result.map(|event| event.iter().for_each(|event| self.report(event)));
                self.done_or_refused("a voucher", result)
            }
            (Call::Renew { voucher }, [socket]) => match self.issuer.renew(socket, &voucher) {
                Ok(voucher) => Reply::Renewed { voucher },
                Err(reason) => self.refuse("a new voucher", reason),
            },
            (Call::Verify { voucher }, _) => {
                let result = self.issuer.verify(&voucher).map(drop);
                self.done_or_refused("a login of another host", result)
            }
            (Call::Start(request), [control, switch]) => self.start(&request, [control, switch]),
            (Call::StartTool { job }, [control]) => match self.jobs.start_tool(job, control) {
                Ok(()) => Reply::Done,
                Err(reason) => Reply::Failed { reason },
            },
            (Call::Act { job, action }, _) => match self.jobs.act(job, action) {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Failed { reason: error.to_string() },
            },
            // Not reachable, because the number of descriptors has been checked.
            (
                Call::Vouch { .. } | Call::Renew { .. } | Call::Start(_) | Call::StartTool { .. },
                _,
            ) => Reply::Failed { reason: "a descriptor is missing".to_owned() },
        }
    }

    fn start(&mut self, request: &StartRequest, sockets: [&OwnedFd; 2]) -> Reply {
        let voucher = match self.issuer.verify(&request.voucher) {
            Ok(voucher) => voucher,
            Err(reason) => return self.refuse("a job", reason),
        };
        if voucher.uid == self.daemon_uid {
            return self.refuse("a job", "the daemon's own user has no jobs".to_owned());
        }
        match self.jobs.start(request, voucher, sockets) {
            Ok(job) => Reply::Started { job },
            Err(reason) => Reply::Failed { reason },
        }
    }

    fn done_or_refused(&mut self, what: &str, result: Result<(), String>) -> Reply {
        match result {
            Ok(()) => Reply::Done,
            Err(reason) => self.refuse(what, reason),
        }
    }

    /// Refuses a call and logs the refusal.
    fn refuse(&mut self, what: &str, reason: String) -> Reply {
        let now = Instant::now();
        if self.log_limit.next_at(now).is_none() {
            self.log_limit.take(now);
            self.log(&format!("the keeper has refused {what}: {reason}"));
        }
        Reply::Refused { reason }
    }

    /// Logs a line. The daemon forwards it to the syslog receiver, because the keeper has no
    /// network.
    fn log(&mut self, line: &str) {
        warn(line);
        self.report(&Event::Logged { line: line.to_owned() });
    }

    fn report(&mut self, event: &Event) {
        self.queue.push_back(event.to_bytes());
    }

    fn send_events(&mut self) -> Result<(), LoopEnd> {
        while let Some(bytes) = self.queue.front() {
            match fd_passing::try_send(&self.events, bytes, &[]) {
                Ok(()) => _ = self.queue.pop_front(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(LoopEnd::DaemonEnded),
            }
        }
        match self.queue.len() {
            ..=MAX_QUEUED_EVENTS => Ok(()),
            _ => Err(LoopEnd::Misbehaved("the daemon does not read events".to_owned())),
        }
    }

    /// Reaps all children that have exited.
    fn reap(&mut self) {
        if !matches!(self.signals.read_signal(), Ok(Some(_))) {
            return;
        }
        while matches!(self.signals.read_signal(), Ok(Some(_))) {}
        loop {
            let events = self.jobs.reap_shepherds();
            events.iter().for_each(|event| self.report(event));
            let Some(pid) = process::first_exited_child() else { return };
            if self.jobs.is_shepherd(pid) {
                // The shepherd has exited since the check above. The next iteration handles it.
                continue;
            }
            let WaitResult::Exited(reaped) = process::reap_one(pid) else { return };
            self.known_children.borrow_mut().remove(&pid);
            self.issuer.on_child_reaped(pid);
            let line = self.jobs.on_child_reaped(reaped);
            line.iter().for_each(|line| self.log(line));
        }
    }

    /// Ends all jobs, because the daemon has ended.
    fn shut_down(&mut self) {
        self.jobs.end_all();
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while self.jobs.is_ending() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
            self.jobs.reap_shepherds();
            self.jobs.advance(Instant::now());
        }
        self.jobs.finish(SHUTDOWN_TIMEOUT);
    }
}
