//! Nodes, links and pipes in one thread, for the tests of the machines: links hold four messages,
//! inputs and outputs block now and then, by seed.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::hop::{Message, OVERHEAD};
use crate::post::{Failure, Machine, Post};

/// A source of choices that a failing test can repeat.
#[derive(Clone)]
pub struct Dice(Rc<RefCell<u64>>);

impl Dice {
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
    gone: Rc<RefCell<Vec<bool>>>,
    nodes: u32,
    mtu: usize,
}

impl Network {
    pub fn new(nodes: u32, mtu: usize) -> Self {
        let gone = Rc::new(RefCell::new(vec![false; nodes as usize]));
        Self { links: Links::default(), gone, nodes, mtu }
    }

    pub fn post(&self, node: u32) -> SimulatedPost {
        SimulatedPost { network: self.clone(), node }
    }
}

pub struct SimulatedPost {
    network: Network,
    node: u32,
}

impl Post for SimulatedPost {
    fn piece(&self, _node: u32) -> usize {
        self.network.mtu - OVERHEAD
    }

    fn send(&mut self, node: u32, message: Message<'_>) -> Result<bool, Failure> {
        assert!(message.len() <= self.network.mtu);
        if self.network.gone.borrow()[node as usize] {
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
        take: &mut dyn FnMut(Message<'_>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let found = (0..self.network.nodes).find_map(|from| {
            self.network.links.borrow_mut().get_mut(&(from, self.node))?.pop_front()
        });
        let Some(bytes) = found else { return Ok(false) };
        take(Message::read(&bytes)?)?;
        Ok(true)
    }
}

/// An input with these bytes; reads are short and block now and then.
pub struct Feed {
    bytes: VecDeque<u8>,
    dice: Dice,
    fd: File,
}

impl Feed {
    pub fn new(bytes: &[u8], dice: &Dice) -> Self {
        let fd = File::open("/dev/null").unwrap();
        Self { bytes: bytes.iter().copied().collect(), dice: dice.clone(), fd }
    }
}

impl Read for Feed {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        if self.dice.below(3) == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = space.len().min(1 + self.dice.below(5000) as usize).min(self.bytes.len());
        for (slot, byte) in space.iter_mut().zip(self.bytes.drain(..count)) {
            *slot = byte;
        }
        Ok(count)
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An output that takes up to `limit` bytes and then has no reader any more.
pub struct Sink {
    got: Rc<RefCell<Vec<u8>>>,
    limit: usize,
    dice: Dice,
    fd: File,
}

impl Sink {
    pub fn new(limit: usize, dice: &Dice) -> (Self, Rc<RefCell<Vec<u8>>>) {
        let got = Rc::new(RefCell::new(Vec::new()));
        let fd = File::open("/dev/null").unwrap();
        (Self { got: got.clone(), limit, dice: dice.clone(), fd }, got)
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.dice.below(3) == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut got = self.got.borrow_mut();
        if got.len() >= self.limit {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(1 + self.dice.below(5000) as usize);
        got.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Steps all machines in a random order until all have finished; panics when they never do.
pub fn run(network: &Network, mut machines: Vec<Box<dyn Machine + '_>>, dice: &Dice) {
    let mut posts: Vec<_> = (0..network.nodes).map(|node| network.post(node)).collect();
    for _ in 0..2_000_000 {
        if machines.iter().all(|machine| machine.finished()) {
            return;
        }
        let node = dice.below(machines.len() as u64) as usize;
        if !machines[node].finished() {
            machines[node].step(&mut posts[node]).unwrap();
        }
        network.gone.borrow_mut()[node] = machines[node].finished();
    }
    let left: Vec<_> = machines.iter().map(|machine| machine.finished()).collect();
    panic!("no end in sight; finished: {left:?}");
}

/// A temporary file that has no name any more.
pub fn nameless_file() -> io::Result<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("score-commands-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
