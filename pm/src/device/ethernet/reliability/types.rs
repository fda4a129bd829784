//! What device and machine hand to each other.

use score_proto::packet_header::{Header, PacketKind};

/// A packet to be sent. The device sends it before it gives the machine another packet, or drops
/// it, or keeps a copy: its slot may be free after the next [`super::ReliabilityMachine::receive`].
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The node it goes to.
    pub peer: u32,
    /// The link it goes over.
    pub link: u8,
    /// Its header, complete.
    pub header: Header,
    /// The slot that holds its payload, and the payload's length.
    pub payload: Option<(u32, u16)>,
}

/// A message for the application. Its buffer is the device's again; when the application has
/// done with it, [`super::ReliabilityMachine::released`] moves the window on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The node that sent it.
    pub peer: u32,
    /// The buffer that the packet came in; the payload begins [`super::HEADER`] bytes behind its
    /// head.
    pub buffer: u32,
    /// Bytes of payload.
    pub len: u16,
    /// One that is numbered.
    pub kind: PacketKind,
}

/// What became of a buffer given to [`super::ReliabilityMachine::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferDisposition {
    /// It holds a message; [`super::ReliabilityMachine::next_delivery`] will name it.
    Kept,
    /// It can be used again.
    Free,
}

/// What an operator should hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReliabilityEvent {
    /// The link carries nothing to this peer any more; others carry its share.
    LinkDown {
        /// The peer's node.
        peer: u32,
        /// Which link.
        link: u8,
    },
    /// It carries packets again.
    LinkUp {
        /// The peer's node.
        peer: u32,
        /// Which link.
        link: u8,
    },
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many as may wait for this peer do; try again when some are acknowledged.
    Full,
    /// No such node, the own node, or no such length or kind.
    Invalid,
}

/// A message in a dead process's slab that nobody has acknowledged yet.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredMessage {
    /// The node it goes to.
    pub peer: u32,
    /// The number that [`super::ReliabilityMachine::submit`] gave it.
    pub sequence: u32,
    /// Its slot.
    pub slot: u32,
    /// Bytes of payload.
    pub len: u16,
    /// One that is numbered.
    pub kind: PacketKind,
}
