//! Transfers of bytes between the memories of two nodes.
//!
//! An announced message remains at its sender until a receive matches it. The receiver then reads
//! the message from the sender's memory and acknowledges it (`Finished`), or requests it (`Pull`)
//! and receives fragments. Long writes to memory of another node use the same mechanism. Bytes that
//! another node reads, and results of its atomic operations, are sent as fragments without a
//! `Pull`.

use crate::destination::Destination;
use crate::matching::Origin;
use crate::memory::{Payload, UserBuffer};
use crate::operation::{Failure, Retention, Violation};
use crate::state::State;
use crate::transfers::{
    Access, IncomingPurpose, IncomingTransfer, OutgoingData, OutgoingPurpose, OutgoingTransfer,
    PULL_NOTHING, Pull,
};
use crate::wire::{Announcement, Envelope, Header};

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

    /// Notifies the sender of an announced message that this node needs nothing more of the
    /// message.
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
