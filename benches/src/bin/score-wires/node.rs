//! Measures the device: sends messages through a composite context, as a program does.

// UNSAFETY: writes and reads messages in buffers of PM.
#![expect(unsafe_code)]

use crate::BenchResult;
use crate::controller::{exchange, write_line};
use crate::raw_packets::{IDLE_TIMEOUT, RoundTripTimer, SIZE};
use score_pm::wire::WirePreference;
use score_pm::wire::fault_injection::FaultConfig;
use score_pm::{
    AddrHandle, CompositeOptions, Context, ContextRef, Device, Error, EthernetOptions,
    NetworkOptions,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The number of empty polls between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 10_000;
/// The time for which the sink receives before it measures. During this time the windows open.
const WARM_UP_WINDOW: Duration = Duration::from_millis(200);

/// A device whose peer is not known yet.
pub struct UnconnectedDevice {
    self_node: u32,
    device: Device,
    context: ContextRef,
}

impl UnconnectedDevice {
    /// Opens the device of node 0 or 1 over these links.
    pub fn new(
        self_node: u32,
        wire: &str,
        links: &[String],
        loss: &str,
    ) -> BenchResult<UnconnectedDevice> {
        let first = self_node as usize;
        let network = NetworkOptions {
            secret: Some(0x5c0e_5c0e_5c0e_5c0e),
            ..NetworkOptions::new(2, first..first + 1)
        };
        let options = EthernetOptions {
            wire: WirePreference::parse(wire)?,
            loss: (!loss.is_empty()).then(|| FaultConfig::parse(loss)).transpose()?,
            ..EthernetOptions::udp(network, links.to_vec())
        };
        let device = Device::open(options)?;
        if let Some(note) = device.wire_note()? {
            return Err(note.into());
        }
        let context = device.open_context(0)?;
        context.bind_channel(0, self_node)?;
        Ok(UnconnectedDevice { self_node, device, context })
    }

    /// Returns the addresses of this device, for the peer.
    pub fn addresses(&self) -> BenchResult<Vec<u8>> {
        Ok(self.device.addresses()?)
    }

    /// Attaches the context, and joins it in a composite.
    pub fn connect(self, addresses: Vec<u8>) -> BenchResult<ConnectedNode> {
        let UnconnectedDevice { self_node, device, context } = self;
        let mut table = [device.addresses()?, addresses];
        if self_node == 1 {
            table.reverse();
        }
        device.set_peers(&table.concat())?;
        let member = Context::attach("ethernet", context.create_attach_fd()?)?;
        let composite = Device::open(CompositeOptions::new(2))?;
        let composite_context = composite.open_context(0)?;
        for node in 0..2 {
            composite_context.add_node(node, &member, node)?;
        }
        let (_ethernet, _devices) = ([context, member], [device, composite]);
        Ok(ConnectedNode { composite_context, peer: 1 - self_node, _ethernet, _devices })
    }
}

/// One of two nodes, each on its own host. It owns the objects from which it was made.
pub struct ConnectedNode {
    composite_context: ContextRef,
    peer: u32,
    _ethernet: [ContextRef; 2],
    _devices: [Device; 2],
}

impl ConnectedNode {
    /// Sends a message. Returns false if there is no free buffer.
    pub fn try_send(&self, len: usize) -> BenchResult<bool> {
        match self.composite_context.get_send_buffer(self.peer, len) {
            Ok(buffer) => {
                // SAFETY: `get_send_buffer` has reserved `len` bytes at `buffer`.
                unsafe { std::ptr::write_bytes(buffer, 7, len) };
                self.composite_context.send()?;
                Ok(true)
            }
            Err(Error::NoBuffers) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub fn send(&self, len: usize) -> BenchResult<()> {
        let mut deadline = Instant::now() + IDLE_TIMEOUT;
        while !self.try_send(len)? {
            self.check_deadline(&mut deadline)?;
        }
        Ok(())
    }

    #[cold]
    fn check_deadline(&self, deadline: &mut Instant) -> BenchResult<()> {
        if Instant::now() > *deadline { Err("the peer does not answer".into()) } else { Ok(()) }
    }

    /// Returns the length of the next message, if one has arrived.
    pub fn try_receive(&self) -> BenchResult<Option<usize>> {
        match self.composite_context.receive() {
            Ok((payload, len)) => {
                // SAFETY: the payload is readable until it is released below.
                black_box(unsafe { payload.read() });
                self.composite_context.release_receive_buffer()?;
                Ok(Some(len))
            }
            Err(Error::NoBuffers) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a message. Returns `None` if no message arrives for a long time.
    pub fn receive(&self) -> BenchResult<Option<usize>> {
        let begin = Instant::now();
        loop {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if let Some(len) = self.try_receive()? {
                    return Ok(Some(len));
                }
            }
            if begin.elapsed() > IDLE_TIMEOUT {
                return Ok(None);
            }
        }
    }

    fn ping(&self, time: Duration) -> BenchResult<String> {
        let round_trip = || {
            self.send(SIZE)?;
            self.receive()?.ok_or("no message arrived")?;
            Ok(())
        };
        // The first message resolves the peer's address.
        round_trip()?;
        let mut timer = RoundTripTimer::new(time);
        while timer.has_time_left() {
            timer.measure_batch(round_trip)?;
        }
        Ok(timer.one_way())
    }

    fn echo(&self) -> BenchResult<()> {
        while let Some(len) = self.receive()? {
            self.send(len)?;
        }
        Ok(())
    }

    /// Makes an error with the state of the context. It is used if an expected message does not
    /// arrive.
    fn receive_timeout_error(&self) -> Box<dyn std::error::Error> {
        let mut text = b"no message arrived\n".to_vec();
        match self.composite_context.dump(&mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into(),
            Err(error) => error.into(),
        }
    }

    /// Receives messages, and returns their rate in Gbit/s.
    fn sink(&self, time: Duration) -> BenchResult<f64> {
        self.receive()?.ok_or_else(|| self.receive_timeout_error())?;
        self.receive_for(WARM_UP_WINDOW)?;
        let begin = Instant::now();
        let bytes = self.receive_for(time)?;
        let rate = bytes as f64 * 8.0 / begin.elapsed().as_nanos() as f64;
        self.send(1)?;
        // The source sends until it receives this message, so its messages must still be received.
        self.receive_for(Duration::from_millis(20))?;
        Ok(rate)
    }

    fn receive_for(&self, time: Duration) -> BenchResult<u64> {
        let (begin, mut bytes) = (Instant::now(), 0);
        while begin.elapsed() < time {
            for _ in 0..64 {
                bytes += self.try_receive()?.unwrap_or(0) as u64;
            }
        }
        Ok(bytes)
    }

    /// Returns the length of the longest message.
    pub fn mtu(&self) -> BenchResult<usize> {
        Ok(self.composite_context.mtu(self.peer)?)
    }

    /// Whether everything that was sent has been received.
    pub fn is_send_done(&self) -> BenchResult<bool> {
        match self.composite_context.is_send_done() {
            Ok(()) => Ok(true),
            Err(Error::Busy) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the longest messages until the sink sends its end message.
    fn source(&self) -> BenchResult<()> {
        let len = self.mtu()?;
        let (mut idle_since, mut empty_rounds) = (Instant::now(), 0);
        loop {
            for _ in 0..64 {
                if !self.try_send(len)? {
                    break;
                }
                empty_rounds = 0;
            }
            empty_rounds += 1;
            if empty_rounds == 1 {
                idle_since = Instant::now();
            } else if empty_rounds % POLLS_PER_CLOCK_READ == 0
                && idle_since.elapsed() > IDLE_TIMEOUT / 2
            {
                return Err(self.receive_timeout_error());
            }
            if self.try_receive()?.is_some() {
                return Ok(());
            }
        }
    }
}

/// The bytes of remote memory. Writes and reads pass through this area in chunks, repeatedly.
pub const AREA: usize = 4 << 20;
const CHUNK_LEN: usize = 1 << 20;

impl ConnectedNode {
    /// Locks an area: memory of pmAlloc, or other memory.
    pub fn lock_area(&self, other_memory: bool) -> BenchResult<AddrHandle> {
        let area = match other_memory {
            false => self.composite_context.allocate_memory(AREA)?,
            true => Box::leak(vec![0; AREA].into_boxed_slice()).as_mut_ptr(),
        };
        // SAFETY: the area has `AREA` bytes and is never freed. Writing to it allocates its pages.
        unsafe { std::ptr::write_bytes(area, 7, AREA) };
        Ok(self.composite_context.lock_memory(None, area.addr(), AREA)?)
    }

    /// Starts to transfer `len` bytes, at the same offset in both areas. Returns false if the
    /// queue is full.
    pub fn begin_rma(
        &self,
        is_write: bool,
        areas: [AddrHandle; 2],
        offset: u64,
        len: usize,
    ) -> BenchResult<bool> {
        let [local_handle, remote_handle] = areas.map(|area| area + offset % AREA as u64);
        let result = match is_write {
            true => self.composite_context.write(self.peer, remote_handle, local_handle, len),
            false => self.composite_context.read(self.peer, remote_handle, local_handle, len),
        };
        match result {
            Ok(()) => Ok(true),
            Err(Error::NoBuffers) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether no operation is in flight.
    pub fn is_rma_done(&self, is_write: bool) -> BenchResult<bool> {
        match if is_write {
            self.composite_context.is_write_done()
        } else {
            self.composite_context.is_read_done()
        } {
            Ok(()) => Ok(true),
            Err(Error::Busy) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks memory and exchanges handles. Returns the local handle and the remote handle.
    pub fn exchange_areas(&self, other_memory: bool) -> BenchResult<[AddrHandle; 2]> {
        let local_handle = self.lock_area(other_memory)?;
        let bytes = local_handle.bits().to_ne_bytes();
        // SAFETY: the caller passes a buffer for which `get_send_buffer` has reserved 8 bytes.
        let write_handle =
            |dst: *mut u8| unsafe { dst.copy_from_nonoverlapping(bytes.as_ptr(), 8) };
        write_handle(self.composite_context.get_send_buffer(self.peer, 8)?);
        self.composite_context.send()?;
        let mut deadline = Instant::now() + IDLE_TIMEOUT;
        loop {
            match self.composite_context.receive() {
                Ok((payload, _)) => {
                    // SAFETY: the peer sends 8 bytes, and payloads are aligned. The payload is not
                    // released yet.
                    let bits = unsafe { payload.cast::<u64>().read() };
                    self.composite_context.release_receive_buffer()?;
                    return Ok([local_handle, AddrHandle::from_bits(bits)]);
                }
                Err(Error::NoBuffers) => self.check_deadline(&mut deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs pmWrite or pmRead as the origin, and returns Gbit/s.
    fn rma_loop(&self, is_write: bool, other_memory: bool, time: Duration) -> BenchResult<f64> {
        let areas = self.exchange_areas(other_memory)?;
        self.rma_for(is_write, areas, WARM_UP_WINDOW)?;
        let begin = Instant::now();
        let bytes = self.rma_for(is_write, areas, time)?;
        let rate = bytes as f64 * 8.0 / begin.elapsed().as_nanos() as f64;
        self.send(1)?;
        Ok(rate)
    }

    fn rma_for(&self, is_write: bool, areas: [AddrHandle; 2], time: Duration) -> BenchResult<u64> {
        let (begin, mut offset) = (Instant::now(), 0u64);
        while begin.elapsed() < time {
            if self.begin_rma(is_write, areas, offset, CHUNK_LEN)? {
                offset += CHUNK_LEN as u64;
            }
        }
        let mut deadline = Instant::now() + IDLE_TIMEOUT;
        while !self.is_rma_done(is_write)? {
            self.check_deadline(&mut deadline)?;
        }
        Ok(offset)
    }

    /// Acts as the target, which only polls.
    fn serve_rma(&self, other_memory: bool) -> BenchResult<()> {
        self.exchange_areas(other_memory)?;
        self.receive()?.ok_or_else(|| self.receive_timeout_error())?;
        Ok(())
    }
}

/// Measures (node 0) or serves (node 1).
pub fn run(
    measurement: &str,
    self_node: u32,
    wire: &str,
    time: Duration,
    (links, loss): (&[String], &str),
) -> BenchResult<()> {
    let opened = UnconnectedDevice::new(self_node, wire, links, loss)?;
    let remote_addresses = exchange(&opened.addresses()?)?;
    let node = opened.connect(remote_addresses)?;
    match (measurement, self_node) {
        ("latency", 0) => write_line(&node.ping(time)?),
        ("latency", _) => node.echo(),
        ("bandwidth", 0) => write_line(&format!("{:.3}", node.sink(time)?)),
        ("bandwidth", _) => node.source(),
        ("write" | "read" | "write-other" | "read-other", _) => {
            let (is_write, other_memory) =
                (measurement.starts_with("write"), measurement.ends_with("other"));
            match self_node {
                0 => write_line(&format!("{:.3}", node.rma_loop(is_write, other_memory, time)?)),
                _ => node.serve_rma(other_memory),
            }
        }
        _ if measurement.starts_with("beside-") => {
            let (is_write, other_memory) =
                (measurement.starts_with("beside-write"), measurement.ends_with("other"));
            match self_node {
                0 => write_line(&node.alternate(is_write, other_memory, time)?),
                _ => node.serve_alternation(other_memory),
            }
        }
        _ => Err(format!("end: {measurement}?").into()),
    }
}
