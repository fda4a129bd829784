//! Tests with several processes on one NIC, and with foreign traffic.

use super::bed::{Host, as_root, pair};
use super::traffic::{Payload, TestWire, add_peers, check_transfer, header, open_pair};
use super::{choices, is_xdp_attached};
use score_pm::wire::fault_injection::FaultConfig;
use score_pm::wire::{WireOptions, WirePreference};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

#[test]
fn two_processes_on_one_nic_get_their_own_packets_and_no_other() {
    const NAME: &str = "two_processes_on_one_nic_get_their_own_packets_and_no_other";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            // As in real jobs, the second process on a NIC uses AF_PACKET.
            let second =
                if choice == WirePreference::Xdp { WirePreference::Packet } else { choice };
            let [mut one, mut other] = open_pair(&hosts, choice, &payload);
            let options = WireOptions::on_interface(second, "eth0");
            let mut second_pair =
                [0, 1].map(|k| TestWire::open(&hosts[k], &options, k as u32 + 3, &payload));
            add_peers(&hosts, &mut second_pair);
            let [mut third, mut fourth] = second_pair;
            for round in 0..20 {
                let lens = [round * 10; 30];
                one.send_all(0, 0, &lens);
                third.send_all(0, 0, &lens);
                other.wait_for(1, 30, &payload);
                fourth.wait_for(3, 30, &payload);
                let received =
                    [&mut other, &mut fourth].map(|end| std::mem::take(&mut end.received));
                assert!(
                    received[0].keys().eq(&[1]) && received[1].keys().eq(&[3]),
                    "{choice:?}: {received:?}"
                );
                assert!(received[0][&1].iter().copied().eq(0..30));
                assert!(received[1][&3].iter().copied().eq(0..30));
            }
        }
    });
}

#[test]
fn foreign_traffic_passes_and_is_not_received() {
    const NAME: &str = "foreign_traffic_passes_and_is_not_received";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            let [mut one, mut other] = open_pair(&hosts, choice, &payload);
            let bind_udp = |k: usize, address: &str| {
                let socket = hosts[k].within(|| UdpSocket::bind(address)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                socket
            };
            let (near, far) = (bind_udp(0, "10.9.0.1:7000"), bind_udp(1, "10.9.0.2:7000"));
            assert_eq!(choice == WirePreference::Xdp, is_xdp_attached(&hosts[1]));
            let before = other.wire.stats().received;
            for round in 0..50u32 {
                near.send_to(&[round as u8; 1200], "10.9.0.2:7000").unwrap();
                one.send_all(0, round, &[500]);
                let mut buffer = [0; 2000];
                assert_eq!(far.recv(&mut buffer).unwrap(), 1200, "{choice:?}");
                assert_eq!(buffer[..1200], [round as u8; 1200]);
                other.wait_for(1, round as usize + 1, &payload);
            }
            assert!(other.take_received(1).into_iter().eq(0..50));
            assert_eq!(other.wire.stats().received - before, 50);
        }
    });
}

#[test]
fn malformed_frames_are_dropped_and_counted() {
    const NAME: &str = "malformed_frames_are_dropped_and_counted";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            if choice == WirePreference::Udp {
                continue;
            }
            let [mut one, mut other] = open_pair(&hosts, choice, &payload);
            let address = other.address();
            let (mac, port) = (&address[4..10], &address[10..12]);
            let frame = |len: u16, inside: &[u8]| {
                let mut frame = [mac, &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], port].concat();
                frame.extend(len.to_be_bytes());
                frame.extend(inside);
                frame
            };
            let valid_packet = header(9, 5, 0);
            let padded = [&valid_packet[..], &[0; 20]].concat();
            let bad_lengths =
                [frame(0, &valid_packet), frame(33, &valid_packet), frame(u16::MAX, &valid_packet)];
            let truncated =
                [frame(32, &valid_packet)[..16].to_vec(), frame(32, &valid_packet)[..17].to_vec()];
            let valid_frames = [frame(32, &valid_packet), frame(32, &padded)];
            hosts[0].within(|| {
                send_frames(&[&bad_lengths[..], &truncated[..], &valid_frames[..]].concat())
            });
            other.wait_for(9, 2, &payload);
            assert_eq!(other.take_received(9), [5, 5], "{choice:?}");
            // Frames that are shorter than the frame header do not reach the wire, but are passed
            // to other receivers.
            let malformed = other.wire.stats().malformed;
            assert!((3..=5).contains(&malformed), "{choice:?}: {malformed}");
            check_transfer(&mut one, &mut other, &[100; 2000], &payload);
            assert_eq!(
                other.wire.free_buffers(),
                other.wire.buffer_count(),
                "{choice:?}: no buffer leaks"
            );
        }
    });
}

/// Sends complete frames over `eth0` of this thread's host.
pub fn send_frames(frames: &[Vec<u8>]) {
    // SAFETY: the call accesses no memory.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
    assert!(socket >= 0);
    // SAFETY: this is plain data, for which all zeros are valid.
    let mut target: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    target.sll_family = libc::AF_PACKET as u16;
    // SAFETY: the string ends with 0.
    target.sll_ifindex = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) } as i32;
    let to_len = size_of_val(&target) as u32;
    for frame in frames {
        let (addr, len) = (frame.as_ptr().cast(), frame.len());
        // SAFETY: the frame and the address outlive the call.
        let sent =
            unsafe { libc::sendto(socket, addr, len, 0, (&raw const target).cast(), to_len) };
        assert_eq!(sent, len as isize);
    }
    // SAFETY: the descriptor was opened above, and is no longer used.
    unsafe { libc::close(socket) };
}

#[test]
fn loss_by_seed_drops_duplicates_and_reorders_and_leaks_no_frame() {
    const NAME: &str = "loss_by_seed_drops_duplicates_and_reorders_and_leaks_no_frame";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            let loss = FaultConfig::parse("drop=0.1,duplicate=0.1,reorder=0.1,seed=11").unwrap();
            let open = |k: usize, loss: Option<FaultConfig>| {
                let options = WireOptions { loss, ..WireOptions::on_interface(choice, "eth0") };
                TestWire::open(&hosts[k], &options, k as u32 + 1, &payload)
            };
            let mut wires = [open(0, None), open(1, Some(loss))];
            add_peers(&hosts, &mut wires);
            let [mut one, mut other] = wires;
            for batch in 0..100 {
                one.send_all(0, batch * 30, &[64; 30]);
                receive_all(&mut other, &payload);
            }
            let received = other.take_received(1);
            assert!(!received.is_sorted(), "{choice:?}: reordered");
            let mut distinct = received.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() < received.len(), "{choice:?}: duplicated");
            assert!(
                (2500..2900).contains(&distinct.len()),
                "{choice:?}: dropped, {}",
                distinct.len()
            );
            assert!(other.wire.stats().injected > 500);
            assert_eq!(
                other.wire.free_buffers(),
                other.wire.buffer_count(),
                "{choice:?}: no buffer leaks"
            );
        }
    });
}

/// Receives until no packet has arrived for a while. This includes packets that are delayed for
/// reordering.
fn receive_all(end: &mut TestWire, payload: &Payload) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut idle_polls = 0;
    while idle_polls < 200 && Instant::now() < deadline {
        idle_polls = if end.receive(payload) == 0 { idle_polls + 1 } else { 0 };
    }
}

#[test]
fn a_reader_that_keeps_all_buffers_starves_only_itself_and_recovers() {
    const NAME: &str = "a_reader_that_keeps_all_buffers_starves_only_itself_and_recovers";
    as_root(NAME, || {
        let payload = Payload::new();
        let hosts: [Host; 2] = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            let [mut one, mut other] = open_pair(&hosts, choice, &payload);
            let mut kept_packets = Vec::new();
            let end = Instant::now() + Duration::from_secs(60);
            while other.wire.stats().starved == 0 && other.wire.free_buffers() > 0 {
                assert!(Instant::now() < end);
                one.send(0, 0, &[1400; 32]);
                let mut out = [Default::default(); 64];
                let count = other.wire.receive(&mut out);
                kept_packets.extend_from_slice(&out[..count]);
            }
            assert!(
                kept_packets.len() >= other.wire.buffer_count() / 2,
                "{choice:?}: {}",
                kept_packets.len()
            );
            for packet in kept_packets {
                other.wire.release(packet.buffer);
            }
            receive_all(&mut other, &payload);
            other.received.clear();
            assert_eq!(other.wire.free_buffers(), other.wire.buffer_count(), "{choice:?}");
            check_transfer(&mut one, &mut other, &[1400; 1000], &payload);
        }
    });
}
