//! The ends of a process.

// UNSAFETY: atexit and the exits that run no handlers are C functions.
#![expect(unsafe_code)]

use crate::session;

/// Ends the process without exit handlers or flushing.
pub(crate) fn at_once(code: i32) -> ! {
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
/// child nothing is ours to detach.
pub(crate) extern "C" fn detach() {
    let Some(session) = session::own() else { return };
    for set in 0..crate::globals::num_pmnet() {
        let Some(composite) = crate::globals::context(set) else { continue };
        for node in 0..crate::num_node() {
            // While another thread uses the composite its ways stay.
            let _ = composite.remove_node(u32::try_from(node).unwrap_or(u32::MAX));
        }
    }
    for member in &session.members {
        // A buffer may be held: then the shepherd marks the end.
        let _ = member.detach();
    }
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
pub(crate) fn say_at_last(signal: i32) {
    use std::io::Write;
    let mut room = [0; 160];
    let mut text = &mut room[..];
    let said = writeln!(
        text,
        "score: the process calls for a debugger because of signal {signal}; run it under gdb"
    );
    let left = text.len();
    if said.is_ok() {
        let _ = nix::unistd::write(std::io::stderr(), &room[..160 - left]);
    }
}
