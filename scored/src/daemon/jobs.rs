//! Jobs in the daemon's loop. This module begins jobs, and carries out the effects of the inputs
//! that [`super::daemon_jobs`] handles.

use std::time::Instant;

use score_job::cluster::HostShare;
use score_job::jobs::{
    ClientJob, Effect, HostIdentity, Input, JobTag, Launch, LinkId, NewJob, Parent,
    SINGLE_USER_HOST,
};
use score_proto::exit_code::{EXIT_HOST_LOST, EXIT_REFUSED};
use score_proto::ids::JobId;
use score_proto::job_control::{
    HopOrder, HopReport, HostPlacement, JobStart, Owner as JobOwner, Placement, StopCondition,
    SwitchOrder,
};
use score_proto::message::{HostSpec, JobSpec, Level};
use score_proto::peer_message::JobIncarnation;
use score_proto::server_message::{ConsoleAnswer, JobAnswer, ServerMessage};
use score_sys::host_name::system_host_name;
use score_sys::random::random_u64;

use super::daemon_bringup::{self, DaemonBringup};
use super::event_sources::EventSources;
use super::host_job::NO_OWNER;
use super::peers::Peers;
use super::{Daemon, job_directory, service};

/// Jobs that this daemon leads.
impl Daemon {
    /// Begins a job on these daemons. All of its hosts are up.
    pub fn begin(
        &mut self,
        client_job: ClientJob,
        spec: JobSpec,
        daemons: Option<Vec<daemon_bringup::DaemonEndpoint>>,
    ) {
        let job_id = self.single_user.allocate_job();
        self.begin_with_id(client_job, job_id, spec, daemons, None);
    }

    /// Begins a job with a number that was assigned elsewhere. `owner` is set in multi-user mode.
    pub fn begin_with_id(
        &mut self,
        client_job: ClientJob,
        job_id: JobId,
        spec: JobSpec,
        daemons: Option<Vec<daemon_bringup::DaemonEndpoint>>,
        owner: Option<JobOwner>,
    ) {
        if self.service.is_some() && owner.is_none() {
            return self.sessions.refuse(client_job, NO_OWNER.to_owned(), EXIT_REFUSED);
        }
        let session = self.sessions.get_mut(client_job.session_key);
        if !session.is_some_and(|session| session.set_job_id(client_job.job, job_id)) {
            return self.on_master_done(job_id, EXIT_HOST_LOST);
        }
        let daemons = daemons.unwrap_or_default();
        let to_host = |(index, host): (usize, &HostSpec)| {
            let name = if host.name.is_empty() { system_host_name() } else { host.name.clone() };
            (name, daemons.get(index).copied(), host.procs)
        };
        let placement = Placement::new(
            JobIncarnation(random_u64()),
            spec.hosts.iter().enumerate().map(to_host),
        );
        let allocations = match &self.service {
            Some(service) => service.allocations(&spec),
            None => vec![HostShare { host: SINGLE_USER_HOST, procs: 1 }],
        };
        let start = JobStart { job: job_id, secret: random_u64(), spec, owner };
        let new_job = NewJob { start, placement, client_job, allocations };
        self.jobs.on(Input::Begin(Box::new(new_job)));
    }
}

/// Inputs and effects.
impl Daemon {
    /// Updates the jobs' data about this host after the daemon has got links or a new incarnation.
    pub fn update_identity(&mut self) {
        let Some(peers) = &self.peers else { return };
        let (name, incarnation) = (peers.name().to_owned(), peers.incarnation());
        self.jobs.set_identity(HostIdentity { name, incarnation });
        if self.single_user.bringup.as_ref().is_some_and(DaemonBringup::is_virtual) {
            self.jobs.set_shared_disk();
        }
    }

    /// Passes the reports of shepherds to the jobs and carries out the effects, until there are no
    /// more.
    pub fn dispatch_pending(&mut self) {
        loop {
            self.jobs.on_host_reports(&mut self.host_jobs, &mut self.usage);
            let effects = self.jobs.take_effects();
            if effects.is_empty() {
                return;
            }
            effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::ToClient(job, client_job, answer) => {
                self.send_to_client(job, client_job, answer)
            }
            Effect::ToSession(session_key, metrics @ ConsoleAnswer::Metrics(_)) => {
                self.sessions.send_metrics(session_key, metrics, &mut self.usage);
            }
            Effect::ToSession(session_key, answer) => {
                self.sessions.answer_console(session_key, answer);
            }
            Effect::RefuseSession(session_key, reason) => {
                self.sessions.refuse_session(session_key, reason, EXIT_REFUSED);
            }
            Effect::Connect(connection, host) => {
                let result = link_to(&host, self.peers.as_mut(), &mut self.sources);
                self.jobs.on(Input::Connected { connection, result });
            }
            Effect::SendOrder(link_id, tag, order) => {
                let peers = self.peers.as_mut();
                let is_sent = peers.is_none_or(|peers| peers.send_order(link_id, tag, &order));
                if !is_sent && !matches!(order, HopOrder::Abort) {
                    self.jobs.on(Input::OrderTooLong(link_id, tag));
                }
            }
            Effect::SendReport(link_id, tag, report) => {
                self.peers.iter_mut().for_each(|one| one.send_report(link_id, tag, &report));
            }
            Effect::Launch(launch) => self.host_jobs.add(launch),
            Effect::ToShepherd(job, order) => {
                let report = self.host_jobs.on_order(job, &order);
                report.into_iter().for_each(|one| self.jobs.on(Input::Local(job, one)));
            }
            Effect::ToSwitchThread(job, order) => self.on_switch_order(job, order),
            Effect::AbortHere(job) => {
                self.host_jobs.abort(job);
                self.sources.release_job(job);
            }
            Effect::EndedHere(job) => {
                self.host_jobs.remove(job);
                self.sources.release_job(job);
            }
            Effect::HostsLost(lost) => {
                if let Some(bringup) = &mut self.single_user.bringup {
                    lost.names.iter().for_each(|name| bringup.kill_daemon(name));
                }
                self.on_hosts_lost(lost);
            }
            Effect::RemoveDirectories(paths) => {
                paths.iter().for_each(|path| job_directory::remove_orphaned(path));
            }
            Effect::Finished(job, code) => self.on_master_done(job, code),
            Effect::StopTimedOut(client_job, text) => {
                if self.service.is_some() {
                    service::warn(&text);
                }
                let client_job = client_job.into_iter();
                client_job.for_each(|one| self.sessions.notice(one, Level::Warning, text.clone()));
            }
            Effect::PageStacks(..)
            | Effect::PageMetrics(..)
            | Effect::RowStarted
            | Effect::Rotated(..) => {
                if let Some(service) = &mut self.service {
                    service.show_on_page(effect, &self.jobs);
                }
            }
        }
    }

    /// Sends a message about a job to the session that has submitted the job. The message is
    /// dropped if the session has since given the number to another job.
    fn send_to_client(&mut self, job_id: JobId, client_job: ClientJob, answer: JobAnswer) {
        if let JobAnswer::Stacks(stacks) = &answer {
            let service = self.service.iter_mut();
            service.for_each(|service| service.keep_reported_stacks(job_id, stacks));
        }
        if let Some(session) = self.sessions.get_mut(client_job.session_key)
            && session.job_id(client_job.job) == Some(job_id)
        {
            session.send(&ServerMessage::job_answer(client_job.job, answer));
        }
    }
}

/// The local parts of jobs.
impl Daemon {
    /// Handles an order for the switch thread of this host's shepherd.
    fn on_switch_order(&mut self, job: JobId, order: SwitchOrder) {
        if let SwitchOrder::Run {
            stop_condition: StopCondition::After { .. } | StopCondition::LocalRotation(_),
            ..
        } = order
            && self.latency_hold.extend(Instant::now())
        {
            self.log_if_verbose("the processors stay awake: jobs take turns");
        }
        self.host_jobs.on_switch_order(job, order);
    }

    /// Begins the jobs that this host has been ordered to begin. Returns false if there were none.
    /// Call it after the orders to the child hosts have been sent, so that the hosts start in
    /// parallel.
    pub fn begin_pending_jobs(&mut self) -> bool {
        let (sessions, peers) = (&mut self.sessions, &mut self.peers);
        // The daemon reports the path before the directory exists. If the daemon is killed, another
        // process can then remove the directory.
        let mut announce_path = |launch: &Launch, path: &str| match (launch.parent, &mut *peers) {
            // The user of a job of multi-user mode cannot remove the directory. The next keeper
            // removes it.
            _ if launch.start.owner.is_some() => {}
            (Parent::Master, _) => {
                let Some(ClientJob { session_key, job }) = launch.client_job else { return };
                if let Some(session) = sessions.get_mut(session_key) {
                    let answer = JobAnswer::Directory(path.to_owned());
                    session.send(&ServerMessage::job_answer(job, answer));
                    session.flush();
                }
            }
            (Parent::Peer(link_id), Some(peers)) => {
                let host = launch.placement.self_host;
                let report = HopReport::Directory { host, path: path.to_owned() };
                let incarnation = launch.placement.job_incarnation;
                let tag = JobTag { job: launch.start.job, incarnation };
                peers.send_report(link_id, tag, &report);
                peers.flush();
            }
            (Parent::Peer(_), None) => {}
        };
        self.host_jobs.begin_pending(&mut self.sources, &mut self.usage, &mut announce_path)
    }

    /// Sets the slice timer to the earliest of three times: the next deadline of the gang
    /// scheduler, the time at which a stop is enforced, and the end of a pause between clients.
    pub fn set_slice_timer(&mut self) {
        let moments = [self.accept_pause_end(), self.host_jobs.stop_deadline()];
        self.jobs.set_slice_timer(moments.into_iter().flatten());
    }
}

/// The link to a host of a job. Connects to the host if there is no link.
fn link_to(
    host: &HostPlacement,
    peers: Option<&mut Peers>,
    sources: &mut EventSources,
) -> Result<LinkId, String> {
    let name = &host.name;
    let peers = peers.ok_or_else(|| format!("host {name}: this daemon has no links"))?;
    if let Some(link_id) = peers.link_to(name) {
        return Ok(link_id);
    }
    let address = host.address.ok_or_else(|| format!("host {name}: it has no address"))?;
    let linked = peers.connect(name, address, sources);
    linked.map_err(|error| format!("host {name} at {address}: {error}"))
}
