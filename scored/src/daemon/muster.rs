//! Bringing up the hosts of a job in single-user mode: their daemons are started, dial in, and the
//! job begins when the last one is there.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use score_proto::message::{HostKind, HostSpec, JobSpec};
use score_proto::order::Status;
use score_proto::peer::Incarnation;
use score_tree::key::Key;

use super::Common;
use super::peers::Peers;
use super::session::Lane;
use crate::start::{Failure, HOST, SECRET, Site, Starter, position_of};

/// Where a daemon listens, and which one it is.
pub type Daemon = (SocketAddr, Incarnation);

/// The hosts of one job on their way up. It lives as long as the job: with it go the daemons.
pub struct Muster {
    /// Who has wanted them.
    pub lane: Lane,
    /// The job, until it begins.
    pub spec: Option<JobSpec>,
    /// Whether the job's programs have been looked for.
    pub has_looked_ahead: bool,
    /// All hosts of the job, in order.
    names: Vec<String>,
    kinds: Vec<HostKind>,
    /// The daemons that are there.
    arrived: Vec<Option<Daemon>>,
    starter: Starter,
}

/// What came of a muster's last steps.
#[derive(Debug, Default)]
pub struct News {
    /// Hosts that will have no daemon: a line each.
    pub failures: Vec<String>,
    /// What daemons and launchers have said.
    pub lines: Vec<String>,
}

impl Muster {
    /// Prepares to start a daemon on every host but this one; returns the links to them, too.
    /// Virtual hosts move this process onto the first of them.
    ///
    /// # Errors
    /// One line: nothing has been started.
    pub fn new(
        lane: Lane,
        spec: JobSpec,
        common: &Common,
        registry: &Registry,
        [listener, words]: [Token; 2],
    ) -> Result<(Self, Peers, Option<String>), String> {
        let names: Vec<String> = spec.hosts.iter().map(|host| host.name.clone()).collect();
        let kinds = spec.hosts.iter().map(|host| host.kind).collect();
        let site = Site::new(&spec.hosts, &common.wishes)?;
        let elsewhere = |position: &usize| site.hosts().iter().any(|one| one.position == *position);
        let own = (0..names.len()).find(|position| !elsewhere(position));
        let notice = site.notice().map(str::to_owned);
        let (key, secret) = key().map_err(|error| format!("no key can be made: {error}"))?;
        let here = own.map_or_else(super::host_name, |own| names[own].clone());
        let peers = Peers::new(key, here, registry, listener)
            .and_then(|peers| Ok((peers.port()?, peers)))
            .map_err(|error| format!("no port for the daemons of other hosts: {error}"));
        let (port, peers) = peers?;
        let addresses = site.own_addresses();
        let starter = site.starter(command(&addresses, port, common.no_namespace)?, secret)?;
        let fd = starter.words().as_raw_fd();
        registry
            .register(&mut SourceFd(&fd), words, Interest::READABLE)
            .map_err(|error| error.to_string())?;
        let mut arrived = vec![None; names.len()];
        if let (Some(own), Some(first)) = (own, addresses.first()) {
            arrived[own] = Some((SocketAddr::new(*first, port), peers.incarnation()));
        }
        let spec = Some(spec);
        let muster = Self { lane, spec, has_looked_ahead: false, names, kinds, arrived, starter };
        Ok((muster, peers, notice))
    }

    /// Starts what may be started, and hears what there is to hear.
    pub fn advance(&mut self, now: Instant) -> News {
        let failures = self.starter.advance(now);
        News { failures: texts(failures), lines: self.starter.hear() }
    }

    /// When [`Muster::advance`] is to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.starter.deadline()
    }

    /// A daemon has joined: which host of the job it is on, if on any.
    pub fn joined(&mut self, said: &str, daemon: Daemon) -> Option<usize> {
        let host = position_of(said, &self.names)?;
        self.arrived[host].get_or_insert(daemon);
        self.starter.arrived(host);
        Some(host)
    }

    /// Every host's daemon, once all are there.
    pub fn daemons(&self) -> Option<Vec<Daemon>> {
        self.arrived.iter().copied().collect()
    }

    /// Where the daemons of these hosts listen, if they are hosts of the muster in its order.
    ///
    /// # Errors
    /// One line.
    pub fn among(&self, hosts: &[HostSpec]) -> Result<Vec<Daemon>, String> {
        let mut rest = self.names.iter().zip(&self.arrived);
        let find = |host: &HostSpec| match rest.find(|(name, _)| **name == host.name) {
            Some((_, Some(address))) => Ok(*address),
            Some((name, None)) => Err(format!("host {name} is not up yet: submit the job again")),
            None => Err(format!(
                "host {}: not among those of this login's first job, or not in their order; a \
                 login of its own, or a scout session, can have it",
                host.name
            )),
        };
        hosts.iter().map(find).collect()
    }

    /// Whether the hosts' directories are on this machine's disk.
    pub fn is_virtual(&self) -> bool {
        self.kinds.first() == Some(&HostKind::Virtual)
    }

    /// Ends a daemon that does not answer any more.
    pub fn give_up(&mut self, host: &str) {
        if let Some(at) = self.names.iter().position(|name| name == host) {
            self.starter.kill(at);
        }
    }

    /// A child of this process has ended. None: it is none of ours.
    pub fn ended(&mut self, pid: i32, status: Status) -> Option<News> {
        let failures = texts(self.starter.ended(pid, status)?);
        Some(News { failures, lines: Vec::new() })
    }

    /// Whether somebody talks without end.
    pub fn may_have_more(&self) -> bool {
        self.starter.may_have_more()
    }

    /// Nobody is needed any more.
    pub fn close(&mut self) {
        self.starter.close();
    }

    /// The processes that brought the daemons up, or are daemons.
    pub fn processes(&self) -> Vec<i32> {
        self.starter.processes().collect()
    }
}

fn texts(failures: Vec<Failure>) -> Vec<String> {
    failures.into_iter().map(|failure| failure.text).collect()
}

fn key() -> io::Result<(Key, Vec<u8>)> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok((Key::from_bytes(bytes), bytes.to_vec()))
}

/// What is started on every other host.
fn command(addresses: &[IpAddr], port: u16, no_namespace: bool) -> Result<Vec<OsString>, String> {
    let four = addresses.iter().filter(|address| address.is_ipv4());
    let list: Vec<String> = four.map(IpAddr::to_string).collect();
    if list.is_empty() {
        return Err("this host has no address that others could dial".to_owned());
    }
    let path = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let connect = format!("{}:{port}", list.join(","));
    let mut command = vec![path.into_os_string()];
    let words = ["-daemon", "-connect", &connect, "-host", HOST, "-key", SECRET];
    command.extend(words.map(OsString::from));
    command.extend(no_namespace.then(|| OsString::from("-nonamespace")));
    Ok(command)
}

/// How long a step of connecting to the server may take.
const CONNECTING: Duration = Duration::from_secs(5);

/// Connects to the server at the first of its addresses that answers: `ADDRESS[,ADDRESS...]:PORT`.
///
/// # Errors
/// One line with the word or address at fault.
pub fn connect(list: &str) -> Result<std::net::TcpStream, String> {
    let fault = || format!("-connect {list}: not ADDRESS[,ADDRESS...]:PORT");
    let (addresses, port) = list.rsplit_once(':').ok_or_else(fault)?;
    let port: u16 = port.parse().map_err(|_| fault())?;
    let mut last = "no address".to_owned();
    for word in addresses.split(',') {
        let address: IpAddr = word.parse().map_err(|_| fault())?;
        match std::net::TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECTING) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(format!("-connect {list}: {last}"))
}

/// Reads the key of the cluster: from standard input (`-`), or a file.
///
/// # Errors
/// One line with the file at fault.
pub fn read_key(place: &std::ffi::OsStr) -> Result<Key, String> {
    let mut bytes = [0; 32];
    let read = if place == crate::start::SECRET_ON_STDIN {
        io::stdin().read_exact(&mut bytes)
    } else {
        File::open(place).and_then(|mut file| file.read_exact(&mut bytes))
    };
    read.map_err(|error| format!("-key {}: {error}", place.to_string_lossy()))?;
    Ok(Key::from_bytes(bytes))
}
