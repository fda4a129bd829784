//! Starts the shepherd as init of its own PID namespace. If the shepherd exits for any reason, the
//! kernel kills every process of the job, including processes that have called setsid(2).

// UNSAFETY: clone(2) without a new stack (as fork), and calls between it and execve.
#![expect(unsafe_code)]

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::mount::{MsFlags, mount};
use nix::unistd::{Gid, Uid, execv, getegid, geteuid, pipe2};
use score_proto::exit_code::EXIT_NOT_FOUND;

use score_proto::job_control::Status;

use super::process;

/// How the processes of a job are contained, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containment {
    /// PID and mount namespace, created by root.
    PidNamespace,
    /// PID and mount namespace inside a user namespace with the user's own ids.
    UserNamespace,
    /// No namespace: child subreaper, and parent-death signals on direct children.
    Subreaper,
}

impl Containment {
    /// Every containment that may work for this user, the best one first.
    pub fn candidates() -> &'static [Containment] {
        if geteuid().is_root() {
            &[Containment::PidNamespace, Containment::UserNamespace, Containment::Subreaper]
        } else {
            &[Containment::UserNamespace, Containment::Subreaper]
        }
    }

    /// Whether the containment is a namespace, with the shepherd as its init.
    pub fn is_namespace(self) -> bool {
        self != Containment::Subreaper
    }

    fn flags(self) -> libc::c_int {
        match self {
            Containment::PidNamespace => libc::CLONE_NEWPID | libc::CLONE_NEWNS,
            Containment::UserNamespace => {
                libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS
            }
            Containment::Subreaper => 0,
        }
    }
}

/// The two processes of a fork, with the ends of a pipe between them. If its setup fails, the child
/// writes the error to the pipe.
enum ForkSide {
    Parent { pid: i32, error_reader: File },
    Child { error_writer: File },
}

/// Forks with the given containment. The caller must have one thread only.
fn fork(containment: Containment, cgroup_dir: Option<&File>) -> io::Result<ForkSide> {
    let (error_reader, error_writer) = pipe2(OFlag::O_CLOEXEC)?;
    match clone_as_fork(containment.flags(), cgroup_dir)? {
        0 => Ok(ForkSide::Child { error_writer: error_writer.into() }),
        pid => Ok(ForkSide::Parent { pid, error_reader: error_reader.into() }),
    }
}

/// A flag of clone3(2) that libc does not define.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks like fork(2), with these flags, in this group of cgroup version 2. Returns 0 in the child.
fn clone_as_fork(flags: libc::c_int, cgroup_dir: Option<&File>) -> io::Result<i32> {
    let result = match cgroup_dir {
        // Some containers reject clone3.
        //
        // SAFETY: the child runs on a copy of our memory, as after fork(2). The callers have one
        // thread, so that no other thread holds a lock of the allocator, or their child exits at
        // once.
        None => unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) },
        Some(dir) => {
            // SAFETY: the struct has numbers only; zeroes request nothing.
            let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
            args.flags = u64::from(flags.cast_unsigned()) | CLONE_INTO_CGROUP;
            args.exit_signal = libc::SIGCHLD as u64;
            args.cgroup = dir.as_raw_fd() as u64;
            // SAFETY: as above; the kernel reads the struct.
            unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) }
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Checks with a child that exits at once whether a process can be started in this group.
///
/// # Errors
/// A system call failed.
pub fn try_start_in(cgroup_dir: &File) -> io::Result<()> {
    match clone_as_fork(0, Some(cgroup_dir))? {
        // SAFETY: ends the child without running the parent's exit handlers.
        0 => unsafe { libc::_exit(0) },
        pid => process::wait_for(pid).map(|_| ()).ok_or_else(io::Error::last_os_error),
    }
}

/// Waits until the child has completed its setup and closed the pipe.
fn wait_until_ready(pid: i32, mut error_reader: File) -> io::Result<i32> {
    let mut code = [0; 4];
    match error_reader.read_exact(&mut code) {
        Ok(()) => {
            process::wait_for(pid);
            Err(io::Error::from_raw_os_error(i32::from_le_bytes(code)))
        }
        // End of file. If the child has died, its socket is closed, and the caller detects that.
        Err(_) => Ok(pid),
    }
}

/// The same as [`wait_until_ready`], but returns at once if it has succeeded with this containment
/// before.
fn wait_until_proven(containment: Containment, pid: i32, error_reader: File) -> io::Result<i32> {
    if PROVEN_CONTAINMENTS.with_borrow(|proven| proven.contains(&containment)) {
        return Ok(pid);
    }
    let pid = wait_until_ready(pid, error_reader)?;
    // A child that was killed during its setup has also closed the pipe, and proves nothing.
    if !process::has_exited(pid) {
        PROVEN_CONTAINMENTS.with_borrow_mut(|proven| proven.push(containment));
    }
    Ok(pid)
}

/// Ends a child whose setup has failed.
fn exit_with_error(mut error_writer: File, error: &io::Error) -> ! {
    let code = error.raw_os_error().unwrap_or(libc::EIO);
    let _ = error_writer.write_all(&code.to_le_bytes());
    // SAFETY: ends the child without running the parent's exit handlers.
    unsafe { libc::_exit(EXIT_NOT_FOUND.into()) }
}

/// Executes this binary in a new process with `arguments` and the given containment, in a group of
/// cgroup version 2 if one is given. `inherited_fds` stay open there under the same numbers.
/// Returns the process id.
///
/// The first call for a containment returns when the process runs the new program. After one
/// success, later calls return at once. The child has the normal scheduling class, so that waiting
/// for it would mean waiting for every busy process of its processor.
///
/// The caller must have one thread only.
///
/// # Errors
/// A system call failed, and there is no new process. Closed sockets of the process show later
/// failures.
pub fn start_self(
    containment: Containment,
    arguments: &[CString],
    inherited_fds: &[&OwnedFd],
    cgroup_dir: Option<&File>,
) -> io::Result<i32> {
    let ids = (geteuid(), getegid());
    match fork(containment, cgroup_dir)? {
        ForkSide::Parent { pid, error_reader } => wait_until_proven(containment, pid, error_reader),
        ForkSide::Child { error_writer } => exit_with_error(
            error_writer,
            &become_shepherd(containment, ids, arguments, inherited_fds),
        ),
    }
}

/// Runs `work` in a fork of this process, with the given containment. The result of `work` is the
/// exit code. The fork has a copy of this process's memory and descriptors, and must close the
/// descriptors that it does not need. Returns the process id when the setup of the fork is
/// complete. If an earlier fork with this containment has succeeded, returns at once. A closed
/// socket then shows a failed setup.
///
/// The caller must have one thread only.
///
/// # Errors
/// A system call failed, and there is no new process.
pub fn start_fork(containment: Containment, work: impl FnOnce() -> i32) -> io::Result<i32> {
    let ids = (geteuid(), getegid());
    match fork(containment, None)? {
        ForkSide::Parent { pid, error_reader } => wait_until_proven(containment, pid, error_reader),
        ForkSide::Child { error_writer } => {
            if let Err(error) = setup_child_pdeathsig(containment, ids) {
                exit_with_error(error_writer, &error);
            }
            drop(error_writer);
            // A panic must not unwind into the parent's frames, because the child does not own
            // their values.
            let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
    }
}

thread_local! {
    /// The containments in which a child of this process has completed its setup.
    static PROVEN_CONTAINMENTS: RefCell<Vec<Containment>> = const { RefCell::new(Vec::new()) };
}

/// Exit code of a child that has panicked, the same as Rust's.
const PANICKED: i32 = 101;

/// Checks with a child that exits at once whether this machine allows a containment.
///
/// # Errors
/// A system call failed.
pub fn try_containment(containment: Containment) -> io::Result<()> {
    let ids = (geteuid(), getegid());
    match clone_as_fork(containment.flags(), None)? {
        0 => {
            let code = match setup_child(containment, ids) {
                Ok(()) => 0,
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            // SAFETY: as above.
            unsafe { libc::_exit(code) }
        }
        pid => match process::wait_for(pid).map(|reaped| reaped.status) {
            Some(Status::Exited(0)) => Ok(()),
            Some(Status::Exited(code)) => Err(io::Error::from_raw_os_error(code.into())),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        },
    }
}

/// Sets up new namespaces, from inside.
fn setup_child(containment: Containment, ids: (Uid, Gid)) -> io::Result<()> {
    if containment == Containment::UserNamespace {
        map_caller_ids(ids)?;
    }
    if containment.is_namespace() {
        mount_proc()?;
    }
    Ok(())
}

/// The same as [`setup_child`]. The kernel then also kills the child when its parent exits.
fn setup_child_pdeathsig(containment: Containment, ids: (Uid, Gid)) -> io::Result<()> {
    if containment.is_namespace() {
        process::die_with_parent(libc::SIGKILL);
    }
    setup_child(containment, ids)
}

/// Executes the shepherd. Returns only on failure.
fn become_shepherd(
    containment: Containment,
    ids: (Uid, Gid),
    arguments: &[CString],
    inherited_fds: &[&OwnedFd],
) -> io::Error {
    let prepare = || -> io::Result<()> {
        setup_child_pdeathsig(containment, ids)?;
        for fd in inherited_fds {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    match prepare() {
        Err(error) => error,
        Ok(()) => match execv(c"/proc/self/exe", arguments) {
            Err(error) => error.into(),
            Ok(never) => match never {},
        },
    }
}

/// Maps only the user's ids into the new user namespace, unchanged. `uid` and `gid` are the ids
/// outside of the namespace. Inside, they cannot be queried before the map is written.
fn map_caller_ids((uid, gid): (Uid, Gid)) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    Ok(())
}

fn mount_proc() -> io::Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none)?;
    Ok(())
}
