//! A SCore program for `cargo xtask bench`. Each node prints when it passed the start barrier, in
//! nanoseconds of the clock of the process start times in /proc. The job runs until its standard
//! input ends.
#![forbid(unsafe_code)]

// Links PM itself, because the runtime only declares its functions.
extern crate pm as _;

use std::io::{self, Write};
use std::process::ExitCode;

use nix::time::{ClockId, clock_gettime};
use score_runtime::sc;

fn main() -> ExitCode {
    score_runtime::initialize();
    match report_start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("score-arrive: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report_start() -> io::Result<()> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    let mut output = io::stdout();
    writeln!(output, "{}{:09}", now.tv_sec(), now.tv_nsec())?;
    output.flush()?;
    if score_runtime::self_node() == 0 {
        io::copy(&mut io::stdin(), &mut io::sink())?;
    }
    sc::barrier()
}
