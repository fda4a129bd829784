//! Tests of the ethernet device: several hosts, real processes, composites of both devices, packet
//! loss, and processes that are killed.

use crate::hosts::*;
use crate::roles::echo;
use crate::testbed::*;
use score_pm::*;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// This is not a test, but the code of the other processes.
#[test]
fn role() {
    let Some((role, given)) = InheritedNode::inherited() else { return };
    let _dog = Watchdog::new(300);
    let node = given.join();
    match role.as_str() {
        "echo" => echo(&node.end, receive_surely),
        "blocking echo" => echo(&node.end, blocking_receive),
        "leave" => {
            send_final_messages(&node.end);
            let Node { end, ethernet, .. } = node;
            end.remove_node(0).unwrap();
            end.remove_node(1).unwrap();
            drop(end);
            ethernet.detach().unwrap();
        }
        "exit at once" => {
            send_final_messages(&node.end);
            // SAFETY: this ends the process without calling a handler.
            unsafe { libc::_exit(0) };
        }
        "die" => {
            send_final_messages(&node.end);
            // SAFETY: this kills the calling process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "compute" => compute(&node.end),
        other => panic!("no role {other}"),
    }
}

/// The number of messages that a node sends before it ends.
const FINAL_MESSAGES: u32 = 300;

/// Sends many messages as fast as there is room, and does not poll afterwards.
fn send_final_messages(end: &Context) {
    for i in 0..FINAL_MESSAGES {
        send_surely(end, 0, &[&i.to_le_bytes()[..], &vec![7; i as usize * 3]].concat());
    }
}

/// Receives a message as in figure 3.4 of the manual.
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
        // SAFETY: this is one valid pollfd, as the length says.
        let ready = unsafe { libc::poll(&mut poll, 1, 30_000) };
        assert_eq!(ready, 1, "not woken for 30 s");
        end.after_select().unwrap();
    }
}

/// Returns the address at which a computing process receives the request to stop. A signal is not
/// enough, because the thread sanitizer runs a handler only when the thread calls a function.
fn stop_address(process: u32) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("score-test-computes-{process}")).unwrap()
}

/// Sends a message, and then calls no function of PM until the request to stop.
fn compute(end: &Context) {
    let _dog = Watchdog::new(300);
    let socket = UnixDatagram::bind_addr(&stop_address(std::process::id())).unwrap();
    socket.set_nonblocking(true).unwrap();
    send_surely(end, 0, b"computing");
    while socket.recv(&mut [0]).is_err() {
        (0..10_000).for_each(|_| std::hint::spin_loop());
    }
    let mut received = 0;
    while received < 200 {
        let message = receive_surely(end);
        assert_eq!(message, [received as u8; 700]);
        received += 1;
    }
    send_surely(end, 0, b"all there");
}

/// Returns the counters of a context's reliability machine and wires as text.
fn dump(context: &Context) -> String {
    let mut text = Vec::new();
    context.dump(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

// Promise (messages): `pmSend`, then exit, `_exit` or SIGKILL on a link that loses packets: every
// message arrives.
#[test]
fn messages_sent_before_a_process_ends_arrive_over_a_lossy_link() {
    let _dog = Watchdog::new(300);
    let loss = ["-loss", "drop=0.1,duplicate=0.02,reorder=0.05,seed=3"];
    for role in ["leave", "exit at once", "die"] {
        let hosts = Hosts::new(&[1, 1], &loss);
        let local = hosts.give(0).join();
        let child = hosts.start(1, module_path!(), role);
        let mut received = 0;
        while received < 5 {
            assert_eq!(receive_surely(&local.end)[..4], (received as u32).to_le_bytes(), "{role}");
            received += 1;
        }
        child.ends();
        hosts.exited(1);
        hosts.serve_while(|| {
            while let Ok(message) = receive(&local.end) {
                assert_eq!(message[..4], (received as u32).to_le_bytes(), "{role}");
                assert_eq!(message.len(), 4 + received * 3);
                received += 1;
            }
            received < FINAL_MESSAGES as usize || !hosts.hosts[1].ethernet.is_idle().unwrap()
        });
        assert_eq!(hosts.sums(), (FINAL_MESSAGES.into(), FINAL_MESSAGES.into()), "{role}");
        // From now on, messages to that node are dropped.
        for _ in 0..2000 {
            send(&local.end, 1, b"dropped").unwrap();
        }
        assert_eq!(local.end.is_send_done(), Ok(()));
        assert_eq!(
            hosts.sums(),
            (2000 + u64::from(FINAL_MESSAGES), 2000 + u64::from(FINAL_MESSAGES)),
            "{role}"
        );
    }
}

// Promise (messages): There is progress while the application computes or sleeps in select; a
// stopped process is not taken for dead; packets of another job are dropped and counted.
#[test]
fn a_computing_process_receives_and_acknowledges_packets() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[1, 1], &[]);
    let local = hosts.give(0).join();
    let child = hosts.start(1, module_path!(), "compute");
    assert_eq!(receive_surely(&local.end), b"computing");
    for i in 0..200u32 {
        send_surely(&local.end, 1, &[i as u8; 700]);
    }
    let end = Instant::now() + Duration::from_secs(60);
    while local.end.is_send_done() == Err(Error::Busy) {
        assert!(Instant::now() < end, "not received within 60 s: {}", dump(&local.end));
        std::thread::yield_now();
    }
    UnixDatagram::unbound().unwrap().send_to_addr(b".", &stop_address(child.id() as u32)).unwrap();
    assert_eq!(receive_surely(&local.end), b"all there");
    assert!(child.ends().success());
}

// Promise of `a_computing_process_receives_and_acknowledges_packets`.
#[test]
fn a_blocked_receiver_wakes_for_messages_of_both_devices() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[2, 1], &["-loss", "drop=0.02,seed=5"]);
    let local = hosts.give(0).join();
    let start_echo = |node| hosts.start(node, module_path!(), "blocking echo");
    let children: Vec<_> = (1..3).map(start_echo).collect();
    for round in 0..40u32 {
        for node in 1..3 {
            send_surely(&local.end, node, &round.to_le_bytes());
            assert_eq!(blocking_receive(&local.end), round.to_le_bytes());
        }
        std::thread::sleep(Duration::from_millis(u64::from(round % 4) * 7));
    }
    for node in 1..3 {
        send_surely(&local.end, node, b"end");
        assert_eq!(blocking_receive(&local.end), b"end");
    }
    assert!(children.into_iter().all(|child| child.ends().success()), "{}", dump(&local.end));
}

#[test]
fn a_completed_send_has_arrived_whichever_thread_makes_progress() {
    on_every_kind(2, |bed| {
        let (near, far) = (&bed.contexts[0], &bed.contexts[1]);
        let stop = AtomicBool::new(false);
        let running = || !stop.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            // This thread often receives at the moment when the main thread sends.
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
                let received = receive(far);
                if received != Ok(round.to_le_bytes().to_vec()) {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{}: message {round} was reported as done: {received:?}", bed.kind);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

// Promise of `a_computing_process_receives_and_acknowledges_packets`.
#[test]
fn a_process_that_was_stopped_for_seconds_is_no_dead_peer() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[1, 1], &[]);
    let local = hosts.give(0).join();
    let child = hosts.start(1, module_path!(), "echo");
    send_surely(&local.end, 1, b"before");
    assert_eq!(receive_surely(&local.end), b"before");
    // SAFETY: this sends a signal to a child of this process.
    let signal = |signal| unsafe { libc::kill(child.id(), signal) };
    signal(libc::SIGSTOP);
    let mut status = 0;
    // SAFETY: this waits until a child of this process has stopped.
    unsafe { libc::waitpid(child.id(), &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status));
    send_surely(&local.end, 1, b"while it is stopped");
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(receive(&local.end), Err(Error::NoBuffers));
        assert_eq!(local.end.is_send_done(), Err(Error::Busy));
    }
    signal(libc::SIGCONT);
    assert_eq!(receive_surely(&local.end), b"while it is stopped");
    send_surely(&local.end, 1, b"end");
    assert_eq!(receive_surely(&local.end), b"end");
    assert!(child.ends().success());
}

// Promise of `a_computing_process_receives_and_acknowledges_packets`.
#[test]
fn packets_of_another_job_are_dropped_and_counted() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[1, 1], &[]);
    let local = hosts.give(0).join();
    // The ports of the first job receive all packets of this device.
    let network = NetworkOptions { secret: Some(0xbad), ..NetworkOptions::new(2, 1..2) };
    let options = EthernetOptions::udp(network, vec!["127.0.0.1".to_owned()]);
    let foreign_device = Device::open(options).unwrap();
    let job_addresses = hosts.hosts[0].ethernet.addresses().unwrap();
    foreign_device
        .set_peers(&[job_addresses, foreign_device.addresses().unwrap()].concat())
        .unwrap();
    let context = foreign_device.open_context(0).unwrap();
    context.bind_channel(0, 1).unwrap();
    send(&context, 0, b"forged").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !dump(&local.end).contains("refused: wrong secret") {
        assert_eq!(receive(&local.end), Err(Error::NoBuffers));
        assert!(Instant::now() < end, "{}", dump(&local.end));
    }
    assert_eq!(context.is_send_done(), Err(Error::Busy));
}

// Promise (messages): Processes of several hosts communicate through one composite: by shmem on
// their own host, by ethernet with others; on each wire; with a link that is down for seconds; on
// trunks.
#[test]
fn processes_on_several_hosts_exchange_messages_through_one_composite() {
    let _dog = Watchdog::new(300);
    let hosts = Hosts::new(&[2, 1, 3], &[]);
    let start_echo = |node| hosts.start(node, module_path!(), "echo");
    let children: Vec<_> = (1..6).map(start_echo).collect();
    let local = hosts.give(0).join();
    for round in 0..200usize {
        for node in 1..6 {
            let message: Vec<u8> = (0..1 + round * 37 % 1100).map(|i| (i * node) as u8).collect();
            send_surely(&local.end, node as u32, &message);
            assert_eq!(receive_surely(&local.end), message, "round {round} node {node}");
        }
    }
    for node in 1..6 {
        send_surely(&local.end, node, b"end");
        assert_eq!(receive_surely(&local.end), b"end");
    }
    assert!(children.into_iter().all(|child| child.ends().success()));
    // Node 1 is reached by shmem, all other nodes by ethernet.
    let sent = hosts.hosts[0].ethernet.counters(0).unwrap().sent;
    assert_eq!(sent, 4 * 201);
    let shmem_sent = hosts.hosts[0].shmem.as_ref().unwrap().counters(0).unwrap().sent;
    assert_eq!(shmem_sent, 201);
}
