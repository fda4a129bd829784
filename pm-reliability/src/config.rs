//! The machine's configuration.

use crate::packet_header::MAX_LINKS;

/// Number of messages that a peer may send before the first acknowledgement. Both ends use this
/// value.
pub const INITIAL_WINDOW: u32 = 16;
/// The widest window: the reach of 255 blocks of selective acknowledgement, rounded down to a power
/// of two.
pub const MAX_WINDOW: u32 = 8192;

/// The configuration of a machine. [`Config::new`] has defaults for everything except its
/// arguments. The machine limits values that are out of range.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The number of this node.
    pub self_node: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// The job's secret.
    pub secret: u64,
    /// How often the job has been restarted.
    pub incarnation: u32,
    /// The number of links between the hosts.
    pub links: u8,
    /// The longest message in bytes.
    pub mtu: u16,
    /// The first sequence number in each direction. All nodes of a job use the same number.
    pub first_sequence: u32,
    /// The most messages of one peer that this node keeps.
    pub window: u32,
    /// The most messages of all peers that this node keeps. The device has more receive buffers
    /// than this, because it also needs buffers for the packets that it is reading.
    pub buffers: u32,
    /// The most messages to one peer that are queued or in flight.
    pub max_queued: u32,
    /// Shortest and longest time, in nanoseconds, until an unacknowledged packet is sent again.
    pub timeout_range_ns: (u64, u64),
    /// How long an acknowledgement waits for a message that can carry it, in nanoseconds.
    pub ack_delay_ns: u64,
}

impl Config {
    /// Node `self_node` of `nodes`, with defaults for the rest.
    pub fn new(self_node: u32, nodes: u32, secret: u64, incarnation: u32) -> Config {
        Config {
            self_node,
            nodes,
            secret,
            incarnation,
            links: 1,
            mtu: 1408,
            first_sequence: 0,
            window: 512,
            buffers: 2048,
            max_queued: 1024,
            timeout_range_ns: (1_000_000, 500_000_000),
            ack_delay_ns: 50_000,
        }
    }

    pub(super) fn bounded(mut self) -> Config {
        self.links = self.links.clamp(1, MAX_LINKS);
        self.buffers = self.buffers.max(8);
        self.window = self.window.clamp(INITIAL_WINDOW, MAX_WINDOW);
        self.max_queued = self.max_queued.clamp(1, MAX_WINDOW);
        self.timeout_range_ns.0 = self.timeout_range_ns.0.max(1);
        self.timeout_range_ns.1 = self.timeout_range_ns.1.max(self.timeout_range_ns.0);
        self
    }
}
