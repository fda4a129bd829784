//! Starts the daemons of a job's hosts in single-user mode. This daemon starts a daemon on each
//! other host, and each started daemon connects to this daemon. The job begins when the last daemon
//! has joined.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use score_proto::job_control::Status;
use score_proto::message::{HostKind, HostSpec, JobSpec};
use score_proto::peer_message::Incarnation;
use score_sys::host_name::system_host_name;
use score_tree::key::Key;

use super::CommonOptions;
use super::peers::Peers;
use crate::launch::{
    ConnectList, Failure, HOST_PLACEHOLDER, LaunchTargets, Launcher, SECRET_PLACEHOLDER,
    position_of,
};
use score_job::jobs::ClientJob;

/// The address at which a daemon listens, and its incarnation.
pub type DaemonEndpoint = (SocketAddr, Incarnation);

/// The daemons of the hosts of the first job or of a scout session. They end with this daemon.
pub struct DaemonBringup {
    /// The job or scout session that needs the hosts.
    pub client_job: ClientJob,
    /// The job's specification, until the job begins.
    pub spec: Option<JobSpec>,
    /// The names of all hosts of the job, in order.
    names: Vec<String>,
    kinds: Vec<HostKind>,
    /// The position of this host in the job, if this host belongs to the job.
    local_index: Option<usize>,
    /// The endpoints of the daemons that have joined, by position of the host.
    endpoints: Vec<Option<DaemonEndpoint>>,
    launcher: Launcher,
}

/// The result of one step of a [`DaemonBringup`].
#[derive(Debug, Default)]
pub struct BringupProgress {
    /// One line for each host whose daemon cannot be started.
    pub failures: Vec<String>,
    /// Lines that daemons and launchers have written to standard error.
    pub lines: Vec<String>,
}

impl DaemonBringup {
    /// Prepares to start a daemon on each host except this one. Also returns the links to the
    /// daemons and a notice for the user. If the hosts are virtual, this process moves to the first
    /// host.
    ///
    /// # Errors
    /// One line with the cause. Nothing has been started then.
    pub fn new(
        client_job: ClientJob,
        spec: JobSpec,
        common: &CommonOptions,
        registry: &Registry,
        [listener, launcher_output]: [Token; 2],
    ) -> Result<(Self, Peers, Option<String>), String> {
        let names: Vec<String> = spec.hosts.iter().map(|host| host.name.clone()).collect();
        let kinds = spec.hosts.iter().map(|host| host.kind).collect();
        let targets = LaunchTargets::new(&spec.hosts, &common.launch_options)?;
        let is_remote =
            |position: &usize| targets.hosts().iter().any(|target| target.position == *position);
        let local_index = (0..names.len()).find(|position| !is_remote(position));
        let notice = targets.notice().map(str::to_owned);
        let key = Key::generate().map_err(|error| format!("cannot create a key: {error}"))?;
        let secret = key.bytes().to_vec();
        let local_name =
            local_index.map_or_else(system_host_name, |local_index| names[local_index].clone());
        let peers = Peers::new(key, local_name, registry, listener)
            .and_then(|peers| Ok((peers.port()?, peers)))
            .map_err(|error| format!("no port for the daemons of other hosts: {error}"));
        let (port, peers) = peers?;
        let addresses = targets.local_addresses();
        let local_address = addresses.first().copied();
        let command = daemon_command(addresses, port, common.no_namespace)?;
        let launcher = targets.into_launcher(command, secret)?;
        let fd = launcher.stderr_fd().as_raw_fd();
        registry
            .register(&mut SourceFd(&fd), launcher_output, Interest::READABLE)
            .map_err(|error| error.to_string())?;
        let mut endpoints = vec![None; names.len()];
        if let (Some(local_index), Some(address)) = (local_index, local_address) {
            endpoints[local_index] = Some((SocketAddr::new(address, port), peers.incarnation()));
        }
        let spec = Some(spec);
        let bringup = Self { client_job, spec, names, kinds, local_index, endpoints, launcher };
        Ok((bringup, peers, notice))
    }

    /// Starts the daemons that may be started now, and reads the output of the launchers.
    pub fn advance(&mut self, now: Instant) -> BringupProgress {
        let failures = self.launcher.advance(now);
        BringupProgress { failures: failure_texts(failures), lines: self.launcher.read_stderr() }
    }

    /// The time of the next call of [`DaemonBringup::advance`].
    pub fn deadline(&self) -> Option<Instant> {
        self.launcher.deadline()
    }

    /// Records that a daemon has joined, and the address of this host to which it has connected.
    /// Returns the position of its host in the job, if it has one.
    pub fn on_join(
        &mut self,
        host_name: &str,
        daemon: DaemonEndpoint,
        reached_at: Option<IpAddr>,
    ) -> Option<usize> {
        let host = position_of(host_name, &self.names)?;
        // Hosts without IPv4 cannot reach this host at its IPv4 address.
        if let (Some(local_index), Some(reached_at)) = (self.local_index, reached_at)
            && let Some((local, _)) = &mut self.endpoints[local_index]
            && local.is_ipv4() != reached_at.is_ipv4()
        {
            local.set_ip(reached_at);
        }
        self.endpoints[host].get_or_insert(daemon);
        self.launcher.on_arrived(host);
        Some(host)
    }

    /// The endpoints of all daemons, once all daemons have joined.
    pub fn daemons(&self) -> Option<Vec<DaemonEndpoint>> {
        self.endpoints.iter().copied().collect()
    }

    /// The endpoints of the daemons of these hosts. The hosts must be hosts of the first job, in
    /// its order.
    ///
    /// # Errors
    /// One line that names the host that is not up or not in the first job.
    pub fn endpoints_of(&self, hosts: &[HostSpec]) -> Result<Vec<DaemonEndpoint>, String> {
        let mut remaining = self.names.iter().zip(&self.endpoints);
        let find = |host: &HostSpec| match remaining.find(|(name, _)| **name == host.name) {
            Some((_, Some(address))) => Ok(*address),
            Some((name, None)) => Err(format!("host {name} is not up yet: submit the job again")),
            None => Err(format!(
                "host {}: not among the hosts of this login's first job, or not in their order; \
                 use another login or a scout session",
                host.name
            )),
        };
        hosts.iter().map(find).collect()
    }

    /// Whether the hosts are virtual. Virtual hosts share the disk of this machine.
    pub fn is_virtual(&self) -> bool {
        self.kinds.first() == Some(&HostKind::Virtual)
    }

    /// Kills a daemon that does not answer any more.
    pub fn kill_daemon(&mut self, host: &str) {
        if let Some(index) = self.names.iter().position(|name| name == host) {
            self.launcher.kill(index);
        }
    }

    /// Records that a child of this process has exited. Returns `None` if the launcher has not
    /// started the child.
    pub fn on_child_exit(&mut self, pid: i32, status: Status) -> Option<BringupProgress> {
        let failures = failure_texts(self.launcher.on_child_ended(pid, status)?);
        Some(BringupProgress { failures, lines: Vec::new() })
    }

    /// Whether launcher output may be left to read without a further report of mio.
    pub fn may_have_more(&self) -> bool {
        self.launcher.may_have_more()
    }

    /// Ends all daemons.
    pub fn close(&mut self) {
        self.launcher.close();
    }

    /// The processes of launchers and daemons that this daemon has started.
    pub fn processes(&self) -> Vec<i32> {
        self.launcher.processes().collect()
    }
}

fn failure_texts(failures: Vec<Failure>) -> Vec<String> {
    failures.into_iter().map(|failure| failure.text).collect()
}

/// Returns the command line that starts the daemon of another host.
fn daemon_command(
    addresses: Vec<IpAddr>,
    port: u16,
    no_namespace: bool,
) -> Result<Vec<OsString>, String> {
    let connect = ConnectList::new(addresses, port)?.to_string();
    let path = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let mut command = vec![path.into_os_string()];
    let arguments =
        ["-daemon", "-connect", &connect, "-host", HOST_PLACEHOLDER, "-key", SECRET_PLACEHOLDER];
    command.extend(arguments.map(OsString::from));
    command.extend(no_namespace.then(|| OsString::from("-nonamespace")));
    Ok(command)
}

/// How long a connection attempt to one address of the server may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the key of the links from a file, or from standard input if the path is
/// `SECRET_ON_STDIN`.
///
/// # Errors
/// One line that names the file at fault.
pub fn read_key(path: &std::ffi::OsStr) -> Result<Key, String> {
    let mut bytes = [0; 32];
    let result = if path == crate::launch::SECRET_ON_STDIN {
        io::stdin().read_exact(&mut bytes)
    } else {
        File::open(path).and_then(|mut file| file.read_exact(&mut bytes))
    };
    result.map_err(|error| format!("-key {}: {error}", path.to_string_lossy()))?;
    Ok(Key::from_bytes(bytes))
}
