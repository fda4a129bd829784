//! Tests of events of links and processes while wires are in use.

use super::bed::{Host, as_root, cable, pair, skip};
use super::traffic::{HEADER, Payload, TestWire, add_peers, check_transfer, open_pair};
use super::{choices, is_xdp_attached};
use score_pm::wire::{ROUTED_MAX, Received, WireEndpoint, WireKind, WireOptions, WirePreference};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_link_that_fails_is_an_event_and_traffic_resumes_when_it_is_up_again() {
    const NAME: &str = "a_link_that_fails_is_an_event_and_traffic_resumes_when_it_is_up_again";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            let [mut one, mut other] = open_pair(&hosts, choice, &payload);
            check_transfer(&mut one, &mut other, &[100; 10], &payload);
            assert!(one.wire.link().up && other.wire.link().up);
            hosts[0].ip("link set eth0 down");
            assert!(!one.wire.link().up, "{choice:?}: switched off");
            assert!(!other.wire.link().up, "{choice:?}: no carrier");
            // These are more packets than fit into any queue. A link that is down must not fill its
            // queue.
            let end = Instant::now() + Duration::from_secs(30);
            let mut accepted = 0;
            while accepted < 2000 && Instant::now() < end {
                accepted += one.send(0, STALE, &[100; 50]);
            }
            assert!(accepted >= 2000, "{choice:?}: {accepted}");
            let fault = one.wire.take_fault().expect("the wire reports a fault");
            assert!(fault.is_link_down(), "{choice:?}: {fault:?}");
            other.send(0, STALE, &[100; 10]);
            hosts[0].ip("link set eth0 up");
            wait_until_up(&[&one, &other]);
            resume(&mut one, &mut other, &payload);
            resume(&mut other, &mut one, &payload);
            assert_eq!(one.wire.take_fault().filter(|fault| !fault.is_link_down()), None);
        }
    });
}

#[test]
fn bytes_that_are_not_mapped_are_lost_packets() {
    const NAME: &str = "bytes_that_are_not_mapped_are_lost_packets";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            let [mut one, mut other] = open_pair(&hosts, choice, &payload);
            let before = one.wire.stats();
            one.user_addr = Some(16);
            assert_eq!(one.send(0, STALE, &[900]), 1, "{choice:?}: taken");
            assert_eq!(one.send(0, STALE, &[900; 40]), 40, "{choice:?}: taken");
            let after = one.wire.stats();
            assert_eq!((after.sent, after.unsent), (before.sent, before.unsent + 41), "{choice:?}");
            assert!(one.wire.take_fault().is_some_and(|fault| !fault.is_link_down()));
            one.user_addr = None;
            check_transfer(&mut one, &mut other, &[100; 10], &payload);
        }
    });
}

fn wait_until_up(wires: &[&TestWire]) {
    let end = Instant::now() + Duration::from_secs(30);
    while !wires.iter().all(|end| end.wire.link().up) {
        assert!(Instant::now() < end, "the link is not up again");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The numbers of packets that were sent while the link was down. They may arrive late or never.
const STALE: u32 = 1_000_000;

/// Sends until a packet arrives, because entries of neighbour tables may have expired. Then checks
/// that all packets arrive.
fn resume(from: &mut TestWire, to: &mut TestWire, payload: &Payload) {
    let end = Instant::now() + Duration::from_secs(30);
    while to.received.values().flatten().all(|number| *number < STALE) && Instant::now() < end {
        from.send(0, STALE, &[8]);
        std::thread::sleep(Duration::from_millis(2));
        to.receive(payload);
    }
    from.send_all(0, 0, &[1000; 64]);
    let fresh_numbers = |to: &TestWire| -> Vec<u32> {
        to.received.values().flatten().copied().filter(|number| *number < STALE).collect()
    };
    while fresh_numbers(to).len() < 64 && Instant::now() < end {
        to.receive(payload);
    }
    assert!(fresh_numbers(to).into_iter().eq(0..64), "{:?}", to.received);
    to.received.clear();
}

#[test]
fn a_wire_whose_interface_was_removed_still_answers() {
    const NAME: &str = "a_wire_whose_interface_was_removed_still_answers";
    as_root(NAME, || {
        let payload = Payload::new();
        for choice in choices(NAME, &pair(1500), 1500) {
            let hosts = pair(1500);
            let [mut one, mut other] = open_pair(&hosts, choice, &payload);
            hosts[1].ip("link del eth0");
            assert_eq!((one.wire.link().up, one.wire.link().mtu), (false, 0));
            for end in [&mut one, &mut other] {
                for _ in 0..100 {
                    end.send(0, 0, &[100; 50]);
                    end.receive(&payload);
                }
                assert!(end.wire.take_fault().is_some_and(|fault| fault.is_link_down()));
            }
        }
    });
}

#[test]
fn the_owner_of_an_exited_process_continues_with_the_same_sockets() {
    const NAME: &str = "the_owner_of_an_exited_process_continues_with_the_same_sockets";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            let open = |k: usize| {
                hosts[k]
                    .within(|| WireEndpoint::open(&WireOptions::on_interface(choice, "eth0")))
                    .unwrap()
            };
            let (endpoint, peer) = (open(0), open(1));
            let owner_endpoint = endpoint.try_clone().unwrap();
            let attach_wire = |k: usize, endpoint: WireEndpoint| {
                hosts[k].within(|| TestWire::attach(endpoint, k as u32 + 1, &payload))
            };
            let mut wires = [attach_wire(0, endpoint), attach_wire(1, peer)];
            add_peers(&hosts, &mut wires);
            let [mut first, mut other] = wires;
            check_transfer(&mut first, &mut other, &[100; 700], &payload);
            check_transfer(&mut other, &mut first, &[100; 700], &payload);
            // The process exits with packets that it has not released, and packets that it has not
            // read.
            other.send_all(0, 0, &[100; 40]);
            let mut out = [Received::default(); 8];
            let end = Instant::now() + Duration::from_secs(30);
            while first.wire.receive(&mut out) == 0 && Instant::now() < end {}
            drop(first);
            other.send_all(0, 40, &[100; 40]);
            let second = attach_wire(0, owner_endpoint);
            let mut new_wires = [second, other];
            let address = new_wires[1].address();
            hosts[0].within(|| new_wires[0].wire.add_peer(&address)).unwrap();
            let [mut second, mut other] = new_wires;
            let end = Instant::now() + Duration::from_secs(30);
            let last_number =
                |end: &TestWire| end.received.get(&2).and_then(|numbers| numbers.last().copied());
            while last_number(&second) != Some(79) && Instant::now() < end {
                second.receive(&payload);
            }
            let received = second.take_received(2);
            assert!(received.is_sorted() && received.ends_with(&[79]), "{choice:?}: {received:?}");
            // These are more packets than any ring has, so that a lost buffer would be noticed.
            check_transfer(&mut other, &mut second, &[100; 3000], &payload);
            check_transfer(&mut second, &mut other, &[100; 3000], &payload);
        }
    });
}

#[test]
fn a_wire_is_rebuilt_from_its_description_and_its_descriptors_alone() {
    const NAME: &str = "a_wire_is_rebuilt_from_its_description_and_its_descriptors_alone";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            let wires = [0, 1].map(|k| {
                let options = WireOptions::on_interface(choice, "eth0");
                let endpoint = hosts[k].within(|| WireEndpoint::open(&options)).unwrap();
                let description = endpoint.describe();
                let duplicate_fds = || {
                    let clone = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
                    endpoint.descriptors().map(clone).collect::<Vec<_>>()
                };
                for len in 0..description.len() {
                    assert!(
                        WireEndpoint::rebuild(&description[..len], duplicate_fds()).is_err(),
                        "{len} bytes"
                    );
                }
                let mut too_few = duplicate_fds();
                too_few.pop();
                assert!(WireEndpoint::rebuild(&description, too_few).is_err());
                let mut wrong_fds = duplicate_fds();
                wrong_fds[0] = std::fs::File::open("/dev/null").unwrap().into();
                assert!(WireEndpoint::rebuild(&description, wrong_fds).is_err());
                let rebuilt = WireEndpoint::rebuild(&description, duplicate_fds()).unwrap();
                assert_eq!(rebuilt.address(), endpoint.address());
                TestWire::attach(rebuilt, k as u32 + 1, &payload)
            });
            let mut wires = wires;
            add_peers(&hosts, &mut wires);
            let [mut one, mut other] = wires;
            check_transfer(&mut one, &mut other, &[100; 100], &payload);
        }
    });
}

#[test]
fn packets_for_a_peer_behind_a_narrow_router_arrive() {
    const NAME: &str = "packets_for_a_peer_behind_a_narrow_router_arrive";
    as_root(NAME, || {
        let payload = Payload::new();
        let [one, router, other] = [Host::new(), Host::new(), Host::new()];
        cable(&one, &router, "eth0", 1, 9000);
        cable(&router, &other, "eth1", 2, 1280);
        router.run("sysctl", "-q -w net.ipv4.ip_forward=1");
        one.ip("route add 10.2.0.0/24 via 10.1.0.2");
        other.ip("route add 10.1.0.0/24 via 10.2.0.1");
        let open = |host: &Host, link: &str, number: u32| {
            TestWire::open(
                host,
                &WireOptions::on_interface(WirePreference::Udp, link),
                number,
                &payload,
            )
        };
        let (mut near_wire, mut far_wire) = (open(&one, "eth0", 1), open(&other, "eth1", 2));
        let (near_address, far_address) = (near_wire.address(), far_wire.address());
        let peer = one.within(|| near_wire.wire.add_peer(&far_address)).unwrap();
        assert!(peer.mtu >= 1024 + 64 && peer.mtu <= ROUTED_MAX, "{}", peer.mtu);
        other.within(|| far_wire.wire.add_peer(&near_address)).unwrap();
        check_transfer(&mut near_wire, &mut far_wire, &[1024; 200], &payload);
        check_transfer(&mut far_wire, &mut near_wire, &[peer.mtu - HEADER; 200], &payload);
    });
}

/// The environment variable that is set for the child of the test below.
const CHILD_ENV: &str = "SCORE_WIRES_CHILD";

#[test]
fn a_process_killed_by_sigkill_leaves_no_program_at_the_interface() {
    const NAME: &str = "a_process_killed_by_sigkill_leaves_no_program_at_the_interface";
    if std::env::var_os(CHILD_ENV).is_some() {
        let endpoint =
            WireEndpoint::open(&WireOptions::on_interface(WirePreference::Xdp, "eth0")).unwrap();
        let _end = TestWire::attach(endpoint, 1, &Payload::new());
        println!("\nattached");
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    as_root(NAME, || {
        let hosts = pair(1500);
        if !choices(NAME, &hosts, 1500).contains(&WirePreference::Xdp) {
            return;
        }
        let child = hosts[0].within(|| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", &format!("wires::faults::{NAME}"), "--nocapture"]);
            command.env(CHILD_ENV, "1").stdout(Stdio::piped()).spawn().unwrap()
        });
        let mut child = child;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let attached = lines.map_while(Result::ok).any(|line| line == "attached");
        let while_alive = is_xdp_attached(&hosts[0]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(attached && while_alive);
        let end = Instant::now() + Duration::from_secs(30);
        while is_xdp_attached(&hosts[0]) {
            assert!(Instant::now() < end, "the program is still there after 30 s");
            std::thread::sleep(Duration::from_millis(5));
        }
        // The next process gets the queue at once, or within the time that `open` waits.
        let next = hosts[0]
            .within(|| WireEndpoint::open(&WireOptions::on_interface(WirePreference::Raw, "eth0")))
            .unwrap();
        assert_eq!(next.kind(), WireKind::Xdp, "{:?}", next.note());
        assert!(is_xdp_attached(&hosts[0]));
        drop(next);
    });
}

#[test]
fn a_second_process_on_a_nic_uses_af_packet_and_reports_the_reason() {
    const NAME: &str = "a_second_process_on_a_nic_uses_af_packet_and_reports_the_reason";
    as_root(NAME, || {
        let hosts = pair(1500);
        let open = |options: &WireOptions| hosts[0].within(|| WireEndpoint::open(options));
        let first = open(&WireOptions::on_interface(WirePreference::Raw, "eth0")).unwrap();
        if first.kind() != WireKind::Xdp {
            let note = first.note().unwrap_or_default();
            assert!(note.contains("AF_PACKET is used instead"), "{note}");
            return skip(NAME, note);
        }
        let second = open(&WireOptions::on_interface(WirePreference::Raw, "eth0")).unwrap();
        assert_eq!(second.kind(), WireKind::Packet);
        let note = second.note().unwrap();
        assert!(note.starts_with("eth0: AF_XDP: ") && note.ends_with(" instead"), "{note}");
        let missing = open(&WireOptions::on_interface(WirePreference::Packet, "eth7"))
            .err()
            .unwrap()
            .to_string();
        assert!(missing.contains("eth7"), "{missing}");
        let no_ethernet = open(&WireOptions::on_interface(WirePreference::Raw, "lo")).err();
        assert!(no_ethernet.is_none_or(|error| error.to_string().contains("lo")));
    });
}
