//! Tests on two machines that adapters connect. Both machines run these tests at the same
//! time, in the order of their names. Only `cargo xtask vm -machines 2` runs them.

use crate::testbed::*;
use score_pm::*;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// The number of bytes that are written to and read from the other node's memory. Such a burst fits
/// into the wires, which are sockets and drop longer bursts.
const LEN: usize = 60_000;

fn machine() -> Option<u32> {
    std::env::var("SCORE_VM_MACHINE").ok()?.parse().ok()
}

/// A connection to the other machine's test, over the wire that the adapter does not use.
struct SideChannel(TcpStream);

impl SideChannel {
    fn new(machine: u32) -> SideChannel {
        let address = "10.9.1.1:7000";
        if machine == 1 {
            return SideChannel(TcpListener::bind(address).unwrap().accept().unwrap().0);
        }
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => return SideChannel(stream),
                Err(why) => assert!(Instant::now() < end, "{why}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(&[&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()).unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len).unwrap();
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Waits until both machines have called this.
    fn synchronize(&mut self) {
        self.send(b"here");
        assert_eq!(self.receive(), b"here");
    }
}

/// The node of this machine in a job of two nodes.
struct MachineNode {
    /// The node number, 0 or 1.
    self_node: u32,
    peer: u32,
    side_channel: SideChannel,
    device: Device,
    opened: ContextRef,
    end: ContextRef,
}

impl MachineNode {
    fn new(machine: u32) -> MachineNode {
        let adapter = adapter().expect("an adapter");
        let (self_node, peer) = (machine - 1, 2 - machine);
        let mut side_channel = SideChannel::new(machine);
        let first = self_node as usize;
        let network =
            NetworkOptions { secret: Some(0x5eed), ..NetworkOptions::new(2, first..first + 1) };
        let options = VerbsOptions {
            network,
            link: Some(IpAddr::from([10, 9, 0, machine as u8])),
            adapter: AdapterChoice { device: Some(adapter.to_owned()), ..Default::default() },
        };
        let device = Device::open(options).unwrap();
        let addresses = device.addresses().unwrap();
        side_channel.send(&addresses);
        let peer_addresses = side_channel.receive();
        let table =
            if self_node == 0 { [addresses, peer_addresses] } else { [peer_addresses, addresses] };
        device.set_peers(&table.concat()).unwrap();
        let opened = device.open_context(0).unwrap();
        opened.bind_channel(0, self_node).unwrap();
        let end = Context::attach("verbs", opened.create_attach_fd().unwrap()).unwrap();
        MachineNode { self_node, peer, side_channel, device, opened, end }
    }

    fn link(&self, state: &str) {
        assert!(
            Command::new("ip").args(["link", "set", "wire0", state]).status().unwrap().success()
        );
    }

    /// Sends each message, and receives its echo.
    fn exchange(&self, messages: impl Iterator<Item = Vec<u8>>) {
        for message in messages {
            send_surely(&self.end, self.peer, &message);
            assert_eq!(receive_surely(&self.end), message);
        }
    }

    /// Receives `count` messages and sends them back.
    fn echo(&self, count: usize) {
        for _ in 0..count {
            let message = receive_surely(&self.end);
            send_surely(&self.end, self.peer, &message);
        }
    }

    fn wait_send_done(&self) {
        assert_eq!(retry_until_done(|| self.end.is_send_done()), Ok(()));
    }

    /// Returns `LEN` bytes of locked memory and their handle.
    fn memory(&self) -> (*mut u8, AddrHandle) {
        let addr = self.end.allocate_memory(LEN).unwrap();
        (addr, self.end.lock_memory(None, addr.addr(), LEN).unwrap())
    }
}

/// Runs a test on this machine's side.
fn between_machines(test: impl Fn(&mut MachineNode)) {
    let Some(machine) = machine() else { return };
    let _dog = Watchdog::new(200);
    test(&mut MachineNode::new(machine));
}

fn message(i: usize) -> Vec<u8> {
    vec![i as u8; 1 + i * 677 % 16_000]
}

#[test]
fn messages_and_remote_memory_work_between_machines() {
    between_machines(|node| {
        if node.self_node == 0 {
            node.exchange((0..20).map(message));
        } else {
            node.echo(20);
        }
        // Both nodes send at the same time, more than a window in all. There is always room for
        // half a window.
        for round in 0..5u32 {
            let messages = || (0..30).map(|i| (round * 30 + i).to_le_bytes());
            messages().for_each(|message| send_surely(&node.end, node.peer, &message));
            messages().for_each(|message| assert_eq!(receive_surely(&node.end), message));
        }
        let (addr, handle) = node.memory();
        node.side_channel.send(&handle.bits().to_le_bytes());
        let remote_bits = u64::from_le_bytes(node.side_channel.receive().try_into().unwrap());
        let remote = AddrHandle::from_bits(remote_bits);
        // Node 0 writes bytes. Node 1 checks and changes them, and node 0 reads them back.
        let pattern = |round: u8| -> Vec<u8> {
            let block: Vec<u8> = (0..4096).map(|i: usize| ((i * 31) >> 3) as u8 ^ round).collect();
            block.repeat(LEN.div_ceil(block.len()))[..LEN].to_vec()
        };
        // SAFETY: this is memory of this test, which waits for writes of the other node.
        let memory = || unsafe { std::slice::from_raw_parts_mut(addr, LEN) };
        if node.self_node == 0 {
            memory().copy_from_slice(&pattern(0));
            retry_until_done(|| node.end.write(1, remote, handle, LEN)).unwrap();
            send_surely(&node.end, 1, b"written");
            assert_eq!(receive_surely(&node.end), b"changed");
            retry_until_done(|| node.end.read(1, remote, handle, LEN)).unwrap();
            let statuses = (
                retry_until_done(|| node.end.is_write_done()),
                retry_until_done(|| node.end.is_read_done()),
            );
            assert_eq!(statuses, (Ok(()), Ok(())));
            assert!(*memory() == pattern(99));
        } else {
            assert_eq!(receive_surely(&node.end), b"written");
            assert!(*memory() == pattern(0));
            memory().copy_from_slice(&pattern(99));
            send_surely(&node.end, 0, b"changed");
        }
        node.wait_send_done();
        node.side_channel.synchronize();
    });
}

#[test]
fn traffic_resumes_after_a_link_was_down() {
    const COUNT: usize = 20;
    between_machines(|node| {
        if node.self_node == 1 {
            node.echo(5 + COUNT);
            return node.side_channel.synchronize();
        }
        node.exchange((0..5).map(message));
        node.link("down");
        (0..COUNT).for_each(|i| send_surely(&node.end, 1, &message(i)));
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(node.end.is_send_done(), Err(Error::Busy));
        node.link("up");
        (0..COUNT).for_each(|i| assert_eq!(receive_surely(&node.end), message(i)));
        node.wait_send_done();
        node.side_channel.synchronize();
    });
}

/// A queue pair that waits for an answer must still answer the reads of the other node.
#[test]
fn crossing_reads_and_messages_do_not_block_each_other() {
    const ROUNDS: usize = 80;
    between_machines(|node| {
        let (_, handle) = node.memory();
        node.side_channel.send(&handle.bits().to_le_bytes());
        let remote_bits = u64::from_le_bytes(node.side_channel.receive().try_into().unwrap());
        let remote = AddrHandle::from_bits(remote_bits);
        for i in 0..ROUNDS {
            for _ in 0..3 {
                retry_until_done(|| node.end.read(node.peer, remote, handle, 8)).unwrap();
                send_surely(&node.end, node.peer, &message(i % 7));
            }
            (0..3).for_each(|_| assert_eq!(receive_surely(&node.end), message(i % 7)));
        }
        assert_eq!(retry_until_done(|| node.end.is_read_done()), Ok(()));
        node.wait_send_done();
        node.side_channel.synchronize();
    });
}

#[test]
fn full_receivers_control_messages_and_sleepers_behave_as_within_a_machine() {
    between_machines(|node| {
        let (mut sent, mut buffer, mut len) = (0u32, [0; CONTROL_MTU], 0);
        // The other node does not receive yet.
        while send(&node.end, node.peer, &sent.to_le_bytes()).is_ok() {
            sent += 1;
            assert!(sent < 1000, "room without end");
        }
        node.opened.control_send(node.peer, b"control").unwrap();
        node.side_channel.send(&sent.to_le_bytes());
        let peer_sent = u32::from_le_bytes(node.side_channel.receive().try_into().unwrap());
        let received =
            retry_until_done(|| node.end.control_receive(&mut buffer, &mut len).map(drop));
        assert_eq!((received, &buffer[..len]), (Ok(()), &b"control"[..]));
        (0..peer_sent).for_each(|i| assert_eq!(receive_surely(&node.end), i.to_le_bytes()));
        for sleeper in 0..2 {
            node.wait_send_done();
            node.side_channel.synchronize();
            if node.self_node == sleeper {
                assert_eq!(blocking_receive(&node.end), b"wake");
            } else {
                std::thread::sleep(Duration::from_millis(200));
                send_surely(&node.end, node.peer, b"wake");
            }
        }
        node.wait_send_done();
        node.side_channel.synchronize();
    });
}

/// Only one machine is left afterwards, so the name of this test makes it the last one.
// Promise (messages): Two machines, over RoCE: messages and remote memory; a link that goes down
// and up; if a machine is switched off, operations towards it end when membership reports its exit,
// and nothing hangs.
#[test]
fn work_towards_a_machine_that_is_switched_off_ends_when_membership_reports_its_exit() {
    let Some(machine) = machine() else { return };
    let _dog = Watchdog::new(200);
    let mut node = MachineNode::new(machine);
    let (_, handle) = node.memory();
    node.side_channel.send(&handle.bits().to_le_bytes());
    let remote =
        AddrHandle::from_bits(u64::from_le_bytes(node.side_channel.receive().try_into().unwrap()));
    if machine == 1 {
        node.exchange((0..3).map(message));
        retry_until_done(|| node.end.write(1, remote, handle, LEN)).unwrap();
        assert_eq!(retry_until_done(|| node.end.is_write_done()), Ok(()));
    } else {
        node.echo(3);
    }
    node.side_channel.synchronize();
    if machine == 2 {
        // The harness reads this line as the exit code of the program.
        fs::write("/dev/ttyS0", "score-vm code 0\n").unwrap();
        Command::new("poweroff").arg("-f").status().unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
    // The other machine is silent from now on, as if its cable was pulled. Its kernel may need time
    // to stop.
    std::thread::sleep(Duration::from_secs(2));
    let end = &node.end;
    send_surely(end, 1, b"not received");
    retry_until_done(|| end.write(1, remote, handle, LEN)).unwrap();
    retry_until_done(|| end.read(1, remote, handle, LEN)).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(end.is_send_done(), Err(Error::Busy));
    assert_eq!(end.is_write_done(), Err(Error::Busy));
    node.device.peer_exited(1).unwrap();
    node.wait_send_done();
    assert_eq!(retry_until_done(|| end.is_write_done()), Err(Error::Io));
    assert_eq!(retry_until_done(|| end.is_read_done()), Err(Error::Io));
    send_surely(end, 1, b"dropped");
    retry_until_done(|| end.write(1, remote, handle, LEN)).unwrap();
    assert_eq!(retry_until_done(|| end.is_write_done()), Err(Error::Io));
    node.wait_send_done();
}
