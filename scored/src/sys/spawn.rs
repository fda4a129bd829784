//! The one place that starts a process of the user.
//!
//! The shepherd keeps itself in the state that a child shall inherit, so that little is left to do
//! per process: all its own descriptors are close-on-exec, all dispositions are default, its
//! umask is the job's, its priority and oom_score_adj are untouched.
//!
//! A child is a plain fork, not a vfork: a vforking parent waits until the child has been given a
//! processor, and on a busy machine 256 starts then take three times as long. What goes wrong in
//! a child is therefore known only when it has ended; it says so in a word of shared memory.

// UNSAFETY: clone(2) without a new stack (as fork), and the system calls of the child.
#![expect(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::sched::CpuSet;

use super::memfd::Words;

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

const STEP_SETUP: u64 = 1;
const STEP_DIRECTORY: u64 = 2;
const STEP_PROGRAM: u64 = 3;
/// Plus four times the path's number, plus the descriptor's.
const STEP_FILE: u64 = 16;

/// Starts processes, and remembers what their children say of a failure.
#[derive(Debug, Default)]
pub struct Spawner {
    /// One word for each process: step << 32 | errno, or 0.
    words: Option<Words>,
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

impl Spawner {
    /// Prepares for processes numbered from 0 to `count`, and forgets all earlier ones.
    ///
    /// # Errors
    /// As memfd_create(2), mmap(2).
    pub fn begin(&mut self, count: usize) -> io::Result<()> {
        self.words = Some(Words::new(c"score-starts", count)?);
        Ok(())
    }

    /// Starts process `number` in a session of its own and returns its process id. All signals
    /// must be blocked in the caller.
    ///
    /// # Errors
    /// [`Fault::Process`]. What goes wrong later is told by [`Spawner::fault`].
    pub fn spawn(&self, launch: &Launch<'_>, number: usize) -> Result<i32, Fault> {
        let candidates = pointers(&launch.program.candidates);
        let argv = pointers(&launch.program.arguments);
        // `/bin/sh FILE args`, for a script without `#!`; the child fills in FILE.
        let mut shell_argv = vec![c"/bin/sh".as_ptr(), ptr::null()];
        shell_argv.extend(argv.iter().skip(1));
        if argv.len() == 1 {
            shell_argv.push(ptr::null());
        }
        let envp: Vec<*const c_char> =
            launch.environment.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        let parent = std::process::id();
        // SAFETY: as fork: the child runs on a copy of our memory, where another thread may
        // have left any lock taken; it takes none and allocates nothing.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if pid < 0 {
            return Err(Fault::Process(errno()));
        }
        if pid > 0 {
            return Ok(pid as i32);
        }
        // SAFETY: this is the child, which does system calls only and never returns.
        unsafe {
            let mut step = prepare(launch, parent);
            let error = if step == 0 {
                step = STEP_PROGRAM;
                execute(&candidates, &argv, &mut shell_argv, &envp)
            } else {
                *libc::__errno_location()
            };
            if let Some(words) = &self.words {
                words.store(number, (step << 32) | u64::from(error.cast_unsigned()));
            }
            libc::_exit(127)
        }
    }

    /// What went wrong in the start of a process that has ended, if anything.
    pub fn fault(&self, number: usize) -> Option<Fault> {
        let word = self.words.as_ref()?.load(number);
        let errno = (word as u32).cast_signed();
        match word >> 32 {
            0 => None,
            STEP_DIRECTORY => Some(Fault::Directory(errno)),
            STEP_PROGRAM => Some(Fault::Program(errno)),
            step @ STEP_FILE.. => {
                let at = (step - STEP_FILE) as usize;
                Some(Fault::File(at % 4, at / 4, errno))
            }
            _ => Some(Fault::Setup(errno)),
        }
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// SAFETY: runs in the child of [`Spawner::spawn`] only.
unsafe fn prepare(launch: &Launch<'_>, parent: u32) -> u64 {
    // SAFETY: plain system calls on values that the parent prepared.
    unsafe {
        if launch.die_with_parent {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            if libc::getppid().cast_unsigned() != parent {
                libc::_exit(127);
            }
        }
        if libc::setsid() < 0 {
            return STEP_SETUP;
        }
        if let Some(set) = launch.processor {
            // One that is taken from the host meanwhile is no reason not to run.
            libc::sched_setaffinity(0, size_of::<CpuSet>(), ptr::from_ref(set).cast());
        }
        // What comes now may take long; all dispositions are default, so that a signal ends it.
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        for (number, source) in (0_i32..).zip(&launch.descriptors) {
            let from = match source {
                Source::Here(from) => from.as_raw_fd(),
                Source::File(opening) => match open_first(opening) {
                    Ok(from) => from,
                    Err(at) => return STEP_FILE + 4 * at + u64::from(number.cast_unsigned()),
                },
            };
            // They are above the numbers they get (`descriptor::reserve_low`), so none is its own
            // target and none is overwritten before its turn.
            if from <= CONTROL_NUMBER || libc::dup2(from, number) < 0 {
                return STEP_SETUP;
            }
        }
        if libc::setrlimit(libc::RLIMIT_NOFILE, &launch.descriptor_limit) < 0 {
            return STEP_SETUP;
        }
        if libc::chdir(launch.directory.as_ptr()) < 0 {
            return STEP_DIRECTORY;
        }
        0
    }
}

/// Opens the first path that is there; else the number of the one that counts, errno being set.
///
/// SAFETY: as [`prepare`].
unsafe fn open_first(opening: &Opening) -> Result<i32, u64> {
    let mut last = 0;
    for (at, path) in (0..).zip(&opening.paths) {
        // SAFETY: system calls on a C string and on what they have returned.
        unsafe {
            let file = libc::open(path.as_ptr(), opening.flags | libc::O_CLOEXEC, 0o666);
            if file >= 0 {
                let flags = libc::fcntl(file, libc::F_GETFL);
                if libc::fcntl(file, libc::F_SETFL, flags & !libc::O_NONBLOCK) == 0 {
                    return Ok(file);
                }
            }
            last = at;
            if *libc::__errno_location() != libc::ENOENT {
                break;
            }
        }
    }
    Err(last)
}

/// Tries the candidates as execvp(3) does; returns the errno that tells most.
///
/// SAFETY: as [`prepare`]; every list ends with a null pointer, the rest are C strings.
unsafe fn execute(
    candidates: &[*const c_char],
    argv: &[*const c_char],
    shell_argv: &mut [*const c_char],
    envp: &[*const c_char],
) -> i32 {
    let mut verdict = libc::ENOENT;
    for candidate in &candidates[..candidates.len() - 1] {
        // SAFETY: see above.
        let error = unsafe {
            libc::execve(*candidate, argv.as_ptr(), envp.as_ptr());
            let error = *libc::__errno_location();
            if error == libc::ENOEXEC {
                // A script without `#!`: a shell would run it as its own.
                shell_argv[1] = *candidate;
                libc::execve(c"/bin/sh".as_ptr(), shell_argv.as_ptr(), envp.as_ptr());
            }
            error
        };
        match error {
            libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ESTALE | libc::ETIMEDOUT => {}
            libc::EACCES => verdict = libc::EACCES,
            other => return other,
        }
    }
    verdict
}
