//! Jobs per second, for `cargo xtask bench jobs`; each line prints one figure.
//!
//! ```text
//! score-jobs loop N PROGRAM [ARGUMENT...]   spawns and waits, one at a time
//! score-jobs flight K N                     jobs of `true`, K in flight, by scrun's protocol
//! ```
//! `flight` is what scrun is without its command line: it starts `scored -single`, says hello and
//! submits. A login has one job today, so that each job has a login and a scored of its own.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use score_proto::PROTOCOL_VERSION;
use score_proto::frame::{self, Decoder};
use score_proto::message::{
    Down, ElementSpec, HostSpec, Input, JobSpec, Kind, OsBytes, Output, StageSpec, Up,
};

/// No job of `true` takes longer unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let began = Instant::now();
    let count = match &words[..] {
        ["loop", count, program @ ..] if !program.is_empty() => one_by_one(count, program),
        ["flight", lanes, count] => flight(lanes, count),
        _ => Err("usage: score-jobs loop N PROGRAM [ARGUMENT...] | flight K N".to_owned()),
    };
    match count {
        Ok(count) => {
            println!("{:.1}", f64::from(count) / began.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("score-jobs: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn number(word: &str) -> Result<u32, String> {
    word.parse().ok().filter(|count| *count > 0).ok_or(format!("{word}: not a count"))
}

fn one_by_one(count: &str, words: &[&str]) -> Result<u32, String> {
    let count = number(count)?;
    for _ in 0..count {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status().map_err(|error| format!("{}: {error}", words[0]))?;
        if !status.success() {
            return Err(format!("{}: {status}", words.join(" ")));
        }
    }
    Ok(count)
}

fn flight(lanes: &str, count: &str) -> Result<u32, String> {
    let (lanes, count) = (number(lanes)?, number(count)?);
    let login = Login::new()?;
    let begun = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let lane = || -> Result<(), String> {
            while begun.fetch_add(1, Ordering::Relaxed) < count {
                login.job()?;
            }
            Ok(())
        };
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|one| one.join().unwrap_or(Err("a lane died".to_owned())))
    })?;
    Ok(count)
}

/// What all jobs have in common.
struct Login {
    scored: PathBuf,
    hello: Vec<u8>,
    /// A descriptor that is let through to one child is seen by no other.
    starting: Mutex<()>,
}

impl Login {
    fn new() -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let mut hello = Vec::new();
        for message in [Down::Hello { version: PROTOCOL_VERSION }, Down::Submit(job()?)] {
            frame::encode(&message, &mut hello).map_err(|error| error.to_string())?;
        }
        Ok(Self { scored: own.with_file_name("scored"), hello, starting: Mutex::new(()) })
    }

    /// One job from its login to its end.
    fn job(&self) -> Result<(), String> {
        let fault = |error: std::io::Error| format!("scored: {error}");
        let (mut ours, theirs) = UnixStream::pair().map_err(fault)?;
        let mut child = {
            let _alone = self.starting.lock().map_err(|_| "a lane died")?;
            fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))
                .map_err(|errno| fault(errno.into()))?;
            let number = theirs.as_raw_fd().to_string();
            let mut command = Command::new(&self.scored);
            command.args(["-single", "-control", &number]).stdin(Stdio::null());
            let child = command.stdout(Stdio::null()).spawn().map_err(fault)?;
            drop(theirs);
            child
        };
        ours.set_read_timeout(Some(PATIENCE)).map_err(fault)?;
        ours.write_all(&self.hello).map_err(fault)?;
        let end = await_end(&mut ours);
        drop(ours);
        child.wait().map_err(fault)?;
        end
    }
}

fn await_end(socket: &mut UnixStream) -> Result<(), String> {
    let mut decoder = Decoder::default();
    let mut chunk = [0; 4096];
    loop {
        while let Some(up) = decoder.next::<Up>().map_err(|error| error.to_string())? {
            match up {
                Up::Finished(end) if end.code == 0 => return Ok(()),
                Up::Finished(end) => return Err(format!("true ended with {}", end.code)),
                Up::Refused { reason, .. } => return Err(reason),
                Up::Flush(token) => {
                    let mut answer = Vec::new();
                    frame::encode(&Down::Flushed(token), &mut answer)
                        .map_err(|error| error.to_string())?;
                    socket.write_all(&answer).map_err(|error| error.to_string())?;
                }
                _ => {}
            }
        }
        match socket.read(&mut chunk) {
            Ok(0) => return Err("scored has gone before the end of a job".to_owned()),
            Ok(count) => decoder.push(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("scored: {error}")),
        }
    }
}

/// `true` on one node.
fn job() -> Result<JobSpec, String> {
    let word = || OsBytes(b"true".to_vec());
    let element = ElementSpec {
        path: word(),
        args: vec![word()],
        input: Input::Default,
        output: Output::Default,
        kind: Kind::System { per_host: false },
        content: None,
    };
    let variable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        OsBytes([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let directory = std::env::current_dir().map_err(|error| format!("directory: {error}"))?;
    Ok(JobSpec {
        hosts: vec![HostSpec::this(1)],
        stages: vec![StageSpec { elements: vec![element] }],
        environment: std::env::vars_os().map(variable).collect(),
        directory: OsBytes(directory.as_os_str().as_bytes().to_vec()),
        umask: 0o022,
        options: Vec::new(),
        statistics: false,
        stdin: false,
        separate: false,
        networks: Vec::new(),
        sets: 0,
    })
}
