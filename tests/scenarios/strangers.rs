//! Somebody connects to the port of a daemon: without the cluster's key, with another version,
//! with garbage, with a length beyond all limits, or byte by byte. The connection is dropped and
//! told in a line with the address; the daemon grows by nothing, and its job goes on.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use score_tests::place::{self, Place};
use score_tests::process::Process;
use score_tests::{Running, Scene, binaries};

/// Handshakes end after this (5 s), and some time for a busy machine.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// What a daemon may grow by, whatever strangers send, in KiB.
const GROWTH: u64 = 8 * 1024;
/// The host that the strangers are on.
const FROM: &str = "10.77.0.3";

/// A job on three hosts that ends when its file appears, with one daemon to be attacked.
struct Siege {
    scene: Scene,
    job: Running,
    daemon: Process,
    /// Where strangers are.
    outside: Place,
    address: SocketAddr,
    resident: u64,
}

impl Siege {
    /// `host`: 0 for the server, 1 for the daemon of another host.
    fn lay(host: u8) -> Self {
        let scene = Scene::new();
        let script = "echo up; while [ ! -e \"$0\" ]; do sleep 0.05; done; echo done";
        let file = scene.dir().join("over");
        let words = ["-group=local:3,nodes=3x1", "system", "sh", "-c", script];
        let mut job = scene.scrun(&words).arg(file.to_str().unwrap()).start();
        job.wait_for("up", 3);
        let daemon = match host {
            0 => scene.wait_for_process("server", |one| {
                one.is_scored() && one.command.contains("-single")
            }),
            _ => place::daemon(&scene, &format!("local{host}")),
        };
        let ports = Place::of(&daemon).listeners();
        assert_eq!(ports.len(), 1, "{daemon:?} listens at {ports:?}");
        let ip = IpAddr::V4(Ipv4Addr::new(10, 77, 0, host + 1));
        let address = SocketAddr::new(ip, ports[0]);
        let outside = Place::of(&place::daemon(&scene, "local2"));
        let resident = daemon.resident_kib();
        Self { scene, job, daemon, outside, address, resident }
    }

    fn connect(&self) -> TcpStream {
        let stream = self.outside.act(|| TcpStream::connect_timeout(&self.address, HANDSHAKE));
        let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", self.address));
        stream.set_read_timeout(Some(HANDSHAKE)).unwrap();
        stream
    }

    /// Waits until a stranger has been told of.
    fn is_told(&self, reason: &str) {
        let begin = Instant::now();
        let line = format!("a connection from {FROM} was dropped: ");
        let told = |text: &str| text.lines().any(|one| one.contains(&line) && one.contains(reason));
        while !told(&self.job.stderr()) {
            assert!(begin.elapsed() < HANDSHAKE, "no {reason:?} in {}", self.job.stderr());
            sleep(Duration::from_millis(10));
        }
    }

    /// The job ends well, and its daemon has not grown.
    fn lift(self) {
        let grown = self.daemon.resident_kib().saturating_sub(self.resident);
        assert!(grown < GROWTH, "{} has grown by {grown} KiB", self.daemon.command);
        self.scene.file("over", "");
        let outcome = self.job.wait().expect(0);
        assert_eq!(outcome.text().matches("done").count(), 3, "{outcome}");
        self.scene.wait_until_clean(score_tests::scene::GRACE).unwrap();
    }
}

/// Whether the other end has closed; what it has said before is of no interest.
fn is_dropped(mut stream: TcpStream) -> bool {
    let mut sink = [0; 4096];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                use std::io::ErrorKind::{TimedOut, WouldBlock};
                return !matches!(error.kind(), TimedOut | WouldBlock);
            }
        }
    }
}

fn preface(version: u32) -> Vec<u8> {
    [&b"SCOD"[..], &version.to_le_bytes()].concat()
}

/// The version of this build, as a daemon's first answer to another version says.
fn version(siege: &Siege) -> u32 {
    let mut stream = siege.connect();
    stream.write_all(&preface(0)).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("another version gets an answer");
    assert_eq!(&answer[..4], b"SCOD");
    u32::from_le_bytes(answer[4..].try_into().unwrap())
}

fn each(test: &str, attack: impl Fn(&Siege)) {
    if !place::can_enter(test) {
        return;
    }
    for host in [0, 1] {
        let siege = Siege::lay(host);
        attack(&siege);
        siege.lift();
    }
}

#[test]
fn garbage_is_dropped_and_told() {
    each("strangers_with_garbage", |siege| {
        for round in 0..20_u8 {
            let mut stream = siege.connect();
            // The daemon may close before it has all.
            let _ = stream.write_all(&vec![round ^ 0x5a; 256 * 1024]);
            assert!(is_dropped(stream), "still open");
        }
        siege.is_told("not the beginning of a scored link");
    });
}

#[test]
fn another_version_is_dropped_and_both_are_told() {
    each("strangers_of_another_version", |siege| {
        let ours = version(siege);
        siege.is_told(&format!("version 0 of the protocol, this scored version {ours}"));
    });
}

#[test]
fn a_length_beyond_all_limits_and_a_key_that_is_none_cost_nothing() {
    each("strangers_with_lengths", |siege| {
        let version = version(siege);
        for _ in 0..20 {
            let mut stream = siege.connect();
            let _ = stream.write_all(&preface(version));
            let _ = stream.write_all(&vec![0xff; 1 << 20]);
            assert!(is_dropped(stream), "still open");
        }
        siege.is_told("");
    });
}

#[test]
fn who_says_one_byte_at_a_time_is_dropped_at_the_limit() {
    each("strangers_that_trickle", |siege| {
        let slow = preface(version(siege));
        let mut streams: Vec<TcpStream> = (0..160).map(|_| siege.connect()).collect();
        for byte in &slow[..6] {
            for stream in &mut streams {
                let _ = stream.write_all(&[*byte]);
            }
            sleep(Duration::from_millis(500));
        }
        assert!(streams.into_iter().all(is_dropped), "still open");
        siege.is_told("");
    });
}

#[test]
fn who_says_nothing_and_goes_is_told() {
    each("strangers_that_go", |siege| {
        siege.connect().shutdown(Shutdown::Both).unwrap();
        siege.is_told("the connection was closed");
    });
}

#[test]
fn a_daemon_with_another_key_is_dropped_and_hears_why() {
    each("strangers_with_another_key", |siege| {
        let key = siege.scene.file("other_key", [7; 32]);
        let start = || {
            Command::new(binaries::program("scored"))
                .args(["-daemon", "-host", "local2", "-connect", &siege.address.to_string()])
                .arg("-key")
                .arg(&key)
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .status()
        };
        let begin = Instant::now();
        let _ = siege.outside.act(start).expect("scored can be started");
        assert!(begin.elapsed() < HANDSHAKE, "it took {:?}", begin.elapsed());
        siege.is_told("does not hold this cluster's key");
    });
}
