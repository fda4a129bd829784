//! `score_compiler_list`: what `-compiler` of scorecc and its kin can name (manual,
//! score_compiler_list(8)).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use score_commands::compilers::list::{Compilers, is_installed};
use score_commands::compilers::listing::{Listing, USAGE, load};

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if words.iter().any(|word| word == "-help" || word == "--help") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let listing = match Listing::parse(&words) {
        Ok(listing) => listing,
        Err(why) => {
            eprint!("score_compiler_list: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let print = |compilers: Compilers| Ok(listing.lines(&compilers, is_installed)?.concat());
    match load().and_then(print) {
        Ok(lines) => {
            print!("{lines}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("score_compiler_list: {why}");
            ExitCode::from(2)
        }
    }
}
