//! A hostile connection to a daemon's port lacks the cluster's key, has another version, sends
//! garbage, claims a length beyond all limits, or sends byte by byte. The daemon drops the
//! connection and prints a line with its address. The daemon's memory does not grow, and its job
//! continues.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use score_tests::netns::{self, NetNs};
use score_tests::process::Process;
use score_tests::{Running, TestEnv, binaries};

/// Handshakes end after 5 s. A busy machine may need more time.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum growth of a daemon in KiB, whatever unauthenticated connections send.
const MAX_GROWTH_KIB: u64 = 8 * 1024;
/// The address of the attacking host.
const ATTACKER_ADDRESS: &str = "10.77.0.3";

/// A job on three hosts, one of whose daemons is attacked. The job ends when its file exists.
struct AttackedJob {
    env: TestEnv,
    job: Running,
    daemon: Process,
    /// The network namespace of the attacking host.
    attacker: NetNs,
    address: SocketAddr,
    initial_kib: u64,
}

impl AttackedJob {
    /// Attacks the server if `host` is 0, or the daemon of another host if it is 1.
    fn start(host: u8) -> Self {
        let env = TestEnv::new();
        let script = "echo up; while [ ! -e \"$0\" ]; do sleep 0.05; done; echo done";
        let file = env.dir().join("over");
        let args = ["-group=local:3,nodes=3x1", "system", "sh", "-c", script];
        let mut job = env.scrun(&args).arg(file.to_str().unwrap()).start();
        job.wait_for("up", 3);
        let daemon = match host {
            0 => env.wait_for_process("server", |process| {
                process.is_scored() && process.command.contains("-single")
            }),
            _ => netns::wait_for_daemon(&env, &format!("local{host}")),
        };
        let ports = NetNs::for_process(&daemon).listeners();
        assert_eq!(ports.len(), 1, "{daemon:?} listens at {ports:?}");
        let ip = IpAddr::V4(Ipv4Addr::new(10, 77, 0, host + 1));
        let address = SocketAddr::new(ip, ports[0]);
        let attacker = NetNs::for_process(&netns::wait_for_daemon(&env, "local2"));
        let initial_kib = daemon.resident_kib();
        Self { env, job, daemon, attacker, address, initial_kib }
    }

    fn connect(&self) -> TcpStream {
        let stream = self
            .attacker
            .run_inside(|| TcpStream::connect_timeout(&self.address, HANDSHAKE_TIMEOUT));
        let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", self.address));
        stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT)).unwrap();
        stream
    }

    /// Waits until the daemon has reported a dropped connection.
    fn wait_for_warning(&self, reason: &str) {
        let started_at = Instant::now();
        let line = format!("a connection from {ATTACKER_ADDRESS} was dropped: ");
        let is_reported = |text: &str| {
            text.lines().any(|candidate| candidate.contains(&line) && candidate.contains(reason))
        };
        while !is_reported(&self.job.stderr()) {
            assert!(
                started_at.elapsed() < HANDSHAKE_TIMEOUT,
                "no {reason:?} in {}",
                self.job.stderr()
            );
            sleep(Duration::from_millis(10));
        }
    }

    /// Checks that the job ends normally and that its daemon has not grown.
    fn finish(self) {
        let growth_kib = self.daemon.resident_kib().saturating_sub(self.initial_kib);
        assert!(
            growth_kib < MAX_GROWTH_KIB,
            "{} has grown by {growth_kib} KiB",
            self.daemon.command
        );
        self.env.write_file("over", "");
        let outcome = self.job.wait().expect_code(0);
        assert_eq!(outcome.text().matches("done").count(), 3, "{outcome}");
        self.env.assert_clean();
    }
}

/// Whether the other end has closed the connection. Bytes that it sent earlier are ignored.
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

/// The version of this build, read from a daemon's answer to another version.
fn protocol_version(attacked: &AttackedJob) -> u32 {
    let mut stream = attacked.connect();
    stream.write_all(&preface(0)).unwrap();
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).expect("another version gets an answer");
    assert_eq!(&reply[..4], b"SCOD");
    u32::from_le_bytes(reply[4..].try_into().unwrap())
}

fn attack_each_daemon(test: &str, attack: impl Fn(&AttackedJob)) {
    if !netns::can_enter(test) {
        return;
    }
    for host in [0, 1] {
        let attacked = AttackedJob::start(host);
        attack(&attacked);
        attacked.finish();
    }
}

// Promise (faults): Hostile connections to a daemon's port (garbage, another version, another key,
// too long, too slow, closed at once) are dropped and reported with address and reason; they use no
// memory, and the job continues.
#[test]
fn garbage_is_dropped_and_reported() {
    attack_each_daemon("connections_with_garbage", |attacked| {
        for round in 0..20_u8 {
            let mut stream = attacked.connect();
            // The daemon may close before it has received everything.
            let _ = stream.write_all(&vec![round ^ 0x5a; 256 * 1024]);
            assert!(is_dropped(stream), "still open");
        }
        attacked.wait_for_warning("not the beginning of a scored link");
    });
}

// Promise of `garbage_is_dropped_and_reported`.
#[test]
fn another_version_is_dropped_and_both_versions_are_reported() {
    attack_each_daemon("connections_of_another_version", |attacked| {
        let version = protocol_version(attacked);
        attacked.wait_for_warning(&format!("protocol version 0, this scored version {version}"));
    });
}

// Promise of `garbage_is_dropped_and_reported`.
#[test]
fn an_excessive_length_and_an_invalid_key_end_only_the_connection() {
    attack_each_daemon("connections_with_lengths", |attacked| {
        let version = protocol_version(attacked);
        for _ in 0..20 {
            let mut stream = attacked.connect();
            let _ = stream.write_all(&preface(version));
            let _ = stream.write_all(&vec![0xff; 1 << 20]);
            assert!(is_dropped(stream), "still open");
        }
        attacked.wait_for_warning("");
    });
}

// Promise of `garbage_is_dropped_and_reported`.
#[test]
fn a_connection_that_sends_one_byte_at_a_time_is_dropped_at_the_timeout() {
    attack_each_daemon("connections_that_trickle", |attacked| {
        let preface = preface(protocol_version(attacked));
        let mut streams: Vec<TcpStream> = (0..160).map(|_| attacked.connect()).collect();
        for byte in &preface[..6] {
            for stream in &mut streams {
                let _ = stream.write_all(&[*byte]);
            }
            sleep(Duration::from_millis(500));
        }
        assert!(streams.into_iter().all(is_dropped), "still open");
        attacked.wait_for_warning("");
    });
}

// Promise of `garbage_is_dropped_and_reported`.
#[test]
fn a_connection_that_closes_without_a_byte_is_reported() {
    attack_each_daemon("connections_that_close", |attacked| {
        attacked.connect().shutdown(Shutdown::Both).unwrap();
        attacked.wait_for_warning("the connection was closed");
    });
}

// Promise of `garbage_is_dropped_and_reported`.
#[test]
fn a_daemon_with_another_key_is_dropped_and_reported() {
    attack_each_daemon("connections_with_another_key", |attacked| {
        let key = attacked.env.write_file("other_key", [7; 32]);
        let start = || {
            Command::new(binaries::program("scored"))
                .args(["-daemon", "-host", "local2", "-connect", &attacked.address.to_string()])
                .arg("-key")
                .arg(&key)
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .status()
        };
        let started_at = Instant::now();
        let _ = attacked.attacker.run_inside(start).expect("scored can be started");
        assert!(started_at.elapsed() < HANDSHAKE_TIMEOUT, "it took {:?}", started_at.elapsed());
        attacked.wait_for_warning("wrong cluster key");
    });
}
