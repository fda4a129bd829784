//! Attaching to all threads of a process, and the reasons why this can be refused.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;

use super::error::AttachError;
use super::kernel::Kernel;
use super::process::Process;
use super::procfs::Status;
use super::{Pid, Tid, sys};

/// How often the list of threads is read again. Each round finds threads that were created by
/// threads not yet traced. The kernel attaches later threads automatically.
const MAX_ROUNDS: usize = 1000;

/// Attaches to all threads of a process, without stopping it.
pub fn attach<K: Kernel>(kernel: &mut K, pid: Pid) -> Result<Process, AttachError> {
    let mut process = Process::new(pid);
    // Threads that are exiting cannot be traced any more but remain in the list; the first thread
    // remains until its process ends.
    let mut ended: Vec<Tid> = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let threads = kernel.threads(pid);
        if threads.is_empty() {
            break;
        }
        let new: Vec<Tid> =
            threads.into_iter().filter(|tid| process.threads.get(*tid).is_none()).collect();
        if new.iter().all(|tid| ended.contains(tid)) {
            let is_empty = process.threads.is_empty();
            return if is_empty { Err(AttachError::NoProcess(pid)) } else { Ok(process) };
        }
        for tid in new {
            match kernel.seize(tid) {
                Ok(()) => process.threads.attach(tid),
                // The thread has ended, or the kernel has attached it automatically as the child of
                // another thread.
                Err(Errno::ESRCH) => {}
                Err(Errno::EPERM) if tid != pid && is_ours(tid) => process.threads.attach(tid),
                Err(Errno::EPERM) if has_ended(tid) => ended.push(tid),
                Err(errno) => {
                    give_back(kernel, &process);
                    return Err(refusal(pid, errno));
                }
            }
        }
    }
    give_back(kernel, &process);
    Err(AttachError::NoProcess(pid))
}

/// Gives up a partial attach. The kernel detaches a thread only in a stop. The handler of that stop
/// detaches it, because the thread then belongs to no traced process.
fn give_back<K: Kernel>(kernel: &mut K, process: &Process) {
    for tid in process.threads.ids() {
        // An error means that the thread has ended.
        _ = kernel.interrupt(tid);
    }
}

fn is_ours(tid: Tid) -> bool {
    let own = nix::unistd::gettid().as_raw();
    Status::read(tid).is_some_and(|status| status.number::<Pid>("TracerPid") == Some(own))
}

fn has_ended(tid: Tid) -> bool {
    Status::read(tid).and_then(|status| status.field("State").map(|it| it.starts_with(['Z', 'X'])))
        != Some(false)
}

/// The reason why the kernel has refused to trace a process or to open its memory.
pub fn refusal(pid: Pid, errno: Errno) -> AttachError {
    let Some(status) = Status::read(pid).filter(|_| errno != Errno::ESRCH) else {
        return AttachError::NoProcess(pid);
    };
    if has_ended(pid) {
        return AttachError::NoProcess(pid);
    }
    // For a thread that cannot exist the kernel returns ESRCH, unless a seccomp filter intercepts
    // the call.
    if sys::seize(Tid::MAX) != Err(Errno::ESRCH) {
        return AttachError::Seccomp(pid);
    }
    if let Some(tracer @ 1..) = status.number::<Pid>("TracerPid") {
        let name = Status::read(tracer).and_then(|it| it.field("Name").map(String::from));
        return AttachError::OtherTracer(pid, tracer, name.unwrap_or_default());
    }
    let own = Status::read(std::process::id().cast_signed());
    let own_uid = own.and_then(|own| own.number::<u32>("Uid"));
    let uid = status.number::<u32>("Uid");
    if let Some(uid) = uid
        && own_uid.is_some_and(|own| own != uid && own != 0)
    {
        return AttachError::OtherUser(pid, uid);
    }
    // The kernel makes root the owner of the /proc files of a process that is not dumpable.
    let owner = fs::metadata(format!("/proc/{pid}/mem")).map(|it| it.uid()).ok();
    if owner.is_some() && owner != uid {
        return AttachError::NotDumpable(pid);
    }
    if let Some(scope @ 1..) = yama_scope() {
        return AttachError::Yama(pid, scope);
    }
    AttachError::Refused(pid, errno)
}

fn yama_scope() -> Option<u32> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}
