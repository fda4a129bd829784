//! The one place that starts a process of the user.
//!
//! The shepherd keeps itself in the state that a child shall inherit, so that little is left to do
//! per process: all its own descriptors are close-on-exec, all dispositions are default, its
//! umask is the job's, its priority and oom_score_adj are untouched.
//!
//! What it does until it runs its program is in [`super::newborn`]. What goes wrong there is known
//! only when it has ended.

#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use nix::sched::CpuSet;

use super::newborn::{Newborn, STEP_DIRECTORY, STEP_FILE, STEP_PROGRAM};

/// The number under which a process finds its control socket.
pub const CONTROL_NUMBER: i32 = 3;

/// A program and its arguments.
#[derive(Debug)]
pub struct Program {
    /// Paths to try in order, as execvp(3) does.
    candidates: Vec<CString>,
    /// argv, argv[0] included.
    arguments: Vec<CString>,
}

impl Program {
    /// One program, at the first of `candidates` where there is one.
    pub fn new(candidates: Vec<CString>, arguments: Vec<CString>) -> Self {
        Self { candidates, arguments }
    }

    /// Candidates and arguments.
    pub fn parts(&self) -> (&[CString], &[CString]) {
        (&self.candidates, &self.arguments)
    }
}

/// A file that the child itself opens: where that takes for ever, as on a network file system whose
/// server is gone, it holds nobody else and ends with a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The first of these that is there.
    pub paths: Vec<CString>,
    /// As open(2) takes them; O_NONBLOCK holds for the opening only.
    pub flags: i32,
}

/// Where a descriptor of the child comes from.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// From here, where its number is above [`CONTROL_NUMBER`].
    Here(BorrowedFd<'a>),
    /// It is opened there.
    File(&'a Opening),
}

/// Everything that differs between the processes of a job.
#[derive(Debug)]
pub struct Launch<'a> {
    /// What to run.
    pub program: &'a Program,
    /// NAME=VALUE strings.
    pub environment: &'a [&'a CStr],
    /// Working directory.
    pub directory: &'a CStr,
    /// Descriptors 0, 1, 2 and [`CONTROL_NUMBER`] of the process.
    pub descriptors: [Source<'a>; 4],
    /// RLIMIT_NOFILE of the process.
    pub descriptor_limit: libc::rlimit,
    /// Whether the kernel shall kill it when we die: where there is no PID namespace to do so.
    pub die_with_parent: bool,
    /// Where it is to run, unless it chooses for itself.
    pub processor: Option<&'a CpuSet>,
}

/// Why a process could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No process could be made: errno.
    Process(i32),
    /// The working directory cannot be entered: errno.
    Directory(i32),
    /// The program cannot be executed: errno.
    Program(i32),
    /// A file cannot be opened: for which descriptor, which of its paths, errno.
    File(usize, usize, i32),
    /// Something else in the child: errno.
    Setup(i32),
}

/// Starts processes, and remembers what went wrong with those that did not come to their program.
#[derive(Debug, Default)]
pub struct Spawner {
    /// Those that may still use our memory, by number.
    young: VecDeque<(usize, Rc<Newborn>)>,
    /// One that is gone, for the next.
    used: Option<Rc<Newborn>>,
    /// By number: which step, and errno.
    faults: HashMap<usize, (u64, i32)>,
}

impl Spawner {
    /// Prepares for the processes of another stage, and forgets all earlier ones.
    pub fn begin(&mut self) {
        self.collect();
        // Their memory is theirs.
        self.young.drain(..).for_each(std::mem::forget);
        self.faults.clear();
    }

    /// Starts process `number` in a session of its own and returns its process id. All signals
    /// must be blocked in the caller.
    ///
    /// # Errors
    /// [`Fault::Process`]. What goes wrong later is told by [`Spawner::fault`].
    pub fn spawn(&mut self, launch: &Launch<'_>, number: usize) -> Result<i32, Fault> {
        self.collect();
        let (pid, newborn) = Newborn::new(launch, self.used.take()).map_err(Fault::Process)?;
        self.young.push_back((number, newborn));
        Ok(pid)
    }

    /// Takes back the memory of those that are gone.
    fn collect(&mut self) {
        for _ in 0..self.young.len() {
            let Some((number, newborn)) = self.young.pop_front() else { return };
            if !newborn.is_gone() {
                self.young.push_back((number, newborn));
                continue;
            }
            if let Some(fault) = newborn.fault() {
                self.faults.insert(number, fault);
            }
            self.used = Some(newborn);
        }
    }

    /// What went wrong in the start of a process that has ended, if anything.
    pub fn fault(&mut self, number: usize) -> Option<Fault> {
        self.collect();
        let &(step, errno) = self.faults.get(&number)?;
        Some(match step {
            STEP_DIRECTORY => Fault::Directory(errno),
            STEP_PROGRAM => Fault::Program(errno),
            STEP_FILE.. => {
                let at = (step - STEP_FILE) as usize;
                Fault::File(at % 4, at / 4, errno)
            }
            _ => Fault::Setup(errno),
        })
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.begin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process;
    use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
    use score_proto::order::Status;
    use std::fs::File;
    use std::os::fd::{AsFd, AsRawFd};

    /// Above the numbers that a process gets.
    fn high() -> File {
        let open = || File::options().read(true).write(true).open("/dev/null").unwrap();
        let few: Vec<File> = (0..=CONTROL_NUMBER + 1).map(|_| open()).collect();
        few.into_iter().max_by_key(AsRawFd::as_raw_fd).unwrap()
    }

    #[test]
    fn of_many_that_are_under_way_each_has_its_own_fault_and_the_memory_comes_back() {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).unwrap();
        let null = high();
        let words = |words: &[&std::ffi::CStr]| words.iter().map(|&word| word.into()).collect();
        let program = |candidates: &[&std::ffi::CStr]| {
            Program::new(words(candidates), words(&[c"sh", c"-c", c"exit $CODE"]))
        };
        let (sh, none) = (program(&[c"/nowhere/sh", c"/bin/sh"]), program(&[c"/nowhere/sh"]));
        let missing = Opening { paths: words(&[c"/nowhere/1", c"/nowhere/2"]), flags: 0 };
        let mut spawner = Spawner::default();
        for round in 0..2 {
            spawner.begin();
            let mut all = Vec::new();
            for number in 0..60_usize {
                let code = CString::new(format!("CODE={number}")).unwrap();
                let here = Source::Here(null.as_fd());
                let launch = Launch {
                    program: if number % 4 == 1 { &none } else { &sh },
                    environment: &[&code],
                    directory: if number % 4 == 2 { c"/nowhere" } else { c"/" },
                    descriptors: [
                        if number % 4 == 3 { Source::File(&missing) } else { here },
                        here,
                        here,
                        here,
                    ],
                    descriptor_limit: libc::rlimit { rlim_cur: 100, rlim_max: 100 },
                    die_with_parent: true,
                    processor: None,
                };
                all.push(spawner.spawn(&launch, number).unwrap());
            }
            for (number, pid) in all.into_iter().enumerate() {
                let status = process::wait_for(pid).unwrap().status;
                let (fault, code) = match number % 4 {
                    1 => (Some(Fault::Program(libc::ENOENT)), 127),
                    2 => (Some(Fault::Directory(libc::ENOENT)), 127),
                    3 => (Some(Fault::File(0, 1, libc::ENOENT)), 127),
                    _ => (None, number as u8),
                };
                assert_eq!((spawner.fault(number), status), (fault, Status::Exited(code)));
            }
            assert!(spawner.young.is_empty(), "round {round}");
        }
    }
}
