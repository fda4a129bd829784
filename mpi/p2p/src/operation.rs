//! Requests of the program, and their results.

use crate::atomic::{Datatype, Operator};
use crate::memory::UserBuffer;
use crate::wire::{Envelope, RemoteAddress};

/// Limits of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The bytes of eager messages that each node may have outstanding at another node. All nodes
    /// use the same value.
    pub window: u32,
    /// The receiver reads a message of this length or more from the sender's memory.
    pub min_read_len: usize,
    /// How often the program retries to send a message without credit before the message is
    /// announced. A receiver that makes progress soon returns credit.
    pub credit_tries: u32,
}

/// A separate matching space: a receive with a tag never matches a message without one, and vice
/// versa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Messages with tags.
    Tagged,
    /// Messages without tags.
    Untagged,
}

/// Which messages a receive matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The source. None: any source.
    pub source: Option<u32>,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that are ignored.
    pub ignore: u64,
}

impl Selector {
    /// Matches messages without tags from this source, or from any source.
    pub fn untagged(source: Option<u32>) -> Self {
        Self { source, tag: 0, ignore: u64::MAX }
    }
}

/// How the completion of an operation is reported to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The program's identifier of the operation.
    pub context: usize,
    /// Whether a success is reported. Failures are always reported.
    pub is_reported: bool,
}

/// How long the program leaves the memory of a message unchanged.
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
    /// How long the bytes remain unchanged.
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
    /// When a receive has matched the message.
    OnMatch,
}

/// A write to the memory of a node.
#[derive(Clone, Debug)]
pub struct WriteOperation {
    /// The node.
    pub node: u32,
    /// The destination of the bytes.
    pub target: RemoteAddress,
    /// The bytes.
    pub buffer: UserBuffer,
    /// How long the bytes remain unchanged.
    pub retention: Retention,
    /// A number that the program of the target receives when the bytes have arrived.
    pub data: Option<u64>,
    /// How the completion is reported. The write completes when the bytes have arrived.
    pub request: Request,
}

/// A read of the memory of a node.
#[derive(Clone, Debug)]
pub struct ReadOperation {
    /// The node.
    pub node: u32,
    /// The source of the bytes.
    pub target: RemoteAddress,
    /// The destination of the bytes.
    pub buffer: UserBuffer,
    /// How the completion is reported.
    pub request: Request,
}

/// An atomic operation on memory of a node.
#[derive(Clone, Debug)]
pub struct AtomicOperation {
    /// The node.
    pub node: u32,
    /// The first element.
    pub target: RemoteAddress,
    /// The operator.
    pub operator: Operator,
    /// The type of the elements.
    pub datatype: Datatype,
    /// The number of elements.
    pub count: usize,
    /// The operands, one for each element. The call reads them before it returns.
    pub operands: UserBuffer,
    /// The values to compare with, if the operator compares. The call reads them before it returns.
    pub compared: UserBuffer,
    /// The destination of the former values. None: they are not requested.
    pub result: Option<UserBuffer>,
    /// How the completion is reported. The operation completes when the target has executed it.
    pub request: Request,
}

/// How a receive uses its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveMode {
    /// The buffer is for one message.
    Single,
    /// The buffer is for several messages, placed one after the other, until less than `min_free`
    /// bytes are free.
    Multiple {
        /// The limit, in bytes.
        min_free: usize,
    },
}

/// A receive to be posted.
#[derive(Clone, Debug)]
pub struct ReceiveOperation {
    /// Which messages it matches.
    pub selector: Selector,
    /// The destination of the messages.
    pub buffer: UserBuffer,
    /// Whether the buffer is for one message or several.
    pub mode: ReceiveMode,
    /// How completions are reported.
    pub request: Request,
}

/// What a peek does with the message that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekMode {
    /// Leaves the message in the queue.
    Look,
    /// Keeps the message for [`Engine::receive_claimed`](crate::Engine::receive_claimed) with the
    /// same context.
    Claim,
    /// Drops the message.
    Discard,
}

/// A message that a peek has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// Its length in bytes.
    pub len: u64,
    /// Its source.
    pub source: u32,
    /// Tag and data.
    pub envelope: Envelope,
}

/// The kind of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A message was sent; its memory may be reused.
    Sent,
    /// A message was received.
    Received,
    /// A buffer for several messages is exhausted.
    Released,
    /// Bytes were written to memory of another node.
    Written,
    /// Bytes were read from memory of another node.
    Read,
    /// An atomic operation has ended.
    Atomic,
    /// An atomic operation has ended, and its former values have arrived.
    FetchedAtomic,
    /// Another node has written bytes to this node, with a number.
    RemoteWritten,
}

/// Why an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The message is longer than the buffer.
    Truncated {
        /// The bytes that did not fit.
        excess: u64,
    },
    /// The operation was cancelled.
    Cancelled,
    /// The other node's memory does not permit the access.
    Refused,
    /// The network has failed.
    Network,
    /// A peek has found no message.
    NoMessage,
}

/// An operation that has completed.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The program's identifier of the operation.
    pub context: usize,
    /// The kind of the operation.
    pub kind: CompletionKind,
    /// The channel of the message. Untagged, if the operation is not a message.
    pub channel: Channel,
    /// The number of bytes that were received.
    pub len: usize,
    /// The address of these bytes.
    pub start: *mut u8,
    /// The source of the message.
    pub source: u32,
    /// Tag and data of the message.
    pub envelope: Envelope,
    /// Why the operation has failed, if it has.
    pub failure: Option<Failure>,
}

/// A violation of the protocol by a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The node. None: unknown.
    pub source: Option<u32>,
    /// The violation, as the predicate of a sentence about the node.
    pub what: &'static str,
}
