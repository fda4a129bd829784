//! Jobs in the daemon's loop. This module passes inputs to [`score_job::jobs`] and carries out the
//! resulting effects.

use std::collections::BTreeMap;
use std::time::Instant;

use score_job::cluster::{HostShare, JobPermit};
use score_job::jobs::{
    ClientJob, Effect, HostIdentity, Input, JobTag, Launch, LinkId, NewJob, Parent,
    SINGLE_USER_HOST, SessionKey,
};
use score_job::metrics_subscribers::Subscriber;
use score_proto::exit_code::{EXIT_HOST_LOST, EXIT_REFUSED};
use score_proto::frame;
use score_proto::ids::{HostId, JobId};
use score_proto::job_control::{
    HopOrder, HopReport, HostPlacement, JobStart, Owner as JobOwner, Placement, StopCondition,
    SwitchOrder,
};
use score_proto::message::{HostSpec, JobSpec, Level, ToolCall, ToolSession};
use score_proto::peer_message::JobIncarnation;
use score_proto::server_message::{JobAnswer, ServerMessage};
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::ToolAction;
use score_sys::host_name::system_host_name;
use score_sys::random::random_u64;

use super::daemon_bringup::{self, DaemonBringup};
use super::event_sources::EventSources;
use super::host_job::{IsOnlyReport, NO_OWNER};
use super::peers::Peers;
use super::{Daemon, job_directory, service};

/// Environment variable for tests: a fixed interval of the idle check, in microseconds.
const POLL_INTERVAL_ENV: &str = "SCORE_TEST_PACE";

/// The value of [`POLL_INTERVAL_ENV`].
pub fn fixed_poll_interval_us() -> Option<u32> {
    std::env::var(POLL_INTERVAL_ENV).ok().and_then(|text| text.parse().ok())
}

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

    /// Begins a job with a number that was assigned elsewhere. In multi-user mode, `owner` is the
    /// owner.
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
        self.on_job_input(Input::Begin(Box::new(new_job)));
    }

    /// Enables the sharing of hosts between jobs (multi-user mode). `slots` is the number of slots
    /// of each host.
    pub fn set_host_slots(&mut self, slots: BTreeMap<HostId, u32>) {
        self.jobs.set_gang(self.options.gang, slots);
    }
}

/// Requests of sessions to running jobs: watch one (`scmon JOB`), start tools and call them.
impl Daemon {
    /// Subscribes a session to the metrics of a job that this daemon leads, until the job ends.
    ///
    /// # Errors
    /// One line: the job is still queued and has no metrics yet.
    pub fn watch_job(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        period_ms: u32,
    ) -> Result<(), String> {
        let job = permit.job();
        if !self.jobs.leads(job) {
            return Err(format!("job {job} is still queued; no metrics are available yet"));
        }
        self.unwatch(session_key);
        let (subscriber, period_ms) = (Subscriber::Session(session_key), period_ms.max(1));
        self.on_job_input(Input::Subscribe { job, subscriber, period_ms });
        Ok(())
    }

    /// Sends a tool's command to the processes of the permit's job, which this daemon leads.
    ///
    /// # Errors
    /// One line: the job has no processes.
    pub fn send_tool_call(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        call: ToolCall,
    ) -> Result<(), String> {
        let job = permit.job();
        if !self.jobs.leads(job) {
            return Err(format!("job {job} has no processes now: it is queued, or has ended"));
        }
        self.on_job_input(Input::Tool(session_key, ToolCall { job, ..call }));
        Ok(())
    }

    /// Starts a tool next to a job that this daemon leads, or signals such a tool.
    ///
    /// # Errors
    /// One line: the job is still queued, or the connection has sent files already.
    pub fn send_tool_action(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        action: ToolAction,
    ) -> Result<(), String> {
        let job = permit.job();
        if !self.jobs.leads(job) {
            return Err(format!("job {job} is still queued; it has no tools yet"));
        }
        let has_files = matches!(action, ToolAction::Start { files: Some(_), .. });
        if has_files && self.jobs.job_of_tool_session(session_key).is_some() {
            return Err("a connection sends the files of one tool".to_owned());
        }
        self.on_job_input(Input::ToolAction(session_key, job, action));
        Ok(())
    }

    /// Passes on bytes of the files of the tool that the session starts. The job master drops bytes
    /// that no host has requested.
    pub fn send_tool_file(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        chunk: ToolFileChunk,
    ) {
        let chunk = ToolFileChunk { job: permit.job(), ..chunk };
        self.on_job_input(Input::ToolFile(session_key, chunk));
    }

    /// Requests the list of processes of a job that this daemon leads.
    ///
    /// # Errors
    /// One line: the job is still queued.
    pub fn list_processes(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
    ) -> Result<(), String> {
        let job = permit.job();
        if !self.jobs.leads(job) {
            return Err(format!("job {job} is still queued; it has no processes yet"));
        }
        self.on_job_input(Input::ListProcesses(session_key, job));
        Ok(())
    }

    /// Makes the session a tool session: the tool keeps state in processes of a job that this
    /// daemon leads. The state is removed when the session ends.
    ///
    /// # Errors
    /// One line: the job has no processes, or the connection already has a tool session.
    pub fn begin_tool_session(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        session: ToolSession,
    ) -> Result<(), String> {
        let job = permit.job();
        if !self.jobs.leads(job) {
            return Err(format!("job {job} has no processes now: it is queued, or has ended"));
        }
        if self.jobs.job_of_tool_session(session_key).is_some() {
            return Err("a connection has one session of a tool".to_owned());
        }
        self.on_job_input(Input::ToolSession(session_key, ToolSession { job, ..session }));
        Ok(())
    }

    /// Ends a session's subscription, tool session and transfer of files.
    pub fn end_subscriptions(&mut self, session_key: SessionKey) {
        self.unwatch(session_key);
        if self.jobs.job_of_tool_session(session_key).is_some() {
            self.on_job_input(Input::ToolSessionEnded(session_key));
        }
    }

    /// Ends a session's subscription to the metrics of a job.
    pub fn unwatch(&mut self, session_key: SessionKey) {
        if let Some(job) = self.jobs.watched_job(session_key) {
            let subscriber = Subscriber::Session(session_key);
            self.on_job_input(Input::Subscribe { job, subscriber, period_ms: 0 });
        }
    }
}

/// Inputs and effects.
impl Daemon {
    /// Passes an input to the jobs. [`Daemon::dispatch_pending`] carries out the effects.
    pub fn on_job_input(&mut self, input: Input) {
        self.jobs.on(input, self.job_clock.now());
    }

    /// Updates the jobs' data about this host after the daemon has got links or a new incarnation.
    pub fn update_identity(&mut self) {
        let Some(peers) = &self.peers else { return };
        let (name, incarnation) = (peers.name().to_owned(), peers.incarnation());
        self.jobs.set_identity(HostIdentity { name, incarnation });
        if self.single_user.bringup.as_ref().is_some_and(DaemonBringup::is_virtual) {
            self.jobs.set_shared_disk();
        }
    }

    /// Handles an order that has arrived over a link.
    pub fn on_order(&mut self, link_id: LinkId, tag: JobTag, body: &[u8]) {
        match frame::decode_datagram::<HopOrder>(body) {
            Ok(order) => self.on_job_input(Input::Order(link_id, tag, order)),
            Err(_) => eprintln!("scored: job {}: malformed order", tag.job),
        }
    }

    /// Handles a report that has arrived over a link.
    pub fn on_report(&mut self, link_id: LinkId, tag: JobTag, body: &[u8]) {
        match frame::decode_datagram::<HopReport>(body) {
            Ok(report) => self.on_job_input(Input::Report(link_id, tag, report)),
            Err(_) => eprintln!("scored: job {}: malformed report", tag.job),
        }
    }

    /// Passes the reports of shepherds to the jobs and carries out the effects, until there are no
    /// more.
    pub fn dispatch_pending(&mut self) {
        loop {
            self.collect_local_reports();
            let effects = self.jobs.take_effects(self.job_clock.now());
            if effects.is_empty() {
                return;
            }
            effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
    }

    fn collect_local_reports(&mut self) {
        let now = self.job_clock.now();
        for (job, report) in self.host_jobs.take_reports() {
            self.jobs.on(Input::Local(job, report), now);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::ToClient(job, client_job, answer) => {
                self.send_to_client(job, client_job, answer)
            }
            Effect::ToSession(session_key, answer) => {
                self.sessions.answer_console(session_key, answer);
            }
            Effect::RefuseSession(session_key, reason) => {
                self.sessions.refuse_session(session_key, reason, EXIT_REFUSED);
            }
            Effect::Connect(connection, host) => {
                let result = link_to(&host, self.peers.as_mut(), &mut self.sources);
                self.on_job_input(Input::Connected { connection, result });
            }
            Effect::SendOrder(link_id, tag, order) => {
                let peers = self.peers.as_mut();
                let is_sent = peers.is_none_or(|peers| peers.send_order(link_id, tag, &order));
                if !is_sent && !matches!(order, HopOrder::Abort) {
                    self.on_job_input(Input::OrderTooLong(link_id, tag));
                }
            }
            Effect::SendReport(link_id, tag, report) => {
                self.peers.iter_mut().for_each(|one| one.send_report(link_id, tag, &report));
            }
            Effect::Launch(launch) => self.host_jobs.add(launch),
            Effect::ToShepherd(job, order) => {
                let report = self.host_jobs.on_order(job, &order);
                report.into_iter().for_each(|one| self.on_job_input(Input::Local(job, one)));
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
            Effect::HostsLost(names) => {
                let bringup = self.single_user.bringup.iter_mut();
                bringup.for_each(|bringup| names.iter().for_each(|name| bringup.kill_daemon(name)));
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
            | Effect::Rotated(..) => self.show_on_page(effect),
        }
    }

    /// Passes an effect to the status page, if there is one.
    fn show_on_page(&mut self, effect: Effect) {
        let Some(service) = &mut self.service else { return };
        match effect {
            Effect::PageStacks(job, stacks) => service.update_page_stacks(job, stacks),
            Effect::PageMetrics(job, metrics) => service.update_page_metrics(job, &metrics),
            Effect::RowStarted => service.record_row(self.jobs.gang().running()),
            Effect::Rotated(jobs, turn_count, since) => {
                service.record_rotation(&jobs, turn_count, self.job_clock.moment_of(since));
            }
            _ => {}
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
        // The path is reported before the directory exists.
        let mut announce_path = |launch: &Launch, path: &str| match (launch.parent, &mut *peers) {
            // A user could not remove the directory. The next scored removes it.
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

    /// If the running job of a rotation has stopped, starts the next job. Returns true if the stop
    /// was the shepherd's only report.
    pub fn advance_rotation(&mut self) -> bool {
        let Some((job, switch_seq)) = self.jobs.expected_rotation_stop() else { return false };
        let Some(IsOnlyReport(is_only_report)) = self.host_jobs.read_rotation_stop(job, switch_seq)
        else {
            return false;
        };
        // The idle states that came with the stop decide whether the rotation continues.
        self.collect_local_reports();
        let next = self.jobs.next_rotation_turn(|job| self.host_jobs.has_shepherd(job));
        if let Some((next, order)) = next
            && self.host_jobs.start_turn(next, order, self.sources.registry())
        {
            return is_only_report;
        }
        self.jobs.end_rotation(job, switch_seq);
        false
    }

    /// Sets the slice timer to the earliest of three times: the next deadline of the gang
    /// scheduler, the time at which a stop is enforced, and the end of a pause between clients.
    pub fn set_slice_timer(&mut self) {
        let gang_deadline = self.jobs.gang().deadline();
        let moments = [self.accept_pause_end(), self.host_jobs.stop_deadline()];
        let times = moments.into_iter().flatten().map(|moment| self.job_clock.time_of(moment));
        self.slice_timer.set(times.chain(gang_deadline).min(), self.job_clock.now());
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
