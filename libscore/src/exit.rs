//! The end of a process: exits, exit handlers, and signals to itself.

// UNSAFETY: atexit and the exits that run no handlers are C functions.
#![expect(unsafe_code)]

use crate::session;

/// Ends the process without exit handlers or flushing.
pub(crate) fn exit_immediately(code: i32) -> ! {
    // SAFETY: no memory is involved.
    unsafe { libc::_exit(code) }
}

/// Registers `handler` to be called at exit(3).
pub(crate) fn register(handler: extern "C" fn()) {
    // SAFETY: the handler exists as long as the program. Registration fails only if memory is
    // exhausted; then the shepherd does the handler's work.
    let _ = unsafe { libc::atexit(handler) };
}

/// Detaches from PM, so that peers need not wait until the shepherd notices the end. A forked child
/// has nothing to detach. While other threads run, contexts cannot be closed; the shepherd closes
/// them later.
pub(crate) extern "C" fn detach() {
    let Some(session) = session::of_this_process() else { return };
    if !is_single_threaded() {
        return;
    }
    for network in &session.networks {
        // If a buffer is held, this fails, and the shepherd closes the context later.
        let _ = network.composite.close(network.device);
        for member in &network.members {
            let _ = member.detach();
        }
    }
}

/// The names of PM's own threads. They call no function of PM.
const PM_THREADS: [&[u8]; 2] = [b"score-pm\n", b"score-pin\n"];

/// Whether only this thread and PM's own threads run.
fn is_single_threaded() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return false };
    let is_pm_thread = |thread: &std::fs::DirEntry| {
        std::fs::read(thread.path().join("comm")).is_ok_and(|name| PM_THREADS.contains(&&name[..]))
    };
    threads.flatten().filter(|thread| !is_pm_thread(thread)).take(2).count() == 1
}

/// Sends a signal to the calling process.
///
/// # Errors
/// As of kill(2).
pub(crate) fn signal_self(signal: i32) -> nix::Result<()> {
    // nix's kill does not support real-time signals. SAFETY: no memory is involved.
    nix::errno::Errno::result(unsafe { libc::kill(libc::getpid(), signal) }).map(drop)
}

/// Informs the user of a program without scrun that the program called sc_inspectme. Uses no heap.
pub(crate) fn print_final_message(signal: i32) {
    use std::io::Write;
    let mut buffer = [0; 160];
    let mut text = &mut buffer[..];
    let result = writeln!(
        text,
        "score: the process requests a debugger because of signal {signal}; run it under gdb"
    );
    let left = text.len();
    if result.is_ok() {
        let _ = nix::unistd::write(std::io::stderr(), &buffer[..160 - left]);
    }
}
