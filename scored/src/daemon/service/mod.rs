//! Multi-user mode: a daemon that runs as a service for all users of its host.
//! [`score_job::cluster`] makes the decisions for the cluster; this module transports the messages.
//!
//! | file | contents |
//! |---|---|
//! | `client_admission.rs` | which clients of the local socket are accepted |
//! | `config.rs` | the configuration of the cluster, from the database |
//! | `console.rs` | requests that address jobs by their numbers in the cluster |
//! | `log.rs` | the log |
//! | `logins.rs` | logins, and the forwarding of their messages to the server |
//! | `membership.rs` | messages between the links and the cluster state machines |
//! | `status_page.rs` | the status page of the cluster, as each user sees it |
//! | `job_requests.rs` | jobs: from a request to the allocated hosts |
//! | `job_ids.rs` | job numbers, which a restarted server does not reuse |
//! | `gang_settings.rs` | the gang scheduler's configuration on this machine |
//! | `http_connections.rs` | the connections of the status page |
//! | `page_metrics.rs` | metrics of jobs for the status page |
//! | `page_opener.rs` | the attempts to open the status page |
//! | `page_stacks.rs` | stacks of jobs for the status page |
//! | `keeper_start.rs` | the start of the keeper, and the drop of privileges |
//! | `remote_sessions.rs` | in the server: sessions whose clients are on other hosts |
//! | `systemd.rs` | messages to systemd |
//! | `vouchers.rs` | the vouchers of users, which keepers issue |

mod client_admission;
pub mod config;
mod console;
mod gang_settings;
mod http_connections;
mod job_ids;
mod job_requests;
mod keeper_start;
mod log;
mod logins;
mod membership;
mod page_metrics;
mod page_opener;
mod page_stacks;
mod remote_sessions;
mod status_page;
mod systemd;
mod vouchers;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry};
use score_job::cluster::tree_member::{self, Member};
use score_job::cluster::{self, ClusterLimits, HostShare, ServerState, SessionId, Timeouts};
use score_job::host::usage::Usage;
use score_job::jobs::{ClientJob, SessionKey};
use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::message::{HostSpec, JobSpec};
use score_proto::peer_message::{Incarnation, SERVER};
use score_sys::random::random_u64;
use score_tree::key::Key;

use super::event_sources::{EventSources, KEEPER, LISTENER, SERVICE_LISTENER};
use super::keeper_client::SharedKeeper;
use super::local_listener::{LocalListener, SHORTEST_QUEUE};
use super::peers::Peers;
use super::sessions::Sessions;
use super::{CommonOptions, Daemon, host_limits, setup_process};
use crate::sys::cgroup::Cgroups;
use crate::sys::realtime::{self, Inherit};
use crate::sys::{descriptor, probe, process};
use client_admission::ClientAdmission;
use config::{Config, ServiceOptions};
pub use console::JobsAtTime;
use job_ids::JobIdAllocator;
use keeper_start::SystemUser;
pub use log::{forward_warning, info, warn};
use page_opener::PageOpener;
use remote_sessions::RemoteSessions;
use status_page::Page;
use systemd::SystemdNotifier;
use vouchers::Vouchers;

/// Time-outs of the cluster for its daemons. `silence` equals the time-out of the links.
const TIMEOUTS: Timeouts = Timeouts {
    silence: super::peers::LINK_TIMEOUTS.silence_timeout,
    grace: Duration::from_secs(2),
    cleanup: Duration::from_secs(15),
    merge: Duration::from_millis(3),
};

/// The maximum number of lines on one topic that are logged in each interval.
const LOG_RATE_BURST: u32 = 10;
const LOG_RATE_INTERVAL: Duration = Duration::from_secs(10);

/// This daemon's role in its cluster.
#[derive(Debug)]
enum Role {
    Server(Box<ServerState>),
    Host(Box<Member>),
}

/// The topic of a rate-limited line of the log. Lines on one topic do not suppress lines on
/// another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogTopic {
    /// Connections to the port of the daemons.
    DaemonPort,
    /// Actions of a user or of the user's clients.
    User(u32),
    /// The daemon itself.
    Daemon,
}

/// A daemon in multi-user mode.
#[derive(Debug)]
pub struct Service {
    config: Config,
    admission: ClientAdmission,
    vouchers: Vouchers,
    role: Role,
    /// The time at which a reset of this host completes, even if a killed shepherd has not ended.
    reset_deadline: Option<Instant>,
    started_at: Instant,
    /// The known addresses of other hosts' daemons. The server has announced them.
    host_addresses: HashMap<HostId, SocketAddr>,
    /// In the server: sessions of other hosts.
    remote_sessions: RemoteSessions,
    /// The number of hosts of each job that has been placed.
    placed_host_counts: HashMap<JobId, u32>,
    /// Hosts that could not be reached. The next tick reports them to the cluster state machine.
    unreachable_hosts: Vec<(HostId, String)>,
    /// Set only in the server.
    job_id_allocator: Option<JobIdAllocator>,
    verbose: bool,
    systemd: Option<SystemdNotifier>,
    /// The page, if it is open.
    page: Option<Page>,
    /// Set only in the server, unless the page is disabled.
    page_opener: Option<PageOpener>,
    /// The start of the interval and the number of lines in it, for topics with recent lines.
    log_windows: HashMap<LogTopic, (Instant, u32)>,
}

/// Runs the service in the foreground until SIGTERM.
///
/// # Errors
/// The configuration is invalid, or a system call failed.
pub fn run(options: &ServiceOptions) -> io::Result<()> {
    let to_error = |reason: String| io::Error::other(reason);
    if !nix::unistd::geteuid().is_root() {
        return Err(to_error(
            "multi-user mode needs root; in single-user mode, scrun starts its own scored"
                .to_owned(),
        ));
    }
    if let Some(receiver) = &options.syslog {
        log::send_to(receiver).map_err(to_error)?;
    }
    options.notices.iter().for_each(|notice| warn(notice));
    setup_process()?;
    descriptor::reserve_low()?;
    process::set_umask(0o022);
    let config = Config::read(options).map_err(to_error)?;
    let user = SystemUser::find(options.user.as_deref()).map_err(to_error)?;
    let descriptor_limit = process::raise_descriptor_limit().rlim_max;
    let mut daemon = Daemon::new(CommonOptions {
        no_namespace: options.no_namespace,
        gang: gang_settings::choose(options.slice, probe::may_use_realtime()),
        tool_cleanup: options.tool_cleanup,
        ..CommonOptions::default()
    })?;
    // This moves the process into a cgroup. The cgroups of jobs become siblings of that cgroup.
    Cgroups::find(true);
    let path = options.socket.clone().unwrap_or_else(|| config::DEFAULT_SOCKET_PATH.into());
    let listener = open_listener(&path, daemon.sources.registry()).map_err(to_error)?;
    let local_name = config.hosts[config.local_index].name.clone();
    let started = daemon.start_keeper(options, &config, user, (&listener, &path));
    let (keeper, link_key) = started.map_err(to_error)?;
    if let Some(key) = link_key.map(Key::from_bytes) {
        let registry = daemon.sources.registry();
        let peers = Peers::bind(config.address, key, local_name.clone(), registry, LISTENER);
        let with_address = |error: io::Error| to_error(format!("{}: {error}", config.address));
        daemon.peers = Some(peers.map_err(with_address)?);
    }
    let is_server = config.local_index == SERVER.index();
    let slice = daemon.options.gang.slice;
    let page_address = options.page.address().filter(|_| is_server);
    let mut page_opener = page_address.map(|one| PageOpener::new(one, &local_name, slice));
    // The port may be below 1024, so this process opens it before it gives up privileges.
    let registry = daemon.sources.registry();
    let page = page_opener.as_mut().and_then(|opener| opener.open(registry, Instant::now()));
    enter_realtime();
    daemon.latency_hold.prepare();
    keeper_start::become_daemon(user).map_err(to_error)?;
    let job_id_allocator = is_server.then(JobIdAllocator::load);
    let slots = (0..).map(HostId).zip(&config.hosts).map(|(id, host)| (id, host.slots));
    daemon.jobs.set_gang(daemon.options.gang, slots.collect());
    let role =
        initial_role(&config, daemon.peers.as_ref().map(Peers::incarnation), &job_id_allocator)?;
    let role_text = match role {
        Role::Server(_) => format!("server of {} hosts", config.hosts.len()),
        Role::Host(_) => format!("host {local_name}, server {}", config.server),
    };
    page.iter().for_each(|page| info(&page.announcement()));
    info(&format!("ready: {role_text}; scruns connect to {}", path.display()));
    daemon.service = Some(Service {
        config,
        admission: ClientAdmission::new(listener, descriptor_limit),
        vouchers: Vouchers::new(keeper),
        role,
        reset_deadline: None,
        started_at: Instant::now(),
        host_addresses: HashMap::new(),
        remote_sessions: RemoteSessions::default(),
        placed_host_counts: HashMap::new(),
        unreachable_hosts: Vec::new(),
        job_id_allocator,
        verbose: options.verbose,
        systemd: None,
        page,
        page_opener,
        log_windows: HashMap::new(),
    });
    daemon.update_identity();
    daemon.loop_clock.record_phases();
    daemon.service.iter_mut().for_each(Service::notify_ready);
    let result = daemon.run_loop();
    let switch_latency = &daemon.jobs.state().gang().switch_latency;
    if options.verbose && switch_latency.count() > 0 {
        info(&switch_latency.to_string());
    }
    result
}

/// Enters the realtime class, because gang switches on every host pass through the loop.
fn enter_realtime() {
    match realtime::enter(Inherit::Normal) {
        Ok(()) => realtime::pin_to_first_cpu(),
        Err(error) => warn(&format!(
            "SCHED_RR is not permitted ({error}): on a busy host, jobs change late at the end of a \
             time slice"
        )),
    }
}

/// Opens the socket to which clients connect, and creates its directory if necessary.
fn open_listener(path: &Path, registry: &Registry) -> Result<LocalListener, String> {
    if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
        let result = DirBuilder::new().recursive(true).mode(0o755).create(directory);
        result.map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    // All users may connect, because the kernel reports the user of each connection.
    LocalListener::open(path, 0o666, SHORTEST_QUEUE, registry, SERVICE_LISTENER)
}

fn initial_role(
    config: &Config,
    incarnation: Option<Incarnation>,
    job_id_allocator: &Option<JobIdAllocator>,
) -> io::Result<Role> {
    let incarnation = incarnation.unwrap_or_else(|| Incarnation(random_u64()));
    if let Some(job_id_allocator) = job_id_allocator {
        let server_config = cluster::ClusterConfig {
            server_incarnation: incarnation,
            hosts: config.hosts.clone(),
            times: TIMEOUTS,
            first_job: job_id_allocator.first(),
            rows: config.rows,
            memory: host_limits::memory(),
            operators: config.operators.clone(),
            limits: ClusterLimits::default(),
        };
        return Ok(Role::Server(Box::new(ServerState::new(server_config, Duration::ZERO))));
    }
    let member_config = tree_member::MemberConfig {
        name: config.hosts[config.local_index].name.clone(),
        incarnation,
        address: config.address,
        memory: host_limits::memory(),
        host_and_parent: None,
        times: TIMEOUTS,
    };
    Ok(Role::Host(Box::new(Member::new(member_config, Duration::ZERO))))
}

impl Daemon {
    /// Starts the keeper. Also returns the key of the links to other daemons.
    fn start_keeper(
        &mut self,
        options: &ServiceOptions,
        config: &Config,
        user: SystemUser,
        (listener, path): (&LocalListener, &Path),
    ) -> Result<(SharedKeeper, Option<[u8; 32]>), String> {
        let listener = listener.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let (client, link_key) = keeper_start::start(options, config, user, (&listener, path))?;
        let mut events = SourceFd(&client.events_fd().as_raw_fd());
        let registered = self.sources.registry().register(&mut events, KEEPER, Interest::READABLE);
        registered.map_err(|error| error.to_string())?;
        let keeper = Rc::new(RefCell::new(client));
        self.host_jobs.set_keeper(keeper.clone());
        Ok((keeper, link_key))
    }

    /// Logs a line if `-v` is set, in multi-user mode.
    pub fn log_if_verbose(&self, line: &str) {
        if self.service.as_ref().is_some_and(|service| service.verbose) {
            info(line);
        }
    }
}

impl Service {
    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    fn name(&self, host: HostId) -> Option<&str> {
        Some(&self.config.hosts.get(host.index())?.name)
    }

    pub fn host_named(&self, name: &str) -> Option<HostId> {
        let index = self.config.hosts.iter().position(|host| host.name == name)?;
        u32::try_from(index).ok().map(HostId)
    }

    /// Records that this daemon has handled messages that the host of a session has forwarded.
    pub fn add_forward_credit(&mut self, id: SessionId, cost: u64) {
        self.remote_sessions.add_credit(id, cost);
    }

    /// The job with this tag in a session, given the session's id in the cluster.
    fn client_job(&self, id: SessionId, tag: SessionJobId) -> Option<ClientJob> {
        let session_key = match id.host {
            SERVER => SessionKey::from_number(id.number),
            host => self.remote_sessions.key(host, id.number),
        };
        Some(ClientJob { session_key: session_key?, job: tag })
    }

    /// The hosts and processors of a job for the gang scheduler.
    pub fn allocations(&self, spec: &JobSpec) -> Vec<HostShare> {
        let needs_whole_hosts = spec.needs_whole_hosts();
        let allocation_on = |host: &HostSpec| {
            let procs = if needs_whole_hosts { host.processors } else { host.procs };
            Some(HostShare { host: self.host_named(&host.name)?, procs })
        };
        spec.hosts.iter().filter_map(allocation_on).collect()
    }

    fn is_server(&self) -> bool {
        matches!(self.role, Role::Server(_))
    }

    /// Logs a line, unless there have been too many lines on the same topic.
    pub fn warn_about(&mut self, topic: LogTopic, text: &str) {
        let now = Instant::now();
        self.log_windows.retain(|_, (start, _)| now.duration_since(*start) <= LOG_RATE_INTERVAL);
        let (_, count) = self.log_windows.entry(topic).or_insert((now, 0));
        *count += 1;
        match *count {
            ..=LOG_RATE_BURST => warn(text),
            count if count == LOG_RATE_BURST + 1 => warn("further lines of this kind are omitted"),
            _ => {}
        }
    }

    /// The time until the service has work to do without an event.
    pub fn deadline(&self, now: Instant) -> Duration {
        let page_retry_at = self.page_opener.as_ref().and_then(PageOpener::retry_at);
        let moments = [
            self.admission.wake_deadline(),
            self.vouchers.deadline(),
            self.reset_deadline,
            page_retry_at,
        ];
        let timeouts = moments.into_iter().flatten().map(|due| due.saturating_duration_since(now));
        let now = now.saturating_duration_since(self.started_at);
        let deadline = match &self.role {
            Role::Server(cluster) => cluster.deadline(),
            Role::Host(member) => member.deadline(),
        };
        let page = self.page.as_ref().and_then(|page| page.deadline(now));
        let timeouts = page.into_iter().chain(timeouts);
        timeouts.fold(deadline.saturating_sub(now), Duration::min)
    }

    /// Records an event of the page: of its listener, or of this connection.
    pub fn mark_page_ready(&mut self, connection_id: Option<usize>) {
        let Some(page) = &mut self.page else { return };
        match connection_id {
            Some(connection_id) => page.mark_readable(connection_id),
            None => page.on_listener_ready(),
        }
    }

    /// Accepts clients of the local socket while there is room.
    pub fn accept_clients(
        &mut self,
        sessions: &mut Sessions,
        sources: &mut EventSources,
        usage: &mut Usage,
    ) {
        let lines = self.admission.accept_clients(sessions, sources, usage);
        lines.iter().for_each(|line| self.warn_about(LogTopic::User(line.uid), &line.text));
    }

    /// The time until a login times out or the next client can be accepted.
    pub fn login_deadline(&self, sessions: &Sessions, now: Instant) -> Option<Duration> {
        self.admission.deadline(sessions, now)
    }

    /// The end of the pause in accepting clients, if a client waits and there is room for it.
    pub fn accept_pause_end(&self, sessions: &Sessions) -> Option<Instant> {
        self.admission.pause_end(sessions)
    }

    /// Records that mio has reported a connection to the local socket.
    pub fn on_listener_ready(&mut self) {
        self.admission.on_listener_ready();
    }

    /// Drops clients whose login has timed out, or for whom there is no room.
    pub fn drop_late_clients(&mut self, sessions: &mut Sessions) {
        let lines = self.admission.drop_late_clients(sessions);
        lines.iter().for_each(|line| self.warn_about(LogTopic::User(line.uid), &line.text));
    }
}
