//! `scored -try HOSTS`: starts on every host a stand-in that reports by TCP and leaves, so that an
//! operator sees whether daemons can come up there. It takes the daemons' way in every step: the
//! launcher, the path of scored, the secret on standard input, the connection back.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_proto::message::{HostKind, HostSpec};

use super::{Failure, HOST, SECRET, SECRET_ON_STDIN, Site, Starter, UNKNOWN_HOST, Wishes};
use super::{own_name, position_of};
use crate::sys::process::{self, Reap};

/// Bytes of the secret, as of a cluster key.
const SECRET_LENGTH: usize = 32;
/// How long a connection may take to say its line.
const LINE_TIME: Duration = Duration::from_secs(2);
const LINE_LENGTH: u64 = 512;
/// How long launchers may take to go.
const GOING: Duration = Duration::from_secs(5);

/// `-try`
#[derive(Debug)]
pub struct Setting {
    /// `local:N`, or names with commas.
    pub hosts: String,
    /// `-start`, `-links`, `-mtu`, `-rate`
    pub wishes: Wishes,
}

/// `-greet`
#[derive(Debug)]
pub struct Greeting {
    /// Addresses of who waits, with commas; the port is that of the last.
    pub connect: String,
    /// Who this is, or [`UNKNOWN_HOST`].
    pub host: String,
    /// Where the secret is.
    pub key: OsString,
}

/// Starts a stand-in on every host, says what comes of it, and ends them.
///
/// # Errors
/// What went wrong before, or how many hosts failed.
pub fn run(setting: &Setting) -> Result<(), String> {
    // Said lines must not be lost with a reader that has gone; children are seen by descriptor.
    process::default_and_block_signals().map_err(|error| error.to_string())?;
    let signals = SigSet::from(Signal::SIGCHLD);
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|error| error.to_string())?;
    let ends = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect::<SigSet>();
    ends.thread_unblock().map_err(|error| error.to_string())?;

    let secret = random_bytes().map_err(|error| format!("/dev/urandom: {error}"))?;
    let (mut starter, listener, names) = prepare(setting, &secret)?;
    let begin = Instant::now();
    let mut failed = 0;
    let mut report = |failures: Vec<Failure>| {
        for failure in failures {
            println!("{}", failure.text);
            failed += 1;
        }
    };
    loop {
        let now = Instant::now();
        report(starter.advance(now));
        if starter.is_settled() {
            break;
        }
        let left = starter.deadline().map_or(LINE_TIME, |end| end.saturating_duration_since(now));
        let left = if starter.may_have_more() { Duration::ZERO } else { left };
        wait(&signals, &listener, &starter, left).map_err(|error| error.to_string())?;
        for line in starter.hear() {
            println!("{line}");
        }
        while let Some((said, from)) = greeted(&listener, &secret) {
            let Some(host) = position_of(&said, &names) else {
                println!("{said:?} at {from}: none of the hosts asked for");
                continue;
            };
            println!("{}: up after {} ms, at {from}", names[host], begin.elapsed().as_millis());
            starter.arrived(host);
        }
        while let Ok(Some(_)) = signals.read_signal() {}
        while let Reap::One(reaped) = process::reap() {
            report(starter.ended(reaped.pid, reaped.status).unwrap_or_default());
        }
    }
    starter.close();
    let end = Instant::now() + GOING;
    while !starter.is_gone() && Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        wait(&signals, &listener, &starter, left).map_err(|error| error.to_string())?;
        starter.hear();
        while let Ok(Some(_)) = signals.read_signal() {}
        while let Reap::One(reaped) = process::reap() {
            starter.ended(reaped.pid, reaped.status);
        }
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} hosts failed", names.len())) }
}

fn prepare(
    setting: &Setting,
    secret: &[u8],
) -> Result<(Starter, TcpListener, Vec<String>), String> {
    let hosts = hosts(&setting.hosts)?;
    let site = Site::new(&hosts, &setting.wishes)?;
    if let Some(notice) = site.notice() {
        println!("{notice}");
    }
    if site.hosts().is_empty() {
        println!("{}: no other host than this", setting.hosts);
    }
    let names = hosts.into_iter().map(|host| host.name).collect();
    let listener = TcpListener::bind("0.0.0.0:0").map_err(|error| format!("listen: {error}"))?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    let own = site.own_addresses();
    let own: Vec<String> = own.iter().filter(|a| a.is_ipv4()).map(IpAddr::to_string).collect();
    let path = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let mut command = vec![path.into_os_string()];
    let connect = format!("{}:{port}", own.join(","));
    let words = ["-greet", "-connect", &connect, "-host", HOST, "-key", SECRET];
    command.extend(words.map(OsString::from));
    Ok((site.starter(command, secret.to_vec())?, listener, names))
}

/// The hosts that the words of `-try` name.
fn hosts(words: &str) -> Result<Vec<HostSpec>, String> {
    let host = |name: String, kind| HostSpec { name, kind, ..HostSpec::this(1) };
    let Some(count) = words.strip_prefix("local:") else {
        let names = words.split(',').filter(|name| !name.is_empty());
        return Ok(names.map(|name| host(name.to_owned(), HostKind::Other)).collect());
    };
    let count = count.parse::<u16>().ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| format!("{words}: not a number of hosts"))?;
    Ok((0..count).map(|number| host(format!("local{number}"), HostKind::Virtual)).collect())
}

fn random_bytes() -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; SECRET_LENGTH];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn wait(
    signals: &SignalFd,
    listener: &TcpListener,
    starter: &Starter,
    left: Duration,
) -> io::Result<()> {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut sources =
        [readable(signals.as_fd()), readable(listener.as_fd()), readable(starter.words())];
    let left = left.min(Duration::from_secs(3600)) + Duration::from_millis(1);
    match poll(&mut sources, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
        Err(nix::errno::Errno::EINTR) | Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The next connection that knows the secret: the name it says, and where it comes from.
fn greeted(listener: &TcpListener, secret: &[u8]) -> Option<(String, SocketAddr)> {
    loop {
        let (stream, from) = listener.accept().ok()?;
        let mut line = String::new();
        let heard = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(LINE_TIME)))
            .and_then(|()| (&stream).take(LINE_LENGTH).read_to_string(&mut line));
        if let (Ok(_), Some((name, proof))) = (heard, line.trim_end().split_once(' '))
            && proof == hexadecimal(secret)
        {
            return Some((name.to_owned(), from));
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The stand-in: says who it is and that the secret came through, and waits for its end.
///
/// # Errors
/// One line with the address or file at fault.
pub fn greet(greeting: &Greeting) -> Result<(), String> {
    let mut secret = [0; SECRET_LENGTH];
    let stdin = greeting.key == SECRET_ON_STDIN;
    let read = if stdin {
        io::stdin().read_exact(&mut secret)
    } else {
        std::fs::File::open(&greeting.key).and_then(|mut file| file.read_exact(&mut secret))
    };
    read.map_err(|error| format!("-key {}: {error}", greeting.key.to_string_lossy()))?;
    let unknown = greeting.host == UNKNOWN_HOST;
    let name = if unknown { own_name() } else { greeting.host.clone() };
    let mut stream = connect(&greeting.connect)?;
    let line = format!("{name} {}\n", hexadecimal(&secret));
    let said = stream.write_all(line.as_bytes());
    said.and_then(|()| stream.shutdown(std::net::Shutdown::Write))
        .map_err(|error| format!("-connect {}: {error}", greeting.connect))?;
    // Like a daemon, until its server has gone.
    let mut rest = [0; 64];
    if stdin {
        while io::stdin().read(&mut rest).is_ok_and(|count| count > 0) {}
    }
    Ok(())
}

/// Tries one address after the other.
fn connect(list: &str) -> Result<TcpStream, String> {
    let fault = || format!("-connect {list}: not ADDRESS[,ADDRESS...]:PORT");
    let (addresses, port) = list.rsplit_once(':').ok_or_else(fault)?;
    let port: u16 = port.parse().map_err(|_| fault())?;
    let mut last = "no address".to_owned();
    for word in addresses.split(',') {
        let address: IpAddr = word.parse().map_err(|_| fault())?;
        match TcpStream::connect_timeout(&SocketAddr::new(address, port), LINE_TIME) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(format!("-connect {list}: {last}"))
}
