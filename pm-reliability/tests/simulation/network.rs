//! The properties of the simulated network, and what it carries.

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// The properties of the network. Fractions are in thousandths.
#[derive(Clone, Debug)]
pub struct Network {
    pub nodes: u32,
    pub links: u8,
    /// Picoseconds that a byte takes on a link.
    pub byte_picos: u64,
    /// The delay of one way, and its random part, in nanoseconds.
    pub delay: u64,
    pub jitter: u64,
    /// The capacity of the queue of a link or of a switch's port, in bytes.
    pub queue: u64,
    pub loss: u64,
    pub duplicates: u64,
    /// Forged packets, replays, and packets of an earlier incarnation.
    pub forged: u64,
    /// Times at which links carry no packets: number of the link, start, end.
    pub outages: Vec<(u8, u64, u64)>,
    /// Packets, in a million, at which a link to a host stalls, and the longest stall. Packets of
    /// this link then arrive late and in order, while other links continue.
    pub link_stalls: (u64, u64),
}

impl Network {
    pub fn clean(nodes: u32, links: u8) -> Network {
        Network {
            nodes,
            links,
            byte_picos: 800, // 10 Gbit/s
            delay: 10_000,
            jitter: 0,
            queue: 512 << 10,
            loss: 0,
            duplicates: 0,
            forged: 0,
            outages: Vec::new(),
            link_stalls: (0, 0),
        }
    }
}

/// A packet in flight.
pub struct InFlightPacket {
    pub to: u32,
    pub link: u8,
    pub bytes: Vec<u8>,
}
