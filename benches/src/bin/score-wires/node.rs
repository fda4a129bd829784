//! The device: messages through a composite context, as a program sends them.

// UNSAFETY: writes and reads messages where PM says they lie.
#![expect(unsafe_code)]

use crate::Result;
use crate::end::{exchange, say};
use crate::pass::{PATIENCE, Rounds, SIZE};
use score_pm::{AddrHandle, Context, ContextRef, Device, Error};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Empty polls between two looks at the clock.
const POLLS: u32 = 10_000;
/// What the sink lets pass before it measures: windows open meanwhile.
const WARM_UP: Duration = Duration::from_millis(200);

/// A device whose peer is not known yet.
pub struct Opened {
    own: u32,
    device: Device,
    context: ContextRef,
}

impl Opened {
    /// Opens the device of node 0 or 1 over these links.
    pub fn new(own: u32, wire: &str, links: &[String], loss: &str) -> Result<Opened> {
        let number = own.to_string();
        let mut options = vec!["-nodes", "2", "-local", "1", "-first", &number, "-wire", wire];
        options.extend(["-secret", "5c0e5c0e5c0e5c0e"]);
        options.extend(links.iter().flat_map(|link| ["-link", link]));
        if !loss.is_empty() {
            options.extend(["-loss", loss]);
        }
        let device = Device::open("ethernet", &options)?;
        if let Some(note) = device.note()? {
            return Err(note.into());
        }
        let context = device.open_context(0)?;
        context.bind_channel(0, own)?;
        Ok(Opened { own, device, context })
    }

    /// For the other.
    pub fn addresses(&self) -> Result<Vec<u8>> {
        Ok(self.device.addresses()?)
    }

    /// Attaches the context and joins it in a composite.
    pub fn meet(self, addresses: Vec<u8>) -> Result<Node> {
        let Opened { own, device, context } = self;
        let mut table = [device.addresses()?, addresses];
        if own == 1 {
            table.reverse();
        }
        device.set_peers(&table.concat())?;
        let member = Context::attach("ethernet", context.create_attach_fd()?)?;
        let composite = Device::open("composite", &["-nodes", "2"])?;
        let end = composite.open_context(0)?;
        for node in 0..2 {
            end.add_node(node, &member, node)?;
        }
        let (_ethernet, _devices) = ([context, member], [device, composite]);
        Ok(Node { end, peer: 1 - own, _ethernet, _devices })
    }
}

/// One of two nodes, each on a host of its own. What it was made from lives as long.
pub struct Node {
    end: ContextRef,
    peer: u32,
    _ethernet: [ContextRef; 2],
    _devices: [Device; 2],
}

impl Node {
    /// Sends a message. False: there is no room.
    pub fn try_send(&self, len: usize) -> Result<bool> {
        match self.end.get_send_buffer(self.peer, len) {
            Ok(buffer) => {
                // SAFETY: as many bytes were reserved.
                unsafe { std::ptr::write_bytes(buffer, 7, len) };
                self.end.send()?;
                Ok(true)
            }
            Err(Error::NoBuffers) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub fn send(&self, len: usize) -> Result<()> {
        let mut last = Instant::now() + PATIENCE;
        while !self.try_send(len)? {
            self.must_not_wait(&mut last)?;
        }
        Ok(())
    }

    #[cold]
    fn must_not_wait(&self, until: &mut Instant) -> Result<()> {
        if Instant::now() > *until { Err("the other end is silent".into()) } else { Ok(()) }
    }

    /// The length of a message that waits.
    pub fn try_receive(&self) -> Result<Option<usize>> {
        match self.end.receive() {
            Ok((at, len)) => {
                // SAFETY: readable until it is released.
                black_box(unsafe { at.read() });
                self.end.release_receive_buffer()?;
                Ok(Some(len))
            }
            Err(Error::NoBuffers) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// None: nothing comes for a long time.
    pub fn receive(&self) -> Result<Option<usize>> {
        let begin = Instant::now();
        loop {
            for _ in 0..POLLS {
                if let Some(len) = self.try_receive()? {
                    return Ok(Some(len));
                }
            }
            if begin.elapsed() > PATIENCE {
                return Ok(None);
            }
        }
    }

    fn ping(&self, time: Duration) -> Result<String> {
        let round = || {
            self.send(SIZE)?;
            self.receive()?.ok_or("nothing came")?;
            Ok(())
        };
        // The first message looks the way up.
        round()?;
        let mut rounds = Rounds::new(time);
        while rounds.go_on() {
            rounds.batch(round)?;
        }
        Ok(rounds.one_way())
    }

    fn echo(&self) -> Result<()> {
        while let Some(len) = self.receive()? {
            self.send(len)?;
        }
        Ok(())
    }

    /// What the context knows, when nothing comes that should.
    fn nothing_came(&self) -> Box<dyn std::error::Error> {
        let mut text = b"nothing came\n".to_vec();
        match self.end.dump(&mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into(),
            Err(error) => error.into(),
        }
    }

    /// Gbit/s of messages.
    fn sink(&self, time: Duration) -> Result<f64> {
        self.receive()?.ok_or_else(|| self.nothing_came())?;
        self.take_for(WARM_UP)?;
        let begin = Instant::now();
        let bytes = self.take_for(time)?;
        let rate = bytes as f64 * 8.0 / begin.elapsed().as_nanos() as f64;
        self.send(1)?;
        // Until the source has heard that, its messages must find somebody.
        self.take_for(Duration::from_millis(20))?;
        Ok(rate)
    }

    fn take_for(&self, time: Duration) -> Result<u64> {
        let (begin, mut bytes) = (Instant::now(), 0);
        while begin.elapsed() < time {
            for _ in 0..64 {
                bytes += self.try_receive()?.unwrap_or(0) as u64;
            }
        }
        Ok(bytes)
    }

    /// The longest message.
    pub fn mtu(&self) -> Result<usize> {
        Ok(self.end.mtu(self.peer)?)
    }

    /// Whether all that was sent is there.
    pub fn has_sent(&self) -> Result<bool> {
        match self.end.is_send_done() {
            Ok(()) => Ok(true),
            Err(Error::Busy) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the longest messages until the sink says that it has enough.
    fn source(&self) -> Result<()> {
        let len = self.mtu()?;
        let (mut began, mut idle) = (Instant::now(), 0);
        loop {
            for _ in 0..64 {
                if !self.try_send(len)? {
                    break;
                }
                idle = 0;
            }
            idle += 1;
            if idle == 1 {
                began = Instant::now();
            } else if idle % POLLS == 0 && began.elapsed() > PATIENCE / 2 {
                return Err(self.nothing_came());
            }
            if self.try_receive()?.is_some() {
                return Ok(());
            }
        }
    }
}

/// Remote memory: what is written and read goes round over this much, in pieces.
pub const AREA: usize = 4 << 20;
const PIECE: usize = 1 << 20;

impl Node {
    /// Locks memory: of pmAlloc, or other.
    pub fn area(&self, other: bool) -> Result<AddrHandle> {
        let area = match other {
            false => self.end.allocate_memory(AREA)?,
            true => Box::leak(vec![0; AREA].into_boxed_slice()).as_mut_ptr(),
        };
        // SAFETY: as long, and stays. Now it is there.
        unsafe { std::ptr::write_bytes(area, 7, AREA) };
        Ok(self.end.lock_memory(None, area.addr(), AREA)?)
    }

    /// Begins to move so many bytes, at the same place of both areas. False: there is no room.
    pub fn begin(&self, write: bool, areas: [AddrHandle; 2], at: u64, len: usize) -> Result<bool> {
        let [own, there] = areas.map(|area| area + at % AREA as u64);
        let moved = match write {
            true => self.end.write(self.peer, there, own, len),
            false => self.end.read(self.peer, there, own, len),
        };
        match moved {
            Ok(()) => Ok(true),
            Err(Error::NoBuffers) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether nothing is under way.
    pub fn has_moved(&self, write: bool) -> Result<bool> {
        match if write { self.end.is_write_done() } else { self.end.is_read_done() } {
            Ok(()) => Ok(true),
            Err(Error::Busy) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks memory, and tells and hears handles: own, and the other's.
    pub fn areas(&self, other: bool) -> Result<[AddrHandle; 2]> {
        let own = self.area(other)?;
        let bytes = own.bits().to_ne_bytes();
        // SAFETY: as many bytes are reserved.
        let tell = |at: *mut u8| unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), 8) };
        tell(self.end.get_send_buffer(self.peer, 8)?);
        self.end.send()?;
        let mut until = Instant::now() + PATIENCE;
        loop {
            match self.end.receive() {
                Ok((at, _)) => {
                    // SAFETY: the other says 8 bytes, aligned.
                    let bits = unsafe { at.cast::<u64>().read() };
                    self.end.release_receive_buffer()?;
                    return Ok([own, AddrHandle::from_bits(bits)]);
                }
                Err(Error::NoBuffers) => self.must_not_wait(&mut until)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gbit/s of pmWrite or pmRead, by the one who calls it.
    fn moves(&self, write: bool, other: bool, time: Duration) -> Result<f64> {
        let areas = self.areas(other)?;
        self.move_for(write, areas, WARM_UP)?;
        let begin = Instant::now();
        let bytes = self.move_for(write, areas, time)?;
        let rate = bytes as f64 * 8.0 / begin.elapsed().as_nanos() as f64;
        self.send(1)?;
        Ok(rate)
    }

    fn move_for(&self, write: bool, areas: [AddrHandle; 2], time: Duration) -> Result<u64> {
        let (begin, mut at) = (Instant::now(), 0u64);
        while begin.elapsed() < time {
            if self.begin(write, areas, at, PIECE)? {
                at += PIECE as u64;
            }
        }
        let mut until = Instant::now() + PATIENCE;
        while !self.has_moved(write)? {
            self.must_not_wait(&mut until)?;
        }
        Ok(at)
    }

    /// The other one, who only polls.
    fn is_moved(&self, other: bool) -> Result<()> {
        self.areas(other)?;
        self.receive()?.ok_or_else(|| self.nothing_came())?;
        Ok(())
    }
}

/// Measures (node 0) or serves.
pub fn run(
    what: &str,
    own: u32,
    wire: &str,
    time: Duration,
    (links, loss): (&[String], &str),
) -> Result<()> {
    let opened = Opened::new(own, wire, links, loss)?;
    let other = exchange(&opened.addresses()?)?;
    let node = opened.meet(other)?;
    match (what, own) {
        ("latency", 0) => say(&node.ping(time)?),
        ("latency", _) => node.echo(),
        ("bandwidth", 0) => say(&format!("{:.3}", node.sink(time)?)),
        ("bandwidth", _) => node.source(),
        ("write" | "read" | "write-other" | "read-other", _) => {
            let (write, other) = (what.starts_with("write"), what.ends_with("other"));
            match own {
                0 => say(&format!("{:.3}", node.moves(write, other, time)?)),
                _ => node.is_moved(other),
            }
        }
        _ if what.starts_with("beside-") => {
            let (write, other) = (what.starts_with("beside-write"), what.ends_with("other"));
            match own {
                0 => say(&node.beside(write, other, time)?),
                _ => node.is_beside(other),
            }
        }
        _ => Err(format!("end: {what}?").into()),
    }
}
