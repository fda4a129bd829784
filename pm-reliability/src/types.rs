//! The types that the device and the machine exchange.

use crate::packet_header::{Header, PacketKind};

/// A packet to be sent. The device must send, drop or copy it before it gives the machine another
/// packet: its slot may be free after the next [`crate::ReliabilityMachine::receive`].
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The destination node.
    pub peer: u32,
    /// The link over which the device sends it.
    pub link: u8,
    /// The complete header.
    pub header: Header,
    /// The slot that holds the payload, and the length of the payload in bytes.
    pub payload: Option<(u32, u16)>,
}

/// A message for the application. Its buffer belongs to the device again. When the application has
/// released the message, the device calls [`crate::ReliabilityMachine::on_released`], which
/// advances the window.
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
    /// The buffer holds a message, which [`crate::ReliabilityMachine::next_delivery`] will return.
    Kept,
    /// The buffer can be used again.
    Free,
}

/// An event for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReliabilityEvent {
    /// The link carries no packets to this peer any more. Other links carry its share.
    LinkDown {
        /// The peer's node.
        peer: u32,
        /// The link's number.
        link: u8,
    },
    /// The link carries packets again.
    LinkUp {
        /// The peer's node.
        peer: u32,
        /// The link's number.
        link: u8,
    },
}

/// Why the machine does not accept a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The queue for this peer is full. Try again when some of its messages are acknowledged.
    Full,
    /// The node does not exist or is this node, or the length or kind is invalid.
    Invalid,
}

/// An unacknowledged message in a dead process's slab.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredMessage {
    /// The destination node.
    pub peer: u32,
    /// The sequence number that [`crate::ReliabilityMachine::submit`] gave it.
    pub sequence: u32,
    /// The slot of the message.
    pub slot: u32,
    /// Bytes of payload.
    pub len: u16,
    /// A kind with a sequence number.
    pub kind: PacketKind,
}
