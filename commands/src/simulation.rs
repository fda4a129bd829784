//! Nodes, links and pipes in one thread, for the tests of the node tasks. Links hold four messages.
//! Inputs and outputs block at random, depending on a seed.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::node_protocol::{HEADER_LEN, Message};
use crate::transport::{NodeError, NodeTask, Transport};

/// A random number generator with a seed, so that a failing test can be repeated.
#[derive(Clone)]
pub struct SeededRng(Rc<RefCell<u64>>);

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)))
    }

    pub fn below(&self, limit: u64) -> u64 {
        let mut state = self.0.borrow_mut();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) % limit
    }
}

type Links = Rc<RefCell<HashMap<(u32, u32), VecDeque<Vec<u8>>>>>;

/// The links of a parallel process.
#[derive(Clone)]
pub struct Network {
    links: Links,
    finished: Rc<RefCell<Vec<bool>>>,
    nodes: u32,
    mtu: usize,
}

impl Network {
    pub fn new(nodes: u32, mtu: usize) -> Self {
        let finished = Rc::new(RefCell::new(vec![false; nodes as usize]));
        Self { links: Links::default(), finished, nodes, mtu }
    }

    pub fn transport(&self, node: u32) -> SimulatedTransport {
        SimulatedTransport { network: self.clone(), node }
    }
}

pub struct SimulatedTransport {
    network: Network,
    node: u32,
}

impl Transport for SimulatedTransport {
    fn max_payload(&self, _node: u32) -> usize {
        self.network.mtu - HEADER_LEN
    }

    fn send(&mut self, node: u32, message: Message<'_>) -> Result<bool, NodeError> {
        assert!(message.len() <= self.network.mtu);
        if self.network.finished.borrow()[node as usize] {
            return Ok(true);
        }
        let mut links = self.network.links.borrow_mut();
        let link = links.entry((self.node, node)).or_default();
        if link.len() == 4 {
            return Ok(false);
        }
        let mut bytes = vec![0; message.len()];
        message.write(&mut bytes);
        link.push_back(bytes);
        Ok(true)
    }

    fn receive(
        &mut self,
        on_message: &mut dyn FnMut(Message<'_>) -> Result<(), NodeError>,
    ) -> Result<bool, NodeError> {
        let found = (0..self.network.nodes).find_map(|from| {
            self.network.links.borrow_mut().get_mut(&(from, self.node))?.pop_front()
        });
        let Some(bytes) = found else { return Ok(false) };
        on_message(Message::read(&bytes)?)?;
        Ok(true)
    }
}

/// An input with these bytes. Reads are short and block at random.
pub struct FakeInput {
    bytes: VecDeque<u8>,
    rng: SeededRng,
    fd: File,
}

impl FakeInput {
    pub fn new(bytes: &[u8], rng: &SeededRng) -> Self {
        let fd = File::open("/dev/null").unwrap();
        Self { bytes: bytes.iter().copied().collect(), rng: rng.clone(), fd }
    }
}

impl Read for FakeInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rng.below(3) == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = buffer.len().min(1 + self.rng.below(5000) as usize).min(self.bytes.len());
        for (slot, byte) in buffer.iter_mut().zip(self.bytes.drain(..count)) {
            *slot = byte;
        }
        Ok(count)
    }
}

impl AsFd for FakeInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An output that is closed after it has accepted at least `limit` bytes.
pub struct FakeOutput {
    written: Rc<RefCell<Vec<u8>>>,
    limit: usize,
    rng: SeededRng,
    fd: File,
}

impl FakeOutput {
    pub fn new(limit: usize, rng: &SeededRng) -> (Self, Rc<RefCell<Vec<u8>>>) {
        let written = Rc::new(RefCell::new(Vec::new()));
        let fd = File::open("/dev/null").unwrap();
        (Self { written: written.clone(), limit, rng: rng.clone(), fd }, written)
    }
}

impl Write for FakeOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.rng.below(3) == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut written = self.written.borrow_mut();
        if written.len() >= self.limit {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(1 + self.rng.below(5000) as usize);
        written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for FakeOutput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Steps all tasks in random order until all have finished. Panics if they do not finish.
pub fn run(network: &Network, mut tasks: Vec<Box<dyn NodeTask + '_>>, rng: &SeededRng) {
    let mut transports: Vec<_> = (0..network.nodes).map(|node| network.transport(node)).collect();
    for _ in 0..2_000_000 {
        if tasks.iter().all(|task| task.is_finished()) {
            return;
        }
        let node = rng.below(tasks.len() as u64) as usize;
        if !tasks[node].is_finished() {
            tasks[node].step(&mut transports[node]).unwrap();
        }
        network.finished.borrow_mut()[node] = tasks[node].is_finished();
    }
    let finished: Vec<_> = tasks.iter().map(|task| task.is_finished()).collect();
    panic!("the tasks do not finish; finished: {finished:?}");
}

/// A nameless temporary file.
pub fn nameless_file() -> io::Result<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("score-commands-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
