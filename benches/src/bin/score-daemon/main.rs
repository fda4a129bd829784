//! Measures how far one hostile user of a multi-user scored delays other users. `cargo xtask bench
//! daemon` runs it; by hand, as root:
//!
//! ```text
//! score-daemon waits SECONDS ATTACK [elsewhere]
//!                                        time of another user's requests for the list of jobs
//! score-daemon switches SECONDS ATTACK [elsewhere]
//!                                        lateness of the switches of two jobs of another user that
//!                                        share a processor in slices of 10 ms
//! score-daemon sessions COUNT            memory of the daemons for COUNT idle logins
//! score-daemon attack NAME CPU DIR       the hostile user: attacks until it is killed
//! score-daemon ask SECONDS DIR           the other user
//! score-daemon visit DIR                 a user who uses the attacked service at intervals
//! score-daemon job DIR FILE              a job of the other user; it writes its gaps to the file
//! score-daemon spin FILE                 the program of that job
//! score-daemon hold COUNT SOCKET         COUNT idle logins
//! ```
//! ATTACK is `none` or one of the attacks in `attacks.rs`. Each of the first three commands starts
//! its own daemons, `hosta` and the server `hostb`, on loopback addresses, and prints one line of
//! JSON.
//!
//! With `elsewhere` there are two such services: the hostile user attacks one service, and the
//! other user uses the other. The result is the cost of an attack that shares only processors,
//! which is the floor. A third user visits the attacked service, because a daemon gives a user more
//! processor time while no other user uses its host.
//!
//! The hostile user's clients may use only the second processor. The daemons, which have realtime
//! priority, and the other user may use both. Therefore the clients' computing delays no other
//! process.
#![forbid(unsafe_code)]

mod attacks;
mod job_list;
mod sessions;
mod switches;
mod testbed;
mod waits;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use attacks::Attack;
use testbed::Services;

const USAGE: &str = "usage: waits|switches SECONDS ATTACK [elsewhere] | sessions COUNT";

type BenchResult<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("score-daemon: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> BenchResult<()> {
    match words {
        ["waits", seconds, attack, place @ ..] => {
            let (duration, attack) = (seconds_of(seconds)?, Attack::parse(attack)?);
            waits::run(&Services::new(place)?, duration, attack)
        }
        ["switches", seconds, attack, place @ ..] => {
            let (duration, attack) = (seconds_of(seconds)?, Attack::parse(attack)?);
            switches::run(&Services::new(place)?, duration, attack)
        }
        ["sessions", count] => sessions::run(number(count)?),
        ["attack", name, processor, folder] => match Attack::parse(name)? {
            Some(attack) => attacks::run(attack, processor, Path::new(folder)),
            None => Err("attack: a name is needed".to_owned()),
        },
        ["ask", seconds, folder] => waits::ask(seconds_of(seconds)?, Path::new(folder)),
        ["visit", folder] => waits::visit(Path::new(folder)),
        ["job", folder, file] => switches::keep_job(Path::new(folder), Path::new(file)),
        ["spin", file] => switches::spin(Path::new(file)),
        ["hold", count, socket] => sessions::hold(number(count)?, Path::new(socket)),
        _ => Err(USAGE.to_owned()),
    }
}

fn number(word: &str) -> BenchResult<u32> {
    word.parse().ok().filter(|number| *number > 0).ok_or_else(|| format!("{word}: not a number"))
}

fn seconds_of(word: &str) -> BenchResult<Duration> {
    number(word).map(|seconds| Duration::from_secs(seconds.into()))
}

/// Returns the first two processors that this process may use.
fn two_processors() -> BenchResult<[usize; 2]> {
    let allowed_set = sched_getaffinity(Pid::from_raw(0)).map_err(|errno| errno.to_string())?;
    let is_allowed = |processor: &usize| allowed_set.is_set(*processor).unwrap_or(false);
    let mut allowed = (0..CpuSet::count()).filter(is_allowed);
    match (allowed.next(), allowed.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => Err("two processors are needed".to_owned()),
    }
}

/// Binds this process, and the processes that it starts, to these processors.
fn use_processors(processors: &[usize]) -> BenchResult<()> {
    let error_text = |errno| format!("processors: {errno}");
    let mut cpu_set = CpuSet::new();
    processors.iter().try_for_each(|processor| cpu_set.set(*processor)).map_err(error_text)?;
    sched_setaffinity(Pid::from_raw(0), &cpu_set).map_err(error_text)
}
