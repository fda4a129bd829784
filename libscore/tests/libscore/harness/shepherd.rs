//! The shepherd of the tests.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::kill;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use score_pm::{ContextRef, Device, ShmemOptions};
use score_proto::carea::{AREA_LEN, BOARD_LEN, BOARD_MAGIC, area, board};
use score_proto::ids::{JobHostId, JobId, ProcessIndex};
use score_proto::message::{Call, NetworkSet, Reply, Welcome};
use score_proto::{PROTOCOL_VERSION, frame};
use score_sys::fd_passing;
use score_sys::memfd::create_sealed;
use score_sys::unix_socket::{autobound_datagram_socket, seqpacket_pair};

use super::{Process, TEST_TIMEOUT};

/// One node and the shepherd's end of its control socket.
pub struct Node {
    pub process: Process,
    pub socket: OwnedFd,
}

impl Node {
    /// The next call; `None` if the process has closed the socket.
    pub fn receive_call(&self) -> Option<Call> {
        let mut bytes = [0; 4096];
        match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(0) | Err(Errno::ECONNRESET) => None,
            Ok(len) => Some(frame::decode_datagram(&bytes[..len]).expect("a call")),
            Err(e) => panic!("no call comes: {e}"),
        }
    }

    /// The next call, if it arrives within a short time.
    pub fn poll_call(&self) -> Option<Call> {
        let mut poll_fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        (poll(&mut poll_fds, 10u8).unwrap() > 0).then(|| self.receive_call()).flatten()
    }

    /// Sends a reply with descriptors.
    pub fn answer(&self, reply: &Reply, fds: &[&OwnedFd]) {
        self.send(&frame::encode_datagram(reply).unwrap(), fds);
    }

    /// Sends any bytes.
    pub fn send(&self, bytes: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        fd_passing::send(&self.socket, bytes, &fds).unwrap();
    }

    /// Receives a call that has a number, and replies to it.
    pub fn serve(&self, error: i32) -> Call {
        let call = self.receive_call().expect("a call");
        let (Call::Barrier { id } | Call::Flush { id } | Call::SignalBroadcast { id, .. }) = call
        else {
            panic!("{call:?} has no number")
        };
        self.answer(&Reply::Done { id, error }, &[]);
        call
    }
}

/// One parallel process on one host.
pub struct Shepherd {
    pub nodes: Vec<Node>,
    pub board: OwnedFd,
    pub area: OwnedFd,
    pub notify_socket: UnixDatagram,
    pub dir: PathBuf,
    pub device: Option<Device>,
    contexts: Vec<ContextRef>,
    notify_socket_name: Vec<u8>,
}

impl Shepherd {
    /// Starts the processes, and receives the score_initialize call of each.
    pub fn start(program: &Path, nodes: u32) -> Self {
        static NEXT_ID: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = super::build::scratch(&format!("job-{number}"));
        let page = File::from(create_sealed("board", BOARD_LEN as u64).unwrap());
        page.write_all_at(&BOARD_MAGIC.to_le_bytes(), board::MAGIC as u64).unwrap();
        page.write_all_at(&PROTOCOL_VERSION.to_le_bytes(), board::VERSION as u64).unwrap();
        let area = create_sealed("area", AREA_LEN as u64 * u64::from(nodes)).unwrap();
        let (device, contexts) = network(nodes);
        let nodes = (0..nodes).map(|_| start(program)).collect();
        let (notify_socket, notify_socket_name) = autobound_datagram_socket().unwrap();
        let board = page.into();
        let shepherd =
            Self { nodes, board, area, notify_socket, dir, device, contexts, notify_socket_name };
        for node in &shepherd.nodes {
            let call = node.receive_call();
            assert_eq!(call, Some(Call::Attach { version: PROTOCOL_VERSION }));
        }
        shepherd
    }

    /// Starts the processes and replies to their score_initialize.
    pub fn start_and_welcome(program: &Path, nodes: u32) -> Self {
        let shepherd = Self::start(program, nodes);
        (0..nodes).for_each(|number| shepherd.welcome_node(number));
        shepherd
    }

    /// Like `start_and_welcome`. Also waits until the programs report that they are ready.
    pub fn welcome(program: &Path, nodes: u32) -> Self {
        let shepherd = Self::start_and_welcome(program, nodes);
        for node in &shepherd.nodes {
            assert_eq!(node.process.read_line(), "ready", "{:?}", node.process.stderr_lines());
        }
        shepherd
    }

    /// Replies to a node's score_initialize.
    pub fn welcome_node(&self, number: u32) {
        let attach_fd = self.contexts.get(number as usize).map(|c| c.create_attach_fd().unwrap());
        let mut fds = vec![&self.board, &self.area];
        fds.extend(&attach_fd);
        let welcome = Reply::Welcome(Box::new(self.welcome_message(number)));
        self.nodes[number as usize].answer(&welcome, &fds);
    }

    /// The welcome message for node `number`.
    pub fn welcome_message(&self, number: u32) -> Welcome {
        let nodes = self.nodes.len() as u32;
        let option = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
        Welcome {
            job: JobId(17),
            area: number,
            self_node: number,
            num_node: nodes,
            self_proc: ProcessIndex(number),
            num_proc: nodes,
            self_host: JobHostId(0),
            num_host: 1,
            networks: if nodes > 1 { vec![NetworkSet::one_host(nodes)] } else { Vec::new() },
            options: vec![
                option("nodes", Some("4")),
                option("stat", None),
                option("nodes", Some("8")),
            ],
            dir: self.dir.to_str().unwrap().to_owned(),
            notify_socket_name: self.notify_socket_name.clone(),
        }
    }

    /// Reads a word of a node's area.
    pub fn word(&self, node: usize, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        let file = File::from(self.area.try_clone().unwrap());
        file.read_exact_at(&mut bytes, (node * AREA_LEN + offset) as u64).unwrap();
        u32::from_le_bytes(bytes)
    }

    /// Writes a word of a node's area.
    pub fn set_word(&self, node: usize, offset: usize, value: u32) {
        let file = File::from(self.area.try_clone().unwrap());
        file.write_all_at(&value.to_le_bytes(), (node * AREA_LEN + offset) as u64).unwrap();
    }

    /// Number of notifications since the last call of this function.
    pub fn notification_count(&self) -> usize {
        let mut byte = [0; 2];
        std::iter::from_fn(|| self.notify_socket.recv(&mut byte).ok()).count()
    }

    /// A word of a thread slot.
    pub fn slot(&self, node: usize, slot: usize, field: usize) -> u32 {
        self.word(node, area::SLOTS + slot * area::SLOT_LEN + field)
    }

    /// Waits until a word has a value.
    pub fn await_word(&self, node: usize, offset: usize, value: u32) {
        let start = std::time::Instant::now();
        while self.word(node, offset) != value {
            assert!(start.elapsed() < TEST_TIMEOUT, "word {offset} is {}", self.word(node, offset));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sets how long the job has been stopped.
    pub fn stopped_for(&self, ns: u64) {
        let page = File::from(self.board.try_clone().unwrap());
        page.write_all_at(&ns.to_le_bytes(), board::STOPPED_NS as u64).unwrap();
    }

    /// Sends a signal to a node.
    pub fn signal(&self, node: usize, signal: nix::sys::signal::Signal) {
        kill(self.nodes[node].process.pid(), signal).unwrap();
    }
}

impl Drop for Shepherd {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn start(program: &Path) -> Node {
    let (ours, theirs) = seqpacket_pair().unwrap();
    let timeout = TimeVal::new(TEST_TIMEOUT.as_secs() as i64, 0);
    setsockopt(&ours, sockopt::ReceiveTimeout, &timeout).unwrap();
    let process = Process::start(program, &[], Some(("SCORE_CONTROL_FD", &theirs)));
    Node { process, socket: ours }
}

fn network(nodes: u32) -> (Option<Device>, Vec<ContextRef>) {
    if nodes == 1 {
        return (None, Vec::new());
    }
    let device = Device::open(ShmemOptions::new(nodes as usize)).unwrap();
    let bind = |node: u32| {
        let context = device.open_context(node as usize).unwrap();
        context.bind_channel(0, node).unwrap();
        context
    };
    let contexts = (0..nodes).map(bind).collect();
    (Some(device), contexts)
}
