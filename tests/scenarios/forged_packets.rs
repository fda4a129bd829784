//! Packets that no process of the job has sent come to the port of one: noise, the job's own
//! packets with another secret, of another run, for another node, cut short, or sent once more,
//! and packets of an earlier job. The messages of the job arrive as ever, and pmDumpContext tells
//! each kind.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use score_tests::place::{self, Place};
use score_tests::{Outcome, Running, Scene};

/// docs/ethernet.md: the UDP wire puts two bytes of length before each header.
const HEADER: usize = 2;
const SECRET: usize = HEADER + 8;
const INCARNATION: usize = HEADER + 16;
const DESTINATION: usize = HEADER + 24;
/// Of an IPv4 and an UDP header, without options.
const BELOW: usize = 20 + 8;
/// How often each packet is sent.
const TIMES: usize = 50;

/// A game between nodes 0 and 1 on two of three hosts.
struct Game {
    scene: Scene,
    job: Running,
}

impl Game {
    fn start() -> Option<Self> {
        let scene = Scene::new();
        let program = scene.program("pingpong")?;
        let file = scene.dir().join("over");
        let words = ["-group=local:3,nodes=3x1", program.to_str()?, file.to_str()?];
        let mut job = scene.scrun(&words).start();
        job.wait_for("round ", 2);
        Some(Self { scene, job })
    }

    /// The network of a host other than the first.
    fn host(&self, number: u32) -> Place {
        Place::of(&place::daemon(&self.scene, &format!("local{number}")))
    }

    fn gets_on(&mut self) {
        let times = self.job.stdout().matches("round ").count();
        self.job.wait_for("round ", times + 5);
    }

    fn end(self) -> Outcome {
        self.scene.file("over", "");
        let outcome = self.job.wait().expect(0);
        assert!(outcome.text().contains("played "), "{outcome}");
        outcome
    }
}

/// Datagrams of PM that come to a port, as they are on the wire.
fn overheard(place: &Place, port: u16, wanted: usize) -> Vec<Vec<u8>> {
    let open = || {
        let kind = SockType::Datagram;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Packet, kind, flags, SockProtocol::EthAll)
    };
    let tap: OwnedFd = place.act(open).expect("root may listen");
    let (begin, mut found, mut bytes) = (Instant::now(), Vec::new(), vec![0; 1 << 16]);
    while found.len() < wanted {
        assert!(begin.elapsed() < Duration::from_secs(10), "{} packets to {port}", found.len());
        match recv(tap.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(count) => {
                let packet = &bytes[..count];
                let is_udp = count > BELOW + HEADER + 64 && packet[0] == 0x45 && packet[9] == 17;
                if is_udp && packet[22..24] == port.to_be_bytes() {
                    found.push(packet[BELOW..].to_vec());
                }
            }
            Err(Errno::EAGAIN) => sleep(Duration::from_millis(1)),
            Err(error) => panic!("recv: {error}"),
        }
    }
    found
}

fn changed(packet: &[u8], at: usize) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at] ^= 0x40;
    packet
}

/// The place of the process to be attacked: node 1, on host 1.
struct Target {
    place: Place,
    address: SocketAddr,
}

impl Target {
    fn of(game: &Game) -> Self {
        let place = game.host(1);
        let ip = Ipv4Addr::new(10, 77, 0, 2);
        let ports = place.open_ports(ip);
        assert_eq!(ports.len(), 1, "{ports:?}");
        Self { place, address: SocketAddr::new(IpAddr::V4(ip), ports[0]) }
    }

    fn attack(&self, from: &Place, packets: &[Vec<u8>]) {
        let socket = from.act(|| UdpSocket::bind("0.0.0.0:0")).expect("a port");
        for _ in 0..TIMES {
            for packet in packets {
                let _ = socket.send_to(packet, self.address);
            }
            sleep(Duration::from_millis(1));
        }
    }
}

/// What node 1 has counted under these words.
fn counted(outcome: &Outcome, words: &str) -> u64 {
    // Each node's comes whole, in any order.
    let mut dumps = outcome.stderr.split("composite context");
    let own = dumps.find(|dump| dump.contains("channel 0 node 1 of ")).unwrap_or_default();
    let line = own.lines().find_map(|line| line.trim().strip_prefix(words)?.strip_prefix(": "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn what_a_stranger_forges_or_repeats_is_dropped_and_counted() {
    if !place::can_enter("forged_packets") {
        return;
    }
    let Some(mut game) = Game::start() else { return };
    let target = Target::of(&game);
    let real = overheard(&target.place, target.address.port(), 20);
    let noise: Vec<Vec<u8>> = [1, 65, 66, 1400].iter().map(|length| vec![0xa5; *length]).collect();
    let change = |at: usize| real.iter().map(|one| changed(one, at)).collect::<Vec<_>>();
    let outside = game.host(2);
    target.attack(&outside, &noise);
    target.attack(&outside, &change(SECRET));
    target.attack(&outside, &change(INCARNATION));
    target.attack(&outside, &change(DESTINATION));
    target.attack(&outside, &real);
    game.gets_on();
    let outcome = game.end();
    // What the socket's buffer had no room for was dropped by the kernel: at least some of each.
    for words in [
        "refused: wrong secret",
        "refused: wrong incarnation",
        "refused: misdirected",
        "refused: duplicate",
    ] {
        let count = counted(&outcome, words);
        assert!(count > 0, "no {words:?}: {outcome}");
    }
}

#[test]
fn packets_of_an_earlier_job_are_dropped_and_counted() {
    if !place::can_enter("packets_of_an_earlier_job") {
        return;
    }
    let Some(first) = Game::start() else { return };
    let target = Target::of(&first);
    let old = overheard(&target.place, target.address.port(), 50);
    let _ = first.end();
    let Some(mut second) = Game::start() else { return };
    let target = Target::of(&second);
    target.attack(&second.host(2), &old);
    second.gets_on();
    let outcome = second.end();
    let count = counted(&outcome, "refused: wrong secret");
    assert!(count > 0, "none counted: {outcome}");
}
