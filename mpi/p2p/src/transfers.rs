//! Transfers of bytes between the memories of two nodes.
//!
//! An announced message remains at its sender until a receive matches it. The receiver then reads
//! the message from the sender's memory and acknowledges it (`Finished`), or requests it (`Pull`)
//! and receives fragments. Long writes to memory of another node use the same mechanism. Bytes that
//! another node reads, and results of its atomic operations, are sent as fragments without a
//! `Pull`.

use std::collections::BTreeMap;

use crate::copies::{CopiedBytes, Copies};
use crate::matching::Origin;
use crate::memory::{Payload, UserBuffer};
use crate::network::AccessNumber;
use crate::node_queues::NodeQueues;
use crate::operation::{Failure, Request, Retention, SendCompletes, SendOperation, Violation};
use crate::state::{Destination, State};
use crate::wire::{Announcement, Envelope, Header, RemoteAddress};

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
    /// An answer to a request of the other node. The bytes are in the region with this key.
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
    /// The number of bytes that fit into the buffer.
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
    /// By node, so that a node that accepts no further access now does not block others.
    pub(crate) waiting: NodeQueues<Access>,
    /// By the access number of the network.
    pub(crate) started: BTreeMap<AccessNumber, Access>,
}

impl OutgoingData {
    pub(crate) fn new(buffer: &UserBuffer, retention: Retention, copies: &Copies) -> Self {
        match retention {
            Retention::Stays => OutgoingData::Memory(buffer.clone()),
            Retention::Volatile => OutgoingData::Copy(copies.copy(buffer)),
        }
    }

    fn len(&self) -> usize {
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

impl State {
    /// Whether the buffer can be kept until its receiver requests it.
    pub(crate) fn has_room_for(&self, buffer: &UserBuffer, retention: Retention) -> bool {
        retention == Retention::Stays || self.copies.has_room(buffer.len())
    }

    /// Whether there is pending work that needs the network.
    #[inline(always)]
    pub(crate) fn has_work(&self) -> bool {
        !self.outbox.is_empty()
            || !self.streams.is_empty()
            || !self.accesses.waiting.is_empty()
            || !self.accesses.started.is_empty()
            || self.violation.is_some()
    }

    /// Starts the transfer of an announced message to the receive that has matched it.
    pub(crate) fn start_transfer(
        &mut self,
        destination: Destination,
        (origin, envelope): (Origin, Envelope),
        announcement: Announcement,
    ) {
        let Announcement { len, send_id, .. } = announcement;
        let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(destination.buffer.len());
        if origin.source == self.self_node {
            if let Some(send) = self.sends.try_remove(send_id as usize) {
                match &send.data {
                    OutgoingData::Memory(buffer) => {
                        destination.buffer.fill_from_buffer(buffer, wanted);
                    }
                    OutgoingData::Copy(bytes) => {
                        destination.buffer.fill_from(0, Payload::of_bytes(bytes));
                    }
                    OutgoingData::Sent => {}
                }
                self.complete_outgoing(&send, None);
            }
            return self.complete_receive(&destination, (origin, envelope), len, None);
        }
        if wanted == 0 {
            self.complete_receive(&destination, (origin, envelope), len, None);
            return self.finish_send_of(origin.source, send_id);
        }
        let purpose = IncomingPurpose::Message(envelope);
        self.fetch(IncomingTransfer {
            destination,
            origin,
            purpose,
            announcement,
            wanted,
            arrived: None,
            is_dropped: false,
        });
    }

    /// Fetches bytes from another node, by reading them if possible, otherwise as fragments.
    pub(crate) fn fetch(&mut self, incoming: IncomingTransfer) {
        let is_read =
            incoming.announcement.handle != 0 && incoming.destination.buffer.as_segment().is_some();
        let source = incoming.origin.source;
        let receive_id = self.receives.insert(incoming) as u32;
        match is_read {
            true => self.accesses.waiting.push(source, Access::Read(receive_id)),
            false => self.pull(receive_id),
        }
    }

    /// Requests bytes as fragments.
    pub(crate) fn pull(&mut self, receive_id: u32) {
        let Some(incoming) = self.receives.get_mut(receive_id as usize) else { return };
        incoming.arrived = Some(0);
        let (send_id, len) = (incoming.announcement.send_id, incoming.wanted as u64);
        let header = match incoming.purpose {
            IncomingPurpose::Read(target) => Header::Read { target, len, receive_id },
            // The request was sent with the operands.
            IncomingPurpose::Fetch => return,
            IncomingPurpose::Message(_) | IncomingPurpose::Write { .. } => {
                Header::Pull { send_id, receive_id, len }
            }
        };
        self.outbox.push(incoming.origin.source, header);
    }

    /// Notifies the sender of an announced message that nothing more of it is needed.
    pub(crate) fn finish_send_of(&mut self, source: u32, send_id: u32) {
        if source != self.self_node {
            return self.outbox.push(source, Header::Finished { send_id });
        }
        if let Some(send) = self.sends.try_remove(send_id as usize) {
            self.complete_outgoing(&send, None);
        }
    }

    /// Completes an outgoing transfer.
    pub(crate) fn complete_outgoing(
        &mut self,
        outgoing: &OutgoingTransfer,
        failure: Option<Failure>,
    ) {
        if outgoing.is_dropped {
            return;
        }
        match outgoing.purpose {
            OutgoingPurpose::Message(envelope) => {
                self.complete_send(outgoing.request, envelope, failure);
            }
            OutgoingPurpose::Write { .. } => self.complete_write(outgoing.request, failure),
            OutgoingPurpose::Atomic => self.complete_atomic(outgoing.request, false, failure),
            OutgoingPurpose::Answer { .. } => {}
        }
    }

    /// Completes an incoming transfer.
    pub(crate) fn complete_incoming(&mut self, receive_id: u32, failure: Option<Failure>) {
        let Some(incoming) = self.receives.try_remove(receive_id as usize) else { return };
        let IncomingTransfer { destination, origin, announcement, is_dropped, .. } = incoming;
        if is_dropped {
            return;
        }
        match incoming.purpose {
            IncomingPurpose::Message(envelope) => {
                let of_message = (origin, envelope);
                self.complete_receive(&destination, of_message, announcement.len, failure);
            }
            IncomingPurpose::Read(_) => self.complete_read(&destination, failure),
            IncomingPurpose::Fetch => self.complete_atomic(destination.request, true, failure),
            IncomingPurpose::Write { data, .. } => {
                self.note_written(origin.source, data, &destination.buffer);
            }
        }
    }

    pub(crate) fn on_pull(
        &mut self,
        source: u32,
        send_id: u32,
        receive_id: u32,
        len: u64,
    ) -> Result<(), Violation> {
        let violation =
            Violation { source: Some(source), what: "requests a message that was not announced" };
        let send = self.sends.get_mut(send_id as usize).ok_or(violation)?;
        let len = usize::try_from(len).map_err(|_| violation)?;
        let is_written_by_network = self.accesses.has_write(source, send_id);
        let is_announced = send.pull.is_none() && !is_written_by_network;
        if send.node != source || !is_announced || len > send.data.len() || len == 0 {
            return Err(violation);
        }
        send.pull = Some(Pull { receive_id, sent: 0, len });
        self.streams.push(source, send_id);
        Ok(())
    }

    pub(crate) fn on_fragment(
        &mut self,
        source: u32,
        receive_id: u32,
        offset: u64,
        payload: Payload<'_>,
    ) -> Result<(), Violation> {
        let violation =
            Violation { source: Some(source), what: "sends a fragment that was not requested" };
        let incoming = self.receives.get_mut(receive_id as usize).ok_or(violation)?;
        let arrived = incoming.arrived.as_mut().ok_or(violation)?;
        // Fragments arrive in order.
        let is_next = incoming.origin.source == source && *arrived as u64 == offset;
        if !is_next || payload.is_empty() || payload.len() > incoming.wanted - *arrived {
            return Err(violation);
        }
        incoming.destination.buffer.fill_from(*arrived, payload);
        *arrived += payload.len();
        if *arrived == incoming.wanted {
            if incoming.announcement.wants_finished {
                let send_id = incoming.announcement.send_id;
                self.outbox.push(source, Header::Finished { send_id });
            }
            self.complete_incoming(receive_id, None);
        }
        Ok(())
    }

    /// Notes that the other node needs nothing more of a message. Its reads have ended. The next
    /// `send_pending` conceals the memory, because that needs the network.
    pub(crate) fn on_finished(&mut self, source: u32, send_id: u32) -> Result<(), Violation> {
        let violation =
            Violation { source: Some(source), what: "ends a message that was not announced" };
        let is_written_by_network = self.accesses.has_write(source, send_id);
        let send = self.sends.get_mut(send_id as usize).ok_or(violation)?;
        let is_due = match send.pull {
            None => !is_written_by_network,
            Some(pull) => send.is_finished_awaited && pull.sent == pull.len && pull.len > 0,
        };
        if send.node != source || !is_due {
            return Err(violation);
        }
        send.pull = Some(PULL_NOTHING);
        self.streams.push(source, send_id);
        Ok(())
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

    /// Whether the network writes the bytes of this outgoing transfer to `node`, or will.
    pub(crate) fn has_write(&self, node: u32, send_id: u32) -> bool {
        let write = Access::Write(send_id);
        self.is_started(write) || self.waiting.contains(node, &write)
    }
}
