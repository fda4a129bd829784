//! Forged packets reach the port of a process of the job: noise, packets of an earlier job, and
//! packets of the job itself that are repeated, or changed to another secret, incarnation or node.
//! The job's messages still arrive, and pmDumpContext counts the packets by the reason.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use score_tests::netns::{self, NetNs};
use score_tests::{Outcome, Running, TestEnv};

/// docs/dev/ethernet.md: the UDP wire puts two bytes of length before each header.
const HEADER: usize = 2;
const SECRET: usize = HEADER + 8;
const INCARNATION: usize = HEADER + 16;
const DESTINATION: usize = HEADER + 24;
/// Length of an IPv4 and a UDP header, without options.
const IP_UDP_HEADER_LEN: usize = 20 + 8;
/// How many times each packet is sent.
const REPEATS: usize = 50;

/// A ping-pong between nodes 0 and 1 on two of three hosts.
struct PingPongJob {
    env: TestEnv,
    job: Running,
}

impl PingPongJob {
    fn start() -> Option<Self> {
        let env = TestEnv::new();
        let program = env.test_program("pingpong")?;
        let file = env.dir().join("over");
        let words = ["-group=local:3,nodes=3x1", program.to_str()?, file.to_str()?];
        let mut job = env.scrun(&words).start();
        job.wait_for("round ", 2);
        Some(Self { env, job })
    }

    /// The network namespace of a host other than the first.
    fn host_netns(&self, number: u32) -> NetNs {
        NetNs::for_process(&netns::wait_for_daemon(&self.env, &format!("local{number}")))
    }

    fn assert_progress(&mut self) {
        let times = self.job.stdout().matches("round ").count();
        self.job.wait_for("round ", times + 5);
    }

    fn finish(self) -> Outcome {
        self.env.write_file("over", "");
        let outcome = self.job.wait().expect_code(0);
        assert!(outcome.text().contains("played "), "{outcome}");
        outcome
    }
}

/// Captures PM datagrams that arrive at a port, as they are on the wire.
fn capture_packets(netns: &NetNs, port: u16, packet_count: usize) -> Vec<Vec<u8>> {
    let open = || {
        let kind = SockType::Datagram;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Packet, kind, flags, SockProtocol::EthAll)
    };
    let tap: OwnedFd = netns.run_inside(open).expect("root may listen");
    let (started_at, mut found, mut bytes) = (Instant::now(), Vec::new(), vec![0; 1 << 16]);
    while found.len() < packet_count {
        assert!(
            started_at.elapsed() < Duration::from_secs(10),
            "{} packets to {port}",
            found.len()
        );
        match recv(tap.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(count) => {
                let packet = &bytes[..count];
                let is_udp =
                    count > IP_UDP_HEADER_LEN + HEADER + 64 && packet[0] == 0x45 && packet[9] == 17;
                if is_udp && packet[22..24] == port.to_be_bytes() {
                    found.push(packet[IP_UDP_HEADER_LEN..].to_vec());
                }
            }
            Err(Errno::EAGAIN) => sleep(Duration::from_millis(1)),
            Err(error) => panic!("recv: {error}"),
        }
    }
    found
}

fn with_flipped_bit(packet: &[u8], offset: usize) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[offset] ^= 0x40;
    packet
}

/// The attacked process: node 1 on host 1.
struct Victim {
    netns: NetNs,
    address: SocketAddr,
}

impl Victim {
    fn for_job(pingpong: &PingPongJob) -> Self {
        let netns = pingpong.host_netns(1);
        let ip = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
        let ports = netns.open_ports(ip);
        assert_eq!(ports.len(), 1, "{ports:?}");
        Self { netns, address: SocketAddr::new(ip, ports[0]) }
    }

    fn attack(&self, sender: &NetNs, packets: &[Vec<u8>]) {
        let socket = sender.run_inside(|| UdpSocket::bind("0.0.0.0:0")).expect("a port");
        for _ in 0..REPEATS {
            for packet in packets {
                let _ = socket.send_to(packet, self.address);
            }
            sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the value of a counter in node 1's dump.
fn counter_value(outcome: &Outcome, name: &str) -> u64 {
    // The dump of each node is in one piece, but the dumps come in any order.
    let mut dumps = outcome.stderr.split("composite context");
    let node_dump = dumps.find(|dump| dump.contains("channel 0 node 1 of ")).unwrap_or_default();
    let line =
        node_dump.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

// Promise (faults): Forged, changed and repeated packets, and packets of an earlier job, are
// dropped, and counted in `pmDumpContext`.
#[test]
fn forged_and_repeated_packets_are_dropped_and_counted() {
    if !netns::can_enter("forged_packets") {
        return;
    }
    let Some(mut pingpong) = PingPongJob::start() else { return };
    let victim = Victim::for_job(&pingpong);
    let captured = capture_packets(&victim.netns, victim.address.port(), 20);
    let noise: Vec<Vec<u8>> = [1, 65, 66, 1400].iter().map(|length| vec![0xa5; *length]).collect();
    let flip_in_all = |offset: usize| {
        captured.iter().map(|packet| with_flipped_bit(packet, offset)).collect::<Vec<_>>()
    };
    let attacker = pingpong.host_netns(2);
    victim.attack(&attacker, &noise);
    victim.attack(&attacker, &flip_in_all(SECRET));
    victim.attack(&attacker, &flip_in_all(INCARNATION));
    victim.attack(&attacker, &flip_in_all(DESTINATION));
    victim.attack(&attacker, &captured);
    pingpong.assert_progress();
    let outcome = pingpong.finish();
    // The kernel drops packets that exceed the socket's buffer. Therefore the counters must only be
    // greater than 0.
    for counter in [
        "refused: wrong secret",
        "refused: wrong incarnation",
        "refused: misdirected",
        "refused: duplicate",
    ] {
        let count = counter_value(&outcome, counter);
        assert!(count > 0, "no {counter:?}: {outcome}");
    }
}

// Promise of `forged_and_repeated_packets_are_dropped_and_counted`.
#[test]
fn packets_of_an_earlier_job_are_dropped_and_counted() {
    if !netns::can_enter("packets_of_an_earlier_job") {
        return;
    }
    let Some(first) = PingPongJob::start() else { return };
    let victim = Victim::for_job(&first);
    let captured = capture_packets(&victim.netns, victim.address.port(), 50);
    let _ = first.finish();
    let Some(mut second) = PingPongJob::start() else { return };
    let victim = Victim::for_job(&second);
    victim.attack(&second.host_netns(2), &captured);
    second.assert_progress();
    let outcome = second.finish();
    let count = counter_value(&outcome, "refused: wrong secret");
    assert!(count > 0, "none counted: {outcome}");
}
