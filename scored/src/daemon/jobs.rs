//! Jobs in the daemon's loop. This module passes inputs to [`score_job::jobs`] and carries out the
//! resulting effects.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use score_job::cluster::{HostShare, JobPermit, MonotonicTime};
use score_job::jobs::{
    ClientJob, Effect, HostIdentity, Input, JobTag, Launch, LinkId, LocalReport, NewJob, Parent,
    SINGLE_USER_HOST, SessionKey,
};
use score_job::metrics_subscribers::Subscriber;
use score_proto::exit_code::{EXIT_HOST_LOST, EXIT_REFUSED};
use score_proto::frame;
use score_proto::ids::{HostId, JobId};
use score_proto::job_control::{
    HopOrder, HopReport, HostPlacement, JobOrder, JobReport, JobStart, Owner as JobOwner,
    Placement, Report, ShepherdOrder, StopCondition, SwitchOrder,
};
use score_proto::message::{HostSpec, JobSpec, Level, ToolCall, ToolSession};
use score_proto::peer_message::{JobIncarnation, PeerMessage};
use score_proto::server_message::{JobAnswer, ServerMessage};
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::ToolAction;
use score_sys::host_name::system_host_name;
use score_sys::random::random_u64;

use super::daemon_bringup::{self, DaemonBringup};
use super::host_job::{HostJob, IsOnlyReport, NO_OWNER, StartContext};
use super::host_tools::ToolTimes;
use super::{Daemon, STALE_SWEEP_INTERVAL, TokenOwner, job_directory, service};

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
        let job_id = self.next_job;
        self.next_job.0 += 1;
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
            return self.refuse(client_job, NO_OWNER.to_owned(), EXIT_REFUSED);
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
        let allocations = self.host_allocations(&spec);
        let start = JobStart { job: job_id, secret: random_u64(), spec, owner };
        let new_job = NewJob { start, placement, client_job, allocations };
        self.on_job_input(Input::Begin(Box::new(new_job)));
    }

    /// The hosts and processors of a job for the gang scheduler.
    fn host_allocations(&self, spec: &JobSpec) -> Vec<HostShare> {
        let Some(service) = &self.service else {
            return vec![HostShare { host: SINGLE_USER_HOST, procs: 1 }];
        };
        let allocation_on = |host: &HostSpec| {
            Some(HostShare { host: service.host_named(&host.name)?, procs: host.procs })
        };
        spec.hosts.iter().filter_map(allocation_on).collect()
    }

    /// Enables the sharing of hosts between jobs (multi-user mode). `slots` is the number of slots
    /// of each host.
    pub fn set_host_slots(&mut self, slots: BTreeMap<HostId, u32>) {
        self.jobs.set_gang(self.options.gang, slots);
    }

    /// Sends one line to the user of a session.
    pub fn notice(&mut self, client_job: ClientJob, level: Level, text: String) {
        if let Some(session) = self.sessions.get_mut(client_job.session_key) {
            session.send(&ServerMessage::notice(client_job.job, level, text));
        }
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
    /// The current time of the jobs' clock.
    pub fn job_time(&self) -> MonotonicTime {
        self.to_job_time(Instant::now())
    }

    /// Converts a moment to the time of the jobs' clock.
    pub fn to_job_time(&self, moment: Instant) -> MonotonicTime {
        moment.saturating_duration_since(self.started_at)
    }

    /// Passes an input to the jobs. [`Daemon::dispatch_pending`] carries out the effects.
    pub fn on_job_input(&mut self, input: Input) {
        self.jobs.on(input, self.started_at.elapsed());
    }

    /// Updates the jobs' view of this host after the daemon has got links or a new incarnation.
    pub fn update_identity(&mut self) {
        let Some(peers) = &self.peers else { return };
        let (name, incarnation) = (peers.name().to_owned(), peers.incarnation());
        self.jobs.set_identity(HostIdentity { name, incarnation });
        if self.bringup.as_ref().is_some_and(DaemonBringup::is_virtual) {
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
            let effects = self.jobs.take_effects(self.job_time());
            if effects.is_empty() {
                return;
            }
            effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
    }

    fn collect_local_reports(&mut self) {
        let now = self.job_time();
        for (job, host_job) in &mut self.host_jobs {
            for report in host_job.take_reports() {
                self.jobs.on(Input::Local(*job, report), now);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::ToClient(job, client_job, answer) => {
                self.send_to_client(job, client_job, answer)
            }
            Effect::ToSession(session_key, answer) => {
                if let Some(session) = self.sessions.get_mut(session_key) {
                    session.send(&ServerMessage::Console(answer));
                }
            }
            Effect::RefuseSession(session_key, reason) => {
                self.refuse(ClientJob::session_itself(session_key), reason, EXIT_REFUSED);
            }
            Effect::PageStacks(job, stacks) => self.update_page_stacks(job, stacks),
            Effect::PageMetrics(job, metrics) => self.update_page_metrics(job, &metrics),
            Effect::Connect(connection, host) => {
                let result = self.link_to_host(&host);
                self.on_job_input(Input::Connected { connection, result });
            }
            Effect::SendOrder(link_id, tag, order) => self.send_order(link_id, tag, &order),
            Effect::SendReport(link_id, tag, report) => self.send_report(link_id, tag, &report),
            Effect::Launch(launch) => {
                let times = ToolTimes::new(self.options.tool_cleanup);
                let host_job = HostJob::new(launch, times, self.known_children.clone());
                self.host_jobs.insert(host_job.job(), host_job);
            }
            Effect::ToShepherd(job, order) => self.on_shepherd_order(job, &order),
            Effect::ToSwitchThread(job, order) => self.on_switch_order(job, order),
            Effect::AbortHere(job) => {
                let host_job = self.host_jobs.remove(&job);
                host_job.into_iter().for_each(|host_job| self.end_host_job(host_job));
                self.release_shepherd_tokens(job);
            }
            Effect::EndedHere(job) => {
                self.host_jobs.remove(&job);
                self.release_shepherd_tokens(job);
            }
            Effect::HostsLost(names) => {
                let bringup = self.bringup.iter_mut();
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
                client_job.for_each(|one| self.notice(one, Level::Warning, text.clone()));
            }
            Effect::RowStarted => self.record_row(),
            Effect::Rotated(jobs, turn_count, since) => {
                self.record_rotation(&jobs, turn_count, self.started_at + since);
            }
        }
    }

    /// Sends a message about a job to the session that has submitted the job. The message is
    /// dropped if the session has since given the number to another job.
    fn send_to_client(&mut self, job_id: JobId, client_job: ClientJob, answer: JobAnswer) {
        if let JobAnswer::Stacks(stacks) = &answer {
            self.keep_reported_stacks(job_id, stacks);
        }
        if let Some(session) = self.sessions.get_mut(client_job.session_key)
            && session.job_id(client_job.job) == Some(job_id)
        {
            session.send(&ServerMessage::job_answer(client_job.job, answer));
        }
    }

    fn link_to_host(&mut self, host_placement: &HostPlacement) -> Result<LinkId, String> {
        let name = &host_placement.name;
        let token = self.allocate_token(TokenOwner::Peer);
        let Some(peers) = &mut self.peers else {
            return Err(format!("host {name}: this daemon has no links"));
        };
        if let Some(link_id) = peers.link_to(name) {
            self.token_owners.remove(&token);
            return Ok(link_id);
        }
        let address = host_placement.address.ok_or(format!("host {name}: it has no address"))?;
        peers
            .dial(address, Some(name.clone()), self.poll.registry(), token)
            .map_err(|error| format!("host {name} at {address}: {error}"))?;
        Ok(LinkId(token.0))
    }

    fn send_order(&mut self, link_id: LinkId, tag: JobTag, order: &HopOrder) {
        let Some(peers) = &mut self.peers else { return };
        let is_sent = frame::encode_datagram(order).is_ok_and(|body| {
            let (job, job_incarnation) = (tag.job, tag.incarnation);
            peers.send(link_id, PeerMessage::Order { job, job_incarnation, body })
        });
        if !is_sent && !matches!(order, HopOrder::Abort) {
            self.on_job_input(Input::OrderTooLong(link_id, tag));
        }
    }

    fn send_report(&mut self, link_id: LinkId, tag: JobTag, report: &HopReport) {
        let is_slow = self.peers.as_ref().is_some_and(|peers| peers.is_slow(link_id));
        let is_metrics = matches!(report, HopReport::Tree(Report::Job(JobReport::Metrics(_))));
        if is_slow && is_metrics {
            // Metrics are superseded by newer ones, so these can be dropped.
            return;
        }
        if let (Ok(body), Some(peers)) = (frame::encode_datagram(report), &mut self.peers) {
            let (job, job_incarnation) = (tag.job, tag.incarnation);
            peers.send(link_id, PeerMessage::Report { job, job_incarnation, body });
        }
    }
}

/// The local parts of jobs.
impl Daemon {
    /// Handles an order for the shepherd of this host.
    fn on_shepherd_order(&mut self, job: JobId, order: &ShepherdOrder) {
        match self.host_jobs.get_mut(&job) {
            Some(host_job) => host_job.on_order(order),
            // The job ends before it has begun on this host.
            None if matches!(order, ShepherdOrder::Job(JobOrder::Finish)) => {
                self.on_job_input(Input::Local(job, LocalReport::Closed));
            }
            None => {}
        }
    }

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
        let host_job = self.host_jobs.get_mut(&job);
        host_job.into_iter().for_each(|host_job| host_job.on_switch_order(order));
    }

    /// Begins the jobs that this host has been ordered to begin. Returns false if there were none.
    /// Call it after the orders to the child hosts have been sent, so that the hosts start in
    /// parallel.
    pub fn begin_pending_jobs(&mut self) -> bool {
        let host_jobs = self.host_jobs.values_mut();
        let launches: Vec<Box<Launch>> =
            host_jobs.filter_map(|host_job| host_job.pending_launch.take()).collect();
        for launch in &launches {
            let started_at = Instant::now();
            self.launch(launch);
            let owner = launch.start.owner.iter();
            owner.for_each(|owner| self.usage.charge_time(owner.uid, started_at.elapsed()));
        }
        !launches.is_empty()
    }

    /// Begins the local part of a job.
    fn launch(&mut self, launch: &Launch) {
        let job = launch.start.job;
        let [token, switch_token] = [TokenOwner::Shepherd(job), TokenOwner::SwitchThread(job)]
            .map(|owner| self.allocate_token(owner));
        let Some(host_job) = self.host_jobs.get_mut(&job) else { return };
        let job_incarnation = launch.placement.job_incarnation;
        let mut session = launch.client_job.and_then(|ClientJob { session_key, job }| {
            Some((self.sessions.get_mut(session_key)?, job))
        });
        let peers = &mut self.peers;
        // The path is reported before the directory exists.
        let is_multi_user = launch.start.owner.is_some();
        let mut announce_path = |path: &str| match (launch.parent, &mut session, &mut *peers) {
            // A user could not remove the directory. The next scored removes it.
            _ if is_multi_user => {}
            (Parent::Master, Some((session, job)), _) => {
                let answer = JobAnswer::Directory(path.to_owned());
                session.send(&ServerMessage::job_answer(*job, answer));
                session.flush();
            }
            (Parent::Peer(link_id), _, Some(peers)) => {
                let host = launch.placement.self_host;
                let report = HopReport::Directory { host, path: path.to_owned() };
                if let Ok(body) = frame::encode_datagram(&report) {
                    peers.send(link_id, PeerMessage::Report { job, job_incarnation, body });
                    peers.flush();
                }
            }
            _ => {}
        };
        let sweep_due = self.last_sweep_at.is_none_or(|last| last.elapsed() > STALE_SWEEP_INTERVAL);
        if sweep_due {
            self.last_sweep_at = Some(Instant::now());
        }
        let context = StartContext {
            no_namespace: self.options.no_namespace,
            registry: self.poll.registry(),
            token,
            switch_token,
            known_children: self.known_children.clone(),
            program_folders: &mut self.program_folders,
            keeper: self.keeper.as_ref(),
            sweep_due,
            announce_path: &mut announce_path,
        };
        host_job.begin(&launch.start, context);
    }

    /// Receives the reports of tools.
    pub fn advance_tools(&mut self) {
        let now = Instant::now();
        self.host_jobs.values_mut().for_each(|host_job| host_job.advance_tools(now));
    }

    /// Starts the tools that can be started now.
    pub fn start_tools(&mut self) {
        let with_tools =
            |(job, host_job): (&JobId, &HostJob)| host_job.has_startable_tools().then_some(*job);
        let jobs: Vec<JobId> = self.host_jobs.iter().filter_map(with_tools).collect();
        for job in jobs {
            let token = self.allocate_token(TokenOwner::Tool(job));
            let Some(host_job) = self.host_jobs.get_mut(&job) else { continue };
            let started_at = Instant::now();
            host_job.start_tools(self.poll.registry(), token);
            if let Some(uid) = host_job.owner_uid() {
                self.usage.charge_time(uid, started_at.elapsed());
            }
        }
    }

    fn release_shepherd_tokens(&mut self, job: JobId) {
        let is_of_job = |owner: &TokenOwner| match owner {
            TokenOwner::Shepherd(owner)
            | TokenOwner::SwitchThread(owner)
            | TokenOwner::Tool(owner) => *owner == job,
            _ => false,
        };
        self.token_owners.retain(|_, owner| !is_of_job(owner));
    }

    /// Ends the local part of a job without a report. Keeps it until its shepherd has been reaped.
    pub fn end_host_job(&mut self, mut host_job: HostJob) {
        if !host_job.abort() {
            self.ending_host_jobs.push(host_job);
        }
    }

    /// If the running job of a rotation has stopped, starts the next job. Returns true if the stop
    /// was the shepherd's only report.
    pub fn advance_rotation(&mut self) -> bool {
        let Some((job, switch_seq)) = self.jobs.expected_rotation_stop() else { return false };
        let Some(host_job) = self.host_jobs.get_mut(&job) else { return false };
        let Some(IsOnlyReport(is_only_report)) = host_job.read_rotation_stop(switch_seq) else {
            return false;
        };
        // The idle states that came with the stop decide whether the rotation continues.
        self.collect_local_reports();
        let host_jobs = &self.host_jobs;
        let has_shepherd =
            |job: JobId| host_jobs.get(&job).is_some_and(|host_job| host_job.shepherd.is_some());
        let next = self.jobs.next_rotation_turn(has_shepherd);
        let registry = self.poll.registry();
        if let Some((next, order)) = next
            && let Some(host_job) = self.host_jobs.get_mut(&next)
            && host_job.start_turn(order, registry)
        {
            return is_only_report;
        }
        self.jobs.end_rotation(job, switch_seq);
        false
    }

    /// Sets how often links send heartbeats in single-user mode. Each daemon has a link to the
    /// server. While a job runs, the links of its range tree detect lost hosts. The other links
    /// send fewer heartbeats, because the heartbeats of many idle hosts would keep a processor
    /// busy.
    pub fn tune_heartbeats(&mut self) {
        let Some(peers) = &mut self.peers else { return };
        let link_ids = match (self.server_link, &self.bringup) {
            (Some(link_id), _) => vec![link_id],
            (None, Some(_)) => peers.link_ids(),
            (None, None) => return,
        };
        for link_id in link_ids {
            peers.set_sparse_heartbeats(link_id, !self.jobs.uses_link(link_id));
        }
    }

    /// Sets the slice timer to the earliest of three times: the next deadline of the gang
    /// scheduler, the time at which a stop is enforced, and the end of a pause between clients.
    /// poll(2) is too coarse for them because it rounds time-outs to milliseconds.
    pub fn set_slice_timer(&mut self) {
        let gang_deadline = self.jobs.gang().deadline();
        let pause_end = self.accept_pause_end().map(|end| self.to_job_time(end));
        let deadlines = [gang_deadline, self.stop_enforcement_deadline(), pause_end];
        let due = deadlines.into_iter().flatten().min();
        // A timer that has expired is set again, even if the deadline is the same.
        let now = self.job_time();
        if due != self.slice_deadline || due.is_some_and(|due| due <= now) {
            self.slice_timer.set(due.map(|due| due.saturating_sub(now)));
            self.slice_deadline = due;
        }
    }

    /// The time until the next deadline of a job master.
    pub fn led_jobs_timeout(&self) -> Option<Duration> {
        let due = self.jobs.deadline()?;
        Some(due.saturating_sub(self.job_time()))
    }
}
