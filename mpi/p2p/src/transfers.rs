//! Rendezvous. A message that is announced stays at its sender until a receive matches it. Then
//! its receiver reads it from the sender's memory and says so (`Finished`), or asks for it
//! (`Pull`) and gets fragments.

use std::collections::VecDeque;

use crate::engine::Engine;
use crate::matching::Origin;
use crate::memory::{Payload, UserBuffer};
use crate::network::{Body, Network, ReadError, SendError};
use crate::operation::{Failure, Request, Retention, SendOperation, Violation};
use crate::state::{Destination, State};
use crate::wire::{Announcement, Envelope, Header, WORD_LEN};

/// Fragments that one call sends of one message, at most: others wait for their turn.
const FRAGMENTS_PER_PASS: usize = 16;
/// Messages to one node of which one call sends fragments, at most.
const STREAMS_PER_PASS: usize = 16;
/// The length of a fragment's header.
const FRAGMENT_HEADER_LEN: usize = 3 * WORD_LEN;

/// A message that was announced.
#[derive(Debug)]
pub(crate) struct AnnouncedSend {
    node: u32,
    envelope: Envelope,
    request: Request,
    data: AnnouncedData,
    /// Whether the receiver may read the memory.
    is_exposed: bool,
    is_delivery_awaited: bool,
    pull: Option<Pull>,
}

#[derive(Debug)]
enum AnnouncedData {
    Memory(UserBuffer),
    Copy(Box<[u8]>),
}

/// The receiver has asked for fragments.
#[derive(Clone, Copy, Debug)]
struct Pull {
    receive_id: u32,
    sent: usize,
    len: usize,
}

/// A message that is on its way to its receive.
#[derive(Debug)]
pub(crate) struct RemoteReceive {
    destination: Destination,
    origin: Origin,
    envelope: Envelope,
    announcement: Announcement,
    /// Bytes that fit into the buffer.
    wanted: usize,
    /// Bytes that have arrived as fragments. None: no fragments were asked for.
    arrived: Option<usize>,
    /// The program does not want it any more.
    is_dropped: bool,
}

/// Messages that are read. The network reports the end of all reads at once, so that further ones
/// start when these have ended.
#[derive(Debug, Default)]
pub(crate) struct ReadQueue {
    waiting: VecDeque<u32>,
    started: Vec<u32>,
}

/// How far the fragments of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// There are more.
    Waits,
    /// There are more, and the node has no room for them now.
    Full,
    /// All are sent; the receiver says when it has them.
    Sent,
    /// Nothing is left to do, or nothing can be done.
    Complete,
}

impl AnnouncedSend {
    pub(crate) fn new(send: &SendOperation, is_exposed: bool) -> Self {
        let data = match send.retention {
            Retention::Stays => AnnouncedData::Memory(send.buffer.clone()),
            Retention::Volatile => AnnouncedData::Copy(send.buffer.to_vec().into()),
        };
        let SendOperation { node, envelope, request, is_delivery_awaited, .. } = *send;
        Self { node, envelope, request, data, is_exposed, is_delivery_awaited, pull: None }
    }

    fn len(&self) -> usize {
        match &self.data {
            AnnouncedData::Memory(buffer) => buffer.len(),
            AnnouncedData::Copy(bytes) => bytes.len(),
        }
    }
}

impl State {
    /// Whether something waits that needs the network.
    #[inline(always)]
    pub(crate) fn has_work(&self) -> bool {
        !self.outbox.is_empty()
            || !self.streams.is_empty()
            || !self.reads.waiting.is_empty()
            || !self.reads.started.is_empty()
            || self.violation.is_some()
    }

    /// A receive has matched an announced message.
    pub(crate) fn start_transfer(
        &mut self,
        destination: Destination,
        (origin, envelope): (Origin, Envelope),
        announcement: Announcement,
    ) {
        let Announcement { len, handle, send_id, .. } = announcement;
        let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(destination.buffer.len());
        if origin.source == self.self_node {
            if let Some(send) = self.sends.try_remove(send_id as usize) {
                match &send.data {
                    AnnouncedData::Memory(buffer) => {
                        destination.buffer.fill_from_buffer(buffer, wanted);
                    }
                    AnnouncedData::Copy(bytes) => {
                        destination.buffer.fill_from(0, Payload::of_bytes(bytes));
                    }
                }
                self.complete_send(send.request, envelope, None);
            }
            return self.complete_receive(&destination, (origin, envelope), len, None);
        }
        if wanted == 0 {
            self.complete_receive(&destination, (origin, envelope), len, None);
            return self.finish_send_of(origin.source, send_id);
        }
        let is_read = handle != 0 && destination.buffer.as_segment().is_some();
        let (arrived, is_dropped) = (None, false);
        let receive = RemoteReceive {
            destination,
            origin,
            envelope,
            announcement,
            wanted,
            arrived,
            is_dropped,
        };
        let receive_id = self.receives.insert(receive) as u32;
        if is_read {
            self.reads.waiting.push_back(receive_id);
        } else {
            self.pull(receive_id);
        }
    }

    /// Asks for a message as fragments.
    fn pull(&mut self, receive_id: u32) {
        let Some(receive) = self.receives.get_mut(receive_id as usize) else { return };
        receive.arrived = Some(0);
        let (send_id, len) = (receive.announcement.send_id, receive.wanted as u64);
        self.outbox.push(receive.origin.source, Header::Pull { send_id, receive_id, len });
    }

    /// Nothing more is needed of an announced message.
    pub(crate) fn finish_send_of(&mut self, source: u32, send_id: u32) {
        if source != self.self_node {
            return self.outbox.push(source, Header::Finished { send_id });
        }
        if let Some(send) = self.sends.try_remove(send_id as usize) {
            self.complete_send(send.request, send.envelope, None);
        }
    }

    fn complete_remote_receive(&mut self, receive_id: u32, failure: Option<Failure>) {
        let Some(receive) = self.receives.try_remove(receive_id as usize) else { return };
        let RemoteReceive { destination, origin, envelope, announcement, is_dropped, .. } = receive;
        if is_dropped {
            return;
        }
        self.complete_receive(&destination, (origin, envelope), announcement.len, failure);
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
        if send.node != source || send.pull.is_some() || len > send.len() || len == 0 {
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
        let receive = self.receives.get_mut(receive_id as usize).ok_or(violation)?;
        let arrived = receive.arrived.as_mut().ok_or(violation)?;
        // Fragments come in their order.
        let is_next = receive.origin.source == source && *arrived as u64 == offset;
        if !is_next || payload.is_empty() || payload.len() > receive.wanted - *arrived {
            return Err(violation);
        }
        receive.destination.buffer.fill_from(*arrived, payload);
        *arrived += payload.len();
        if *arrived == receive.wanted {
            if receive.announcement.wants_finished {
                let send_id = receive.announcement.send_id;
                self.outbox.push(source, Header::Finished { send_id });
            }
            self.complete_remote_receive(receive_id, None);
        }
        Ok(())
    }

    /// The receiver needs nothing more. Its reads have ended, so the memory is concealed when the
    /// network is at hand.
    pub(crate) fn on_finished(&mut self, source: u32, send_id: u32) -> Result<(), Violation> {
        let violation =
            Violation { source: Some(source), what: "ends a message that was not announced" };
        let send = self.sends.get_mut(send_id as usize).ok_or(violation)?;
        let is_due = match send.pull {
            None => true,
            Some(pull) => send.is_delivery_awaited && pull.sent == pull.len && pull.len > 0,
        };
        if send.node != source || !is_due {
            return Err(violation);
        }
        send.pull = Some(Pull { receive_id: 0, sent: 0, len: 0 });
        self.streams.push(source, send_id);
        Ok(())
    }
}

impl<N: Network> Engine<N> {
    /// Sends the header of a message whose bytes stay here.
    #[cold]
    pub(crate) fn announce(&mut self, send: &SendOperation) -> Result<(), SendError> {
        let SendOperation { node, envelope, ref buffer, .. } = *send;
        let is_read = send.retention == Retention::Stays
            && buffer.len() >= self.state.limits.min_read_len
            && buffer.as_segment().is_some();
        let handle = if is_read { self.network.expose(node, buffer) } else { None };
        let entry = self.state.sends.vacant_entry();
        let announcement = Announcement {
            len: buffer.len() as u64,
            handle: handle.unwrap_or(0),
            send_id: entry.key() as u32,
            wants_finished: send.is_delivery_awaited,
        };
        let header = Header::Announcement(envelope, announcement).encode(self.state.self_node);
        if let Err(error) = self.network.send(node, header.as_bytes(), Body::NONE) {
            if handle.is_some() {
                self.network.conceal(node, buffer);
            }
            return Err(error);
        }
        entry.insert(AnnouncedSend::new(send, handle.is_some()));
        Ok(())
    }

    /// Whether nothing is left that the program believes to be done: copies of its messages,
    /// answers that others wait for, reads into its memory.
    pub fn is_flushed(&self) -> bool {
        let is_copy = |send: &AnnouncedSend| matches!(send.data, AnnouncedData::Copy(_));
        !self.state.has_work() && !self.state.sends.iter().any(|(_, send)| is_copy(send))
    }

    /// Forgets all operations of the program, which may use its memory for something else, but for
    /// what is read into now. Messages that have arrived stay.
    pub fn forget_operations(&mut self) {
        let state = &mut self.state;
        for (receive_id, receive) in state.receives.iter_mut() {
            receive.is_dropped = true;
            // A read that is under way ends in the memory in which it has begun.
            if !state.reads.started.contains(&(receive_id as u32)) {
                receive.destination = Destination::nowhere();
            }
        }
        state.forget_receives();
        // What is announced may still be asked for.
        for (_, send) in state.sends.iter_mut() {
            send.request.is_reported = false;
            if let AnnouncedData::Memory(buffer) = &send.data {
                if std::mem::take(&mut send.is_exposed) {
                    self.network.conceal(send.node, buffer);
                }
                send.data = AnnouncedData::Copy(buffer.to_vec().into());
            }
        }
    }

    /// Sends and reads what waits, as far as the network has room.
    #[cold]
    pub(crate) fn send_pending(&mut self) {
        self.start_reads();
        self.end_reads();
        self.send_headers();
        self.send_fragments();
    }

    fn send_headers(&mut self) {
        for (node, mut headers) in self.state.outbox.take_all() {
            while let Some(header) = headers.front() {
                let encoded = header.encode(self.state.self_node);
                let result = self.network.send(node, encoded.as_bytes(), Body::NONE);
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
                AnnouncedData::Memory(buffer) => Body::Memory { buffer, offset, len },
                AnnouncedData::Copy(bytes) => Body::Bytes(&bytes[offset..offset + len]),
            };
            match self.network.send(send.node, header.as_bytes(), body) {
                Ok(()) => pull.sent += len,
                Err(SendError::Full) => return Progress::Full,
                Err(SendError::Unreachable) => return Progress::Complete,
            }
        }
        match pull.sent == pull.len {
            false => Progress::Waits,
            true if send.is_delivery_awaited && pull.len > 0 => Progress::Sent,
            true => Progress::Complete,
        }
    }

    fn end_send(&mut self, send_id: u32) {
        let Some(send) = self.state.sends.try_remove(send_id as usize) else { return };
        if let (true, AnnouncedData::Memory(buffer)) = (send.is_exposed, &send.data) {
            self.network.conceal(send.node, buffer);
        }
        let is_complete = send.pull.is_some_and(|pull| pull.sent == pull.len);
        let failure = (!is_complete).then_some(Failure::Network);
        self.state.complete_send(send.request, send.envelope, failure);
    }

    fn start_reads(&mut self) {
        if !self.state.reads.started.is_empty() {
            return;
        }
        while let Some(receive_id) = self.state.reads.waiting.pop_front() {
            let Some(receive) = self.state.receives.get(receive_id as usize) else { continue };
            let (source, handle) = (receive.origin.source, receive.announcement.handle);
            let buffer = receive.destination.buffer.part(0, receive.wanted);
            match self.network.start_read(source, handle, &buffer) {
                Ok(()) => self.state.reads.started.push(receive_id),
                Err(ReadError::Full) => {
                    return self.state.reads.waiting.push_front(receive_id);
                }
                Err(ReadError::Failed) => self.state.pull(receive_id),
            }
        }
    }

    fn end_reads(&mut self) {
        if self.state.reads.started.is_empty() {
            return;
        }
        let result = self.network.are_reads_done();
        if result == Ok(false) {
            return;
        }
        for receive_id in std::mem::take(&mut self.state.reads.started) {
            let Some(receive) = self.state.receives.get(receive_id as usize) else { continue };
            let (source, send_id) = (receive.origin.source, receive.announcement.send_id);
            let buffer = receive.destination.buffer.part(0, receive.wanted);
            self.network.end_read(source, &buffer);
            if result.is_ok() {
                self.state.finish_send_of(source, send_id);
                self.state.complete_remote_receive(receive_id, None);
            } else {
                self.state.pull(receive_id);
            }
        }
    }
}
