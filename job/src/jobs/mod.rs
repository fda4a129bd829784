//! All jobs of one daemon: the jobs that it leads, and its part in the jobs that run on its host.
//! There are no sockets, processes or clocks here. An [`Input`] reports an event, and the daemon
//! carries out each [`Effect`].
//!
//! | file | contents |
//! |---|---|
//! | `keys.rs` | the numbers of links, sessions and jobs |
//! | `mod.rs` | each input, and the path of orders and reports through this daemon |
//! | `led_jobs.rs` | the masters of the jobs that this daemon leads, and their watchers |
//! | `tree_positions.rs` | this daemon's positions in the range trees of jobs, and their links |
//! | `rotation_turns.rs` | the turns of a rotation on this host |
//! | `gang_driver.rs` | the gang scheduler of the jobs that this daemon leads |

mod gang_driver;
mod keys;
mod led_jobs;
mod rotation_turns;
#[cfg(test)]
mod step_tests;
mod tree_positions;
#[cfg(test)]
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use score_proto::ids::{HostId, JobId};
use score_proto::job_control::{
    HopOrder, HopReport, HostPlacement, JobOrder, JobReport, JobStart, Order, Placement, Remains,
    Report, ShepherdOrder, ShepherdReport, StopCondition, SwitchOrder, SwitchReport,
};
use score_proto::message::{JobRequest, ToolCall, ToolSession};
use score_proto::observation::Metrics;
use score_proto::peer_message::Incarnation;
use score_proto::server_message::{ConsoleAnswer, JobAnswer};
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::ToolAction;

use crate::cluster::{HostShare, MonotonicTime};
use crate::gang::GangConfig;
use crate::host::host_rotation::HostRotation;
use crate::host::tree_node::{Outgoing, SHEPHERD_CHILD};
use crate::master::{JobMaster, MasterAction, MasterEvent, PageStacks};
use crate::metrics_subscribers::Subscriber;
pub use gang_driver::{GangDriver, SINGLE_USER_HOST};
pub use keys::{ClientJob, JobTag, LinkId, SessionKey};
use led_jobs::LedJob;
pub use tree_positions::Parent;
use tree_positions::{PositionMessages, TreeLevel, TreePosition, TreePositions};

/// A job that this daemon is to lead. All of its hosts are up.
#[derive(Debug)]
pub struct NewJob {
    /// The data that the hosts of the job get.
    pub start: JobStart,
    /// The hosts, in the order of their nodes.
    pub placement: Placement,
    /// The session that has submitted the job, and the job's number in that session.
    pub client_job: ClientJob,
    /// The hosts and processors of the job, as the gang scheduler counts them.
    pub allocations: Vec<HostShare>,
}

/// The data by which other daemons identify this daemon. A daemon without links has no identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// The name of its host.
    pub name: String,
    /// Distinguishes the daemon from earlier daemons on the host.
    pub incarnation: Incarnation,
}

/// A report of a job's shepherd on this host, or a report that the daemon makes instead of the
/// shepherd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalReport {
    /// The shepherd's report.
    Shepherd(ShepherdReport),
    /// The report of the shepherd's switch thread.
    Switch(SwitchReport),
    /// A report that the daemon makes for the shepherd.
    Job(JobReport),
    /// The shepherd has died.
    Lost {
        /// The exit code of the job.
        code: u8,
        /// A line for the user.
        reason: String,
    },
    /// The shepherd sends no further report, or no shepherd was started.
    Closed,
}

/// An event for the jobs of this daemon.
#[derive(Debug)]
pub enum Input {
    /// Begin a job that this daemon leads.
    Begin(Box<NewJob>),
    /// The session that has submitted the job sends this request.
    FromSession(JobId, JobRequest),
    /// A session or the status page watches a job. A period of 0 ms ends this.
    Subscribe {
        /// The job.
        job: JobId,
        /// The recipient of the metrics.
        subscriber: Subscriber,
        /// The period in milliseconds.
        period_ms: u32,
    },
    /// A session sends a command of a tool to the processes of a job.
    Tool(SessionKey, ToolCall),
    /// A reader of the status page requests the stacks of a job.
    PageStacks(JobId),
    /// A session starts a tool for this job, or sends a signal to a tool.
    ToolAction(SessionKey, JobId, ToolAction),
    /// A session sends bytes of the files of the tool that it starts.
    ToolFile(SessionKey, ToolFileChunk),
    /// A tool session begins, in which a tool keeps state in processes of a job.
    ToolSession(SessionKey, ToolSession),
    /// A tool session, or a session that sends files of a tool, has ended.
    ToolSessionEnded(SessionKey),
    /// A session requests the list of the processes of a job.
    ListProcesses(SessionKey, JobId),
    /// The cluster ends a job.
    Fail {
        /// The job.
        job: JobId,
        /// The exit code of the job.
        code: u8,
        /// A line for the user.
        reason: String,
    },
    /// An order for a job has arrived over a link.
    Order(LinkId, JobTag, HopOrder),
    /// A report about a job has arrived over a link.
    Report(LinkId, JobTag, HopReport),
    /// The answer to [`Effect::Connect`].
    Connected {
        /// Copied from the effect.
        connection: Connection,
        /// The link, or why there is none.
        result: Result<LinkId, String>,
    },
    /// An order was too long to be sent.
    OrderTooLong(LinkId, JobTag),
    /// A link is lost.
    LinkLost(LinkId, String),
    /// A report of this host's part of a job.
    Local(JobId, LocalReport),
    /// Neither the session nor the parent of a job needs the job any more.
    Abort(JobId),
    /// End every job on this host without reports.
    AbortAllHere,
    /// Time has passed.
    Tick,
}

/// A connection of a job's range tree that is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    position: TreePosition,
    child_index: usize,
}

/// An action for the daemon. Effects are carried out in order.
#[derive(Debug)]
pub enum Effect {
    /// Send this to the session that has submitted the job, unless the session now uses the job's
    /// number for another job.
    ToClient(JobId, ClientJob, JobAnswer),
    /// Send this to a session that watches a job, or that has sent a request to a job.
    ToSession(SessionKey, ConsoleAnswer),
    /// Refuse the request of this session, for this reason.
    RefuseSession(SessionKey, String),
    /// Metrics of a job for the status page.
    PageMetrics(JobId, Metrics),
    /// Stacks of a job that the status page has requested.
    PageStacks(JobId, PageStacks),
    /// Find or open a link to this host, and report [`Input::Connected`] at once.
    Connect(Connection, HostPlacement),
    /// Send an order over a link.
    SendOrder(LinkId, JobTag, HopOrder),
    /// Send a report over a link.
    SendReport(LinkId, JobTag, HopReport),
    /// Start the job's shepherd on this host, after all orders to other hosts have been sent.
    Launch(Box<Launch>),
    /// Send an order to the job's shepherd on this host.
    ToShepherd(JobId, ShepherdOrder),
    /// Send an order to the switch thread of the job's shepherd on this host.
    ToSwitchThread(JobId, SwitchOrder),
    /// End the job's part on this host without a report.
    AbortHere(JobId),
    /// The last report about this host's part of the job has been sent.
    EndedHere(JobId),
    /// These hosts are lost for a job.
    HostsLost(LostHosts),
    /// Remove these directories of a job on hosts that share this machine's disk.
    RemoveDirectories(Vec<String>),
    /// A job that this daemon has led has ended with this code.
    Finished(JobId, u8),
    /// A host has not stopped the job in time.
    StopTimedOut(Option<ClientJob>, String),
    /// The gang scheduler has made decisions.
    RowStarted,
    /// These jobs have taken this number of turns on their processors since this time.
    Rotated(Vec<JobId>, u32, MonotonicTime),
}

/// Hosts that are lost for a job that this daemon leads.
#[derive(Debug)]
pub struct LostHosts {
    /// The job.
    pub job: JobId,
    /// The first host, and the host after the last, by their index in the placement of the job.
    pub hosts: Range<u32>,
    /// The names of the hosts.
    pub names: Vec<String>,
    /// Whether processes of the job may be left on these hosts.
    pub remains: Remains,
}

/// A job that begins on this host.
#[derive(Debug)]
pub struct Launch {
    /// The data that the hosts of the job get.
    pub start: Arc<JobStart>,
    /// The hosts of the job.
    pub placement: Placement,
    /// The parent. It has to receive the path of the job's directory before the directory exists.
    pub parent: Parent,
    /// The session of the job, if this daemon leads it.
    pub client_job: Option<ClientJob>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Jobs {
    led_jobs: BTreeMap<JobId, LedJob>,
    tree: TreePositions,
    gang: GangDriver,
    rotation: HostRotation,
    /// The session of each watcher, and the job.
    watchers: BTreeMap<SessionKey, JobId>,
    /// The session of each tool that keeps state in processes or sends files, and its job.
    tool_sessions: BTreeMap<SessionKey, JobId>,
    /// Whether hosts of jobs share this machine's disk.
    keeps_directories: bool,
    now: MonotonicTime,
    effects: Vec<Effect>,
}

impl Jobs {
    /// The state without jobs. `fixed_poll_us` is for tests; see [`GangDriver`].
    pub fn new(fixed_poll_us: Option<u32>) -> Self {
        Self {
            led_jobs: BTreeMap::new(),
            tree: TreePositions::default(),
            gang: GangDriver::new(fixed_poll_us),
            rotation: HostRotation::default(),
            watchers: BTreeMap::new(),
            tool_sessions: BTreeMap::new(),
            keeps_directories: false,
            now: MonotonicTime::ZERO,
            effects: Vec::new(),
        }
    }

    /// The daemon has links from now on, or a new incarnation.
    pub fn set_identity(&mut self, identity: HostIdentity) {
        self.tree.set_identity(identity);
    }

    /// Hosts of jobs share this machine's disk. Directories of a lost host are removed here.
    pub fn set_shared_disk(&mut self) {
        self.keeps_directories = true;
    }

    /// Multi-user mode: jobs share hosts. The map gives the number of slots of each host.
    pub fn set_gang(&mut self, config: GangConfig, slots: BTreeMap<HostId, u32>) {
        self.gang.configure(config, slots);
    }

    /// The gang scheduler of the led jobs.
    pub fn gang(&self) -> &GangDriver {
        &self.gang
    }

    /// Handles an input. `now` is the time since the start of the daemon. The effects are collected
    /// until [`Jobs::take_effects`].
    pub fn on(&mut self, input: Input, now: MonotonicTime) {
        self.now = now;
        match input {
            Input::Begin(new_job) => self.begin(*new_job),
            Input::FromSession(job, request) => self.on_request(job, request),
            Input::Subscribe { job, subscriber, period_ms } => {
                self.subscribe(job, subscriber, period_ms)
            }
            Input::Tool(session_key, call) => {
                self.step_master(call.job, MasterEvent::Tool(session_key, call))
            }
            Input::PageStacks(job) => self.step_master(job, MasterEvent::PageStacks),
            Input::ToolAction(session_key, job, action) => {
                self.on_tool_action(session_key, job, action)
            }
            Input::ToolFile(session_key, chunk) => {
                self.step_master(chunk.job, MasterEvent::ToolFile(session_key, chunk))
            }
            Input::ToolSession(session_key, session) => {
                self.begin_tool_session(session_key, session)
            }
            Input::ToolSessionEnded(session_key) => self.end_tool_session(session_key),
            Input::ListProcesses(session_key, job) => {
                self.step_master(job, MasterEvent::ListProcesses(session_key))
            }
            Input::Fail { job, code, reason } => self.fail(job, code, reason),
            Input::Order(link, tag, order) => {
                self.tree.on_order((link, tag), order, now, &mut self.effects)
            }
            Input::Report(link, tag, report) => {
                let directory = self.tree.on_report(link, tag, report, &mut self.effects);
                directory.into_iter().for_each(|(host, path)| {
                    self.note_directory(tag.job, host, path);
                });
            }
            Input::Connected { connection, result } => self.tree.on_connected(connection, result),
            Input::OrderTooLong(link, tag) => self.tree.on_order_too_long(link, tag),
            Input::LinkLost(link, reason) => {
                self.tree.on_link_lost(link, &reason, &mut self.effects)
            }
            Input::Local(job, report) => self.on_local_report(job, report),
            Input::Abort(job) => self.abort(job),
            Input::AbortAllHere => self.tree.abort_all(&mut self.effects),
            Input::Tick => {
                self.tick_masters();
                self.tree.tick(now);
                self.move_messages();
                self.tick_gang();
            }
        }
    }

    /// Moves messages between masters, trees and scheduler until there are none, and returns the
    /// effects. Call it until it returns none.
    pub fn take_effects(&mut self, now: MonotonicTime) -> Vec<Effect> {
        self.now = now;
        self.move_messages();
        std::mem::take(&mut self.effects)
    }
}

/// The path of orders and reports between a master, the positions of this daemon in trees, and its
/// shepherds.
impl Jobs {
    fn begin(&mut self, new_job: NewJob) {
        let NewJob { start, placement, client_job, allocations } = new_job;
        let job = start.job;
        let hosts = start.spec.hosts.iter().map(|host| host.name.clone()).collect();
        let priority = start.spec.terms.priority;
        let (master, order) = JobMaster::begin(start, placement.clone());
        let directories = BTreeMap::new();
        let led_job = LedJob { master, client_job, hosts, allocations, priority, directories };
        self.led_jobs.insert(job, led_job);
        self.tree.enter_led(job, placement, &mut self.effects);
        self.on_master_order(job, order);
    }

    /// Passes an event to the master of a job, and carries out the resulting actions.
    fn step_master(&mut self, job: JobId, event: MasterEvent) {
        let Some(led_job) = self.led_jobs.get_mut(&job) else { return };
        if let MasterEvent::Report(Report::HostsLost { hosts, remains, .. }) = &event {
            let (hosts, remains) = (hosts.clone(), *remains);
            let names = led_job.hosts.get(hosts.start as usize..hosts.end as usize);
            let names = names.unwrap_or_default().to_vec();
            self.effects.push(Effect::HostsLost(LostHosts { job, hosts, names, remains }));
        }
        led_job.master.set_time(self.now);
        let actions = led_job.master.on(event);
        let (client_job, is_done) = (led_job.client_job, led_job.master.is_done());
        if is_done {
            self.forget_led_job(job);
        }
        let mut code = 0;
        for action in actions {
            match action {
                MasterAction::ToClient(answer) => {
                    match &answer {
                        JobAnswer::Finished(end) => code = end.code,
                        JobAnswer::Refused { code: refusal_code, .. } => code = *refusal_code,
                        _ => {}
                    }
                    self.effects.push(Effect::ToClient(job, client_job, answer));
                }
                MasterAction::Metrics(metrics) => self.publish_metrics(job, metrics),
                MasterAction::ToSession(session_key, answer) => {
                    self.effects.push(Effect::ToSession(session_key, answer));
                }
                MasterAction::ToPage(stacks) => {
                    self.effects.push(Effect::PageStacks(job, stacks));
                }
                MasterAction::RefuseTool(session_key, reason) => {
                    self.effects.push(Effect::RefuseSession(session_key, reason));
                }
                MasterAction::Order(order) => self.on_master_order(job, order),
                MasterAction::Gang(request) => self.gang.queue(job, request),
            }
        }
        if is_done {
            self.end_watchers(job, code);
            self.effects.push(Effect::Finished(job, code));
        }
        self.handle_gang_requests();
    }

    /// The master of a job sends an order to the first host of the job.
    fn on_master_order(&mut self, job: JobId, order: Order) {
        if let Some(node) = self.tree.touch_led(job) {
            node.set_time(self.now);
            node.on_order(order);
        }
    }

    /// A report of this host's part of a job.
    fn on_local_report(&mut self, job: JobId, report: LocalReport) {
        let Some(node) = self.tree.touch(TreePosition::host(job)) else { return };
        match report {
            LocalReport::Shepherd(report) => node.on_shepherd_report(report),
            LocalReport::Switch(report) => node.on_report(SHEPHERD_CHILD, Report::Switch(report)),
            LocalReport::Job(report) => node.on_report(SHEPHERD_CHILD, Report::Job(report)),
            LocalReport::Lost { code, reason } => node.on_child_lost(SHEPHERD_CHILD, code, reason),
            LocalReport::Closed => node.close_child(SHEPHERD_CHILD),
        }
    }

    /// Moves orders and reports until there are none left.
    fn move_messages(&mut self) {
        while let Some(outgoing) = self.tree.take_messages() {
            let PositionMessages { position, parent, tag, messages, is_finished } = outgoing;
            let job = position.job;
            for message in messages {
                match message {
                    Outgoing::Parent(report) => self.send_to_parent(tag, parent, report),
                    Outgoing::Shepherd(order) => self.on_shepherd_order(job, order),
                    Outgoing::SwitchThread(order) => self.on_switch_order(job, order),
                    Outgoing::Child(child_index, order) => {
                        let links = self.tree.get(position);
                        let link = links.and_then(|links| links.child_links.get(&child_index));
                        let send = link.map(|link| Effect::SendOrder(*link, tag, order));
                        self.effects.extend(send);
                    }
                }
            }
            if is_finished && self.tree.leave(position) && position.level == TreeLevel::Host {
                self.effects.push(Effect::EndedHere(job));
            }
        }
    }

    fn send_to_parent(&mut self, tag: JobTag, parent: Parent, report: Report) {
        match parent {
            Parent::Master => self.step_master(tag.job, MasterEvent::Report(report)),
            Parent::Peer(link) => {
                let report = HopReport::Tree(report);
                self.effects.push(Effect::SendReport(link, tag, report));
            }
        }
    }

    fn on_shepherd_order(&mut self, job: JobId, order: ShepherdOrder) {
        let ShepherdOrder::Job(JobOrder::StartJob(start)) = order else {
            return self.effects.push(Effect::ToShepherd(job, order));
        };
        let Some(links) = self.tree.get(TreePosition::host(job)) else { return };
        let client_job = self.led_jobs.get(&job).map(|led_job| led_job.client_job);
        let (placement, parent) = (links.node.placement().clone(), links.parent);
        let launch = Launch { start, placement, parent, client_job };
        self.effects.push(Effect::Launch(Box::new(launch)));
    }

    /// An order for the switch thread of a shepherd of this host. The daemon passes the order on,
    /// unless the order begins a rotation of jobs.
    fn on_switch_order(&mut self, job: JobId, order: SwitchOrder) {
        let passed_on = match order {
            SwitchOrder::Run {
                stop_condition: StopCondition::LocalRotation(params),
                idle_check_interval_us,
            } => self.rotation.join(job, idle_check_interval_us, params),
            // Another interval of the idle check.
            SwitchOrder::Run { stop_condition: StopCondition::Unchanged, .. } => Some((job, order)),
            SwitchOrder::Run { .. } | SwitchOrder::Stop { .. } => {
                self.rotation.end_with(job);
                Some((job, order))
            }
        };
        if let Some((job, order)) = passed_on {
            self.effects.push(Effect::ToSwitchThread(job, order));
        }
    }
}

/// Queries of the daemon about trees.
impl Jobs {
    /// Whether this daemon neither leads a job nor takes part in one.
    pub fn is_empty(&self) -> bool {
        self.led_jobs.is_empty() && self.tree.is_empty()
    }

    /// The link to the parent of a job's part on this host, if the parent is another host.
    pub fn parent_link(&self, job: JobId) -> Option<LinkId> {
        match self.tree.get(TreePosition::host(job))?.parent {
            Parent::Peer(link) => Some(link),
            Parent::Master => None,
        }
    }

    /// The links that carry orders of a led job.
    pub fn led_links(&self, job: JobId) -> impl Iterator<Item = LinkId> + '_ {
        self.tree.led_links(job)
    }

    /// Whether jobs use a link. While there are no jobs, every link counts as used.
    pub fn uses_link(&self, link: LinkId) -> bool {
        self.tree.uses_link(link)
    }
}
