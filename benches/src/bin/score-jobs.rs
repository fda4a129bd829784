//! Jobs per second, for `cargo xtask bench jobs`; each line prints one figure.
//!
//! ```text
//! score-jobs loop N PROGRAM [ARGUMENT...]   spawns and waits, one at a time
//! score-jobs flight K N                     jobs of `true`, K in flight, by scrun's protocol
//! ```
//! `flight` is what scrun is without its command line: it starts one `scored -single`, says hello,
//! and has K jobs of the login running until N have ended.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use score_proto::PROTOCOL_VERSION;
use score_proto::login::{self, LOGIN, Ups};
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
    let mut login = Login::new()?;
    let spec = job()?;
    let mut begun = lanes.min(count);
    (1..=begun).try_for_each(|lane| login.say(lane, &Down::Submit(spec.clone())))?;
    for _ in 0..count {
        let lane = login.await_end()?;
        if begun < count {
            begun += 1;
            login.say(lane, &Down::Submit(spec.clone()))?;
        }
    }
    login.leave()?;
    Ok(count)
}

/// A connection to a scored of its own.
struct Login {
    child: Child,
    socket: UnixStream,
    ups: Ups,
    chunk: Vec<u8>,
}

fn fault(error: std::io::Error) -> String {
    format!("scored: {error}")
}

impl Login {
    fn new() -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let (socket, theirs) = UnixStream::pair().map_err(fault)?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|errno| fault(errno.into()))?;
        let mut command = Command::new(own.with_file_name("scored"));
        command.args(["-single", "-control", &theirs.as_raw_fd().to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(fault)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(fault)?;
        let mut login = Self { child, socket, ups: Ups::default(), chunk: vec![0; 4096] };
        login.say(LOGIN, &Down::Hello { version: PROTOCOL_VERSION })?;
        Ok(login)
    }

    fn say(&mut self, job: u32, down: &Down) -> Result<(), String> {
        let mut bytes = Vec::new();
        login::encode(job, down, &mut bytes).map_err(|error| error.to_string())?;
        self.socket.write_all(&bytes).map_err(fault)
    }

    /// Waits until one job has ended: which.
    fn await_end(&mut self) -> Result<u32, String> {
        loop {
            while let Some(heard) = self.ups.next().map_err(|error| error.to_string())? {
                match heard.message {
                    Up::Finished(end) if end.code == 0 => return Ok(heard.job),
                    Up::Finished(end) => return Err(format!("true ended with {}", end.code)),
                    Up::Refused { reason, .. } => return Err(reason),
                    Up::Flush(token) => self.say(heard.job, &Down::Flushed(token))?,
                    _ => {}
                }
            }
            match self.socket.read(&mut self.chunk) {
                Ok(0) => return Err("scored has gone before the end of a job".to_owned()),
                Ok(count) => self.ups.push(&self.chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(fault(error)),
            }
        }
    }

    fn leave(mut self) -> Result<(), String> {
        drop(self.socket);
        self.child.wait().map_err(fault)?;
        Ok(())
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
