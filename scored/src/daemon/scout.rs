//! Scout sessions. A scout session has daemons that outlive one job, and a socket in a private
//! directory of the user. scrun and scout connect to the socket to submit jobs for these daemons.
//! The session ends when the scout that opened it disconnects.

use std::os::fd::OwnedFd;
use std::time::Duration;

use mio::Registry;
use nix::unistd::geteuid;
use score_proto::MAX_NODES;
use score_proto::client_session::SESSION_JOB;
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::message::{HostKind, HostSpec, JobSpec};
use score_proto::server_message::{ScoutAnswer, ServerMessage};

use super::Daemon;
use super::daemon_bringup::DaemonEndpoint;
use super::event_sources::{EventSources, SCOUT_LISTENER};
use super::job_directory::JobDirectory;
use super::local_listener::{LONG_QUEUE, LocalListener};
use super::sessions::Sessions;
use score_job::jobs::{ClientJob, SessionKey};

/// The delay before the next accept(2) after the process has run out of descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of simultaneous connections to the socket.
const MAX_LOGINS: usize = 256;

/// The scout session that this daemon serves.
#[derive(Debug)]
pub struct Scout {
    /// The connection of the scout that opened the session. The session ends with this connection.
    pub control_session: SessionKey,
    hosts: Vec<HostSpec>,
    /// The daemons of the hosts, once all hosts are up. `None` if the only host is this one.
    daemons: Option<Vec<DaemonEndpoint>>,
    listener: Option<LocalListener>,
    directory: Option<JobDirectory>,
}

impl Scout {
    /// Whether the hosts are up and jobs are accepted.
    fn is_open(&self) -> bool {
        self.listener.is_some()
    }

    /// Opens the socket of the session, because all hosts are up. Returns the path of the socket.
    ///
    /// # Errors
    /// One line that names the file at fault.
    fn open(
        &mut self,
        daemons: Option<Vec<DaemonEndpoint>>,
        registry: &Registry,
        announce: &mut dyn FnMut(&str),
    ) -> Result<String, String> {
        self.daemons = daemons;
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        let directory = JobDirectory::create(runtime.as_deref(), announce)?;
        let path = directory.path().join("socket");
        directory.remove_leftovers();
        self.listener =
            Some(LocalListener::open(&path, 0o600, LONG_QUEUE, registry, SCOUT_LISTENER)?);
        self.directory = Some(directory);
        Ok(path.to_string_lossy().into_owned())
    }

    /// Records that mio has reported a connection to the socket.
    pub fn mark_ready(&mut self) {
        self.listener.iter_mut().for_each(|listener| listener.may_accept = true);
    }

    /// The delay before the next accept(2) if connections may wait that mio does not report again.
    pub fn accept_retry(&self) -> Option<Duration> {
        let may_accept = self.listener.as_ref().is_some_and(|listener| listener.may_accept);
        may_accept.then_some(ACCEPT_RETRY_INTERVAL)
    }

    /// Accepts the next client of this daemon's user.
    fn accept(&mut self) -> Option<OwnedFd> {
        loop {
            let client = self.listener.as_mut()?.accept()?;
            let (uid, daemon_uid) = (client.ids.uid, geteuid().as_raw());
            if uid == daemon_uid {
                return Some(client.socket);
            }
            eprintln!("scored: user {uid} tried to enter a scout session of user {daemon_uid}");
        }
    }

    /// Accepts the waiting clients of the session.
    pub fn accept_clients(&mut self, sessions: &mut Sessions, sources: &mut EventSources) {
        while let Some(socket) = self.accept() {
            let Ok(session_key) = sessions.connect(socket, sources) else { continue };
            if sessions.len() > MAX_LOGINS {
                let reason = format!("{MAX_LOGINS} commands run in this scout session already");
                let client_job = ClientJob::session_itself(session_key);
                sessions.refuse(client_job, reason, EXIT_FAILED);
            } else if let Some(session) = sessions.get_mut(session_key) {
                session.hosts = Some(self.hosts.clone());
            }
        }
    }

    /// Opens the socket of the session when all hosts are up.
    pub fn on_hosts_ready(
        &mut self,
        daemons: Option<Vec<DaemonEndpoint>>,
        sessions: &mut Sessions,
        registry: &Registry,
    ) {
        let Some(session) = sessions.get_mut(self.control_session) else { return };
        let mut announce = |path: &str| {
            session.send(&ServerMessage::Scout(ScoutAnswer::Directory(path.to_owned())));
            session.flush();
        };
        match self.open(daemons, registry, &mut announce) {
            Ok(socket) => session.send(&ServerMessage::Scout(ScoutAnswer::Opened { socket })),
            Err(reason) => session.send(&ServerMessage::refusal(SESSION_JOB, reason, EXIT_FAILED)),
        }
    }

    /// Sets the addresses of a job's hosts. Returns the daemons of the hosts, unless the only host
    /// is this one.
    ///
    /// # Errors
    /// The reason and the exit code for the user.
    pub fn place(
        &self,
        session_key: SessionKey,
        spec: &mut JobSpec,
    ) -> Result<Option<Vec<DaemonEndpoint>>, (String, u8)> {
        if session_key == self.control_session || !self.is_open() {
            return Err((
                "a scout session accepts jobs only at its socket".to_owned(),
                EXIT_FAILED,
            ));
        }
        let mut daemons = Vec::new();
        let mut last_index = None;
        for host_spec in &mut spec.hosts {
            let name = &host_spec.name;
            let index = self.hosts.iter().position(|host| host.name == *name);
            let Some(index) = index else {
                return Err((format!("host {name}: not in this scout session"), EXIT_REFUSED));
            };
            // This condition also excludes a host that is given twice.
            if last_index.is_some_and(|last| index <= last) {
                return Err((format!("host {name}: not in the session's order"), EXIT_REFUSED));
            }
            last_index = Some(index);
            let HostSpec { address, kind, .. } = &self.hosts[index];
            (host_spec.address, host_spec.kind) = (address.clone(), *kind);
            daemons.extend(self.daemons.as_ref().and_then(|endpoints| endpoints.get(index)));
        }
        Ok(self.daemons.is_some().then_some(daemons))
    }

    /// A line for the user of an open session, because the daemon of a host is lost.
    pub fn host_lost_text(&self, name: &str, reason: &str) -> Option<String> {
        self.is_open().then(|| {
            format!(
                "host {name} is lost: {reason}. Commands on it fail; leave this session and open \
                 another"
            )
        })
    }

    /// Removes the socket and directory of the session.
    pub fn close(self) {
        drop(self.listener);
        if let Some(directory) = self.directory {
            let path = directory.path().to_owned();
            if let Err(error) = directory.remove() {
                eprintln!("scored: {} cannot be removed: {error}", path.display());
            }
        }
    }
}

impl Daemon {
    /// Opens a scout session and brings its hosts up.
    pub fn open_scout(&mut self, control_session: SessionKey, hosts: Vec<HostSpec>) {
        let client_job = ClientJob::session_itself(control_session);
        if self.single_user.is_in_use()
            || !self.jobs.state().led_job_ids().is_empty()
            || self.sessions.len() - self.sessions.tool_session_count() != 1
        {
            let reason = "there is a session or job here already".to_owned();
            return self.sessions.refuse(client_job, reason, EXIT_FAILED);
        }
        if let Err(reason) = check(&hosts) {
            return self.sessions.refuse(client_job, reason, EXIT_REFUSED);
        }
        let (daemons, listener, directory) = (None, None, None);
        let is_local_only = hosts.len() == 1 && hosts[0].kind == HostKind::Local;
        let scout = Scout { control_session, hosts: hosts.clone(), daemons, listener, directory };
        let scout = self.single_user.scout.insert(scout);
        match is_local_only {
            true => scout.on_hosts_ready(None, &mut self.sessions, self.sources.registry()),
            false => self.bring_up(client_job, placeholder_spec(hosts)),
        }
    }
}

fn check(hosts: &[HostSpec]) -> Result<(), String> {
    if hosts.is_empty() || hosts.len() > MAX_NODES as usize {
        return Err(format!("{} hosts: there can be 1 to {MAX_NODES}", hosts.len()));
    }
    let mut names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("host {} is given more than once", pair[0])),
        None => Ok(()),
    }
}

/// A specification without programs, for hosts that are brought up without a job.
fn placeholder_spec(hosts: Vec<HostSpec>) -> JobSpec {
    JobSpec { hosts, umask: 0o077, ..JobSpec::default() }
}
