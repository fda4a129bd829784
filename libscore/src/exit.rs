//! The ends of a process.

// UNSAFETY: atexit and the exits that run no handlers are C functions.
#![expect(unsafe_code)]

use crate::session;

/// Ends the process without exit handlers or flushing.
pub(crate) fn exit_immediately(code: i32) -> ! {
    // SAFETY: no memory is involved.
    unsafe { libc::_exit(code) }
}

/// Has `handler` called at exit(3).
pub(crate) fn register(handler: extern "C" fn()) {
    // SAFETY: the handler lives as long as the program. It fails for want of memory only; then
    // the shepherd does what the handler would have done.
    let _ = unsafe { libc::atexit(handler) };
}

/// Detaches from PM, so that peers need not wait for the shepherd to notice the end. In a forked
/// child nothing is ours to detach, and while other threads run, contexts cannot be taken from
/// under them: then the shepherd does it.
pub(crate) extern "C" fn detach() {
    let Some(session) = session::of_this_process() else { return };
    if !is_single_threaded() {
        return;
    }
    for network in &session.networks {
        // A buffer may be held: then, too, the shepherd does it.
        let _ = network.composite.close(network.device);
        for member in &network.members {
            let _ = member.detach();
        }
    }
}

/// Whether no thread runs beside this one but PM's own, which calls no function of PM.
fn is_single_threaded() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return false };
    let is_pm_thread = |thread: &std::fs::DirEntry| {
        std::fs::read(thread.path().join("comm")).is_ok_and(|name| name == b"score-pm\n")
    };
    threads.flatten().filter(|thread| !is_pm_thread(thread)).take(2).count() == 1
}

/// Sends the process itself a signal.
///
/// # Errors
/// As kill(2).
pub(crate) fn signal_self(signal: i32) -> nix::Result<()> {
    // Not nix's kill, which knows no real-time signals.
    // SAFETY: no memory is involved.
    nix::errno::Errno::result(unsafe { libc::kill(libc::getpid(), signal) }).map(drop)
}

/// Tells the user of a program without scrun that it wanted to be inspected. Touches no heap.
pub(crate) fn print_final_message(signal: i32) {
    use std::io::Write;
    let mut buffer = [0; 160];
    let mut text = &mut buffer[..];
    let result = writeln!(
        text,
        "score: the process calls for a debugger because of signal {signal}; run it under gdb"
    );
    let left = text.len();
    if result.is_ok() {
        let _ = nix::unistd::write(std::io::stderr(), &buffer[..160 - left]);
    }
}
