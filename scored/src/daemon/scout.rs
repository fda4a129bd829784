//! Scout sessions. A scout session has daemons that outlive one job, and a socket in a private
//! directory of the user. scrun and scout connect to the socket to submit jobs for these daemons.
//! The session ends when the scout that opened it disconnects.

use nix::unistd::geteuid;
use score_proto::MAX_NODES;
use score_proto::client_session::SESSION_JOB;
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::message::{HostKind, HostSpec, JobSpec, Level};
use score_proto::server_message::{ScoutAnswer, ServerMessage};

use super::event_sources::SCOUT_LISTENER;
use super::job_directory::JobDirectory;
use super::local_listener::{LONG_QUEUE, LocalListener};
use super::{Daemon, daemon_bringup};
use score_job::jobs::{ClientJob, SessionKey};

/// The maximum number of simultaneous connections to the socket.
const MAX_LOGINS: usize = 256;

/// The scout session that this daemon serves.
#[derive(Debug)]
pub struct Scout {
    /// The connection of the scout that opened the session. The session ends with it.
    pub control_session: SessionKey,
    hosts: Vec<HostSpec>,
    /// The daemons of the hosts, once all hosts are up. `None` if the only host is this one.
    daemons: Option<Vec<daemon_bringup::DaemonEndpoint>>,
    listener: Option<LocalListener>,
    directory: Option<JobDirectory>,
}

impl Daemon {
    /// Opens a scout session and brings its hosts up.
    pub fn open_scout(&mut self, control_session: SessionKey, hosts: Vec<HostSpec>) {
        let has_session_or_job =
            self.scout.is_some() || self.bringup.is_some() || !self.jobs.led_job_ids().is_empty();
        if has_session_or_job
            || self.server_link.is_some()
            || self.sessions.len() - self.sessions.tool_session_count() != 1
        {
            let reason = "there is a session or job here already".to_owned();
            return self.sessions.refuse(
                ClientJob::session_itself(control_session),
                reason,
                EXIT_FAILED,
            );
        }
        if let Err(reason) = check(&hosts) {
            return self.sessions.refuse(
                ClientJob::session_itself(control_session),
                reason,
                EXIT_REFUSED,
            );
        }
        let (daemons, listener, directory) = (None, None, None);
        let is_local_only = hosts.len() == 1 && hosts[0].kind == HostKind::Local;
        self.scout =
            Some(Scout { control_session, hosts: hosts.clone(), daemons, listener, directory });
        match is_local_only {
            true => self.on_hosts_ready(None),
            false => {
                self.bring_up(ClientJob::session_itself(control_session), placeholder_spec(hosts))
            }
        }
    }

    /// Opens the socket of the session, because all hosts are up.
    pub fn on_hosts_ready(&mut self, daemons: Option<Vec<daemon_bringup::DaemonEndpoint>>) {
        let Some(scout) = &mut self.scout else { return };
        scout.daemons = daemons;
        let Some(session) = self.sessions.get_mut(scout.control_session) else { return };
        let mut announce = |path: &str| {
            session.send(&ServerMessage::Scout(ScoutAnswer::Directory(path.to_owned())));
            session.flush();
        };
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        let result = JobDirectory::create(runtime.as_deref(), &mut announce);
        let result = result.and_then(|directory| {
            let path = directory.path().join("socket");
            directory.remove_leftovers();
            let listener = LocalListener::open(
                &path,
                0o600,
                LONG_QUEUE,
                self.sources.registry(),
                SCOUT_LISTENER,
            )?;
            scout.directory = Some(directory);
            scout.listener = Some(listener);
            Ok(path.to_string_lossy().into_owned())
        });
        match result {
            Ok(socket) => session.send(&ServerMessage::Scout(ScoutAnswer::Opened { socket })),
            Err(reason) => session.send(&ServerMessage::refusal(SESSION_JOB, reason, EXIT_FAILED)),
        }
    }

    /// Records that mio has reported a connection to the socket.
    pub fn on_listener_ready(&mut self) {
        let listener = self.scout.as_mut().and_then(|scout| scout.listener.as_mut());
        listener.into_iter().for_each(|listener| listener.may_accept = true);
    }

    /// Accepts the waiting connections.
    pub fn accept_clients(&mut self) {
        while let Some(scout) = &mut self.scout
            && let Some(client) = scout.listener.as_mut().and_then(LocalListener::accept)
        {
            let ((uid, _), daemon_uid) = (client.credentials, geteuid().as_raw());
            if uid != daemon_uid {
                eprintln!("scored: user {uid} tried to enter a scout session of user {daemon_uid}");
                continue;
            }
            let hosts = scout.hosts.clone();
            let Ok(session_key) = self.add_session(client.socket) else { continue };
            if self.sessions.len() > MAX_LOGINS {
                let reason = format!("{MAX_LOGINS} commands run in this scout session already");
                self.sessions.refuse(ClientJob::session_itself(session_key), reason, EXIT_FAILED);
            } else if let Some(session) = self.sessions.get_mut(session_key) {
                session.hosts = Some(hosts);
            }
        }
    }

    /// Whether connections may wait that mio does not report again.
    pub fn has_pending_clients(&self) -> bool {
        let listener = self.scout.as_ref().and_then(|scout| scout.listener.as_ref());
        listener.is_some_and(|listener| listener.may_accept)
    }

    /// Begins a job on hosts of the session.
    pub fn submit_in_scout(&mut self, client_job: ClientJob, mut spec: JobSpec) {
        let Some(scout) = &self.scout else { return };
        if client_job.session_key == scout.control_session || scout.listener.is_none() {
            return self.sessions.refuse(
                client_job,
                "the session takes jobs at its socket".to_owned(),
                EXIT_FAILED,
            );
        }
        let mut daemons = Vec::new();
        let mut last_index = None;
        for host_spec in &mut spec.hosts {
            let Some(index) = scout.hosts.iter().position(|host| host.name == host_spec.name)
            else {
                let reason = format!("host {}: not in this scout session", host_spec.name);
                return self.sessions.refuse(client_job, reason, EXIT_REFUSED);
            };
            // This condition also excludes a host that is given twice.
            if last_index.is_some_and(|last| index <= last) {
                let reason = format!("host {}: not in the session's order", host_spec.name);
                return self.sessions.refuse(client_job, reason, EXIT_REFUSED);
            }
            last_index = Some(index);
            let HostSpec { address, kind, .. } = &scout.hosts[index];
            (host_spec.address, host_spec.kind) = (address.clone(), *kind);
            daemons.extend(scout.daemons.as_ref().and_then(|endpoints| endpoints.get(index)));
        }
        let daemons = scout.daemons.is_some().then_some(daemons);
        self.begin(client_job, spec, daemons);
    }

    /// Notifies the user that the daemon of a host is lost.
    pub fn notify_host_lost(&mut self, name: &str, reason: &str) {
        let Some(scout) = &self.scout else { return };
        if scout.listener.is_some() {
            let text = format!(
                "host {name} is lost: {reason}. Commands on it fail; leave this session and open \
                 another"
            );
            self.sessions.notice(
                ClientJob::session_itself(scout.control_session),
                Level::Warning,
                text,
            );
        }
    }

    /// Closes the session: removes its socket and directory.
    pub fn close_scout(&mut self) {
        let Some(scout) = self.scout.take() else { return };
        drop(scout.listener);
        if let Some(directory) = scout.directory {
            let path = directory.path().to_owned();
            if let Err(error) = directory.remove() {
                eprintln!("scored: {} cannot be removed: {error}", path.display());
            }
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
