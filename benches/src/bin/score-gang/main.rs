//! Measures two jobs on the same two processors: how much of the throughput is kept, and the share
//! of each job. `cargo xtask bench gang` runs it; by hand:
//!
//! ```text
//! score-gang kept SLICE [ROUNDS SECONDS [PERCENT]]
//!                                          throughput of two jobs together, divided by that of
//!                                          one alone, with slices of SLICE ms; `plain`: under
//!                                          plain Linux; `bare-N`: N ms by signals alone, the floor
//! score-gang shares SLICE SECONDS P...     the share of each of several jobs with these priorities
//! score-gang switches SLICE SECONDS [1]    switch time from one job to the next, and its skew
//!                                          between two hosts; with 1, between two processes on
//!                                          one host
//! score-gang deadlock SLICE ROUNDS [alone] time to find a deadlock while another job runs
//! score-gang turns FILE | gaps FILE | hang FILE
//!                                          the jobs themselves: the file gets progress or times
//! score-gang switch SLICE PID...           the process that sends the signals of `bare-N`
//! ```
//! `kept` measures in the order together, alone, alone, together, so that changes of the machine's
//! speed cancel out. It measures at least ROUNDS (20) times, and continues until the 95 % interval
//! of the median is within half a percent or SECONDS (150) are over. It prints a line for each
//! round, then `interval` and its ends. If other processes used more than PERCENT (3) of the
//! processors in a window, the window is measured again. The number of such windows is printed.
//!
//! For slices, score-gang starts a scored in multi-user mode, which needs root. The processors are
//! the first two that this process may use.
#![forbid(unsafe_code)]

// Links PM itself, because the runtime only declares its functions.
extern crate pm as _;

mod clock;
mod deadlock_job;
mod interference;
mod ping_pong;
mod run_gaps;
mod shares;
mod signal_switcher;
mod testbed;
mod throughput;

use std::process::ExitCode;

type BenchResult<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match &words[..] {
        ["turns", file] => ping_pong::run(file),
        ["gaps", file] => run_gaps::record(file),
        ["hang", file] => deadlock_job::wait(file),
        ["switch", slice, process_ids @ ..] if process_ids.len() > 1 => {
            signal_switcher::run_switcher(slice, process_ids)
        }
        ["deadlock", slice, rounds] => {
            number(rounds).and_then(|rounds| deadlock_job::run(slice, rounds, false))
        }
        ["deadlock", slice, rounds, "alone"] => {
            number(rounds).and_then(|rounds| deadlock_job::run(slice, rounds, true))
        }
        ["switches", slice, seconds] => {
            number(seconds).and_then(|seconds| run_gaps::run(slice, seconds, 2))
        }
        ["switches", slice, seconds, "1"] => {
            number(seconds).and_then(|seconds| run_gaps::run(slice, seconds, 1))
        }
        ["kept", slice] => throughput::run(slice, 20, 150, 3),
        ["kept", slice, rounds, seconds] => {
            number(rounds).and_then(|rounds| throughput::run(slice, rounds, number(seconds)?, 3))
        }
        ["kept", slice, rounds, seconds, max_others_percent] => {
            let numbers = [rounds, seconds, max_others_percent].map(|word| number(word));
            numbers
                .into_iter()
                .collect::<BenchResult<Vec<_>>>()
                .and_then(|numbers| throughput::run(slice, numbers[0], numbers[1], numbers[2]))
        }
        ["shares", slice, seconds, priorities @ ..] if priorities.len() > 1 => {
            number(seconds).and_then(|seconds| shares::run(slice, seconds, priorities))
        }
        _ => Err(
            "kept SLICE [ROUNDS SECONDS] | shares SLICE SECONDS P... | switches SLICE SECONDS [1] \
             | deadlock SLICE ROUNDS [alone]"
                .to_owned(),
        ),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("score-gang: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn number(word: &str) -> BenchResult<u32> {
    word.parse().ok().filter(|number| *number > 0).ok_or_else(|| format!("{word}: not a number"))
}
