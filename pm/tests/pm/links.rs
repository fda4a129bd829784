//! Tests of the ethernet device over real links between network namespaces: each kind of wire,
//! links that go down, and trunks of two links.

use crate::remote::memory::share_region_ids;
use crate::testbed::*;
use crate::wires::bed::*;
use score_pm::*;
use std::time::{Duration, Instant};

/// Opens the devices and contexts of two nodes, those of node k on host k.
fn open(hosts: &[Host; 2], options: &[&str]) -> [(Device, ContextRef); 2] {
    let device = |k: usize| {
        let first = k.to_string();
        let job_options = ["-nodes", "2", "-first", &first, "-local", "1", "-secret", "feed"];
        let all_options = [&job_options[..], options].concat();
        let parsed = DeviceOptions::parse("ethernet", &all_options).unwrap();
        hosts[k].within(|| Device::open(parsed).unwrap())
    };
    let devices = [device(0), device(1)];
    let table = devices.iter().flat_map(|device| device.addresses().unwrap()).collect::<Vec<_>>();
    let mut number = 0;
    devices.map(|device| {
        device.set_peers(&table).unwrap();
        let context = device.open_context(0).unwrap();
        context.bind_channel(0, number).unwrap();
        // Sockets stay in the namespace in which they were opened, but libpm looks up routes in the
        // caller's namespace.
        hosts[number as usize].within(|| context.mtu(1 - number).unwrap());
        number += 1;
        (device, context)
    })
}

fn message(i: u32, mtu: usize) -> Vec<u8> {
    let len = 4 + (i as usize * 97) % (mtu - 4);
    let mut bytes = vec![i as u8; len];
    bytes[..4].copy_from_slice(&i.to_le_bytes());
    bytes
}

/// Sends `count` messages while `meanwhile` runs, and checks that they arrive once and in order.
fn stream(from: &Context, to: &Context, count: u32, meanwhile: impl FnOnce() + Send) {
    let mtu = from.config().unwrap().mtu;
    std::thread::scope(|scope| {
        scope.spawn(move || (0..count).for_each(|i| send_surely(from, 1, &message(i, mtu))));
        scope.spawn(meanwhile);
        for i in 0..count {
            assert_eq!(receive_surely(to), message(i, mtu), "message {i}");
        }
    });
    let end = Instant::now() + Duration::from_secs(60);
    while from.is_send_done() == Err(Error::Busy) {
        let _ = to.queue_status();
        assert!(Instant::now() < end, "not acknowledged for 60 s");
    }
}

/// Returns the number of packets that were sent over one of several links.
fn sent_over(context: &Context, link: u32) -> u64 {
    let text = dump(context);
    let line = text.lines().find(|line| line.trim_start().starts_with(&format!("link {link} ")));
    let words = line.and_then(|line| line.split_once(": ")).map(|(_, rest)| rest);
    let count = words.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    count.unwrap_or_else(|| panic!("{text}"))
}

/// Waits until both links are up. A link that was suspect or down is up after it has
/// answered.
fn wait_until_both_links_are_up(a: &Context, b: &Context) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let _ = (a.queue_status(), b.queue_status());
        let text = dump(a);
        if text.contains("link 0 up") && text.contains("link 1 up") {
            return;
        }
        assert!(Instant::now() < end, "not back after 60 s: {text}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

// Promise of `processes_on_several_hosts_exchange_messages_through_one_composite`.
#[test]
fn messages_cross_every_wire() {
    as_root("messages_cross_every_wire", || {
        let _dog = Watchdog::new(300);
        for wire in ["udp", "packet", "raw"] {
            for mtu in [1500, 9000] {
                let hosts = pair(mtu);
                let loss = "drop=0.01,duplicate=0.01,reorder=0.02,seed=4";
                let options = ["-wire", wire, "-link", "eth0", "-loss", loss];
                let [(_one, a), (_other, b)] = open(&hosts, &options);
                assert!(a.config().unwrap().mtu > mtu - 150, "{}", a.config().unwrap().mtu);
                stream(&a, &b, 5000, || ());
                send_surely(&b, 0, b"and back");
                assert_eq!(receive_surely(&a), b"and back");
            }
        }
    });
}

/// Returns `len` bytes of locked memory and their handle.
fn locked(end: &Context, len: usize) -> (Vec<u8>, AddrHandle) {
    let memory = vec![0; len];
    let handle = end.lock_memory(None, memory.as_ptr().addr(), len).unwrap();
    (memory, handle)
}

// Promise of `a_target_that_only_computes_is_written_and_read`.
#[test]
fn remote_memory_crosses_every_wire() {
    as_root("remote_memory_crosses_every_wire", || {
        let _ids = share_region_ids();
        let _dog = Watchdog::new(300);
        for wire in ["udp", "packet", "raw"] {
            for mtu in [1500, 9000] {
                let hosts = pair(mtu);
                let loss = "drop=0.01,duplicate=0.01,reorder=0.02,seed=4";
                let options = ["-wire", wire, "-link", "eth0", "-loss", loss];
                let [(_one, a), (_other, b)] = open(&hosts, &options);
                let len = 3 * 1024 * 1024 + 5;
                let ((mut from, local_handle), (_to, remote_handle)) =
                    (locked(&a, len), locked(&b, len));
                for (i, byte) in from.iter_mut().enumerate() {
                    *byte = (i ^ (i >> 8)) as u8;
                }
                a.write(1, remote_handle, local_handle, len).unwrap();
                let (read_back, read_handle) = locked(&a, len);
                a.read(1, remote_handle, read_handle, len).unwrap();
                let end = Instant::now() + Duration::from_secs(60);
                while a.is_read_done() == Err(Error::Busy) {
                    assert_eq!(b.receive(), Err(Error::NoBuffers));
                    assert!(Instant::now() < end, "{wire}: not read for 60 s: {}", dump(&a));
                }
                assert_eq!(a.is_write_done(), Ok(()), "{wire}: the write precedes the read");
                assert!(from == read_back, "{wire}, MTU {mtu}");
                // The contexts are dropped before the memory, which is still locked.
                drop((a, b));
            }
        }
    });
}

// Promise of `processes_on_several_hosts_exchange_messages_through_one_composite`.
#[test]
fn traffic_resumes_when_a_link_is_up_again_and_no_message_is_lost() {
    as_root("traffic_resumes_when_a_link_is_up_again_and_no_message_is_lost", || {
        let _dog = Watchdog::new(300);
        for wire in ["udp", "packet"] {
            let hosts = pair(1500);
            let [(_one, a), (_other, b)] = open(&hosts, &["-wire", wire, "-link", "eth0"]);
            stream(&a, &b, 100, || ());
            let start = Instant::now();
            stream(&a, &b, 20_000, || {
                std::thread::sleep(Duration::from_millis(5));
                hosts[0].ip("link set eth0 down");
                std::thread::sleep(Duration::from_secs(2));
                hosts[0].ip("link set eth0 up");
            });
            assert!(start.elapsed() < Duration::from_secs(60), "{}", dump(&a));
        }
    });
}

// Promise of `processes_on_several_hosts_exchange_messages_through_one_composite`.
#[test]
fn a_trunk_uses_both_of_its_links_and_continues_after_the_loss_of_one() {
    as_root("a_trunk_uses_both_of_its_links_and_continues_after_the_loss_of_one", || {
        let _dog = Watchdog::new(300);
        let hosts = pair(1500);
        cable(&hosts[0], &hosts[1], "eth1", 8, 1500);
        let link_options = ["-link", "eth0", "-link", "eth1"];
        let [(_one, a), (_other, b)] = open(&hosts, &link_options);
        stream(&a, &b, 5000, || ());
        wait_until_both_links_are_up(&a, &b);
        assert!((0..2).all(|link| sent_over(&a, link) > 500), "{}", dump(&a));
        stream(&a, &b, 20_000, || {
            std::thread::sleep(Duration::from_millis(5));
            hosts[0].ip("link set eth1 down");
        });
        hosts[0].ip("link set eth1 up");
        stream(&a, &b, 5000, || ());
        wait_until_both_links_are_up(&a, &b);
    });
}
