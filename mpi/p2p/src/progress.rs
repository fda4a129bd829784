//! The part of transfers that needs the network: sending headers and fragments, and reading and
//! writing memory.

use crate::destination::Destination;
use crate::engine::Engine;
use crate::memory::UserBuffer;
use crate::network::{AccessError, AccessNumber, Body, Network, SendError, WriteProgress};
use crate::operation::{Failure, Retention, SendCompletes, SendOperation};
use crate::regions::handle_of;
use crate::transfers::{Access, IncomingPurpose, OutgoingData, OutgoingPurpose, OutgoingTransfer};
use crate::wire::{Announcement, Header, WORD_LEN, WriteBytes};

/// The most fragments of one message that one call sends. Further fragments wait for the next call.
const FRAGMENTS_PER_PASS: usize = 16;
/// The most messages to one node for which one call sends fragments.
const STREAMS_PER_PASS: usize = 16;
/// The length of a fragment's header, in bytes.
const FRAGMENT_HEADER_LEN: usize = 3 * WORD_LEN;

/// The progress of the fragments of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// There are more fragments.
    Waits,
    /// There are more fragments, and the node has no room for them now.
    Full,
    /// All fragments are sent. The receiver acknowledges them.
    Sent,
    /// Nothing is left to do, or nothing can be done.
    Complete,
}

impl<N: Network> Engine<N> {
    /// Sends the header of a message whose bytes remain at this node.
    #[cold]
    pub(crate) fn announce(&mut self, send: &SendOperation) -> Result<(), SendError> {
        let SendOperation { node, envelope, ref buffer, .. } = *send;
        if !self.state.has_room_for(buffer, send.retention) {
            return Err(SendError::Full);
        }
        let handle = self.expose_if_read(node, buffer, send.retention);
        let entry = self.state.sends.vacant_entry();
        let announcement = Announcement {
            len: buffer.len() as u64,
            handle: handle.unwrap_or(0),
            send_id: entry.key() as u32,
            wants_finished: send.completes != SendCompletes::AtOnce,
        };
        let header = Header::Announcement(envelope, announcement).encode(self.state.self_node);
        if let Err(error) = self.network.send(node, header, Body::NONE) {
            if handle.is_some() {
                self.network.conceal(node, buffer);
            }
            return Err(error);
        }
        entry.insert(OutgoingTransfer::announced(send, handle.is_some(), &self.state.copies));
        Ok(())
    }

    /// Exposes memory to `node`, if it is long enough for `node` to read it.
    pub(crate) fn expose_if_read(
        &mut self,
        node: u32,
        buffer: &UserBuffer,
        retention: Retention,
    ) -> Option<u64> {
        let is_read = retention == Retention::Stays
            && buffer.len() >= self.state.limits.min_read_len
            && buffer.as_segment().is_some();
        if is_read { self.network.expose(node, buffer) } else { None }
    }

    /// Whether all operations that the program considers complete have ended: no copies of messages
    /// are left, no answers to other nodes, and no reads into the program's memory.
    pub fn is_flushed(&self) -> bool {
        !self.state.has_work() && self.state.copies.is_empty()
    }

    /// Drops all operations of the program, so that the program may reuse their memory. Accesses
    /// that the network has started continue. Messages that have arrived remain.
    pub fn forget_operations(&mut self) {
        let state = &mut self.state;
        for (receive_id, incoming) in state.receives.iter_mut() {
            // Writes of other nodes are not operations of the program.
            if matches!(incoming.purpose, IncomingPurpose::Write { .. }) {
                continue;
            }
            incoming.is_dropped = true;
            // A read that has started ends in the memory in which it began.
            if !state.accesses.is_started(Access::Read(receive_id as u32)) {
                incoming.destination = Destination::nowhere();
            }
        }
        state.forget_receives();
        // Receivers may still request announced messages.
        for (send_id, send) in state.sends.iter_mut() {
            if matches!(send.purpose, OutgoingPurpose::Answer { .. })
                || state.accesses.is_started(Access::Write(send_id as u32))
            {
                continue;
            }
            send.is_dropped = true;
            if let OutgoingData::Memory(buffer) = &send.data
                && std::mem::take(&mut send.is_exposed)
            {
                self.network.conceal(send.node, buffer);
            }
            send.data.keep_copy(&state.copies);
        }
    }

    /// Starts pending sends, reads and writes, as far as the network has room.
    #[cold]
    pub(crate) fn send_pending(&mut self) {
        self.start_accesses();
        self.end_accesses();
        self.send_headers();
        self.send_fragments();
    }

    fn send_headers(&mut self) {
        for (node, mut headers) in self.state.outbox.take_all() {
            while let Some(header) = headers.front() {
                let encoded = header.encode(self.state.self_node);
                let result = self.network.send(node, encoded, Body::NONE);
                if result == Err(SendError::Full) {
                    break;
                }
                headers.pop_front();
            }
            self.state.outbox.put_back(node, headers);
        }
    }

    fn send_fragments(&mut self) {
        for (node, mut send_ids) in self.state.streams.take_all() {
            for _ in 0..send_ids.len().min(STREAMS_PER_PASS) {
                let Some(send_id) = send_ids.pop_front() else { break };
                match self.send_fragments_of(send_id) {
                    Progress::Waits => send_ids.push_back(send_id),
                    Progress::Full => {
                        send_ids.push_front(send_id);
                        break;
                    }
                    Progress::Sent => {}
                    Progress::Complete => self.end_send(send_id),
                }
            }
            self.state.streams.put_back(node, send_ids);
        }
    }

    fn send_fragments_of(&mut self, send_id: u32) -> Progress {
        let Some(send) = self.state.sends.get_mut(send_id as usize) else {
            return Progress::Complete;
        };
        let Some(pull) = &mut send.pull else { return Progress::Complete };
        let max_len = self.network.mtu(send.node).saturating_sub(FRAGMENT_HEADER_LEN);
        for _ in 0..FRAGMENTS_PER_PASS {
            let len = max_len.min(pull.len - pull.sent);
            if len == 0 {
                break;
            }
            let offset = pull.sent;
            let header = Header::Fragment { receive_id: pull.receive_id, offset: offset as u64 };
            let header = header.encode(self.state.self_node);
            let body = match &send.data {
                OutgoingData::Memory(buffer) => Body::Memory { buffer, offset, len },
                OutgoingData::Copy(bytes) => Body::Bytes(&bytes[offset..offset + len]),
                OutgoingData::Sent => return Progress::Complete,
            };
            match self.network.send(send.node, header, body) {
                Ok(()) => pull.sent += len,
                Err(SendError::Full) => return Progress::Full,
                Err(SendError::Unreachable) => return Progress::Complete,
            }
        }
        match pull.sent == pull.len {
            false => Progress::Waits,
            true if send.is_finished_awaited && pull.len > 0 => Progress::Sent,
            true => Progress::Complete,
        }
    }

    fn end_send(&mut self, send_id: u32) {
        let Some(send) = self.state.sends.try_remove(send_id as usize) else { return };
        if let (true, OutgoingData::Memory(buffer)) = (send.is_exposed, &send.data) {
            self.network.conceal(send.node, buffer);
        }
        let is_complete = send.pull.is_some_and(|pull| pull.sent == pull.len);
        let broken = (!is_complete).then_some(Failure::Network);
        self.state.complete_outgoing(&send, send.failure.or(broken));
    }

    fn start_accesses(&mut self) {
        for (node, mut accesses) in self.state.accesses.waiting.take_all() {
            while let Some(&access) = accesses.front() {
                let result = match access {
                    Access::Read(receive_id) => self.start_read(receive_id),
                    Access::Write(send_id) => self.start_write(send_id),
                };
                match result {
                    Ok(Some(number)) => drop(self.state.accesses.started.insert(number, access)),
                    Ok(None) => {}
                    Err(AccessError::Full) => break,
                    Err(AccessError::Failed) => self.use_messages(access),
                }
                accesses.pop_front();
            }
            self.state.accesses.waiting.put_back(node, accesses);
        }
    }

    /// Returns None if there is nothing left to read.
    fn start_read(&mut self, receive_id: u32) -> Result<Option<AccessNumber>, AccessError> {
        let Some(incoming) = self.state.receives.get(receive_id as usize) else {
            return Ok(None);
        };
        let (source, handle) = (incoming.origin.source, incoming.announcement.handle);
        let buffer = incoming.destination.buffer.part(0, incoming.wanted);
        if buffer.len() < incoming.wanted {
            // The program has closed the endpoint; the bytes are discarded.
            return Err(AccessError::Failed);
        }
        self.network.start_read(source, handle, &buffer).map(Some)
    }

    /// Returns None if the bytes are written already.
    fn start_write(&mut self, send_id: u32) -> Result<Option<AccessNumber>, AccessError> {
        let Some(send) = self.state.sends.get_mut(send_id as usize) else { return Ok(None) };
        let OutgoingPurpose::Write { target, .. } = send.purpose else { return Ok(None) };
        let (Some(handle), Some(buffer)) = (handle_of(target), send.buffer()) else {
            return Err(AccessError::Failed);
        };
        match self.network.start_write(send.node, handle, &buffer)? {
            WriteProgress::Started(number) => Ok(Some(number)),
            WriteProgress::Delivered => {
                self.complete_write_of(send_id);
                Ok(None)
            }
        }
    }

    fn complete_write_of(&mut self, send_id: u32) {
        if let Some(send) = self.state.sends.try_remove(send_id as usize) {
            self.state.complete_outgoing(&send, None);
        }
    }

    /// Transfers the bytes as messages, because the network cannot read or write this memory.
    fn use_messages(&mut self, access: Access) {
        match access {
            Access::Read(receive_id) => self.state.pull(receive_id),
            Access::Write(send_id) => {
                let Some(send) = self.state.sends.get(send_id as usize) else { return };
                let OutgoingPurpose::Write { target, data } = send.purpose else { return };
                let len = send.buffer().map_or(0, |buffer| buffer.len() as u64);
                let bytes = WriteBytes::Announced { len, handle: 0 };
                let header = Header::Write { target, data, bytes, send_id };
                self.state.outbox.push(send.node, header);
            }
        }
    }

    fn end_accesses(&mut self) {
        while !self.state.accesses.started.is_empty()
            && let Some(ended) = self.network.next_ended()
        {
            if let Some(access) = self.state.accesses.started.remove(&ended.number) {
                self.end_access(access, ended.has_failed);
            }
        }
    }

    fn end_access(&mut self, access: Access, has_failed: bool) {
        match access {
            Access::Read(receive_id) => {
                let Some(incoming) = self.state.receives.get(receive_id as usize) else { return };
                let (source, send_id) = (incoming.origin.source, incoming.announcement.send_id);
                let is_announced = !matches!(incoming.purpose, IncomingPurpose::Read(_));
                let buffer = incoming.destination.buffer.part(0, incoming.wanted);
                self.network.release_buffer(source, &buffer);
                if has_failed {
                    return self.use_messages(access);
                }
                if is_announced {
                    self.state.finish_send_of(source, send_id);
                }
                self.state.complete_incoming(receive_id, None);
            }
            Access::Write(send_id) => {
                let Some(send) = self.state.sends.get(send_id as usize) else { return };
                if let Some(buffer) = send.buffer() {
                    self.network.release_buffer(send.node, &buffer);
                }
                match has_failed {
                    false => self.complete_write_of(send_id),
                    true => self.use_messages(access),
                }
            }
        }
    }
}

impl OutgoingTransfer {
    /// The memory to send, in one piece.
    fn buffer(&self) -> Option<UserBuffer> {
        match &self.data {
            OutgoingData::Memory(buffer) => Some(buffer.clone()),
            OutgoingData::Copy(bytes) => Some(UserBuffer::of_copy(bytes)),
            OutgoingData::Sent => None,
        }
    }
}
