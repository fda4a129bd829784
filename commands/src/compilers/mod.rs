//! scorecc and the other wrappers: they run C, C++ and Fortran compilers with SCore's headers and
//! libraries.
//!
//! [`list`] has the backend compilers and [`listing`] prints them. [`command_line`] parses a
//! command line, [`install_paths`] finds the headers and libraries, and [`main`] runs the compiler.
//! Manual: scorecc(1), score_compiler_list(8).

mod command_line;
mod install_paths;
pub mod list;
pub mod listing;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use score_proto::exit_code::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_USAGE};
use thiserror::Error;

use command_line::{ParseStop, WrapperArgs};
use install_paths::{InstallPathError, InstallPaths};
use list::{Compilers, ListError};

/// The reason why the compiler was not run.
#[derive(Debug, Error)]
pub enum Error {
    /// An option of the wrapper is invalid.
    #[error("{0}")]
    Usage(String),
    /// An error of the compiler list.
    #[error(transparent)]
    List(#[from] ListError),
    /// Headers or libraries are missing.
    #[error(transparent)]
    InstallPaths(#[from] InstallPathError),
}

/// The wrapper named `script`: builds the command line of the compiler, and replaces itself by the
/// compiler.
pub fn main(script: &'static str) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let args = match WrapperArgs::parse(words) {
        Ok(args) => args,
        Err(ParseStop::HelpRequested) => {
            print!("{}", command_line::usage(script));
            return ExitCode::SUCCESS;
        }
        Err(ParseStop::Invalid(reason)) => {
            eprintln!("{script}: {reason}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match command(script, &args) {
        Ok(command) => run(script, &args, command),
        Err(reason) => {
            eprintln!("{script}: {reason}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// The compiler and all its arguments.
fn command(script: &str, args: &WrapperArgs) -> Result<Vec<OsString>, Error> {
    let paths = InstallPaths::find()?;
    let compilers = Compilers::load(paths.site_file())?;
    let mut command =
        vec![compiler_path(script, args, &compilers, |name| std::env::var(name).ok())?];
    command.extend(args.compiler_args.iter().cloned());
    command.push(option_with_path("-I", &paths.include()?));
    if args.will_link() {
        command.extend(libraries(args, &paths)?);
    }
    Ok(command)
}

/// Selects the compiler by the first of these that is given: `-compiler-path`, `SCORE_COMPILERS`,
/// `-compiler`, `SCORE_BUILD_COMPILERS`, the script's default.
fn compiler_path(
    script: &str,
    args: &WrapperArgs,
    compilers: &Compilers,
    env: impl Fn(&str) -> Option<String>,
) -> Result<OsString, Error> {
    let script = args.script.as_deref().unwrap_or(script);
    if let Some(path) = &args.compiler_path {
        return Ok(path.clone());
    }
    let from_env = |name| env(name).and_then(|value| list::choose(&value, script));
    if let Some(path) = from_env("SCORE_COMPILERS") {
        return Ok(path.into());
    }
    let chosen = match &args.compiler {
        Some(name) => compilers.path(script, name, "-compiler")?,
        None => match from_env("SCORE_BUILD_COMPILERS") {
            Some(name) => compilers.path(script, &name, "SCORE_BUILD_COMPILERS")?,
            None => compilers.default_path(script)?,
        },
    };
    Ok(chosen.into())
}

/// The arguments for the linker.
///
/// By default the program contains libscore and PM, from one archive. The libraries that Rust's
/// runtime uses, and libc, stay dynamic. With `-nostatic` the program uses the shared objects,
/// which the loader finds by an rpath.
fn libraries(args: &WrapperArgs, paths: &InstallPaths) -> Result<Vec<OsString>, Error> {
    if args.nostatic {
        let folder = paths.lib(&["libscore.so", "libpm.so"])?;
        let rpath = option_with_path("-Wl,-rpath,", folder);
        return Ok(vec![option_with_path("-L", folder), rpath, "-lscore".into(), "-lpm".into()]);
    }
    let mut words = vec![option_with_path("-L", paths.lib(&["libscore.a"])?)];
    let system = ["-l:libscore.a", "-lpthread", "-lm", "-ldl", "-lrt", "-lutil"];
    words.extend(system.map(OsString::from));
    Ok(words)
}

fn option_with_path(option: &str, path: &std::path::Path) -> OsString {
    let mut word = OsString::from(option);
    word.push(path);
    word
}

/// Prints notes and replaces this process by the compiler. Returns only if the compiler cannot run.
fn run(script: &str, args: &WrapperArgs, command: Vec<OsString>) -> ExitCode {
    if let Some(option) = &args.nockpt {
        eprintln!("{script}: note: {option} has no effect yet: programs are not checkpointed");
    }
    if args.show {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        eprintln!("{}", words.join(" "));
    }
    let (compiler, arguments) = command.split_first().expect("the compiler comes first");
    let error = Command::new(compiler).args(arguments).exec();
    let compiler = compiler.to_string_lossy();
    eprintln!(
        "{script}: cannot run the compiler {compiler}: {error}; \
         `score_compiler_list -script {script} -check` shows the installed compilers"
    );
    // The exit codes are those of a shell: 127 not found, 126 not executable.
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound {
        EXIT_NOT_FOUND
    } else {
        EXIT_NOT_EXECUTABLE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_compiler(words: &[&str], env: &[(&str, &str)]) -> Result<OsString, Error> {
        let args = WrapperArgs::parse(words.iter().map(OsString::from).collect()).ok().unwrap();
        let env = |name: &str| env.iter().find(|e| e.0 == name).map(|e| e.1.to_string());
        compiler_path("scorecc", &args, &Compilers::built_in(|_| true), env)
    }

    #[test]
    fn the_default_is_the_first_of_the_list() {
        assert_eq!(chosen_compiler(&["x.c"], &[]).unwrap(), "gcc");
        assert_eq!(chosen_compiler(&["-script", "scorec++"], &[]).unwrap(), "g++");
    }

    #[test]
    fn options_override_the_environment() {
        let both = [("SCORE_BUILD_COMPILERS", "clang"), ("SCORE_COMPILERS", "scoreld=/bin/x")];
        assert_eq!(chosen_compiler(&[], &both).unwrap(), "clang");
        assert_eq!(chosen_compiler(&["-compiler", "intel"], &both).unwrap(), "icx");
        let path = [("SCORE_BUILD_COMPILERS", "clang"), ("SCORE_COMPILERS", "/bin/x")];
        assert_eq!(chosen_compiler(&[], &path).unwrap(), "/bin/x");
        assert_eq!(chosen_compiler(&["-compiler-path=/bin/y"], &path).unwrap(), "/bin/y");
    }

    #[test]
    fn an_unknown_compiler_is_reported_with_its_source() {
        let error = chosen_compiler(&["-compiler=tendra"], &[]).unwrap_err().to_string();
        assert!(error.contains("tendra") && error.contains("-compiler"), "{error}");
        let env = [("SCORE_BUILD_COMPILERS", "scorecc=tendra")];
        let error = chosen_compiler(&[], &env).unwrap_err().to_string();
        assert!(error.contains("SCORE_BUILD_COMPILERS"), "{error}");
    }
}
