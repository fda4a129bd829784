//! Signals by number and name, as Linux numbers them on the processors that scored runs on.

/// The terminal is closed. A job master also sends SIGHUP to deadlocked processes.
pub const SIGHUP: i32 = 1;
/// Kills a process, which cannot catch it.
pub const SIGKILL: i32 = 9;
/// The reader of a pipe or socket has closed it.
pub const SIGPIPE: i32 = 13;
/// The limit of processor time is exceeded.
pub const SIGXCPU: i32 = 24;
/// The limit of file sizes is exceeded.
pub const SIGXFSZ: i32 = 25;

/// The names of signals 1 to 31.
const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// The name of a signal, for a message.
pub fn name(signal: i32) -> String {
    let index = usize::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
    match index.and_then(|index| NAMES.get(index)) {
        Some(name) => (*name).to_owned(),
        None => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn signal_names_and_numbers_are_those_of_the_system() {
        for signal in -1..=70 {
            let expected = match Signal::try_from(signal) {
                Ok(known) => known.as_str().to_owned(),
                Err(_) => format!("signal {signal}"),
            };
            assert_eq!(name(signal), expected);
        }
        let numbers = [SIGHUP, SIGKILL, SIGPIPE, SIGXCPU, SIGXFSZ];
        let names = ["SIGHUP", "SIGKILL", "SIGPIPE", "SIGXCPU", "SIGXFSZ"];
        assert_eq!(numbers.map(name), names);
    }
}
