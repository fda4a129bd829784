//! Multi-user mode: a daemon that stays, and serves every user of its host. What the cluster
//! decides is decided in [`crate::cluster`]; here it is moved.
//!
//! | file | what |
//! |---|---|
//! | `config.rs` | which cluster this is, from the database |
//! | `console.rs` | what users and operators ask about jobs |
//! | `log.rs` | lines for the operator |
//! | `logins.rs` | who logs in, and what goes to the server and back |
//! | `membership.rs` | messages between daemons, to and from the pure machines |
//! | `page.rs` | the page of the cluster: who sees what of it |
//! | `placing.rs` | jobs: from a request to the hosts |
//! | `numbers.rs` | job numbers that outlive a server |
//! | `slices.rs` | how jobs take turns on this kind of machine |
//! | `visitors.rs` | the sockets of the page |
//! | `watched.rs` | figures of jobs for the page |

pub mod config;
mod console;
mod log;
mod logins;
mod membership;
mod numbers;
mod page;
mod placing;
mod slices;
mod visitors;
mod watched;

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::time::{Duration, Instant};

use score_proto::peer::{HostId, SERVER};

use super::door::Door;
use super::peers::Peers;
use super::{Common, Daemon, LISTENER, LOCAL, directory, machine, random, settle_in};
use crate::cluster::member::{self, Member};
use crate::cluster::{self, Cluster, Limits, Times};
use crate::sys::cgroup::Cgroups;
use crate::sys::prompt::{self, Heirs};
use crate::sys::{descriptor, probe, process};
use config::{Config, Setting};
pub use log::{info, warn};
use numbers::Numbers;
use page::Page;

/// How the cluster sees its daemons; the links' limit of silence is the same.
const TIMES: Times = Times {
    silence: super::peers::LIMITS.silence,
    grace: Duration::from_secs(2),
    cleanup: Duration::from_secs(15),
    merge: Duration::from_millis(3),
};

/// Lines about strangers within so long.
const COMPLAINTS: u32 = 10;
const COMPLAINING: Duration = Duration::from_secs(10);

/// What this daemon is in its cluster.
#[derive(Debug)]
enum Role {
    Server(Box<Cluster>),
    Host(Box<Member>),
}

/// A daemon that stays.
#[derive(Debug)]
pub struct Service {
    config: Config,
    door: Door,
    role: Role,
    began: Instant,
    /// Where the daemons of other hosts listen, as far as it is known.
    book: HashMap<HostId, SocketAddr>,
    /// Logins of other hosts, in the server: host and number there, to our session.
    far: HashMap<(HostId, u64), usize>,
    /// Jobs that were placed: how many hosts they have.
    placed: HashMap<u32, u32>,
    /// Hosts that could not be reached, to be told to the machine.
    unreachable: Vec<(HostId, String)>,
    /// In the server.
    numbers: Option<Numbers>,
    verbose: bool,
    /// In the server, unless it is off.
    page: Option<Page>,
    /// Since when so many lines about strangers: callers of this host, connections of others.
    complaints: [(Instant, u32); 2],
}

/// Runs as a service, in the foreground, until SIGTERM.
///
/// # Errors
/// What is wrong in the configuration, or what the system refused.
pub fn run(setting: &Setting) -> io::Result<()> {
    let other = |reason: String| io::Error::other(reason);
    if !nix::unistd::geteuid().is_root() {
        return Err(other(
            "multi-user mode is for root; without options that ask for it, scrun \
                          starts its own scored"
                .to_owned(),
        ));
    }
    if let Some(receiver) = &setting.syslog {
        log::send_to(receiver).map_err(other)?;
    }
    setting.notices.iter().for_each(|notice| warn(notice));
    settle_in()?;
    descriptor::reserve_low()?;
    process::set_umask(0o022);
    let config = Config::read(setting).map_err(other)?;
    process::raise_descriptor_limit();
    let mut daemon = Daemon::new(Common {
        no_namespace: setting.no_namespace,
        gang: slices::choose(setting.slice, probe::may_be_prompt()),
        ..Common::default()
    })?;
    daemon.cgroups = Cgroups::find(true);
    // Nobody's jobs run here before what the dead have left is gone.
    let mut faults = daemon.cgroups.sweep(&directory::is_dead);
    faults.extend(directory::remove_leftovers_of_root());
    faults.iter().for_each(|fault| warn(&format!("left by an earlier scored: {fault}")));
    let path = setting.socket.clone().unwrap_or_else(|| config::SOCKET.into());
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(|error| other(format!("{}: {error}", folder.display())))?;
    }
    // Everybody may call; who it is, the kernel says.
    let door = Door::open(&path, 0o666, daemon.poll.registry(), LOCAL).map_err(other)?;
    let own = config.hosts[config.own].name.clone();
    if let Some(key) = config.key.clone() {
        let registry = daemon.poll.registry();
        let peers = Peers::at(config.address, key, own.clone(), registry, LISTENER);
        let named = |error: io::Error| other(format!("{}: {error}", config.address));
        daemon.peers = Some(peers.map_err(named)?);
    }
    let is_server = config.own == SERVER as usize;
    let numbers = is_server.then(Numbers::load);
    let slots = (0..).zip(&config.hosts).map(|(number, host)| (number, host.slots));
    daemon.share_slots(slots.collect());
    // On every host, orders to switch go through this loop. Why not, `slices` has said.
    if prompt::take(Heirs::Normal).is_ok() {
        prompt::keep_to_one();
    }
    let role = role(&config, daemon.peers.as_ref().map_or(0, Peers::incarnation), &numbers)?;
    let what = match role {
        Role::Server(_) => format!("server of {} hosts", config.hosts.len()),
        Role::Host(_) => format!("host {own}, server {}", config.server),
    };
    let page = setting.page.address().filter(|_| is_server);
    let registry = daemon.poll.registry();
    let open = |at| Page::open(at, &own, daemon.setting.gang.slice, registry);
    let page = page.map(open).transpose().map_err(other)?;
    page.iter().for_each(|page| info(&page.announcement()));
    info(&format!("ready: {what}; scruns call at {}", path.display()));
    daemon.service = Some(Service {
        config,
        door,
        role,
        began: Instant::now(),
        book: HashMap::new(),
        far: HashMap::new(),
        placed: HashMap::new(),
        unreachable: Vec::new(),
        numbers,
        verbose: setting.verbose,
        page,
        complaints: [(Instant::now(), 0); 2],
    });
    notify_ready();
    let done = daemon.live();
    if setting.verbose && daemon.slices.tally.count() > 0 {
        info(&daemon.slices.tally.to_string());
    }
    done
}

fn role(config: &Config, incarnation: u64, numbers: &Option<Numbers>) -> io::Result<Role> {
    let incarnation = if incarnation == 0 { random()? } else { incarnation };
    if let Some(numbers) = numbers {
        let setting = cluster::Setting {
            server: incarnation,
            hosts: config.hosts.clone(),
            times: TIMES,
            first_job: numbers.first(),
            rows: config.rows,
            memory: machine::memory(),
            oversubscribe: false,
            operators: config.operators.clone(),
            limits: Limits::default(),
        };
        return Ok(Role::Server(Box::new(Cluster::new(setting, Duration::ZERO))));
    }
    let setting = member::Setting {
        name: config.hosts[config.own].name.clone(),
        incarnation,
        address: config.address,
        memory: machine::memory(),
        place: None,
        times: TIMES,
    };
    Ok(Role::Host(Box::new(Member::new(setting, Duration::ZERO))))
}

impl Service {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn name(&self, host: HostId) -> Option<&str> {
        Some(&self.config.hosts.get(host as usize)?.name)
    }

    pub fn host_named(&self, name: &str) -> Option<HostId> {
        let at = self.config.hosts.iter().position(|host| host.name == name)?;
        HostId::try_from(at).ok()
    }

    fn is_server(&self) -> bool {
        matches!(self.role, Role::Server(_))
    }

    /// A line about strangers, who must not fill the log.
    fn complain(&mut self, local: bool, text: &str) {
        let (since, count) = &mut self.complaints[usize::from(local)];
        if since.elapsed() > COMPLAINING {
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        match *count {
            ..=COMPLAINTS => warn(text),
            count if count == COMPLAINTS + 1 => warn("more of this kind is not logged now"),
            _ => {}
        }
    }

    /// How long nothing has to be done.
    pub fn deadline(&self) -> Duration {
        let now = self.now();
        let due = match &self.role {
            Role::Server(cluster) => cluster.deadline(),
            Role::Host(member) => member.deadline(),
        };
        let page = self.page.as_ref().and_then(|page| page.deadline(now));
        page.into_iter().fold(due.saturating_sub(now), Duration::min)
    }

    /// mio has reported something of the page: somebody connects, or that connection.
    pub fn mark_page(&mut self, number: Option<usize>) {
        let Some(page) = &mut self.page else { return };
        match number {
            Some(number) => page.mark(number),
            None => page.knock(),
        }
    }

    /// Somebody calls at the local socket.
    pub fn mark(&mut self) {
        self.door.waiting = true;
    }
}

/// Tells systemd that the service is up, if it wants to know.
fn notify_ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Ok(socket) = std::os::unix::net::UnixDatagram::unbound() else { return };
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    let sent = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => std::os::unix::net::SocketAddr::from_abstract_name(name)
            .and_then(|address| socket.send_to_addr(b"READY=1", &address)),
        None => socket.send_to(b"READY=1", path),
    };
    if let Err(error) = sent {
        warn(&format!("systemd cannot be told that scored is ready: {error}"));
    }
}
