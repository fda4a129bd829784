//! `scorec++`: the C++ compiler for SCore programs (manual, scorecc(1)). Cargo takes no `+` in a
//! name: build.rs puts a link of the right name beside this program, and so does the installer.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    score_commands::compilers::main("scorec++")
}
