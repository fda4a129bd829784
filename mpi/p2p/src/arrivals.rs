//! Handling of arriving messages. This module sends nothing: answers are added to the outbox.

use crate::credit;
use crate::matching_queues::{Unexpected, UnexpectedBody};
use crate::memory::{Message, Payload};
use crate::operation::Violation;
use crate::remote_memory::ArrivedWrite;
use crate::state::{State, channel_of, origin_of};
use crate::wire::{Announcement, Envelope, Header};

impl State {
    /// Handles a message of the network.
    #[inline(always)]
    pub(crate) fn on_message(&mut self, message: &Message<'_>) {
        match Header::decode_eager(message) {
            Some((envelope, source, header_len)) if self.is_other_node(source) => {
                let payload = message.payload(header_len);
                if let Err(violation) = self.on_eager(source, envelope, payload) {
                    self.violation.get_or_insert(violation);
                }
            }
            _ => self.on_rare_message(message),
        }
    }

    #[inline(always)]
    fn is_other_node(&self, source: u32) -> bool {
        source < self.nodes && source != self.self_node
    }

    /// Like [`State::on_message`], for messages of all kinds.
    #[inline(never)]
    fn on_rare_message(&mut self, message: &Message<'_>) {
        let result = match Header::decode(message) {
            Ok((_, source, _)) if !self.is_other_node(source) => {
                Err(Violation { source: Some(source), what: "is not another node of this job" })
            }
            Ok((header, source, header_len)) => {
                self.on_header(header, source, message.payload(header_len))
            }
            Err(_) => Err(Violation { source: None, what: "sends a malformed header" }),
        };
        if let Err(violation) = result {
            self.violation.get_or_insert(violation);
        }
    }

    fn on_header(
        &mut self,
        header: Header,
        source: u32,
        payload: Payload<'_>,
    ) -> Result<(), Violation> {
        match header {
            Header::Eager(envelope, send_id) => {
                self.on_eager(source, envelope, payload)?;
                if let Some(send_id) = send_id {
                    self.outbox.push(source, Header::Finished { send_id });
                }
                Ok(())
            }
            Header::Announcement(envelope, announcement) => {
                self.on_announcement(source, envelope, announcement);
                Ok(())
            }
            Header::Pull { send_id, receive_id, len } => {
                self.on_pull(source, send_id, receive_id, len)
            }
            Header::Fragment { receive_id, offset } => {
                self.on_fragment(source, receive_id, offset, payload)
            }
            Header::Finished { send_id } => self.on_finished(source, send_id),
            Header::Credit { bytes } => self.credit.restore(source, bytes),
            Header::Write { target, data, bytes, send_id } => {
                let write = ArrivedWrite { source, target, data, send_id };
                self.on_write(&write, bytes, payload);
                Ok(())
            }
            Header::Read { target, len, receive_id } => {
                self.on_read(source, target, len, receive_id)
            }
            Header::Atomic(request) => self.on_atomic(source, &request, payload),
            Header::Refused { id } => self.on_refused(source, id),
        }
    }

    #[inline(always)]
    fn on_eager(
        &mut self,
        source: u32,
        envelope: Envelope,
        payload: Payload<'_>,
    ) -> Result<(), Violation> {
        let (cost, len) = (credit::cost(payload.len()), payload.len() as u64);
        self.credit.receive(source, cost)?;
        let (channel, origin) = (channel_of(&envelope), origin_of(source, &envelope));
        match self.matching.take_posted(channel, origin, len) {
            Some(destination) => {
                destination.buffer.fill_from(0, payload);
                self.complete_receive(&destination, (origin, envelope), len, None);
                self.release_credit(source, cost);
            }
            None => {
                let body = UnexpectedBody::Whole { bytes: payload.to_boxed(), cost };
                let unexpected = &mut self.matching.of(channel).unexpected;
                unexpected.add(origin, Unexpected { envelope, body });
            }
        }
        Ok(())
    }

    fn on_announcement(&mut self, source: u32, envelope: Envelope, announcement: Announcement) {
        if let Some(bytes) = self.credit.release_all(source, announcement.len) {
            self.outbox.push(source, Header::Credit { bytes });
        }
        let (channel, origin) = (channel_of(&envelope), origin_of(source, &envelope));
        match self.matching.take_posted(channel, origin, announcement.len) {
            Some(destination) => {
                self.start_transfer(destination, (origin, envelope), announcement);
            }
            None => {
                let body = UnexpectedBody::Announced(announcement);
                let unexpected = &mut self.matching.of(channel).unexpected;
                unexpected.add(origin, Unexpected { envelope, body });
            }
        }
    }
}
