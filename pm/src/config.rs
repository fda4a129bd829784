//! Properties of devices and contexts, their counters, and the limits of PM.

/// The largest number of nodes of a context (manual 2.2.4, `PM_MAX_NODE`).
pub const MAX_NODE: usize = 1 << 20;
/// Messages up to this length can be sent on every device (`PM_MIN_MTU`).
pub const MIN_MTU: usize = 1024;
/// The largest remote memory operation (`PM_RMA_MTU`).
pub const RMA_MTU: usize = 1 << 30;
/// The longest control message (`PM_CONTROL_MTU`).
pub const CONTROL_MTU: usize = 48;

/// Option bit: remote memory write (manual, table 3.5).
pub const OPT_REMOTE_WRITE: u64 = 1;
/// Option bit: remote memory read (manual, table 3.5).
pub const OPT_REMOTE_READ: u64 = 2;

/// The properties of a device (`pmGetDeviceConfig`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The device's type name.
    pub kind: &'static str,
    /// The number of nodes that it connects.
    pub nodes: usize,
    /// The number of contexts that it can open.
    pub contexts: usize,
    /// The longest message.
    pub mtu: usize,
    /// Bytes of memory that one channel maps.
    pub size: usize,
    /// Option bits.
    pub option: u64,
}

/// The properties of a context (`pmGetContextConfig`, manual figure 3.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextConfig {
    /// The device's type name.
    pub kind: &'static str,
    /// The context's number on its device.
    pub number: usize,
    /// The number of nodes that it reaches, itself included.
    pub nodes: usize,
    /// The longest message to any node; 0 while a composite has no members.
    pub mtu: usize,
    /// Bytes of memory that it maps.
    pub size: usize,
    /// Option bits. A composite has the bit-wise AND of the bits of its members (manual 3.6.1).
    pub option: u64,
}

/// The lengths of a context's queues (`pmGetMessageQueueStatus`, manual figure 3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStatus {
    /// Received messages that `receive` has not yet handed out.
    pub receive: usize,
    /// Messages sent from here that may not yet be in their receiver's queue.
    pub send: usize,
    /// Outstanding remote reads.
    pub read: usize,
}

/// The counters of one process. Each is read once from shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages sent; one per copy of a multicast. Counted before a message becomes visible.
    pub sent: u64,
    /// Messages received: counted at release, or when dropped for a node that has exited.
    pub received: u64,
    /// Remote memory operations outstanding.
    pub pending_rma: u64,
    /// Advances with every poll that found no message.
    pub poll_epoch: u64,
    /// Bytes of the messages sent, and of remote memory that this process has written.
    pub sent_bytes: u64,
    /// Bytes of the messages taken or dropped, and of remote memory that this process has read.
    pub received_bytes: u64,
    /// Destination of the last message, in the device's numbering of nodes. None: no message was
    /// sent, or a later one was sent through another member of the same composite.
    pub last_to: Option<u32>,
    /// Source of the last message that `receive` has returned. None: no message was received, or a
    /// later one was received through another member of the same composite.
    pub last_from: Option<u32>,
    /// Bit 0: a receiver sleeps and has to be woken. Bit 1: the node has exited.
    pub receiver_state: u32,
}

impl Counters {
    /// Adds the counters of the same process on another device. The last peers of `other` are used
    /// if these counters have none.
    pub fn add(&mut self, other: &Counters) {
        let sum = |total: &mut u64, value: u64| *total = total.wrapping_add(value);
        sum(&mut self.sent, other.sent);
        sum(&mut self.received, other.received);
        sum(&mut self.pending_rma, other.pending_rma);
        sum(&mut self.poll_epoch, other.poll_epoch);
        sum(&mut self.sent_bytes, other.sent_bytes);
        sum(&mut self.received_bytes, other.received_bytes);
        self.last_to = self.last_to.or(other.last_to);
        self.last_from = self.last_from.or(other.last_from);
        self.receiver_state |= other.receiver_state;
    }
}
