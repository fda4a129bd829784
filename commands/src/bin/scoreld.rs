//! `scoreld`: links SCore programs through the C compiler (manual, table 2.3).
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    score_commands::compilers::main("scoreld")
}
