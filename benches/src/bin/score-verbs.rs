//! Measures PM over RDMA hardware between two processes of this host, for comparison with perftest
//! (`cargo xtask bench verbs` runs both). Prints a line `NAME VALUE` for each of the named
//! measurements, or for all:
//!
//! ```text
//! latency          median of the one-way time of 8 bytes in ns
//! messages         MiB per second of the longest messages
//! writes           MiB per second of remote writes of 64 KiB
//! shares           MiB per second of the slowest of four processes that write at once
//! ```
// UNSAFETY: writes to and reads from buffers that PM hands out, and inherits a descriptor.
#![expect(unsafe_code)]

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use score_pm::{
    AddrHandle, Context, ContextRef, Device, Error, NetworkOptions, PmResult, VerbsOptions,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

const FD_ENV: &str = "SCORE_VERBS_FD";
const WRITES_ONLY_ENV: &str = "SCORE_VERBS_WRITES";
/// The numbers of measured round trips, messages and writes, after [`WARM_UP_TRIPS`] of each.
const ROUND_TRIPS: usize = 1000;
const MESSAGES: usize = 1500;
const WRITES: usize = 500;
const WARM_UP_TRIPS: usize = 50;
const WRITE_LEN: usize = 64 << 10;
/// The number of processes that write at the same time, and how long they write.
const WRITERS: u32 = 4;
const MEASURE_WINDOW: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let result = match std::env::var(FD_ENV) {
        Ok(fd) => attach(&fd).and_then(|context| match std::env::var_os(WRITES_ONLY_ENV) {
            Some(_) => run_writer(&context),
            None => run_peer(&context),
        }),
        Err(_) => measure(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("score-verbs: {error} (set PM_DEBUG=1 for details)");
            ExitCode::FAILURE
        }
    }
}

fn send(context: &Context, to: u32, bytes: &[u8]) -> PmResult<()> {
    loop {
        match context.get_send_buffer(to, bytes.len()) {
            Ok(buffer) => {
                // SAFETY: `get_send_buffer` has reserved `bytes.len()` bytes at `buffer`.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
                return context.send();
            }
            Err(Error::NoBuffers) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Receives the next message. Returns its length and its first 8 bytes.
fn receive(context: &Context) -> PmResult<(usize, u64)> {
    loop {
        match context.receive() {
            Ok((payload, len)) => {
                let mut word = 0;
                if len >= 8 {
                    // SAFETY: the payload has at least 8 bytes, and is readable until it is
                    // released below.
                    word = unsafe { payload.cast::<u64>().read_unaligned() };
                }
                context.release_receive_buffer()?;
                return Ok((len, word));
            }
            Err(Error::NoBuffers) => {}
            Err(error) => return Err(error),
        }
    }
}

fn attach(fd: &str) -> PmResult<ContextRef> {
    let fd: i32 = fd.parse().map_err(|_| Error::Invalid)?;
    // SAFETY: this process inherited the descriptor for this purpose, and nothing else uses it.
    Context::attach("verbs", unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Locks memory for remote writes. Answers each message of 8 bytes, and ignores longer messages.
/// Ends after a message of 8 zero bytes.
fn run_peer(context: &ContextRef) -> PmResult<()> {
    let memory = context.allocate_memory(WRITE_LEN)?;
    let handle = context.lock_memory(None, memory.addr(), WRITE_LEN)?;
    send(context, 0, &handle.bits().to_ne_bytes())?;
    loop {
        match receive(context)? {
            (8, 0) => break,
            (8, word) => send(context, 0, &word.to_ne_bytes())?,
            _ => {}
        }
    }
    context.unlock_memory(None, memory.addr(), WRITE_LEN)?;
    context.detach()
}

/// Writes for [`MEASURE_WINDOW`] to the memory that the first message names. Sends the rate in
/// bytes per second.
fn run_writer(context: &ContextRef) -> PmResult<()> {
    let (_, remote_bits) = receive(context)?;
    let memory = context.allocate_memory(WRITE_LEN)?;
    let local_handle = context.lock_memory(None, memory.addr(), WRITE_LEN)?;
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < MEASURE_WINDOW {
        match context.write(0, AddrHandle::from_bits(remote_bits), local_handle, WRITE_LEN) {
            Err(Error::NoBuffers) => {}
            other => other.map(|()| bytes += WRITE_LEN)?,
        }
    }
    while context.is_write_done() == Err(Error::Busy) {}
    context.is_write_done()?;
    let rate = bytes as f64 / start.elapsed().as_secs_f64();
    send(context, 0, &(rate as u64).to_ne_bytes())?;
    while context.is_send_done() == Err(Error::Busy) {}
    context.unlock_memory(None, memory.addr(), WRITE_LEN)?;
    context.detach()
}

/// Makes a round trip. After it, every earlier message has arrived and has been received.
fn round_trip(context: &Context) -> PmResult<()> {
    send(context, 1, &1u64.to_ne_bytes())?;
    receive(context).map(drop)
}

/// The contexts of all nodes. The first belongs to this process, each other one to a peer process.
struct Nodes {
    context: ContextRef,
    peers: Vec<Child>,
    _opened: Vec<ContextRef>,
    _device: Device,
}

impl Nodes {
    fn start(count: u32, writes_only: bool) -> PmResult<Nodes> {
        let device = Device::open(VerbsOptions::new(NetworkOptions::on_one_host(count as usize)))?;
        let opened: Vec<ContextRef> =
            (0..count as usize).map(|node| device.open_context(node)).collect::<PmResult<_>>()?;
        for (node, context) in (0..).zip(&opened) {
            context.bind_channel(0, node)?;
        }
        let peers = opened[1..].iter().map(|context| spawn_peer(context, writes_only));
        let peers = peers.collect::<PmResult<_>>()?;
        let self_context = Context::attach("verbs", opened[0].create_attach_fd()?)?;
        Ok(Nodes { context: self_context, peers, _opened: opened, _device: device })
    }

    fn wait_for_success(self) -> PmResult<()> {
        for mut peer in self.peers {
            let status = peer.wait().map_err(|_| Error::Io)?;
            status.success().then_some(()).ok_or(Error::Io)?;
        }
        Ok(())
    }
}

/// Starts this program again as the node of that context.
fn spawn_peer(context: &ContextRef, writes_only: bool) -> PmResult<Child> {
    let fd = context.create_attach_fd()?;
    // SAFETY: `fd` is open. The call clears FD_CLOEXEC, so that the peer process inherits the
    // descriptor.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) };
    let mut command = Command::new(std::env::current_exe().map_err(|_| Error::Io)?);
    command.env(FD_ENV, fd.as_raw_fd().to_string());
    if writes_only {
        command.env(WRITES_ONLY_ENV, "1");
    }
    let child = command.spawn().map_err(|_| Error::Io)?;
    if !writes_only {
        pin_process(std::process::id(), 0);
        pin_process(child.id(), 1);
    }
    Ok(child)
}

/// Binds a process to a processor. Two processes that poll on the same processor would wait for
/// ticks of the clock.
fn pin_process(process: u32, processor: usize) {
    let mut cpu_set = CpuSet::new();
    // If there is no second processor, both share the first.
    let _ = cpu_set
        .set(processor)
        .and_then(|()| sched_setaffinity(Pid::from_raw(process.cast_signed()), &cpu_set));
}

fn measure() -> PmResult<()> {
    let requested: Vec<String> = std::env::args().skip(1).collect();
    let is_requested =
        |name: &str| requested.is_empty() || requested.iter().any(|other| other == name);
    if ["latency", "messages", "writes"].into_iter().any(is_requested) {
        let nodes = Nodes::start(2, false)?;
        let context = &nodes.context;
        let (_, remote_bits) = receive(context)?;
        if is_requested("latency") {
            latency(context)?;
        }
        if is_requested("messages") {
            messages(context)?;
        }
        if is_requested("writes") {
            writes(context, AddrHandle::from_bits(remote_bits))?;
        }
        send(context, 1, &0u64.to_ne_bytes())?;
        nodes.wait_for_success()?;
    }
    if is_requested("shares") {
        concurrent_writers()?;
    }
    Ok(())
}

/// Measures peers that all write to the memory of one process that sleeps.
fn concurrent_writers() -> PmResult<()> {
    let nodes = Nodes::start(1 + WRITERS, true)?;
    let context = &nodes.context;
    let memory = context.allocate_memory(WRITE_LEN)?;
    let handle = context.lock_memory(None, memory.addr(), WRITE_LEN)?;
    for node in 1..=WRITERS {
        send(context, node, &handle.bits().to_ne_bytes())?;
    }
    std::thread::sleep(MEASURE_WINDOW);
    let mut rates: Vec<u64> = Vec::new();
    for _ in 0..WRITERS {
        rates.push(receive(context)?.1);
    }
    let slowest = rates.iter().min().copied().unwrap_or(0);
    println!("shares {:.2}", slowest as f64 / f64::from(1 << 20));
    context.unlock_memory(None, memory.addr(), WRITE_LEN)?;
    nodes.wait_for_success()
}

fn latency(context: &Context) -> PmResult<()> {
    let mut one_way_ticks = Vec::new();
    for _ in 0..ROUND_TRIPS + WARM_UP_TRIPS {
        let start = ticks();
        round_trip(context)?;
        one_way_ticks.push((ticks() - start) / 2);
    }
    let mut one_way_ticks = one_way_ticks.split_off(WARM_UP_TRIPS);
    one_way_ticks.sort_unstable();
    println!("latency {:.0}", one_way_ticks[ROUND_TRIPS / 2] as f64 * ns_per_tick());
    Ok(())
}

fn messages(context: &Context) -> PmResult<()> {
    let message = vec![7; context.mtu(1)?];
    let mut start = Instant::now();
    for i in 0..MESSAGES + WARM_UP_TRIPS {
        if i == WARM_UP_TRIPS {
            round_trip(context)?;
            start = Instant::now();
        }
        send(context, 1, &message)?;
    }
    round_trip(context)?;
    println!("messages {:.1}", mib_per_s(MESSAGES * message.len(), start));
    Ok(())
}

fn writes(context: &Context, remote_handle: AddrHandle) -> PmResult<()> {
    let memory = context.allocate_memory(WRITE_LEN)?;
    let local_handle = context.lock_memory(None, memory.addr(), WRITE_LEN)?;
    let mut start = Instant::now();
    for i in 0..WRITES + WARM_UP_TRIPS {
        if i == WARM_UP_TRIPS {
            while context.is_write_done() == Err(Error::Busy) {}
            start = Instant::now();
        }
        loop {
            match context.write(1, remote_handle, local_handle, WRITE_LEN) {
                Err(Error::NoBuffers) => {}
                other => break other?,
            }
        }
    }
    while context.is_write_done() == Err(Error::Busy) {}
    context.is_write_done()?;
    println!("writes {:.1}", mib_per_s(WRITES * WRITE_LEN, start));
    context.unlock_memory(None, memory.addr(), WRITE_LEN)
}

/// Reads the processor's own clock. In an emulated machine reading the system's clock may take as
/// long as a message.
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction only reads a counter, which every x86_64 processor has.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Measures the nanoseconds per tick.
fn ns_per_tick() -> f64 {
    let (start, start_ticks) = (Instant::now(), ticks());
    std::thread::sleep(std::time::Duration::from_millis(100));
    start.elapsed().as_nanos() as f64 / (ticks() - start_ticks) as f64
}

/// Converts bytes and a start time to MiB per second.
fn mib_per_s(bytes: usize, start: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64()
}
