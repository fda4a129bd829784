//! Reads and writes of the memory of other nodes, and the requests of other nodes for memory of
//! this node.

use crate::counts::Counted;
use crate::destination::Destination;
use crate::engine::Engine;
use crate::matching::Origin;
use crate::memory::{Payload, UserBuffer};
use crate::network::{Body, Network, SendError};
use crate::operation::{
    Channel, Completion, CompletionKind, Failure, ReadOperation, Request, Retention, Violation,
    WriteOperation,
};
use crate::regions::{FIRST_HANDLE, RegionAccess, handle_of};
use crate::state::State;
use crate::transfers::{
    Access, IncomingPurpose, IncomingTransfer, OutgoingData, OutgoingPurpose, OutgoingTransfer,
    PULL_NOTHING,
};
use crate::wire::{Announcement, Envelope, Header, OperationId, RemoteAddress, WriteBytes};

/// A write that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedWrite {
    pub(crate) source: u32,
    pub(crate) target: RemoteAddress,
    pub(crate) data: Option<u64>,
    pub(crate) send_id: u32,
}

impl<N: Network> Engine<N> {
    /// Opens memory to other nodes. Returns the key of the region.
    pub fn register(&mut self, buffer: UserBuffer, access: RegionAccess) -> u64 {
        // The network cannot restrict access to reading or to writing.
        let can_be_exposed = access == RegionAccess::ALL && buffer.as_segment().is_some();
        let handle = can_be_exposed.then(|| self.network.expose_to_all(&buffer)).flatten();
        let handle = handle.filter(|handle| {
            let is_key = *handle >= FIRST_HANDLE && handle.is_multiple_of(FIRST_HANDLE);
            if !is_key {
                self.network.conceal_from_all(&buffer);
            }
            is_key
        });
        self.state.regions.add(buffer, access, handle)
    }

    /// Closes a region to other nodes. Returns whether this was its last registration. If so, the
    /// program calls [`Engine::forget_region`] of all engines that share the regions. The program
    /// must not reuse the memory while [`Engine::is_region_in_use`] returns true.
    pub fn unregister(&mut self, key: u64) -> bool {
        let Some((buffer, is_removed)) = self.state.regions.remove(key) else { return false };
        if key >= FIRST_HANDLE {
            self.network.conceal_from_all(&buffer);
        }
        is_removed
    }

    /// Drops the references to a region that was closed. Answers to earlier requests are still
    /// sent, from copies.
    pub fn forget_region(&mut self, key: u64) {
        for (_, send) in &mut self.state.sends {
            if send.purpose == (OutgoingPurpose::Answer { key }) {
                send.data.keep_copy(&self.state.copies);
            }
        }
        let accesses = &self.state.accesses;
        for (receive_id, incoming) in &mut self.state.receives {
            let is_written =
                matches!(incoming.purpose, IncomingPurpose::Write { key: one, .. } if one == key);
            if is_written && !accesses.is_started(Access::Read(receive_id as u32)) {
                incoming.destination = Destination::nowhere();
            }
        }
    }

    /// Whether the network still writes to a region that was closed.
    pub fn is_region_in_use(&self, key: u64) -> bool {
        let is_in_use = |access: &Access| {
            let Access::Read(receive_id) = access else { return false };
            let incoming = self.state.receives.get(*receive_id as usize);
            incoming.is_some_and(|incoming| {
                matches!(incoming.purpose, IncomingPurpose::Write { key: one, .. } if one == key)
            })
        };
        self.state.accesses.started.values().any(is_in_use)
    }

    /// Writes bytes to memory of another node, or starts to write them.
    ///
    /// # Errors
    /// Returns `Full` if nothing was done; the program tries again after [`Engine::progress`].
    pub fn write(&mut self, write: &WriteOperation) -> Result<(), SendError> {
        let WriteOperation { node, target, request, data, ref buffer, retention } = *write;
        if node == self.state.self_node {
            self.state.write_to_self(write);
            return Ok(());
        }
        let is_written_by_network = data.is_none()
            && !buffer.is_empty()
            && buffer.as_segment().is_some()
            && handle_of(target).is_some();
        if !is_written_by_network {
            return self.write_by_message(write);
        }
        if !self.state.has_room_for(buffer, retention) {
            return Err(SendError::Full);
        }
        let send_id = self.state.sends.insert(OutgoingTransfer {
            data: OutgoingData::new(buffer, retention, &self.state.copies),
            ..OutgoingTransfer::awaited(node, request, OutgoingPurpose::Write { target, data })
        });
        self.state.accesses.waiting.push(node, Access::Write(send_id as u32));
        self.send_pending();
        Ok(())
    }

    fn write_by_message(&mut self, write: &WriteOperation) -> Result<(), SendError> {
        let WriteOperation { node, target, request, data, ref buffer, retention } = *write;
        let send_id = self.state.sends.vacant_key() as u32;
        let purpose = OutgoingPurpose::Write { target, data };
        let outgoing = OutgoingTransfer::awaited(node, request, purpose);
        let header = Header::Write { target, data, bytes: WriteBytes::Inline, send_id };
        let header = header.encode(self.state.self_node);
        if header.byte_len() + buffer.len() <= self.network.mtu(node) {
            let body = Body::Memory { buffer, offset: 0, len: buffer.len() };
            self.network.send(node, header, body)?;
            self.state.sends.insert(outgoing);
            return Ok(());
        }
        if !self.state.has_room_for(buffer, retention) {
            return Err(SendError::Full);
        }
        let exposed = self.expose_if_read(node, buffer, retention);
        let (len, handle) = (buffer.len() as u64, exposed.unwrap_or(0));
        let bytes = WriteBytes::Announced { len, handle };
        let header = Header::Write { target, data, bytes, send_id }.encode(self.state.self_node);
        if let Err(error) = self.network.send(node, header, Body::NONE) {
            if exposed.is_some() {
                self.network.conceal(node, buffer);
            }
            return Err(error);
        }
        self.state.sends.insert(OutgoingTransfer {
            data: OutgoingData::new(buffer, retention, &self.state.copies),
            is_exposed: exposed.is_some(),
            ..outgoing
        });
        Ok(())
    }

    /// Starts to read bytes from memory of another node.
    pub fn read(&mut self, read: &ReadOperation) {
        let ReadOperation { node, target, request, ref buffer } = *read;
        let destination = Destination::of(buffer.clone(), request);
        if node == self.state.self_node {
            return self.state.read_from_self(target, &destination);
        }
        if buffer.is_empty() {
            return self.state.complete_read(&destination, None);
        }
        let wanted = buffer.len();
        self.state.fetch(IncomingTransfer {
            destination,
            origin: Origin { source: node, tag: 0 },
            purpose: IncomingPurpose::Read(target),
            announcement: Announcement {
                len: wanted as u64,
                handle: handle_of(target).unwrap_or(0),
                send_id: 0,
                wants_finished: false,
            },
            wanted,
            arrived: None,
            is_dropped: false,
        });
        self.send_pending();
    }

    /// Whether messages to `node`, or operations on its memory, have not ended (`FI_FENCE`).
    pub fn has_pending_operations(&self, node: u32) -> bool {
        let is_pending = |send: &OutgoingTransfer| {
            send.node == node && !matches!(send.purpose, OutgoingPurpose::Answer { .. })
        };
        let is_fetched = |incoming: &IncomingTransfer| {
            let is_ours =
                matches!(incoming.purpose, IncomingPurpose::Read(_) | IncomingPurpose::Fetch);
            is_ours && incoming.origin.source == node
        };
        self.state.sends.iter().any(|(_, send)| is_pending(send))
            || self.state.receives.iter().any(|(_, incoming)| is_fetched(incoming))
    }
}

impl State {
    fn write_to_self(&mut self, write: &WriteOperation) {
        let len = write.buffer.len();
        let part = self.regions.part(write.target, len as u64, RegionAccess::WRITE);
        let failure = part.is_none().then_some(Failure::Refused);
        if let Some(part) = part {
            part.fill_from_buffer(&write.buffer, len);
            self.note_written(self.self_node, write.data, &part);
        }
        self.complete_write(write.request, failure);
    }

    fn read_from_self(&mut self, target: RemoteAddress, destination: &Destination) {
        let len = destination.buffer.len();
        let part = self.regions.part(target, len as u64, RegionAccess::READ);
        let failure = part.is_none().then_some(Failure::Refused);
        if let Some(part) = part {
            destination.buffer.fill_from_buffer(&part, len);
        }
        self.complete_read(destination, failure);
    }

    /// Completes a read.
    pub(crate) fn complete_read(&mut self, destination: &Destination, failure: Option<Failure>) {
        self.counts.add(Counted::Reads, failure.is_some());
        self.complete_remote(CompletionKind::Read, destination.request, failure);
    }

    /// Completes a write.
    pub(crate) fn complete_write(&mut self, request: Request, failure: Option<Failure>) {
        self.counts.add(Counted::Writes, failure.is_some());
        self.complete_remote(CompletionKind::Written, request, failure);
    }

    /// Completes an operation on the memory of another node.
    pub(crate) fn complete_remote(
        &mut self,
        kind: CompletionKind,
        request: Request,
        failure: Option<Failure>,
    ) {
        if request.is_reported || failure.is_some() {
            self.completions.push(Completion {
                context: request.context,
                kind,
                channel: Channel::Untagged,
                len: 0,
                start: std::ptr::null_mut(),
                source: self.self_node,
                envelope: Envelope { tag: None, data: None },
                failure,
            });
        }
    }

    /// Notes that `source` has written bytes here. The program gets a completion only if the write
    /// carries a number.
    pub(crate) fn note_written(&mut self, source: u32, data: Option<u64>, part: &UserBuffer) {
        if data.is_some() {
            self.completions.push(Completion {
                context: 0,
                kind: CompletionKind::RemoteWritten,
                channel: Channel::Untagged,
                len: part.len(),
                start: part.start(),
                source,
                envelope: Envelope { tag: None, data },
                failure: None,
            });
        }
    }

    /// Refuses an access to memory that the program has not opened for it. Such a request does not
    /// violate the protocol.
    pub(crate) fn refuse(&mut self, source: u32, id: OperationId) {
        self.outbox.push(source, Header::Refused { id });
    }

    pub(crate) fn on_write(
        &mut self,
        write: &ArrivedWrite,
        bytes: WriteBytes,
        payload: Payload<'_>,
    ) {
        let ArrivedWrite { source, target, data, send_id } = *write;
        let (len, handle) = match bytes {
            WriteBytes::Inline => (payload.len() as u64, 0),
            WriteBytes::Announced { len, handle } => (len, handle),
        };
        let Some(part) = self.regions.part(target, len, RegionAccess::WRITE) else {
            return self.refuse(source, OperationId::Send(send_id));
        };
        if bytes == WriteBytes::Inline || len == 0 {
            part.fill_from(0, payload);
            self.note_written(source, data, &part);
            return self.finish_send_of(source, send_id);
        }
        let request = Request { context: 0, is_reported: false };
        let wanted = part.len();
        self.fetch(IncomingTransfer {
            destination: Destination::of(part, request),
            origin: Origin { source, tag: 0 },
            purpose: IncomingPurpose::Write { key: target.key, data },
            announcement: Announcement { len, handle, send_id, wants_finished: true },
            wanted,
            arrived: None,
            is_dropped: false,
        });
    }

    pub(crate) fn on_read(
        &mut self,
        source: u32,
        target: RemoteAddress,
        len: u64,
        receive_id: u32,
    ) -> Result<(), Violation> {
        if len == 0 {
            return Err(Violation { source: Some(source), what: "reads no bytes" });
        }
        match self.regions.part(target, len, RegionAccess::READ) {
            None => self.refuse(source, OperationId::Receive(receive_id)),
            Some(part) => self.answer(source, target.key, &part, Retention::Stays, receive_id),
        }
        Ok(())
    }

    /// Sends bytes that another node has requested.
    pub(crate) fn answer(
        &mut self,
        node: u32,
        key: u64,
        part: &UserBuffer,
        retention: Retention,
        receive_id: u32,
    ) {
        let data = match retention {
            Retention::Stays => OutgoingData::Memory(part.clone()),
            Retention::Volatile => OutgoingData::Copy(self.copies.copy_beside_budget(part)),
        };
        let send_id = self.sends.insert(OutgoingTransfer::answer(node, key, data, receive_id));
        self.streams.push(node, send_id as u32);
    }

    /// Handles a refusal by another node.
    pub(crate) fn on_refused(&mut self, source: u32, id: OperationId) -> Result<(), Violation> {
        let violation =
            Violation { source: Some(source), what: "refuses an operation that was not requested" };
        match id {
            OperationId::Send(send_id) => {
                let is_written_by_network = self.accesses.has_write(source, send_id);
                let send = self.sends.get_mut(send_id as usize).ok_or(violation)?;
                let can_be_refused =
                    matches!(send.purpose, OutgoingPurpose::Write { .. } | OutgoingPurpose::Atomic);
                if send.node != source
                    || !can_be_refused
                    || send.pull.is_some()
                    || is_written_by_network
                {
                    return Err(violation);
                }
                send.failure = Some(Failure::Refused);
                send.pull = Some(PULL_NOTHING);
                self.streams.push(source, send_id);
            }
            OperationId::Receive(receive_id) => {
                let incoming = self.receives.get(receive_id as usize).ok_or(violation)?;
                let can_be_refused =
                    matches!(incoming.purpose, IncomingPurpose::Read(_) | IncomingPurpose::Fetch);
                if incoming.origin.source != source
                    || !can_be_refused
                    || incoming.arrived != Some(0)
                {
                    return Err(violation);
                }
                self.complete_incoming(receive_id, Some(Failure::Refused));
            }
        }
        Ok(())
    }
}
