//! The test bed of context tests: a few nodes on one device or composite, and helper functions.

pub mod hostile_segment;

use score_pm::{
    CompositeOptions, Context, ContextRef, Counters, Device, DeviceOptions, Error, PmResult,
};
use std::process::{Child, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The kinds of context whose messages arrive at once, because they stay within one host.
pub const KINDS: [&str; 2] = ["shmem", "composite"];

/// The kinds of context on which the suite runs. `both` is a composite of shmem and ethernet, in
/// which nodes whose numbers differ by an odd number reach each other by ethernet. The wires of
/// `lossy` drop, duplicate and reorder packets.
pub const ALL_KINDS: [&str; 6] = ["shmem", "composite", "ethernet", "both", "lossy", "both lossy"];

/// The kinds in the virtual machine with an RDMA adapter. The other kinds are tested outside of it.
/// The composite is as in `both`.
pub const VM_KINDS: [&str; 2] = ["verbs", "both verbs"];

/// Whether the test runs in the virtual machine.
pub fn in_vm() -> bool {
    std::env::var_os("SCORE_VM").is_some()
}

/// Returns the adapter of the virtual machine. Outside of the virtual machine there is no adapter.
pub fn adapter() -> Option<&'static str> {
    in_vm().then_some("rxe0")
}

/// Returns the kinds on which the suite runs on this machine.
pub fn kinds() -> &'static [&'static str] {
    if in_vm() { &VM_KINDS } else { &ALL_KINDS }
}

/// Returns `count`, or less in the virtual machine, which is slow.
pub fn times(count: usize) -> usize {
    if in_vm() { count / 10 } else { count }
}

const LOSS: [&str; 2] = ["-loss", "drop=0.03,duplicate=0.03,reorder=0.05,seed=11"];

/// Nodes of one channel, all in this process.
pub struct TestBed {
    pub kind: &'static str,
    /// The device under test. In a composite of two devices, it reaches some nodes, and shmem the
    /// others.
    pub device: Device,
    pub second: Option<Device>,
    /// The contexts of `device` that the owner has opened.
    pub opened: Vec<ContextRef>,
    /// The attached contexts of `device`: the members of composites, or the contexts under test.
    pub attached: Vec<ContextRef>,
    pub composite: Device,
    /// The contexts under test: node k is `contexts[k]`.
    pub contexts: Vec<ContextRef>,
}

/// Opens a device of this type that has all nodes. `words` are additional options.
pub fn open_device(kind: &str, nodes: usize, words: &[&str]) -> Device {
    let count = nodes.to_string();
    let words = [&["-nodes", &count][..], words].concat();
    Device::open(DeviceOptions::parse(kind, &words).unwrap()).unwrap()
}

fn open(kind: &str, nodes: usize, options: &[&str]) -> (Device, Vec<ContextRef>, Vec<ContextRef>) {
    let device = open_device(kind, nodes, options);
    let opened: Vec<_> = (0..nodes).map(|k| device.open_context(k).unwrap()).collect();
    let attach = |(k, context): (usize, &ContextRef)| {
        context.bind_channel(0, k as u32).unwrap();
        Context::attach(kind, context.create_attach_fd().unwrap()).unwrap()
    };
    let attached = opened.iter().enumerate().map(attach).collect();
    (device, opened, attached)
}

/// Returns the type of the device under test of a kind.
pub fn network(kind: &str) -> &'static str {
    match kind {
        "shmem" | "composite" => "shmem",
        "verbs" | "both verbs" => "verbs",
        _ => "ethernet",
    }
}

impl TestBed {
    pub fn new(kind: &'static str, nodes: usize) -> TestBed {
        let options = match kind {
            kind if kind.contains("lossy") => &LOSS[..],
            kind if kind.contains("verbs") => &["-device", "rxe0"],
            _ => &[],
        };
        let network = network(kind);
        let (device, opened, attached) = open(network, nodes, options);
        let second = kind.contains("both").then(|| open("shmem", nodes, &[]));
        let composite = Device::open(CompositeOptions::new(nodes)).unwrap();
        let join = |(k, member): (usize, &ContextRef)| {
            let end = composite.open_context(k).unwrap();
            for peer in 0..nodes {
                let shmem_member = second.as_ref().filter(|_| (k + peer).is_multiple_of(2));
                let member = shmem_member.map_or(member, |(_, _, attached)| &attached[k]);
                end.add_node(peer as u32, member, peer as u32).unwrap();
            }
            end
        };
        let ends = match kind {
            "composite" | "both" | "both lossy" | "both verbs" => {
                attached.iter().enumerate().map(join).collect()
            }
            _ => attached.clone(),
        };
        let second = second.map(|(device, ..)| device);
        TestBed { kind, device, second, opened, attached, composite, contexts: ends }
    }

    /// Whether messages arrive at once.
    pub fn is_immediate(&self) -> bool {
        KINDS.contains(&self.kind)
    }

    /// Returns the type of the contexts under test.
    pub fn end_kind(&self) -> &'static str {
        match self.kind {
            "lossy" => "ethernet",
            "both" | "both lossy" | "both verbs" => "composite",
            kind => kind,
        }
    }

    /// Returns the counters of a node on both devices. The last peers are the last peers on shmem,
    /// if there are any.
    pub fn counters(&self, node: u32) -> Counters {
        let mut sum = self.device.counters(node).unwrap();
        if let Some(second) = &self.second {
            let other = second.counters(node).unwrap();
            sum.sent += other.sent;
            sum.received += other.received;
            sum.pending_rma += other.pending_rma;
            sum.sent_bytes += other.sent_bytes;
            sum.received_bytes += other.received_bytes;
            sum.last_to = other.last_to.or(sum.last_to);
            sum.last_from = other.last_from.or(sum.last_from);
            assert_eq!(sum.receiver_state, other.receiver_state);
        }
        sum
    }

    /// Returns the number of messages that all nodes have sent, and the number that they have
    /// received.
    pub fn sums(&self) -> (u64, u64) {
        let counters = (0..self.contexts.len() as u32).map(|k| self.counters(k));
        counters.fold((0, 0), |(s, r), c| (s + c.sent, r + c.received))
    }

    pub fn mark_exited(&self, node: u32) {
        [Some(&self.device), self.second.as_ref()]
            .into_iter()
            .flatten()
            .for_each(|device| device.mark_exited(node).unwrap());
    }

    /// Waits until all messages have arrived, or no more can arrive because there is no room.
    pub fn wait_until_delivered(&self) {
        if self.is_immediate() {
            return;
        }
        let mut last = Vec::new();
        let mut since = Instant::now();
        loop {
            let statuses: Vec<_> =
                self.contexts.iter().map(|end| end.queue_status().unwrap()).collect();
            let done = statuses.iter().all(|queues| queues.send == 0);
            if statuses != last {
                (last, since) = (statuses, Instant::now());
            }
            // This is longer than the time-outs of a few consecutive losses, even on a busy host.
            if done || since.elapsed() > Duration::from_secs(1) {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Sends until there is no room even after a wait. Returns the number of messages.
    pub fn fill_up(&self, from: usize, to: u32, message: impl Fn(u32) -> Vec<u8>) -> u32 {
        let mut sent = 0;
        loop {
            while send(&self.contexts[from], to, &message(sent)).is_ok() {
                sent += 1;
                assert!(sent < 100_000, "room without end");
            }
            self.wait_until_delivered();
            match send(&self.contexts[from], to, &message(sent)) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error, Error::NoBuffers);
                    return sent;
                }
            }
        }
    }
}

pub fn on_every_kind(nodes: usize, test: impl Fn(&TestBed)) {
    let _dog = Watchdog::new(300);
    for kind in kinds() {
        test(&TestBed::new(kind, nodes));
    }
}

/// Runs a test as `on_every_kind` does, for guarantees that hold only within one host.
pub fn on_local_kinds(nodes: usize, test: impl Fn(&TestBed)) {
    let _dog = Watchdog::new(300);
    for kind in KINDS.iter().filter(|_| !in_vm()) {
        test(&TestBed::new(kind, nodes));
    }
}

pub fn fill(buffer: *mut u8, bytes: &[u8]) {
    // SAFETY: the callers have reserved at least as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
}

pub fn send(context: &Context, to: u32, bytes: &[u8]) -> PmResult<()> {
    fill(context.get_send_buffer(to, bytes.len())?, bytes);
    context.send()
}

/// Sends a message, and waits for room if necessary.
pub fn send_surely(context: &Context, to: u32, bytes: &[u8]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match send(context, to, bytes) {
            Ok(()) => return,
            Err(Error::NoBuffers | Error::Busy) => std::thread::yield_now(),
            Err(error) => panic!("send to {to}: {error}"),
        }
        assert!(Instant::now() < deadline, "no room for 60 s");
    }
}

/// Returns the bytes of a received message.
pub fn bytes((payload, len): (*mut u8, usize)) -> Vec<u8> {
    // SAFETY: the result of `receive` is readable until the message is released.
    unsafe { std::slice::from_raw_parts(payload, len) }.to_vec()
}

pub fn receive(context: &Context) -> PmResult<Vec<u8>> {
    let message = bytes(context.receive()?);
    context.release_receive_buffer()?;
    Ok(message)
}

/// Receives a message, and waits for it if necessary.
pub fn receive_surely(context: &Context) -> Vec<u8> {
    let message = bytes(take_surely(context));
    context.release_receive_buffer().unwrap();
    message
}

/// Receives a message as `receive_surely` does, but does not release it.
pub fn take_surely(context: &Context) -> (*mut u8, usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match context.receive() {
            Ok(message) => return message,
            Err(Error::NoBuffers | Error::Busy) => std::thread::yield_now(),
            Err(error) => panic!("receive: {error}"),
        }
        assert!(Instant::now() < deadline, "no message for 60 s");
    }
}

/// Sleeps until a message arrives, as in figure 3.4 of the manual.
pub fn blocking_receive(end: &Context) -> Vec<u8> {
    let mut fds = [-1];
    end.get_fds(&mut fds).unwrap();
    end.before_select().unwrap();
    loop {
        match receive(end) {
            Err(Error::NoBuffers) => {}
            received => {
                end.after_select().unwrap();
                return received.unwrap();
            }
        }
        let mut poll = libc::pollfd { fd: fds[0], events: libc::POLLIN, revents: 0 };
        // SAFETY: this is one valid pollfd, as the length says.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1, "not woken within 60 s");
    }
}

/// Repeats a call while the operation is outstanding or there is no room.
pub fn retry_until_done(mut operation: impl FnMut() -> PmResult<()>) -> PmResult<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match operation() {
            Err(Error::Busy | Error::NoBuffers) => std::thread::yield_now(),
            other => return other,
        }
        assert!(Instant::now() < deadline, "not done after 60 s");
    }
}

/// A process that does not outlive its test.
pub struct Process(pub Child);

impl Process {
    pub fn id(&self) -> i32 {
        self.0.id() as i32
    }

    pub fn ends(mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }

    pub fn wait_for_success(self) {
        assert!(self.ends().success());
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Aborts a test that hangs.
pub struct Watchdog(Option<mpsc::Sender<()>>);

impl Watchdog {
    pub fn new(seconds: u64) -> Watchdog {
        let (stop_sender, done) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if done.recv_timeout(Duration::from_secs(seconds))
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                eprintln!("watchdog: {seconds} s are over");
                std::process::abort();
            }
        });
        Watchdog(Some(stop_sender))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// A writer that accepts one write only.
struct SingleWrite(Option<String>);

impl std::io::Write for SingleWrite {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let before = self.0.replace(String::from_utf8(bytes.to_vec()).unwrap());
        assert_eq!(before, None, "a dump is one write, so that dumps of several nodes do not mix");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub fn dump(context: &Context) -> String {
    let mut out = SingleWrite(None);
    context.dump(&mut out).unwrap();
    out.0.expect("a dump is not empty")
}

/// Sends a message from node 0 to node 1, and one back, to check that both contexts still work.
pub fn check_both_directions(bed: &TestBed) {
    for (from, to) in [(0, 1), (1, 0)] {
        send_surely(&bed.contexts[from], to as u32, b"still here");
        assert_eq!(receive_surely(&bed.contexts[to]), b"still here", "{}", bed.kind);
    }
}
