//! Tests with real processes over RDMA hardware: traffic, blocking receive, killed processes, an
//! exit after the last send, and a port that goes down. The tests do nothing if there is no
//! adapter. `cargo xtask test virtual` has one. A test starts this binary again with a role: see
//! [`role`].

use crate::roles::{self, echo};
use crate::testbed::*;
use score_pm::*;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The number of messages in tests that need many.
const MESSAGE_COUNT: u32 = 200;

/// An owner of contexts. Node 0 is in this process, and each other node in another process.
struct Nodes {
    device: Device,
    opened: Vec<ContextRef>,
    end: ContextRef,
}

impl Nodes {
    fn new(adapter: &str, count: usize) -> Nodes {
        let device = open_device("verbs", count, &["-device", adapter]);
        let opened: Vec<_> = (0..count).map(|k| device.open_context(k).unwrap()).collect();
        for (k, context) in opened.iter().enumerate() {
            context.bind_channel(0, k as u32).unwrap();
        }
        let end = Context::attach("verbs", opened[0].create_attach_fd().unwrap()).unwrap();
        Nodes { device, opened, end }
    }

    /// Starts this binary again as a node.
    fn start(&self, node: usize, role: &str) -> Process {
        let fd = self.opened[node].create_attach_fd().unwrap();
        roles::start(module_path!(), role, &fd)
    }

    /// Waits until all messages have arrived.
    fn wait_send_done(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.end.is_send_done() == Err(Error::Busy) {
            assert!(Instant::now() < end, "not arrived after 60 s");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// This is not a test, but the code of the other processes.
#[test]
fn role() {
    let Some(role) = roles::role() else { return };
    let _dog = Watchdog::new(300);
    if let Some(adapter) = role.strip_prefix("limited ") {
        return check_limited_adapter(adapter);
    }
    let end = Context::attach("verbs", roles::inherited_fd()).unwrap();
    match role.as_str() {
        "echo" => {
            echo(&end, receive_surely);
            end.detach().unwrap();
        }
        "blocking echo" => {
            echo(&end, blocking_receive);
            end.detach().unwrap();
        }
        "last words" => {
            for i in 0..MESSAGE_COUNT {
                send_surely(&end, 0, &i.to_le_bytes());
            }
            // As after kill -9, the process releases no resources and does not wait.
            std::process::abort();
        }
        other => panic!("no role {other}"),
    }
}

fn exchange(end: &Context, node: u32, count: usize) {
    for i in 0..count {
        let message = vec![i as u8; 1 + i * 677 % 4000];
        send_surely(end, node, &message);
        assert_eq!(receive_surely(end), message);
    }
}

#[test]
fn processes_exchange_messages_polling_and_sleeping() {
    let Some(adapter) = adapter() else { return };
    let _dog = Watchdog::new(120);
    let nodes = Nodes::new(adapter, 3);
    let others = [nodes.start(1, "echo"), nodes.start(2, "blocking echo")];
    for (node, process) in (1..).zip(others) {
        exchange(&nodes.end, node, 50);
        std::thread::sleep(Duration::from_millis(50));
        exchange(&nodes.end, node, 3);
        send_surely(&nodes.end, node, b"end");
        assert_eq!(receive_surely(&nodes.end), b"end");
        process.wait_for_success();
    }
}

#[test]
fn messages_sent_before_a_process_died_arrive_whole_and_in_order() {
    let Some(adapter) = adapter() else { return };
    let _dog = Watchdog::new(120);
    let nodes = Nodes::new(adapter, 2);
    let mut process = nodes.start(1, "last words");
    // This process does not receive for a while, so that many messages outlive their sender.
    let mut received = 0u32;
    while received < MESSAGE_COUNT / 2 {
        assert_eq!(receive_surely(&nodes.end), received.to_le_bytes());
        received += 1;
    }
    let mut remaining = Vec::new();
    while process.0.try_wait().unwrap().is_none() {
        remaining.extend(receive(&nodes.end));
    }
    nodes.device.mark_exited(1).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        nodes.device.serve().unwrap();
        remaining.extend(receive(&nodes.end));
        if remaining.len() == (MESSAGE_COUNT - received) as usize {
            break;
        }
        assert!(
            Instant::now() < end,
            "{} of {} arrived",
            remaining.len(),
            MESSAGE_COUNT - received
        );
    }
    for message in remaining {
        assert_eq!(message, received.to_le_bytes());
        received += 1;
    }
    while !nodes.device.is_idle().unwrap() {
        nodes.device.serve().unwrap();
        assert!(Instant::now() < end, "never idle");
    }
    assert_eq!(receive(&nodes.end), Err(Error::NoBuffers));
}

#[test]
fn messages_to_a_killed_process_wait_until_its_exit_is_reported_and_are_dropped() {
    let Some(adapter) = adapter() else { return };
    let _dog = Watchdog::new(120);
    let nodes = Nodes::new(adapter, 3);
    let mut victim = nodes.start(1, "echo");
    let other = nodes.start(2, "echo");
    exchange(&nodes.end, 1, 3);
    exchange(&nodes.end, 2, 3);
    victim.kill();
    let mut sent = 6;
    for _ in 0..10 {
        send_surely(&nodes.end, 1, b"not received");
        sent += 1;
    }
    // The queue pair fails, but PM returns no error until the owner reports the exit.
    for _ in 0..20 {
        assert_eq!(nodes.end.is_send_done(), Err(Error::Busy));
        std::thread::sleep(Duration::from_millis(50));
    }
    exchange(&nodes.end, 2, 3);
    sent += 3;
    nodes.device.mark_exited(1).unwrap();
    nodes.wait_send_done();
    send_surely(&nodes.end, 1, b"dropped");
    sent += 1;
    let local = nodes.device.counters(0).unwrap();
    assert_eq!(local.sent, sent);
    let (victim_counters, other_counters) =
        (nodes.device.counters(1).unwrap(), nodes.device.counters(2).unwrap());
    let received = local.received + victim_counters.received + other_counters.received;
    assert_eq!(
        received,
        local.sent + victim_counters.sent + other_counters.sent,
        "each is counted once"
    );
    send_surely(&nodes.end, 2, b"end");
    assert_eq!(receive_surely(&nodes.end), b"end");
    other.wait_for_success();
}

/// Sets the state of the link of the adapter in the virtual machine.
fn link(state: &str) {
    let words = ["link", "set", "wire0", state];
    assert!(Command::new("ip").args(words).status().unwrap().success());
}

// Promise (messages): Messages over RDMA hardware, on a real kernel with rdma_rxe: the suite of
// PM's functions, alone and in composites; processes that sleep, die, end after their last send,
// are killed; a port that goes down and up: nothing is lost, doubled or out of order.
#[test]
fn traffic_continues_after_a_port_was_down_and_no_message_is_lost() {
    let Some(adapter) = adapter() else { return };
    let _dog = Watchdog::new(120);
    let nodes = Nodes::new(adapter, 2);
    let other = nodes.start(1, "echo");
    exchange(&nodes.end, 1, 5);
    link("down");
    for i in 0..20u32 {
        send_surely(&nodes.end, 1, &i.to_le_bytes());
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(nodes.end.is_send_done(), Err(Error::Busy));
    link("up");
    for i in 0..20u32 {
        assert_eq!(receive_surely(&nodes.end), i.to_le_bytes());
    }
    exchange(&nodes.end, 1, 5);
    send_surely(&nodes.end, 1, b"end");
    assert_eq!(receive_surely(&nodes.end), b"end");
    other.wait_for_success();
}

/// A cgroup that limits the adapter objects of its processes.
struct Limits(PathBuf);

impl Limits {
    /// Creates the cgroup and moves this process into it.
    fn new() -> Limits {
        let root = PathBuf::from("/tmp/cgroups");
        fs::create_dir_all(&root).unwrap();
        if !root.join("cgroup.procs").exists() {
            let words = ["-t", "cgroup2", "cgroup"];
            assert!(Command::new("mount").args(words).arg(&root).status().unwrap().success());
        }
        fs::write(root.join("cgroup.subtree_control"), "+rdma").unwrap();
        let group = root.join(format!("limited-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.procs"), "0").unwrap();
        Limits(group)
    }

    /// Limits the adapter to `extra` more objects than there are now. Objects are queues, queue
    /// pairs and registrations.
    fn allow(&self, adapter: &str, extra: u32) {
        let now = fs::read_to_string(self.0.join("rdma.current")).unwrap();
        let line = now.lines().find(|line| line.starts_with(adapter)).unwrap();
        let count: u32 = line.split_once("hca_object=").unwrap().1.trim().parse().unwrap();
        let line = format!("{adapter} hca_object={}", count + extra);
        fs::write(self.0.join("rdma.max"), line).unwrap();
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        let _ = fs::write("/tmp/cgroups/cgroup.procs", "0");
        // If a cgroup that has a limit but no objects of an adapter is removed, the kernel keeps a
        // pointer to the limit. It uses this pointer when the adapter is removed
        // (kernel/cgroup/rdma.c, at least up to 6.1). Therefore the limit is removed first.
        let Some(adapter) = adapter() else { return };
        let _ = fs::write(self.0.join("rdma.max"), format!("{adapter} hca_object=max"));
        let _ = fs::remove_dir(&self.0);
    }
}

/// Tests an adapter with few objects. The first peer is connected at once, and the second peer when
/// more objects are allowed.
fn check_limited_adapter(adapter: &str) {
    let limits = Limits::new();
    let device = open_device("verbs", 3, &["-device", adapter]);
    let opened: Vec<_> = (0..3).map(|k| device.open_context(k).unwrap()).collect();
    let attach = |(k, context): (usize, &ContextRef)| {
        context.bind_channel(0, k as u32).unwrap();
        Context::attach("verbs", context.create_attach_fd().unwrap())
    };
    let ends: Vec<_> = opened.iter().enumerate().map(|it| attach(it).unwrap()).collect();
    // Both ends need buffers and a queue pair.
    limits.allow(adapter, 4);
    for i in 0..5u32 {
        send_surely(&ends[0], 1, &i.to_le_bytes());
        assert_eq!(receive_surely(&ends[1]), i.to_le_bytes());
    }
    for i in 0..5u32 {
        send_surely(&ends[0], 2, &i.to_le_bytes());
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(ends[0].is_send_done(), Err(Error::Busy));
    send_surely(&ends[1], 0, b"others go on");
    assert_eq!(receive_surely(&ends[0]), b"others go on");
    limits.allow(adapter, 50);
    for i in 0..5u32 {
        assert_eq!(receive_surely(&ends[2]), i.to_le_bytes());
    }
    limits.allow(adapter, 3);
    let second = open_device("verbs", 3, &["-device", adapter]);
    let context = second.open_context(0).unwrap();
    context.bind_channel(0, 0).unwrap();
    let refused = Context::attach("verbs", context.create_attach_fd().unwrap());
    assert_eq!(refused.map(drop), Err(Error::NoMemory));
    limits.allow(adapter, 1000);
}

// Promise (messages): An adapter without a free queue pair, queue or registration is named together
// with the remedy, when a context is opened and when a further peer connects; other peers continue,
// and messages arrive when there is space.
#[test]
fn an_exhausted_adapter_is_named_and_messages_wait_for_it() {
    let Some(adapter) = adapter() else { return };
    let _dog = Watchdog::new(120);
    let child = roles::command(module_path!(), &format!("limited {adapter}"))
        .env("PM_DEBUG", "0")
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("cgroup")).collect();
    let [connect_errors @ .., open_error] = &lines[..] else { panic!("{stderr}") };
    // Each end reports this at most once.
    assert!((1..=3).contains(&connect_errors.len()), "{stderr}");
    let name = format!("RDMA adapter {adapter} ");
    let reason = "(the limit of its cgroup: rdma.max)";
    for line in connect_errors {
        assert!(line.contains("cannot connect to node ") && line.ends_with("; retrying"));
        assert!(line.contains(&name) && line.contains(reason), "{stderr}");
    }
    assert!(open_error.contains(&name) && open_error.ends_with(reason), "{stderr}");
}
