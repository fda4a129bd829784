//! The simulated network. It delays messages, is full, and fails to read and write at random.
//! Accesses to one node end one at a time, in the order of their start.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use super::Event;
use super::random::Random;
use crate::memory::{Message, UserBuffer};
use crate::network::*;
use crate::state::{channel_of, origin_of};
use crate::wire::{Announcement, EncodedHeader, Header};

#[derive(Debug, Default)]
pub(super) struct Wires {
    pub(super) queues: HashMap<(u32, u32), VecDeque<Vec<u8>>>,
    /// Exposed memory, by handle, with its owner and reader.
    pub(super) exposed: HashMap<u64, (u32, u32, UserBuffer)>,
    next_handle: u64,
    /// Memory that is open to all nodes, by handle, with its owner.
    opened: HashMap<u64, (u32, UserBuffer)>,
    /// Whether a program may close its endpoint while other nodes read its memory.
    pub(super) has_closed_endpoint: bool,
}

impl Wires {
    /// The part of a region of `node` that the handle denotes.
    fn part(&self, node: u32, handle: u64, len: usize) -> Option<UserBuffer> {
        let offset = (handle & ((1 << HANDLE_OFFSET_BITS) - 1)) as usize;
        let (owner, memory) =
            self.opened.get(&(handle >> HANDLE_OFFSET_BITS << HANDLE_OFFSET_BITS))?;
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        (*owner == node && is_inside).then(|| memory.part(offset, len))
    }
}

/// The simulated network of one node.
#[derive(Debug)]
pub(super) struct SimulatedNetwork {
    pub(super) node: u32,
    pub(super) wires: Rc<RefCell<Wires>>,
    pub(super) random: Random,
    pub(super) mtu: usize,
    pub(super) capacity: usize,
    /// The started accesses of each node, in their order.
    pub(super) accesses: BTreeMap<u32, VecDeque<StartedAccess>>,
    pub(super) access_count: u64,
    /// The most accesses to one node that may be in flight.
    pub(super) max_accesses: usize,
    pub(super) events: Rc<RefCell<Vec<Event>>>,
}

/// The kind of an access.
#[derive(Clone, Copy, Debug)]
enum AccessKind {
    /// A read of memory that is exposed to this node.
    Read,
    /// A read of memory that is open to all nodes.
    ReadRegion,
    WriteRegion,
}

#[derive(Debug)]
pub(super) struct StartedAccess {
    number: AccessNumber,
    kind: AccessKind,
    handle: u64,
    buffer: UserBuffer,
}

impl SimulatedNetwork {
    /// The next message for this node, from any source.
    pub(super) fn receive(&mut self) -> Option<Vec<u8>> {
        let mut wires = self.wires.borrow_mut();
        let sources: Vec<u32> = wires
            .queues
            .iter()
            .filter(|((_, to), queue)| *to == self.node && !queue.is_empty())
            .map(|((from, _), _)| *from)
            .collect();
        if sources.is_empty() || self.random.one_in(4) {
            return None;
        }
        let mut sources = sources;
        sources.sort_unstable();
        let source = sources[self.random.below(sources.len() as u64) as usize];
        let queue = wires.queues.get_mut(&(source, self.node)).unwrap();
        let bytes = queue.pop_front().unwrap();
        drop(wires);
        self.log_arrival(&Message::of_bytes(&bytes));
        Some(bytes)
    }
}

impl Network for SimulatedNetwork {
    fn mtu(&mut self, _: u32) -> usize {
        self.mtu
    }

    fn send(&mut self, node: u32, header: EncodedHeader, body: Body<'_>) -> Result<(), SendError> {
        let mut wires = self.wires.borrow_mut();
        let queue = wires.queues.entry((self.node, node)).or_default();
        if queue.len() >= self.capacity || self.random.one_in(8) {
            return Err(SendError::Full);
        }
        let mut message = header.to_vec();
        match body {
            Body::Bytes(bytes) => message.extend_from_slice(bytes),
            Body::Memory { buffer, offset, len } => {
                message.extend(buffer.part(offset, len).to_vec());
            }
        }
        assert!(message.len() <= self.mtu, "{} bytes", message.len());
        queue.push_back(message);
        Ok(())
    }

    fn expose(&mut self, node: u32, buffer: &UserBuffer) -> Option<u64> {
        if self.random.one_in(4) {
            return None;
        }
        let mut wires = self.wires.borrow_mut();
        wires.next_handle += 1;
        let handle = wires.next_handle;
        wires.exposed.insert(handle, (self.node, node, buffer.clone()));
        Some(handle)
    }

    fn conceal(&mut self, node: u32, buffer: &UserBuffer) {
        let mut wires = self.wires.borrow_mut();
        let found = wires.exposed.iter().find(|(_, (owner, reader, memory))| {
            (*owner, *reader) == (self.node, node) && memory.start() == buffer.start()
        });
        let handle = *found.expect("the memory was exposed").0;
        wires.exposed.remove(&handle);
    }

    fn expose_to_all(&mut self, buffer: &UserBuffer) -> Option<u64> {
        if self.random.one_in(3) {
            return None;
        }
        let mut wires = self.wires.borrow_mut();
        let handle = (wires.opened.len() as u64 + 1) << HANDLE_OFFSET_BITS;
        wires.opened.insert(handle, (self.node, buffer.clone()));
        Some(handle)
    }

    fn conceal_from_all(&mut self, buffer: &UserBuffer) {
        let mut wires = self.wires.borrow_mut();
        let is_it = |owner: u32, memory: &UserBuffer| {
            owner == self.node && memory.start() == buffer.start()
        };
        let found = wires.opened.iter().find(|(_, (owner, memory))| is_it(*owner, memory));
        let handle = *found.expect("the memory was exposed").0;
        // Handles are not reused.
        wires.opened.insert(handle, (self.node, UserBuffer::empty()));
    }

    fn start_write(
        &mut self,
        node: u32,
        handle: u64,
        from: &UserBuffer,
    ) -> Result<WriteProgress, AccessError> {
        self.refuse_at_random(node)?;
        let to = self.wires.borrow().part(node, handle, from.len()).ok_or(AccessError::Failed)?;
        let is_none_in_flight = self.accesses.get(&node).is_none_or(VecDeque::is_empty);
        if is_none_in_flight && self.random.one_in(2) {
            to.fill_from_buffer(from, from.len());
            return Ok(WriteProgress::Delivered);
        }
        let number = self.start_access(node, AccessKind::WriteRegion, handle, from);
        Ok(WriteProgress::Started(number))
    }

    fn start_read(
        &mut self,
        node: u32,
        handle: u64,
        into: &UserBuffer,
    ) -> Result<AccessNumber, AccessError> {
        self.refuse_at_random(node)?;
        let wires = self.wires.borrow();
        if handle >> HANDLE_OFFSET_BITS != 0 {
            wires.part(node, handle, into.len()).ok_or(AccessError::Failed)?;
            drop(wires);
            return Ok(self.start_access(node, AccessKind::ReadRegion, handle, into));
        }
        let Some((owner, reader, memory)) = wires.exposed.get(&handle) else {
            return Err(AccessError::Failed);
        };
        if (*owner, *reader) != (node, self.node) || memory.len() < into.len() {
            return Err(AccessError::Failed);
        }
        drop(wires);
        Ok(self.start_access(node, AccessKind::Read, handle, into))
    }

    fn next_ended(&mut self) -> Option<EndedAccess> {
        let nodes: Vec<u32> = self.accesses.keys().copied().collect();
        if nodes.is_empty() || self.random.below(8) < 3 {
            return None;
        }
        let node = nodes[self.random.below(nodes.len() as u64) as usize];
        let access = self.accesses.get_mut(&node)?.pop_front()?;
        if self.accesses[&node].is_empty() {
            self.accesses.remove(&node);
        }
        // A failed access may or may not have moved the bytes.
        let is_refused = self.random.one_in(8);
        let has_failed = is_refused || !self.end_access(node, &access) || self.random.one_in(16);
        Some(EndedAccess { number: access.number, has_failed })
    }

    fn release_buffer(&mut self, node: u32, buffer: &UserBuffer) {
        let mut accesses = self.accesses.get(&node).into_iter().flatten();
        let is_in_use = accesses.any(|access| access.buffer.start() == buffer.start());
        assert!(!is_in_use || buffer.is_empty(), "it is used by an access in flight");
    }
}

impl SimulatedNetwork {
    fn refuse_at_random(&mut self, node: u32) -> Result<(), AccessError> {
        let in_flight = self.accesses.get(&node).map_or(0, VecDeque::len);
        match self.random.below(8) {
            0 => Err(AccessError::Full),
            1 => Err(AccessError::Failed),
            _ if in_flight >= self.max_accesses => Err(AccessError::Full),
            _ => Ok(()),
        }
    }

    fn start_access(
        &mut self,
        node: u32,
        kind: AccessKind,
        handle: u64,
        buffer: &UserBuffer,
    ) -> AccessNumber {
        self.access_count += 1;
        let (number, buffer) = (AccessNumber(self.access_count), buffer.clone());
        let queue = self.accesses.entry(node).or_default();
        queue.push_back(StartedAccess { number, kind, handle, buffer });
        number
    }

    /// Moves the bytes. Returns false if the memory is not available any more.
    fn end_access(&self, node: u32, access: &StartedAccess) -> bool {
        let StartedAccess { kind, handle, ref buffer, .. } = *access;
        let wires = self.wires.borrow();
        let region = wires.part(node, handle, buffer.len());
        match (kind, region) {
            (AccessKind::Read, _) => {
                let memory = wires.exposed.get(&handle);
                assert!(memory.is_some() || wires.has_closed_endpoint, "concealed while read");
                let Some((_, _, memory)) = memory else { return false };
                buffer.fill_from_buffer(memory, buffer.len());
            }
            (AccessKind::ReadRegion, Some(from)) => {
                _ = buffer.fill_from_buffer(&from, buffer.len())
            }
            (AccessKind::WriteRegion, Some(to)) => _ = to.fill_from_buffer(buffer, buffer.len()),
            (AccessKind::ReadRegion | AccessKind::WriteRegion, None) => return false,
        }
        true
    }

    fn log_arrival(&self, message: &Message<'_>) {
        let Ok((header, source, header_len)) = Header::decode(message) else { return };
        let (envelope, len) = match header {
            Header::Eager(envelope, _) => (envelope, message.payload(header_len).len()),
            Header::Announcement(envelope, Announcement { len, .. }) => (envelope, len as usize),
            _ => return,
        };
        let Some(id) = envelope.data else { return };
        let (channel, origin) = (channel_of(&envelope), origin_of(source, &envelope));
        self.events.borrow_mut().push(Event::Arrived { id, channel, origin, len });
    }
}
