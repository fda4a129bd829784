//! The ethernet device: several hosts, real processes, composites of both devices, loss, death.

#![allow(unsafe_code, missing_docs)]

#[path = "bed/mod.rs"]
mod bed;
#[path = "bed/hosts.rs"]
mod hosts;

use bed::*;
use hosts::*;
use score_pm::*;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Not a test of its own: what another process does.
#[test]
fn role() {
    let Some((role, given)) = Given::inherited() else { return };
    let _dog = Watchdog::new(300);
    let node = given.join();
    match role.as_str() {
        "echo" => echo(&node.end),
        "blocking echo" => blocking_echo(&node.end),
        "leave" => {
            last_words(&node.end);
            let Node { end, ethernet, .. } = node;
            end.remove_node(0).unwrap();
            end.remove_node(1).unwrap();
            drop(end);
            ethernet.detach().unwrap();
        }
        "exit at once" => {
            last_words(&node.end);
            // SAFETY: ends the process without any handler.
            unsafe { libc::_exit(0) };
        }
        "die" => {
            last_words(&node.end);
            // SAFETY: kills this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "compute" => compute(&node.end),
        other => panic!("no role {other}"),
    }
}

/// Answers every message to node 0, until it says the end.
fn echo(end: &Context) {
    loop {
        let message = receive_surely(end);
        send_surely(end, 0, &message);
        if message == b"end" {
            return;
        }
    }
}

/// Messages that a node sends before its end.
const LAST: u32 = 300;

/// Sends many messages as fast as there is room, and never polls again.
fn last_words(end: &Context) {
    for i in 0..LAST {
        send_surely(end, 0, &[&i.to_le_bytes()[..], &vec![7; i as usize * 3]].concat());
    }
}

/// Figure 3.4 of the manual.
fn blocking_receive(end: &Context) -> Vec<u8> {
    let mut fds = [-1];
    end.get_fds(&mut fds).unwrap();
    loop {
        end.before_select().unwrap();
        match receive(end) {
            Ok(message) => {
                end.after_select().unwrap();
                return message;
            }
            Err(Error::NoBuffers) => {}
            Err(error) => panic!("{error}"),
        }
        let mut poll = libc::pollfd { fd: fds[0], events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, as said.
        let ready = unsafe { libc::poll(&mut poll, 1, 30_000) };
        assert_eq!(ready, 1, "nobody rang for 30 s");
        end.after_select().unwrap();
    }
}

fn blocking_echo(end: &Context) {
    loop {
        let message = blocking_receive(end);
        send_surely(end, 0, &message);
        if message == b"end" {
            return;
        }
    }
}

/// Where a process that computes hears that it has done so for long enough. (A signal would not do:
/// the thread sanitizer runs a handler only when the thread calls something.)
fn address(process: u32) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("score-test-computes-{process}")).unwrap()
}

/// Calls no function of PM between a greeting and the word at its address.
fn compute(end: &Context) {
    let _dog = Watchdog::new(300);
    let socket = UnixDatagram::bind_addr(&address(std::process::id())).unwrap();
    socket.set_nonblocking(true).unwrap();
    send_surely(end, 0, b"computing");
    while socket.recv(&mut [0]).is_err() {
        (0..10_000).for_each(|_| std::hint::spin_loop());
    }
    let mut got = 0;
    while got < 200 {
        let message = receive_surely(end);
        assert_eq!(message, [got as u8; 700]);
        got += 1;
    }
    send_surely(end, 0, b"all there");
}

/// What the machine and the wires of a context have counted.
fn dump(context: &Context) -> String {
    let mut text = Vec::new();
    context.dump(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn whatever_was_sent_before_an_end_arrives_over_a_link_that_loses_packets() {
    let _dog = Watchdog::new(300);
    let loss = ["-loss", "drop=0.1,duplicate=0.02,reorder=0.05,seed=3"];
    for role in ["leave", "exit at once", "die"] {
        let hosts = Hosts::new(&[1, 1], &loss);
        let here = hosts.give(0).join();
        let child = hosts.start(1, role);
        let mut got = 0;
        while got < 5 {
            assert_eq!(receive_surely(&here.end)[..4], (got as u32).to_le_bytes(), "{role}");
            got += 1;
        }
        child.ends();
        hosts.exited(1);
        hosts.serve_while(|| {
            while let Ok(message) = receive(&here.end) {
                assert_eq!(message[..4], (got as u32).to_le_bytes(), "{role}");
                assert_eq!(message.len(), 4 + got * 3);
                got += 1;
            }
            got < LAST as usize || !hosts.hosts[1].ethernet.is_quiet().unwrap()
        });
        assert_eq!(hosts.sums(), (LAST.into(), LAST.into()), "{role}");
        // From now on what is sent there is dropped.
        for _ in 0..2000 {
            send(&here.end, 1, b"nobody").unwrap();
        }
        assert_eq!(here.end.is_send_done(), Ok(()));
        assert_eq!(hosts.sums(), (2000 + u64::from(LAST), 2000 + u64::from(LAST)), "{role}");
    }
}

#[test]
fn a_process_that_computes_takes_what_comes_and_acknowledges_it() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[1, 1], &[]);
    let here = hosts.give(0).join();
    let child = hosts.start(1, "compute");
    assert_eq!(receive_surely(&here.end), b"computing");
    for i in 0..200u32 {
        send_surely(&here.end, 1, &[i as u8; 700]);
    }
    let end = Instant::now() + Duration::from_secs(60);
    while here.end.is_send_done() == Err(Error::Busy) {
        assert!(Instant::now() < end, "not taken within 60 s: {}", dump(&here.end));
        std::thread::yield_now();
    }
    UnixDatagram::unbound().unwrap().send_to_addr(b".", &address(child.id() as u32)).unwrap();
    assert_eq!(receive_surely(&here.end), b"all there");
    assert!(child.ends().success());
}

#[test]
fn a_blocked_receiver_wakes_for_messages_of_both_devices() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[2, 1], &["-loss", "drop=0.02,seed=5"]);
    let here = hosts.give(0).join();
    let children: Vec<_> = (1..3).map(|node| hosts.start(node, "blocking echo")).collect();
    for round in 0..40u32 {
        for node in 1..3 {
            send_surely(&here.end, node, &round.to_le_bytes());
            assert_eq!(blocking_receive(&here.end), round.to_le_bytes());
        }
        std::thread::sleep(Duration::from_millis(u64::from(round % 4) * 7));
    }
    for node in 1..3 {
        send_surely(&here.end, node, b"end");
        assert_eq!(blocking_receive(&here.end), b"end");
    }
    assert!(children.into_iter().all(|child| child.ends().success()), "{}", dump(&here.end));
}

#[test]
fn what_is_called_done_has_arrived_whoever_makes_progress() {
    on_every_kind(2, |bed| {
        let (near, far) = (&bed.ends[0], &bed.ends[1]);
        let over = AtomicBool::new(false);
        let running = || !over.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            // Who receives here is often at it just when something is sent.
            scope.spawn(|| {
                while running() {
                    let _ = receive(near);
                }
            });
            scope.spawn(|| {
                while running() {
                    let _ = send(far, 0, b"traffic");
                }
            });
            for round in 0..300u32 {
                send_surely(near, 1, &round.to_le_bytes());
                while near.is_send_done().is_err() {
                    std::thread::yield_now();
                }
                let got = receive(far);
                if got != Ok(round.to_le_bytes().to_vec()) {
                    over.store(true, Ordering::Relaxed);
                    panic!("{}: message {round} was called done, and: {got:?}", bed.kind);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_process_that_was_stopped_for_seconds_is_no_dead_peer() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[1, 1], &[]);
    let here = hosts.give(0).join();
    let child = hosts.start(1, "echo");
    send_surely(&here.end, 1, b"before");
    assert_eq!(receive_surely(&here.end), b"before");
    // SAFETY: a signal to our child.
    let signal = |signal| unsafe { libc::kill(child.id(), signal) };
    signal(libc::SIGSTOP);
    let mut status = 0;
    // SAFETY: waits until our child stands still.
    unsafe { libc::waitpid(child.id(), &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status));
    send_surely(&here.end, 1, b"while it is stopped");
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(receive(&here.end), Err(Error::NoBuffers));
        assert_eq!(here.end.is_send_done(), Err(Error::Busy));
    }
    signal(libc::SIGCONT);
    assert_eq!(receive_surely(&here.end), b"while it is stopped");
    send_surely(&here.end, 1, b"end");
    assert_eq!(receive_surely(&here.end), b"end");
    assert!(child.ends().success());
}

#[test]
fn packets_of_another_job_are_dropped_and_counted() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[1, 1], &[]);
    let here = hosts.give(0).join();
    // Everything that such a device sends lands at the ports of the first job.
    let stranger = Device::open(
        "ethernet",
        &["-nodes", "2", "-first", "1", "-local", "1", "-link", "127.0.0.1", "-secret", "bad"],
    )
    .unwrap();
    let theirs = hosts.hosts[0].ethernet.addresses().unwrap();
    stranger.set_peers(&[theirs, stranger.addresses().unwrap()].concat()).unwrap();
    let context = stranger.open_context(0).unwrap();
    context.bind_channel(0, 1).unwrap();
    send(&context, 0, b"forged").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !dump(&here.end).contains("refused: wrong secret") {
        assert_eq!(receive(&here.end), Err(Error::NoBuffers));
        assert!(Instant::now() < end, "{}", dump(&here.end));
    }
    assert_eq!(context.is_send_done(), Err(Error::Busy));
}

#[test]
fn processes_on_several_hosts_talk_through_one_composite() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[2, 1, 3], &[]);
    let children: Vec<_> = (1..6).map(|node| hosts.start(node, "echo")).collect();
    let here = hosts.give(0).join();
    for round in 0..200usize {
        for node in 1..6 {
            let message: Vec<u8> = (0..1 + round * 37 % 1100).map(|i| (i * node) as u8).collect();
            send_surely(&here.end, node as u32, &message);
            assert_eq!(receive_surely(&here.end), message, "round {round} node {node}");
        }
    }
    for node in 1..6 {
        send_surely(&here.end, node, b"end");
        assert_eq!(receive_surely(&here.end), b"end");
    }
    assert!(children.into_iter().all(|child| child.ends().success()));
    // By shmem to node 1, by ethernet to all others.
    let sent = hosts.hosts[0].ethernet.counters(0).unwrap().sent;
    assert_eq!(sent, 4 * 201);
    let by_shmem = hosts.hosts[0].shmem.as_ref().unwrap().counters(0).unwrap().sent;
    assert_eq!(by_shmem, 201);
}
