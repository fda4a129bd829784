//! The one place that starts a process of the user.
//!
//! The shepherd keeps itself in the state that a child shall inherit, so that little is left to do
//! per process: all its own descriptors are close-on-exec, all dispositions are default, its
//! umask is the job's, its priority and oom_score_adj are untouched.
//!
//! The child shares our memory until it calls execve (as vfork), and therefore does nothing but
//! system calls. It shares our descriptor table, too, until it has put its four descriptors in
//! place and drops the rest in one call: copying and closing hundreds of descriptors for each of
//! hundreds of processes would cost more than starting them. Our own numbers 0 to 3 serve as its
//! workbench and are put back afterwards.

// UNSAFETY: clone(2) with shared memory, and the system calls of the child.
#![expect(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::process;

/// The number under which a process finds its control socket.
pub const CONTROL_NUMBER: i32 = 3;

const STACK_BYTES: usize = 256 * 1024;

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

/// Everything that differs between the processes of a job.
#[derive(Debug)]
pub struct Launch<'a> {
    /// What to run.
    pub program: &'a Program,
    /// NAME=VALUE strings.
    pub environment: &'a [&'a CStr],
    /// Working directory.
    pub directory: &'a CStr,
    /// Descriptors 0, 1, 2 and [`CONTROL_NUMBER`] of the process; all above that number here.
    pub descriptors: [BorrowedFd<'a>; 4],
    /// RLIMIT_NOFILE of the process.
    pub descriptor_limit: libc::rlimit,
    /// Whether the kernel shall kill it when we die: where there is no PID namespace to do so.
    pub die_with_parent: bool,
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
    /// Something else in the child: errno.
    Setup(i32),
}

struct Order {
    candidates: *const *const c_char,
    argv: *const *const c_char,
    /// argv of `/bin/sh FILE args`, for a script without `#!`; its slot 1 is set by the child.
    shell_argv: *mut *const c_char,
    envp: *const *const c_char,
    directory: *const c_char,
    descriptors: [i32; 4],
    limit: libc::rlimit,
    die_with_parent: bool,
    step: u8,
    errno: i32,
}

const STEP_SETUP: u8 = 1;
const STEP_DIRECTORY: u8 = 2;
const STEP_PROGRAM: u8 = 3;

/// Starts processes; keeps the stack that their first instants run on, and our own descriptors 0
/// to 3 meanwhile.
#[derive(Debug)]
pub struct Spawner {
    stack: Vec<u128>,
    own: [OwnedFd; 4],
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

impl Spawner {
    /// A spawner. Descriptors 0 to 3 must be in use ([`super::descriptor::reserve_low`]).
    ///
    /// # Errors
    /// When they cannot be duplicated.
    pub fn new() -> io::Result<Self> {
        let copy = |number: i32| {
            // SAFETY: plain duplication of an open descriptor; the copy is owned by nobody else.
            unsafe {
                let fd = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, CONTROL_NUMBER + 1);
                if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
            }
        };
        Ok(Self { stack: vec![0; STACK_BYTES / 16], own: [copy(0)?, copy(1)?, copy(2)?, copy(3)?] })
    }

    /// Puts our own descriptors 0 to 3 back.
    fn put_back(&self) {
        for (number, own) in (0..).zip(&self.own) {
            // SAFETY: replaces what the child has put there; nobody here owns these numbers.
            unsafe { libc::dup3(own.as_raw_fd(), number, libc::O_CLOEXEC) };
        }
    }

    /// Starts one process in a session of its own and returns its process id. All signals must
    /// be blocked in the caller.
    ///
    /// # Errors
    /// See [`Fault`]; no process is left then.
    pub fn spawn(&mut self, launch: &Launch<'_>) -> Result<i32, Fault> {
        let descriptors = launch.descriptors.map(|fd| fd.as_raw_fd());
        if descriptors.iter().any(|number| *number <= CONTROL_NUMBER) {
            return Err(Fault::Setup(libc::EBADF));
        }
        let candidates = pointers(&launch.program.candidates);
        let argv = pointers(&launch.program.arguments);
        let mut shell_argv = vec![c"/bin/sh".as_ptr(), ptr::null()];
        shell_argv.extend(argv.iter().skip(1));
        if argv.len() == 1 {
            shell_argv.push(ptr::null());
        }
        let envp: Vec<*const c_char> =
            launch.environment.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        let mut order = Order {
            candidates: candidates.as_ptr(),
            argv: argv.as_ptr(),
            shell_argv: shell_argv.as_mut_ptr(),
            envp: envp.as_ptr(),
            directory: launch.directory.as_ptr(),
            descriptors,
            limit: launch.descriptor_limit,
            die_with_parent: launch.die_with_parent,
            step: 0,
            errno: 0,
        };
        let order: *mut Order = &mut order;
        // SAFETY: one past the end of the vector is the top of the stack; u128 aligns it to 16.
        let top = unsafe { self.stack.as_mut_ptr().add(self.stack.len()) }.cast::<c_void>();
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: CLONE_VFORK suspends this (only) thread until the child has called execve or
        // _exit, so everything that `order` points to outlives the child's use of it.
        let pid = unsafe { libc::clone(run_child, top, flags, order.cast::<c_void>()) };
        if pid < 0 {
            return Err(Fault::Process(errno()));
        }
        self.put_back();
        // SAFETY: the child is done with it; it wrote through the same pointer.
        let (step, errno) =
            unsafe { (ptr::read_volatile(&raw const (*order).step), (*order).errno) };
        if step == 0 {
            return Ok(pid);
        }
        process::wait_for(pid);
        Err(match step {
            STEP_DIRECTORY => Fault::Directory(errno),
            STEP_PROGRAM => Fault::Program(errno),
            _ => Fault::Setup(errno),
        })
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

extern "C" fn run_child(order: *mut c_void) -> i32 {
    // SAFETY: the parent passed a valid Order and sleeps; only async-signal-safe calls follow.
    unsafe {
        let order = &mut *order.cast::<Order>();
        order.step = prepare(order);
        if order.step == 0 {
            order.errno = execute(order);
            order.step = STEP_PROGRAM;
        } else {
            order.errno = *libc::__errno_location();
        }
        libc::_exit(127)
    }
}

/// SAFETY: runs in the child of [`Spawner::spawn`] only.
unsafe fn prepare(order: &Order) -> u8 {
    // SAFETY: plain system calls on values that the parent prepared.
    unsafe {
        if order.die_with_parent {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        }
        if libc::setsid() < 0 {
            return STEP_SETUP;
        }
        for (number, from) in (0..).zip(order.descriptors) {
            if libc::dup2(from, number) < 0 {
                return STEP_SETUP;
            }
        }
        // A table of its own with 0 to 3 only. A kernel before 5.9 copies all; execve closes them.
        let unshare = libc::CLOSE_RANGE_UNSHARE;
        if libc::syscall(libc::SYS_close_range, CONTROL_NUMBER + 1, i32::MAX, unshare) < 0
            && libc::unshare(libc::CLONE_FILES) < 0
        {
            return STEP_SETUP;
        }
        if libc::setrlimit(libc::RLIMIT_NOFILE, &order.limit) < 0 {
            return STEP_SETUP;
        }
        if libc::chdir(order.directory) < 0 {
            return STEP_DIRECTORY;
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        0
    }
}

/// Tries the candidates as execvp(3) does; returns the errno that tells most.
///
/// SAFETY: as [`prepare`].
unsafe fn execute(order: &Order) -> i32 {
    let mut verdict = libc::ENOENT;
    let mut next = order.candidates;
    // SAFETY: the list ends with a null pointer; the others are C strings.
    unsafe {
        while !(*next).is_null() {
            libc::execve(*next, order.argv, order.envp);
            let mut error = *libc::__errno_location();
            if error == libc::ENOEXEC {
                // A script without `#!`: a shell would run it as its own.
                *order.shell_argv.add(1) = *next;
                libc::execve(c"/bin/sh".as_ptr(), order.shell_argv, order.envp);
                error = libc::ENOEXEC;
            }
            match error {
                libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ESTALE | libc::ETIMEDOUT => {}
                libc::EACCES => verdict = libc::EACCES,
                other => return other,
            }
            next = next.add(1);
        }
    }
    verdict
}
