//! Tests the hosts of a LAN as programs use them. A test runs itself again on every host through
//! score-lan. So it needs no privileges if users may have user namespaces.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use score_lan::{BuildError, Lan, LanPlan};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The number of this host and the number of all hosts. The first process gets `None` after `test`
/// has succeeded on every host of the LAN, or was skipped.
fn host(test: &str, options: &[&str]) -> Option<(u32, u32)> {
    if let (Some(host), Some(hosts)) = (number("LAN_HOST"), number("LAN_HOSTS")) {
        return Some((host, hosts));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_score-lan"))
        .args(options)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(2) && stderr.contains("Operation not permitted") {
        skip(test, &stderr);
        return None;
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {stdout}{stderr}", output.status);
    None
}

/// Records a skipped test, as in the scenarios. `cargo xtask test` lists the skipped tests.
fn skip(test: &str, reason: &str) {
    let reason = reason.trim();
    eprintln!("SKIPPED {test}: {reason}");
    let Some(path) = std::env::var_os("HARNESS_SKIPS") else { return };
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(path) {
        let _ = writeln!(file, "{test}\t{reason}");
    }
}

fn addr(host: u32, link: u32, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(LanPlan::address(host, link)), port)
}

/// Connects to a host whose listener may not be ready yet.
fn connect(to: SocketAddr) -> TcpStream {
    let begin = Instant::now();
    loop {
        match TcpStream::connect_timeout(&to, Duration::from_secs(2)) {
            Ok(stream) => return stream,
            Err(error) if begin.elapsed() > TEST_TIMEOUT => panic!("{to}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn packets_received(nic: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{nic}:")));
    line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn check_that_all_pairs_connect(me: u32, hosts: u32, links: u32) {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(name.trim(), format!("local{me}"));
    for link in 0..links {
        let port = 7000 + link as u16;
        let listener = TcpListener::bind(addr(me, link, port)).unwrap();
        let others = (0..hosts).filter(|other| *other != me);
        let mut streams: Vec<TcpStream> =
            others.map(|other| connect(addr(other, link, port))).collect();
        streams.iter_mut().for_each(|stream| stream.write_all(&me.to_le_bytes()).unwrap());
        let mut seen = Vec::new();
        for _ in 1..hosts {
            let (mut stream, from) = listener.accept().unwrap();
            let mut word = [0; 4];
            stream.read_exact(&mut word).unwrap();
            assert_eq!(from.ip(), addr(u32::from_le_bytes(word), link, 0).ip());
            seen.push(u32::from_le_bytes(word));
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..hosts).filter(|other| *other != me)));
    }
}

// Promise of `a_trial_daemon_starts_on_every_virtual_host`.
#[test]
fn seven_hosts_on_two_networks_reach_each_other_and_have_names() {
    let test = "seven_hosts_on_two_networks_reach_each_other_and_have_names";
    if let Some((me, hosts)) = host(test, &["-hosts", "7", "-links", "2"]) {
        check_that_all_pairs_connect(me, hosts, 2);
    }
}

#[test]
fn two_hosts_joined_directly_reach_each_other() {
    let test = "two_hosts_joined_directly_reach_each_other";
    if let Some((me, hosts)) = host(test, &["-hosts", "2"]) {
        check_that_all_pairs_connect(me, hosts, 1);
    }
}

#[test]
fn loopback_is_up_on_every_host() {
    if host("loopback_is_up_on_every_host", &["-hosts", "3"]).is_some() {
        let listener = TcpListener::bind("127.0.0.1:7100").unwrap();
        let _stream =
            TcpStream::connect_timeout(&listener.local_addr().unwrap(), TEST_TIMEOUT).unwrap();
    }
}

#[test]
fn a_jumbo_datagram_is_sent_in_one_packet() {
    let test = "a_jumbo_datagram_is_sent_in_one_packet";
    let Some((me, _)) = host(test, &["-hosts", "3", "-mtu", "9000"]) else { return };
    let data = vec![7; 8900];
    if me == 1 {
        let socket = UdpSocket::bind(addr(1, 0, 7200)).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let before = packets_received("eth0");
        let mut ready = connect(addr(0, 0, 7201));
        let mut buffer = vec![0; 10_000];
        assert_eq!(socket.recv(&mut buffer).unwrap(), data.len());
        // The datagram, and a few packets of the connection that signals the end.
        assert!(packets_received("eth0") - before < 6);
        ready.write_all(b"x").unwrap();
    } else if me == 0 {
        let listener = TcpListener::bind(addr(0, 0, 7201)).unwrap();
        let (mut ready, _) = listener.accept().unwrap();
        let socket = UdpSocket::bind(addr(0, 0, 0)).unwrap();
        socket.send_to(&data, addr(1, 0, 7200)).unwrap();
        ready.read_exact(&mut [0]).unwrap();
    }
}

// Promise of `a_trial_daemon_starts_on_every_virtual_host`.
#[test]
fn a_limit_slows_both_directions_of_a_link() {
    let test = "a_limit_slows_both_directions_of_a_link";
    let Some((me, _)) = host(test, &["-hosts", "2", "-rate", "80mbit"]) else { return };
    let bytes = 4 << 20;
    let mut stream = if me == 0 {
        TcpListener::bind(addr(0, 0, 7300)).unwrap().accept().unwrap().0
    } else {
        connect(addr(0, 0, 7300))
    };
    for sender in [0, 1] {
        let begin = Instant::now();
        let mut data = vec![1; bytes];
        if me == sender {
            stream.write_all(&data).unwrap();
        } else {
            stream.read_exact(&mut data).unwrap();
            // This takes 0.42 s at 80 Mbit/s, and a few milliseconds without a limit.
            let took = begin.elapsed();
            assert!(took > Duration::from_millis(250), "{took:?}");
        }
    }
}

/// Whether a datagram from host 0 reaches host 1.
fn is_delivered(lan: &Lan, to: &UdpSocket) -> bool {
    let from = lan.run_on_host(0, || UdpSocket::bind(addr(0, 0, 0)).unwrap()).unwrap();
    let _ = from.send_to(b"x", addr(1, 0, 7400));
    to.recv(&mut [0; 8]).is_ok()
}

// Promise of `a_trial_daemon_starts_on_every_virtual_host`.
#[test]
fn a_disconnected_link_carries_no_packets_until_it_is_connected_again() {
    // Each LAN has a thread of its own, because the build moves the thread.
    for hosts in [2, 3] {
        let thread = std::thread::spawn(move || {
            let lan = match Lan::build(&LanPlan::new(hosts)) {
                Ok(lan) => lan,
                Err(BuildError::Refused(reason)) => return skip("a_disconnected_link", &reason),
                Err(error) => panic!("{error}"),
            };
            let to = lan.run_on_host(1, || UdpSocket::bind(addr(1, 0, 7400)).unwrap()).unwrap();
            to.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            assert!(is_delivered(&lan, &to));
            lan.set_link(1, 0, false).unwrap();
            assert!(!is_delivered(&lan, &to));
            lan.set_link(1, 0, true).unwrap();
            // The kernel may take up to a second to detect the change.
            assert!((0..30).any(|_| is_delivered(&lan, &to)));
            let lan_netns = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
            lan.leave().unwrap();
            assert_ne!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), lan_netns);
        });
        thread.join().unwrap();
    }
}

#[test]
fn an_impossible_lan_is_refused_before_a_host_is_created() {
    let output = Command::new(env!("CARGO_BIN_EXE_score-lan"))
        .args(["-hosts", "4", "-mtu", "1", "true"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("mtu=1"), "{stderr}");
}
