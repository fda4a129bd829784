//! The parts of users' jobs on this host that need root: directories, cgroups, shepherds and
//! supervisors of tools.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use score_keeper::record::{Action, Event, JobHandle, ShepherdEnd, StartRequest};
use score_keeper::voucher::Voucher;
use score_proto::job_control::{Limit, Owner, Status};
use score_proto::message::OsBytes;
use score_proto::tool_start::MAX_TOOLS;

use super::leftovers::Leftovers;
use crate::daemon::job_directory::{self, JobDirectory};
use crate::daemon::program_folders::ProgramFolders;
use crate::daemon::shepherd_handle::{ChildShepherd, KnownChildren, ShepherdArgs};
use crate::raw_socket::RawSocketGrant;
use crate::sys::cgroup::{Cgroups, Group};
use crate::sys::{credentials::UserIds, process};
use crate::tool_supervisor;

/// The maximum number of simultaneous jobs. Each job has a directory and a descriptor.
const MAX_JOBS: usize = 16_384;
/// The maximum number of supervisors of a job on this host, including those that are ending.
const MAX_SUPERVISORS: usize = 4 * MAX_TOOLS;
/// The first interval after which processes that have not died are killed again. It is doubled each
/// time.
const KILL_RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// The longest interval after which processes that have not died are killed again.
const MAX_KILL_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A job on this host.
#[derive(Debug)]
struct HostedJob {
    owner: Owner,
    directory: JobDirectory,
    group: Group,
    /// The shepherd, until it has ended.
    shepherd: Option<ChildShepherd>,
    /// The process ids of the supervisors of the job's tools.
    tool_supervisors: Vec<i32>,
}

/// The time of the next attempt to kill processes that have not died.
#[derive(Debug)]
struct KillRetry {
    at: Instant,
    interval: Duration,
}

impl KillRetry {
    fn new(now: Instant) -> Self {
        Self { at: now, interval: KILL_RETRY_INTERVAL }
    }

    fn postpone(&mut self, now: Instant) {
        self.at = now + self.interval;
        self.interval = (self.interval * 2).min(MAX_KILL_RETRY_INTERVAL);
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct KeptJobs {
    cgroups: Cgroups,
    no_namespace: bool,
    /// The network interfaces on which jobs may have raw sockets.
    trusted_interfaces: Vec<String>,
    jobs: HashMap<JobHandle, HostedJob>,
    last_handle: JobHandle,
    /// Shepherds of removed jobs that have not ended yet.
    ending_shepherds: Vec<ChildShepherd>,
    /// Cgroups that are removed once their processes have exited.
    ending_groups: Vec<(Group, KillRetry)>,
    /// Set if processes of ended shepherds without a namespace may be left.
    orphans: Option<KillRetry>,
    leftovers: Leftovers,
    program_folders: ProgramFolders,
    known_children: KnownChildren,
}

impl KeptJobs {
    /// Creates the state without jobs, and removes the remains of earlier keepers' jobs. Also
    /// returns one line for each thing that could not be removed.
    pub fn new(
        no_namespace: bool,
        trusted_interfaces: Vec<String>,
        known_children: KnownChildren,
    ) -> (Self, Vec<String>) {
        let cgroups = Cgroups::find(true);
        let mut errors = cgroups.sweep(&job_directory::is_dead);
        errors.extend(job_directory::remove_leftovers_of_root());
        let mut leftovers = Leftovers::new(known_children.clone());
        leftovers.sweep_soon(Instant::now());
        let jobs = Self {
            cgroups,
            no_namespace,
            trusted_interfaces,
            jobs: HashMap::new(),
            last_handle: JobHandle(0),
            ending_shepherds: Vec::new(),
            ending_groups: Vec::new(),
            orphans: None,
            leftovers,
            program_folders: ProgramFolders::default(),
            known_children,
        };
        (jobs, errors)
    }

    /// Starts the shepherd of a job for the user of a voucher. The voucher has been checked.
    ///
    /// # Errors
    /// One line with the cause.
    pub fn start(
        &mut self,
        request: &StartRequest,
        voucher: Voucher,
        sockets: [&OwnedFd; 2],
    ) -> Result<JobHandle, String> {
        if self.jobs.len() >= MAX_JOBS {
            return Err("this host has too many jobs".to_owned());
        }
        let owner = owner_of(voucher);
        let directory = JobDirectory::create_for_user(&mut |_| {})?;
        let group = match self.cgroups.make(directory.name(), request.memory) {
            Ok(group) => group,
            Err(error) => {
                let _ = directory.remove_if_empty();
                return Err(format!("cgroup of the job: {error}"));
            }
        };
        let mut job =
            HostedJob { owner, directory, group, shepherd: None, tool_supervisors: Vec::new() };
        match self.start_shepherd(&mut job, request, sockets) {
            Ok(()) => {
                self.last_handle.0 += 1;
                self.jobs.insert(self.last_handle, job);
                Ok(self.last_handle)
            }
            Err(reason) => {
                // No process of the user has been started.
                self.discard(job);
                Err(reason)
            }
        }
    }

    fn start_shepherd(
        &mut self,
        job: &mut HostedJob,
        request: &StartRequest,
        sockets: [&OwnedFd; 2],
    ) -> Result<(), String> {
        let owner = &job.owner;
        let ids = UserIds::from(owner);
        job.directory.chown_to(ids)?;
        let program_folder = match request.has_programs {
            true => self.program_folders.folder_of(Some(ids), &self.known_children),
            false => None,
        };
        let raw_socket_grant = RawSocketGrant::from_records(
            request.max_raw_processes,
            &request.raw_sets,
            &self.trusted_interfaces,
        );
        let args = ShepherdArgs {
            directory: &job.directory.path().to_string_lossy(),
            program_folder: program_folder.as_deref(),
            owner: Some(owner),
            group: Some(&job.group),
            raw_socket_grant,
        };
        let shepherd =
            ChildShepherd::start(&args, sockets, self.no_namespace, &self.known_children)
                .map_err(|error| format!("the job's shepherd cannot be started: {error}"))?;
        job.shepherd = Some(shepherd);
        Ok(())
    }

    /// Starts the supervisor of a tool.
    ///
    /// # Errors
    /// One line with the cause.
    pub fn start_tool(&mut self, handle: JobHandle, control: &OwnedFd) -> Result<(), String> {
        let job = self.jobs.get_mut(&handle).ok_or("the keeper has no such job")?;
        if job.tool_supervisors.len() >= MAX_SUPERVISORS {
            return Err("the job has too many tools".to_owned());
        }
        let pid = tool_supervisor::start(Some((&job.owner, &job.group)), control)
            .map_err(|error| format!("a tool cannot be started: {error}"))?;
        self.known_children.borrow_mut().insert(pid);
        job.tool_supervisors.push(pid);
        Ok(())
    }

    /// Performs an action on a job.
    ///
    /// # Errors
    /// The job does not exist, or a system call failed.
    pub fn act(&mut self, handle: JobHandle, action: Action) -> io::Result<()> {
        let no_job = || io::Error::new(io::ErrorKind::NotFound, "the keeper has no such job");
        let job = self.jobs.get(&handle).ok_or_else(no_job)?;
        match (action, &job.shepherd) {
            (Action::Freeze, _) => job.group.freeze()?,
            (Action::Thaw, _) => job.group.thaw()?,
            (Action::KillAll, _) => job.group.kill(),
            (Action::KillShepherd, Some(shepherd)) => shepherd.kill(),
            (Action::Continue, Some(shepherd)) => process::kill(shepherd.pid(), libc::SIGCONT),
            (Action::KillShepherd | Action::Continue, None) => {}
            (Action::Remove, _) => {
                let job = self.jobs.remove(&handle).ok_or_else(no_job)?;
                self.discard(job);
            }
        }
        Ok(())
    }

    /// Kills the remaining processes of a job, and removes its cgroup and directory.
    fn discard(&mut self, job: HostedJob) {
        let HostedJob { owner, directory, group, shepherd, tool_supervisors } = job;
        for pid in tool_supervisors {
            process::kill(pid, libc::SIGKILL);
        }
        if let Some(shepherd) = shepherd {
            shepherd.kill();
            self.ending_shepherds.push(shepherd);
        }
        group.kill();
        let now = Instant::now();
        self.ending_groups.push((group, KillRetry::new(now)));
        self.remove_groups(now);
        self.leftovers.remove(directory, (&owner).into());
    }

    fn remove_groups(&mut self, now: Instant) {
        self.ending_groups.retain_mut(|(group, retry)| {
            if retry.at > now || group.remove_if_empty().is_ok() {
                return retry.at > now;
            }
            group.kill();
            retry.postpone(now);
            true
        });
    }

    fn kill_orphans(&mut self, now: Instant) {
        let Some(retry) = self.orphans.as_mut().filter(|retry| retry.at <= now) else { return };
        retry.postpone(now);
        if !process::kill_descendants_except(&self.known_children.borrow()) {
            self.orphans = None;
        }
    }

    /// Reaps shepherds that have ended. Returns an event for each whose job has not been removed.
    pub fn reap_shepherds(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut may_leave_orphans = false;
        for (handle, job) in &mut self.jobs {
            let Some(shepherd) = job.shepherd.take_if(|shepherd| shepherd.has_ended()) else {
                continue;
            };
            may_leave_orphans |= shepherd.may_leave_orphans();
            let end = match shepherd.reap() {
                Some(Status::Exited(code)) => ShepherdEnd::Exited(code),
                Some(Status::Signaled(signal)) => {
                    ShepherdEnd::Signaled(u8::try_from(signal).unwrap_or(0))
                }
                None => ShepherdEnd::Signaled(libc::SIGKILL as u8),
            };
            let killed_for_memory = job.group.oom_kills() > 0;
            events.push(Event::Ended { job: *handle, end, killed_for_memory });
        }
        let ended = self.ending_shepherds.extract_if(.., |shepherd| shepherd.has_ended());
        for shepherd in ended {
            may_leave_orphans |= shepherd.may_leave_orphans();
            shepherd.reap();
        }
        if may_leave_orphans {
            self.orphans.get_or_insert_with(|| KillRetry::new(Instant::now()));
        }
        events
    }

    /// Whether a child of this process is a shepherd that has not been reaped.
    pub fn is_shepherd(&self, pid: i32) -> bool {
        let mut shepherds = self.jobs.values().filter_map(|job| job.shepherd.as_ref());
        shepherds.any(|shepherd| shepherd.pid() == pid)
            || self.ending_shepherds.iter().any(|shepherd| shepherd.pid() == pid)
    }

    /// Handles the exit of another child. Returns a line for the log, if there is one.
    pub fn on_child_reaped(&mut self, reaped: process::Reaped) -> Option<String> {
        for job in self.jobs.values_mut() {
            job.tool_supervisors.retain(|pid| *pid != reaped.pid);
        }
        if matches!(reaped.status, Status::Signaled(_)) {
            // If the child was a supervisor, processes of its tool may be left. The user chooses
            // how many there are. Their deaths must not cause one scan after the other.
            self.orphans.get_or_insert_with(|| KillRetry::new(Instant::now()));
        }
        self.leftovers.on_child_exit(reaped.pid, Some(reaped.status))
    }

    /// Does the work that is due.
    pub fn advance(&mut self, now: Instant) {
        self.remove_groups(now);
        self.kill_orphans(now);
        self.leftovers.advance(now);
        self.program_folders.remove_unused(now);
    }

    /// The time of the next call of [`KeptJobs::advance`].
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let leftovers = self.leftovers.deadline(now).map(|left| now + left);
        let groups = self.ending_groups.iter().map(|(_, retry)| retry.at).min();
        let orphans = self.orphans.as_ref().map(|retry| retry.at);
        [leftovers, groups, orphans, self.program_folders.deadline()].into_iter().flatten().min()
    }

    /// Whether shepherds, other processes or cgroups of removed jobs are left.
    pub fn is_ending(&self) -> bool {
        self.orphans.is_some()
            || !(self.ending_shepherds.is_empty() && self.ending_groups.is_empty())
    }

    /// Kills and removes all jobs. Resources that cannot be removed at once are removed later.
    pub fn end_all(&mut self) {
        let jobs: Vec<_> = self.jobs.drain().map(|(_, job)| job).collect();
        jobs.into_iter().for_each(|job| self.discard(job));
    }

    /// Removes as much as possible within this time, before the keeper exits.
    pub fn finish(&mut self, timeout: Duration) {
        self.program_folders.close(&self.known_children);
        self.ending_shepherds.drain(..).for_each(ChildShepherd::forget);
        self.leftovers.finish(timeout);
    }
}

fn owner_of(voucher: Voucher) -> Owner {
    let limits = voucher.limits.iter().map(|limit| Limit {
        resource: limit.resource,
        soft: limit.soft,
        hard: limit.hard,
    });
    Owner {
        uid: voucher.uid,
        gid: voucher.gid,
        name: OsBytes(voucher.name),
        limits: limits.collect(),
        voucher: Vec::new(),
    }
}
