//! Exit codes: of a node, of a parallel process, of a pipeline (docs/user/running-jobs.md, "Exit
//! codes").

use score_proto::job_control::Status;

/// The exit code that a shell would report for a process.
pub fn of_status(status: Status) -> u8 {
    match status {
        Status::Exited(code) => code,
        Status::Signaled(signal) => of_signal(signal),
    }
}

/// 128 + signal. Returns 1 if `signal` is not a signal number.
pub fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).ok().filter(|signal| *signal < 128).map_or(1, |signal| 128 + signal)
}

/// The values that determine the exit code of a parallel process, as far as known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExitCodeSources {
    /// The value of the first call of sc_exit.
    pub exit: Option<u8>,
    /// The first failure that ended the parallel process: 126, 127, 128 + signal, or another code.
    pub failure: Option<u8>,
    /// Exit code of node 0.
    pub node0: u8,
}

impl ExitCodeSources {
    /// The code of the parallel process.
    pub fn code(&self) -> u8 {
        self.exit.or(self.failure).unwrap_or(self.node0)
    }
}

/// The code of a pipeline: the code of its rightmost parallel process that failed, or 0 if none
/// failed.
pub fn of_pipeline(elements: impl DoubleEndedIterator<Item = u8>) -> u8 {
    elements.rev().find(|code| *code != 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_parallel_process_follows_the_documented_order() {
        // sc_exit, failure, node 0 -> code
        for (exit, failure, node0, code) in [
            (None, None, 0, 0),
            (None, None, 3, 3),
            (None, Some(139), 3, 139),
            (None, Some(127), 0, 127),
            (Some(0), Some(139), 3, 0),
            (Some(5), None, 3, 5),
        ] {
            assert_eq!(ExitCodeSources { exit, failure, node0 }.code(), code);
        }
    }

    #[test]
    fn the_rightmost_failure_sets_the_exit_code_of_the_pipeline() {
        for (codes, code) in
            [(vec![0, 0], 0), (vec![3, 0], 3), (vec![3, 4], 4), (vec![3, 4, 0], 4), (vec![7], 7)]
        {
            assert_eq!(of_pipeline(codes.into_iter()), code);
        }
    }

    #[test]
    fn a_signal_gives_exit_code_128_plus_its_number() {
        assert_eq!(of_status(Status::Signaled(11)), 139);
        assert_eq!(of_status(Status::Exited(11)), 11);
    }
}
