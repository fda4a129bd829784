//! The end of a process: exits, exit handlers, and signals to itself.

// UNSAFETY: atexit and the exits that run no handlers are C functions.
#![expect(unsafe_code)]

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

/// Sends a signal to the calling process.
///
/// # Errors
/// The errors of kill(2).
pub(crate) fn signal_self(signal: i32) -> nix::Result<()> {
    // nix's kill does not support real-time signals. SAFETY: no memory is involved.
    nix::errno::Errno::result(unsafe { libc::kill(libc::getpid(), signal) }).map(drop)
}

/// Informs the user of a program without scrun that the program called sc_inspectme. Uses no heap.
pub(crate) fn print_final_message(signal: i32) {
    use std::io::Write;
    let mut buffer = [0; 160];
    let mut text = &mut buffer[..];
    let result = match signal {
        0 => writeln!(text, "score: the process requests a debugger; run it under gdb"),
        _ => writeln!(
            text,
            "score: the process requests a debugger because of signal {signal}; run it under gdb"
        ),
    };
    let left = text.len();
    if result.is_ok() {
        let _ = nix::unistd::write(std::io::stderr(), &buffer[..160 - left]);
    }
}
