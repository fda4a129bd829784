//! The shepherd: one process for each job and host. It owns the job's processes, pipes and shared
//! memory, and exits when the job has ended. The job master ([`score_job`]) makes the decisions,
//! and the shepherd carries them out.

mod call_handler;
mod control_socket;
mod cpu_binding;
mod direct_modex;
mod disk_usage;
mod environment;
mod file_copies;
mod gang_switch;
mod input;
mod inspection;
mod job_info;
mod job_phase;
mod job_runner;
mod limit_enforcer;
mod metrics;
mod mpi_library;
mod mpi_provider;
mod mpi_services;
mod networks;
mod orders;
mod output;
mod pmi_service;
mod pmix_service;
mod pmix_watch;
mod process_list;
mod processes;
mod program_store;
mod redirection;
mod reports;
mod shared_memory;
mod spawn_queue;
mod tool_directory;
mod tool_files;
mod tool_service;
mod tool_transfer;
mod tools;

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_client::FramedSocket;
use score_proto::exit_code::{EXIT_FAILED, EXIT_SETUID_FAILED};
use score_proto::job_control::{JobReport, Owner};

use crate::raw_socket::RawSocketClient;
use crate::sys::realtime::{self, Inherit};
use crate::sys::{cgroup, credentials, descriptor, process};
use gang_switch::SwitchHandle;
use job_runner::JobRunner;
pub use limit_enforcer::CgroupCounters;
pub use networks::{interface, raw_links, secret_of};
use reports::ScoredLink;

const LINK: Token = Token(0);
const CHILD_SIGNALS: Token = Token(1);
const INPUT: Token = Token(2);
const NETWORKS: Token = Token(3);
/// The job has been resumed.
const RESUMED: Token = Token(4);
/// Orders to stop and to run, until the switch thread is started and receives them.
const SWITCH_ORDERS: Token = Token(5);
/// The helper that serves PMIx.
const PMIX: Token = Token(6);
/// The tool control service.
const TOOLCTL: Token = Token(7);
/// Connections of tools to the tool control service.
const TOOL_LISTENER: Token = Token(8);
const FIRST_DYNAMIC_TOKEN: usize = 9;

/// Name of the process.
const PROCESS_NAME: &std::ffi::CStr = c"scored-shepherd";

/// Options that scored passes to its shepherd.
#[derive(Debug)]
pub struct ShepherdOptions {
    /// Socket to scored for orders and reports.
    pub control: OwnedFd,
    /// Socket to scored for orders to stop and to run.
    pub switch_socket: OwnedFd,
    /// The job's directory.
    pub directory: PathBuf,
    /// The directory with programs of the user's earlier jobs, if programs of this job are copied.
    pub program_folder: Option<PathBuf>,
    /// Socket to the helper that opens raw sockets for the job, if the job has any.
    pub raw_socket_helper: Option<OwnedFd>,
    /// /proc of the outer PID namespace, if this process is init of an inner one.
    pub outer_proc: Option<OwnedFd>,
    /// Owner of the job, if it is not the user who started scored.
    pub owner: Option<Owner>,
    /// The files that the shepherd writes to join the job's cgroup, if it has one.
    pub membership_files: Vec<PathBuf>,
    /// Files in which the kernel counts the job's resource usage.
    pub cgroup_counters: CgroupCounters,
}

/// Runs the shepherd until its job has ended.
///
/// # Errors
/// A system call of the setup or of the event loop failed.
pub fn run(options: ShepherdOptions) -> io::Result<()> {
    process::set_name(PROCESS_NAME);
    descriptor::reserve_low()?;
    descriptor::close_on_exec_from(3);
    let descriptor_limit = process::raise_descriptor_limit();
    match options.outer_proc {
        // The kernel kills all other processes of the namespace when its init exits.
        Some(_) => process::die_with_parent(libc::SIGKILL),
        // This process must outlive scored to kill the descendants. The closed socket shows that
        // scored has exited.
        None => process::become_subreaper(),
    }
    let poll = Poll::new()?;
    let mut reports = ScoredLink::new(FramedSocket::new(options.control)?);
    reports.register(poll.registry(), LINK)?;
    if let Some(owner) = &options.owner {
        // Join before entering the realtime class: some cgroups reject realtime processes.
        let joined = cgroup::join(&options.membership_files)
            .map_err(|error| format!("cgroup of the job: {error}"));
        // The switch thread inherits the realtime class. This process still has the permission now.
        let _ = realtime::enter(Inherit::Realtime);
        if let Err(reason) = joined.and_then(|()| credentials::become_owner(owner)) {
            reports.add(JobReport::JobFailed { code: EXIT_FAILED, reason });
            reports.flush(poll.registry());
            std::process::exit(EXIT_SETUID_FAILED.into());
        }
        // The kernel clears the parent-death signal when user or group ids change.
        if options.outer_proc.is_some() {
            process::die_with_parent(libc::SIGKILL);
        }
    }
    let child_signals = SignalFd::with_flags(
        &SigSet::from(Signal::SIGCHLD),
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?;
    poll.registry().register(
        &mut SourceFd(&child_signals.as_raw_fd()),
        CHILD_SIGNALS,
        Interest::READABLE,
    )?;
    let inspector = inspection::ProcessInspector::new()?;
    let start_now = options.owner.is_some();
    let tokens = (RESUMED, SWITCH_ORDERS);
    let switch_handle = SwitchHandle::new(
        options.switch_socket,
        poll.registry(),
        tokens,
        inspector.clone(),
        start_now,
    )?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let context = job_info::ShepherdContext {
        directory: options.directory,
        program_folder: options.program_folder,
        outer_proc: options.outer_proc,
        descriptor_limit,
        null,
        cgroup_counters: options.cgroup_counters,
        multi_user: options.owner.is_some(),
        raw_client: options.raw_socket_helper.map(RawSocketClient::new).transpose()?,
    };
    let job_runner = JobRunner::new(context, reports, switch_handle.run_gate(), inspector);
    // No destructors: the process exits anyway, and the kernel frees everything faster.
    ManuallyDrop::new(Shepherd { poll, child_signals, switch_handle, job_runner }).run_loop()
}

struct Shepherd {
    poll: Poll,
    child_signals: SignalFd,
    switch_handle: SwitchHandle,
    job_runner: JobRunner,
}

impl Shepherd {
    fn run_loop(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
            let mut child_exited = false;
            for event in &events {
                match event.token() {
                    LINK => self.job_runner.reports.mark_readable(),
                    CHILD_SIGNALS => child_exited = true,
                    // The tick below does all the work.
                    RESUMED => {}
                    SWITCH_ORDERS => self.switch_handle.receive_orders(self.poll.registry())?,
                    NETWORKS => self.job_runner.serve_networks(),
                    PMIX => self.job_runner.mpi.mark_helper_readable(),
                    TOOLCTL => self.job_runner.tools.mark_readable(),
                    TOOL_LISTENER => self.job_runner.tools.mark_connection(),
                    INPUT => self
                        .job_runner
                        .input
                        .mark_writable(event.is_write_closed() || event.is_error()),
                    token => self.job_runner.mark_ready(token),
                }
            }
            self.receive_orders();
            if self.job_runner.reports.is_closed() {
                // scored has exited: end the job.
                process::kill_and_reap_all(Duration::from_secs(2));
                self.job_runner.remove_shared_memory();
                return Ok(());
            }
            self.switch_handle.start_if_needed(self.poll.registry())?;
            self.job_runner.on_stop_time(self.switch_handle.take_stop_time());
            let now = Instant::now();
            self.job_runner.tick(self.poll.registry(), now);
            if child_exited {
                while matches!(self.child_signals.read_signal(), Ok(Some(_))) {}
                self.job_runner.reap(self.poll.registry());
            }
            self.job_runner.outputs.send_batch(false, &mut self.job_runner.reports);
            self.job_runner.reports.flush(self.poll.registry());
            if self.job_runner.is_done() && self.job_runner.reports.is_flushed() {
                return Ok(());
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if self.job_runner.is_runnable() || self.job_runner.reports.may_have_more() {
            return Some(Duration::ZERO);
        }
        if self.job_runner.run_gate.is_stopped() && self.job_runner.run_gate.wake_on_resume() {
            return Some(Duration::ZERO);
        }
        let deadline = self.job_runner.next_deadline()?;
        // epoll_wait() counts whole milliseconds. Round up, because the loop would otherwise spin
        // during the last millisecond.
        Some(deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn receive_orders(&mut self) {
        loop {
            match self.job_runner.reports.order() {
                Ok(Some(order)) => self.job_runner.on_order(order),
                Ok(None) => return,
                Err(_) => std::process::exit(1),
            }
        }
    }
}

/// The inode number of this process's PID namespace, or 0.
fn self_pid_namespace() -> u64 {
    process::namespace_of("/proc/self").unwrap_or(0)
}

/// Number of processors that this process may run on.
fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The time of CLOCK_MONOTONIC in nanoseconds. Processes and the shepherd share this clock.
fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| {
        let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
    })
}
