//! The state of single-user mode: the daemons that this daemon has started for its user, the server
//! that has started this daemon, and the sockets at which further clients of the user connect.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use score_job::jobs::{ClientJob, LinkId, SessionKey};
use score_proto::exit_code::EXIT_FAILED;
use score_proto::ids::JobId;
use score_proto::message::{JobSpec, Level};
use score_sys::host_name::system_host_name;

use super::daemon_bringup::{BringupProgress, DaemonBringup, DaemonEndpoint};
use super::host_jobs::HostJobs;
use super::peers::Peers;
use super::rejected_connections::RejectedConnections;
use super::scout::Scout;
use super::sessions::Sessions;
use super::tool_listener::ToolListener;

/// See the [module](self). In multi-user mode it is empty.
#[derive(Default)]
pub struct SingleUser {
    /// The link to the server that started this daemon.
    pub server_link: Option<LinkId>,
    /// The daemons that were started for a session.
    pub bringup: Option<DaemonBringup>,
    /// The scout session that this daemon serves.
    pub scout: Option<Scout>,
    /// The socket to which tools connect.
    pub tool_listener: Option<ToolListener>,
    /// The connections that were dropped before the peer had authenticated.
    rejected_connections: RejectedConnections,
    job_count: u32,
}

impl SingleUser {
    /// Allocates the number of a job.
    pub fn allocate_job(&mut self) -> JobId {
        self.job_count += 1;
        JobId(self.job_count)
    }

    /// The daemons of the hosts of a job. `None`: no daemon has been started yet.
    ///
    /// # Errors
    /// One line: a host is not up, or does not belong to the first job of the login.
    pub fn endpoints_of(&self, spec: &JobSpec) -> Result<Option<Vec<DaemonEndpoint>>, String> {
        self.bringup.as_ref().map(|bringup| bringup.endpoints_of(&spec.hosts)).transpose()
    }

    /// Whether the daemon has started daemons, was started by one, or serves a scout session.
    pub fn is_in_use(&self) -> bool {
        self.scout.is_some() || self.bringup.is_some() || self.server_link.is_some()
    }

    /// Continues the start of the daemons on the hosts of a job.
    pub fn advance_bringup(&mut self, host_jobs: &mut HostJobs, sessions: &mut Sessions) {
        let Some(bringup) = &mut self.bringup else { return };
        let progress = bringup.advance(Instant::now());
        host_jobs.add_children(bringup.processes());
        self.report_progress(progress, sessions);
    }

    /// Reports the progress of the start of daemons to the session that waits for it.
    pub fn report_progress(&self, progress: BringupProgress, sessions: &mut Sessions) {
        let Some(bringup) = &self.bringup else { return };
        let (client_job, has_begun) = (bringup.client_job, bringup.spec.is_none());
        for line in progress.lines {
            sessions.notice(client_job, Level::Warning, line);
        }
        if !has_begun && !progress.failures.is_empty() {
            sessions.refuse(client_job, progress.failures.join("\n"), EXIT_FAILED);
        }
    }

    /// Handles a connection that was dropped before the peer had authenticated. `name`: the name of
    /// this host in jobs.
    pub fn on_rejected_connection(
        &mut self,
        reason: &str,
        name: Option<&str>,
        sessions: &mut Sessions,
    ) {
        let Some(text) = self.rejected_connections.add(reason) else { return };
        match self.client_job() {
            Some(client_job) => sessions.notice(client_job, Level::Warning, text),
            // The server that started this daemon reads its standard error.
            None => {
                let name = name.map_or_else(system_host_name, str::to_owned);
                let _ = writeln!(io::stderr(), "scored on {name}: {text}");
            }
        }
    }

    /// The job or scout session for which daemons were started.
    fn client_job(&self) -> Option<ClientJob> {
        self.bringup.as_ref().map(|bringup| bringup.client_job)
    }

    /// Whether the end of this session ends the daemon.
    pub fn is_controlled_by(&self, session_key: SessionKey) -> bool {
        self.scout.as_ref().is_some_and(|scout| scout.control_session == session_key)
    }

    /// Whether output of launchers may be left to read without a further event.
    pub fn may_have_more(&self) -> bool {
        self.bringup.as_ref().is_some_and(DaemonBringup::may_have_more)
    }

    /// The time at which the start of daemons needs attention without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.bringup.as_ref().and_then(DaemonBringup::deadline)
    }

    /// The delay before the next accept(2) if connections may wait that mio does not report again.
    pub fn accept_retry(&self) -> Option<Duration> {
        self.scout.as_ref().and_then(Scout::accept_retry)
    }

    /// Sets how often links send heartbeats. Each daemon has a link to the server. While a job
    /// runs, the links of its range tree detect lost hosts. The other links send fewer heartbeats,
    /// because the heartbeats of many idle hosts would keep a processor busy.
    pub fn tune_heartbeats(&self, peers: &mut Peers, is_used: impl Fn(LinkId) -> bool) {
        let link_ids = match (self.server_link, &self.bringup) {
            (Some(link_id), _) => vec![link_id],
            (None, Some(_)) => peers.link_ids(),
            (None, None) => return,
        };
        for link_id in link_ids {
            peers.set_sparse_heartbeats(link_id, !is_used(link_id));
        }
    }

    /// Closes the scout session: removes its socket and directory.
    pub fn close_scout(&mut self) {
        self.scout.take().into_iter().for_each(Scout::close);
    }
}
