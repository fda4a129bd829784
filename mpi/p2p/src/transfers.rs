//! The transfers of bytes between the memories of two nodes: their state at this node.
//! `transfer_protocol.rs` changes it.

pub(crate) mod copies;

use std::collections::BTreeMap;

use crate::destination::Destination;
use crate::matching::Origin;
use crate::memory::UserBuffer;
use crate::network::AccessNumber;
use crate::node_queues::NodeQueues;
use crate::operation::{Failure, Request, Retention, SendCompletes, SendOperation};
use crate::wire::{Announcement, Envelope, RemoteAddress};
use copies::{CopiedBytes, Copies};

/// Bytes that leave this node, or an operation that waits for another node to end it.
#[derive(Debug)]
pub(crate) struct OutgoingTransfer {
    pub(crate) node: u32,
    pub(crate) request: Request,
    pub(crate) purpose: OutgoingPurpose,
    pub(crate) data: OutgoingData,
    /// Whether the other node may read the memory.
    pub(crate) is_exposed: bool,
    /// Whether the other node acknowledges the end of the transfer.
    pub(crate) is_finished_awaited: bool,
    pub(crate) pull: Option<Pull>,
    pub(crate) failure: Option<Failure>,
    /// The program has abandoned the operation: its end is not reported.
    pub(crate) is_dropped: bool,
}

/// The purpose of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutgoingPurpose {
    /// A message.
    Message(Envelope),
    /// A write to memory of the other node.
    Write { target: RemoteAddress, data: Option<u64> },
    /// An atomic operation without a result.
    Atomic,
    /// An answer to a request of the other node, which concerns the region with this key.
    Answer { key: u64 },
}

#[derive(Debug)]
pub(crate) enum OutgoingData {
    Memory(UserBuffer),
    Copy(CopiedBytes),
    /// The bytes have been sent.
    Sent,
}

/// A request of the other node for fragments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pull {
    pub(crate) receive_id: u32,
    pub(crate) sent: usize,
    pub(crate) len: usize,
}

/// Nothing more is to be sent.
pub(crate) const PULL_NOTHING: Pull = Pull { receive_id: 0, sent: 0, len: 0 };

/// Bytes that are in transfer to this node.
#[derive(Debug)]
pub(crate) struct IncomingTransfer {
    pub(crate) destination: Destination,
    pub(crate) origin: Origin,
    pub(crate) purpose: IncomingPurpose,
    pub(crate) announcement: Announcement,
    /// The number of bytes to transfer: as many as fit into the buffer.
    pub(crate) wanted: usize,
    /// The number of bytes that have arrived as fragments. None: no fragments were requested.
    pub(crate) arrived: Option<usize>,
    /// The program has abandoned the operation.
    pub(crate) is_dropped: bool,
}

/// The purpose of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncomingPurpose {
    /// A message that was announced.
    Message(Envelope),
    /// A read by the program of memory at the other node.
    Read(RemoteAddress),
    /// The former values of an atomic operation.
    Fetch,
    /// A write by the other node to the region with this key.
    Write { key: u64, data: Option<u64> },
}

/// A transfer that the network does by accessing the memory of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A read, with the number of the incoming transfer.
    Read(u32),
    /// A write, with the number of the outgoing transfer.
    Write(u32),
}

/// The transfers that the network does by memory accesses. Several can be in flight.
#[derive(Debug)]
pub(crate) struct AccessQueue {
    /// The accesses that wait, by node, so that a node that accepts no further access now does not
    /// block others.
    pub(crate) waiting: NodeQueues<Access>,
    /// The accesses that were started, by the network's access number.
    pub(crate) started: BTreeMap<AccessNumber, Access>,
}

impl OutgoingData {
    pub(crate) fn new(buffer: &UserBuffer, retention: Retention, copies: &Copies) -> Self {
        match retention {
            Retention::Stays => OutgoingData::Memory(buffer.clone()),
            Retention::Volatile => OutgoingData::Copy(copies.copy(buffer)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            OutgoingData::Memory(buffer) => buffer.len(),
            OutgoingData::Copy(bytes) => bytes.len(),
            OutgoingData::Sent => 0,
        }
    }

    /// Copies the bytes, because the program may change its memory from now on.
    pub(crate) fn keep_copy(&mut self, copies: &Copies) {
        if let OutgoingData::Memory(buffer) = self {
            *self = OutgoingData::Copy(copies.copy_beside_budget(buffer));
        }
    }
}

impl OutgoingTransfer {
    /// A message whose bytes remain at this node.
    pub(crate) fn announced(send: &SendOperation, is_exposed: bool, copies: &Copies) -> Self {
        Self {
            node: send.node,
            request: send.request,
            purpose: OutgoingPurpose::Message(send.envelope),
            data: OutgoingData::new(&send.buffer, send.retention, copies),
            is_exposed,
            is_finished_awaited: send.completes != SendCompletes::AtOnce,
            pull: None,
            failure: None,
            is_dropped: false,
        }
    }

    /// A message that was sent and waits for its acknowledgement.
    pub(crate) fn acknowledged(send: &SendOperation) -> Self {
        let purpose = OutgoingPurpose::Message(send.envelope);
        Self::awaited(send.node, send.request, purpose)
    }

    /// An operation that was sent and waits for its end.
    pub(crate) fn awaited(node: u32, request: Request, purpose: OutgoingPurpose) -> Self {
        Self {
            node,
            request,
            purpose,
            data: OutgoingData::Sent,
            is_exposed: false,
            is_finished_awaited: true,
            pull: None,
            failure: None,
            is_dropped: false,
        }
    }

    /// Bytes that `node` has requested.
    pub(crate) fn answer(node: u32, key: u64, data: OutgoingData, receive_id: u32) -> Self {
        let pull = Pull { receive_id, sent: 0, len: data.len() };
        Self {
            node,
            request: Request { context: 0, is_reported: false },
            purpose: OutgoingPurpose::Answer { key },
            data,
            is_exposed: false,
            is_finished_awaited: false,
            pull: Some(pull),
            failure: None,
            is_dropped: false,
        }
    }
}

impl AccessQueue {
    pub(crate) fn new() -> Self {
        Self { waiting: NodeQueues::new(), started: BTreeMap::new() }
    }

    /// Whether the network uses the memory of this access now.
    pub(crate) fn is_started(&self, access: Access) -> bool {
        self.started.values().any(|started| *started == access)
    }

    /// Whether the network writes, or will write, the bytes of this outgoing transfer to `node`.
    pub(crate) fn has_write(&self, node: u32, send_id: u32) -> bool {
        let write = Access::Write(send_id);
        self.is_started(write) || self.waiting.contains(node, &write)
    }
}
