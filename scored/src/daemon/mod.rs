//! The loop of a daemon: sessions of scruns, links to other daemons, the jobs that it leads, and
//! its part in the jobs that run on its host. What is decided is decided in [`crate::job`] and
//! [`tree_node`]; here it is moved.

mod daemon_bringup;
pub mod gang_driver;
mod host_job;
mod host_limits;
mod host_rotation;
mod job_directory;
mod jobs;
mod local_listener;
mod metrics_sessions;
mod peers;
mod program_cache;
mod program_transfer;
mod rejected_connections;
mod scout;
pub mod service;
mod session;
mod shepherd_handle;
mod submit;
mod tree_node;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_proto::message::ClientMessage;
use score_proto::peer_message::{JoinRequest, PeerMessage};

use crate::gang;
use crate::job::master::MasterEvent;
use crate::launch::LaunchOptions;
use crate::sys::cgroup::Cgroups;
use crate::sys::cpu_latency::CpuLatencyHold;
use crate::sys::process::{self, WaitResult};
use crate::sys::{descriptor, realtime};
use daemon_bringup::DaemonBringup;
use gang_driver::GangDriver;
use host_job::HostJob;
use host_rotation::HostRotation;
use jobs::{LedJob, TreePosition};
use peers::{PeerEvent, Peers};
use program_cache::ProgramCache;
use scout::Scout;
use service::Service;
use session::ClientSession;
use shepherd_handle::{KnownChildren, ShepherdHandle};

const SIGNALS: Token = Token(0);
const LISTENER: Token = Token(1);
/// What daemons and their launchers say.
const LAUNCHER_OUTPUT: Token = Token(2);
/// The standard input of a daemon that was started by another: its end is the server's.
const PARENT_STDIN: Token = Token(3);
/// Somebody calls at the local socket.
const SCOUT_LISTENER: Token = Token(4);
/// Where local scruns of a service call.
const SERVICE_LISTENER: Token = Token(5);
/// The slice is over.
const SLICE_TIMER: Token = Token(6);
/// Where the page is asked for.
const HTTP_LISTENER: Token = Token(7);
/// The first token that is given to sessions, shepherds and links.
const FIRST_DYNAMIC_TOKEN: usize = 8;

/// How often it is looked at which links may be silent for long.
const HEARTBEAT_RATE_INTERVAL: Duration = Duration::from_secs(1);
/// From one look for what earlier jobs have left to the next, at least.
const STALE_SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// How long only switches may be served, one after the other.
const FULL_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long daemons of other hosts may take to go.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(800);

/// When callers are looked for again that could not be taken, for want of descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// scrun's exit codes: a job that is refused, hosts that do not come up.
const EXIT_REFUSED: u8 = 2;
const EXIT_FAILED: u8 = 1;

/// What scrun tells on the command line.
#[derive(Debug)]
pub struct SingleUserOptions {
    /// Socket to scrun.
    pub control: OwnedFd,
    /// What it and other daemons have in common.
    pub common: CommonOptions,
}

/// What every daemon is told.
#[derive(Debug, Default)]
pub struct CommonOptions {
    /// `-nonamespace`: leave out the first rungs of the ladder.
    pub no_namespace: bool,
    /// How daemons of other hosts are to be started.
    pub launch_options: LaunchOptions,
    /// How jobs take turns on their processors.
    pub gang: gang::GangConfig,
}

/// What a server tells the daemon of another host on its command line.
#[derive(Debug)]
pub struct HostDaemonOptions {
    /// Where the server listens.
    pub connect: String,
    /// What the server calls this host.
    pub host: String,
    /// Where the key of the cluster is.
    pub key: OsString,
    /// What it and other daemons have in common.
    pub common: CommonOptions,
}

/// Serves one scrun, and goes with it.
///
/// # Errors
/// What the system refused before the job began.
pub fn run(options: SingleUserOptions) -> io::Result<()> {
    setup_process()?;
    let mut daemon = Daemon::new(options.common)?;
    // scrun's death is seen on the socket; this also works when somebody else holds that open.
    process::die_with_parent(libc::SIGTERM);
    daemon.add_session(options.control)?;
    daemon.run_loop()
}

/// The daemon of another host: serves the server that has started it, and goes with it.
///
/// # Errors
/// A server that cannot be reached, or what the system refused.
pub fn run_host(options: HostDaemonOptions) -> io::Result<()> {
    setup_process()?;
    let key = daemon_bringup::read_key(&options.key).map_err(io::Error::other)?;
    let is_unknown_host = options.host == crate::launch::UNKNOWN_HOST;
    let name = if is_unknown_host { crate::launch::local_name() } else { options.host };
    let mut daemon = Daemon::new(options.common)?;
    if options.key == crate::launch::SECRET_ON_STDIN {
        // Where it is no pipe there is nothing to watch; the link to the server tells as well.
        let _ =
            daemon.poll.registry().register(&mut SourceFd(&0), PARENT_STDIN, Interest::READABLE);
    }
    let stream = daemon_bringup::connect(&options.connect).map_err(io::Error::other)?;
    let local_ip = stream.local_addr()?.ip();
    let mut peers = Peers::new(key, name.clone(), daemon.poll.registry(), LISTENER)?;
    let token = daemon.allocate_token(TokenOwner::Peer);
    peers.adopt(stream, daemon.poll.registry(), token)?;
    let address = SocketAddr::new(local_ip, peers.port()?);
    let incarnation = peers.incarnation();
    let join = JoinRequest {
        name,
        incarnation,
        address,
        server_incarnation: None,
        unreachable_parent: None,
        attach_seq: 0,
    };
    peers.send(token.0, PeerMessage::Join(join));
    daemon.peers = Some(peers);
    daemon.server_link = Some(token.0);
    daemon.run_loop()
}

fn setup_process() -> io::Result<()> {
    process::leave_session();
    process::default_and_block_signals()?;
    process::become_subreaper();
    descriptor::close_on_exec_from(3);
    Ok(())
}

/// Whose socket a token stands for.
#[derive(Debug, Clone, Copy)]
enum TokenOwner {
    Session(usize),
    /// The shepherd of this job.
    Shepherd(u32),
    /// That one's thread that switches.
    SwitchThread(u32),
    /// Another daemon.
    Peer,
    /// Somebody who asks for the page.
    HttpConnection,
}

struct Daemon {
    poll: Poll,
    signals: SignalFd,
    options: CommonOptions,
    token_owners: HashMap<Token, TokenOwner>,
    next_token: usize,
    sessions: HashMap<usize, ClientSession>,
    /// Links to other daemons, where there are any.
    peers: Option<Peers>,
    /// The link to the server that has started this daemon.
    server_link: Option<usize>,
    /// Hosts that were started for a session.
    bringup: Option<DaemonBringup>,
    /// The scout session that is served.
    scout: Option<Scout>,
    /// Jobs led from here, by number.
    led_jobs: HashMap<u32, LedJob>,
    /// Which of them run now.
    gang_driver: GangDriver,
    /// Jobs of this host that take turns without the gang scheduler.
    host_rotation: HostRotation,
    /// The processors, as long as jobs take turns.
    latency_hold: CpuLatencyHold,
    /// Places in the trees of jobs.
    host_jobs: HashMap<TreePosition, HostJob>,
    known_children: KnownChildren,
    program_cache: ProgramCache<TreePosition>,
    next_job: u32,
    /// The clock of masters counts from here.
    started_at: Instant,
    /// Sessions that watch a job, and which.
    metrics_sessions: BTreeMap<usize, u32>,
    /// Connections that were dropped before they were anybody's.
    rejected_count: u64,
    is_ending: bool,
    /// When it was looked last for what earlier jobs have left.
    last_sweep_at: Option<Instant>,
    cgroups: Cgroups,
    /// Where every user is served.
    service: Option<Service>,
}

impl Daemon {
    fn new(options: CommonOptions) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut signal_set = SigSet::from(Signal::SIGCHLD);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            signal_set.add(signal);
        }
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&signal_set, flags)?;
        let mut source = SourceFd(&signals.as_raw_fd());
        poll.registry().register(&mut source, SIGNALS, Interest::READABLE)?;
        let slices = GangDriver::new(poll.registry(), SLICE_TIMER)?;
        Ok(Self {
            poll,
            signals,
            options,
            token_owners: HashMap::new(),
            next_token: FIRST_DYNAMIC_TOKEN,
            sessions: HashMap::new(),
            peers: None,
            server_link: None,
            bringup: None,
            scout: None,
            led_jobs: HashMap::new(),
            gang_driver: slices,
            host_rotation: HostRotation::default(),
            latency_hold: CpuLatencyHold::default(),
            host_jobs: HashMap::new(),
            known_children: KnownChildren::default(),
            program_cache: ProgramCache::default(),
            next_job: 1,
            started_at: Instant::now(),
            metrics_sessions: BTreeMap::new(),
            rejected_count: 0,
            is_ending: false,
            last_sweep_at: None,
            cgroups: Cgroups::default(),
            service: None,
        })
    }

    fn allocate_token(&mut self, owner: TokenOwner) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.token_owners.insert(token, owner);
        token
    }

    /// This host's name in jobs.
    fn name(&self) -> String {
        self.peers.as_ref().map_or_else(system_host_name, |peers| peers.name().to_owned())
    }

    /// A scrun has called; it is known by this number.
    fn add_session(&mut self, socket: OwnedFd) -> io::Result<usize> {
        let session_key = self.next_token;
        let token = self.allocate_token(TokenOwner::Session(session_key));
        self.sessions.insert(session_key, ClientSession::new(socket, self.poll.registry(), token)?);
        Ok(session_key)
    }

    /// Runs until nobody is left to run for.
    fn run_loop(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        let (mut rates_tuned_at, mut others_polled_at) = (Instant::now(), Instant::now());
        while !self.is_ending
            && (self.server_link.is_some() || self.service.is_some() || !self.sessions.is_empty())
        {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
            let signalled = self.mark_ready(&events);
            if self.advance_rotation() && self.is_only_switch_threads(&events) {
                continue;
            }
            // A switch is in a hurry: what else there is is looked at when it happens, or now and
            // then.
            let has_other_events = !self.is_only_slice_or_switch(&events)
                || others_polled_at.elapsed() > FULL_POLL_INTERVAL;
            if has_other_events {
                self.poll_other_sources();
                others_polled_at = Instant::now();
            }
            self.host_jobs.values_mut().for_each(HostJob::receive_reports);
            if signalled {
                self.on_signals();
            }
            self.tick_led_jobs();
            self.dispatch_pending();
            self.tick_gang();
            self.dispatch_pending();
            self.latency_hold.release_if_expired(Instant::now());
            if rates_tuned_at.elapsed() > HEARTBEAT_RATE_INTERVAL {
                // Not while a job is being launched.
                self.tune_heartbeats();
                rates_tuned_at = Instant::now();
            }
            loop {
                self.send_outboxes();
                let has_closed_sessions = self.flush();
                if !self.begin_ready_jobs() && !has_closed_sessions {
                    break;
                }
                // What that has led to is to be moved before the next wait.
                self.dispatch_pending();
            }
            if has_other_events {
                // When all orders are on their way.
                self.serve_http();
            }
            self.gang_driver.set_timer();
        }
        self.close_scout();
        for (_, mut host_job) in self.host_jobs.drain() {
            host_job.abort();
        }
        self.peers.iter_mut().for_each(|peers| peers.send_goodbyes("its work is done"));
        // Daemons that were started from here are asked to go, and are waited for.
        self.bringup.iter_mut().for_each(DaemonBringup::close);
        let child_pids: Vec<i32> = self.known_children.borrow_mut().drain().collect();
        process::wait_or_kill(&child_pids, SHUTDOWN_TIMEOUT);
        // What those could not remove that had to be killed, of jobs that a session has left.
        let job_ids: Vec<u32> = self.led_jobs.keys().copied().collect();
        job_ids.into_iter().for_each(|job| self.abort_job(job));
        Ok(())
    }

    /// Whether nothing has happened but that a slice is over, or that a job has stopped.
    fn is_only_slice_or_switch(&self, events: &Events) -> bool {
        let is_switch = |token: Token| token == SLICE_TIMER || self.is_switch_thread(token);
        !events.is_empty() && events.iter().all(|event| is_switch(event.token()))
    }

    /// Whether all of it was said by threads that switch.
    fn is_only_switch_threads(&self, events: &Events) -> bool {
        events.iter().all(|event| self.is_switch_thread(event.token()))
    }

    fn is_switch_thread(&self, token: Token) -> bool {
        matches!(self.token_owners.get(&token), Some(TokenOwner::SwitchThread(_)))
    }

    /// Hears whoever is not a shepherd, and does what is due.
    fn poll_other_sources(&mut self) {
        self.accept_clients();
        self.accept_local_clients();
        self.receive_from_peers();
        self.receive_from_sessions();
        self.advance_bringup();
        self.tick_cluster();
        self.update_page_subscriptions();
    }

    /// Notes what mio has reported; true when there are signals.
    fn mark_ready(&mut self, events: &Events) -> bool {
        let mut signalled = false;
        for event in events {
            match (event.token(), self.token_owners.get(&event.token())) {
                (SIGNALS, _) => signalled = true,
                (LISTENER, _) => self.accept(),
                (SCOUT_LISTENER, _) => self.on_listener_ready(),
                (PARENT_STDIN, _) => self.is_ending = true,
                (HTTP_LISTENER, _) => self.mark_page_ready(None),
                (Token(connection_id), Some(TokenOwner::HttpConnection)) => {
                    self.mark_page_ready(Some(connection_id))
                }
                (SERVICE_LISTENER, _) => {
                    self.service.iter_mut().for_each(Service::on_listener_ready)
                }
                (_, None) => {}
                (_, Some(TokenOwner::Session(session_key))) => {
                    self.sessions
                        .get_mut(session_key)
                        .into_iter()
                        .for_each(ClientSession::mark_readable);
                }
                (_, Some(TokenOwner::Shepherd(job))) => {
                    let host_job = self.host_jobs.get_mut(&(*job, false));
                    let shepherd = host_job.and_then(|host_job| host_job.shepherd.as_mut());
                    shepherd.into_iter().for_each(|one| one.control_link.mark_readable());
                }
                (_, Some(TokenOwner::SwitchThread(job))) => {
                    let host_job = self.host_jobs.get_mut(&(*job, false));
                    let shepherd = host_job.and_then(|host_job| host_job.shepherd.as_mut());
                    shepherd.into_iter().for_each(|one| one.switch_link.mark_readable());
                }
                (Token(link_id), Some(TokenOwner::Peer)) => {
                    self.peers.iter_mut().for_each(|peers| peers.mark_ready(link_id));
                }
            }
        }
        signalled
    }

    fn mark_page_ready(&mut self, connection_id: Option<usize>) {
        self.service.iter_mut().for_each(|service| service.mark_page_ready(connection_id));
    }

    fn accept(&mut self) {
        loop {
            let token = self.allocate_token(TokenOwner::Peer);
            let Some(peers) = &mut self.peers else { return };
            if !peers.accept(self.poll.registry(), token) {
                self.token_owners.remove(&token);
                return;
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let has_more = |host_job: &HostJob| {
            host_job.shepherd.as_ref().is_some_and(ShepherdHandle::may_have_more)
        };
        if self.sessions.values().any(ClientSession::may_have_more)
            || self.host_jobs.values().any(has_more)
            || self.peers.as_ref().is_some_and(Peers::may_have_more)
            || self.bringup.as_ref().is_some_and(DaemonBringup::may_have_more)
        {
            return Some(Duration::ZERO);
        }
        let accept_retry = self.has_pending_clients().then_some(ACCEPT_RETRY_INTERVAL);
        let link_timeout = self.peers.as_ref().and_then(Peers::deadline);
        let bringup_timeout = self.bringup.as_ref().and_then(DaemonBringup::deadline);
        let bringup_timeout =
            bringup_timeout.map(|due| due.saturating_duration_since(Instant::now()));
        let service_timeout = self.service.as_ref().map(Service::deadline);
        let hold_timeout = self.latency_hold.deadline();
        let hold_timeout = hold_timeout.map(|due| due.saturating_duration_since(Instant::now()));
        // epoll counts milliseconds: round up, or the loop would spin at the end.
        let led_jobs_timeout = self.led_jobs_deadline();
        let timeouts = [
            link_timeout,
            bringup_timeout,
            accept_retry,
            service_timeout,
            led_jobs_timeout,
            hold_timeout,
            self.login_deadline(),
        ];
        timeouts.into_iter().flatten().min().map(|left| left + Duration::from_millis(1))
    }

    fn receive_from_peers(&mut self) {
        let events = self.peers.as_mut().map(Peers::receive_events).unwrap_or_default();
        for (link_id, event) in events {
            match event {
                PeerEvent::Message(PeerMessage::Order { job, job_incarnation, body }) => {
                    self.on_order(link_id, (job, job_incarnation), &body);
                }
                PeerEvent::Message(PeerMessage::Report { job, job_incarnation, body }) => {
                    self.on_report(link_id, (job, job_incarnation), &body);
                }
                PeerEvent::Message(PeerMessage::Join(join)) if self.service.is_none() => {
                    self.on_join(link_id, &join);
                }
                PeerEvent::Message(message) => self.on_cluster_message(link_id, message),
                PeerEvent::Lost(name, reason) => {
                    self.token_owners.remove(&Token(link_id));
                    self.on_link_lost(link_id, name, &reason);
                }
            }
        }
    }

    fn on_link_lost(&mut self, link_id: usize, name: Option<String>, reason: &str) {
        if self.server_link == Some(link_id) {
            // Whoever has started us is gone, and does not want anything any more.
            self.is_ending = true;
        } else if name.is_none() && self.service.is_none() {
            self.report_rejected_connection(reason);
        }
        self.fail_jobs_on_link(link_id, reason);
        self.on_cluster_link_lost(name.as_deref(), reason);
        let (Some(name), Some(bringup)) = (name, &self.bringup) else { return };
        if bringup.spec.is_some() {
            let client_job = bringup.client_job;
            self.refuse(
                client_job,
                format!("host {name}: its daemon is gone: {reason}"),
                EXIT_FAILED,
            );
        } else {
            self.notify_host_lost(&name, reason);
        }
    }

    /// Takes pending signals, and children that have ended.
    fn on_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            self.is_ending |= signal.ssi_signo == libc::SIGTERM as u32;
        }
        self.host_jobs.values_mut().for_each(HostJob::check_shepherd_exit);
        while let Some(pid) = process::first_exited_child() {
            let WaitResult::Exited(reaped) = realtime::run_as_normal(|| process::reap_one(pid))
            else {
                return;
            };
            self.known_children.borrow_mut().remove(&pid);
            let progress =
                self.bringup.as_mut().and_then(|bringup| bringup.on_child_exit(pid, reaped.status));
            self.report_bringup_progress(progress.unwrap_or_default());
        }
    }

    /// Writes what sockets take; true when a session is over.
    fn flush(&mut self) -> bool {
        for host_job in self.host_jobs.values_mut() {
            if let Some(shepherd) = &mut host_job.shepherd {
                shepherd.flush(self.poll.registry());
            }
        }
        self.peers.iter_mut().for_each(Peers::flush);
        for session in self.sessions.values_mut() {
            session.flush();
            session.update_interest(self.poll.registry());
        }
        let closed_sessions: Vec<usize> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.is_closed())
            .map(|(session_key, _)| *session_key)
            .collect();
        let any_closed = !closed_sessions.is_empty();
        for session_key in closed_sessions {
            self.is_ending |=
                self.scout.as_ref().is_some_and(|scout| scout.control_session == session_key);
            self.unwatch(session_key);
            let session = self.sessions.remove(&session_key);
            let jobs = session.as_ref().map(ClientSession::job_ids).unwrap_or_default();
            jobs.into_iter().for_each(|job| self.drop_job(job));
            session.into_iter().for_each(|session| self.on_session_end(&session));
            self.token_owners.retain(
                |_, owner| !matches!(owner, TokenOwner::Session(one) if *one == session_key),
            );
        }
        any_closed
    }
}

impl Daemon {
    /// Ends a job that nobody wants to hear of any more. A daemon that stays sees it to its end:
    /// only then its hosts are free for others.
    fn drop_job(&mut self, job: u32) {
        match self.service {
            Some(_) => self.step_master(Some(job), MasterEvent::FromClient(ClientMessage::Kill)),
            None => self.abort_job(job),
        }
    }
}

fn system_host_name() -> String {
    match nix::sys::utsname::uname() {
        Ok(name) => name.nodename().to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}

/// A number that nobody can guess.
fn random_u64() -> io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
