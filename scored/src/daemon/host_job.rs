//! The local part of a job: its directory, cgroup and shepherd.

mod tools;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use mio::{Registry, Token};
use score_job::jobs::{Launch, LocalReport};
use score_job::limits::LimitKind;
use score_job::{exit_code, program_paths, signal, validate};
use score_keeper::record::{Action, StartRequest};
use score_proto::PROTOCOL_VERSION;
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED, EXIT_SETUID_FAILED};
use score_proto::frame::FrameError;
use score_proto::ids::{JobHostId, JobId};
use score_proto::job_control::{
    JobOrder, JobReport, JobStart, Placement, ShepherdOrder, ShepherdReport, Status, SwitchOrder,
    SwitchReport, SwitchSeq,
};
use score_proto::message::{HostKind, JobLimits, Level};

use super::host_limits;
use super::host_tools::{HostTools, ToolTimes};
use super::job_directory::JobDirectory;
use super::keeper_client::{self, KeeperError, KeptJob, SharedKeeper, ShepherdOutcome};
use super::program_folders::ProgramFolders;
use super::shepherd_handle::{
    ChildShepherd, KnownChildren, ShepherdArgs, ShepherdHandle, ShepherdProcess,
};
use super::stop_enforcer::{Enforcement, KillReason, OrderEffect, StopEnforcer};
use crate::raw_socket::RawSocketGrant;
use crate::sys::realtime;

/// The error for a job without an owner in multi-user mode.
pub const NO_OWNER: &str = "a job of multi-user mode needs an owner";

/// The error for a job with an owner in single-user mode.
const OTHER_OWNER: &str = "this scored serves one user only";

/// Limit of the bytes of orders that wait for a shepherd. The input of programs needs far fewer.
const MAX_QUEUED_ORDER_BYTES: usize = 8 << 20;

/// The maximum number of reports of one shepherd that the daemon receives in a turn of the loop.
const REPORTS_PER_TURN: usize = 256;
/// The maximum number of reports that the daemon reads after the end of a shepherd. A socket holds
/// fewer. The limit exists because a process outside the job may hold the other end and write for
/// ever.
const MAX_LAST_REPORTS: usize = 1 << 17;

/// The local part of a job.
#[derive(Debug)]
pub struct HostJob {
    /// The job to begin. The daemon begins it at the end of the turn of the loop in which the order
    /// arrived.
    pub pending_launch: Option<Box<Launch>>,
    /// Orders that arrived before the shepherd existed, in the turn of `pending_launch`. Their
    /// number is bounded, because the daemon reads a bounded number of messages in a turn.
    early_orders: Vec<ShepherdOrder>,
    placement: Placement,
    /// The user of the job, in multi-user mode.
    owner_uid: Option<u32>,
    /// Reports that have not been passed to the job's state machine yet.
    reports: Vec<LocalReport>,
    /// The shepherd, until it has ended.
    pub shepherd: Option<ShepherdHandle>,
    resources: JobResources,
    /// Enforces the stops of the job, in multi-user mode.
    stop_enforcer: StopEnforcer,
    limits: JobLimits,
    tools: HostTools,
    /// The last report of the host. It waits for the end of the tools.
    last_report: Option<LocalReport>,
}

/// The resources of a job on this host.
#[derive(Debug)]
enum JobResources {
    /// No resources.
    None,
    /// The job's directory, in single-user mode.
    Directory(JobDirectory),
    /// The job's directory and cgroup in multi-user mode, which the keeper has made.
    Kept(KeptJob),
}

/// Whether no other report came with the stop report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IsOnlyReport(pub bool);

/// The result of an attempt to receive a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Report,
    Nothing,
}

/// The parts of the daemon that [`HostJob::begin`] needs.
pub struct StartContext<'a> {
    /// `-nonamespace`
    pub no_namespace: bool,
    /// The registry for the shepherd's sockets.
    pub registry: &'a Registry,
    /// The token of the shepherd's socket.
    pub token: Token,
    /// The token of the socket of the shepherd's switch thread.
    pub switch_token: Token,
    /// The other children of this process.
    pub known_children: KnownChildren,
    /// The directories with programs of earlier jobs, in single-user mode.
    pub program_folders: &'a mut ProgramFolders,
    /// The keeper, in multi-user mode. Each job has an owner then.
    pub keeper: Option<&'a SharedKeeper>,
    /// Whether the directories that earlier jobs have left should be removed now.
    pub sweep_due: bool,
    /// The daemon calls this function with the path of the directory before it creates the
    /// directory.
    pub announce_path: &'a mut dyn FnMut(&str),
}

impl HostJob {
    /// Creates the local part of a job. [`HostJob::begin`] begins it.
    pub fn new(launch: Box<Launch>, times: ToolTimes, known_children: KnownChildren) -> Self {
        let host = launch.placement.self_host;
        let job_start = Arc::clone(&launch.start);
        Self {
            tools: HostTools::new(job_start, host, times, known_children),
            last_report: None,
            placement: launch.placement.clone(),
            owner_uid: launch.start.owner.as_ref().map(|owner| owner.uid),
            pending_launch: Some(launch),
            early_orders: Vec::new(),
            reports: Vec::new(),
            shepherd: None,
            resources: JobResources::None,
            stop_enforcer: StopEnforcer::new(),
            limits: JobLimits::default(),
        }
    }

    /// The job's number.
    pub fn job(&self) -> JobId {
        self.tools.job()
    }

    /// The job's user, in multi-user mode.
    pub fn owner_uid(&self) -> Option<u32> {
        self.owner_uid
    }

    /// Takes the reports that have accumulated since the last call.
    pub fn take_reports(&mut self) -> Vec<LocalReport> {
        self.take_tool_reports();
        std::mem::take(&mut self.reports)
    }

    /// Begins the local part of the job. A report with the result is sent to the job master.
    pub fn begin(&mut self, begin: &Arc<JobStart>, context: StartContext<'_>) {
        let sweep_due = context.sweep_due;
        match self.try_begin(begin, context) {
            Ok(()) => {
                if program_paths::files(&begin.spec).is_empty() {
                    // Otherwise the shepherd sends this report when it has received the programs.
                    self.report_job(JobReport::Ready);
                }
                // While the shepherd starts, remove the directories that earlier jobs have left. In
                // multi-user mode the keeper has removed them at its start. If the hosts share one
                // disk, only the first host removes them.
                let is_swept_by_first_host =
                    shares_disk(begin) && self.placement.self_host != JobHostId::FIRST;
                let should_sweep = begin.owner.is_none() && !is_swept_by_first_host && sweep_due;
                let errors = match &self.resources {
                    JobResources::Directory(directory) if should_sweep => {
                        directory.remove_leftovers()
                    }
                    _ => Vec::new(),
                };
                for error in errors {
                    self.warn(format!("left by an earlier job, and cannot be removed: {error}"));
                }
            }
            Err((code, reason)) => self.refuse_with(code, &reason),
        }
    }

    fn refuse_with(&mut self, code: u8, reason: &str) {
        if let Some(shepherd) = self.shepherd.take() {
            // The shepherd has just been started and has not started any process of the user.
            shepherd.kill();
            shepherd.reap();
        }
        self.remove_resources();
        let reason = self.with_host_name(reason);
        self.report_job(JobReport::Refused { code, reason });
        self.reports.push(LocalReport::Closed);
    }

    fn try_begin(
        &mut self,
        begin: &Arc<JobStart>,
        context: StartContext<'_>,
    ) -> Result<(), (u8, String)> {
        let placement = &self.placement;
        placement.check().map_err(|reason| (EXIT_FAILED, reason.to_owned()))?;
        let nodes = placement.self_placement().map_or(0, |local_host| local_host.nodes);
        validate::check_limits(&begin.spec, nodes, &host_limits::limits_for(begin.owner.as_ref()))
            .map_err(|reason| (EXIT_REFUSED, reason))?;
        let terms = &begin.spec.terms;
        terms.check().map_err(|reason| (EXIT_FAILED, reason))?;
        self.limits = terms.limits.in_mode(begin.owner.is_some());
        let shepherd = match (context.keeper.cloned(), &begin.owner) {
            (None, None) => self.start_child(begin, context)?,
            (Some(keeper), Some(owner)) => {
                self.start_kept(begin, &keeper, &owner.voucher, context)?
            }
            (Some(_), None) => return Err((EXIT_REFUSED, NO_OWNER.to_owned())),
            (None, Some(_)) => return Err((EXIT_REFUSED, OTHER_OWNER.to_owned())),
        };
        let shepherd = self.shepherd.insert(shepherd);
        let placement = &self.placement;
        shepherd.control_link.queue(&ShepherdOrder::Hello { version: PROTOCOL_VERSION });
        shepherd.control_link.queue(&ShepherdOrder::SetPlacement(placement.clone()));
        let start = JobOrder::StartJob(Arc::clone(begin));
        shepherd.control_link.queue(&ShepherdOrder::Job(start));
        for order in std::mem::take(&mut self.early_orders) {
            shepherd.control_link.queue(&order);
        }
        shepherd.control_link.flush();
        Ok(())
    }

    /// Starts the shepherd of a job in single-user mode.
    fn start_child(
        &mut self,
        begin: &JobStart,
        context: StartContext<'_>,
    ) -> Result<ShepherdHandle, (u8, String)> {
        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
        let directory = JobDirectory::create(runtime_dir.as_deref(), &mut *context.announce_path)
            .map_err(|reason| (EXIT_FAILED, reason))?;
        let path = directory.path().to_string_lossy().into_owned();
        self.resources = JobResources::Directory(directory);
        let has_programs = !program_paths::files(&begin.spec).is_empty();
        let program_folder = match has_programs && !shares_disk(begin) {
            true => context.program_folders.folder_of(None, &context.known_children),
            false => None,
        };
        let shepherd_args = ShepherdArgs {
            directory: &path,
            program_folder: program_folder.as_deref(),
            owner: None,
            group: None,
            raw_socket_grant: None,
        };
        let tokens = [context.token, context.switch_token];
        let (no_namespace, known_children) = (context.no_namespace, &context.known_children);
        let start = |sockets: [&OwnedFd; 2]| -> io::Result<_> {
            ChildShepherd::start(&shepherd_args, sockets, no_namespace, known_children)
                .map(ShepherdProcess::Child)
        };
        ShepherdHandle::start(context.registry, tokens, start).map_err(not_started)
    }

    /// Makes the keeper start the shepherd of a user's job.
    fn start_kept(
        &mut self,
        begin: &JobStart,
        keeper: &SharedKeeper,
        voucher: &[u8],
        context: StartContext<'_>,
    ) -> Result<ShepherdHandle, (u8, String)> {
        let grant = RawSocketGrant::for_job(begin, &self.placement);
        let request = StartRequest {
            voucher: voucher.to_vec(),
            memory: self.limits.memory,
            has_programs: !program_paths::files(&begin.spec).is_empty(),
            max_raw_processes: grant.as_ref().map_or(0, |grant| grant.max_processes),
            raw_sets: grant.map(RawSocketGrant::into_records).unwrap_or_default(),
        };
        let mut kept = None;
        let start = |sockets: [&OwnedFd; 2]| {
            let job = keeper_client::start(keeper, request, sockets)?;
            kept = Some(job.clone());
            Ok(ShepherdProcess::Kept(job))
        };
        let tokens = [context.token, context.switch_token];
        let shepherd = ShepherdHandle::start::<KeeperError>(context.registry, tokens, start);
        if let Some(job) = kept {
            self.resources = JobResources::Kept(job);
        }
        shepherd.map_err(|error| match error {
            KeeperError::Refused(reason) => (EXIT_REFUSED, reason),
            KeeperError::Failed(error) => not_started(error),
        })
    }

    /// Prefixes a text with the name of this host if the job has several hosts.
    fn with_host_name(&self, reason: &str) -> String {
        let placement = &self.placement;
        match placement.self_placement() {
            Some(local_host) if placement.hosts.len() > 1 => {
                format!("host {}: {reason}", local_host.name)
            }
            _ => reason.to_owned(),
        }
    }

    fn warn(&mut self, text: String) {
        let text = self.with_host_name(&text);
        self.report_job(JobReport::Notice { level: Level::Warning, text });
    }

    /// Adds a report in place of the shepherd.
    fn report_job(&mut self, report: JobReport) {
        self.reports.push(LocalReport::Job(report));
    }

    /// Adds a report in place of the shepherd's switch thread.
    fn report_stopped(&mut self, switch_seq: SwitchSeq) {
        let report = SwitchReport::Stopped { switch_seq };
        self.reports.push(LocalReport::Switch(report));
    }

    /// Handles an order for the shepherd.
    pub fn on_order(&mut self, order: &ShepherdOrder) {
        if self.is_enforced() {
            let effect = self.stop_enforcer.on_order(order, Instant::now());
            self.apply(effect);
        }
        self.on_order_for_tools(order);
        match (&mut self.shepherd, order) {
            (Some(_), ShepherdOrder::Job(JobOrder::Tool(_))) => {}
            (Some(shepherd), order) => {
                if matches!(order, ShepherdOrder::Job(JobOrder::Kill)) {
                    // The user may have stopped the shepherd with a signal.
                    shepherd.resume();
                }
                shepherd.control_link.queue(order);
                if shepherd.control_link.backlog() > MAX_QUEUED_ORDER_BYTES {
                    // The shepherd does not read its orders, because the user has stopped it.
                    self.kill_shepherd();
                }
            }
            // The job has not begun here, or has lost its shepherd.
            (None, ShepherdOrder::Job(JobOrder::Finish)) => {
                self.pending_launch = None;
                self.reports.push(LocalReport::Closed);
            }
            (None, order) if self.pending_launch.is_some() => {
                self.early_orders.push(order.clone());
            }
            (None, _) => {}
        }
    }

    /// Handles an order for the shepherd's switch thread.
    pub fn on_switch_order(&mut self, order: SwitchOrder) {
        self.prepare_for_switch(order);
        let Some(shepherd) = &mut self.shepherd else { return };
        if matches!(order, SwitchOrder::Stop { .. }) {
            // The user may have stopped the shepherd with a signal. In multi-user mode the daemon
            // freezes the job instead, because resuming would cost a call of the keeper in each
            // gang switch.
            shepherd.resume_child();
        }
        shepherd.switch_link.queue(&order);
    }

    /// Sends the shepherd the order to run in a rotation. Returns false if the shepherd has ended.
    pub fn start_turn(&mut self, order: SwitchOrder, registry: &Registry) -> bool {
        self.prepare_for_switch(order);
        let Some(shepherd) = &mut self.shepherd else { return false };
        shepherd.switch_link.queue(&order);
        shepherd.flush(registry);
        true
    }

    /// Does the daemon's part of an order for the switch thread.
    fn prepare_for_switch(&mut self, order: SwitchOrder) {
        if self.is_enforced() {
            let effect = self.stop_enforcer.on_switch_order(order, Instant::now());
            self.apply(effect);
        }
    }

    /// Whether this daemon can enforce the stops of the job.
    fn is_enforced(&self) -> bool {
        self.kept().is_some() && self.shepherd.is_some()
    }

    fn kept(&self) -> Option<&KeptJob> {
        match &self.resources {
            JobResources::Kept(job) => Some(job),
            JobResources::None | JobResources::Directory(_) => None,
        }
    }

    fn apply(&mut self, effect: OrderEffect) {
        match effect {
            OrderEffect::None => {}
            OrderEffect::Thaw => self.thaw(),
            OrderEffect::ReportStopped { switch_seq } => self.report_stopped(switch_seq),
        }
    }

    fn thaw(&mut self) {
        if let Some(Err(error)) = self.kept().map(|job| job.act(Action::Thaw)) {
            self.warn(format!("the job stays frozen: {error}"));
        }
    }

    /// The time of the next call of [`HostJob::enforce_stop`].
    pub fn stop_deadline(&self) -> Option<Instant> {
        self.stop_enforcer.deadline().filter(|_| self.is_enforced())
    }

    /// Stops or ends the job if the shepherd has missed its deadline. Returns the action.
    pub fn enforce_stop(&mut self, now: Instant) -> Option<Enforcement> {
        self.stop_deadline().filter(|deadline| *deadline <= now)?;
        let job = self.kept()?.clone();
        let enforcement = self.stop_enforcer.enforce(now)?;
        match enforcement {
            Enforcement::Freeze { switch_seq, .. } => {
                let result = job.act(Action::Freeze);
                // The user may have stopped the shepherd with a signal. SIGCONT takes effect after
                // the thaw.
                let _ = job.act(Action::Continue);
                match result {
                    Ok(()) => self.report_stopped(switch_seq),
                    Err(_) => self.stop_enforcer.on_freeze_failed(now),
                }
            }
            Enforcement::Thaw => self.thaw(),
            Enforcement::KillRemaining { switch_seq } => {
                let _ = job.act(Action::KillAll);
                self.report_stopped(switch_seq);
            }
            Enforcement::Kill(_) => self.kill_shepherd(),
        }
        Some(enforcement)
    }

    /// Kills the shepherd. The job's processes are killed with it.
    fn kill_shepherd(&mut self) {
        self.shepherd.iter().for_each(ShepherdHandle::kill);
        if self.stop_enforcer.on_killed() == OrderEffect::Thaw {
            // A frozen process may receive SIGKILL only after it has been thawed.
            self.thaw();
        }
    }

    /// Receives the reports of the shepherd's switch thread. Returns a value if the stop with this
    /// number is among them; the value says whether that stop was the only report.
    pub fn read_rotation_stop(&mut self, switch_seq: SwitchSeq) -> Option<IsOnlyReport> {
        let (mut has_stopped, mut is_only_report) = (false, true);
        for _ in 0..REPORTS_PER_TURN {
            match self.take_switch_report() {
                Ok(Some(SwitchReport::Stopped { switch_seq: stopped_seq }))
                    if stopped_seq == switch_seq =>
                {
                    has_stopped = true
                }
                Ok(Some(report)) => {
                    is_only_report = false;
                    self.reports.push(LocalReport::Switch(report));
                }
                Ok(None) => break,
                Err(_) => {
                    self.kill_shepherd();
                    return None;
                }
            }
        }
        has_stopped.then_some(IsOnlyReport(is_only_report))
    }

    /// Receives one report of the shepherd's switch thread.
    fn take_switch_report(&mut self) -> Result<Option<SwitchReport>, FrameError> {
        let Some(shepherd) = &mut self.shepherd else { return Ok(None) };
        let Some(report) = shepherd.switch_link.receive()? else { return Ok(None) };
        if self.is_enforced() {
            if !self.stop_enforcer.is_expected(report) {
                return Err(FrameError::Malformed);
            }
            self.stop_enforcer.on_switch_report(report);
        }
        Ok(Some(report))
    }

    /// Whether so many orders wait for the shepherd that it has probably been stopped.
    pub fn has_order_backlog(&self) -> bool {
        let backlog = |shepherd: &ShepherdHandle| shepherd.control_link.backlog();
        self.shepherd.as_ref().map_or(0, backlog) > MAX_QUEUED_ORDER_BYTES / 4
    }

    /// Whether [`HostJob::receive_reports`] may find a report without a further report of mio.
    pub fn may_have_more(&self, has_to_wait: bool) -> bool {
        let of_shepherd = |shepherd: &ShepherdHandle| match has_to_wait {
            true => shepherd.switch_link.may_have_more(),
            false => shepherd.may_have_more(),
        };
        self.tools.may_have_more() || self.shepherd.as_ref().is_some_and(of_shepherd)
    }

    /// Receives a bounded number of the shepherd's reports. If they have to wait, they stay in the
    /// socket. Returns whether there was a report.
    pub fn receive_reports(&mut self, has_to_wait: bool) -> bool {
        self.read_reports(has_to_wait, REPORTS_PER_TURN)
    }

    fn read_reports(&mut self, has_to_wait: bool, max_reports: usize) -> bool {
        let mut has_received = false;
        for _ in 0..max_reports {
            match self.take_report(has_to_wait) {
                Ok(Taken::Report) => has_received = true,
                Ok(Taken::Nothing) => break,
                Err(_) => {
                    self.kill_shepherd();
                    break;
                }
            }
        }
        if self.shepherd.as_ref().is_some_and(|shepherd| shepherd.control_link.is_closed()) {
            self.reap_shepherd();
        }
        has_received
    }

    /// Receives one report. Reports of the switch thread have precedence.
    fn take_report(&mut self, has_to_wait: bool) -> Result<Taken, FrameError> {
        if let Some(report) = self.take_switch_report()? {
            self.reports.push(LocalReport::Switch(report));
            return Ok(Taken::Report);
        }
        let Some(shepherd) = &mut self.shepherd else { return Ok(Taken::Nothing) };
        if has_to_wait {
            return Ok(Taken::Nothing);
        }
        match shepherd.control_link.receive()? {
            None => return Ok(Taken::Nothing),
            Some(ShepherdReport::Job(JobReport::Finished { elapsed_ns })) => {
                shepherd.elapsed_ns = Some(elapsed_ns);
            }
            Some(ShepherdReport::ToolsPrepared(result)) => self.tools.on_prepared(result),
            Some(ShepherdReport::ToolFiles { tool, result }) => self.tools.on_files(tool, result),
            // Only daemons send this report.
            Some(ShepherdReport::Job(JobReport::Tool(_))) => return Err(FrameError::Malformed),
            Some(report) => self.reports.push(LocalReport::Shepherd(report)),
        }
        Ok(Taken::Report)
    }

    /// Reaps the shepherd if it has exited. A killed shepherd usually also closes its socket. The
    /// socket stays open while a process that the shepherd has started holds the other end.
    pub fn check_shepherd_exit(&mut self) {
        if let Some(shepherd) = &mut self.shepherd
            && shepherd.has_ended()
        {
            // The last reports may have arrived after mio's last report.
            shepherd.mark_readable();
            self.read_reports(false, MAX_LAST_REPORTS);
            self.reap_shepherd();
        }
    }

    /// Reaps the shepherd if it has ended, and sets the last report. Otherwise kills it. SIGCHLD or
    /// an event of the keeper then leads to another call.
    fn reap_shepherd(&mut self) {
        let Some(shepherd) = self.shepherd.take_if(|shepherd| shepherd.has_ended()) else {
            return self.kill_shepherd();
        };
        let finished_ns = shepherd.elapsed_ns;
        let ShepherdOutcome { status, killed_for_memory } = shepherd.reap();
        let last_report = match finished_ns {
            Some(elapsed_ns) => LocalReport::Job(JobReport::Finished { elapsed_ns }),
            None if status == Some(Status::Exited(EXIT_SETUID_FAILED)) => {
                let reason = self.with_host_name("nothing of the job has been started");
                LocalReport::Lost { code: EXIT_FAILED, reason }
            }
            None if killed_for_memory && status == Some(Status::Signaled(libc::SIGKILL)) => {
                let host =
                    self.placement.self_placement().map_or("?", |local_host| &local_host.name);
                let (code, reason) = LimitKind::Memory.exceeded_message(&self.limits, host);
                LocalReport::Lost { code, reason }
            }
            None => {
                let (code, reason) = describe_exit(status, self.stop_enforcer.kill_reason());
                let reason = self.with_host_name(&reason);
                LocalReport::Lost { code, reason }
            }
        };
        if !matches!(last_report, LocalReport::Job(_)) {
            // The job's processes have died, so tools have nothing to clean up.
            self.tools.kill(Instant::now());
        }
        self.last_report = Some(last_report);
        self.finish_if_tools_ended();
    }

    /// Ends the local part of the job without a report. Returns false if the killed shepherd or a
    /// tool has not ended yet. Call the function again after each SIGCHLD and event of the keeper.
    pub fn abort(&mut self) -> bool {
        let ended_shepherd = self.shepherd.take_if(|shepherd| shepherd.has_ended());
        ended_shepherd.map(ShepherdHandle::reap);
        if self.shepherd.is_some() {
            self.kill_shepherd();
        }
        self.abort_tools();
        if self.shepherd.is_some() || !self.tools.is_empty() {
            return false;
        }
        self.remove_resources();
        true
    }

    /// Removes the job's resources on this host, even if processes have not been reaped yet. All
    /// processes have been killed already.
    pub fn abandon(&mut self) {
        self.shepherd.take().into_iter().for_each(ShepherdHandle::forget);
        self.tools.abandon();
        self.remove_resources();
    }

    /// Removes the job's resources on this host.
    fn remove_resources(&mut self) {
        match std::mem::replace(&mut self.resources, JobResources::None) {
            JobResources::None => {}
            JobResources::Kept(job) => {
                if let Err(error) = job.act(Action::Remove) {
                    self.warn(format!("the remains of the job cannot be removed: {error}"));
                }
            }
            JobResources::Directory(directory) => {
                let path: PathBuf = directory.path().to_owned();
                if let Err(error) = realtime::run_as_normal(|| directory.remove()) {
                    self.warn(format!("{} cannot be removed: {error}", path.display()));
                }
            }
        }
    }
}

fn not_started(error: io::Error) -> (u8, String) {
    (EXIT_FAILED, format!("the job's shepherd cannot be started: {error}"))
}

/// Whether a job of single-user mode has only virtual hosts, which share one disk.
fn shares_disk(begin: &JobStart) -> bool {
    let mut hosts = begin.spec.hosts.iter();
    begin.owner.is_none() && hosts.all(|host| host.kind == HostKind::Virtual)
}

/// Returns the exit code and the line for the user.
fn describe_exit(status: Option<Status>, kill_reason: Option<KillReason>) -> (u8, String) {
    let code = status.map_or(EXIT_FAILED, exit_code::of_status).max(1);
    if let Some(kill_reason) = kill_reason {
        return (code, kill_reason.text());
    }
    let cause = match status {
        Some(Status::Signaled(signal)) => format!("killed by {}", signal::name(signal)),
        Some(Status::Exited(code)) => format!("exit code {code}"),
        None => "unknown cause".to_owned(),
    };
    let text = format!("the job's shepherd has died ({cause}): every process has been killed");
    (code, text)
}
