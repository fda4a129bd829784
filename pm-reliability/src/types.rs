//! The types that device and machine exchange.

use crate::packet_header::{Header, PacketKind};

/// A packet to be sent. Before it gives the machine another packet, the device sends it, drops it
/// or keeps a copy: its slot may be free after the next [`crate::ReliabilityMachine::receive`].
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The destination node.
    pub peer: u32,
    /// The link to send it over.
    pub link: u8,
    /// Its header, complete.
    pub header: Header,
    /// The slot that holds its payload, and the payload's length.
    pub payload: Option<(u32, u16)>,
}

/// A message for the application. Its buffer belongs to the device again. When the application has
/// released the message, [`crate::ReliabilityMachine::on_released`] advances the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The node that sent it.
    pub peer: u32,
    /// The buffer of the packet; the payload begins [`crate::PACKET_HEADER_LEN`] bytes after the
    /// start of the packet.
    pub buffer: u32,
    /// Bytes of payload.
    pub len: u16,
    /// A kind with a sequence number.
    pub kind: PacketKind,
}

/// The state of a buffer after [`crate::ReliabilityMachine::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferDisposition {
    /// It holds a message, which [`crate::ReliabilityMachine::next_delivery`] will return.
    Kept,
    /// It can be used again.
    Free,
}

/// An event for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReliabilityEvent {
    /// The link carries nothing to this peer any more; others carry its share.
    LinkDown {
        /// The peer's node.
        peer: u32,
        /// The link's number.
        link: u8,
    },
    /// It carries packets again.
    LinkUp {
        /// The peer's node.
        peer: u32,
        /// The link's number.
        link: u8,
    },
}

/// Why a message is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The maximum number of messages waits for this peer; try again when some are acknowledged.
    Full,
    /// The node does not exist or is this node, or the length or kind is invalid.
    Invalid,
}

/// A message in a dead process's slab that was not acknowledged yet.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredMessage {
    /// The destination node.
    pub peer: u32,
    /// The number that [`crate::ReliabilityMachine::submit`] gave it.
    pub sequence: u32,
    /// Its slot.
    pub slot: u32,
    /// Bytes of payload.
    pub len: u16,
    /// A kind with a sequence number.
    pub kind: PacketKind,
}
