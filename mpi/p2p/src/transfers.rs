//! Bytes on their way between the memories of two nodes, and what they are for.
//!
//! A message that is announced stays at its sender until a receive matches it. Then its receiver
//! reads it from the sender's memory and says so (`Finished`), or asks for it (`Pull`) and gets
//! fragments. Long writes to memory of another node go the same way; bytes that another node reads
//! here, and results of its atomic operations, are fragments that nobody has to ask for.

use std::collections::BTreeMap;

use crate::copies::{CopiedBytes, Copies};
use crate::matching::Origin;
use crate::memory::{Payload, UserBuffer};
use crate::network::AccessNumber;
use crate::node_queues::NodeQueues;
use crate::operation::{Failure, Request, Retention, SendCompletes, SendOperation, Violation};
use crate::state::{Destination, State};
use crate::wire::{Announcement, Envelope, Header, RemoteAddress};

/// Bytes that leave this node, or an operation that waits for its end at another node.
#[derive(Debug)]
pub(crate) struct OutgoingTransfer {
    pub(crate) node: u32,
    pub(crate) request: Request,
    pub(crate) purpose: OutgoingPurpose,
    pub(crate) data: OutgoingData,
    /// Whether the other node may read the memory.
    pub(crate) is_exposed: bool,
    /// Whether the other node says that it has everything.
    pub(crate) is_finished_awaited: bool,
    pub(crate) pull: Option<Pull>,
    pub(crate) failure: Option<Failure>,
    /// The program does not want to know its end any more.
    pub(crate) is_dropped: bool,
}

/// What the bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutgoingPurpose {
    /// A message.
    Message(Envelope),
    /// They are written to memory of the other node.
    Write { target: RemoteAddress, data: Option<u64> },
    /// An atomic operation without a result.
    Atomic,
    /// The other node has asked for them. They are in the region with this key.
    Answer { key: u64 },
}

#[derive(Debug)]
pub(crate) enum OutgoingData {
    Memory(UserBuffer),
    Copy(CopiedBytes),
    /// They have left.
    Sent,
}

/// The other node has asked for fragments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pull {
    pub(crate) receive_id: u32,
    pub(crate) sent: usize,
    pub(crate) len: usize,
}

/// Nothing more is to be sent.
pub(crate) const PULL_NOTHING: Pull = Pull { receive_id: 0, sent: 0, len: 0 };

/// Bytes that are on their way to this node.
#[derive(Debug)]
pub(crate) struct IncomingTransfer {
    pub(crate) destination: Destination,
    pub(crate) origin: Origin,
    pub(crate) purpose: IncomingPurpose,
    pub(crate) announcement: Announcement,
    /// Bytes that fit into the buffer.
    pub(crate) wanted: usize,
    /// Bytes that have arrived as fragments. None: no fragments were asked for.
    pub(crate) arrived: Option<usize>,
    /// The program does not want it any more.
    pub(crate) is_dropped: bool,
}

/// What the bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncomingPurpose {
    /// A message that was announced.
    Message(Envelope),
    /// The program reads them there.
    Read(RemoteAddress),
    /// The former values of an atomic operation.
    Fetch,
    /// The other node writes them to the region with this key.
    Write { key: u64, data: Option<u64> },
}

/// A transfer by the network's own access to memory of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Bytes are read. The number of the incoming transfer.
    Read(u32),
    /// Bytes are written. The number of the outgoing transfer.
    Write(u32),
}

/// Transfers by the network's own accesses. Each ends by itself, and others start meanwhile.
#[derive(Debug)]
pub(crate) struct AccessQueue {
    /// By node: one to which no further access is possible now does not stop others.
    pub(crate) waiting: NodeQueues<Access>,
    /// By the network's numbers.
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

    /// Keeps a copy, because the program may change its memory from now on.
    pub(crate) fn keep_copy(&mut self, copies: &Copies) {
        if let OutgoingData::Memory(buffer) = self {
            *self = OutgoingData::Copy(copies.copy_beside_budget(buffer));
        }
    }
}

impl OutgoingTransfer {
    /// A message whose bytes stay here.
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

    /// A message that has left, and whose arrival is awaited.
    pub(crate) fn acknowledged(send: &SendOperation) -> Self {
        let purpose = OutgoingPurpose::Message(send.envelope);
        Self::awaited(send.node, send.request, purpose)
    }

    /// An operation that has left, and whose end is awaited.
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

    /// Bytes that `node` has asked for.
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
    /// Whether this may be kept until its receiver wants it.
    pub(crate) fn has_room_for(&self, buffer: &UserBuffer, retention: Retention) -> bool {
        retention == Retention::Stays || self.copies.has_room(buffer.len())
    }

    /// Whether something waits that needs the network.
    #[inline(always)]
    pub(crate) fn has_work(&self) -> bool {
        !self.outbox.is_empty()
            || !self.streams.is_empty()
            || !self.accesses.waiting.is_empty()
            || !self.accesses.started.is_empty()
            || self.violation.is_some()
    }

    /// A receive has matched an announced message.
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

    /// Gets bytes that are at another node: by reading them, or else as fragments.
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

    /// Asks for bytes as fragments.
    pub(crate) fn pull(&mut self, receive_id: u32) {
        let Some(incoming) = self.receives.get_mut(receive_id as usize) else { return };
        incoming.arrived = Some(0);
        let (send_id, len) = (incoming.announcement.send_id, incoming.wanted as u64);
        let header = match incoming.purpose {
            IncomingPurpose::Read(target) => Header::Read { target, len, receive_id },
            // Its request has left with the operands.
            IncomingPurpose::Fetch => return,
            IncomingPurpose::Message(_) | IncomingPurpose::Write { .. } => {
                Header::Pull { send_id, receive_id, len }
            }
        };
        self.outbox.push(incoming.origin.source, header);
    }

    /// Nothing more is needed of an announced message.
    pub(crate) fn finish_send_of(&mut self, source: u32, send_id: u32) {
        if source != self.self_node {
            return self.outbox.push(source, Header::Finished { send_id });
        }
        if let Some(send) = self.sends.try_remove(send_id as usize) {
            self.complete_outgoing(&send, None);
        }
    }

    /// An outgoing transfer has ended.
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

    /// An incoming transfer has ended.
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
            Violation { source: Some(source), what: "asks for a message that was not announced" };
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
            Violation { source: Some(source), what: "sends a fragment that nobody has asked for" };
        let incoming = self.receives.get_mut(receive_id as usize).ok_or(violation)?;
        let arrived = incoming.arrived.as_mut().ok_or(violation)?;
        // Fragments come in their order.
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

    /// The other node needs nothing more. Its reads have ended, so the memory is concealed when the
    /// network is at hand.
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
