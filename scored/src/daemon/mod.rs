//! The main loop of a daemon. It serves the sessions of clients, the links to other daemons, the
//! jobs that the daemon leads, and the local parts of jobs. [`score_job`] makes the decisions; this
//! module transports the messages.

#[cfg(test)]
mod authorization_tests;
mod client_request;
mod daemon_bringup;
mod daemon_jobs;
mod deadlines;
mod event_sources;
mod host_job;
mod host_jobs;
mod host_limits;
mod host_tools;
pub mod job_directory;
mod jobs;
mod keeper_client;
mod local_listener;
mod loop_clock;
mod peers;
pub mod program_folders;
mod rejected_connections;
mod scout;
pub mod service;
mod session;
mod session_state;
mod session_transport;
mod sessions;
pub mod shepherd_handle;
mod single_user;
mod slice_timer;
mod stop_enforcer;
mod submit;
mod tool_listener;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Token};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_job::gang;
use score_job::host::turn_times::TurnPhase;
use score_job::host::usage::Usage;
use score_job::jobs::{ClientJob, Input, JobTag, Jobs, LinkId, SessionKey};
use score_job::metrics_subscribers::Subscriber;
use score_proto::exit_code::EXIT_FAILED;
use score_proto::ids::JobId;
use score_proto::message::Level;
use score_proto::peer_message::{JoinRequest, PeerMessage};

use crate::launch::{ConnectList, LaunchOptions};
use crate::sys::cpu_latency::CpuLatencyHold;
use crate::sys::process::{self, WaitResult};
use crate::sys::{descriptor, realtime};
use daemon_bringup::{CONNECT_TIMEOUT, DaemonBringup};
use daemon_jobs::DaemonJobs;
use event_sources::{
    EventSources, HTTP_LISTENER, KEEPER, LISTENER, PARENT_STDIN, SCOUT_LISTENER, SERVICE_LISTENER,
    SIGNALS, SLICE_TIMER, TOOL_LISTENER, TokenOwner,
};
use host_jobs::HostJobs;
use loop_clock::LoopClock;
use peers::{PeerEvent, Peers};
use scout::Scout;
use service::{JobsAtTime, LogTopic, Service};
use session::ClientSession;
use sessions::Sessions;
use single_user::SingleUser;
use slice_timer::SliceTimer;
use tool_listener::ToolListener;

/// How often the daemon decides which links may send less frequent heartbeats.
const HEARTBEAT_RATE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time for which the loop serves only gang switches.
const FULL_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long daemons of other hosts may take to exit.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(800);

/// The options with which scrun starts its own daemon.
#[derive(Debug)]
pub struct SingleUserOptions {
    /// Socket to scrun.
    pub control: OwnedFd,
    /// Options that all daemons have.
    pub common: CommonOptions,
}

/// Options that all daemons have.
#[derive(Debug, Default)]
pub struct CommonOptions {
    /// `-nonamespace`: start jobs without a PID namespace.
    pub no_namespace: bool,
    /// How daemons of other hosts are started.
    pub launch_options: LaunchOptions,
    /// How jobs share their processors in time.
    pub gang: gang::GangConfig,
    /// `-cleanup`: how long tools may clean up after the end of their job.
    pub tool_cleanup: Option<Duration>,
}

/// The options with which a server starts the daemon of another host.
#[derive(Debug)]
pub struct HostDaemonOptions {
    /// The addresses at which the server listens.
    pub connect: ConnectList,
    /// The server's name for this host, or `UNKNOWN_HOST`.
    pub host: String,
    /// The file with the cluster key, or `SECRET_ON_STDIN`.
    pub key: OsString,
    /// Options that all daemons have.
    pub common: CommonOptions,
}

/// Serves one scrun or scout, and exits when this client exits.
///
/// # Errors
/// The error of a system call that failed before the job began.
pub fn run(options: SingleUserOptions) -> io::Result<()> {
    setup_process()?;
    let mut daemon = Daemon::new(options.common)?;
    // The closed socket shows that the client has exited. The signal arrives even if another
    // process keeps the socket open.
    process::die_with_parent(libc::SIGTERM);
    daemon.sessions.connect(options.control, &mut daemon.sources)?;
    daemon.single_user.tool_listener = ToolListener::open(daemon.sources.registry(), TOOL_LISTENER);
    daemon.run_loop()
}

/// Runs the daemon of another host. The daemon serves the server that has started it, and exits
/// when the server exits.
///
/// # Errors
/// The server cannot be reached, the key cannot be read, or a system call failed.
pub fn run_host(options: HostDaemonOptions) -> io::Result<()> {
    setup_process()?;
    let key = daemon_bringup::read_key(&options.key).map_err(io::Error::other)?;
    let is_unknown_host = options.host == crate::launch::UNKNOWN_HOST;
    let name = if is_unknown_host { crate::launch::local_name() } else { options.host };
    let mut daemon = Daemon::new(options.common)?;
    if options.key == crate::launch::SECRET_ON_STDIN {
        // epoll does not support standard input if it is a file. The link then shows the end of the
        // server.
        let _ =
            daemon.sources.registry().register(&mut SourceFd(&0), PARENT_STDIN, Interest::READABLE);
    }
    let stream = options.connect.connect(CONNECT_TIMEOUT).map_err(io::Error::other)?;
    let local_ip = stream.local_addr()?.ip();
    let mut peers = Peers::new(key, name.clone(), daemon.sources.registry(), LISTENER)?;
    let token = daemon.sources.allocate(TokenOwner::Peer);
    peers.adopt(stream, daemon.sources.registry(), token)?;
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
    let server_link = LinkId(token.0);
    peers.send(server_link, PeerMessage::Join(join));
    daemon.peers = Some(peers);
    daemon.update_identity();
    daemon.single_user.server_link = Some(server_link);
    daemon.run_loop()
}

fn setup_process() -> io::Result<()> {
    process::leave_session();
    process::default_and_block_signals()?;
    process::become_subreaper();
    descriptor::close_on_exec_from(3);
    Ok(())
}

struct Daemon {
    sources: EventSources,
    signals: SignalFd,
    options: CommonOptions,
    sessions: Sessions,
    /// Links to other daemons, if this daemon has any.
    peers: Option<Peers>,
    /// The state of single-user mode.
    single_user: SingleUser,
    /// Controls the jobs that this daemon leads, and the local parts of other jobs.
    jobs: DaemonJobs,
    /// Keeps the wake-up latency of the processors low while jobs share them in time.
    latency_hold: CpuLatencyHold,
    host_jobs: HostJobs,
    /// The resources that each user consumes in this daemon.
    usage: Usage,
    loop_clock: LoopClock,
    is_ending: bool,
    /// The state of multi-user mode.
    service: Option<Service>,
}

impl Daemon {
    fn new(options: CommonOptions) -> io::Result<Self> {
        let sources = EventSources::new()?;
        let mut signal_set = SigSet::from(Signal::SIGCHLD);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            signal_set.add(signal);
        }
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&signal_set, flags)?;
        let mut source = SourceFd(&signals.as_raw_fd());
        sources.registry().register(&mut source, SIGNALS, Interest::READABLE)?;
        let slice_timer = SliceTimer::new(sources.registry(), SLICE_TIMER)?;
        let host_jobs = HostJobs::new(&options);
        Ok(Self {
            sources,
            signals,
            options,
            sessions: Sessions::default(),
            peers: None,
            single_user: SingleUser::default(),
            jobs: DaemonJobs::new(slice_timer),
            latency_hold: CpuLatencyHold::default(),
            host_jobs,
            usage: Usage::new(Instant::now()),
            loop_clock: LoopClock::default(),
            is_ending: false,
            service: None,
        })
    }

    /// Runs until there is no session of a front end, no server and no service.
    fn run_loop(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        let (mut heartbeats_tuned_at, mut others_polled_at) = (Instant::now(), Instant::now());
        while !self.is_ending
            && (self.single_user.server_link.is_some()
                || self.service.is_some()
                || self.sessions.has_front_end())
        {
            let timeout = self.timeout(self.loop_clock.recent_time());
            if let Some(line) = self.loop_clock.end_turn() {
                let service = self.service.iter_mut();
                service.for_each(|service| service.warn_about(LogTopic::Daemon, &line));
            }
            self.sources.wait(&mut events, timeout)?;
            self.loop_clock.start_turn();
            let signalled = self.mark_ready(&events);
            let (host_jobs, registry) = (&mut self.host_jobs, self.sources.registry());
            if self.jobs.advance_rotation(host_jobs, &mut self.usage, registry)
                && self.sources.is_only_switch_threads(&events)
            {
                self.set_slice_timer();
                continue;
            }
            self.loop_clock.end_phase(TurnPhase::Events);
            // A gang switch is urgent. Therefore, other sources are polled only if they have
            // events, and at intervals.
            let turn_started_at = Instant::now();
            let has_other_events = !self.sources.is_only_slice_or_switch(&events)
                || turn_started_at > others_polled_at + FULL_POLL_INTERVAL
                || self.accept_pause_end().is_some_and(|end| end <= turn_started_at);
            if has_other_events {
                self.poll_other_sources();
                others_polled_at = Instant::now();
                self.loop_clock.end_phase(TurnPhase::Messages);
            }
            let (jobs, peers) = (self.jobs.state(), self.peers.as_ref());
            let is_parent_slow = |job| is_parent_slow(job, jobs, peers);
            self.host_jobs.receive_reports(&mut self.usage, is_parent_slow);
            self.loop_clock.end_phase(TurnPhase::Reports);
            if signalled {
                self.on_signals();
                self.loop_clock.end_phase(TurnPhase::Signals);
            }
            self.enforce_stops();
            self.host_jobs.advance_tools();
            self.dispatch_pending();
            self.jobs.on(Input::Tick);
            self.dispatch_pending();
            if self.latency_hold.release_if_expired(Instant::now()) {
                self.log_if_verbose("the processors may sleep: no jobs take turns");
            }
            self.host_jobs.remove_unused_folders();
            if heartbeats_tuned_at.elapsed() > HEARTBEAT_RATE_INTERVAL {
                // An update at each launch would delay jobs.
                if let Some(peers) = &mut self.peers {
                    let jobs = self.jobs.state();
                    self.single_user.tune_heartbeats(peers, |link| jobs.uses_link(link));
                }
                heartbeats_tuned_at = Instant::now();
            }
            self.loop_clock.end_phase(TurnPhase::Jobs);
            loop {
                self.send_outboxes();
                self.host_jobs.start_tools(&mut self.sources, &mut self.usage);
                let has_closed_sessions = self.flush();
                if !self.begin_pending_jobs() && !has_closed_sessions {
                    break;
                }
                // Dispatch the resulting messages before the next wait.
                self.dispatch_pending();
            }
            let settled_at = Instant::now();
            self.sessions.settle(|uid| self.usage.may_be_read(uid, settled_at));
            self.loop_clock.end_phase(TurnPhase::Sending);
            if has_other_events {
                // All orders have been sent by now, so the page does not delay them.
                self.serve_page();
                self.loop_clock.end_phase(TurnPhase::Page);
                self.loop_clock.set_turn_time(turn_started_at.elapsed());
            }
            self.set_slice_timer();
        }
        self.single_user.close_scout();
        self.jobs.on(Input::AbortAllHere);
        self.dispatch_pending();
        self.host_jobs.wait_for_ending(SHUTDOWN_TIMEOUT);
        self.host_jobs.close_folders();
        self.peers.iter_mut().for_each(|peers| peers.send_goodbyes("its work is done"));
        // Ask the daemons that this one has started to exit, then wait for them.
        self.single_user.bringup.iter_mut().for_each(DaemonBringup::close);
        process::wait_or_kill(&self.host_jobs.take_children(), SHUTDOWN_TIMEOUT);
        // Remove the remains of jobs of ended sessions that killed daemons could not remove.
        let led_jobs = self.jobs.state().led_job_ids();
        led_jobs.into_iter().for_each(|job| self.jobs.on(Input::Abort(job)));
        self.dispatch_pending();
        self.host_jobs.wait_for_ending(SHUTDOWN_TIMEOUT);
        self.host_jobs.close_keeper();
        Ok(())
    }

    /// Answers the requests of the status page's readers.
    fn serve_page(&mut self) {
        let Some(service) = &mut self.service else { return };
        let led_jobs = JobsAtTime { jobs: self.jobs.state(), now: self.jobs.now() };
        let readings = service.serve_http(
            &mut self.sources,
            &mut self.usage,
            led_jobs,
            self.loop_clock.phases(),
        );
        readings.into_iter().for_each(|job| self.jobs.on(Input::PageStacks(job)));
    }

    /// Handles all sources except shepherds, and does all other work that is due.
    fn poll_other_sources(&mut self) {
        if let Some(scout) = &mut self.single_user.scout {
            scout.accept_clients(&mut self.sessions, &mut self.sources);
        }
        if let Some(listener) = &mut self.single_user.tool_listener {
            listener.accept_sessions(&mut self.sessions, &mut self.sources);
        }
        if let Some(service) = &mut self.service {
            service.accept_clients(&mut self.sessions, &mut self.sources, &mut self.usage);
        }
        self.receive_from_peers();
        self.receive_from_keeper();
        self.renew_vouchers();
        self.receive_from_sessions();
        if let Some(service) = &mut self.service {
            service.drop_late_clients(&mut self.sessions);
        }
        self.single_user.advance_bringup(&mut self.host_jobs, &mut self.sessions);
        self.tick_cluster();
        self.finish_reset();
        if let Some(service) = &mut self.service {
            for (job, period_ms) in service.page_subscriptions(self.jobs.state()) {
                let subscriber = Subscriber::Page;
                self.jobs.on(Input::Subscribe { job, subscriber, period_ms });
            }
            service.reopen_page(self.sources.registry(), Instant::now());
            service.notify_watchdog();
        }
    }

    /// Marks the sources of mio's events as ready. Returns whether there are signals.
    fn mark_ready(&mut self, events: &Events) -> bool {
        let mut signalled = false;
        for event in events {
            match (event.token(), self.sources.owner(event.token())) {
                (SIGNALS, _) => signalled = true,
                (LISTENER, _) => {
                    self.peers.iter_mut().for_each(Peers::on_listener_ready);
                }
                (SCOUT_LISTENER, _) => {
                    self.single_user.scout.iter_mut().for_each(Scout::mark_ready);
                }
                (TOOL_LISTENER, _) => {
                    self.single_user.tool_listener.iter_mut().for_each(ToolListener::mark_ready);
                }
                (PARENT_STDIN, _) => self.is_ending = true,
                (HTTP_LISTENER, _) => {
                    self.service.iter_mut().for_each(|one| one.mark_page_ready(None));
                }
                (Token(connection_id), Some(TokenOwner::HttpConnection)) => {
                    let service = self.service.iter_mut();
                    service.for_each(|one| one.mark_page_ready(Some(connection_id)));
                }
                (SERVICE_LISTENER, _) => {
                    self.service.iter_mut().for_each(Service::on_listener_ready)
                }
                // `poll_other_sources` receives the keeper's events.
                (KEEPER, _) | (_, None) => {}
                (_, Some(TokenOwner::Session(session_key))) => {
                    if let Some(session) = self.sessions.get_mut(session_key) {
                        session.mark_readable();
                        if event.is_read_closed() {
                            session.mark_hung_up();
                        }
                    }
                }
                (Token(number), Some(TokenOwner::Peer)) => {
                    self.peers.iter_mut().for_each(|peers| peers.mark_ready(LinkId(number)));
                }
                // Shepherds, switch threads and tools.
                (_, Some(owner)) => self.host_jobs.mark_readable(owner),
            }
        }
        signalled
    }

    fn receive_from_peers(&mut self) {
        let Some(peers) = &mut self.peers else { return };
        peers.accept_new(&mut self.sources);
        let events = peers.receive_events();
        for (link_id, event) in events {
            match event {
                PeerEvent::Message(PeerMessage::Order { job, job_incarnation, body }) => {
                    let tag = JobTag { job, incarnation: job_incarnation };
                    self.jobs.on_order(link_id, tag, &body);
                }
                PeerEvent::Message(PeerMessage::Report { job, job_incarnation, body }) => {
                    let tag = JobTag { job, incarnation: job_incarnation };
                    self.jobs.on_report(link_id, tag, &body);
                }
                PeerEvent::Message(PeerMessage::Join(join)) if self.service.is_none() => {
                    self.on_join(link_id, &join);
                }
                PeerEvent::Message(message) => self.on_cluster_message(link_id, message),
                PeerEvent::WrongHost(reason) => {
                    let text = format!("a connection was refused: {reason}");
                    let service = self.service.iter_mut();
                    service.for_each(|one| one.warn_about(LogTopic::DaemonPort, &text));
                }
                PeerEvent::Lost(name, reason) => {
                    self.sources.release_link(link_id);
                    self.on_link_lost(link_id, name, &reason);
                }
            }
        }
    }

    fn on_link_lost(&mut self, link_id: LinkId, name: Option<String>, reason: &str) {
        if self.single_user.server_link == Some(link_id) {
            // The server that started this daemon has ended.
            self.is_ending = true;
        } else if name.is_none() && self.service.is_none() {
            let local_name = self.peers.as_ref().map(Peers::name);
            self.single_user.on_rejected_connection(reason, local_name, &mut self.sessions);
        }
        self.jobs.on(Input::LinkLost(link_id, reason.to_owned()));
        self.on_cluster_link_lost(name.as_deref(), reason);
        let (Some(name), Some(bringup)) = (name, &self.single_user.bringup) else { return };
        if bringup.spec.is_some() {
            let client_job = bringup.client_job;
            self.sessions.refuse(
                client_job,
                format!("host {name}: its daemon is lost: {reason}"),
                EXIT_FAILED,
            );
        } else if let Some(scout) = &self.single_user.scout
            && let Some(text) = scout.host_lost_text(&name, reason)
        {
            let client_job = ClientJob::session_itself(scout.control_session);
            self.sessions.notice(client_job, Level::Warning, text);
        }
    }

    /// Handles pending signals and reaps children that have exited.
    fn on_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            self.is_ending |= signal.ssi_signo == libc::SIGTERM as u32;
        }
        loop {
            self.host_jobs.check_exits();
            self.finish_reset();
            let Some(pid) = process::first_exited_child() else { return };
            if self.host_jobs.is_shepherd(pid) {
                // The shepherd has exited since the check above. The next iteration handles it.
                continue;
            }
            let WaitResult::Exited(reaped) = realtime::run_as_normal(|| process::reap_one(pid))
            else {
                return;
            };
            self.host_jobs.on_child_exit(pid, reaped.status);
            let progress = self
                .single_user
                .bringup
                .as_mut()
                .and_then(|bringup| bringup.on_child_exit(pid, reaped.status));
            self.single_user.report_progress(progress.unwrap_or_default(), &mut self.sessions);
        }
    }

    /// Writes as much as the sockets accept. Returns whether a session has ended.
    fn flush(&mut self) -> bool {
        self.host_jobs.flush(self.sources.registry());
        self.peers.iter_mut().for_each(Peers::flush);
        self.sessions.flush(self.sources.registry(), &mut self.usage);
        let now = Instant::now();
        // If a client has disconnected and its last messages cannot be read soon, the session ends
        // now.
        let is_lost = |session_key: SessionKey, session: &ClientSession| {
            session.is_lost(|| self.readiness(session_key, now).is_read_soon())
        };
        let closed_sessions: Vec<SessionKey> = self
            .sessions
            .active()
            .filter(|(session_key, session)| session.is_closed() || is_lost(*session_key, session))
            .map(|(session_key, _)| session_key)
            .collect();
        let any_closed = !closed_sessions.is_empty();
        for session_key in closed_sessions {
            self.is_ending |= self.single_user.is_controlled_by(session_key);
            self.jobs.end_subscriptions(session_key);
            let session = self.sessions.end(session_key, &mut self.usage);
            let jobs = session.as_ref().map(ClientSession::job_ids).unwrap_or_default();
            jobs.into_iter().for_each(|job| self.drop_job(job));
            session.into_iter().for_each(|session| self.on_session_end(&session));
            self.sources.release_session(session_key);
        }
        any_closed
    }
}

/// Whether messages wait for the link over which the orders for a job arrive.
fn is_parent_slow(job: JobId, jobs: &Jobs, peers: Option<&Peers>) -> bool {
    let parent_link = jobs.parent_link(job);
    parent_link.zip(peers).is_some_and(|(link, peers)| peers.is_slow(link))
}
