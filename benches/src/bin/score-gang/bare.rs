//! The floor of a switch: two jobs that Linux alone would run, and one real-time process that does
//! nothing but send signals. It does not even wait until anybody stands still, as whoever keeps
//! two jobs off one processor has to.

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

use crate::Result;
use crate::bed::Job;

/// What it is told, one byte each: one job alone, or both in turns.
const ALONE: [u8; 2] = *b"01";
const BOTH: u8 = b'b';

/// The process that switches, from outside.
pub struct Switcher {
    child: Child,
    told: RefCell<Option<ChildStdin>>,
}

impl Switcher {
    /// Has two jobs take turns of so many milliseconds, each process on a processor of its own.
    pub fn start(slice: &str, jobs: [&Job; 2], processors: &[usize]) -> Result<Self> {
        let fault = |what: &str, errno: &dyn std::fmt::Display| format!("{what}: {errno}");
        for job in jobs {
            for (player, processor) in job.players.iter().zip(processors) {
                let mut one = CpuSet::new();
                let set = one.set(*processor);
                let kept = set.and_then(|()| sched_setaffinity(pid(*player), &one));
                kept.map_err(|errno| fault("a processor", &errno))?;
            }
        }
        let own = std::env::current_exe().map_err(|error| fault("own path", &error))?;
        let mut command = Command::new("chrt");
        command.args(["-r", "1", "taskset", "-c", &processors[0].to_string()]).arg(own);
        command.args(["switch", slice]);
        command.args(jobs.iter().flat_map(|job| &job.players).map(u32::to_string));
        let mut child = command
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| fault("chrt (package util-linux)", &error))?;
        let told = RefCell::new(child.stdin.take());
        Ok(Self { child, told })
    }

    /// One job runs, the other does not.
    pub fn alone(&self, job: usize) -> Result<()> {
        self.tell(ALONE[job])
    }

    /// Both run in turns.
    pub fn both(&self) -> Result<()> {
        self.tell(BOTH)
    }

    fn tell(&self, word: u8) -> Result<()> {
        let mut told = self.told.borrow_mut();
        let written = told.as_mut().map_or(Ok(()), |told| told.write_all(&[word]));
        written.map_err(|error| format!("the process that switches: {error}"))
    }
}

impl Drop for Switcher {
    fn drop(&mut self) {
        // The end of its input: all go on.
        self.told.take();
        let _ = self.child.wait();
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32)
}

/// That process: the players of one job, then as many of the other.
pub fn switch(slice: &str, players: &[&str]) -> Result<()> {
    let slice = Duration::from_millis(crate::number(slice)?.into());
    let players: Vec<u32> =
        players.iter().map(|player| crate::number(player)).collect::<Result<_>>()?;
    let (first, second) = players.split_at(players.len() / 2);
    let send = |job: usize, signal| {
        for player in [first, second][job] {
            let _ = kill(pid(*player), signal);
        }
    };
    let input = std::io::stdin();
    let (mut running, mut both, mut next) = (0, true, Instant::now());
    loop {
        let left = both.then(|| TimeSpec::from(next.saturating_duration_since(Instant::now())));
        let mut wanted = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let chosen = match ppoll(&mut wanted, left, None) {
            Ok(0) => 1 - running,
            Ok(_) => {
                let mut word = [0];
                let count = read(input.as_fd(), &mut word).unwrap_or(0);
                if count == 0 {
                    send(1 - running, Signal::SIGCONT);
                    return Ok(());
                }
                both = word[0] == BOTH;
                ALONE.iter().position(|alone| *alone == word[0]).unwrap_or(running)
            }
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(format!("poll: {errno}")),
        };
        send(1 - chosen, Signal::SIGSTOP);
        send(chosen, Signal::SIGCONT);
        (running, next) = (chosen, Instant::now() + slice);
    }
}
