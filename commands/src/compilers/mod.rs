//! scorecc and its kin: the C, C++ and Fortran compilers with what an SCore program needs.
//!
//! [`list`] knows the backend compilers and [`listing`] prints them, [`line`] reads a command line,
//! [`place`] finds our headers and libraries, and [`main`] puts them together. Manual: scorecc(1),
//! score_compiler_list(8).

mod line;
pub mod list;
pub mod listing;
mod place;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use thiserror::Error;

use line::{Help, Line};
use list::{Compilers, ListError};
use place::{Place, PlaceError};

/// Exit code for a command line that cannot be understood.
const USAGE: u8 = 2;

/// Why nothing was compiled.
#[derive(Debug, Error)]
pub enum Error {
    /// An option of ours is wrong.
    #[error("{0}")]
    Usage(String),
    /// The compiler list.
    #[error(transparent)]
    List(#[from] ListError),
    /// Headers or libraries are not there.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// The wrapper named `script`: builds the compiler's command line and becomes the compiler.
pub fn main(script: &'static str) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let line = match Line::parse(words) {
        Ok(line) => line,
        Err(Help::Wanted) => {
            print!("{}", line::usage(script));
            return ExitCode::SUCCESS;
        }
        Err(Help::Wrong(why)) => {
            eprintln!("{script}: {why}");
            return ExitCode::from(USAGE);
        }
    };
    match command(script, &line) {
        Ok(command) => run(script, &line, command),
        Err(why) => {
            eprintln!("{script}: {why}");
            ExitCode::from(USAGE)
        }
    }
}

/// The compiler and all its arguments.
fn command(script: &str, line: &Line) -> Result<Vec<OsString>, Error> {
    let place = Place::find()?;
    let compilers = Compilers::load(place.site_file())?;
    let mut command =
        vec![compiler_path(script, line, &compilers, |name| std::env::var(name).ok())?];
    command.extend(line.passed_on.iter().cloned());
    command.push(joined("-I", &place.include()?));
    if line.links() {
        command.extend(libraries(line, &place)?);
    }
    Ok(command)
}

/// Which compiler to run: `-compiler-path`, else `SCORE_COMPILERS`, else the path of the compiler
/// that `-compiler`, else `SCORE_BUILD_COMPILERS` names, else the script's default.
fn compiler_path(
    script: &str,
    line: &Line,
    compilers: &Compilers,
    env: impl Fn(&str) -> Option<String>,
) -> Result<OsString, Error> {
    let script = line.script.as_deref().unwrap_or(script);
    if let Some(path) = &line.compiler_path {
        return Ok(path.clone());
    }
    let from_env = |name| env(name).and_then(|value| list::choose(&value, script));
    if let Some(path) = from_env("SCORE_COMPILERS") {
        return Ok(path.into());
    }
    let chosen = match &line.compiler {
        Some(name) => compilers.path(script, name, "-compiler")?,
        None => match from_env("SCORE_BUILD_COMPILERS") {
            Some(name) => compilers.path(script, &name, "SCORE_BUILD_COMPILERS")?,
            None => compilers.default_path(script)?,
        },
    };
    Ok(chosen.into())
}

/// What the linker needs. Static: one archive, which contains PM, while libc stays dynamic, and the
/// libraries that Rust's runtime uses. Dynamic: the shared objects, found by an rpath.
fn libraries(line: &Line, place: &Place) -> Result<Vec<OsString>, Error> {
    if line.nostatic {
        let folder = place.lib(&["libscore.so", "libpm.so"])?;
        let rpath = joined("-Wl,-rpath,", folder);
        return Ok(vec![joined("-L", folder), rpath, "-lscore".into(), "-lpm".into()]);
    }
    let mut words = vec![joined("-L", place.lib(&["libscore.a"])?)];
    let system = ["-l:libscore.a", "-lpthread", "-lm", "-ldl", "-lrt", "-lutil"];
    words.extend(system.map(OsString::from));
    Ok(words)
}

fn joined(option: &str, path: &std::path::Path) -> OsString {
    let mut word = OsString::from(option);
    word.push(path);
    word
}

/// Says what there is to say and becomes the compiler; returns only if that cannot be run.
fn run(script: &str, line: &Line, command: Vec<OsString>) -> ExitCode {
    if let Some(option) = &line.nockpt {
        eprintln!("{script}: note: {option} has no effect yet: programs are not checkpointed");
    }
    if line.show {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        eprintln!("{}", words.join(" "));
    }
    let (compiler, arguments) = command.split_first().expect("the compiler comes first");
    let error = Command::new(compiler).args(arguments).exec();
    let compiler = compiler.to_string_lossy();
    eprintln!(
        "{script}: cannot run the compiler {compiler}: {error}; \
         `score_compiler_list -script {script} -check` tells what is there"
    );
    // As a shell: 127 not found, 126 not executable.
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(words: &[&str], env: &[(&str, &str)]) -> Result<OsString, Error> {
        let line = Line::parse(words.iter().map(OsString::from).collect()).ok().unwrap();
        let env = |name: &str| env.iter().find(|e| e.0 == name).map(|e| e.1.to_string());
        compiler_path("scorecc", &line, &Compilers::built_in(|_| true), env)
    }

    #[test]
    fn the_default_is_the_first_of_the_list() {
        assert_eq!(chosen(&["x.c"], &[]).unwrap(), "gcc");
        assert_eq!(chosen(&["-script", "scorec++"], &[]).unwrap(), "g++");
    }

    #[test]
    fn options_come_before_the_environment() {
        let both = [("SCORE_BUILD_COMPILERS", "clang"), ("SCORE_COMPILERS", "scoreld=/bin/x")];
        assert_eq!(chosen(&[], &both).unwrap(), "clang");
        assert_eq!(chosen(&["-compiler", "intel"], &both).unwrap(), "icx");
        let path = [("SCORE_BUILD_COMPILERS", "clang"), ("SCORE_COMPILERS", "/bin/x")];
        assert_eq!(chosen(&[], &path).unwrap(), "/bin/x");
        assert_eq!(chosen(&["-compiler-path=/bin/y"], &path).unwrap(), "/bin/y");
    }

    #[test]
    fn an_unknown_compiler_is_named_with_where_it_was_said() {
        let error = chosen(&["-compiler=tendra"], &[]).unwrap_err().to_string();
        assert!(error.contains("tendra") && error.contains("-compiler"), "{error}");
        let env = [("SCORE_BUILD_COMPILERS", "scorecc=tendra")];
        let error = chosen(&[], &env).unwrap_err().to_string();
        assert!(error.contains("SCORE_BUILD_COMPILERS"), "{error}");
    }
}
