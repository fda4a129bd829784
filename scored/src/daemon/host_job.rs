//! What a host does for one job: its directory, its shepherd, and its place in the job's tree.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use mio::{Registry, Token};
use score_proto::PROTOCOL_VERSION;
use score_proto::job_control::{JobStart, Order, Placement, Report, Status};
use score_proto::message::{ContentHash, FileDigest, HostKind, Level, OsBytes};

use super::host_limits;
use super::job_directory::JobDirectory;
use super::jobs::TreePosition;
use super::program_cache::ProgramCache;
use super::shepherd_handle::{KnownChildren, ShepherdArgs, ShepherdHandle};
use super::tree_node::{SHEPHERD_CHILD, TreeNode};
use crate::job::limits::{JobLimits, LimitKind};
use crate::job::{exit_code, program_paths, validate};
use crate::raw_socket;
use crate::shepherd::EXIT_SETUID_FAILED;
use crate::sys::cgroup::{Cgroups, Group};
use crate::sys::{process, realtime};

/// Exit codes for what a host cannot do: a job that is too large for it, anything else.
const EXIT_REFUSED: u8 = 2;
const EXIT_FAILED: u8 = 1;
/// The same for a job whose host is lost.
pub const EXIT_HOST_LOST: u8 = 1;

/// Who is above a host in a job's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// The master, in this very daemon.
    Master,
    /// Another host's daemon, over this link.
    Peer(usize),
}

/// Bytes of orders that may wait for a shepherd: input is far below.
const MAX_QUEUED_ORDER_BYTES: usize = 8 << 20;

/// A job on this host.
#[derive(Debug)]
pub struct HostJob {
    /// Who is above.
    pub parent: Parent,
    /// The links to the hosts right below, by source.
    pub child_links: BTreeMap<usize, usize>,
    /// Its place in the job's tree.
    pub tree_node: TreeNode,
    /// Its shepherd, while it lives.
    pub shepherd: Option<ShepherdHandle>,
    directory: Option<JobDirectory>,
    /// The job, while its programs are on their way.
    pub pending_begin: Option<Box<JobStart>>,
    /// Whether all hosts of the job are virtual ones: they have one disk.
    pub shares_disk: bool,
    /// Sources that ask for a program on that disk.
    pub path_requests: Vec<(usize, ContentHash)>,
    /// Programs that are there.
    shared_paths: Vec<(ContentHash, PathBuf)>,
    group: Option<Group>,
    limits: JobLimits,
}

/// Whether a report came without others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnlyReport(pub bool);

/// How a job is begun here.
pub struct StartContext<'a> {
    /// `-nonamespace`
    pub no_namespace: bool,
    /// Where the shepherd's socket is watched.
    pub registry: &'a Registry,
    /// As what.
    pub token: Token,
    /// The same for its thread that switches.
    pub switch_token: Token,
    /// The other children of this process.
    pub known_children: KnownChildren,
    /// The programs that travel.
    pub program_cache: &'a ProgramCache<TreePosition>,
    /// Where groups for jobs of several users are made.
    pub cgroups: &'a Cgroups,
    /// Whether it is time to remove what earlier jobs have left.
    pub sweep_due: bool,
    /// Who is told where the directory will be, before it is there.
    pub announce_path: &'a mut dyn FnMut(&str),
}

impl HostJob {
    /// This host's place in a job that has not begun.
    pub fn new(placement: Placement, parent: Parent) -> Self {
        Self::with_tree_node(TreeNode::new(placement), parent)
    }

    /// The place above the first host of a job.
    pub fn at_master(placement: Placement) -> Self {
        Self::with_tree_node(TreeNode::at_master(placement), Parent::Master)
    }

    fn with_tree_node(tree_node: TreeNode, parent: Parent) -> Self {
        Self {
            parent,
            child_links: BTreeMap::new(),
            tree_node,
            shepherd: None,
            directory: None,
            pending_begin: None,
            shares_disk: false,
            path_requests: Vec::new(),
            shared_paths: Vec::new(),
            group: None,
            limits: JobLimits::default(),
        }
    }

    /// The source that reports over a link.
    pub fn child_of_link(&self, link_id: usize) -> Option<usize> {
        self.child_links
            .iter()
            .find(|(_, child_link)| **child_link == link_id)
            .map(|(child_index, _)| *child_index)
    }

    /// The job begins as soon as its programs are here.
    pub fn wait_for_programs(&mut self, begin: Box<JobStart>) {
        let mut hosts = begin.spec.hosts.iter();
        self.shares_disk =
            begin.owner.is_none() && hosts.all(|host| host.kind == HostKind::Virtual);
        self.pending_begin = Some(begin);
    }

    /// A program lies there, for all virtual hosts.
    pub fn add_shared_path(&mut self, hash: ContentHash, path: &Path) {
        if self.shares_disk {
            self.shared_paths.push((hash, path.to_owned()));
        }
    }

    /// Answers who has asked for what is there by now.
    pub fn answer_path_requests(&mut self) -> Vec<(usize, Order)> {
        let shared_paths = &self.shared_paths;
        let answer = |(child_index, hash): &mut (usize, ContentHash)| {
            let (hash, path) = shared_paths.iter().find(|(shared_hash, _)| shared_hash == hash)?;
            let path = OsBytes(path.as_os_str().as_bytes().to_vec());
            Some((*child_index, Order::SharedFile { hash: *hash, path }))
        };
        let mut orders = Vec::new();
        self.path_requests.retain_mut(|request| {
            let order = answer(request);
            let is_pending = order.is_none();
            orders.extend(order);
            is_pending
        });
        orders
    }

    /// Which of all jobs that ever had this number.
    pub fn job_incarnation(&self) -> u64 {
        self.tree_node.placement().job_incarnation
    }

    /// Nothing more comes from the hosts behind a source.
    pub fn fail_child(&mut self, child_index: usize, reason: &str) {
        let hosts = self.tree_node.hosts(child_index);
        let text = lost_text(self.tree_node.placement(), hosts, reason);
        self.tree_node.on_child_lost(child_index, EXIT_HOST_LOST, text);
    }

    /// Begins the job here; what comes of it is reported.
    pub fn begin(&mut self, begin: &JobStart, context: StartContext<'_>) {
        let sweep_due = context.sweep_due;
        match self.try_begin(begin, context) {
            Ok(()) => {
                self.tree_node.on_report(SHEPHERD_CHILD, Report::Ready);
                // While the shepherd starts: what earlier jobs could not remove themselves. With
                // several users that was done when this daemon started; on one disk the first
                // host does it.
                let is_swept_by_first_host =
                    self.shares_disk && self.tree_node.placement().self_host != 0;
                let should_sweep = begin.owner.is_none() && !is_swept_by_first_host && sweep_due;
                let sweep_directory = self.directory.as_ref().filter(|_| should_sweep);
                let errors = sweep_directory.map(JobDirectory::remove_leftovers);
                for error in errors.unwrap_or_default() {
                    self.warn(format!("left by an earlier job, and cannot be removed: {error}"));
                }
            }
            Err((code, reason)) => self.refuse_with(code, &reason),
        }
    }

    /// This host cannot do its part.
    pub fn refuse(&mut self, reason: String) {
        self.refuse_with(EXIT_FAILED, &reason);
    }

    fn refuse_with(&mut self, code: u8, reason: &str) {
        if let Some(shepherd) = self.shepherd.take() {
            shepherd.kill_and_reap();
        }
        self.remove_resources();
        let reason = self.with_host_name(reason);
        self.tree_node.on_report(SHEPHERD_CHILD, Report::Refused { code, reason });
        self.tree_node.close_child(SHEPHERD_CHILD);
    }

    fn try_begin(
        &mut self,
        begin: &JobStart,
        context: StartContext<'_>,
    ) -> Result<(), (u8, String)> {
        let placement = self.tree_node.placement();
        placement.check().map_err(|reason| (EXIT_FAILED, reason.to_owned()))?;
        let nodes = placement.self_placement().map_or(0, |local_host| local_host.nodes);
        validate::check_limits(&begin.spec, nodes, &host_limits::cached_limits())
            .map_err(|reason| (EXIT_REFUSED, reason))?;
        let failed = |reason: String| (EXIT_FAILED, reason);
        let directory = match &begin.owner {
            Some(_) => JobDirectory::create_for_user(&mut *context.announce_path),
            None => {
                let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
                JobDirectory::create(runtime_dir.as_deref(), &mut *context.announce_path)
            }
        };
        let directory = self.directory.insert(directory.map_err(failed)?);
        let staged =
            stage_programs(begin, directory.path(), context.program_cache).map_err(failed)?;
        if self.shares_disk {
            self.shared_paths.extend(staged);
        }
        if let Some(owner) = &begin.owner {
            // Only now: nothing in it was anybody else's before.
            directory.chown_to((owner.uid, owner.gid)).map_err(failed)?;
        }
        self.limits =
            JobLimits::from_options(&begin.spec.options, begin.owner.is_some()).map_err(failed)?;
        if begin.owner.is_some() {
            let group = context.cgroups.make(directory.name(), self.limits.memory);
            let group = group.map_err(|error| failed(format!("cgroup of the job: {error}")))?;
            self.group = Some(group);
        }
        let shepherd_args = ShepherdArgs {
            directory: &directory.path().to_string_lossy(),
            owner: begin.owner.as_ref(),
            group: self.group.as_ref(),
            raw_plan: raw_socket::RawSocketGrant::for_job(begin, self.tree_node.placement()),
        };
        let shepherd = ShepherdHandle::start(&shepherd_args, context);
        let shepherd = shepherd
            .map_err(|error| failed(format!("the job's shepherd cannot be started: {error}")))?;
        let shepherd = self.shepherd.insert(shepherd);
        if let Some(group) = &self.group {
            let entered = group.enter(shepherd.pid());
            entered.map_err(|error| failed(format!("cgroup of the job: {error}")))?;
        }
        shepherd.control_link.queue(&Order::Hello { version: PROTOCOL_VERSION });
        shepherd.control_link.queue(&Order::SetPlacement(placement.clone()));
        shepherd.control_link.queue(&Order::StartJob(Box::new(begin.clone())));
        shepherd.control_link.flush();
        Ok(())
    }

    /// Names this host where there are several.
    fn with_host_name(&self, reason: &str) -> String {
        let placement = self.tree_node.placement();
        match placement.self_placement() {
            Some(local_host) if placement.hosts.len() > 1 => {
                format!("host {}: {reason}", local_host.name)
            }
            _ => reason.to_owned(),
        }
    }

    fn warn(&mut self, text: String) {
        let text = self.with_host_name(&text);
        self.tree_node.on_report(SHEPHERD_CHILD, Report::Notice { level: Level::Warning, text });
    }

    /// An order for the shepherd.
    pub fn on_order(&mut self, order: &Order) {
        match (&mut self.shepherd, order) {
            (Some(shepherd), order) => {
                if matches!(order, Order::Stop { .. } | Order::Kill) {
                    // Its user may have stopped it, from outside.
                    process::kill(shepherd.pid(), libc::SIGCONT);
                }
                shepherd.queue_order(order);
                if shepherd.control_link.backlog() > MAX_QUEUED_ORDER_BYTES {
                    // Its user has stopped it, and floods it.
                    process::kill(shepherd.pid(), libc::SIGKILL);
                }
            }
            // It waits for its programs still, or has lost its shepherd.
            (None, Order::Finish) => {
                self.pending_begin = None;
                self.tree_node.close_child(SHEPHERD_CHILD);
            }
            (None, _) => {}
        }
    }

    /// Takes what the thread that switches has reported; whether that is the end of a turn, by this
    /// number, and nothing else.
    pub fn read_rotation_stop(&mut self, switch_seq: u64) -> Option<OnlyReport> {
        let shepherd = self.shepherd.as_mut()?;
        let (mut has_stopped, mut is_only_report) = (false, true);
        loop {
            match shepherd.switch_link.receive() {
                Ok(Some(Report::Stopped { switch_seq: stopped_seq }))
                    if stopped_seq == switch_seq =>
                {
                    has_stopped = true
                }
                Ok(Some(report)) => {
                    is_only_report = false;
                    self.tree_node.on_report(SHEPHERD_CHILD, report);
                }
                Ok(None) => return has_stopped.then_some(OnlyReport(is_only_report)),
                Err(_) => {
                    process::kill(shepherd.pid(), libc::SIGKILL);
                    return None;
                }
            }
        }
    }

    /// Takes what the shepherd has reported.
    pub fn receive_reports(&mut self) {
        let Some(shepherd) = &mut self.shepherd else { return };
        loop {
            match shepherd.next_report() {
                Ok(Some(Report::Finished { elapsed_ns })) => shepherd.elapsed_ns = Some(elapsed_ns),
                Ok(Some(report)) => self.tree_node.on_report(SHEPHERD_CHILD, report),
                Ok(None) => break,
                Err(_) => {
                    process::kill(shepherd.pid(), libc::SIGKILL);
                    break;
                }
            }
        }
        if shepherd.control_link.is_closed() {
            if shepherd.elapsed_ns.is_some() && !shepherd.has_ended() {
                // Its namespace is being taken down, which takes a millisecond: others are served
                // meanwhile, and SIGCHLD tells when it is gone.
                return process::kill(shepherd.pid(), libc::SIGKILL);
            }
            self.reap_shepherd();
        }
    }

    /// A child of this process has ended. A shepherd that was killed shows on its socket, too; but
    /// not while something that it has started still holds the other end.
    pub fn check_shepherd_exit(&mut self) {
        if let Some(shepherd) = &mut self.shepherd
            && shepherd.has_ended()
        {
            // Its last words may have come after mio's last report.
            shepherd.mark_readable();
            self.receive_reports();
            self.reap_shepherd();
        }
    }

    /// The shepherd has ended, or is about to.
    fn reap_shepherd(&mut self) {
        let Some(shepherd) = self.shepherd.take() else { return };
        let finished_ns = shepherd.elapsed_ns;
        let status = shepherd.kill_and_reap();
        let killed_for_memory = self.group.as_ref().is_some_and(|group| group.oom_kills() > 0);
        self.remove_resources();
        match finished_ns {
            Some(elapsed_ns) => {
                self.tree_node.on_report(SHEPHERD_CHILD, Report::Finished { elapsed_ns })
            }
            None if status == Some(Status::Exited(EXIT_SETUID_FAILED)) => {
                let reason = self.with_host_name("nothing of the job has been started");
                self.tree_node.on_child_lost(SHEPHERD_CHILD, EXIT_FAILED, reason);
            }
            None if killed_for_memory && status == Some(Status::Signaled(libc::SIGKILL)) => {
                let host = self
                    .tree_node
                    .placement()
                    .self_placement()
                    .map_or("?", |local_host| &local_host.name);
                let (code, reason) = self.limits.exceeded_message(LimitKind::Memory, host);
                self.tree_node.on_child_lost(SHEPHERD_CHILD, code, reason);
            }
            None => {
                let (code, reason) = describe_exit(status);
                let reason = self.with_host_name(&reason);
                self.tree_node.on_child_lost(SHEPHERD_CHILD, code, reason);
            }
        }
    }

    /// Ends the job here without telling anybody.
    pub fn abort(&mut self) {
        if let Some(shepherd) = self.shepherd.take() {
            process::kill(shepherd.pid(), libc::SIGKILL);
            shepherd.kill_and_reap();
        }
        self.remove_resources();
    }

    /// Removes the job's group and directory.
    fn remove_resources(&mut self) {
        if let Some(group) = self.group.take() {
            group.kill();
            if let Err(error) = realtime::run_as_normal(|| group.remove()) {
                self.warn(format!("the job's cgroup cannot be removed: {error}"));
            }
        }
        let Some(directory) = self.directory.take() else { return };
        let path: PathBuf = directory.path().to_owned();
        if let Err(error) = realtime::run_as_normal(|| directory.remove()) {
            self.warn(format!("{} cannot be removed: {error}", path.display()));
        }
    }
}

/// Puts the programs that travel into the job's directory; where they are.
fn stage_programs(
    begin: &JobStart,
    directory: &Path,
    program_cache: &ProgramCache<TreePosition>,
) -> Result<Vec<(ContentHash, PathBuf)>, String> {
    let stage_program = |(content, relative_path): (FileDigest, PathBuf)| {
        let path = directory.join(relative_path);
        let folder = path.parent().unwrap_or(directory);
        let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created
            .and_then(|()| program_cache.write_program(begin.job, &content.hash, &path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((content.hash, path))
    };
    program_paths::files(&begin.spec).into_iter().map(stage_program).collect()
}

/// Exit code, and a line for the user.
fn describe_exit(status: Option<Status>) -> (u8, String) {
    let cause = match status {
        Some(Status::Signaled(signal)) => format!("killed by {}", exit_code::signal_name(signal)),
        Some(Status::Exited(code)) => format!("exit code {code}"),
        None => "unknown cause".to_owned(),
    };
    let text = format!("the job's shepherd has died ({cause}): every process has been killed");
    (status.map_or(EXIT_FAILED, exit_code::of_status).max(1), text)
}

/// What the user reads when hosts are lost: the first is the one whose link broke.
fn lost_text(placement: &Placement, hosts: Range<u32>, reason: &str) -> String {
    let names: Vec<&str> =
        hosts.filter_map(|host| Some(placement.hosts.get(host as usize)?.name.as_str())).collect();
    let first = names.first().copied().unwrap_or("?");
    let unreachable_note = match names.len() {
        0 | 1 => String::new(),
        2..=5 => format!("; out of reach with it: {}", names[1..].join(", ")),
        count => format!("; out of reach with it: {} hosts", count - 1),
    };
    format!("host {first} is lost: {reason}{unreachable_note}. Every process of the job is killed")
}
