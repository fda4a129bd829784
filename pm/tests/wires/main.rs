//! Tests of the ethernet device's wires on real interfaces: loopback, and veth between network
//! namespaces.

// UNSAFETY: reads packets in the wire's buffers, and sends payloads from user memory.
#![allow(unsafe_code)]

mod bed;
mod faults;
mod foreign_traffic;
mod locked_socket;
mod traffic;

use bed::{Host, as_root, pair, skip};
use score_pm::wire::{PACKET_MAX, PeerNumber, WireEndpoint, WireOptions, WirePreference};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use traffic::{HEADER, Payload, TestWire, check_transfer, open_pair};

/// Returns the kinds of wire that this test can use between namespaces on this machine. The frames
/// of AF_XDP are at most a page long.
fn choices(name: &str, hosts: &[Host; 2], mtu: usize) -> Vec<WirePreference> {
    let mut available = vec![WirePreference::Udp, WirePreference::Packet];
    if mtu > 3800 {
        return available;
    }
    match hosts[0]
        .within(|| WireEndpoint::open(&WireOptions::on_interface(WirePreference::Xdp, "eth0")))
    {
        Ok(_) => available.push(WirePreference::Xdp),
        Err(error) => skip(&format!("{name} on AF_XDP"), &error.to_string()),
    }
    available
}

/// Whether an XDP program is attached to a host's interface.
fn is_xdp_attached(host: &Host) -> bool {
    host.ip("link show dev eth0").contains("xdp")
}

/// Returns lengths up to the longest one, so that packets end at various positions in batches,
/// buffers and segments.
fn lengths(mtu: usize) -> Vec<usize> {
    let max_len = mtu - HEADER;
    let mut lens = vec![0, 1, 8, 15, 16, 17, 200, 223, 224, 225, max_len - 1, max_len];
    lens.extend([max_len; 40]);
    lens.extend([max_len / 2; 9]);
    lens.extend((0..200).map(|k| k * 37 % max_len));
    lens.extend([8; 130]);
    lens.push(max_len);
    lens
}

#[test]
fn every_length_arrives_whole_and_in_order_on_udp_over_loopback() {
    let payload = Payload::new();
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let end = |number| match WireEndpoint::open(&WireOptions::udp(ip)) {
            Ok(endpoint) => Some(TestWire::attach(endpoint, number, &payload)),
            Err(error) if ip.is_ipv6() => {
                skip("UDP over IPv6 loopback", &error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        };
        let (Some(mut one), Some(mut other)) = (end(1), end(2)) else { continue };
        assert_eq!(one.wire.mtu(), PACKET_MAX, "loopback's MTU is larger than any buffer");
        let peer = one.wire.add_peer(&other.address()).unwrap();
        assert_eq!((peer.number, peer.mtu), (PeerNumber(0), PACKET_MAX));
        for user_addr in [None, Some(payload.start())] {
            one.user_addr = user_addr;
            check_transfer(&mut one, &mut other, &lengths(PACKET_MAX), &payload);
            let stats = one.wire.stats();
            assert!(stats.send_calls < stats.sent / 4, "batches need few calls: {stats:?}");
        }
    }
}

#[test]
fn every_length_arrives_whole_and_in_order_between_hosts() {
    const NAME: &str = "every_length_arrives_whole_and_in_order_between_hosts";
    as_root(NAME, || {
        let payload = Payload::new();
        for mtu in [1500, 9000] {
            let hosts = pair(mtu);
            for choice in choices(NAME, &hosts, mtu) {
                let [mut one, mut other] = open_pair(&hosts, choice, &payload);
                let packet = one.wire.mtu();
                // UDP needs 28 bytes of headers and 2 bytes of length, and packets have steps of 16
                // bytes. Raw wires need 4 bytes of port and length.
                let udp = (mtu - 28) / 16 * 16 - 2;
                assert_eq!(
                    packet,
                    if choice == WirePreference::Udp { udp } else { mtu - 4 },
                    "{choice:?}: the link's MTU is used"
                );
                check_transfer(&mut one, &mut other, &lengths(packet), &payload);
                other.user_addr = Some(payload.start());
                check_transfer(&mut other, &mut one, &lengths(packet), &payload);
                let stats = other.wire.stats();
                assert_eq!(
                    (stats.malformed, stats.starved, stats.overrun),
                    (0, 0, 0),
                    "{choice:?}"
                );
            }
        }
    });
}
