//! What the tests of contexts need: a few nodes joined on one device, and short ways to use them.

#![allow(unsafe_code, dead_code)]

use score_pm::{Context, ContextRef, Device, Error, Result};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The kinds of context that the suite runs on.
pub const KINDS: [&str; 2] = ["shmem", "composite"];

/// Nodes of one channel, all in this process.
pub struct Bed {
    pub kind: &'static str,
    pub device: Device,
    /// The owner's contexts.
    pub opened: Vec<ContextRef>,
    /// The members of composites; the ends themselves on shmem.
    pub attached: Vec<ContextRef>,
    pub composite: Device,
    /// What is tested: node k is `ends[k]`.
    pub ends: Vec<ContextRef>,
}

impl Bed {
    pub fn new(kind: &'static str, nodes: usize) -> Bed {
        let count = nodes.to_string();
        let device = Device::open("shmem", &["-nodes", &count]).unwrap();
        let opened: Vec<_> = (0..nodes).map(|k| device.open_context(k).unwrap()).collect();
        let attach = |(k, context): (usize, &ContextRef)| {
            context.bind_channel(0, k as u32).unwrap();
            Context::attach("shmem", context.create_attach_fd().unwrap()).unwrap()
        };
        let attached: Vec<_> = opened.iter().enumerate().map(attach).collect();
        let composite = Device::open("composite", &["-nodes", &count]).unwrap();
        let all: Vec<_> = (0..nodes as u32).map(|k| (k, k)).collect();
        let join = |(k, member): (usize, &ContextRef)| {
            let end = composite.open_context(k).unwrap();
            end.associate_nodes(member, &all).unwrap();
            end
        };
        let ends = match kind {
            "composite" => attached.iter().enumerate().map(join).collect(),
            _ => attached.clone(),
        };
        Bed { kind, device, opened, attached, composite, ends }
    }

    /// Sum of sent and sum of received.
    pub fn sums(&self) -> (u64, u64) {
        let counters = (0..self.ends.len() as u32).map(|k| self.device.counters(k).unwrap());
        counters.fold((0, 0), |(s, r), c| (s + c.sent, r + c.received))
    }
}

pub fn on_every_kind(nodes: usize, test: impl Fn(&Bed)) {
    let _dog = Watchdog::new(120);
    for kind in KINDS {
        test(&Bed::new(kind, nodes));
    }
}

pub fn fill(buffer: *mut u8, bytes: &[u8]) {
    // SAFETY: callers have reserved as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
}

pub fn send(context: &Context, to: u32, bytes: &[u8]) -> Result<()> {
    fill(context.get_send_buffer(to, bytes.len())?, bytes);
    context.send()
}

/// Sends, however long the receiver takes.
pub fn send_surely(context: &Context, to: u32, bytes: &[u8]) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match send(context, to, bytes) {
            Ok(()) => return,
            Err(Error::NoBuffers | Error::Busy) => std::thread::yield_now(),
            Err(error) => panic!("send to {to}: {error}"),
        }
        assert!(Instant::now() < end, "no room for 60 s");
    }
}

/// The bytes of a message that was received.
pub fn bytes((at, len): (*mut u8, usize)) -> Vec<u8> {
    // SAFETY: what receive answers is readable until release.
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

pub fn receive(context: &Context) -> Result<Vec<u8>> {
    let message = bytes(context.receive()?);
    context.release_receive_buffer()?;
    Ok(message)
}

/// Receives, however long the sender takes.
pub fn receive_surely(context: &Context) -> Vec<u8> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match receive(context) {
            Ok(message) => return message,
            Err(Error::NoBuffers | Error::Busy) => std::thread::yield_now(),
            Err(error) => panic!("receive: {error}"),
        }
        assert!(Instant::now() < end, "no message for 60 s");
    }
}

/// Ends a test that hangs.
pub struct Watchdog(Option<mpsc::Sender<()>>);

impl Watchdog {
    pub fn new(seconds: u64) -> Watchdog {
        let (alive, done) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if done.recv_timeout(Duration::from_secs(seconds))
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                eprintln!("watchdog: {seconds} s are over");
                std::process::abort();
            }
        });
        Watchdog(Some(alive))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.take();
    }
}
