//! The other processes of a test. A test starts this program again with a role. In that process
//! only the test `role` of the module runs, which has the code of the module's roles.

use crate::testbed::{Process, send_surely};
use score_pm::Context;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const ROLE_ENV: &str = "PM_TEST_ROLE";
const FD_ENV: &str = "PM_TEST_FD";

/// Returns the command that runs this program with a role of a module. `module` is the
/// `module_path!()` of the module.
pub fn command(module: &str, role: &str) -> Command {
    let (_program, module) = module.split_once("::").expect("a module of the program");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("{module}::role"), "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE_ENV, role).stdout(Stdio::null());
    command
}

/// Starts this program with a role of a module. The process inherits the descriptor.
pub fn start(module: &str, role: &str, fd: &OwnedFd) -> Process {
    let mut command = command(module, role);
    pass_on(&mut command, fd.as_raw_fd());
    Process(command.env(FD_ENV, fd.as_raw_fd().to_string()).spawn().unwrap())
}

/// Lets only the process of this command inherit a descriptor, which must stay open until the
/// process has been started. -1: none. Other tests start processes at the same time.
pub fn pass_on(command: &mut Command, fd: RawFd) {
    // SAFETY: between fork and exec, the closure only makes a system call.
    unsafe {
        command.pre_exec(move || {
            libc::fcntl(fd, libc::F_SETFD, 0);
            Ok(())
        })
    };
}

/// Returns the role of this process, or None if no test has started it with a role.
pub fn role() -> Option<String> {
    std::env::var(ROLE_ENV).ok()
}

/// Returns the descriptor that [`start`] has passed on. A process calls this once.
pub fn inherited_fd() -> OwnedFd {
    let fd = std::env::var(FD_ENV).unwrap().parse().unwrap();
    // SAFETY: the process inherits the descriptor for this purpose, and nothing else uses it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Sends every message back to node 0, until one is `end`.
pub fn echo(end: &Context, receive: impl Fn(&Context) -> Vec<u8>) {
    loop {
        let message = receive(end);
        send_surely(end, 0, &message);
        if message == b"end" {
            return;
        }
    }
}
