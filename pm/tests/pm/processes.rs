//! Tests with real processes: blocking receive, kills at critical moments, exit, and fork. A test
//! starts this binary again with a role: see [`role`].

use crate::roles::{self, echo};
use crate::testbed::*;
use score_pm::*;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// An owner of two contexts: node 0 in this process, and node 1 for another process.
struct TwoNodes {
    device: Device,
    _opened: Vec<ContextRef>,
    end: ContextRef,
    remote_fd: Option<OwnedFd>,
}

fn composite(member: &ContextRef) -> ContextRef {
    let device = Device::open(CompositeOptions::new(2)).unwrap();
    let end = device.open_context(0).unwrap();
    end.associate_nodes(member, &[(0, 0), (1, 1)]).unwrap();
    end
}

impl TwoNodes {
    fn new() -> TwoNodes {
        let device = Device::open(ShmemOptions::new(2)).unwrap();
        let opened: Vec<_> = (0..2).map(|k| device.open_context(k).unwrap()).collect();
        for (k, context) in opened.iter().enumerate() {
            context.bind_channel(0, k as u32).unwrap();
        }
        let local = Context::attach("shmem", opened[0].create_attach_fd().unwrap()).unwrap();
        let remote_fd = Some(opened[1].create_attach_fd().unwrap());
        TwoNodes { device, _opened: opened, end: composite(&local), remote_fd }
    }

    /// Starts this binary again as node 1.
    fn start(&mut self, role: &str) -> Process {
        let fd = self.remote_fd.take().unwrap();
        roles::start(module_path!(), role, &fd)
    }
}

/// This is not a test, but the code of the other process.
#[test]
fn role() {
    let Some(role) = roles::role() else { return };
    let _dog = Watchdog::new(300);
    let member = Context::attach("shmem", roles::inherited_fd()).unwrap();
    let end = composite(&member);
    match role.as_str() {
        "echo" => echo(&end, receive_surely),
        "blocking echo" => echo(&end, blocking_receive),
        "user" => user(&end),
        "stuck with a buffer" => hold_buffer_for_ever(&end),
        "flood" => loop {
            let _ = send(&end, 0, b"flood");
        },
        "leave" => {
            receive_surely(&end);
            send_surely(&end, 0, b"last words");
            drop(end);
            member.detach().unwrap();
        }
        other => panic!("no role {other}"),
    }
}

/// Receives a message as in figure 3.4 of the manual.
fn blocking_receive(end: &Context) -> Vec<u8> {
    let mut fds = [-1];
    end.get_fds(&mut fds).unwrap();
    end.before_select().unwrap();
    let message = loop {
        match receive(end) {
            Ok(message) => break message,
            Err(Error::Busy) => continue,
            Err(Error::NoBuffers) => {}
            Err(error) => panic!("{error}"),
        }
        let mut poll = libc::pollfd { fd: fds[0], events: libc::POLLIN, revents: 0 };
        // SAFETY: this is one valid pollfd, as the length says.
        let ready = unsafe { libc::poll(&mut poll, 1, 20_000) };
        assert_eq!(ready, 1, "a wake-up was lost");
    };
    end.after_select().unwrap();
    message
}

fn user(end: &Context) {
    assert_eq!(receive_surely(end), b"who are you?");
    assert_eq!(Device::open(ShmemOptions::new(2)).err(), Some(Error::Permission));
    assert!(Device::open(CompositeOptions::new(2)).is_ok());
    send_surely(end, 0, b"a user");
}

fn hold_buffer_for_ever(end: &Context) {
    send_surely(end, 0, b"one");
    fill(end.get_send_buffer(0, 1000).unwrap(), b"never sent");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn two_processes_exchange_messages_of_all_lengths() {
    let _dog = Watchdog::new(300);
    let mut pair = TwoNodes::new();
    let process = pair.start("echo");
    for i in 0..5000usize {
        let message = vec![i as u8; 1 + i * 13 % 8192];
        send_surely(&pair.end, 1, &message);
        assert_eq!(receive_surely(&pair.end), message);
    }
    send_surely(&pair.end, 1, b"end");
    assert_eq!(receive_surely(&pair.end), b"end");
    process.wait_for_success();
    for node in 0..2 {
        let counters = pair.device.counters(node).unwrap();
        assert_eq!((counters.sent, counters.received), (5001, 5001));
    }
}

// Promise (messages): A blocked receiver misses no message.
#[test]
fn a_blocked_receiver_never_misses_a_message() {
    let _dog = Watchdog::new(300);
    let mut pair = TwoNodes::new();
    let process = pair.start("blocking echo");
    let mut seed = 7u32;
    for i in 0..3000u32 {
        // Sometimes the other side already sleeps, and sometimes it is about to sleep.
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let sleep_end = Instant::now() + Duration::from_micros(u64::from(seed >> 16) % 100);
        while Instant::now() < sleep_end {
            std::hint::spin_loop();
        }
        send_surely(&pair.end, 1, &i.to_le_bytes());
        let answer =
            if i % 2 == 0 { blocking_receive(&pair.end) } else { receive_surely(&pair.end) };
        assert_eq!(answer, i.to_le_bytes());
    }
    send_surely(&pair.end, 1, b"end");
    assert_eq!(blocking_receive(&pair.end), b"end");
    process.wait_for_success();
}

#[test]
fn a_process_that_has_attached_is_a_user() {
    let _dog = Watchdog::new(300);
    let mut pair = TwoNodes::new();
    let process = pair.start("user");
    send_surely(&pair.end, 1, b"who are you?");
    assert_eq!(receive_surely(&pair.end), b"a user");
    process.wait_for_success();
}

#[test]
fn death_between_get_buffer_and_send_has_no_effect() {
    let _dog = Watchdog::new(300);
    let mut pair = TwoNodes::new();
    let mut process = pair.start("stuck with a buffer");
    assert_eq!(receive_surely(&pair.end), b"one");
    send_surely(&pair.end, 1, b"unread");
    process.kill();
    assert_eq!(receive(&pair.end), Err(Error::NoBuffers));
    pair.device.mark_exited(1).unwrap();
    assert_eq!(pair.device.counters(1).unwrap().sent, 1);
    let received: u64 = (0..2).map(|k| pair.device.counters(k).unwrap().received).sum();
    assert_eq!(received, 2);
    send_surely(&pair.end, 1, b"dropped");
    assert_eq!(pair.device.counters(0).unwrap(), {
        let current = pair.device.counters(0).unwrap();
        Counters { sent: 2, received: 2, ..current }
    });
}

#[test]
fn death_at_any_moment_of_a_flood_leaves_whole_messages() {
    let _dog = Watchdog::new(300);
    for round in 0..20u64 {
        let mut pair = TwoNodes::new();
        let mut process = pair.start("flood");
        for _ in 0..1000 + round * 321 {
            assert_eq!(receive_surely(&pair.end), b"flood");
        }
        process.kill();
        while let Ok(message) = receive(&pair.end) {
            assert_eq!(message, b"flood");
        }
        assert_eq!(receive(&pair.end), Err(Error::NoBuffers));
    }
}

#[test]
fn a_node_that_leaves_counts_its_unread_messages() {
    let _dog = Watchdog::new(300);
    let mut pair = TwoNodes::new();
    send_surely(&pair.end, 1, b"go");
    for _ in 0..10 {
        send_surely(&pair.end, 1, b"unread");
    }
    let process = pair.start("leave");
    assert_eq!(receive_surely(&pair.end), b"last words");
    process.wait_for_success();
    send_surely(&pair.end, 1, b"too late");
    let sums = (0..2).map(|k| pair.device.counters(k).unwrap());
    let (sent, received) = sums.fold((0, 0), |(s, r), c| (s + c.sent, r + c.received));
    assert_eq!((sent, received), (13, 13));
}

// Promise (messages): After fork the child has no contexts.
#[test]
fn after_fork_the_child_has_no_contexts_and_the_parent_continues() {
    let _dog = Watchdog::new(300);
    let mut pair = TwoNodes::new();
    let process = pair.start("echo");
    // SAFETY: the child calls only _exit and functions without locks that other threads may hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = pair.end.get_send_buffer(1, 8) == Err(Error::Invalid)
            && pair.end.receive() == Err(Error::Invalid)
            && pair.end.send() == Err(Error::Invalid)
            && pair.end.release_receive_buffer() == Err(Error::Invalid)
            && pair.end.config() == Err(Error::Invalid)
            && pair.end.before_select() == Err(Error::Invalid)
            && pair.end.close() == Err(Error::Invalid)
            && pair.end.reference().is_err();
        drop(pair.end.clone());
        // SAFETY: this ends the child.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: this waits for a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    send_surely(&pair.end, 1, b"end");
    assert_eq!(receive_surely(&pair.end), b"end");
    process.wait_for_success();
}
