//! `pmtest`: measures PM (pmtest(1)).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use score_commands::pmtest::{self, USAGE, options::Options};
use score_commands::station::{Place, under_scrun};

fn main() -> ExitCode {
    let options = Options::parse(std::env::args_os().skip(1));
    if !under_scrun() {
        return match options {
            Ok(options) if options.help => {
                print!("{USAGE}");
                ExitCode::SUCCESS
            }
            Ok(Options { alone: Some(count), rma, .. }) => {
                let done = if rma { pmtest::puts_alone(count) } else { pmtest::alone(count) };
                done.map_or_else(|refusal| complain(&refusal), |()| 0.into())
            }
            Err(error) => complain(&(error.to_string(), 2)),
            Ok(_) => complain(&("must be invoked by scrun: scrun -nodes=2 pmtest".into(), 2)),
        };
    }
    score_runtime::initialize();
    let place = Place::here();
    // All nodes see the same words; one speaks for all, and its code is the command's.
    let first = place.node == 0;
    let done = match options {
        Ok(options) if options.help => Ok(USAGE.to_owned()),
        Ok(Options { alone: Some(_), .. }) => Err(("-alone works without scrun".to_owned(), 2)),
        Ok(options) => pmtest::run(place, &options),
        Err(error) => Err((error.to_string(), 2)),
    };
    match done {
        Ok(text) if first => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::SUCCESS,
        Err((reason, 2)) if first => complain(&(reason, 2)),
        Err((_, 2)) => ExitCode::SUCCESS,
        Err((reason, code)) => {
            eprintln!("pmtest: node {}: {reason}", place.node);
            score_runtime::sc::exit(code.into())
        }
    }
}

fn complain((reason, code): &pmtest::Refusal) -> ExitCode {
    eprintln!("pmtest: {reason}");
    ExitCode::from(*code)
}
