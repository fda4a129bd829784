//! Measures the floor of a gang switch: two jobs under plain Linux, and one real-time process that
//! only sends signals. It does not wait until the stopped processes have stopped, although this is
//! necessary to keep two jobs off one processor.

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeSpec;
use nix::unistd::{Pid, read};

use crate::BenchResult;
use crate::testbed::Job;

/// Commands of one byte each: run one of the jobs alone, or both alternately.
const CMD_RUN_ONE: [u8; 2] = *b"01";
const CMD_ALTERNATE: u8 = b'b';

/// The handle of the switching process.
pub struct Switcher {
    child: Child,
    command_pipe: RefCell<Option<ChildStdin>>,
}

impl Switcher {
    /// Starts to alternate two jobs every `slice` milliseconds. Binds each process of a job to a
    /// processor of its own.
    pub fn start(slice: &str, jobs: [&Job; 2], processors: &[usize]) -> BenchResult<Self> {
        let error_text = |what: &str, errno: &dyn std::fmt::Display| format!("{what}: {errno}");
        for job in jobs {
            for (process, processor) in job.process_ids.iter().zip(processors) {
                let mut cpu_set = CpuSet::new();
                let set_result = cpu_set.set(*processor);
                let pinned = set_result.and_then(|()| sched_setaffinity(pid(*process), &cpu_set));
                pinned.map_err(|errno| error_text("a processor", &errno))?;
            }
        }
        let program_path =
            std::env::current_exe().map_err(|error| error_text("path of this program", &error))?;
        let mut command = Command::new("chrt");
        command.args(["-r", "1", "taskset", "-c", &processors[0].to_string()]).arg(program_path);
        command.args(["switch", slice]);
        command.args(jobs.iter().flat_map(|job| &job.process_ids).map(u32::to_string));
        let mut child = command
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| error_text("chrt (package util-linux)", &error))?;
        let command_pipe = RefCell::new(child.stdin.take());
        Ok(Self { child, command_pipe })
    }

    /// Runs only this job.
    pub fn run_one(&self, job: usize) -> BenchResult<()> {
        self.send_command(CMD_RUN_ONE[job])
    }

    /// Runs both jobs alternately.
    pub fn alternate(&self) -> BenchResult<()> {
        self.send_command(CMD_ALTERNATE)
    }

    fn send_command(&self, command: u8) -> BenchResult<()> {
        let mut command_pipe = self.command_pipe.borrow_mut();
        let written = command_pipe.as_mut().map_or(Ok(()), |pipe| pipe.write_all(&[command]));
        written.map_err(|error| format!("the process that switches: {error}"))
    }
}

impl Drop for Switcher {
    fn drop(&mut self) {
        // At the end of its input the switcher continues all processes and exits.
        self.command_pipe.take();
        let _ = self.child.wait();
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32)
}

/// Acts as the switching process. The arguments are the processes of one job, then the same number
/// of processes of the other job.
pub fn run_switcher(slice: &str, process_ids: &[&str]) -> BenchResult<()> {
    let slice = Duration::from_millis(crate::number(slice)?.into());
    let process_ids: Vec<u32> =
        process_ids.iter().map(|player| crate::number(player)).collect::<BenchResult<_>>()?;
    let (first, second) = process_ids.split_at(process_ids.len() / 2);
    let signal_job = |job: usize, signal| {
        for process in [first, second][job] {
            let _ = kill(pid(*process), signal);
        }
    };
    let input = std::io::stdin();
    let (mut running, mut is_alternating, mut switch_at) = (0, true, Instant::now());
    loop {
        let timeout = is_alternating
            .then(|| TimeSpec::from(switch_at.saturating_duration_since(Instant::now())));
        let mut poll_fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let next_job = match ppoll(&mut poll_fds, timeout, None) {
            Ok(0) => 1 - running,
            Ok(_) => {
                let mut command = [0];
                let count = read(input.as_fd(), &mut command).unwrap_or(0);
                if count == 0 {
                    signal_job(1 - running, Signal::SIGCONT);
                    return Ok(());
                }
                is_alternating = command[0] == CMD_ALTERNATE;
                CMD_RUN_ONE.iter().position(|alone| *alone == command[0]).unwrap_or(running)
            }
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(format!("poll: {errno}")),
        };
        signal_job(1 - next_job, Signal::SIGSTOP);
        signal_job(next_job, Signal::SIGCONT);
        (running, switch_at) = (next_job, Instant::now() + slice);
    }
}
