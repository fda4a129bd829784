//! `scored -try HOSTS`: tests whether daemons can be started. It starts a probe on each host, which
//! connects back, reports, and exits. Each step is the same as for a daemon: launcher, path of
//! scored, secret on standard input, and connection back.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_proto::message::{HostKind, HostSpec};
use score_sys::random::random_bytes;

use super::{
    ConnectList, Failure, HOST_PLACEHOLDER, LaunchOptions, LaunchTargets, Launcher,
    SECRET_ON_STDIN, SECRET_PLACEHOLDER, UNKNOWN_HOST,
};
use super::{local_name, position_of};
use crate::sys::process::{self, WaitResult};
use crate::sys::tcp;

/// The length of the secret in bytes, which is the length of a cluster key.
const SECRET_LEN: usize = 32;
/// How long a connected probe may take to send its line.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_GREETING_LEN: u64 = 512;
/// How long the launchers may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The options of `-try`.
#[derive(Debug)]
pub struct PreflightOptions {
    /// `local:N`, or names separated by commas.
    pub hosts: String,
    /// `-start`, `-links`, `-mtu`, `-rate` and `-timeout`.
    pub launch: LaunchOptions,
}

/// The options of `-greet`.
#[derive(Debug)]
pub struct ProbeOptions {
    /// The addresses and the port of the listener.
    pub connect: ConnectList,
    /// The name of this host, or [`UNKNOWN_HOST`].
    pub host: String,
    /// The source of the secret: a file or [`SECRET_ON_STDIN`].
    pub key: OsString,
}

/// Starts a probe on each host, prints the results, and ends the probes.
///
/// # Errors
/// One line: the preparation failed, or how many hosts failed.
pub fn run(options: &PreflightOptions) -> Result<(), String> {
    // SIGPIPE is blocked, so that a reader of the output that exits does not end this process
    // silently. The signalfd reports exited children.
    process::default_and_block_signals().map_err(|error| error.to_string())?;
    let signals = SigSet::from(Signal::SIGCHLD);
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|error| error.to_string())?;
    let end_signals =
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect::<SigSet>();
    end_signals.thread_unblock().map_err(|error| error.to_string())?;

    let secret: [u8; SECRET_LEN] =
        random_bytes().map_err(|error| format!("cannot create a secret: {error}"))?;
    let (mut launcher, listener, names) = prepare(options, &secret)?;
    let started_at = Instant::now();
    let mut failed = 0;
    let mut report = |failures: Vec<Failure>| {
        for failure in failures {
            println!("{}", failure.text);
            failed += 1;
        }
    };
    loop {
        let now = Instant::now();
        report(launcher.advance(now));
        if launcher.is_done() {
            break;
        }
        let left =
            launcher.deadline().map_or(GREETING_TIMEOUT, |end| end.saturating_duration_since(now));
        let left = if launcher.may_have_more() { Duration::ZERO } else { left };
        wait(&signals, &listener, &launcher, left).map_err(|error| error.to_string())?;
        for line in launcher.read_stderr() {
            println!("{line}");
        }
        while let Some((name, address)) = next_greeting(&listener, &secret) {
            let Some(host) = position_of(&name, &names) else {
                println!("{name:?} at {address}: not one of the requested hosts");
                continue;
            };
            println!(
                "{}: up after {} ms, at {address}",
                names[host],
                started_at.elapsed().as_millis()
            );
            launcher.on_arrived(host);
        }
        while let Ok(Some(_)) = signals.read_signal() {}
        while let WaitResult::Exited(reaped) = process::reap() {
            report(launcher.on_child_ended(reaped.pid, reaped.status).unwrap_or_default());
        }
    }
    launcher.close();
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while !launcher.all_exited() && Instant::now() < deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        wait(&signals, &listener, &launcher, left).map_err(|error| error.to_string())?;
        launcher.read_stderr();
        while let Ok(Some(_)) = signals.read_signal() {}
        while let WaitResult::Exited(reaped) = process::reap() {
            launcher.on_child_ended(reaped.pid, reaped.status);
        }
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} hosts failed", names.len())) }
}

fn prepare(
    options: &PreflightOptions,
    secret: &[u8],
) -> Result<(Launcher, TcpListener, Vec<String>), String> {
    let hosts = hosts(&options.hosts)?;
    let targets = LaunchTargets::new(&hosts, &options.launch)?;
    if let Some(notice) = targets.notice() {
        println!("{notice}");
    }
    if targets.hosts().is_empty() {
        println!("{}: no hosts other than this one", options.hosts);
    }
    let names = hosts.into_iter().map(|host| host.name).collect();
    let listener = tcp::listen_on_all_addresses().map_err(|error| format!("listen: {error}"))?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    let connect = ConnectList::new(targets.local_addresses(), port)?.to_string();
    let path = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let mut command = vec![path.into_os_string()];
    let arguments =
        ["-greet", "-connect", &connect, "-host", HOST_PLACEHOLDER, "-key", SECRET_PLACEHOLDER];
    command.extend(arguments.map(OsString::from));
    Ok((targets.into_launcher(command, secret.to_vec())?, listener, names))
}

/// Parses the argument of `-try`.
fn hosts(host_list: &str) -> Result<Vec<HostSpec>, String> {
    let host = |name: String, kind| HostSpec { name, kind, ..HostSpec::local(1) };
    let Some(count) = host_list.strip_prefix("local:") else {
        let names = host_list.split(',').filter(|name| !name.is_empty());
        return Ok(names.map(|name| host(name.to_owned(), HostKind::Remote)).collect());
    };
    let count = count.parse::<u16>().ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| format!("{host_list}: not a number of hosts"))?;
    Ok((0..count).map(|number| host(format!("local{number}"), HostKind::Virtual)).collect())
}

fn wait(
    signals: &SignalFd,
    listener: &TcpListener,
    launcher: &Launcher,
    left: Duration,
) -> io::Result<()> {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut sources =
        [readable(signals.as_fd()), readable(listener.as_fd()), readable(launcher.stderr_fd())];
    let left = left.min(Duration::from_secs(3600)) + Duration::from_millis(1);
    match poll(&mut sources, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
        Err(nix::errno::Errno::EINTR) | Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Accepts the next connection that proves knowledge of the secret. Returns the name that it sent,
/// and its address.
fn next_greeting(listener: &TcpListener, secret: &[u8]) -> Option<(String, SocketAddr)> {
    loop {
        let (stream, address) = listener.accept().ok()?;
        let mut line = String::new();
        let result = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(GREETING_TIMEOUT)))
            .and_then(|()| (&stream).take(MAX_GREETING_LEN).read_to_string(&mut line));
        if let (Ok(_), Some((name, proof))) = (result, line.trim_end().split_once(' '))
            && proof == hexadecimal(secret)
        {
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            return Some((name.to_owned(), address));
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs the probe: sends the host's name and the secret, and waits until the server exits.
///
/// # Errors
/// One line that names the address or file at fault.
pub fn run_probe(options: &ProbeOptions) -> Result<(), String> {
    let mut secret = [0; SECRET_LEN];
    let key_on_stdin = options.key == SECRET_ON_STDIN;
    let result = if key_on_stdin {
        io::stdin().read_exact(&mut secret)
    } else {
        std::fs::File::open(&options.key).and_then(|mut file| file.read_exact(&mut secret))
    };
    result.map_err(|error| format!("-key {}: {error}", options.key.to_string_lossy()))?;
    let is_unknown = options.host == UNKNOWN_HOST;
    let name = if is_unknown { local_name() } else { options.host.clone() };
    let mut stream = options.connect.connect(GREETING_TIMEOUT)?;
    let line = format!("{name} {}\n", hexadecimal(&secret));
    let result = stream.write_all(line.as_bytes());
    result
        .and_then(|()| stream.shutdown(std::net::Shutdown::Write))
        .map_err(|error| format!("-connect {}: {error}", options.connect))?;
    // Like a daemon, the probe runs until its server has exited.
    let mut ignored = [0; 64];
    if key_on_stdin {
        while io::stdin().read(&mut ignored).is_ok_and(|count| count > 0) {}
    }
    Ok(())
}
