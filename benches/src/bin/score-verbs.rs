//! PM over RDMA hardware between two processes of this host, to be run beside perftest;
//! docs/verbs.md has the command line. Prints one figure a line, those that are named or all:
//!
//! latency NS       of 8 bytes one way, median
//! messages MIB     a second, of the longest messages
//! writes MIB       a second, of remote writes of 64 KiB
//! shares MIB       the same for the slowest of four processes that write at once
// UNSAFETY: writes to and reads from buffers that PM hands out, and inherits a descriptor.
#![expect(unsafe_code)]

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use score_pm::{AddrHandle, Context, ContextRef, Device, Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

const FD: &str = "SCORE_VERBS_FD";
const WRITES_ONLY: &str = "SCORE_VERBS_WRITES";
/// Round trips, messages and writes; the first ones do not count.
const TRIPS: usize = 1000;
const MESSAGES: usize = 1500;
const WRITES: usize = 500;
const WARM: usize = 50;
const WRITE: usize = 64 << 10;
/// Processes that write at once, and for how long.
const WRITERS: u32 = 4;
const SPAN: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let done = match std::env::var(FD) {
        Ok(fd) => attach(&fd).and_then(|end| match std::env::var_os(WRITES_ONLY) {
            Some(_) => writer(&end),
            None => peer(&end),
        }),
        Err(_) => measure(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("score-verbs: {error} (PM_DEBUG=1 says more)");
            ExitCode::FAILURE
        }
    }
}

fn send(end: &Context, to: u32, bytes: &[u8]) -> Result<()> {
    loop {
        match end.get_send_buffer(to, bytes.len()) {
            Ok(buffer) => {
                // SAFETY: as many bytes were reserved.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
                return end.send();
            }
            Err(Error::NoBuffers) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The next message's length, and its first 8 bytes.
fn receive(end: &Context) -> Result<(usize, u64)> {
    loop {
        match end.receive() {
            Ok((at, len)) => {
                // SAFETY: received, and read before its release.
                let word = if len < 8 { 0 } else { unsafe { at.cast::<u64>().read_unaligned() } };
                end.release_receive_buffer()?;
                return Ok((len, word));
            }
            Err(Error::NoBuffers) => {}
            Err(error) => return Err(error),
        }
    }
}

fn attach(fd: &str) -> Result<ContextRef> {
    let fd: i32 = fd.parse().map_err(|_| Error::Invalid)?;
    // SAFETY: inherited for this purpose.
    Context::attach("verbs", unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Answers each message of 8 bytes, and counts the others; locks memory for writes.
fn peer(end: &ContextRef) -> Result<()> {
    let memory = end.allocate_memory(WRITE)?;
    let handle = end.lock_memory(None, memory.addr(), WRITE)?;
    send(end, 0, &handle.bits().to_ne_bytes())?;
    loop {
        match receive(end)? {
            (8, 0) => break,
            (8, word) => send(end, 0, &word.to_ne_bytes())?,
            _ => {}
        }
    }
    end.unlock_memory(None, memory.addr(), WRITE)?;
    end.detach()
}

/// Writes where the first message says, for its time, and tells how many bytes a second.
fn writer(end: &ContextRef) -> Result<()> {
    let (_, there) = receive(end)?;
    let memory = end.allocate_memory(WRITE)?;
    let here = end.lock_memory(None, memory.addr(), WRITE)?;
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < SPAN {
        match end.write(0, AddrHandle::from_bits(there), here, WRITE) {
            Err(Error::NoBuffers) => {}
            other => other.map(|()| bytes += WRITE)?,
        }
    }
    while end.is_write_done() == Err(Error::Busy) {}
    end.is_write_done()?;
    let rate = bytes as f64 / start.elapsed().as_secs_f64();
    send(end, 0, &(rate as u64).to_ne_bytes())?;
    while end.is_send_done() == Err(Error::Busy) {}
    end.unlock_memory(None, memory.addr(), WRITE)?;
    end.detach()
}

/// A round trip: all that was sent before has arrived and was taken.
fn ask(end: &Context) -> Result<()> {
    send(end, 1, &1u64.to_ne_bytes())?;
    receive(end).map(drop)
}

/// Contexts of which the first is this process's and each other has one of its own.
struct Nodes {
    end: ContextRef,
    others: Vec<Child>,
    _opened: Vec<ContextRef>,
    _device: Device,
}

impl Nodes {
    fn start(count: u32, writes_only: bool) -> Result<Nodes> {
        let device = Device::open("verbs", &["-nodes", &count.to_string()])?;
        let opened: Vec<ContextRef> =
            (0..count as usize).map(|node| device.open_context(node)).collect::<Result<_>>()?;
        for (node, context) in (0..).zip(&opened) {
            context.bind_channel(0, node)?;
        }
        let others = opened[1..].iter().map(|context| start(context, writes_only));
        let others = others.collect::<Result<_>>()?;
        let end = Context::attach("verbs", opened[0].create_attach_fd()?)?;
        Ok(Nodes { end, others, _opened: opened, _device: device })
    }

    fn end_well(self) -> Result<()> {
        for mut other in self.others {
            let status = other.wait().map_err(|_| Error::Io)?;
            status.success().then_some(()).ok_or(Error::Io)?;
        }
        Ok(())
    }
}

/// This program again, as the node of that context.
fn start(context: &ContextRef, writes_only: bool) -> Result<Child> {
    let fd = context.create_attach_fd()?;
    // SAFETY: our descriptor; the other process has to inherit it.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) };
    let mut command = Command::new(std::env::current_exe().map_err(|_| Error::Io)?);
    command.env(FD, fd.as_raw_fd().to_string());
    if writes_only {
        command.env(WRITES_ONLY, "1");
    }
    let child = command.spawn().map_err(|_| Error::Io)?;
    if !writes_only {
        keep(std::process::id(), 0);
        keep(child.id(), 1);
    }
    Ok(child)
}

/// Keeps a process to a processor: two that poll on one would wait for ticks of the clock.
fn keep(process: u32, processor: usize) {
    let mut one = CpuSet::new();
    // Where there is no second one they share the first.
    let _ = one
        .set(processor)
        .and_then(|()| sched_setaffinity(Pid::from_raw(process.cast_signed()), &one));
}

fn measure() -> Result<()> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|other| other == name);
    if ["latency", "messages", "writes"].into_iter().any(wanted) {
        let nodes = Nodes::start(2, false)?;
        let end = &nodes.end;
        let (_, there) = receive(end)?;
        if wanted("latency") {
            latency(end)?;
        }
        if wanted("messages") {
            messages(end)?;
        }
        if wanted("writes") {
            writes(end, AddrHandle::from_bits(there))?;
        }
        send(end, 1, &0u64.to_ne_bytes())?;
        nodes.end_well()?;
    }
    if wanted("shares") {
        shares()?;
    }
    Ok(())
}

/// All write into the memory of one that sleeps.
fn shares() -> Result<()> {
    let nodes = Nodes::start(1 + WRITERS, true)?;
    let end = &nodes.end;
    let memory = end.allocate_memory(WRITE)?;
    let handle = end.lock_memory(None, memory.addr(), WRITE)?;
    for node in 1..=WRITERS {
        send(end, node, &handle.bits().to_ne_bytes())?;
    }
    std::thread::sleep(SPAN);
    let mut rates: Vec<u64> = Vec::new();
    for _ in 0..WRITERS {
        rates.push(receive(end)?.1);
    }
    let slowest = rates.iter().min().copied().unwrap_or(0);
    println!("shares {:.2}", slowest as f64 / f64::from(1 << 20));
    end.unlock_memory(None, memory.addr(), WRITE)?;
    nodes.end_well()
}

fn latency(end: &Context) -> Result<()> {
    let mut trips = Vec::new();
    for _ in 0..TRIPS + WARM {
        let start = ticks();
        ask(end)?;
        trips.push((ticks() - start) / 2);
    }
    let mut trips = trips.split_off(WARM);
    trips.sort_unstable();
    println!("latency {:.0}", trips[TRIPS / 2] as f64 * nanoseconds());
    Ok(())
}

fn messages(end: &Context) -> Result<()> {
    let message = vec![7; end.mtu(1)?];
    let mut start = Instant::now();
    for i in 0..MESSAGES + WARM {
        if i == WARM {
            ask(end)?;
            start = Instant::now();
        }
        send(end, 1, &message)?;
    }
    ask(end)?;
    println!("messages {:.1}", rate(MESSAGES * message.len(), start));
    Ok(())
}

fn writes(end: &Context, there: AddrHandle) -> Result<()> {
    let memory = end.allocate_memory(WRITE)?;
    let here = end.lock_memory(None, memory.addr(), WRITE)?;
    let mut start = Instant::now();
    for i in 0..WRITES + WARM {
        if i == WARM {
            while end.is_write_done() == Err(Error::Busy) {}
            start = Instant::now();
        }
        loop {
            match end.write(1, there, here, WRITE) {
                Err(Error::NoBuffers) => {}
                other => break other?,
            }
        }
    }
    while end.is_write_done() == Err(Error::Busy) {}
    end.is_write_done()?;
    println!("writes {:.1}", rate(WRITES * WRITE, start));
    end.unlock_memory(None, memory.addr(), WRITE)
}

/// The processor's own clock: in an emulated machine the system's may take as long as a message.
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an instruction that reads a counter.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Of one tick.
fn nanoseconds() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    std::thread::sleep(std::time::Duration::from_millis(100));
    start.elapsed().as_nanos() as f64 / (ticks() - from) as f64
}

/// MiB a second.
fn rate(bytes: usize, since: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / since.elapsed().as_secs_f64()
}
