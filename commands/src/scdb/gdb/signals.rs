//! Converts signal numbers between Linux and the remote protocol, which uses gdb's own numbers.

use gdbstub::common::Signal;

/// gdb's numbers for the signals 1 to 31 of Linux. gdb has no number for signal 16.
const FIRST: [u8; 31] = [
    1, 2, 3, 4, 5, 6, 10, 8, 9, 30, 11, 31, 13, 14, 15, 143, 20, 19, 17, 18, 21, 22, 16, 24, 25,
    26, 27, 28, 23, 32, 12,
];
/// The numbers of real-time signals, which are in three ranges.
const REAL_TIME_32: u8 = 77;
const REAL_TIME_33: u8 = 45;
const REAL_TIME_64: u8 = 78;
/// gdb's number for an unknown signal.
const UNKNOWN: Signal = Signal(143);

/// Converts a signal of Linux for a debugger.
pub fn to_gdb(signal: u32) -> Signal {
    match signal {
        1..=31 => Signal(FIRST[signal as usize - 1]),
        32 => Signal(REAL_TIME_32),
        33..=63 => Signal(REAL_TIME_33 + (signal - 33) as u8),
        64 => Signal(REAL_TIME_64),
        _ => UNKNOWN,
    }
}

/// Converts a signal of a debugger. Returns `None` if Linux has no such signal.
pub fn from_gdb(signal: Signal) -> Option<u32> {
    (1..=64).find(|number| to_gdb(*number) == signal && signal != UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_numbers_follow_the_protocol_and_convert_back() {
        for (linux, gdb) in [
            (libc::SIGBUS, Signal::SIGBUS),
            (libc::SIGUSR1, Signal::SIGUSR1),
            (libc::SIGCHLD, Signal::SIGCHLD),
            (libc::SIGSEGV, Signal::SIGSEGV),
            (libc::SIGIO, Signal::SIGIO),
            (libc::SIGSYS, Signal::SIGSYS),
            (libc::SIGURG, Signal::SIGURG),
            (libc::SIGPWR, Signal::SIGPWR),
            (33, Signal::SIG33),
            (63, Signal::SIG63),
        ] {
            assert_eq!(to_gdb(linux.cast_unsigned()), gdb);
        }
        for signal in (1..=64).filter(|signal| *signal != 16) {
            assert_eq!(from_gdb(to_gdb(signal)), Some(signal));
        }
        assert_eq!((from_gdb(UNKNOWN), from_gdb(Signal::SIGWIND)), (None, None));
    }
}
