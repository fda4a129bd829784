//! Control messages in an engine: the slots for control messages to send, and the received control
//! messages that are not read yet.

#![forbid(unsafe_code)]

use super::endpoint_queues::ControlMessage;
use super::indices::SlotIndex;
use super::layout::SlabGeometry;
use crate::error::{Error, PmResult};
use std::collections::VecDeque;

/// See the module. `H` identifies the memory that holds a received message until the message is
/// read.
pub(crate) struct ControlMessages<H> {
    free_slots: Vec<SlotIndex>,
    received: VecDeque<(ControlMessage, H)>,
}

impl<H: Copy> ControlMessages<H> {
    /// The last slots for messages are reserved for control messages.
    pub(crate) fn new(geometry: &SlabGeometry) -> ControlMessages<H> {
        let first_slot = geometry.first_control_slot();
        let slots = geometry.message_slots().filter(|&slot| slot >= first_slot);
        ControlMessages { free_slots: slots.collect(), received: VecDeque::new() }
    }

    pub(crate) fn has_free_slot(&self) -> bool {
        !self.free_slots.is_empty()
    }

    /// Returns a slot for a control message, or `NoBuffers` if all slots are in use.
    pub(crate) fn take_slot(&mut self) -> PmResult<SlotIndex> {
        self.free_slots.pop().ok_or(Error::NoBuffers)
    }

    pub(crate) fn free_slot(&mut self, slot: SlotIndex) {
        self.free_slots.push(slot);
    }

    pub(crate) fn add_received(&mut self, message: ControlMessage, holder: H) {
        self.received.push_back((message, holder));
    }

    /// The number of received messages that are not read yet.
    pub(crate) fn unread_count(&self) -> usize {
        self.received.len()
    }

    /// Passes the next received message to `read`. If `read` succeeds, removes the message, and
    /// also returns its sender and its holder. Returns `NoBuffers` if there is no message.
    pub(crate) fn read_next<T>(
        &mut self,
        read: impl FnOnce(&ControlMessage) -> PmResult<T>,
    ) -> PmResult<(T, u32, H)> {
        let (message, holder) = self.received.front().ok_or(Error::NoBuffers)?;
        let (from, holder) = (message.from, *holder);
        let result = read(message)?;
        self.received.pop_front();
        Ok((result, from, holder))
    }
}

#[cfg(test)]
mod tests {
    use super::super::indices::EntryIndex;
    use super::super::layout::CONTROL_QUEUE_LEN;
    use super::*;
    use crate::config::CONTROL_MTU;

    fn messages() -> ControlMessages<EntryIndex> {
        ControlMessages::new(&SlabGeometry::new(2, 0..1, 1400).unwrap())
    }

    #[test]
    fn a_message_that_was_not_read_remains_the_next_one() {
        let mut messages = messages();
        let bytes = [0; CONTROL_MTU];
        messages.add_received(ControlMessage { from: 1, bytes, len: 4 }, EntryIndex(17));
        messages.add_received(ControlMessage { from: 0, bytes, len: 5 }, EntryIndex(18));
        let too_long = messages.read_next(|_| Err::<(), _>(Error::Invalid));
        assert_eq!((too_long, messages.unread_count()), (Err(Error::Invalid), 2));
        assert_eq!(messages.read_next(|message| Ok(message.len)), Ok((4, 1, EntryIndex(17))));
        assert_eq!(messages.read_next(|message| Ok(message.len)), Ok((5, 0, EntryIndex(18))));
        assert_eq!(messages.read_next(|_| Ok(())), Err(Error::NoBuffers));
    }

    #[test]
    fn as_many_slots_are_free_as_the_owner_may_queue_messages() {
        let mut messages = messages();
        let slots: Vec<SlotIndex> =
            (0..CONTROL_QUEUE_LEN).map(|_| messages.take_slot().unwrap()).collect();
        assert_eq!(
            (messages.take_slot(), messages.has_free_slot()),
            (Err(Error::NoBuffers), false)
        );
        messages.free_slot(slots[1]);
        assert_eq!(messages.take_slot(), Ok(slots[1]));
    }
}
