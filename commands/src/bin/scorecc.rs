//! `scorecc`: the C compiler for SCore programs (manual, scorecc(1)).
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    score_commands::compilers::main("scorecc")
}
