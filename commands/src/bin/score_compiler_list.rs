//! `score_compiler_list`: lists the valid names for `-compiler` of scorecc and the other compiler
//! commands (manual, score_compiler_list(8)).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use score_commands::compilers::list::{Compilers, is_installed};
use score_commands::compilers::listing::{ListArgs, USAGE, load};
use score_proto::exit_code::EXIT_USAGE;

fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if args.iter().any(|word| word == "-help" || word == "--help") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let list_args = match ListArgs::parse(&args) {
        Ok(list_args) => list_args,
        Err(reason) => {
            eprint!("score_compiler_list: {reason}\n{USAGE}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let print = |compilers: Compilers| Ok(list_args.lines(&compilers, is_installed)?.concat());
    match load().and_then(print) {
        Ok(lines) => {
            print!("{lines}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("score_compiler_list: {reason}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}
