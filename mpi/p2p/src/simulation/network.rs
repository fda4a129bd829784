//! The simulated network: it delays, is full and fails to read at random.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::Event;
use super::random::Random;
use crate::memory::{Message, UserBuffer};
use crate::network::*;
use crate::state::{channel_of, origin_of};
use crate::wire::{Announcement, Header};

#[derive(Debug, Default)]
pub(super) struct Wires {
    pub(super) queues: HashMap<(u32, u32), VecDeque<Vec<u8>>>,
    /// Exposed memory, by handle, with its owner and reader.
    pub(super) exposed: HashMap<u64, (u32, u32, UserBuffer)>,
    next_handle: u64,
    /// Memory that is open to all nodes, by handle, with its owner.
    opened: HashMap<u64, (u32, UserBuffer)>,
    /// A program may close its endpoint while others read its memory.
    pub(super) has_closed_endpoint: bool,
}

impl Wires {
    /// Memory that a node has opened to all.
    fn part(&self, node: u32, handle: u64, len: usize) -> Option<UserBuffer> {
        let offset = (handle & ((1 << HANDLE_OFFSET_BITS) - 1)) as usize;
        let (owner, memory) =
            self.opened.get(&(handle >> HANDLE_OFFSET_BITS << HANDLE_OFFSET_BITS))?;
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        (*owner == node && is_inside).then(|| memory.part(offset, len))
    }
}

/// One node's end of the simulated network.
#[derive(Debug)]
pub(super) struct SimulatedNetwork {
    pub(super) node: u32,
    pub(super) wires: Rc<RefCell<Wires>>,
    pub(super) random: Random,
    pub(super) mtu: usize,
    pub(super) capacity: usize,
    pub(super) reads: Vec<(u64, UserBuffer)>,
    pub(super) remote_reads: Vec<(u32, u64, UserBuffer)>,
    pub(super) writes: Vec<(u32, u64, UserBuffer)>,
    pub(super) events: Rc<RefCell<Vec<Event>>>,
}

impl Network for SimulatedNetwork {
    fn mtu(&mut self, _: u32) -> usize {
        self.mtu
    }

    fn send(&mut self, node: u32, header: &[u8], body: Body<'_>) -> Result<(), SendError> {
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

    fn receive(&mut self, handle: impl FnOnce(Message<'_>)) -> bool {
        let mut wires = self.wires.borrow_mut();
        let sources: Vec<u32> = wires
            .queues
            .iter()
            .filter(|((_, to), queue)| *to == self.node && !queue.is_empty())
            .map(|((from, _), _)| *from)
            .collect();
        if sources.is_empty() || self.random.one_in(4) {
            return false;
        }
        let mut sources = sources;
        sources.sort_unstable();
        let source = sources[self.random.below(sources.len() as u64) as usize];
        let queue = wires.queues.get_mut(&(source, self.node)).unwrap();
        let bytes = queue.pop_front().unwrap();
        drop(wires);
        let message = Message::of_bytes(&bytes);
        self.log_arrival(&message);
        handle(message);
        true
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
        // Handles are not given again.
        wires.opened.insert(handle, (self.node, UserBuffer::empty()));
    }

    fn start_write(
        &mut self,
        node: u32,
        handle: u64,
        from: &UserBuffer,
    ) -> Result<WriteProgress, AccessError> {
        match self.random.below(8) {
            0 => return Err(AccessError::Full),
            1 => return Err(AccessError::Failed),
            _ => {}
        }
        let to = self.wires.borrow().part(node, handle, from.len()).ok_or(AccessError::Failed)?;
        if self.random.one_in(2) {
            to.fill_from_buffer(from, from.len());
            return Ok(WriteProgress::Delivered);
        }
        self.writes.push((node, handle, from.clone()));
        Ok(WriteProgress::Started)
    }

    fn start_read(&mut self, node: u32, handle: u64, into: &UserBuffer) -> Result<(), AccessError> {
        match self.random.below(8) {
            0 => return Err(AccessError::Full),
            1 => return Err(AccessError::Failed),
            _ => {}
        }
        let wires = self.wires.borrow();
        if handle >> HANDLE_OFFSET_BITS != 0 {
            wires.part(node, handle, into.len()).ok_or(AccessError::Failed)?;
            self.remote_reads.push((node, handle, into.clone()));
            return Ok(());
        }
        let Some((owner, reader, memory)) = wires.exposed.get(&handle) else {
            return Err(AccessError::Failed);
        };
        if (*owner, *reader) != (node, self.node) || memory.len() < into.len() {
            return Err(AccessError::Failed);
        }
        self.reads.push((handle, into.clone()));
        Ok(())
    }

    fn end_access(&mut self, _: u32, _: &UserBuffer) {}

    fn are_accesses_done(&mut self) -> Result<bool, AccessError> {
        match self.random.below(8) {
            0..3 => return Ok(false),
            3 => {
                self.reads.clear();
                self.remote_reads.clear();
                self.writes.clear();
                return Err(AccessError::Failed);
            }
            _ => {}
        }
        let wires = self.wires.borrow();
        let mut result = Ok(true);
        for (node, handle, from) in self.writes.drain(..) {
            match wires.part(node, handle, from.len()) {
                Some(to) => _ = to.fill_from_buffer(&from, from.len()),
                None => result = Err(AccessError::Failed),
            }
        }
        for (node, handle, into) in self.remote_reads.drain(..) {
            match wires.part(node, handle, into.len()) {
                Some(from) => _ = into.fill_from_buffer(&from, into.len()),
                None => result = Err(AccessError::Failed),
            }
        }
        for (handle, into) in self.reads.drain(..) {
            let memory = wires.exposed.get(&handle);
            assert!(memory.is_some() || wires.has_closed_endpoint, "concealed while read");
            match memory {
                Some((_, _, memory)) => _ = into.fill_from_buffer(memory, into.len()),
                None => result = Err(AccessError::Failed),
            }
        }
        result
    }
}

impl SimulatedNetwork {
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
