//! `scorec++`: the C++ compiler for SCore programs (manual, scorecc(1)). Cargo does not allow `+`
//! in a name. Therefore build.rs and the installer make a link with the right name in the directory
//! of this program.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    score_commands::compilers::main("scorec++")
}
