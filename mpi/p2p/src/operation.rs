//! What a program asks for, and what it is told.

use crate::atomic::{Datatype, Operator};
use crate::memory::UserBuffer;
use crate::wire::{Envelope, RemoteAddress};

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of eager messages that each node may have at another one. The same on all nodes.
    pub window: u32,
    /// A message of this length or more is read from the sender's memory.
    pub min_read_len: usize,
    /// How often the program tries again to send a message without credit, before the message is
    /// announced: a receiver that is at work gives credit back soon.
    pub credit_tries: u32,
}

/// Receives with and without tags do not meet each other's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Messages with tags.
    Tagged,
    /// Messages without.
    Untagged,
}

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Their source. None: any.
    pub source: Option<u32>,
    /// Their tag.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
}

impl Selector {
    /// Messages without tags from this source, or from any.
    pub fn untagged(source: Option<u32>) -> Self {
        Self { source, tag: 0, ignore: u64::MAX }
    }
}

/// How the program learns that an operation has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The program's name of the operation.
    pub context: usize,
    /// Whether a success is reported. Failures always are.
    pub is_reported: bool,
}

/// How long the memory of a message that is sent stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Until the operation has completed.
    Stays,
    /// Until the call returns.
    Volatile,
}

/// A message to be sent.
#[derive(Clone, Debug)]
pub struct SendOperation {
    /// Its destination.
    pub node: u32,
    /// Tag and data.
    pub envelope: Envelope,
    /// Its bytes.
    pub buffer: UserBuffer,
    /// How long they stay.
    pub retention: Retention,
    /// How its completion is reported.
    pub request: Request,
    /// When it completes.
    pub completes: SendCompletes,
}

/// When a send completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendCompletes {
    /// When its memory may be used again.
    AtOnce,
    /// When the message has arrived, whether a receive waits for it or not.
    OnArrival,
    /// When a receive has it.
    OnMatch,
}

/// Bytes for memory of a node.
#[derive(Clone, Debug)]
pub struct WriteOperation {
    /// The node.
    pub node: u32,
    /// Where the bytes go.
    pub target: RemoteAddress,
    /// The bytes.
    pub buffer: UserBuffer,
    /// How long they stay.
    pub retention: Retention,
    /// A number that the node's program gets when the bytes are there.
    pub data: Option<u64>,
    /// How its completion is reported: when the bytes are there.
    pub request: Request,
}

/// Bytes that are read from memory of a node.
#[derive(Clone, Debug)]
pub struct ReadOperation {
    /// The node.
    pub node: u32,
    /// Where the bytes are.
    pub target: RemoteAddress,
    /// Where they go.
    pub buffer: UserBuffer,
    /// How its completion is reported.
    pub request: Request,
}

/// An atomic operation on memory of a node.
#[derive(Clone, Debug)]
pub struct AtomicOperation {
    /// The node.
    pub node: u32,
    /// The first element.
    pub target: RemoteAddress,
    /// What is done.
    pub operator: Operator,
    /// The type of the elements.
    pub datatype: Datatype,
    /// Their number.
    pub count: usize,
    /// An operand for each element. They are read before the call returns.
    pub operands: UserBuffer,
    /// Values to compare with, if the operator compares; likewise.
    pub compared: UserBuffer,
    /// Where the former values go. None: they are not wanted.
    pub result: Option<UserBuffer>,
    /// How its completion is reported: when the operation is done.
    pub request: Request,
}

/// How a receive uses its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveMode {
    /// For one message.
    Single,
    /// For messages one behind the other, until less than this is free.
    Multiple {
        /// In bytes.
        min_free: usize,
    },
}

/// A receive to be posted.
#[derive(Clone, Debug)]
pub struct ReceiveOperation {
    /// Which messages it takes.
    pub selector: Selector,
    /// Where they go.
    pub buffer: UserBuffer,
    /// For how many.
    pub mode: ReceiveMode,
    /// How completions are reported.
    pub request: Request,
}

/// What to do with a message that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekMode {
    /// It stays.
    Look,
    /// It is kept for [`Engine::receive_claimed`] with the same context.
    Claim,
    /// It is dropped.
    Discard,
}

/// A message that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// Its length in bytes.
    pub len: u64,
    /// Its source.
    pub source: u32,
    /// Tag and data.
    pub envelope: Envelope,
}

/// What has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A message was sent: its memory may be used again.
    Sent,
    /// A message was received.
    Received,
    /// A buffer for several messages takes no more.
    Released,
    /// Bytes were written to memory of another node.
    Written,
    /// Bytes were read from memory of another node.
    Read,
    /// An atomic operation is done.
    Atomic,
    /// Its former values were fetched.
    FetchedAtomic,
    /// Another node has written bytes here, and has sent a number with them.
    RemoteWritten,
}

/// Why an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The message is longer than the buffer by so many bytes.
    Truncated {
        /// In bytes.
        excess: u64,
    },
    /// It was cancelled.
    Cancelled,
    /// The other node's memory is not open to it.
    Refused,
    /// The network has failed.
    Network,
    /// A look for a message has found none.
    NoMessage,
}

/// An operation that has completed.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The program's name of it.
    pub context: usize,
    /// What it was.
    pub kind: CompletionKind,
    /// Of messages with or without tags; without, if it is no message.
    pub channel: Channel,
    /// Bytes that were received.
    pub len: usize,
    /// The address of these bytes.
    pub start: *mut u8,
    /// The source of the message.
    pub source: u32,
    /// Its tag and data.
    pub envelope: Envelope,
    /// Why it has failed, if it has.
    pub failure: Option<Failure>,
}

/// A node has broken the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The node. None: not known.
    pub source: Option<u32>,
    /// What it does, as the rest of a sentence.
    pub what: &'static str,
}
