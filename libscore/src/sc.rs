//! The SCore-D system calls (manual, table 1.4). In local execution (1.4.4) they act on the process
//! itself. In a process that a node has forked, calls on behalf of the node return EPERM.

use std::ffi::CStr;
use std::io;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use score_proto::carea::WaitingFor;
use score_proto::message::{self, Call};

use crate::session::{Caller, Session, caller};
use crate::sync::{AtomicU32, Ordering};
use crate::{exit as end, idle, session, stdio};

pub use crate::temporary::{
    create as create_temporary_file, open_existing as open_temporary_file,
    remove as unlink_temporary_file,
};

/// The largest signal number of Linux (SIGRTMAX).
const LAST_SIGNAL: i32 = 64;

/// Waits until all nodes have called this function.
///
/// # Errors
/// EBUSY: another thread of this node is in the barrier; EINTR: the process was restarted from a
/// checkpoint; EPERM: the process is not a node.
pub fn barrier() -> io::Result<()> {
    match node_session()? {
        Some(session) => {
            session.area.count_barrier_call();
            let result = idle::while_idle(WaitingFor::Barrier, || {
                session.control.call(|id| Call::Barrier { id })
            });
            session.area.count_barrier_return();
            result
        }
        None => Ok(()),
    }
}

/// Waits until scrun has written everything that this process has printed so far.
///
/// # Errors
/// EINTR: the process was restarted from a checkpoint; EPERM: the process is not a node.
pub fn flush() -> io::Result<()> {
    let node = node_session()?;
    stdio::flush();
    match node {
        Some(session) => {
            idle::while_busy(WaitingFor::Flush, || session.control.call(|id| Call::Flush { id }))
        }
        None => Ok(()),
    }
}

/// Sends a signal to every process of the parallel process, including this one.
///
/// # Errors
/// EINVAL: `signal` is not a signal, or is SIGSTOP, SIGCONT or SIGKILL; EPERM: the process is not a
/// node.
pub fn signal_broadcast(signal: i32) -> io::Result<()> {
    let reserved = [Signal::SIGSTOP, Signal::SIGCONT, Signal::SIGKILL].map(|s| s as i32);
    if !(0..=LAST_SIGNAL).contains(&signal) || reserved.contains(&signal) {
        return Err(Errno::EINVAL.into());
    }
    match node_session()? {
        Some(session) => idle::while_busy(WaitingFor::Nothing, || {
            session.control.call(|id| Call::SignalBroadcast { id, signal })
        }),
        None => Ok(end::signal_self(signal)?),
    }
}

/// Sleeps, and lets the whole job sleep for the same time, in which other jobs run on its
/// processors.
///
/// # Errors
/// EPERM: the process is not a node.
pub fn sleep(seconds: u32) -> io::Result<()> {
    let node = node_session()?;
    let clock = ClockId::CLOCK_MONOTONIC;
    let end = clock_gettime(clock)? + TimeSpec::new(seconds.into(), 0);
    let wait = || {
        // Signals, and the stop of the whole job, interrupt the call but not the sleep.
        let flags = ClockNanosleepFlags::TIMER_ABSTIME;
        while clock_nanosleep(clock, flags, &end) == Err(Errno::EINTR) {}
    };
    match node {
        Some(session) if seconds > 0 => {
            session.control.send_call(&Call::Sleep { seconds });
            idle::while_busy(WaitingFor::Sleep, wait);
        }
        _ => wait(),
    }
    Ok(())
}

/// Gives up the rest of the job's slice; the job continues in its next slice.
///
/// # Errors
/// EPERM: the process is not a node.
pub fn yield_slice() -> io::Result<()> {
    if let Some(session) = node_session()? {
        session.control.send_call(&Call::Yield);
    }
    std::thread::yield_now();
    Ok(())
}

/// Ends the parallel process with exit code `code`. Output that this process has printed is kept.
/// Its exit handlers do not run, because SCore-D also ends the processes of other nodes without
/// their exit handlers. Without a parallel process this is exit(3).
pub fn exit(code: i32) -> ! {
    match caller() {
        Caller::Node(session) => {
            stdio::try_flush();
            let mut buffer = [0; 16];
            if let Ok(bytes) = message::encode_exit(code, &mut buffer) {
                session.control.send(bytes);
            }
            end::exit_immediately(code)
        }
        Caller::Child | Caller::Local => std::process::exit(code),
    }
}

/// The job's number, as scrun prints it; 0 without scrun.
pub fn job() -> i32 {
    session::get().map_or(0, |session| session.job)
}

/// Sets user monitor 0 or, if `second` is true, user monitor 1 (manual 3.5.3).
pub fn set_monitor(second: bool, value: u8) {
    if let Some(session) = session::of_this_process() {
        session.area.set_monitor(second, value);
    }
}

/// Requests that a debugger inspect this process, because of `signal` if `signal` is not 0, and
/// ends the parallel process (manual 2.4.4). `display` is the X display. If it is `None`,
/// scrun uses its own display. A signal handler may call this function.
pub fn inspect_me(display: Option<&CStr>, signal: i32) -> ! {
    if let Caller::Node(session) = caller() {
        stdio::try_flush();
        score_faults::permit_tracers();
        let display = display.and_then(|display| display.to_str().ok());
        let mut buffer = [0; 512];
        // A display name that is too long for a message is dropped.
        let display = display.filter(|display| display.len() <= 256);
        let thread = nix::unistd::gettid().as_raw();
        if let Ok(bytes) = message::encode_inspect(signal, display, thread, &mut buffer) {
            session.control.send(bytes);
        }
        session.control.wait_until_ended();
    }
    end::print_final_message(signal);
    end::exit_immediately(if (1..=LAST_SIGNAL).contains(&signal) { 128 + signal } else { 1 })
}

/// Begins a region in which no checkpoint is taken (manual 3.2). Regions nest.
pub fn enter_uncheckpointable() {
    let depth = uncheckpointable();
    depth.fetch_add(1, Ordering::SeqCst);
}

/// Ends the innermost region.
///
/// # Errors
/// EINVAL: there is no region.
pub fn leave_uncheckpointable() -> io::Result<()> {
    let decrement = |depth: u32| depth.checked_sub(1);
    let result = uncheckpointable().fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement);
    result.map(|_| ()).map_err(|_| Errno::EINVAL.into())
}

fn uncheckpointable() -> &'static AtomicU32 {
    /// The depth of regions if there is no C-Area.
    static LOCAL_UNCHECKPOINTABLE: AtomicU32 = AtomicU32::new(0);
    session::of_this_process()
        .map_or(&LOCAL_UNCHECKPOINTABLE, |session| session.area.uncheckpointable())
}

/// The session of a node; `None` in local execution.
fn node_session() -> io::Result<Option<&'static Session>> {
    match caller() {
        Caller::Node(session) => Ok(Some(session)),
        Caller::Local => Ok(None),
        Caller::Child => Err(Errno::EPERM.into()),
    }
}
