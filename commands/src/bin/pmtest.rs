//! `pmtest`: measures PM (pmtest(1)).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use score_commands::pmtest::{self, USAGE, options::PmtestOptions};
use score_commands::runner::{NodeIdentity, is_under_scrun};
use score_proto::exit_code::EXIT_USAGE;

fn main() -> ExitCode {
    let options = PmtestOptions::parse(std::env::args_os().skip(1));
    if !is_under_scrun() {
        return match options {
            Ok(options) if options.help => {
                print!("{USAGE}");
                ExitCode::SUCCESS
            }
            Ok(PmtestOptions { alone: Some(count), rma, .. }) => {
                let result = if rma {
                    pmtest::bench_puts_single_node(count)
                } else {
                    pmtest::bench_single_node(count)
                };
                result.map_or_else(|error| report_error(&error), |()| 0.into())
            }
            Err(error) => report_error(&(error.to_string(), EXIT_USAGE)),
            Ok(_) => report_error(&(
                "must be invoked by scrun: scrun -nodes=2 pmtest".into(),
                EXIT_USAGE,
            )),
        };
    }
    score_runtime::initialize();
    let identity = NodeIdentity::current();
    // All nodes have the same arguments. Node 0 reports for all of them, with the exit code of the
    // command.
    let is_first = identity.node == 0;
    let result = match options {
        Ok(options) if options.help => Ok(USAGE.to_owned()),
        Ok(PmtestOptions { alone: Some(_), .. }) => {
            Err(("-alone works without scrun".to_owned(), 2))
        }
        Ok(options) => pmtest::run(identity, &options),
        Err(error) => Err((error.to_string(), EXIT_USAGE)),
    };
    match result {
        Ok(text) if is_first => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::SUCCESS,
        Err((reason, EXIT_USAGE)) if is_first => report_error(&(reason, EXIT_USAGE)),
        Err((_, 2)) => ExitCode::SUCCESS,
        Err((reason, code)) => {
            eprintln!("pmtest: node {}: {reason}", identity.node);
            score_runtime::sc::exit(code.into())
        }
    }
}

fn report_error((reason, code): &pmtest::PmtestError) -> ExitCode {
    eprintln!("pmtest: {reason}");
    ExitCode::from(*code)
}
